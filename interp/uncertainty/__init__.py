"""How sure is the model, and is it right when it is sure?

`tokens`: entropy, log-probability and margin at every token of a text. `corpus`: calibration of the next token on
documents, before and after temperature scaling. `questions`: multiple choice by the option's text or by letters.
`forward` is the one pass that all three share.
"""

from interp.uncertainty.corpus import NextTokenCalibration, next_token_calibration
from interp.uncertainty.questions import AnswerReport, answer_report, score_options
from interp.uncertainty.tokens import TokenUncertainty, load_token_uncertainty, token_uncertainty

__all__ = [
    "AnswerReport",
    "NextTokenCalibration",
    "TokenUncertainty",
    "answer_report",
    "load_token_uncertainty",
    "next_token_calibration",
    "score_options",
    "token_uncertainty",
]
