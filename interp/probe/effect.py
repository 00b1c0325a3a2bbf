"""`ProbeEffect`: how a probe's direction moves the model's judgement, beside random directions and beside the AUROC."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Float64, Int

from interp import artifact
from interp import sites as site_names
from interp.bootstrap import grouped_interval, grouped_share
from interp.intervene.draws import rank_among

COMPLETION, ANSWER = "completion", "answer"
EFFECTS = (
    "measure", "direction", "kind", "strength", "effect", "low", "high", "wrong_way", "loss_rise", "n", "n_groups",
)  # fmt: skip
BAND = ("measure", "strength", "effect", "low", "high", "wrong_way", "loss_rise")
SLOPES = ("measure", "direction", "kind", "slope", "low", "high")
ALPHA = 0.05
"""A rank p up to this is an effect beyond random directions."""
KIND, FORMAT = "probe effect", 1


@dataclass(frozen=True)
class Answers:
    """The model's own TRUE or FALSE before anything is added: its log-odds against the labels."""

    auroc: float
    low: float
    """Lower end of the AUROC's 95 % interval, groups resampled."""
    high: float
    accuracy: float
    """Share of right answers."""
    share_true: float
    """Share of statements that it calls true; near 0 or 1 it says the same of all."""
    n: int
    """Statements."""
    n_groups: int

    @property
    def informative(self) -> bool:
        """The interval lies above 1/2."""
        return self.low > 0.5


@dataclass(frozen=True)
class Preference:
    """How often the true completion is the more probable one before anything is added."""

    share: float
    """Share of pairs; half is chance."""
    low: float
    """Lower end of its 95 % interval, groups resampled."""
    high: float
    log_odds: float
    """Mean log p(true) - log p(false), nats."""
    n: int
    """Pairs."""
    n_groups: int

    @property
    def informative(self) -> bool:
        """The interval lies above 1/2."""
        return self.low > 0.5


