"""Which texts can stand in one store: what their store cards say, and the columns that they have.

Asked before texts are appended and before stores are put together, so that nothing is written that could not be read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from interp.store.joined import PIECE_COLUMNS
from interp.store.shard import site_shapes
from interp.store.writer import WHAT_COUNTS, differences

_OWN_OF_TEXTS = (
    "sites", "long", "texts", "labels, groups or further columns", "what it is a part of", "which of the tokens are kept",
)  # fmt: skip
"""What may differ between a store and texts that are appended to it. Sites are compared apart, without their order; what
was done with long texts counts if there are any."""
Columns = tuple[Any, Mapping[str, Any], pa.Schema]
"""Where texts stand, for people; the card that they were recorded by; the columns that they have."""


def differences_of_texts(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What differs between two store cards, in words, so that their texts cannot stand in one store."""
    shared = [name for name in WHAT_COUNTS if name not in _OWN_OF_TEXTS]
    if any(card["texts"].get("over_max_length", 1) for card in (there, wanted)):
        shared.append("long")
    differs, sites = differences(there, wanted, shared), (site_shapes(there), site_shapes(wanted))
    if sites[0] != sites[1]:
        differs.append(f"sites ({_list(sites[0])} there, {_list(sites[1])} now)")
    return differs


def _list(sites: Collection[str]) -> str:
    return ", ".join(sites) or "none"


def refuse_unfit_columns(texts: Sequence[Columns]) -> None:
    """Refuse columns that cannot stand in one store.

    Raises:
        ValueError: a column whose types have none in common; one of the caller's that has the name of a column that pieces
            of long texts have, beside such pieces.
    """
    joint_columns((where, schema) for where, _, schema in texts)
    cut = [card.get("long") == "chunk" for _, card, _ in texts]
    for (where, _, schema), is_cut in zip(texts, cut):
        if any(cut) and not is_cut and (own := [name for name in PIECE_COLUMNS if name in schema.names]):
            raise ValueError(
                f"{where} has a column {own[0]!r} of its own, and in texts that were recorded with long='chunk' that name "
                "says which piece of a long text each is: rename it"
            )


def joint_columns(tables: Iterable[tuple[Any, pa.Schema]]) -> pa.Schema:
    """The columns of texts that are to stand in one store, each with a type that holds the values of all.

    Args:
        tables: whose they are, for the message, and their columns.

    Raises:
        ValueError: a column whose types have none in common.
    """
    found: dict[str, tuple[Any, pa.Field]] = {}
    for whose, schema in tables:
        for field in schema:
            before, known = found.get(field.name, (whose, field))
            try:  # by the rule that the tables are read by
                both = pa.unify_schemas([pa.schema([known]), pa.schema([field])], promote_options="permissive")
            except pa.ArrowException:
                raise ValueError(
                    f"column {field.name!r} holds {known.type} in {before} but {field.type} in {whose}: give its values one "
                    "type, or the column another name"
                ) from None
            found[field.name] = (before if both.field(0).type == known.type else whose, both.field(0))
    return pa.schema([field for _, field in found.values()])
