"""How sure is the model, and does it show where it is wrong?

1. `tokens`: entropy, log-probability and margin at every token of a text. `corpus`: calibration of the next token on documents.
2. `questions`: multiple choice by the option's text or by letters. `samples`: several answers to each of many prompts.
3. Signs of doubt in an answer: `answers` (its tokens, attention by `attention`, the lens by `settling`), `semantic` (classes of
   meaning of the samples), `sample_spread` (their streams), `truth_question` (the model is asked whether its answer is true)
   and `knowing` (a probe on the prompt: will the answer be right?).

`forward` is the pass that most of them share.
"""

from interp.uncertainty.answers import SIGNALS, SignalInfo, answer_signals, oriented
from interp.uncertainty.corpus import NextTokenCalibration, next_token_calibration
from interp.uncertainty.knowing import PIKReport, p_ik, prompt_streams
from interp.uncertainty.questions import AnswerReport, answer_report, score_options
from interp.uncertainty.sample_spread import answer_eigenscores, eigenscore, sample_embeddings
from interp.uncertainty.samples import AnswerSamples, load_answer_samples, sample_answers
from interp.uncertainty.semantic import (
    SemanticEntropy,
    discrete_semantic_entropy,
    rao_semantic_entropy,
    self_consistency,
    semantic_entropies,
    semantic_entropy,
)
from interp.uncertainty.tokens import TokenUncertainty, load_token_uncertainty, token_uncertainty
from interp.uncertainty.truth_question import PTrueCheck, PTrueExample, check_p_true, p_true

__all__ = [
    "SIGNALS",
    "AnswerReport",
    "AnswerSamples",
    "NextTokenCalibration",
    "PIKReport",
    "PTrueCheck",
    "PTrueExample",
    "SemanticEntropy",
    "SignalInfo",
    "TokenUncertainty",
    "answer_eigenscores",
    "answer_report",
    "answer_signals",
    "check_p_true",
    "discrete_semantic_entropy",
    "eigenscore",
    "load_answer_samples",
    "load_token_uncertainty",
    "next_token_calibration",
    "oriented",
    "p_ik",
    "p_true",
    "prompt_streams",
    "rao_semantic_entropy",
    "sample_answers",
    "sample_embeddings",
    "score_options",
    "self_consistency",
    "semantic_entropies",
    "semantic_entropy",
    "token_uncertainty",
]
