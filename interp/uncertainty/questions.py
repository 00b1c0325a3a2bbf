"""Multiple choice: which option does the model hold for the most probable, and may one draw conclusions from it?

The format decides. By *text*, an option's score is the log-probability of its tokens after the prompt. By *letter*, the
options are listed and the score is that of the letter; small models then say the same letter every time, and every
figure made from it is about noise. So:

1. `score_options` scores each option, by the sum of its tokens' log-probabilities; the mean per token stands beside it,
   since the sum prefers short options.
2. `answer_report` gives accuracy with an interval, and says whether the interval lies above chance. Where it does not,
   the format is *not informative*, and calibration or signals computed from it mean nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from interp.calibration import CalibrationReport, Interval, calibration_report, wilson_interval
from interp.dataset import Question
from interp.model import HookedTransformer
from interp.probe.completions import encoded
from interp.uncertainty.forward import final_stream, right_padded, target_logprobs

FORMATS = ("text", "letter")
SCORES = {"sum": "logprob_sum", "mean": "logprob_mean"}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def score_options(
    model: HookedTransformer,
    questions: Sequence[Question],
    *,
    format: str = "text",
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Log-probability of every option of every question.

    Args:
        questions: prompts with their options; an option continues its prompt, so it usually begins with a space.
        format: "text" scores the option's own text; "letter" lists the options as A, B, ... and scores the letter.
        batch_size: sequences in a forward pass.
        progress: called with (sequences done, sequences in all); those of one batch have nearly equal length.

    Returns:
        A row per option: question, option (indices), text, format, group, logprob_sum, logprob_mean (nats a token),
        n_tokens, chosen (largest sum; the first of equals), right (it is the answer).

    The tokens of an option are those after the prompt when both are tokenised together. Where the last token of the
    prompt merges with the beginning of an option, all options of that question are scored from the last token that
    they share with the prompt, so that they stay comparable.

    Raises:
        ValueError: no questions, an unknown format, an option without tokens, a sequence longer than the context, NaN
            logits.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be 'text' or 'letter', got {format!r}")
    if not questions:
        raise ValueError("there are no questions to score")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer; load it with one")
    inputs: list[list[int]] = []
    options: list[_Option] = []
    for index, question in enumerate(questions):
        prompt, texts = (question.prompt, question.options) if format == "text" else _lettered(question, index)
        try:
            sequences, start = encoded(model.tokenizer, prompt, texts)
        except ValueError as error:
            raise ValueError(f"question {index}: {error}") from None
        options += sorted(_shared_inputs(index, sequences, start, inputs), key=lambda each: each.option)
    logprobs = _logprobs(model, inputs, options, batch_size, progress)
    frame = pd.DataFrame(
        {
            "question": [option.question for option in options],
            "option": [option.option for option in options],
            "text": [questions[option.question].options[option.option] for option in options],
            "format": format,
            "group": [questions[option.question].group for option in options],
            "logprob_sum": [float(logprob.sum()) for logprob in logprobs],
            "logprob_mean": [float(logprob.mean()) for logprob in logprobs],
            "n_tokens": [len(logprob) for logprob in logprobs],
        }
    )
    best: dict[int, int] = {}
    for place, option in enumerate(options):
        leader = best.setdefault(option.question, place)
        if logprobs[place].sum() > logprobs[leader].sum():
            best[option.question] = place
    frame["chosen"] = [best[option.question] == place for place, option in enumerate(options)]
    frame["right"] = [questions[option.question].answer == option.option for option in options]
    return frame


@dataclass(frozen=True)
class AnswerReport:
    """Accuracy and calibration of one way to ask; made by `answer_report`."""

    format: str
    """How the options were put: text or letter."""
    by: str
    """What chose: the sum of log-probabilities, or their mean per token."""
    n: int
    """Questions."""
    accuracy: float
    interval: Interval
    """95 %: Wilson's at the effective number of questions, where questions of a group go right or wrong together."""
    chance: float
    """Accuracy of a blind guess: the mean of 1 / number of options."""
    calibration: CalibrationReport
    """Of p_top, the softmax of the scores over the options, against whether the choice was right."""
    choices: pd.DataFrame
    """A row per question: question, group, chosen (option), confidence, right."""

    @property
    def informative(self) -> bool:
        """The interval lies above chance."""
        return self.interval[0] > self.chance

    @property
    def verdict(self) -> str:
        """One plain sentence or two."""
        low, high = self.interval
        head = f"By {self.format} ({self.by}): {self.accuracy:.3f} right ({low:.3f}-{high:.3f}, n = {self.n}), "
        if self.informative:
            return f"{head}chance {self.chance:.3f}. {self.calibration.verdict}"
        side = "is not above" if high >= self.chance else "lies below"
        return f"{head}which {side} chance ({self.chance:.3f}): not informative, draw no conclusion from this format."

    def to_frame(self) -> pd.DataFrame:
        """One row: format, by, n, accuracy, low, high, chance, informative, confidence, ece, null band, auroc."""
        null_low, null_high = self.calibration.null_band or (None, None)
        row = {
            "format": self.format,
            "by": self.by,
            "n": self.n,
            "accuracy": self.accuracy,
            "low": self.interval[0],
            "high": self.interval[1],
            "chance": self.chance,
            "informative": self.informative,
            "confidence": self.calibration.mean_p,
            "ece": self.calibration.ece,
            "null_low": null_low,
            "null_high": null_high,
            "auroc": self.calibration.auroc,
        }
        return pd.DataFrame([row])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary: the summary, the calibration report, and the choices."""
        summary = {key: None if value != value else value for key, value in self.to_frame().iloc[0].to_dict().items()}
        summary |= {"n": self.n, "informative": self.informative}
        choices = {name: column.tolist() for name, column in self.choices.items()}
        return {**summary, "verdict": self.verdict, "calibration": self.calibration.to_dict(), "choices": choices}


def answer_report(
    frame: pd.DataFrame, *, by: str = "sum", n_bins: int = 15, n_boot: int = 1000, n_null: int = 1000, seed: int = 0
) -> AnswerReport:
    """Accuracy, interval and calibration of the scores that `score_options` made.

    Args:
        frame: the rows of one format.
        by: "sum" or "mean" of the option's log-probabilities.
        n_bins, n_boot, n_null, seed: as in `calibration_report`.

    Raises:
        ValueError: missing columns, several formats, a question without exactly one right option.
    """
    if by not in SCORES:
        raise ValueError(f"by must be 'sum' or 'mean', got {by!r}")
    missing = {"question", "option", "format", "group", "right", SCORES[by]} - set(frame.columns)
    if missing or not len(frame):
        raise ValueError(f"expected the rows that score_options gives; missing are {sorted(missing) or 'all rows'}")
    formats = sorted(set(frame["format"]))
    if len(formats) != 1:
        raise ValueError(f"one format at a time: the frame holds {formats}")
    rows, chances = [], []
    for question, options in frame.sort_values("option").groupby("question"):
        n_right = int(np.count_nonzero(options["right"]))
        if n_right != 1:
            raise ValueError(f"question {question} has {n_right} right options: it needs exactly one")
        scores = options[SCORES[by]].to_numpy(dtype=float)
        best = int(scores.argmax())
        choice, confidence = options.iloc[best], float(1 / np.exp(scores - scores[best]).sum())
        rows.append((question, choice["group"], int(choice["option"]), confidence, bool(choice["right"])))
        chances.append(1 / len(options))
    choices = pd.DataFrame(rows, columns=pd.Index(["question", "group", "chosen", "confidence", "right"]))
    right = choices["right"].to_numpy(dtype=bool)
    groups = None if all(pd.isna(group) for group in choices["group"]) else choices["group"].tolist()
    p_top = choices["confidence"].to_numpy(dtype=float)
    draws = {"n_boot": n_boot, "n_null": n_null, "seed": seed}
    return AnswerReport(
        format=formats[0],
        by=by,
        n=len(choices),
        accuracy=float(right.mean()),
        interval=accuracy_interval(right, groups),
        chance=float(np.mean(chances)),
        calibration=calibration_report(p_top=p_top, y=right, n_bins=n_bins, groups=groups, **draws),
        choices=choices,
    )


def accuracy_interval(right: Bool[np.ndarray, " question"], groups: Sequence[Any] | None = None) -> Interval:
    """Wilson's 95 % interval at the effective number of questions.

    Questions of a group share entities and options, so they hold less than n independent trials. The effective number
    is accuracy (1 - accuracy) / variance of the accuracy between groups, at most n; it is the number of groups where
    all answers are alike and show no variance.
    """
    n, share = len(right), float(right.mean())
    effective = float(n)
    if groups is not None:
        codes, names = pd.factorize(pd.Series(list(groups), dtype=object))
        n_groups = len(names)
        off = np.bincount(codes, right - share)
        variance = (off**2).sum() / n**2 * n_groups / max(n_groups - 1, 1)
        effective = min(float(n), share * (1 - share) / variance) if variance > 0 else float(n_groups)
    low, high = wilson_interval(share, effective)
    return float(low), float(high)


# ------------------------------------------------------------------------------------------------------------ scoring


@dataclass(frozen=True)
class _Option:
    question: int
    option: int
    input: int
    """Which input sequence holds it."""
    start: int
    """Its first token's place in that sequence."""
    targets: list[int]
    """Its tokens."""


