"""SteeringReport: the effects at every strength, the random directions beside them, and the steered text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from interp import artifact, plot

EFFECTS = ("direction", "strength", "effect", "low", "high", "wrong_way", "n", "loss_rise")
GENERATIONS = ("prompt", "strength", "text", "first_difference")


@dataclass(frozen=True, eq=False)
class SteeringReport:
    """What a vector did, at each strength, beside random directions of the same norm."""

    effects: pd.DataFrame
    """A row for each direction (`vector` or `random`) and strength: effect, low, high (95 % over pairs), loss_rise,
    wrong_way (share of pairs that moved against the vector), n."""
    generations: pd.DataFrame
    """prompt, strength, text, first_difference (index of the first new token that differs from the unsteered)."""
    card: dict[str, Any]
    """Provenance."""

    def to_frame(self) -> pd.DataFrame:
        """The effects."""
        return self.effects

    @property
    def band(self) -> pd.DataFrame:
        """strength -> mean, std, low and high of the random directions' effects, and the share of them that reach the
        vector's: p = (1 + as large) / (n + 1)."""
        rows = []
        for strength, part in self.effects.groupby("strength"):
            random = part.loc[part["direction"] != "vector", "effect"]
            own = float(part.loc[part["direction"] == "vector", "effect"].iloc[0])
            if len(random):
                as_large = int((random.abs() >= abs(own)).sum())
                rows.append(
                    (
                        strength,
                        random.mean(),
                        random.std(),
                        random.min(),
                        random.max(),
                        (1 + as_large) / (len(random) + 1),
                    )
                )
        return pd.DataFrame(rows, columns=pd.Index(["strength", "mean", "std", "low", "high", "p"]))

    def plot(self) -> alt.LayerChart | alt.Chart:
        """Effect over strength with the random band."""
        return plot.steering_effect(self.effects)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        tables = {"effects": self.effects, "generations": self.generations, "band": self.band}
        return {name: _records(frame) for name, frame in tables.items()} | {"card": self.card}

    def save(self, path: str | Path) -> Path:
        """One JSON file; `load_steering_report` reads it."""
        return artifact.write_json(Path(path), {"kind": "steering report", "format": 1, **self.to_dict()})


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, where what was not measured is null."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def load_steering_report(path: str | Path) -> SteeringReport:
    """Read what `SteeringReport.save` wrote."""
    found = artifact.read_json(Path(path))
    if found.get("kind") != "steering report":
        raise ValueError(f"{path} holds no steering report")
    effects = pd.DataFrame(found["effects"], columns=pd.Index(EFFECTS))
    return SteeringReport(effects, pd.DataFrame(found["generations"], columns=pd.Index(GENERATIONS)), found["card"])
