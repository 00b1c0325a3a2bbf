"""`Probe`: a fitted reader of one place, of any kind, with a card that says how it came about.

1. Every kind turns raw activations into a score, and score to probability = sigmoid(slope * score + intercept).
2. Linear kinds have a `direction`: score = X @ direction + bias. So they can steer (`interp.steering_vector(probe, model=)`)
   and be projected out. `mlp` and `attention` have none; their weights lie in `tensors`.
3. `predict` compares the probability with a threshold: the one chosen with the probe, one given (`with_threshold`), or the
   operating point measured on other rows (`at_fpr`).
4. On the disk a probe is one safetensors file whose card is read without loading anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.calibration import wilson_interval
from interp.model import HookedTransformer
from interp.probe.inputs import Column, check_labels
from interp.probe.kinds.attention import Poolers, pooler_of
from interp.probe.kinds.mlp import network_of
from interp.probe.methods import method
from interp.probe.reading import TokenRows

Activations = Tensor | np.ndarray | TokenRows | Sequence[Tensor | np.ndarray]
"""[... d]; for a probe that reads whole texts `TokenRows`, or one [token d] a text."""
_PARTS = {"mlp": {"hidden", "hidden_bias", "output"}, "attention": {"query", "value"}}
_FIELDS = ("bias", "kind", "slope", "intercept", "threshold", "site", "head")
_PREFIX = "tensors."


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """A reader of one place. Call it for probabilities: `probe(X)`, with X `[... d]` raw activations."""

    direction: Float32[Tensor, "d"] | None
    """In raw activation space, towards the label 1; for `logistic` the weights divided by each feature's scale. None for
    the kinds that have none, `mlp` and `attention`."""
    bias: float
    """score = X @ direction + bias; added to the score of a network too."""
    kind: str
    """`logistic`, `mass_mean`, `mlp` ..."""
    mean: Float32[Tensor, "d"]
    """Mean of the training rows (tokens, for `attention`)."""
    scale: Float32[Tensor, "d"]
    """Standard deviation of each feature over the training rows, 1 where it is constant."""
    slope: float = 1.0
    """probability = sigmoid(slope * score + intercept); 1 and 0 for kinds whose score is the log-odds."""
    intercept: float = 0.0
    """See `slope`."""
    threshold: float = 0.5
    """Probability above which `predict` says 1."""
    site: str | None = None
    """Full name of the site that it reads."""
    head: int | None = None
    """The head whose part of the site it reads; None for the whole site."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """What the kind keeps: weights of the networks, or what a linear kind found on the way."""
    card: dict[str, Any] = field(default_factory=dict)
    """n, groups, C, how it was chosen, seed, provenance; after a sweep also the figure and its protocol."""

    def __post_init__(self) -> None:
        if self.kind in _PARTS:
            lacking = _PARTS[self.kind] - set(self.tensors)
            if lacking or self.direction is not None:
                raise ValueError(
                    f"a probe of kind {self.kind!r} has no direction, and needs the tensors {sorted(_PARTS[self.kind])}"
                )
        elif self.direction is None or not bool(torch.isfinite(self.direction).all()) or not self.direction.any():
            raise ValueError("a probe needs a finite direction other than zero")

    def __repr__(self) -> str:
        facts = [f"n = {self.card['n']:,}"] if isinstance(self.card.get("n"), int) else []
        facts += [f"C = {self.card['C']:g}"] if self.card.get("C") is not None else []
        facts += [f"width {self.width}", f"threshold {self.threshold:.3g}"]
        return f"Probe({self.kind}{self._where}, {', '.join(facts)})"

    @property
    def width(self) -> int:
        """Features that it reads."""
        return len(self.mean)

    @property
    def reads(self) -> str:
        """`row`: one vector a row. `tokens`: all tokens of a text."""
        return method(self.kind).reads

    @property
    def place(self) -> str | None:
        """Full name of what it reads, with the head if it is one: `blocks.5.attn.hook_z.3`."""
        return self.site if self.site is None or self.head is None else f"{self.site}.{self.head}"

    @property
    def _where(self) -> str:
        if self.site is None:
            return ""
        try:
            name = site_names.short_name(self.site)
        except ValueError:  # a name of the user's own
            name = self.site
        return f" at {name}" if self.head is None else f" at {name}.{self.head}"

    # --------------------------------------------------------------------------------------------------- reading

    def score(self, X: Activations | Any) -> Float[Tensor, "*row"]:
        """The score of activations [... d], or of whole texts for `attention`: log-odds (`logistic`, `mlp`, `attention`)
        or the signed projection (`mass_mean` ...), which `slope` and `intercept` turn into log-odds.

        Raises:
            ValueError: another width than the probe's, NaN, or rows where the kind reads whole texts.
        """
        if self.reads == "tokens":
            rows = self._texts(X)
            score = self._pooler.logit(rows)[0]
        else:
            rows = self._rows(X)
            score = self._row_score(rows)
        if not bool(torch.isfinite(score).all()):
            bad = int((~torch.isfinite(score)).sum())
            raise ValueError(f"NaN or infinity in the activations of {bad} rows: leave them out")
        return score.float()

    def __call__(self, X: Activations | Any) -> Float[Tensor, "*row"]:
        """Probability of the label 1 for activations [... d], or for whole texts."""
        return torch.sigmoid(self.slope * self.score(X) + self.intercept)

    def predict(self, X: Activations | Any) -> Bool[Tensor, "*row"]:
        """Whether the probability is above the threshold."""
        return self(X) > self.threshold

    def attention(self, X: Activations | Any) -> list[Float[Tensor, "_token"]]:
        """How much each token of each text counts: one [token] a text, which sums to 1. ValueError for other kinds."""
        if self.reads != "tokens":
            raise ValueError(f"a probe of kind {self.kind!r} reads one row a text: only 'attention' weighs tokens")
        rows = self._texts(X)
        return list(self._pooler.attention(rows)[0].float().split(rows.starts.diff().tolist()))

    def _row_score(self, rows: Tensor) -> Tensor:
        if self.kind == "mlp":
            network = network_of(self.bias, self.mean, self.scale, self.tensors)
            return network.logit(rows.reshape(-1, self.width).cpu())[0].view(rows.shape[:-1]).to(rows.device)
        assert self.direction is not None
        # Residual streams reach tens of thousands in single dimensions: the sum is taken in float64.
        return rows.double() @ self.direction.to(rows.device).double() + self.bias

    @property
    def _pooler(self) -> Poolers:
        return pooler_of(self.bias, self.mean, self.scale, self.tensors)

    def _rows(self, X: Any) -> Tensor:
        if isinstance(X, TokenRows):
            raise ValueError(
                f"a probe of kind {self.kind!r} reads one row a text: give it X.X for the score of every token, or pooled rows"
            )
        rows = torch.as_tensor(X).detach()
        if rows.ndim == 0 or rows.shape[-1] != self.width:
            raise ValueError(self._wrong_width(list(rows.shape)))
        return rows

    def _texts(self, X: Any) -> TokenRows:
        rows = as_token_rows(X)
        if rows.X.shape[1] != self.width:
            raise ValueError(self._wrong_width(list(rows.X.shape)))
        return rows

    def _wrong_width(self, shape: list[int]) -> str:
        return (
            f"this probe reads activations of width {self.width}{self._where}, got the shape {shape}: give it activations of "
            "the site and model that it was fitted on"
        )

    # ------------------------------------------------------------------------------------------- operating point

    def with_threshold(self, p: float | Any) -> "Probe":
        """The same probe with another threshold for `predict`, a probability.

        Raises:
            ValueError: not in [0, 1].
        """
        if not isinstance(p, int | float | np.number) or isinstance(p, bool) or not 0 <= p <= 1:
            raise ValueError(f"a threshold is a probability from 0 to 1, got {p!r}")
        return replace(self, threshold=float(p), card={**self.card, "operating_point": {"threshold": "given"}})

    def at_fpr(self, X: Activations | Any, y: Column, fpr: float | Any = 0.01) -> "Probe":
        """The same probe with the lowest threshold at which at most a share `fpr` of the negatives is called positive.

        The rows must be new ones: on rows that the probe was fitted on, or that chose anything about it, the rate comes out
        lower than it is. And a rate is reported from a third set, since this one chose the threshold. Give rows of groups
        that training did not have.

        Args:
            X: activations, as for `score`.
            y: 0 or 1 for each row.
            fpr: the false positive rate aimed at.

        Returns:
            A probe whose card holds, as "operating_point", the rate aimed at and reached with its 95 % interval, the recall
            with its interval, and n of both labels.

        Raises:
            ValueError: `fpr` not between 0 and 1, labels other than 0 and 1, one label only, or fewer than 1 / fpr
                negatives, which cannot tell such a rate from zero.
        """
        if not isinstance(fpr, int | float | np.number) or not 0 < fpr < 1:
            raise ValueError(f"fpr is a rate between 0 and 1, such as 0.01, got {fpr!r}")
        p = self(X).flatten().cpu()
        labels = torch.tensor(check_labels(y, len(p)))
        negative, positive = p[labels == 0].sort(descending=True).values, p[labels == 1]
        if len(negative) * fpr < 1 - 1e-9:
            raise ValueError(
                f"{len(negative)} negatives cannot measure a false positive rate of {fpr}: at least {int(np.ceil(1 / fpr))} "
                "are needed, so give more rows or a higher fpr"
            )
        # The first negative that may not be called positive; `predict` asks for more than the threshold.
        threshold = float(negative[int(len(negative) * fpr + 1e-9)])
        wrong, found = int((negative > threshold).sum()), int((positive > threshold).sum())
        point = {
            "threshold": "lowest at which the false positive rate on these rows is at most fpr",
            "fpr": float(fpr),
            "fpr_reached": wrong / len(negative),
            "fpr_interval": [float(end) for end in wilson_interval(wrong / len(negative), len(negative))],
            "recall": found / len(positive),
            "recall_interval": [float(end) for end in wilson_interval(found / len(positive), len(positive))],
            "negatives": len(negative),
            "positives": len(positive),
        }
        return replace(self, threshold=threshold, card={**self.card, "operating_point": point})

    # ---------------------------------------------------------------------------------------------------- writing

    def stream_direction(self, model: HookedTransformer) -> Float32[Tensor, "d_model"]:
        """What a push of the head's z along `direction` adds to the sum of the heads: direction @ W_O of that head.

        Behind it come the norms of sandwich models (`ln1_post`). Query heads have a W_O each, also where they share keys.

        Raises:
            ValueError: a probe that reads no single head's z, has no direction, or belongs to another model.
        """
        if self.head is None or self.site is None or not self.site.endswith("attn.hook_z"):
            raise ValueError(
                f"{self!r} does not read one head's z, so no W_O belongs to its direction: it is one of its site already"
            )
        if self.direction is None:
            raise ValueError(f"a probe of kind {self.kind!r} has no direction: fit a linear kind, such as 'logistic'")
        self.check_model(model)
        layer = site_names.layer_of(self.site)
        assert layer is not None
        blocks: Any = model.blocks
        W_O = blocks[layer].attn.W_O[self.head].detach()
        if len(W_O) != self.width:
            raise ValueError(f"{self!r} does not fit heads of width {len(W_O)}: give the model that it was fitted on")
        return (self.direction.double() @ W_O.cpu().double()).float()

    def check_model(self, model: HookedTransformer) -> None:
        """Refuse another model than the one that the card names. A card that names none passes."""
        origin = self.card.get("provenance", {})
        made_by = origin.get("fingerprint")
        if made_by is not None and made_by != model.fingerprint:
            raise ValueError(
                f"this probe was fitted on {origin.get('model')} ({made_by}), not on {model.cfg.name} ({model.fingerprint}): "
                "load that model, or fit a probe of this one"
            )

    # ----------------------------------------------------------------------------------------------------- saving

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_probe` reads it."""
        tensors = {"mean": self.mean, "scale": self.scale}
        if self.direction is not None:
            tensors["direction"] = self.direction
        tensors |= {_PREFIX + name: part for name, part in self.tensors.items()}
        fields = {name: getattr(self, name) for name in _FIELDS}
        return artifact.save_artifact(path, "probe", tensors, {**self.card, "probe": fields})


