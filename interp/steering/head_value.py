"""`HeadVectors`: directions in the outputs of single heads, the unit of their strength, and controls for them.

What is added to head h of layer l is strength x length x sigma x theta, with theta the head's unit direction and sigma the
standard deviation of its activations along it (Li et al. 2023, "Inference-time intervention", arXiv 2306.03341).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32
from torch import Tensor

from interp import artifact, plot
from interp.intervene.draws import orthogonal_draw
from interp.intervene.targets import Target
from interp.model import HookedTransformer
from interp.steering.vector import fact_lines, refuse_other_model

KIND = "head vectors"
COLUMNS = (
    "layer", "head", "rank", "kept", "accuracy", "low", "high", "auroc", "log_loss", "n", "n_groups",
    "test_accuracy", "test_low", "test_high", "n_test", "n_test_groups", "sd", "norm",
)  # fmt: skip
"""Of the frame of all heads."""
_SHOWN = (
    "layer", "head", "accuracy", "low", "high", "auroc", "test_accuracy", "test_low", "test_high", "sd",
)  # fmt: skip
"""Of them in `card_text`."""
_ROWS = ("directions", "sd", "norm", "raw")


@dataclass(frozen=True, eq=False)
class HeadRows:
    """Heads with what was fitted for each."""

    heads: tuple[tuple[int, int], ...]
    """(layer, head), best first."""
    directions: Float32[Tensor, "k d_head"]
    """Unit direction of each head's z, towards the label 1."""
    sd: Float32[Tensor, "k"]
    """Standard deviation of the rows along it, the default unit of strength."""
    norm: Float32[Tensor, "k"]
    """Median norm of that head's z."""
    raw: Float32[Tensor, "k"] | None = None
    """Length of the difference of the class means; None for directions that are no difference."""

    def __post_init__(self) -> None:
        norms = self.directions.double().norm(dim=1)
        if not bool(((norms - 1).abs() < 1e-3).all()):
            raise ValueError(f"heads need unit directions; their norms are {norms.tolist()}")
        if len(set(self.heads)) < len(self.heads) or len(self.heads) != len(self.directions):
            raise ValueError(f"give each head once, and one direction for each; got {list(self.heads)}")
        if not bool((self.norm > 0).all()) or not bool((self.sd > 0).all()):
            raise ValueError("norm and sd of every head must be positive")

    def __len__(self) -> int:
        return len(self.heads)

    def take(self, rows: Sequence[int]) -> "HeadRows":
        """Some of the heads, in the order given."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        raw = None if self.raw is None else self.raw[index]
        heads = tuple(self.heads[row] for row in rows)
        return HeadRows(heads, self.directions[index], self.sd[index], self.norm[index], raw)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What a file holds."""
        values = {name: getattr(self, name) for name in _ROWS}
        heads = torch.tensor(self.heads, dtype=torch.int64).view(-1, 2)
        return {f"{prefix}heads": heads} | {prefix + name: value for name, value in values.items() if value is not None}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> "HeadRows":
        """What `tensors` gave."""
        heads = tuple((layer, head) for layer, head in tensors[f"{prefix}heads"].tolist())
        directions, sd, norm = (tensors[prefix + name] for name in _ROWS[:3])
        return cls(heads, directions, sd, norm, tensors.get(f"{prefix}raw"))


