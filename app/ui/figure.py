"""A card of a page: heading, controls, one chart or table, caption; and what each has: its meaning, export, Python.

with figure.card("lens_grid", "Predictions by layer", WHAT) as card:
    statistic = st.segmented_control(...)
    card.chart(chart, frame, code=code, caption=caption)
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import altair as alt
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from interp import plot
from ui import export, text


@dataclass(frozen=True)
class Card:
    """An open card; `chart` or `table` fills it once."""

    name: str
    """File name of the exports, and part of the keys."""
    tools: DeltaGenerator
    """Place for the buttons at the right of the heading."""
    note: DeltaGenerator
    """Place for the caption, under the heading: the chart's own toolbar pops up over it, not over the buttons."""

    def chart(
        self,
        chart: plot.Chart,
        data: pd.DataFrame,
        *,
        code: str,
        caption: str = "",
        width: Literal["stretch", "content"] = "stretch",
        on_select: Callable[[], None] | None = None,
    ) -> None:
        """Draw a chart.

        Args:
            chart: the picture.
            data: its numbers, for the CSV.
            code: Python that reproduces it.
            caption: n, unit, source, as Markdown; data in it must be escaped by `states.plain`.
            width: `content` for grids with cells of a fixed size.
            on_select: called when a mark is clicked; the selection is in the session under the card's name.
        """
        self._export(data, code, chart)
        # Streamlit's own choice squeezes axes and legend into the height; cells would shrink to slivers.
        shown = chart
        if not isinstance(chart, alt.VConcatChart):
            shown = chart.properties(
                autosize=alt.AutoSizeParams(type="fit-x" if width == "stretch" else "pad", contains="padding")
            )
        if on_select is None:
            st.altair_chart(shown, width=width, key=self.name)
        else:
            st.altair_chart(shown, width=width, key=self.name, on_select=on_select)
        if caption:
            self.note.caption(caption)

    def table(
        self, data: pd.DataFrame, *, code: str, caption: str = "", columns: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        """Draw a table; `options` go to `st.dataframe`, whose result is returned."""
        self._export(data, code)
        result = st.dataframe(text.readable(data), column_config=columns or {}, hide_index=True, **options)
        if caption:
            self.note.caption(caption)
        return result

    def prose(self, data: pd.DataFrame, *, code: str, caption: str = "") -> None:
        """Draw a short table whose long texts break into lines, which `st.dataframe` cuts off."""
        self._export(data, code)
        st.table(text.map_texts(data, text.plain), border="horizontal", hide_index=True)
        if caption:
            self.note.caption(caption)

    def widget(
        self,
        draw: Callable[[], None],
        data: pd.DataFrame,
        *,
        code: str,
        caption: str = "",
        exports: Mapping[str, tuple[str, Callable[[], str | bytes]]] | None = None,
    ) -> None:
        """Draw something of our own.

        Args:
            draw: draws it.
            data: its numbers, for the CSV.
            code: Python that reproduces it.
            caption: as in `chart`.
            exports: ending -> (media type, function that makes the file).
        """
        self._export(data, code, more=exports)
        draw()
        if caption:
            self.note.caption(caption)

    def _export(
        self,
        data: pd.DataFrame,
        code: str,
        chart: plot.Chart | None = None,
        more: Mapping[str, tuple[str, Callable[[], str | bytes]]] | None = None,
    ) -> None:
        kinds: dict[str, tuple[str, Callable[[], str | bytes]]] = {"csv": ("text/csv", partial(export.csv, data))}
        kinds |= more or {}
        if chart is not None:
            kinds |= {
                "svg": ("image/svg+xml", partial(plot.to_svg, chart)),
                "png": ("image/png", partial(plot.to_png, chart)),
                "html": ("text/html", partial(plot.to_html, chart)),
            }
        with self.tools, st.popover("Export", type="tertiary"):
            with st.container(horizontal=True):
                for ending, (mime, make) in kinds.items():
                    # A callable: nothing is drawn or written before somebody asks for it.
                    st.download_button(
                        ending.upper(),
                        make,
                        f"{self.name}.{ending}",
                        mime,
                        key=f"{ending}_{self.name}",
                        on_click="ignore",
                    )
            st.caption("Python that makes this")
            st.code(code.strip(), language="python", width=520)


@contextlib.contextmanager
def card(name: str, title: str, what: str) -> Iterator[Card]:
    """Open a card.

    Args:
        name: of the card; unique on its page.
        title: heading. Fixed text, read as Markdown.
        what: "what am I seeing". Fixed text, read as Markdown.
    """
    with st.container(border=True, key=f"card_{name}"):
        with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
            st.header(title, anchor=False, width="content")
            tools = st.container(horizontal=True, width="content", gap="xsmall")
            with tools, st.popover("About", type="tertiary"):
                st.markdown(what)
        yield Card(name, tools, note=st.container())