def load_probe(path: str | Path) -> Probe:
    """Read what `Probe.save` wrote. ValueError for any other file."""
    found, card = artifact.load_artifact(path, "probe")
    tensors = {name.removeprefix(_PREFIX): part for name, part in found.items() if name.startswith(_PREFIX)}
    fields = card.pop("probe", None)
    if {"mean", "scale"} - set(found) or not isinstance(fields, dict) or {"bias", "kind"} - set(fields):
        raise ValueError(f"{path} is not a whole probe: fit and save it again")
    if set(fields) - set(_FIELDS):
        raise ValueError(
            f"{path} has fields that this version does not know, {sorted(set(fields) - set(_FIELDS))}: update"
        )
    own = {key: value for key, value in card.items() if key not in ("kind", "format")}
    try:
        direction = found.get("direction")
        return Probe(direction, mean=found["mean"], scale=found["scale"], tensors=tensors, card=own, **fields)
    except ValueError as error:
        raise ValueError(f"{path} is not a whole probe ({error}): fit and save it again") from None


def as_token_rows(X: Activations | Any, starts: Any = None) -> TokenRows:
    """Whole texts, from `TokenRows`, one [token d] a text, or all tokens [token d] with the texts' bounds.

    Raises:
        ValueError: one array without `starts`; bounds that do not fit; texts of different width or without a token.
    """
    if isinstance(X, TokenRows):
        return X
    if starts is not None:
        bounds = torch.as_tensor(starts).to("cpu", torch.int64)
        return TokenRows(torch.as_tensor(X).detach().to("cpu", torch.float32), bounds)
    if not isinstance(X, Sequence) or isinstance(X, str) or not len(X):
        shape = f" of shape {list(X.shape)}" if isinstance(X, Tensor | np.ndarray) else ""
        raise ValueError(
            f"a probe of kind 'attention' reads whole texts: give TokenRows, or a list with one [token d] a text; got "
            f"{type(X).__name__}{shape}"
        )
    texts = [torch.as_tensor(text).detach().to("cpu", torch.float32) for text in X]
    shapes = sorted({tuple(text.shape[1:]) for text in texts}, key=str)
    if len(shapes) != 1 or len(shapes[0]) != 1:
        raise ValueError(
            f"each text must be [token d] with the same d; got rows of the shapes {[list(s) for s in shapes]}"
        )
    lengths = torch.tensor([0, *(len(text) for text in texts)])
    return TokenRows(torch.cat(texts), lengths.cumsum(0))