@dataclass(frozen=True, eq=False)
class ProbeEffect:
    """Effects of one probe's direction; made by `probe_effect`."""

    effects: pd.DataFrame = field(repr=False)
    """A row for each measure, direction and strength."""
    slopes: pd.DataFrame = field(repr=False)
    """A row for each measure and direction: slope (nats for one typical norm; least squares through 0), low, high."""
    preference: Preference
    """The completions, unsteered."""
    answers: Answers | None
    """The TRUE or FALSE answer, unsteered; None where it was not asked for."""
    figure: Mapping[str, float] | None
    """The probe's held-out AUROC with its interval (auroc, low, high), from its card; None where the card has none."""
    card: dict[str, Any] = field(repr=False)
    """Pairs, place, unit of strength, random directions, provenance."""

    def to_frame(self) -> pd.DataFrame:
        """A row for each measure, direction and strength.

        Columns: measure (completion: log-odds of the true against the false completion; answer: of TRUE against FALSE),
        direction (probe, random 0, ...), kind (probe, isotropic, covariance), strength (typical norms), effect (mean
        change, nats), low, high (95 %, groups resampled), wrong_way (share that moved against the strength's sign),
        loss_rise (nats a token; NaN for answers), n, n_groups.
        """
        return self.effects

    @property
    def band(self) -> pd.DataFrame:
        """The probe beside the random directions, a row for each measure and strength other than 0: effect, low, high,
        wrong_way, loss_rise, random_mean, random_low, random_high (mean and ends of their effects), random_loss_rise,
        p = (1 + random directions with an effect as large, of either sign) / (1 + random directions)."""
        random = self.effects[self.effects["kind"] != "probe"]
        rows = []
        for own in artifact.records(self.effects[(self.effects["kind"] == "probe") & (self.effects["strength"] != 0)]):
            others = random[(random["measure"] == own["measure"]) & (random["strength"] == own["strength"])]
            kept = {name: own[name] for name in BAND}
            beside = _beside(own["effect"], np.asarray(others["effect"], float))
            loss = float(np.asarray(others["loss_rise"], float).mean())
            rows.append({**kept, **beside, "random_loss_rise": loss})
        return pd.DataFrame(rows).astype({"loss_rise": float})

    @property
    def slope_band(self) -> pd.DataFrame:
        """The same for the slopes, a row for each measure: slope, low, high, random_mean, random_low, random_high, p."""
        rows = []
        for own in artifact.records(self.slopes[self.slopes["kind"] == "probe"]):
            others = self.slopes[(self.slopes["kind"] != "probe") & (self.slopes["measure"] == own["measure"])]
            kept = {name: own[name] for name in ("measure", "slope", "low", "high")}
            rows.append({**kept, **_beside(own["slope"], np.asarray(others["slope"], float))})
        return pd.DataFrame(rows)

    @property
    def decodable(self) -> bool | None:
        """Whether the probe's held-out AUROC lies above 1/2 with its interval; None where the card has no figure."""
        return None if self.figure is None else self.figure["low"] > 0.5

    @property
    def used(self) -> bool | None:
        """Whether the direction moves the completions towards its label 1 more than random ones do (p <= .05); None
        where the model does not tell true from false completions, whose shift shows nothing."""
        if not self.preference.informative:
            return None
        slope = self._slope(COMPLETION)
        return bool(slope["p"] <= ALPHA and slope["slope"] > 0)

    @property
    def verdict(self) -> str:
        """What stands side by side, in one line."""
        if self.decodable is False:
            return "not decodable: an effect of this direction would say nothing about what it reads"
        read = "decodable" if self.decodable else "decodability unknown (the probe's card has no held-out figure)"
        if self.used is None:
            return f"{read}; no conclusion about use: this model does not tell true from false completions"
        if self.used:
            return f"{read} and used" if self.decodable else f"{read}; an effect beyond random directions"
        slope = self._slope(COMPLETION)
        if slope["p"] <= ALPHA:
            return f"{read}; not used as it reads: it moves the completions the wrong way, beyond random directions"
        return f"{read}, no effect beyond random directions"

    def summary(self) -> str:
        """Decodable and used side by side, the effects, and the damage."""
        where = site_names.short_name(self.card["site"])
        where += "" if self.card["head"] is None else f".{self.card['head']}"
        lines = [f"Direction of a {self.card['probe']['kind']} probe at {where}: {self.verdict}."]
        if self.figure is not None:
            lines.append(f"Decodable: held-out AUROC {_span(self.figure['auroc'], self.figure, '.3f')}.")
        told = asdict(self.preference)
        lines.append(
            f"Unsteered, the true completion is the more probable one in {_span(told['share'], told, '.3f')} of "
            f"{told['n']} pairs in {told['n_groups']} groups (mean log-odds {told['log_odds']:+.2f} nats)."
        )
        lines += self._effects(COMPLETION, "the log-odds of the true completion")
        lines += self._answered()
        return "\n".join(lines)

    def _slope(self, measure: str) -> dict[str, Any]:
        return next(row for row in artifact.records(self.slope_band) if row["measure"] == measure)

    def _effects(self, measure: str, what: str) -> list[str]:
        """A sentence for the slope and one for each strength."""
        slope = self._slope(measure)
        n_random = self.card["n_random"]
        lines = [
            f"Effect: {what} moves by {_span(slope['slope'], slope, '+.2f')} nats for one typical norm "
            f"({self.card['typical_norm']:.1f}); {n_random} random directions {slope['random_low']:+.2f} to "
            f"{slope['random_high']:+.2f}, rank p = {slope['p']:.3f}."
        ]
        for row in artifact.records(self.band[self.band["measure"] == measure]):
            loss = ""
            if row["loss_rise"] is not None:
                loss = f"; loss {row['loss_rise']:+.3f} nats a token (random {row['random_loss_rise']:+.3f})"
            lines.append(
                f"  strength {row['strength']:+g}: {_span(row['effect'], row, '+.3f')} nats, {row['wrong_way']:.0%} moved the "
                f"wrong way; random {row['random_low']:+.3f} to {row['random_high']:+.3f}, p = {row['p']:.3f}{loss}."
            )
        return lines

    def _answered(self) -> list[str]:
        if self.answers is None:
            return []
        found = asdict(self.answers)
        head = (
            f"Asked for TRUE or FALSE: AUROC {_span(found['auroc'], found, '.3f')}, {found['share_true']:.0%} called true, "
            f"n = {found['n']} in {found['n_groups']} groups"
        )
        if self.answers.informative:
            return [f"{head}.", *self._effects(ANSWER, "the log-odds of TRUE")]
        if found["high"] < 0.5:
            return [f"{head}: this model answers against the truth; no conclusion."]
        return [f"{head}: this model does not answer the question; no conclusion."]

    def save(self, path: str | Path) -> Path:
        """One JSON file; `load_probe_effect` reads it."""
        content = {
            "kind": KIND,
            "format": FORMAT,
            "effects": artifact.records(self.effects),
            "slopes": artifact.records(self.slopes),
            "preference": asdict(self.preference),
            "answers": None if self.answers is None else asdict(self.answers),
            "figure": None if self.figure is None else dict(self.figure),
            "card": self.card,
        }
        return artifact.write_json(Path(path), content)


