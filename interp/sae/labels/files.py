"""Tables with a card in a folder, and journals: JSONL files that a stopped run goes on with."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from interp.artifact import atomic_folder, atomic_write, read_json, write_json

FORMAT = 1
"""Version of both formats. A reader refuses a newer one."""


def write_table(path: str | os.PathLike[str], kind: str, frame: pd.DataFrame, card: Mapping[str, Any]) -> Path:
    """Write `table.parquet` and `card.json` into a new folder. ValueError where it exists already."""
    with atomic_folder(path) as folder:
        frame.to_parquet(folder / "table.parquet", index=False)
        write_json(folder / "card.json", {**card, "kind": kind, "format": FORMAT})
    return Path(path)


def read_table(path: str | os.PathLike[str], kind: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table and the card that `write_table` wrote. ValueError for another kind, a newer format or damage."""
    if not Path(path).is_dir():
        raise ValueError(f"{path} is no folder: give one that {kind} were saved in")
    card = read_json(Path(path) / "card.json")
    if not isinstance(card, dict) or card.get("kind") != kind:
        raise ValueError(f"{path} holds no {kind}: give a folder that this library saved as such")
    if card["format"] > FORMAT:
        raise ValueError(f"{path} has format {card['format']}, newer than {FORMAT}: update interp")
    try:
        table = pq.read_table(Path(path) / "table.parquet")
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"the table in {path} is missing or damaged ({error}): make it again") from None
    frame = table.to_pandas()
    for column in table.schema:
        if pa.types.is_list(column.type) or pa.types.is_string(column.type) or pa.types.is_null(column.type):
            values = table.column(column.name).to_pylist()  # lists and None as they were, not arrays and NaN
            frame[column.name] = pd.Series(values, index=frame.index, dtype=object)
    return frame, card


class Journal:
    """A JSONL file: its first line says what run it belongs to, every further one is a result.

    Args:
        path: the file; made where it is not there.
        identity: what tells this run from others, JSON-ready.

    Raises:
        ValueError: the file belongs to another run, or is no journal.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = []
        """What is in it already."""
        head = {"identity": identity, "kind": "journal", "format": FORMAT}
        if not self.path.exists():
            atomic_write(self.path, _line(head))
            return
        data = self.path.read_bytes()
        # A line without its end was cut off with the run that wrote it.
        whole = data[: data.rfind(b"\n") + 1]
        try:
            first, *self.rows = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a journal of this library ({error}): give another path") from None
        if first != json.loads(_line(head)):
            theirs = first.get("identity") if isinstance(first, dict) else None
            theirs = theirs if isinstance(theirs, dict) else {}
            ours = json.loads(_line(identity))
            differ = [name for name in ours if theirs.get(name) != ours[name]]
            ids = [f"{name}_id=" for name in differ if name in ("explainer", "judge")]
            raise ValueError(
                f"{path} has the results of another run (not the same: {', '.join(differ) or 'format'}): give another path"
                + (f"; {ids[0]} in both runs vouches that the functions are the same" if ids else "")
            )
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one result down."""
        with self.path.open("ab") as file:
            file.write(_line(row).encode())


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
