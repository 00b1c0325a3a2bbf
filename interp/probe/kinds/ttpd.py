"""TTPD: a direction of truth that holds for affirmative and for negated statements (Buerger, Hamprecht & Nadler 2024,
"Truth is Universal", arXiv 2407.12831).

A probe of affirmative statements alone finds truth mixed with polarity, and is wrong about negated ones. With t = +-1
for true and false and p = +-1 for affirmative and negated:

1. Least squares of the rows on t and t p, with an intercept for each topic and polarity: a = t t_G + t p t_P + ...
   t_G, the general truth direction, is the mean of the slopes on t among affirmative and among negated rows; t_P, the
   part that turns round with polarity, is half their difference.
2. A logistic regression of p on the rows gives the polarity direction.
3. A logistic regression on the two projections, on t_G and on the polarity direction, gives the answer. All of it is
   linear, so it folds into one direction.

The regressions of steps 2 and 3 have C = 1 on standardised features, so that separable rows have an answer.
"""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from interp.probe.readers import Readers, log_odds_readers
from interp.probe.solver import Design, solve


def fit_ttpd(
    design: Design,
    y: Float64[Tensor, "problem row"],
    mask: Float64[Tensor, "problem row"],
    C: Float64[Tensor, "problem"],  # noqa: ARG001 (one signature for every kind)
    seed: int = 0,  # noqa: ARG001
) -> Readers:
    """TTPD readers, with `t_g`, `t_p` and `polarity_direction` [problem d] in raw units among their parts.

    Raises:
        ValueError: no polarity is known, or a problem's rows of one polarity hold only one label, or none, in every topic.
    """
    polarity, cells = _polarity_and_cells(design)
    slopes = [_slope(design.X, y, mask * (polarity == sign), cells, sign) for sign in (1, -1)]
    t_g, t_p = (slopes[0] + slopes[1]) / 2, (slopes[0] - slopes[1]) / 2
    turned = _polarity_directions(design, (polarity > 0).double(), mask)
    directions, biases = [], []
    for labels, seen, pair in zip(y, mask, torch.stack([t_g, turned], 1)):
        direction, bias = _join(design.X, labels, seen, pair)
        directions.append(direction)
        biases.append(bias)
    parts: dict[str, Tensor | list[Tensor]] = {"t_g": t_g, "t_p": t_p, "polarity_direction": turned}
    return log_odds_readers(torch.stack(directions), torch.stack(biases), parts)


def _polarity_and_cells(design: Design) -> tuple[Int64[Tensor, "row"], Int64[Tensor, "row"]]:
    """Polarity as +-1, and the number of each row's topic and polarity."""
    side = design.side
    if side is None:
        raise ValueError(
            "ttpd needs to know which rows are negated: give polarity= (affirmative or negated) with the rows"
        )
    side.need("ttpd", ("polarity",))
    polarity = torch.as_tensor(side.polarity).long()
    names = side.topic if side.topic is not None else [""] * len(polarity)
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    topic = torch.tensor([number[name] for name in names])
    return polarity, 2 * topic + (polarity > 0)


def _slope(
    X: Float64[Tensor, "row d"],
    y: Float64[Tensor, "problem row"],
    weight: Float64[Tensor, "problem row"],
    cells: Int64[Tensor, "row"],
    sign: int,
) -> Float64[Tensor, "problem d"]:
    """Least-squares slope of the rows on truth, +1 or -1, with an intercept for each cell."""
    one_hot = torch.nn.functional.one_hot(cells).double()
    truth = 2 * y - 1
    means = (weight * truth) @ one_hot / (weight @ one_hot).clamp_min(1.0)
    # Centring one side of the products is enough: the rows' own means fall out.
    centred = weight * (truth - means[:, cells])
    size = (centred * truth).sum(1, True)
    poor = size[:, 0] < 1e-9 * len(cells)
    if bool(poor.any()):
        seen = weight[int(poor.int().argmax())]
        word, other = ("affirmative", "negated") if sign > 0 else ("negated", "affirmative")
        what = (
            f"the {int(seen.sum())} {word} rows have one label only in each topic"
            if seen.any()
            else f"no row is {word}"
        )
        raise ValueError(
            f"ttpd tells truth from polarity, but {what}: add true and false {word} statements, or use "
            f"kind='mass_mean' on the {other} ones"
        )
    return centred @ X / size


def _polarity_directions(
    design: Design, affirmative: Float64[Tensor, "row"], mask: Float64[Tensor, "problem row"]
) -> Float64[Tensor, "problem d"]:
    # Polarity is not permuted with the labels: problems with the same rows share one regression.
    distinct, place = torch.unique(mask, dim=0, return_inverse=True)
    found = design.to_raw(*solve(design.rotated, affirmative.expand_as(distinct), distinct))[0]
    return found[place]


def _join(
    X: Float64[Tensor, "row d"],
    y: Float64[Tensor, "row"],
    seen: Float64[Tensor, "row"],
    pair: Float64[Tensor, "2 d"],
) -> tuple[Float64[Tensor, "d"], Float64[Tensor, ""]]:
    """Logistic regression on the projections on two directions, as one direction and bias."""
    projection = X @ pair.T
    mean = seen @ projection / seen.sum()
    spread = (seen @ (projection - mean) ** 2 / seen.sum()).sqrt()
    weights, bias = solve((projection - mean) / spread, y[None], seen[None])
    scaled = weights[0] / spread
    return scaled @ pair, bias[0] - scaled @ mean
