"""`CandidateReport`: every candidate with its scores, the one that was chosen, and what it does on prompts that chose nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from interp import artifact
from interp import sites as site_names
from interp.steering.vector import SteeringVector

KIND, FORMAT = "candidate directions", 1
CANDIDATES = (
    "site", "layer", "position", "token", "length", "ablated", "induced", "kl", "refused", "chosen",
)  # fmt: skip
FIGURES = ("prompts", "intervention", "measure", "value", "low", "high", "n", "n_groups")
_NUMBERS = {"length", "ablated", "induced", "kl", "value", "low", "high"}


@dataclass(frozen=True, eq=False)
class CandidateReport:
    """What a choice among mean differences found; made by `candidate_direction`."""

    vector: SteeringVector
    """The chosen direction; `raw_norm` is the length of the difference."""
    candidates: pd.DataFrame = field(repr=False)
    """A row for each site and position: see `to_frame`."""
    figures: pd.DataFrame = field(repr=False)
    """On prompts that neither made a direction nor chose one: prompts (positive, negative), intervention (none, ablate,
    add), measure (score; change of the score, prompt by prompt; kl), value (mean), low, high (95 %, groups resampled), n,
    n_groups."""
    card: dict[str, Any] = field(repr=False)
    """Division of the prompts, unsteered scores, bounds, provenance."""

    def to_frame(self) -> pd.DataFrame:
        """A row for each candidate.

        Columns: site, layer, position (from the end, -1 the last token), token (what stands there in all prompts, "" where
        it varies), length (norm of the difference), ablated (mean score of the positive prompts with the direction taken
        out everywhere), induced (of the negative prompts with the difference added at its site), kl (nats, unsteered
        against ablated, last position of the negative prompts), refused (the reasons, "" for none), chosen. NaN where a
        candidate was refused without a run. The scores chose: what to quote stands in `figures`.
        """
        return self.candidates

    def summary(self) -> str:
        """What was chosen out of how many, and its figures on test prompts."""
        own = self.vector.card
        refused = sum(reasons != "" for reasons in self.candidates["refused"])
        token = f" ({own['token']!r})" if own["token"] else ""
        lines = [
            f"Chosen: {site_names.short_name(self.vector.site)}, position {own['position']}{token}, out of "
            f"{len(self.candidates)} candidates, {refused} of them refused. Score: {self.card['score']}."
        ]
        words = {
            ("positive", "none", "score"): "positive prompts, unsteered",
            ("positive", "ablate", "score"): "positive prompts, ablated everywhere",
            ("positive", "ablate", "change"): "  change",
            ("negative", "none", "score"): "negative prompts, unsteered",
            ("negative", "add", "score"): "negative prompts, added at its site",
            ("negative", "add", "change"): "  change",
            ("negative", "ablate", "kl"): "negative prompts, KL to ablated (nats)",
        }
        for row in self.figures.to_dict("records"):
            name = words[row["prompts"], row["intervention"], row["measure"]]
            lines.append(
                f"{name}: {row['value']:+.3f} (95 % {row['low']:+.3f} to {row['high']:+.3f}), n = {row['n']} in "
                f"{row['n_groups']} groups"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `CandidateReport.from_dict` reads it."""
        tables = {"candidates": artifact.records(self.candidates), "figures": artifact.records(self.figures)}
        return {"kind": KIND, "format": FORMAT, "vector": self.vector.to_dict(), **tables, "card": self.card}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "CandidateReport":
        """What `to_dict` gave. ValueError for anything else, or a newer format."""
        if found.get("kind") != KIND:
            raise ValueError(f"this holds no candidate directions, but {found.get('kind')!r}")
        if not isinstance(found.get("format"), int) or found["format"] > FORMAT:
            raise ValueError(
                f"these candidate directions have format {found.get('format')!r}, newer than {FORMAT}: update"
            )
        candidates, figures = _frame(found["candidates"], CANDIDATES), _frame(found["figures"], FIGURES)
        return cls(SteeringVector.from_dict(found["vector"]), candidates, figures, dict(found["card"]))

    def save(self, path: str | Path) -> Path:
        """One JSON file; `load_candidate_report` reads it."""
        return artifact.write_json(Path(path), self.to_dict())


def load_candidate_report(path: str | Path) -> CandidateReport:
    """Read what `CandidateReport.save` wrote. ValueError for any other file."""
    found = artifact.read_json(Path(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no candidate directions")
    return CandidateReport.from_dict(found)


def _frame(records: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame(records, columns=pd.Index(columns))
    return frame.astype({name: float for name in columns if name in _NUMBERS})
