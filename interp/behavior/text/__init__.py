"""Calibration of the next token on text.

`rows` draws what is scored, `work` runs the documents, `tokens` classes them, `figures` makes the tables, `run` puts them in
order, `page` says what was found.
"""

from interp.behavior.text.run import TextCalibrationReport, text_calibration

__all__ = [
    "TextCalibrationReport",
    "text_calibration",
]
