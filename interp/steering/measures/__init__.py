"""What a steering experiment measures on each prompt.

A measure gives one number for each of its items under the intervention that is attached. What it reads of the model is a
teacher-forced pass (`PairPreference`, `TargetTokens`, `ProbeScore`) or generated text (`PhraseRate`, `TextScore`); a function
of your own (`OwnMeasure`) may do what it likes with the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from interp.dataset import ContrastPair
from interp.steering.measures.base import Measure, Reader, Setup
from interp.steering.measures.framing import Framing
from interp.steering.measures.passes import PairPreference, ProbeScore, TargetTokens
from interp.steering.measures.text import OwnMeasure, PhraseRate, TextScore

__all__ = [
    "Framing", "Measure", "OwnMeasure", "PairPreference", "PhraseRate", "ProbeScore", "Reader", "Setup", "TargetTokens",
    "TextScore", "measure_of", "measures_of",
]  # fmt: skip


def measures_of(given: Any, pairs: Sequence[ContrastPair]) -> list[Measure]:
    """The measures of an experiment: those given, a function as `OwnMeasure`, and the preference where there are pairs.

    Raises:
        ValueError: something else, or two of one name.
    """
    several = [given] if isinstance(given, Measure) or callable(given) else [] if given is None else list(given)
    if isinstance(given, Mapping):
        several = [OwnMeasure(fn, name) if not isinstance(fn, Measure) else fn for name, fn in given.items()]
    found: list[Measure] = [PairPreference(tuple(pairs))] if len(pairs) else []
    for each in several:
        if isinstance(each, Measure):
            found.append(each)
        elif callable(each):
            found.append(OwnMeasure(each, getattr(each, "__name__", "own measure")))
        else:
            raise ValueError(
                f"measure={each!r} is no measure: take PairPreference, TargetTokens, ProbeScore, PhraseRate, TextScore, or a "
                "function of (model, prompts)"
            )
    names = [each.name for each in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two measures are called {twice[0]!r}: give them names of their own, name=")
    return found


def measure_of(described: Mapping[str, Any]) -> Measure:
    """The measure that `describe` wrote down.

    Raises:
        ValueError: a function or a probe of the caller's, which no file holds.
    """
    kind, name = described.get("measure"), str(described.get("name"))
    if kind == "pair_preference":
        return PairPreference(tuple(ContrastPair(p, a, b, group=g) for p, a, b, g in described["pairs"]), name)
    if kind == "target_tokens":
        own = {key: described[key] for key in ("tokens", "against", "kind", "prompts")}
        return TargetTokens(**own, name=name)
    if kind == "phrase_rate":
        return PhraseRate(tuple(described["phrases"]), name)
    raise ValueError(
        f"the measure {name!r} ({kind}) is a function or a probe of its author's: give it again by measure="
    )
