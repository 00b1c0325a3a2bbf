"""Which heads read what which earlier heads write: composition from the weights (Elhage et al. 2021).

1. The score of a pair is |OV_earlier X_later| / (|OV_earlier| |X_later|) in Frobenius norms, X being the later head's QK
   circuit from the query side (Q) or the key side (K), or its OV circuit (V). The gains of the norms between them are
   folded in: without them the stream's few large dimensions are all that counts.
2. *Random baseline*: the same two spectra, turned against each other at random. With shares a and b of the squared
   singular values and Haar-random rotations, the squared score has mean 1/d and a variance that follows from sum(a^2) and
   sum(b^2): exact, no draws. All heads of a trained model share directions, so most pairs lie above it.
3. *Permuted heads*: what the earlier head scores with other later heads, and the later head with other earlier ones. The
   excess over the mean of the two means is what the two have for each other; p is the rank among all of these.

A pair that composes by weights need not do so on a text: an ablation or a patched path shows whether it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp import artifact
from interp.heads import folded
from interp.model import HookedTransformer
from interp.model.factored import FactoredMatrix
from interp.plot.weights import composition_arrows, composition_grid

MODES = ("Q", "K", "V")
Head = tuple[int, int]
"""(layer, head)."""
KIND = "head composition"


@dataclass(frozen=True, eq=False)
class Composition:
    """Scores of all pairs of an earlier and a later head."""

    scores: dict[str, Float[Tensor, "earlier later"]]
    """Mode -> score, 0 for pairs in the wrong order. Heads are counted layer by layer."""
    concentration: dict[str, Float[Tensor, "head"]]
    """"out" and every mode -> sum of squared shares of a circuit's squared singular values: 1 for rank 1, 1/rank for an
    even spectrum."""
    width: int
    """Dimensions that a random rotation turns in: d_model, one less where norms remove the mean."""
    n_layers: int
    """Layers of the model."""
    n_heads: int
    """Heads of a layer."""
    card: dict[str, Any]
    """Model, fingerprint, offset, and what the weights leave out."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Of Q, K and V, those that were measured."""
        return tuple(self.scores)

    def to_frame(self, mode: str | None = None) -> pd.DataFrame:
        """A line per pair and mode: earlier_layer, earlier_head, later_layer, later_head, mode, score; baseline (permuted
        heads), excess over it, p (one-sided, over n permuted pairs), rank by excess (1 is the largest of its mode); random
        (root of the mean square of random rotations) and z_random (of the squared score, in their standard deviations).
        """
        return pd.concat([self._mode_frame(one) for one in self._chosen(mode)], ignore_index=True)

    def pairs(self, n: int = 20, mode: str | None = None) -> pd.DataFrame:
        """The n pairs with the largest excess, of one mode or of all."""
        return self.to_frame(mode).nlargest(n, "excess").reset_index(drop=True)

    def between(self, senders: Sequence[Head], receivers: Sequence[Head], mode: str | None = None) -> pd.DataFrame:
        """The pairs from some heads to others, largest excess first; those in the wrong order are left out.

        Raises:
            ValueError: a head that is not there, or no pair of an earlier and a later head.
        """
        chosen = [self._flat(heads) for heads in (senders, receivers)]
        frame = self.to_frame(mode)
        earlier = frame["earlier_layer"] * self.n_heads + frame["earlier_head"]
        later = frame["later_layer"] * self.n_heads + frame["later_head"]
        found = frame.loc[earlier.isin(chosen[0]) & later.isin(chosen[1])]
        if found.empty:
            raise ValueError("no sender stands in an earlier layer than a receiver: nothing composes")
        return found.nlargest(len(found), "excess").reset_index(drop=True)

    def named(
        self,
        frame: pd.DataFrame,
        *,
        sender: str = "previous_token",
        receiver: str = "induction",
        mode: str = "K",
        n: int = 5,
    ) -> pd.DataFrame:
        """The pairs between the n heads that score highest as sender and the n that do as receiver.

        Args:
            frame: a row per head: `layer`, `head` and both scores, as `head_scores(model).to_frame()` has them.
            sender: column of what the earlier head does.
            receiver: column of what the later one does.
            mode: how they compose; an induction head finds its key by what a previous-token head wrote there (K).
            n: heads of each.

        Returns:
            The lines of `between`, with both scores.
        """
        missing = [column for column in ("layer", "head", sender, receiver) if column not in frame]
        if missing:
            raise ValueError(f"the frame has no column {', '.join(missing)}; it has {', '.join(map(str, frame))}")
        ends = []
        for column in (sender, receiver):
            best = frame.nlargest(n, column)
            ends.append(list(zip(best["layer"].tolist(), best["head"].tolist())))
        found = self.between(ends[0], ends[1], mode)
        for side, column in (("earlier", sender), ("later", receiver)):
            values = frame.set_index(["layer", "head"])[column]
            found[column] = [values.loc[pair] for pair in zip(found[f"{side}_layer"], found[f"{side}_head"])]
        return found

    def plot(self, mode: str | None = None, *, kind: str = "layers", n: int = 20) -> alt.Chart | alt.LayerChart:
        """The best pair between every two layers of one mode ("layers"), or the n best pairs as lines ("pairs")."""
        if kind not in ("layers", "pairs"):
            raise ValueError(f"kind must be 'layers' or 'pairs', got {kind!r}")
        if kind == "pairs":
            return composition_arrows(self.pairs(n, mode))
        mode = mode or ("K" if "K" in self.scores else self.modes[0])
        return composition_grid(self.to_frame(mode), title=f"{mode}-composition: excess of the best pair")

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_composition` reads it."""
        tensors = {f"score.{mode}": value for mode, value in self.scores.items()}
        tensors |= {f"concentration.{name}": value for name, value in self.concentration.items()}
        sizes = {"modes": list(self.modes), "width": self.width, "n_layers": self.n_layers, "n_heads": self.n_heads}
        return artifact.save_artifact(path, KIND, tensors, self.card | sizes)

    def _chosen(self, mode: str | None) -> tuple[str, ...]:
        if mode is not None and mode not in self.scores:
            raise ValueError(f"mode {mode!r} was not measured; there is {', '.join(self.modes)}")
        return self.modes if mode is None else (mode,)

    def _flat(self, heads: Sequence[Head]) -> list[int]:
        wrong = [pair for pair in heads if not (0 <= pair[0] < self.n_layers and 0 <= pair[1] < self.n_heads)]
        if wrong:
            raise ValueError(
                f"there is no head {wrong[0]}: the model has layers 0-{self.n_layers - 1} of heads 0-{self.n_heads - 1}"
            )
        return [int(layer) * self.n_heads + int(head) for layer, head in heads]

    def _mode_frame(self, mode: str) -> pd.DataFrame:
        scores, valid = self.scores[mode].double().numpy(), in_order(self.n_layers, self.n_heads).numpy()
        earlier, later = np.nonzero(valid)
        baseline, p, n = permuted_heads(scores, valid)
        mean, deviation = rotation_moments(
            self.concentration["out"].double().numpy()[:, None],
            self.concentration[mode].double().numpy()[None],
            self.width,
        )
        frame = pd.DataFrame(
            {
                "earlier_layer": earlier // self.n_heads, "earlier_head": earlier % self.n_heads,
                "later_layer": later // self.n_heads, "later_head": later % self.n_heads, "mode": mode,
                "score": scores[valid], "baseline": baseline[valid], "excess": (scores - baseline)[valid], "p": p[valid],
            }
        )  # fmt: skip
        frame["n"], frame["random"] = n[valid], mean**0.5
        frame["z_random"] = ((scores**2 - mean) / deviation)[valid]
        frame["rank"] = frame["excess"].rank(ascending=False, method="min").astype(int)
        return frame


@torch.no_grad()
def head_composition(model: HookedTransformer, mode: str = "all", *, offset: int = 0) -> Composition:
    """Scores between all heads of earlier layers and all of later ones.

    Args:
        model: any decoder with plain attention (grouped or not) and at least two layers.
        mode: "Q", "K", "V", or "all".
        offset: how far before the query the key stands, for the QK circuits of a model with rotary positions.

    Nothing here is drawn at random: both baselines are exact.

    Raises:
        ValueError: an unknown mode, a single layer, a bad offset, and models whose heads are no such product (latent
            attention, encoders, post-LN).
    """
    if mode != "all" and mode not in MODES:
        raise ValueError(f"mode must be 'Q', 'K', 'V' or 'all', got {mode!r}")
    folded.refuse_circuits(model, "composition of heads")
    cfg = model.cfg
    if cfg.n_layers < 2:
        raise ValueError(f"{cfg.name} has one layer: no head reads what another one wrote")
    if not 0 <= offset < cfg.n_ctx or (offset and cfg.positional != "rope"):
        raise ValueError(f"offset={offset} must lie in 0..{cfg.n_ctx - 1}, and be 0 without rotary positions")
    modes = MODES if mode == "all" else (mode,)
    outputs = _stacked([folded.ov_circuits(model, layer) for layer in range(cfg.n_layers)])
    inputs = {"V": outputs} if "V" in modes else {}
    if "Q" in modes or "K" in modes:
        queries = _stacked([folded.qk_circuits(model, layer, offset) for layer in range(cfg.n_layers)])
        inputs |= {"Q": queries, "K": queries.T}
    written, norms, concentration = _left_cores(outputs)
    found, spread = {}, {"out": concentration.float().cpu()}
    for one in modes:
        found[one], spread[one] = _scores(written, norms, inputs[one], cfg.n_layers, cfg.n_heads)
    card = artifact.provenance(
        analysis=KIND, model=cfg.name, fingerprint=model.fingerprint, offset=offset,
        left_out=folded.left_out(model, "QK", offset) if modes != ("V",) else folded.left_out(model, "OV"),
    )  # fmt: skip
    centred = cfg.norm == "layer" and cfg.norm_placement in ("pre", "sandwich")
    return Composition(found, spread, cfg.d_model - centred, cfg.n_layers, cfg.n_heads, card)


def load_composition(path: str | Path) -> Composition:
    """Read what `Composition.save` wrote."""
    tensors, card = artifact.load_artifact(path, KIND)
    modes = card.pop("modes")
    width, n_layers, n_heads = (card.pop(name) for name in ("width", "n_layers", "n_heads"))
    scores = {mode: tensors[f"score.{mode}"] for mode in modes}
    spread = {name: tensors[f"concentration.{name}"] for name in ("out", *modes)}
    return Composition(scores, spread, width, n_layers, n_heads, card)


def in_order(n_layers: int, n_heads: int) -> Bool[Tensor, "earlier later"]:
    """Which pairs of heads stand in an earlier and a later layer."""
    layers = torch.arange(n_layers).repeat_interleave(n_heads)
    return layers[:, None] < layers[None]


def rotation_moments(
    left: Float[np.ndarray, "..."] | float, right: Float[np.ndarray, "..."] | float, width: int
) -> tuple[float, Float[np.ndarray, "..."] | float]:
    """Mean and standard deviation of the squared score of two spectra turned against each other at random.

    The squared score is sum_ij a_i b_j Q_ij^2 with Q Haar-random [width width] and shares a and b that sum to 1. The
    fourth moments of Q are 3/(d(d+2)) for one entry, 1/(d(d+2)) for two of one row or column, and (d+1)/(d(d-1)(d+2)) for
    two in neither (Collins and Śniady 2006, arXiv math-ph/0402073).

    Args:
        left: sum of the squared shares a.
        right: sum of the squared shares b.
        width: d, at least 2.
    """
    d = float(width)
    same = left * right * 3 / (d * (d + 2))
    row_or_column = (left * (1 - right) + right * (1 - left)) / (d * (d + 2))
    neither = (1 - left) * (1 - right) * (d + 1) / (d * (d - 1) * (d + 2))
    variance = same + row_or_column + neither - 1 / d**2
    # Even spectra that fill the space have none, and rounding may say less.
    return 1 / d, np.sqrt(np.maximum(variance, 1e-18))


def permuted_heads(
    scores: Float[np.ndarray, "earlier later"], valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(baseline, p, n) of each pair, all [earlier later]: against the pairs that share one of its heads.

    The baseline is the mean of two means, of the earlier head's other pairs and of the later head's; with one of them
    absent it is the other, and without any it is the score itself (p is 1, n is 0).
    """
    masked = np.where(valid, scores, 0.0)
    counts = [valid.sum(axis, keepdims=True) - 1 for axis in (1, 0)]
    means = [(masked.sum(axis, keepdims=True) - scores) / np.maximum(count, 1) for axis, count in zip((1, 0), counts)]
    present = [np.broadcast_to(count > 0, scores.shape) for count in counts]
    kinds = present[0].astype(int) + present[1]
    summed = np.where(present[0], means[0], 0.0) + np.where(present[1], means[1], 0.0)
    baseline = np.where(kinds > 0, summed / np.maximum(kinds, 1), scores)
    n = counts[0] + counts[1]
    above = _at_least(scores, valid) + _at_least(scores.T, valid.T).T - 2  # each pair counted itself twice
    return baseline, (1 + above) / (1 + n), n


def _at_least(scores: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """How many valid entries of its row are at least as large as each entry."""
    found = np.zeros(scores.shape, dtype=np.int64)
    for row, (values, kept) in enumerate(zip(scores, valid)):
        ordered = np.sort(values[kept])
        found[row, kept] = len(ordered) - np.searchsorted(ordered, values[kept], side="left")
    return found


def _stacked(layers: Sequence[FactoredMatrix]) -> FactoredMatrix:
    """[head d_model d_model] of all layers, one after the other."""
    return FactoredMatrix(torch.cat([layer.A for layer in layers]), torch.cat([layer.B for layer in layers]))


def _left_cores(outputs: FactoredMatrix) -> tuple[Tensor, Tensor, Tensor]:
    """(R_A B [head rank d_model], which has the norms of A B; norms; concentration): rotations on the left drop out."""
    cores = torch.linalg.qr(outputs.A)[1] @ outputs.B
    gram = cores @ cores.transpose(-2, -1)
    return cores, *_norm_and_concentration(gram)


def _norm_and_concentration(gram: Float[Tensor, "head rank rank"]) -> tuple[Tensor, Tensor]:
    """|M| and sum(s^4) / sum(s^2)^2 from M M^T: its trace, and its own norm."""
    square = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    shares = gram.pow(2).sum((-2, -1)) / square.pow(2).clamp(min=torch.finfo(gram.dtype).tiny)
    return square.sqrt(), shares.clamp(max=1.0)


def _scores(
    written: Float[Tensor, "head rank d_model"], norms: Tensor, inputs: FactoredMatrix, n_layers: int, n_heads: int
) -> tuple[Float[Tensor, "earlier later"], Float[Tensor, "later"]]:
    """Scores of one mode, and the concentration of the inputs' spectra; one earlier layer at a time."""
    right = inputs.A @ torch.linalg.qr(inputs.B.transpose(-2, -1))[1].transpose(-2, -1)  # [head d_model rank]
    own, concentration = _norm_and_concentration(right.transpose(-2, -1) @ right)
    n, rank, out = len(right), right.shape[-1], written.shape[1]
    columns = right.permute(1, 0, 2).reshape(right.shape[1], -1)
    found = torch.zeros(n, n, device=right.device)
    tiny = torch.finfo(right.dtype).tiny
    for layer in range(n_layers - 1):
        rows, first = slice(layer * n_heads, (layer + 1) * n_heads), (layer + 1) * n_heads
        product = written[rows].flatten(0, 1) @ columns[:, first * rank :]
        square = product.view(n_heads, out, n - first, rank).pow_(2).sum((1, 3))
        # A head that writes or reads nothing composes with none.
        found[rows, first:] = (square.sqrt() / (norms[rows, None] * own[None, first:]).clamp(min=tiny)).float()
    return found.cpu(), concentration.float().cpu()
