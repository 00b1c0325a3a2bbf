"""Controls that several pages use. Their values stand in the URL."""

from collections.abc import Mapping
from typing import Literal

import streamlit as st


def choice(
    label: str, options: Mapping[str, str], key: str, *, visibility: Literal["visible", "collapsed"] = "visible"
) -> str:
    """One of a few, in one row.

    Args:
        label: what is chosen; read to those who do not see it even where it is collapsed.
        options: value -> what the user reads. The first one is the default.
        key: in the session and in the URL; unique in the app.
        visibility: of the label.
    """
    first = next(iter(options))
    picked = st.segmented_control(
        label,
        list(options),
        default=first,
        format_func=options.__getitem__,
        key=key,
        required=True,
        bind="query-params",
        label_visibility=visibility,
    )
    return picked if picked in options else first  # an empty value in the URL comes as None
