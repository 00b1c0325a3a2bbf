"""QuestionReport: how often the answers are right, what shows that one is wrong, and whether the inside knows better."""

from collections.abc import Mapping
from typing import ClassVar

import pandas as pd

from interp.behavior.questions import page
from interp.behavior.report import BehaviorReport
from interp.plot import Chart
from interp.report import Section

ANSWERS = ("task", "question", "group", "prompt", "answer", "right", "empty", "cut")
"""Columns of the answers beside their signals."""


class QuestionReport(BehaviorReport):
    """Accuracy by format, every signal's AUROC for wrong answers, risk-coverage curves, pairs of signals, and the inside."""

    KIND = "question report"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "signals": ("task", "signal", "auroc", "low", "high", "n", "n_missing", "reliable", "meaning"),
        "formats": ("format", "by", "n", "accuracy", "low", "high", "chance", "informative"),
        "curves": ("task", "signal", "coverage", "risk", "low", "high", "n"),
        "added": ("task",),
        "inside": ("figure", "value", "low", "high", "n"),
        "letters": ("letter", "chosen", "right", "n"),
        "sites": ("task", "site"),
        "answers": ANSWERS,
    }
    WORDS: ClassVar[frozenset[str]] = frozenset(
        {
            "task", "signal", "meaning", "reliable", "format", "by", "informative", "figure", "letter", "group",
            "prompt", "answer", "right", "empty", "cut", "site", "a", "b", "kind", "better", "adds", "note",
        }
    )  # fmt: skip

    @property
    def signals(self) -> pd.DataFrame:
        """A row per task and signal, best first: auroc for "the answer is wrong" with its interval, aurc, n."""
        return self.tables["signals"]

    @property
    def formats(self) -> pd.DataFrame:
        """A row per way to ask: accuracy with its interval beside chance, whether that tells them apart, calibration."""
        return self.tables["formats"]

    @property
    def answers(self) -> pd.DataFrame:
        """A row per task and question: the answer, whether it is right, and every signal as it was measured."""
        return self.tables["answers"]

    def summary(self) -> str:
        """What was found, in sentences."""
        return page.summary(self)

    def title(self) -> str:
        """Of the page."""
        return f"Does {self.card.get('model', 'the model')} know when it is wrong?"

    def sections(self) -> list[Section]:
        """Of the page."""
        return page.sections(self)

    def plot(self, name: str | None = None) -> Chart:
        """signals (main), risk, or reliability."""
        return page.chart(self, name)