@dataclass(frozen=True, eq=False, repr=False)
class HeadVectors:
    """Directions of the heads that tell two labels apart best; made by `head_vectors`, added by `Steer`.

    `0.5 * v` and `-v` act on all heads together. `Steer(v, strength)` counts in standard deviations of each head.
    """

    kept: HeadRows
    """The heads that are steered, best first."""
    accuracy: pd.DataFrame
    """A row for each fitted head: see `to_frame`."""
    card: dict[str, Any] = field(default_factory=dict)
    """Method, division of the rows, n, provenance."""
    others: HeadRows | None = None
    """Heads that were fitted and not kept, best first; for `random_heads` and `with_top`."""
    length: float = 1.0
    """1 as fitted."""

    def __post_init__(self) -> None:
        if not len(self.kept):
            raise ValueError("no head is kept: keep at least one")
        if not math.isfinite(self.length) or self.length < 0:
            raise ValueError(f"length must be finite and not below 0, got {self.length}")

    def __repr__(self) -> str:
        best = ", ".join(f"{layer}.{head}" for layer, head in self.heads[:5])
        return f"HeadVectors({len(self.heads)} heads: {best}{', ...' if len(self.heads) > 5 else ''})"

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of what is steered, best first."""
        return self.kept.heads

    @property
    def directions(self) -> Float32[Tensor, "k d_head"]:
        """Unit directions."""
        return self.kept.directions

    @property
    def sd(self) -> Float32[Tensor, "k"]:
        """Standard deviations along them."""
        return self.kept.sd

    @property
    def test_rows(self) -> list[int]:
        """Numbers of the texts that no direction, sd or choice of a head has seen: what an experiment should be measured on."""
        return list(self.card.get("test_rows", ()))

    @property
    def unit(self) -> str:
        """What `Steer` counts a strength in unless it is told otherwise: the standard deviation of each head."""
        return "sd"

    def targets(self) -> list[Target]:
        """What `Steer` adds where: one direction a head."""
        rows = self.kept
        return [
            Target(
                site=f"blocks.{layer}.attn.hook_z",
                direction=rows.directions[i],
                length=self.length,
                norm=float(rows.norm[i]),
                sd=float(rows.sd[i]),
                raw=None if rows.raw is None else float(rows.raw[i]),
                head=head,
            )
            for i, (layer, head) in enumerate(rows.heads)
        ]

    # ------------------------------------------------------------------------------------------------- arithmetic

    def __mul__(self, factor: float) -> "HeadVectors":
        if not math.isfinite(factor):
            raise ValueError(f"a vector is scaled by a finite number, got {factor}")
        if factor >= 0:
            return replace(self, length=self.length * factor)
        kept, others = (rows and replace(rows, directions=-rows.directions) for rows in (self.kept, self.others))
        return replace(self, kept=kept, others=others, length=self.length * -factor)

    __rmul__ = __mul__

    def __neg__(self) -> "HeadVectors":
        return self * -1.0

    def with_top(self, top: int | Any) -> "HeadVectors":
        """The same fit with another number of heads.

        Raises:
            ValueError: fewer than one, or more than were fitted; a control, which has one set of heads.
        """
        if self.others is None or self.accuracy.empty:
            raise ValueError("these heads are all that is known: take the value that head_vectors made")
        order = _joined(self.kept, self.others)
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= len(order):
            raise ValueError(f"top={top!r}: of {len(order)} fitted heads at least one is kept")
        frame = self.accuracy.assign(kept=self.accuracy["rank"] <= top)
        kept, others = order.take(range(top)), order.take(range(top, len(order)))
        return replace(self, kept=kept, others=others, accuracy=frame, card={**self.card, "top": top})

    # --------------------------------------------------------------------------------------------------- controls

    def random(self, n: int | Any = 1, seed: int = 0) -> list["HeadVectors"]:
        """The same heads with random directions, orthogonal to the fitted ones and pushed as far: sd and norm are kept.

        Raises:
            ValueError: n below 1, or heads of a single dimension.
        """
        _check_count(n)
        generator = torch.Generator().manual_seed(seed)
        found = []
        for index in range(n):
            unit = torch.stack([orthogonal_draw(own, None, generator) for own in self.kept.directions]).float()
            found.append(self._control(replace(self.kept, directions=unit, raw=None), "random directions", index, seed))
        return found

    def random_heads(self, n: int | Any = 1, seed: int = 0) -> list["HeadVectors"]:
        """As many heads, drawn from those that were not kept, each with its own direction and sd: does the choice matter?

        Raises:
            ValueError: n below 1, or fewer heads left than are kept.
        """
        _check_count(n)
        left = 0 if self.others is None else len(self.others)
        if self.others is None or left < len(self.heads):
            raise ValueError(
                f"{len(self.heads)} heads are kept and {left} are left to draw from: keep fewer, v.with_top(...)"
            )
        rng = np.random.default_rng(seed)
        draws = [sorted(rng.choice(left, len(self.heads), replace=False).tolist()) for _ in range(n)]
        return [self._control(self.others.take(d), "random heads", i, seed) for i, d in enumerate(draws)]

    def _control(self, rows: HeadRows, what: str, index: int, seed: int) -> "HeadVectors":
        made_by = {name: self.card[name] for name in ("model", "fingerprint") if name in self.card}
        card = {"method": what, "control": index, "seed": seed, "of": self.card, **made_by}
        return HeadVectors(rows, self.accuracy.iloc[:0], card, length=self.length)

    # ------------------------------------------------------------------------------------------------------- model

    def as_bias(self, model: HookedTransformer, strength: float = 1.0) -> dict[str, Float32[Tensor, "d_model"]]:
        """What steering every token adds to each layer's attn_out: a constant, the sum of strength x sigma x theta @ W_O.

        Returns:
            Full name of the site -> the constant.

        Raises:
            ValueError: another model, or one that norms what its heads write together.
        """
        self.check_model(model)
        blocks: Any = model.blocks
        found: dict[str, Tensor] = {}
        for (layer, head), direction, sd in zip(self.heads, self.directions.double(), self.sd.double()):
            if blocks[layer].ln1_post is not None:
                raise ValueError(
                    f"layer {layer} norms what its heads write together, so that steering them is no constant of attn_out"
                )
            pushed = strength * self.length * sd * direction @ blocks[layer].attn.W_O[head].detach().cpu().double()
            name = f"blocks.{layer}.hook_attn_out"
            found[name] = found[name] + pushed if name in found else pushed
        return {name: bias.float() for name, bias in sorted(found.items())}

    def check_model(self, model: HookedTransformer) -> None:
        """Refuse another model than the one that the card names, and heads that it does not have."""
        refuse_other_model(self.card, model, "these head vectors were fitted")
        outside = [each for each in self.heads if each[0] >= model.cfg.n_layers or each[1] >= model.cfg.n_heads]
        if outside:
            raise ValueError(f"{model.cfg.name} has no head {outside[0]}: give the model that they were fitted on")

    # ------------------------------------------------------------------------------------------------------ saving

    def to_frame(self) -> pd.DataFrame:
        """A row for each fitted head, best first.

        Columns: layer, head, rank (from 1), kept; accuracy (held-out groups of the fit part: what the ranking saw), low,
        high (95 %, groups resampled), auroc, log_loss (nats), n, n_groups; test_accuracy, test_low, test_high, n_test,
        n_test_groups (groups that nothing has seen: choose by accuracy, report test_accuracy); sd, norm. Empty for controls.
        """
        return self.accuracy

    def card_text(self) -> str:
        """The card to read: method, rows, and a table of the heads that are steered with what held-out groups say of them."""
        lines = [repr(self), f"  method: {self.card.get('method', 'given')}", *fact_lines(self.card)]
        if "n_heads" in self.card:
            lines.append(
                f"  chosen: {len(self.heads)} of {self.card['n_heads']} heads, by the accuracy of {self.card['ranked_by']} on "
                f"held-out groups; n = {self.card['n']} in {self.card['n_groups']} groups, test n = {self.card['n_test']}"
            )
        kept = self.accuracy.loc[self.accuracy["kept"].astype(bool), list(_SHOWN)].dropna(axis=1, how="all")
        if kept.empty:
            kept = pd.DataFrame(self.heads, columns=pd.Index(["layer", "head"])).assign(sd=self.sd.tolist())
        return "\n".join([*lines, kept.round(4).to_string(index=False)])

    def plot(self, metric: str = "accuracy") -> alt.LayerChart:
        """A map of all fitted heads, layer by head: held-out accuracy, or another column of `to_frame`.

        Raises:
            ValueError: a control, which has no figures.
        """
        if self.accuracy.empty:
            raise ValueError("a control has no figures of its own: plot the value that head_vectors made")
        scores = ["accuracy", "auroc", "test_accuracy", "sd", "norm"]
        columns = list(dict.fromkeys(["layer", "head", metric, *scores]))
        domain = (0.5, 1.0) if metric in scores[:3] else None
        return plot.head_grid(self.accuracy.reindex(columns=columns).dropna(axis=1), metric, domain=domain)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, numbers exact, without the heads that are not kept; `HeadVectors.from_dict` reads it."""
        rows = {name: value.tolist() for name, value in self.kept.tensors().items()}
        known = [row for row in artifact.records(self.accuracy) if row["kept"]]
        return {"kind": KIND, "length": self.length, **rows, "accuracy": known, "card": self.card}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "HeadVectors":
        """What `to_dict` gave. ValueError for anything else."""
        if found.get("kind") != KIND:
            raise ValueError(f"this holds no head vectors, but {found.get('kind')!r}")
        names = ("heads", *(name for name in _ROWS if name in found))
        rows = {name: torch.tensor(found[name], dtype=None if name == "heads" else torch.float32) for name in names}
        return cls(HeadRows.of_tensors(rows), _frame(found["accuracy"]), dict(found["card"]), length=found["length"])

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_head_vectors` reads it."""
        tensors = self.kept.tensors() | ({} if self.others is None else self.others.tensors("others."))
        value = {"length": self.length, "accuracy": artifact.records(self.accuracy), "card": self.card}
        return artifact.save_artifact(Path(path), KIND, tensors, {"value": value})


def load_head_vectors(path: str | Path) -> HeadVectors:
    """Read what `HeadVectors.save` wrote. ValueError for any other file."""
    tensors, card = artifact.load_artifact(Path(path), KIND)
    value = card["value"]
    others = HeadRows.of_tensors(tensors, "others.") if "others.heads" in tensors else None
    return HeadVectors(HeadRows.of_tensors(tensors), _frame(value["accuracy"]), value["card"], others, value["length"])


def _joined(first: HeadRows, second: HeadRows) -> HeadRows:
    directions, sd, norm = (torch.cat([getattr(first, name), getattr(second, name)]) for name in _ROWS[:3])
    raw = None if first.raw is None or second.raw is None else torch.cat([first.raw, second.raw])
    return HeadRows(first.heads + second.heads, directions, sd, norm, raw)


def _check_count(n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r}: draw at least one control")


def _frame(records: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(records, columns=pd.Index(COLUMNS))
    return frame.astype(dict.fromkeys(("test_accuracy", "test_low", "test_high", "low", "high"), float))