def load_probe_effect(path: str | Path) -> ProbeEffect:
    """Read what `ProbeEffect.save` wrote. ValueError for any other file, or a newer format."""
    found = artifact.read_json(Path(path))
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} holds no probe effect")
    if not isinstance(found.get("format"), int) or found["format"] > FORMAT:
        raise ValueError(f"{path} has format {found.get('format')!r}, newer than {FORMAT}: update interp")
    effects = pd.DataFrame(found["effects"], columns=pd.Index(EFFECTS)).astype({"loss_rise": float})
    return ProbeEffect(
        effects=effects,
        slopes=pd.DataFrame(found["slopes"], columns=pd.Index(SLOPES)),
        preference=Preference(**found["preference"]),
        answers=None if found["answers"] is None else Answers(**found["answers"]),
        figure=found["figure"],
        card=found["card"],
    )


# ------------------------------------------------------------------------------------------------------------- tables


def effect_tables(
    measure: str,
    change: Float64[np.ndarray, "strength direction item"],
    loss: Float64[np.ndarray, "strength direction"] | None,
    groups: Int[np.ndarray, " item"],
    grid: Sequence[float],
    kinds: Sequence[str],
    n_boot: int,
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of `effects` and of `slopes` for one measure; the first direction is the probe's."""
    names = ["probe", *(f"random {index}" for index in range(len(kinds) - 1))]
    strengths = np.array(grid)
    ends = grouped_interval(change, groups, seed, n_boot)
    size = {"n": change.shape[-1], "n_groups": int(groups.max()) + 1}
    still = dict.fromkeys(("strength", "effect", "low", "high", "wrong_way"), 0.0)
    own = {"measure": measure, "direction": "probe", "kind": "probe"}
    effects = [own | still | {"loss_rise": np.nan if loss is None else 0.0} | size]
    for s, strength in enumerate(grid):
        for d, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            moved = change[s, d]
            effects.append(
                {
                    "measure": measure,
                    "direction": name,
                    "kind": kind,
                    "strength": strength,
                    "effect": float(moved.mean()),
                    "low": float(ends[0][s, d]),
                    "high": float(ends[1][s, d]),
                    "wrong_way": float((moved * strength < 0).mean()),
                    "loss_rise": np.nan if loss is None else float(loss[s, d]),
                    **size,
                }
            )
    each = np.tensordot(strengths, change, 1) / (strengths**2).sum()
    low, high = grouped_interval(each, groups, seed, n_boot)
    slopes = pd.DataFrame(
        {"measure": measure, "direction": names, "kind": kinds, "slope": each.mean(-1), "low": low, "high": high}
    )
    frame = pd.DataFrame(effects, columns=pd.Index(EFFECTS)).sort_values("strength", kind="stable", ignore_index=True)
    return frame, slopes


def preference_of(
    log_odds: Float64[np.ndarray, " pair"], groups: Int[np.ndarray, " pair"], n_boot: int, seed: int
) -> Preference:
    """Share of pairs whose true completion is the more probable one, with its interval."""
    right = (log_odds > 0).astype(float)
    low, high = (float(end) for end in grouped_share(right, groups, seed, n_boot))
    return Preference(float(right.mean()), low, high, float(log_odds.mean()), len(right), len(np.unique(groups)))


def _beside(own: float, random: Float[np.ndarray, " direction"]) -> dict[str, float]:
    """Mean and ends of the random directions, and the two-sided rank among them."""
    ends = {"random_low": float(random.min()), "random_high": float(random.max())}
    return {"random_mean": float(random.mean()), **ends, "p": rank_among(own, random)}


def _span(value: float, ends: Mapping[str, Any], form: str) -> str:
    return f"{value:{form}} (95 % {ends['low']:{form}} to {ends['high']:{form}})"
