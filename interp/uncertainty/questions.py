"""Multiple choice: which option does the model hold for the most probable, and may one draw conclusions from it?

The format decides. By *text*, an option's score is the log-probability of its tokens after the prompt. By *letter*, the
options are listed and the score is that of the letter; small models then say the same letter every time, and every
figure made from it is about noise. So:

1. `score_options` scores each option, by the sum of its tokens' log-probabilities; the mean per token stands beside it,
   since the sum prefers short options, and on request what the option gains over its prompt's last line alone (pmi).
2. `answer_report` gives accuracy with an interval, and says whether the interval lies above chance. Where it does not,
   the format is *not informative*, and calibration or signals computed from it mean nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp.calibration import CalibrationReport, Interval, calibration_report, wilson_interval
from interp.dataset import Question
from interp.model import HookedTransformer
from interp.probe.completions import encoded
from interp.probe.likelihood import readings, tokenizer_of
from interp.uncertainty.forward import final_stream

FORMATS = ("text", "letter")
SCORES = {"sum": "logprob_sum", "mean": "logprob_mean", "pmi": "logprob_bare"}
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def score_options(
    model: HookedTransformer,
    questions: Sequence[Question],
    *,
    format: str = "text",
    bare: bool = False,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Log-probability of every option of every question.

    Args:
        questions: prompts with their options; an option continues its prompt, so it usually begins with a space.
        format: "text" scores the option's own text; "letter" lists the options as A, B, ... and scores the letter.
        bare: also score each option behind the last line of its prompt alone (`Answer:`), for `by="pmi"`.
        batch_size: most sequences in a forward pass; it does not change the figures.
        progress: called with (sequences done, sequences in all).

    Returns:
        A row per option: question, option (indices), text, format, group, logprob_sum, logprob_mean (nats a token),
        n_tokens, chosen (largest sum; the first of equals), right (the answer, or one of
        `meta["right"]` where a question has several), and logprob_bare where asked.

    The tokens of an option are those after the prompt when both are tokenised together. Where the last token of the
    prompt merges with the beginning of an option, all options of that question are scored from the last token that
    they share with the prompt, so that they stay comparable.

    Raises:
        ValueError: no questions, an unknown format, an option without tokens, a sequence longer than the context, NaN
            logits; `bare` where a prompt is a single line, or its last one is empty.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be 'text' or 'letter', got {format!r}")
    if not questions:
        raise ValueError("there are no questions to score")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    asked = [
        (question.prompt, question.options) if format == "text" else _lettered(question, index)
        for index, question in enumerate(questions)
    ]
    total, n_tokens = _scores(model, asked, batch_size, progress)
    place = [(index, option) for index, (_, options) in enumerate(asked) for option in range(len(options))]
    frame = pd.DataFrame(
        {
            "question": [question for question, _ in place],
            "option": [option for _, option in place],
            "text": [questions[question].options[option] for question, option in place],
            "format": format,
            "group": [questions[question].group for question, _ in place],
            "logprob_sum": total,
            "logprob_mean": total / n_tokens,
            "n_tokens": n_tokens,
        }
    )
    best = frame.groupby("question")["logprob_sum"].idxmax()  # the first of equals
    frame["chosen"] = np.isin(np.arange(len(frame)), best.to_numpy())
    frame["right"] = [option in right_options(questions[question]) for question, option in place]
    if bare:
        frame["logprob_bare"] = _scores(model, [(_last_line(p, i), o) for i, (p, o) in enumerate(asked)], batch_size)[0]
    return frame


@dataclass(frozen=True)
class AnswerReport:
    """Accuracy and calibration of one way to ask; made by `answer_report`."""

    format: str
    """How the options were put: text or letter."""
    by: str
    """What chose: the sum of log-probabilities, their mean per token, or the pmi."""
    n: int
    """Questions."""
    accuracy: float
    interval: Interval
    """95 %: Wilson's at the effective number of questions, where questions of a group go right or wrong together."""
    chance: float
    """Accuracy of a blind guess, the mean share of right options; by letter that of always saying the best letter, if higher."""
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
        by: "sum" or "mean" of the option's log-probabilities; "pmi" is the sum less that of the option behind the last
            line of its prompt alone, which takes out how probable its text is (Holtzman et al. 2021, arXiv 2104.08315).
        n_bins, n_boot, n_null, seed: as in `calibration_report`.

    Raises:
        ValueError: missing columns, several formats, a question without a right or a wrong option.
    """
    if by not in SCORES:
        raise ValueError(f"by must be 'sum', 'mean' or 'pmi', got {by!r}")
    missing = {"question", "option", "format", "group", "right", SCORES[by]} - set(frame.columns)
    if missing or not len(frame):
        mend = "; the pmi needs score_options(bare=True)" if missing == {"logprob_bare"} else ""
        raise ValueError(
            f"expected the rows that score_options gives; missing are {sorted(missing) or 'all rows'}{mend}"
        )
    formats = sorted(set(frame["format"]))
    if len(formats) != 1:
        raise ValueError(f"one format at a time: the frame holds {formats}")
    rows, chances = [], []
    for question, options in frame.sort_values("option").groupby("question"):
        n_right = int(np.count_nonzero(options["right"]))
        if not 0 < n_right < len(options):
            raise ValueError(
                f"question {question} has {n_right} right options of {len(options)}: it needs right and wrong ones"
            )
        scores = options[SCORES[by]].to_numpy(dtype=float)
        if by == "pmi":
            scores = options["logprob_sum"].to_numpy(dtype=float) - scores
        best = int(scores.argmax())
        choice, confidence = options.iloc[best], float(1 / np.exp(scores - scores[best]).sum())
        rows.append((question, choice["group"], int(choice["option"]), confidence, bool(choice["right"])))
        chances.append(n_right / len(options))
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
        chance=max(float(np.mean(chances)), _best_place(frame) if formats[0] == "letter" else 0.0),
        calibration=calibration_report(p_top=p_top, y=right, n_bins=n_bins, groups=groups, **draws),
        choices=choices,
    )


def _best_place(frame: pd.DataFrame) -> float:
    """Accuracy of always choosing the same place, the best one."""
    n_right = np.bincount(frame["option"].to_numpy(dtype=int), frame["right"].to_numpy(dtype=float))
    return float(n_right.max() / len(np.unique(frame["question"].to_numpy())))


def accuracy_interval(right: Bool[np.ndarray, " question"], groups: Sequence[Any] | None = None) -> Interval:
    """Wilson's 95 % interval at the effective number of questions.

    Questions of a group share entities and options, so they hold less than n independent trials. The effective number
    is accuracy (1 - accuracy) / variance of the accuracy between groups, at most n; it is the number of groups where
    all answers are alike and show no variance.
    """
    n, share = len(right), float(right.mean())
    effective = float(n)
    if groups is not None and len(set(groups)) == 1:
        effective = 1.0
    elif groups is not None:
        codes, names = pd.factorize(pd.Series(list(groups), dtype=object))
        n_groups = len(names)
        off = np.bincount(codes, right - share)
        variance = (off**2).sum() / n**2 * n_groups / max(n_groups - 1, 1)
        effective = min(float(n), share * (1 - share) / variance) if variance > 0 else float(n_groups)
    low, high = wilson_interval(share, effective)
    return float(low), float(high)


# ------------------------------------------------------------------------------------------------------------ scoring


def right_options(question: Question) -> set[int]:
    """Places of all right options: `meta["right"]`, else the answer.

    Raises:
        ValueError: a column `right` that holds no places of options.
    """
    found = question.meta.get("right", [question.answer])
    places = set(found) if isinstance(found, list | tuple | set) else {found}
    if not all(type(place) is int and 0 <= place < len(question.options) for place in places):
        raise ValueError(
            f"the right options of {question.prompt[-60:]!r} are {found!r}: they are places from 0 to "
            f"{len(question.options) - 1}; rename the column `right` if it says something else"
        )
    return places


def _lettered(question: Question, index: int) -> tuple[str, tuple[str, ...]]:
    """The prompt with its options listed as A, B, ..., and the letters as options."""
    if len(question.options) > len(LETTERS):
        raise ValueError(f"question {index} has {len(question.options)} options, more than there are letters")
    stem = question.prompt.removesuffix("Answer:").rstrip()
    letters = LETTERS[: len(question.options)]
    listed = "".join(f"\n{letter}. {option.strip()}" for letter, option in zip(letters, question.options))
    return f"{stem}{listed}\nAnswer:", tuple(f" {letter}" for letter in letters)


def _last_line(prompt: str, index: int) -> str:
    before, _, line = prompt.rpartition("\n")
    if not before.strip() or not line.strip():
        why = "its prompt is a single line" if line.strip() else "the last line of its prompt is empty"
        raise ValueError(f"question {index}: {why}, so no option can be scored behind a last line alone (bare=True)")
    return line


def _scores(
    model: HookedTransformer,
    asked: Sequence[tuple[str, Sequence[str]]],
    batch_size: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Float[np.ndarray, " option"], Int[np.ndarray, " option"]]:
    """Sum of the log-probabilities of each option's tokens, nats, and how many they are. Prompts are run once."""
    tokenizer = tokenizer_of(model)
    sequences: list[list[int]] = []
    starts: list[int] = []
    for index, (prompt, options) in enumerate(asked):
        try:
            found, start = encoded(tokenizer, prompt, options)
        except ValueError as error:
            raise ValueError(f"question {index}: {error}") from None
        sequences += found
        starts += [start] * len(found)
    total, done = np.zeros(len(sequences)), 0
    for reading in readings(model, sequences, starts, max_texts=batch_size):
        total += reading.sums(model, final_stream(model, reading.tokens)[None], len(sequences))[0]
        done += len(np.unique(reading.owners))
        if progress is not None:
            progress(done, len(sequences))
    return total, np.array([len(ids) for ids in sequences]) - starts
