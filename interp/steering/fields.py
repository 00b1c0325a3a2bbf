"""The tables of a steering report, and what is computed from them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.intervene.draws import KINDS as RANDOM
from interp.steering import figures

EFFECTS = (
    *("measure", "unit", "direction", "kind", "strength", "effect", "low", "high", "wrong_way", "n"),
    *("loss_rise", "kl_last", "kl_mean"),
)
DAMAGE = (
    *(
        "direction",
        "kind",
        "strength",
        "loss_rise",
        "loss_low",
        "loss_high",
        "kl_last",
        "kl_mean",
        "n_texts",
        "n_tokens",
    ),
    *("accuracy", "accuracy_low", "accuracy_high", "n_choices", "distinct_1", "distinct_2", "distinct_3", "repetition"),
)
VALUES = ("measure", "direction", "strength", "item", "prompt", "group", "value")
GENERATIONS = ("prompt", "strength", "direction", "text", "first_difference", "same", "differs")
BAND = ("measure", "strength", "n", "mean", "std", "low", "high", "p", "z")
SLOPES = ("measure", "item", "prompt", "group", "slope", "wrong")
STEERABILITY = ("measure", "slope", "low", "high", "wrong_way", "wrong_low", "wrong_high", "n", "n_groups")
WORDS = frozenset({"measure", "unit", "direction", "kind", "prompt", "group", "text", "same", "differs"})
"""Columns of text; all others are numbers."""

VECTOR, INSTRUCTION = "vector", "instruction"

_RISING = ("loss_rise", "loss_high", "kl_last", "kl_mean", "repetition")
_FALLING = ("accuracy", "distinct_1", "distinct_2", "distinct_3")


@dataclass(frozen=True, eq=False)
class SteeringTables:
    """What was measured. Strengths are in the unit of the experiment (by default typical norms of the site)."""

    effects: pd.DataFrame
    """A row for each measure, direction and strength: measure, unit, direction (`vector`, `random 0 (isotropic)`,
    `instruction`), kind (vector, isotropic, covariance, instruction), strength, effect (mean over items of value minus
    value at strength 0) with its 95 % interval low and high, wrong_way (share of items that moved the wrong way, see `way`), n,
    and the damage there: loss_rise, kl_last, kl_mean."""
    damage: pd.DataFrame
    """A row for each direction and strength: loss_rise in nats a token with loss_low and loss_high, kl_last and kl_mean
    (nats, to the unsteered model on the same text, at the last position and over all), n_texts, n_tokens, accuracy on the
    multiple choices with its interval and n_choices, and of the continuations distinct_1 to distinct_3 and repetition (share
    of 4-grams that the text has shown before). NaN where it was not measured."""
    values: pd.DataFrame
    """A row for each measure, direction, strength and item: prompt, group, value. Vector and instruction only."""
    generations: pd.DataFrame
    """A row for each prompt, strength and direction: text, first_difference (index of the first new token that differs from
    the unsteered), same (the text up to there) and differs (the rest)."""
    card: dict[str, Any]
    """Provenance."""
    inputs: dict[str, Any]
    """All that runs it again, as JSON: the vector, prompts, pairs, texts, choices, settings, measures by name."""

    def __post_init__(self) -> None:
        for name, columns in (
            ("effects", EFFECTS),
            ("damage", DAMAGE),
            ("values", VALUES),
            ("generations", GENERATIONS),
        ):
            missing = [column for column in columns if column not in getattr(self, name)]
            if missing:
                raise ValueError(f"the table of {name} has no column {', '.join(missing)}")

    @property
    def measures(self) -> list[str]:
        """Names of the measures, in their order."""
        return list(dict.fromkeys(self.effects.dropna(subset=["effect"])["measure"]))

    @property
    def way(self) -> float:
        """Which way a positive strength should move values, by the kind of the intervention: 1.0, -1.0 or NaN for none."""
        return figures.way_of(str(self.card.get("kind", "add")))

    def unit(self, measure: str) -> str:
        """Unit of a measure."""
        return str(self.effects.loc[self.effects["measure"] == measure, "unit"].iloc[0])

    def of_vector(self, measure: str) -> pd.DataFrame:
        """The vector's effects, by strength."""
        return self._of(VECTOR, measure).sort_values("strength")

    def of_instruction(self, measure: str) -> pd.DataFrame:
        """The instruction's effect: one row, or none."""
        return self._of(INSTRUCTION, measure)

    def _of(self, direction: str, measure: str) -> pd.DataFrame:
        chosen = (self.effects["direction"] == direction) & (self.effects["measure"] == measure)
        return self.effects.loc[chosen].dropna(subset=["effect"])

    @property
    def band(self) -> pd.DataFrame:
        """Random directions at each measure and strength: n, mean, std, low, high of their effects, p = (1 + as large) /
        (n + 1), and z, the distance of the near end of the vector's interval from their mean in their std."""
        return self.random_band()

    def random_band(self, kind: str | None = None) -> pd.DataFrame:
        """`band` of all random directions, or of one kind: isotropic or covariance."""
        if kind not in (None, *RANDOM):
            raise ValueError(f"kind must be one of {', '.join(RANDOM)}, or None for both; got {kind!r}")
        rows = []
        for (measure, strength), own, part in self._settings():
            among = part["kind"].isin(RANDOM) if kind is None else part["kind"] == kind
            randoms = part.loc[among, "effect"].to_numpy(float)
            if len(randoms):
                where = figures.random_band(own["effect"], own["low"], own["high"], randoms)
                rows.append({"measure": measure, "strength": strength, **where})
        return pd.DataFrame(rows, columns=pd.Index(BAND))

    def _settings(self) -> Iterator[tuple[tuple[str, float], dict[Any, Any], pd.DataFrame]]:
        """(measure, strength), the vector's row and all rows, for each strength beside 0 where the vector was measured."""
        known = self.effects.dropna(subset=["effect"])
        for key, part in known.groupby(["measure", "strength"], sort=False):
            own = part.loc[part["direction"] == VECTOR]
            assert isinstance(key, tuple)
            if len(own) and key[1] != 0:
                yield key, own.to_dict("records")[0], part

    @property
    def slopes(self) -> pd.DataFrame:
        """Least-squares slope of each item's value on the strength, and whether it goes the wrong way: below 0, above 0 where
        the vector is taken out, NaN for a kind of intervention that has no way."""
        rows, way = [], self.way
        own = self.values.loc[self.values["direction"] == VECTOR]
        for measure, part in own.groupby("measure", sort=False):
            table = part.pivot(index="item", columns="strength", values="value")
            if table.shape[1] < 2:
                continue
            about = part.drop_duplicates("item").set_index("item").loc[table.index]
            slopes = figures.item_slopes(table.to_numpy(float), np.asarray(table.columns, float))
            for item, slope in zip(table.index, slopes):
                wrong = math.nan if math.isnan(way) else bool(slope * way < 0)
                rows.append((measure, item, about["prompt"][item], about["group"][item], float(slope), wrong))
        return pd.DataFrame(rows, columns=pd.Index(SLOPES))

    @property
    def steerability(self) -> pd.DataFrame:
        """Mean slope of each measure and share of wrong-way items (NaN where there is no way), with 95 % intervals."""
        rows = []
        for measure, part in self.slopes.groupby("measure", sort=False):
            groups = part["group"].tolist()
            slope, low, high, n_groups = figures.group_mean(part["slope"].to_numpy(float), groups)
            wrong = (math.nan,) * 3
            if not math.isnan(self.way):
                wrong = figures.wrong_share(part["wrong"].to_numpy(bool), groups)
            rows.append((measure, slope, low, high, *wrong, len(part), n_groups))
        return pd.DataFrame(rows, columns=pd.Index(STEERABILITY))

    def largest(self, bound: float, damage: str = "loss_rise", side: int | None = None) -> float:
        """The largest strength of the vector whose damage stays under a bound.

        The search walks outward from 0, and the first strength over the bound ends it, though a larger one may pass again.

        Args:
            bound: most damage, 0 or more.
            damage: column of `damage`. Losses, KL and repetition count as they rise, accuracy and distinct n-grams as they
                fall from their value at strength 0; `loss_high` holds the upper end of the interval against the bound.
            side: 1 or -1 for one side of 0; None for both.

        Returns:
            The strength, 0.0 where none but 0 passes.

        Raises:
            ValueError: another column, one that was not measured, no strength on that side, or a bound below 0.
        """
        if damage not in (*_RISING, *_FALLING):
            raise ValueError(f"damage must be one of {', '.join((*_RISING, *_FALLING))}, got {damage!r}")
        own = self.damage.loc[self.damage["direction"] == VECTOR, ["strength", damage]].astype(float)
        harm = own[damage].to_numpy()
        if damage in (*_FALLING, "repetition"):
            start = own.loc[own["strength"] == 0, damage].to_numpy()
            if len(start) != 1:
                raise ValueError(f"{damage} has no value at strength 0 to be held against")
            harm = (harm - start) * (-1 if damage in _FALLING else 1)
        elif damage == "loss_high":
            harm = np.where(own["strength"] == 0, 0.0, harm)
        return figures.largest_within(own["strength"].to_numpy(), harm, bound, side)