def _lettered(question: Question, index: int) -> tuple[str, tuple[str, ...]]:
    """The prompt with its options listed as A, B, ..., and the letters as options."""
    if len(question.options) > len(LETTERS):
        raise ValueError(f"question {index} has {len(question.options)} options, more than there are letters")
    stem = question.prompt.removesuffix("Answer:").rstrip()
    letters = LETTERS[: len(question.options)]
    listed = "".join(f"\n{letter}. {option.strip()}" for letter, option in zip(letters, question.options))
    return f"{stem}{listed}\nAnswer:", tuple(f" {letter}" for letter in letters)


def _shared_inputs(
    question: int, sequences: Sequence[Sequence[int]], start: int, inputs: list[list[int]]
) -> Iterator[_Option]:
    """The options of one question; what must be run for them is added to `inputs`.

    The last token of an option is read and never fed, and an input that another one continues needs no pass of its
    own: options of one token all read the pass of their bare prompt.
    """
    own: list[int] = []
    for option in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
        fed = list(sequences[option][:-1])
        place = next((i for i in own if inputs[i][: len(fed)] == fed), None)
        if place is None:
            place = len(inputs)
            inputs.append(fed)
            own.append(place)
        yield _Option(question, option, place, start, list(sequences[option][start:]))


def _logprobs(
    model: HookedTransformer,
    inputs: list[list[int]],
    options: list[_Option],
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> list[Float[np.ndarray, " token"]]:
    """Log-probabilities of each option's tokens, nats."""
    wanted: dict[int, list[int]] = {}
    for index, option in enumerate(options):
        wanted.setdefault(option.input, []).append(index)
    found: list[np.ndarray] = [np.empty(0)] * len(options)
    by_length = sorted(range(len(inputs)), key=lambda i: len(inputs[i]))  # little padding
    for begin in range(0, len(by_length), batch_size):
        batch = by_length[begin : begin + batch_size]
        stream = final_stream(model, right_padded(model, [inputs[i] for i in batch]))
        served = [(row, index) for row, i in enumerate(batch) for index in wanted[i]]
        parts = [
            stream[row, options[index].start - 1 : options[index].start - 1 + len(options[index].targets)]
            for row, index in served
        ]
        targets = torch.tensor([token for _, index in served for token in options[index].targets])
        logprobs = target_logprobs(model, torch.cat(parts), targets).numpy()
        ends = np.cumsum([len(options[index].targets) for _, index in served])
        for (_, index), values in zip(served, np.split(logprobs, ends[:-1])):
            found[index] = values
        if np.isnan(logprobs).any():
            raise ValueError("the model gives NaN logits for these questions: look for NaN in its weights or hooks")
        if progress is not None:
            progress(begin + len(batch), len(inputs))
    return found
