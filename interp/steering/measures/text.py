"""Measures of what is written, and measures of the caller's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from interp.steering.measures.base import Setup, Values, finite


@dataclass(frozen=True)
class PhraseRate:
    """1 where a continuation holds any of some phrases, else 0; case does not count."""

    phrases: Any
    """Texts."""
    name: str = "phrases"
    """In the report."""
    unit: str = "share"
    """Of a value."""
    reads_text: bool = True
    """It reads the continuations."""

    def __post_init__(self) -> None:
        phrases = [self.phrases] if isinstance(self.phrases, str) else list(self.phrases)
        if not phrases or not all(isinstance(each, str) and each.strip() for each in phrases):
            raise ValueError(f"PhraseRate needs phrases to look for, got {self.phrases!r}")

    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]:
        """(prompt, None) of each prompt."""
        return [(prompt, None) for prompt in prompts]

    def prepare(self, setup: Setup) -> "_Scored":  # noqa: ARG002
        """Nothing is computed beforehand."""
        wanted = [each.casefold() for each in ([self.phrases] if isinstance(self.phrases, str) else self.phrases)]
        return _Scored(lambda text: float(any(each in text.casefold() for each in wanted)), self.name)

    def describe(self) -> dict[str, Any]:
        """As JSON; `measure_of` makes it again."""
        phrases = [self.phrases] if isinstance(self.phrases, str) else list(self.phrases)
        return {"measure": "phrase_rate", "name": self.name, "phrases": phrases}


@dataclass(frozen=True)
class TextScore:
    """A number for each continuation by a function of yours, for example a classifier's probability."""

    score: Any
    """fn(text) -> a number."""
    name: str = "text score"
    """In the report."""
    unit: str = "score"
    """Of a value."""
    reads_text: bool = True
    """It reads the continuations."""

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise ValueError(f"TextScore takes a function of a text, got {self.score!r}")

    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]:
        """(prompt, None) of each prompt."""
        return [(prompt, None) for prompt in prompts]

    def prepare(self, setup: Setup) -> "_Scored":  # noqa: ARG002
        """Nothing is computed beforehand."""
        return _Scored(self.score, self.name)

    def describe(self) -> dict[str, Any]:
        """As JSON. The function is not in it."""
        return {"measure": "text_score", "name": self.name, "unit": self.unit}


@dataclass(frozen=True)
class _Scored:
    score: Callable[[str], float]
    name: str

    def read(self, interventions: Sequence[Any], texts: Sequence[str]) -> Values:  # noqa: ARG002
        return finite([self.score(text) for text in texts], len(texts), self.name)


@dataclass(frozen=True)
class OwnMeasure:
    """A function of yours that is called while the intervention is attached."""

    function: Any
    """fn(model, prompts) -> a number for each prompt."""
    name: str = "own measure"
    """In the report."""
    unit: str = "score"
    """Of a value."""
    reads_text: bool = False
    """It runs the model itself."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"OwnMeasure takes a function of (model, prompts), got {self.function!r}")

    def items(self, prompts: Sequence[str]) -> list[tuple[str, str | None]]:
        """(prompt, None) of each prompt."""
        return [(prompt, None) for prompt in prompts]

    def prepare(self, setup: Setup) -> "_Own":
        """Nothing is computed beforehand."""
        if not setup.prompts:
            raise ValueError("a measure of your own is read on prompts: give prompts=")
        return _Own(self, setup)

    def describe(self) -> dict[str, Any]:
        """As JSON. The function is not in it."""
        return {"measure": "own", "name": self.name, "unit": self.unit}


@dataclass(frozen=True, eq=False)
class _Own:
    measure: OwnMeasure
    setup: Setup

    def read(self, interventions: Sequence[Any], texts: Sequence[str]) -> Values:  # noqa: ARG002
        prompts = [self.setup.frame(prompt) for prompt in self.setup.prompts]
        with self.setup.model.intervene(*interventions):
            found = self.measure.function(self.setup.model, prompts)
        return finite(found, len(prompts), self.measure.name)
