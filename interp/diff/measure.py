"""Two models on the same batch, block by block, reduced at once.

The streams of both models advance one block at a time, so that a single layer's values are held. Each block of b runs twice:
on b's own stream, which carries what earlier blocks did differently, and on *a's* stream. The second shows what this block
itself does differently, and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.lens.read import log_probabilities, rows_at_once
from interp.model import HookedTransformer
from interp.model.inputs import refuse_not_finite
from interp.model.named_weights import head_output
from interp.tokens import Tokens

OUTLIER_FACTOR = 10.0
"""A row whose norm is over so many medians of its text carries massive activations: it is no typical row."""
LAYER_FIGURES = ("residual", "cosine", "own_attention", "own_mlp")
HEAD_FIGURES = ("output", "own_output", "pattern", "own_pattern")
Sums = dict[str, Float[Tensor, "2 ..."]]
"""Figure -> (numerator, denominator), [2 text] of a layer and [2 head text] of its heads, fp64."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """The rows of a batch that have a next token, in groups whose logits fit in memory."""

    text: Int[Tensor, "row"]
    column: Int[Tensor, "row"]
    loss: Float[Tensor, "2 row"]
    """-log p of the next token, of a and b."""
    kl: Float[Tensor, "2 row"]
    """KL(a||b) and KL(b||a), nats."""
    top: Int[Tensor, "2 row"]
    """Most probable tokens."""
    top_probs: Float[Tensor, "2 row"]


def run_layers(
    a: HookedTransformer, b: HookedTransformer, tokens: Tokens
) -> tuple[Float[Tensor, "batch pos d_model"], Float[Tensor, "batch pos d_model"], list[tuple[Sums, Sums]]]:
    """Both final streams, and for each depth the sums by text: of the stream into the first block (heads: none), then of
    each block. The models have the same layers, heads and width."""
    with torch.no_grad():
        streams = [model(tokens, stop_at_layer=0) for model in (a, b)]
        found: list[tuple[Sums, Sums]] = [(_stream_sums(streams[0], streams[1].to(a.device), tokens), {})]
        for layer in range(a.cfg.n_layers):
            of_a = _block(a, streams[0], tokens, layer)
            of_b = _block(b, streams[1], tokens, layer)
            own = _block(b, streams[0], tokens, layer)
            streams = [of_a["stream"], of_b["stream"]]
            typical = _typical(streams[0], tokens)
            layers = _stream_sums(of_a["stream"], of_b["stream"].to(a.device), tokens)
            layers["own_attention"] = _ratio(of_a["attn_out"], own["attn_out"].to(a.device), typical)
            if "mlp_out" in of_a and "mlp_out" in own:
                layers["own_mlp"] = _ratio(of_a["mlp_out"], own["mlp_out"].to(a.device), typical)
            heads: Sums = {}
            for name, other in (("", of_b), ("own_", own)):
                heads[f"{name}output"] = _head_ratios(a, b, layer, of_a["z"], other["z"].to(a.device), typical)
                heads[f"{name}pattern"] = _variation(of_a["pattern"], other["pattern"].to(a.device), tokens.mask)
            found.append((layers, heads))
    return streams[0], streams[1], found


def final_streams(
    a: HookedTransformer, b: HookedTransformer, tokens: Tokens
) -> tuple[Float[Tensor, "batch pos d_model"], Float[Tensor, "batch pos d_other"]]:
    """Final streams of two models whose layers are not compared."""
    with torch.no_grad():
        first, second = (model(tokens, stop_at_layer=model.cfg.n_layers) for model in (a, b))
    return first, second


def predictions(
    a: HookedTransformer, b: HookedTransformer, first: Tensor, second: Tensor, tokens: Tokens
) -> Iterator[Predictions]:
    """What both final streams predict at each place with a next token, a few rows at a time."""
    refuse_not_finite(first, tokens.to(first.device))
    refuse_not_finite(second, tokens.to(second.device))
    rows, columns = (tokens.mask[:, :-1] & tokens.mask[:, 1:]).nonzero(as_tuple=True)
    following = tokens.ids[rows, columns + 1]
    for part in torch.arange(len(rows)).split(rows_at_once(a.cfg.d_vocab)):
        text, column = rows[part], columns[part]
        with torch.no_grad():
            p, q = (log_probabilities(model, x[text, column]) for model, x in ((a, first), (b, second)))
        q = q.to(p.device)
        target = following[part, None].to(p.device)
        gap = p - q
        kl = [(p.exp() * gap).sum(1), -(q.exp() * gap).sum(1)]
        top = [logp.max(1) for logp in (p, q)]
        yield Predictions(
            text=text,
            column=column,
            loss=torch.stack([-logp.gather(1, target)[:, 0] for logp in (p, q)]).cpu(),
            kl=torch.stack(kl).clamp(min=0.0).cpu(),
            top=torch.stack([found.indices for found in top]).cpu(),
            top_probs=torch.stack([found.values.exp() for found in top]).cpu(),
        )


def _block(model: HookedTransformer, stream: Tensor, tokens: Tokens, layer: int) -> dict[str, Tensor]:
    """The stream after one block, and what its parts made."""
    kinds = {"attn_out": "hook_attn_out", "z": "attn.hook_z", "pattern": "attn.hook_pattern", "mlp_out": "hook_mlp_out"}
    names = {kind: f"blocks.{layer}.{name}" for kind, name in kinds.items()}
    names = {kind: name for kind, name in names.items() if name in model.hook_dict}
    values: dict[str, Tensor] = {}
    hooks = {name: lambda value, ctx: values.__setitem__(ctx.name, value) for name in names.values()}
    with model.hooks(hooks):
        after = model(stream, start_at_layer=layer, stop_at_layer=layer + 1, tokens=tokens)
    return {kind: values[name] for kind, name in names.items()} | {"stream": after}


def _typical(stream: Float[Tensor, "batch pos d_model"], tokens: Tokens) -> Bool[Tensor, "batch pos"]:
    """Real tokens that are not first in their text and whose norm is no outlier there; all of a text without such rows."""
    mask = tokens.mask.to(stream.device)
    norms = stream.double().norm(dim=-1).masked_fill(~mask, torch.nan)
    usual = mask & (norms <= OUTLIER_FACTOR * norms.nanmedian(1, keepdim=True).values)
    chosen = usual & (tokens.positions.to(stream.device) > 0)
    return torch.where(chosen.any(1, keepdim=True), chosen, mask)


def _stream_sums(first: Tensor, second: Tensor, tokens: Tokens) -> Sums:
    typical = _typical(first, tokens)
    cosine = torch.cosine_similarity(first.double(), second.double(), dim=-1)
    same = (first == second).all(-1)  # a cosine with itself is 1 up to rounding: make it 1
    cosine = torch.where(same, torch.ones_like(cosine), cosine)
    sums = torch.stack([(cosine * typical).sum(1), typical.sum(1).double()])
    return {"residual": _ratio(first, second, typical), "cosine": sums.cpu()}


def _ratio(first: Tensor, second: Tensor, rows: Bool[Tensor, "batch pos"]) -> Float[Tensor, "2 text"]:
    """Norms of differences, and norms of the first, summed over the rows of each text."""
    wide = first.double()
    norms = torch.stack([(wide - second.double()).norm(dim=-1), wide.norm(dim=-1)])
    return (norms * rows).sum(2).cpu()


def _head_ratios(
    a: HookedTransformer,
    b: HookedTransformer,
    layer: int,
    first: Float[Tensor, "batch pos head d_v"],
    second: Float[Tensor, "batch pos head d_w"],
    rows: Bool[Tensor, "batch pos"],
) -> Float[Tensor, "2 head text"]:
    """The same of what each head writes (before a norm that may follow), one head at a time."""
    of_a, of_b = (head_output(list(model.iter_blocks())[layer], model.cfg).to(first.device) for model in (a, b))
    pairs = ((first[:, :, h] @ of_a[h], second[:, :, h] @ of_b[h]) for h in range(a.cfg.n_heads))
    return torch.stack([_ratio(x, y, rows) for x, y in pairs], 1)


def _variation(
    first: Float[Tensor, "batch head query key"],
    second: Float[Tensor, "batch head query key"],
    mask: Bool[Tensor, "b p"],
) -> Float[Tensor, "2 head text"]:
    """Total variation distance of attention patterns, 0 to 1, summed over real queries; and how many there are."""
    distance = 0.5 * (first.double() - second.double()).abs().sum(-1)
    real = mask.to(first.device)
    total = (distance * real[:, None]).sum(2).T
    return torch.stack([total, real.sum(1).double().expand_as(total)]).cpu()
