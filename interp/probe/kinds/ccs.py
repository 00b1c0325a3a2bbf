"""CCS: a direction on which a statement and its negation get opposite answers (Burns, Ye, Klein & Steinhardt 2022,
"Discovering Latent Knowledge in Language Models Without Supervision", arXiv 2212.03827).

Every affirmative row x+ and its negated partner x- make a pair. Labels play no part in steps 1 to 4.

1. The affirmative and the negated rows are each centred by their own mean, so that the presence of a "not" is no answer.
   The two means differ along the polarity; the reader is kept blind to that direction, so that one direction and one bias
   serve both halves, and a single row can be read.
2. Loss = mean of (p+ + p- - 1)^2 + min(p+, p-)^2 (a pair is answered consistently, and with confidence), with
   p = sigmoid(z . w + b) on the standardised features, and DECAY / 2 |w|^2: with as many features as pairs any answers
   could be had for nothing.
3. All problems are minimised from 10 random starts together, by L-BFGS; solved ones leave the batch.
4. The start with the lowest loss is kept.
5. The loss cannot tell true from false: the labels of the training rows say which end is which, and fit the line from
   score to log-odds.

The method finds the most salient way in which pairs differ, which need not be truth.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from interp.probe.kinds.lbfgs import Memory
from interp.probe.readers import Readers
from interp.probe.solver import Design, calibrate

RESTARTS = 10
DECAY = 3e-2
"""Weight of |w|^2 / 2 beside a loss that is 1/4 for a reader that knows nothing."""
TOLERANCE = 1e-4
"""A start is at its end when its gradient is this small relative to the first one."""
_MAX_STEPS = 200
_MAX_HALVINGS = 30


def fit_ccs(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],  # noqa: ARG001 (one signature for every kind)
    seed: int = 0,
) -> Readers:
    """CCS readers; parts keep each problem's `n_pairs` and `n_unpaired`, the rows that had no partner.

    Raises:
        ValueError: polarity and pairs are not known, or a problem holds no pair.
    """
    affirmative, negated = _pairs(design)
    seen = mask[:, affirmative] * mask[:, negated]
    n_pairs = seen.sum(1)
    if bool((n_pairs == 0).any()):
        raise ValueError(
            f"ccs learns from pairs of a statement and its negation, and {int(mask[n_pairs.argmin()].sum())} rows hold none "
            f"({len(affirmative)} in all rows): give both of a pair the same group, or use kind='ttpd', which needs no partner"
        )
    # Whatever the labels, the answer is the same up to its sign: problems with the same rows are solved once.
    distinct, place = torch.unique(seen, dim=0, return_inverse=True)
    rows = design.rotated
    weights, bias = _Pairs.of(rows[affirmative], rows[negated], distinct).solve(seed)
    direction, offset = design.to_raw(weights[place], bias[place])
    slope, intercept = calibrate(direction @ design.X.T + offset[:, None], y, mask)
    sign = torch.where(slope < 0, -1.0, 1.0).double()
    parts: dict[str, Tensor | list[Tensor]] = {"n_pairs": n_pairs, "n_unpaired": mask.sum(1) - 2 * n_pairs}
    return Readers(sign[:, None] * direction, sign * offset, sign * slope, intercept, parts)


def _pairs(design: Design) -> tuple[Int64[Tensor, "pair"], Int64[Tensor, "pair"]]:
    """The affirmative rows that have a partner, and the partners."""
    side = design.side
    if side is None:
        raise ValueError("ccs needs to know pairs: give polarity= (affirmative or negated) and pair= with the rows")
    side.need("ccs", ("pair",) if side.polarity is not None else ("polarity", "pair"))
    polarity, partner = torch.as_tensor(side.polarity), torch.as_tensor(side.partner)
    affirmative = ((polarity > 0) & (partner >= 0)).nonzero()[:, 0]
    return affirmative, partner[affirmative].long()


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The loss of many readers [reader k + 1], weights and bias, each with its own share of the pairs."""

    halves: tuple[Float64[Tensor, "pair k"], Float64[Tensor, "pair k"]]
    means: tuple[Float64[Tensor, "problem k"], Float64[Tensor, "problem k"]]
    polarity: Float64[Tensor, "problem k"]
    """Unit vector between the means."""
    share: Float64[Tensor, "problem pair"]
    """Of each pair in the loss; adds up to 1."""

    @classmethod
    def of(
        cls,
        affirmative: Float64[Tensor, "pair k"],
        negated: Float64[Tensor, "pair k"],
        seen: Float64[Tensor, "problem pair"],
    ) -> "_Pairs":
        share = seen / seen.sum(1, True)
        means = share @ affirmative, share @ negated
        apart = means[0] - means[1]
        return cls((affirmative, negated), means, apart / apart.norm(dim=1, keepdim=True).clamp_min(1e-300), share)

    def scores(self, readers: Float64[Tensor, "reader k1"], owner: Int64[Tensor, "reader"]) -> tuple[Tensor, Tensor]:
        """Log-odds [reader pair] of the affirmative and the negated halves."""
        w, b = readers[:, :-1], readers[:, -1:]
        first, second = (w @ half.T - (w * mean[owner]).sum(1, True) + b for half, mean in zip(self.halves, self.means))
        return first, second

    def loss(
        self, readers: Float64[Tensor, "reader k1"], scores: tuple[Tensor, Tensor], owner: Int64[Tensor, "reader"]
    ) -> Float64[Tensor, "reader 1"]:
        p, q = scores[0].sigmoid(), scores[1].sigmoid()
        each = (p + q - 1) ** 2 + torch.minimum(p, q) ** 2
        return (self.share[owner] * each).sum(1, True) + DECAY / 2 * readers[:, :-1].pow(2).sum(1, True)

    def gradient(
        self, readers: Float64[Tensor, "reader k1"], scores: tuple[Tensor, Tensor], owner: Int64[Tensor, "reader"]
    ) -> Float64[Tensor, "reader k1"]:
        """Of the loss, within the readers that are blind to polarity."""
        p, q = scores[0].sigmoid(), scores[1].sigmoid()
        even, share = 2 * (p + q - 1), self.share[owner]
        pulls = (
            share * p * (1 - p) * (even + 2 * p * (p < q)),
            share * q * (1 - q) * (even + 2 * q * (q <= p)),
        )
        w = DECAY * readers[:, :-1]
        for pull, half, mean in zip(pulls, self.halves, self.means):
            w = w + pull @ half - pull.sum(1, True) * mean[owner]
        return torch.cat([self._blind(w, owner), (pulls[0] + pulls[1]).sum(1, True)], 1)

    def _blind(self, w: Float64[Tensor, "reader k"], owner: Int64[Tensor, "reader"]) -> Float64[Tensor, "reader k"]:
        along = self.polarity[owner]
        return w - (w * along).sum(1, True) * along

    def solve(self, seed: int) -> tuple[Float64[Tensor, "problem k"], Float64[Tensor, "problem"]]:
        """Weights and bias, on rows that are not centred, of each problem's best start."""
        owner = torch.arange(len(self.share)).repeat_interleave(RESTARTS)
        readers, loss = self._descend(self._starts(seed, owner), owner)
        best = loss.view(-1, RESTARTS).argmin(1) + RESTARTS * torch.arange(len(self.share))
        w = readers[best, :-1]
        return w, readers[best, -1] - (w * self.means[0]).sum(1)

    def _starts(self, seed: int, owner: Int64[Tensor, "reader"]) -> Float64[Tensor, "reader k1"]:
        """Random directions, the stronger along an axis the more the two of a pair differ there; scores of unit variance.

        Directions drawn evenly are nearly all noise, and end in minima that answer the noise of single pairs.
        """
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(RESTARTS, self.polarity.shape[1], generator=generator, dtype=torch.float64)
        apart = self.halves[0] - self.halves[1]
        means = self.means[0] - self.means[1]
        drawn = torch.cat([(drawn @ (apart - mean).T * own) @ (apart - mean) for mean, own in zip(means, self.share)])
        w = self._blind(drawn, owner)
        start = torch.cat([w, torch.zeros_like(w[:, :1])], 1)
        variance = sum((self.share[owner] * score**2).sum(1, True) / 2 for score in self.scores(start, owner))
        assert isinstance(variance, Tensor)
        return start / variance.sqrt().clamp_min(1e-300)

    def _descend(
        self, readers: Float64[Tensor, "reader k1"], owner: Int64[Tensor, "reader"]
    ) -> tuple[Float64[Tensor, "reader k1"], Float64[Tensor, "reader"]]:
        """The end of each start, and its loss. One that has not converged in _MAX_STEPS counts as it is."""
        ends, losses = readers.clone(), readers.new_zeros(len(readers))
        active = torch.arange(len(readers))
        memory = Memory()
        scores = self.scores(readers, owner)
        loss, gradient = self.loss(readers, scores, owner), self.gradient(readers, scores, owner)
        target = TOLERANCE * gradient.norm(dim=1)
        for _ in range(_MAX_STEPS):
            step = memory.step(gradient)
            step = step * self._length(readers, scores, loss, step, (gradient * step).sum(1, True), owner)
            readers, before = readers + step, gradient
            scores = self.scores(readers, owner)
            loss, gradient = self.loss(readers, scores, owner), self.gradient(readers, scores, owner)
            memory.add(step, gradient - before)
            ends[active], losses[active] = readers, loss[:, 0]
            left = gradient.norm(dim=1) > target
            if not left.any():
                break
            memory.keep(left)
            active, owner, target, readers, loss, gradient = (
                v[left] for v in (active, owner, target, readers, loss, gradient)
            )
            scores = scores[0][left], scores[1][left]
        return ends, losses

    def _length(
        self,
        readers: Float64[Tensor, "reader k1"],
        scores: tuple[Tensor, Tensor],
        loss: Float64[Tensor, "reader 1"],
        step: Float64[Tensor, "reader k1"],
        slope: Float64[Tensor, "reader 1"],
        owner: Int64[Tensor, "reader"],
    ) -> Float64[Tensor, "reader 1"]:
        """The largest of 1, 1/2, 1/4 ... of each step for which the loss falls by its share of the slope (Armijo)."""
        first, second = self.scores(step, owner)  # scores are linear in the reader: no product in the search
        t = torch.ones_like(slope)
        for _ in range(_MAX_HALVINGS):
            there = self.loss(readers + t * step, (scores[0] + t * first, scores[1] + t * second), owner)
            too_far = there > loss + 1e-4 * t * slope
            if not too_far.any():
                break
            t = torch.where(too_far, t / 2, t)
        return t
