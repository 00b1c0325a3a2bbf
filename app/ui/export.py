"""What a user takes away from a figure: its numbers, its picture, and the Python that makes it again."""

from csv import QUOTE_NONNUMERIC

import pandas as pd

from ui.text import map_texts

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv(frame: pd.DataFrame) -> bytes:
    """CSV in UTF-8. A text that a spreadsheet would run as a formula gets an apostrophe in front.

    Tokens such as `=` and `-` are common, and so the guard is not only against malice.
    """
    safe = map_texts(frame, _guarded)
    safe.columns = [_guarded(str(column)) for column in safe.columns]
    # Texts are quoted: the writer itself does not see that a bare carriage return would end a row.
    text = safe.to_csv(index=False, lineterminator="\n", quoting=QUOTE_NONNUMERIC)
    return text.encode("utf-8", "backslashreplace")


def _guarded(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
