"""Direct logit attribution: a logit as the sum of what each part of the model wrote into the stream (Elhage et al. 2021).

1. One pass up to the final stream. Only the rows of the places that are asked for are kept.
2. The final norm with its scale held is linear (`places`), so each part's share of the logit is a product with one
   direction u. Where a norm follows attention or MLP, its scale is held in the same way.
3. A head's share is z . (W_O u): W_O u is [head, d_v], so what a head writes, [d_model], is never made. In the same way
   a neuron's share is its activation times W_out u, and a source token's is pattern * (v . W_O u).
4. Parts are summed in fp64 and compared with the logit itself. A sum that misses it is an error, not a figure.

A *direct* effect leaves out what later layers make of a part: patching measures that.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.attribution.places import Directions, Places, find_directions, find_places, through
from interp.attribution.result import Attribution
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.model.mlp import MLP
from interp.model.named_weights import bias_of, head_output
from interp.tokens import Tokens

WAYS = ("component", "layer", "head", "neuron", "source")
"""Ways to divide the stream."""
NEURONS = 50
"""Neurons shown where no number is given."""
TOLERANCE = 1e-4
"""How far the parts' sum may lie from the logit, above the rounding of the model's own sums."""

Label = tuple[str, str, int, int, int, int]
"""part, component, layer, head, neuron, source; -1 for what does not apply."""
Found = Iterator[tuple[Label, Float[Tensor, "place"]]]
EMBEDS = {"hook_embed": "embed", "hook_pos_embed": "pos_embed", "hook_token_type_embed": "token_type_embed"}


@torch.no_grad()
def direct_logit_attribution(
    model: HookedTransformer,
    x: Any,
    answer: Any = None,
    against: Any = None,
    *,
    by: str = "component",
    pos: Any = -1,
    centred: bool = False,
    k: int | Any = None,
    seed: int = 0,
) -> Attribution:
    """What each part adds directly to a logit, or to the difference of two.

    Args:
        model: any decoder whose stream is a sum.
        x: what `model.tokenize` takes.
        answer: a text that is one token (mind the space before a word) or an id; or a list with one for each text.
            None: the token that follows in the text.
        against: in the same way, the token whose logit is subtracted. None: the answer's logit itself.
        by: the parts. "component": embeddings, attention and MLP of each layer. "layer": embeddings, blocks. "head":
            heads, and what attention's output bias adds. "neuron": the `k` strongest neurons, each layer's others as
            one part. "source": each head and token it reads from. The biases after the last block always are a part.
        pos: position in each text, counted over its real tokens, negative from the end; a list, or "all".
        centred: subtract the mean of all logits, which a softmax does not see.
        k: neurons shown, by mean size; None means 50.
        seed: of the bootstrap.

    Returns:
        Shares in logits. With a soft-cap they sum to the logit before it.

    Raises:
        ValueError: an encoder or a post-LN model, an answer of several tokens, a position outside a text, or parts that do
            not sum to the logit.
    """
    tokens, places = _asked(model, x, answer, against, by=by, pos=pos, centred=centred, k=k)
    rows, final = _run(model, tokens, places, by)
    directions = find_directions(model, places, final, centred=centred)
    parts = _Parts(model, tokens, places, directions, rows, NEURONS if k is None else k)
    found = [*parts.all(by), (("bias", "bias", -1, -1, -1, -1), directions.bias)]
    labels, values = zip(*found)
    stacked = torch.stack(list(values))
    _check_sum(stacked, directions.logit, model.dtype)
    read = _reader(model)
    card = artifact.provenance(
        analysis="direct logit attribution", model=model.cfg.name, fingerprint=model.fingerprint, by=by, centred=centred,
        before_softcap=model.cfg.final_softcap is not None, k=k, seed=seed, n_texts=len(tokens),
    )  # fmt: skip
    return Attribution(
        labels=tuple(labels),
        values=stacked.cpu(),
        logit=directions.logit.cpu(),
        text=places.text.cpu(),
        pos=places.pos.cpu(),
        answers=tuple(read(places.answer)),
        againsts=None if places.against is None else tuple(read(places.against)),
        tokens=tuple(tuple(read(tokens.ids[i][tokens.mask[i]])) for i in range(len(tokens))),
        by=by,
        card=card,
    )


def _asked(
    model: HookedTransformer, x: Any, answer: Any, against: Any, *, by: str, pos: Any, centred: bool, k: Any
) -> tuple[Tokens, Places]:
    """Checked arguments."""
    if by not in WAYS:
        raise ValueError(f"by must be one of {', '.join(WAYS)}, got {by!r}")
    if k is not None and (by != "neuron" or not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise ValueError(f"k is a number of neurons, at least 1, and goes with by='neuron'; got k={k!r} with by={by!r}")
    if centred and against is not None:
        raise ValueError("centred=True subtracts the mean logit, against= another token's: give one of them")
    refuse_encoder(model.cfg, "the logit of a next token")
    if model.cfg.norm_placement == "post_ln" or model.cfg.mlm_head:
        raise ValueError(
            f"{model.cfg.name} norms the stream itself, or its logits pass a layer of their own: they are no sum over parts"
        )
    blocks = list(model.iter_blocks())
    if by == "neuron" and not any(isinstance(block.mlp, MLP) for block in blocks):
        what = "no MLP" if all(block.mlp is None for block in blocks) else "experts, whose neurons are not recorded"
        raise ValueError(f"{model.cfg.name} has {what}: take by='component'")
    tokens = model.tokenize(x)
    if tokens.parents is not None or tokens.documents is not None:
        raise ValueError("give one text a row: rows of joined documents or trees have no single last token")
    return tokens, find_places(model, tokens, answer, against, pos)


def _run(
    model: HookedTransformer, tokens: Tokens, places: Places, by: str
) -> tuple[dict[str, Tensor], Float[Tensor, "place d_model"]]:
    """Site -> its rows at the places (values of all tokens, for `source`), and the final stream there."""
    rows: dict[str, Tensor] = {}

    def keep(value: Tensor, ctx: HookContext) -> None:
        kind = ctx.name.rsplit(".", 1)[-1]
        if kind == "hook_v":
            rows[ctx.name] = value
        elif kind == "hook_pattern":
            rows[ctx.name] = value[places.text, :, places.column]
        else:
            rows[ctx.name] = value[places.text, places.column]

    hooks: dict[str, Callable[..., Any]] = dict.fromkeys(_sites(model, by), keep)
    with model.hooks(hooks):
        stream = model(tokens, stop_at_layer=model.cfg.n_layers)
    return rows, stream[places.text, places.column]


def _sites(model: HookedTransformer, by: str) -> list[str]:
    wanted = _embeds(model)
    for layer, block in enumerate(model.iter_blocks()):
        name = f"blocks.{layer}"
        inner = {"head": ["attn.hook_z"], "source": ["attn.hook_v", "attn.hook_pattern"]}.get(by)
        if inner is not None and block.ln1_post is not None:
            inner.append("ln1_post.hook_scale")
        attention = inner or ["hook_attn_out"]
        neurons = by == "neuron" and isinstance(block.mlp, MLP)
        mlp = ["mlp.hook_post" if neurons else "hook_mlp_out"] if block.mlp is not None else []
        mlp += ["ln2_post.hook_scale"] if neurons and block.ln2_post is not None else []
        wanted += [f"{name}.{site}" for site in attention + mlp]
    return wanted


def _embeds(model: HookedTransformer) -> list[str]:
    """Sites of what enters the stream before the first block."""
    if model.cfg.embed_norm == "sum":
        return ["hook_full_embed"]
    return [name for name in EMBEDS if name in model.site_names]


class _Parts:
    """The parts of one pass, layer by layer."""

    def __init__(
        self,
        model: HookedTransformer,
        tokens: Tokens,
        places: Places,
        directions: Directions,
        rows: dict[str, Tensor],
        k: int,
    ) -> None:
        self.model, self.tokens, self.places = model, tokens, places
        self.directions, self.rows, self.k = directions, rows, k
        self.strong: list[tuple[Label, Tensor]] = []

    def all(self, by: str) -> Found:
        for name in _embeds(self.model):
            yield _label(EMBEDS.get(name, "embed")), self.directions.read(self.rows[name])
        rest: list[tuple[int, Tensor]] = []
        for layer, block in enumerate(self.model.iter_blocks()):
            found = [] if by in ("head", "source") else [(_label("attn", layer), self._whole(layer, "attn"))]
            if by in ("head", "source"):
                found += self._heads(layer, block, by)
            if by == "neuron" and isinstance(block.mlp, MLP):
                found += self._neurons(layer, block, rest)
            elif block.mlp is not None:
                found.append((_label("mlp", layer), self._whole(layer, "mlp")))
            if by == "layer":
                yield (f"L{layer}", "block", layer, -1, -1, -1), torch.stack([v for _, v in found]).sum(0)
            else:
                yield from found
        yield from self.strong
        for layer, total in rest:
            shown = [value for label, value in self.strong if label[2] == layer]
            yield _label("other_neurons", layer), total - torch.stack(shown).sum(0) if shown else total

    def _whole(self, layer: int, kind: str) -> Float[Tensor, "place"]:
        return self.directions.read(self.rows[f"blocks.{layer}.hook_{kind}_out"])

    def _before(self, layer: int, norm: Any, part: str) -> tuple[Float[Tensor, "direction d_model"], Tensor]:
        """Directions in front of the norm that follows a part, and what a product with them is divided by."""
        base, scale = self.directions.base, self.directions.scale
        if norm is None:
            return base, scale
        return through(norm, base), scale * self.rows[f"blocks.{layer}.{part}.hook_scale"][:, 0].double()

    def _bias(self, bias: Tensor, norm: Any, base: Tensor, scale: Tensor) -> Float[Tensor, "place"]:
        """What an output bias adds, with the bias of a norm that follows."""
        which, found = self.directions.which, (base @ bias.double())[self.directions.which] / scale
        if norm is not None and norm.bias is not None:
            found = found + (self.directions.base @ norm.bias.double())[which] / self.directions.scale
        return found

    def _heads(self, layer: int, block: Any, by: str) -> Found:
        base, scale = self._before(layer, block.ln1_post, "ln1_post")
        weights = head_output(block, self.model.cfg).double()
        onto = torch.einsum("hvd,nd->nhv", weights, base)[self.directions.which]
        if by == "head":
            found = (self.rows[f"blocks.{layer}.attn.hook_z"].double() * onto).sum(-1) / scale[:, None]
            for head in range(found.shape[1]):
                yield (f"L{layer}H{head}", "head", layer, head, -1, -1), found[:, head]
        else:
            yield from self._sources(layer, onto / scale[:, None, None])
        if block.attn.o.bias is not None or (block.ln1_post is not None and block.ln1_post.bias is not None):
            yield _label("attn_bias", layer), self._bias(bias_of(block.attn.o), block.ln1_post, base, scale)

    def _sources(self, layer: int, onto: Float[Tensor, "place head d_v"]) -> Found:
        values, pattern = (self.rows[f"blocks.{layer}.attn.hook_{kind}"] for kind in ("v", "pattern"))
        shared, longest = onto.shape[1] // values.shape[2], int(self.tokens.lengths.max())
        found = onto.new_zeros(*onto.shape[:2], longest)
        for text in self.places.text.unique().tolist():
            here = self.places.text == text
            start, n = int(self.tokens.first[text]), int(self.tokens.lengths[text])
            mine = values[text, start : start + n].double().repeat_interleave(shared, 1)
            read = torch.einsum("khv,phv->phk", mine, onto[here])
            found[here, :, :n] = read * pattern[here][..., start : start + n].double()
        for head in range(found.shape[1]):
            for source in range(longest):
                yield (f"L{layer}H{head}<{source}", "source", layer, head, -1, source), found[:, head, source]

    def _neurons(self, layer: int, block: Any, rest: list[tuple[int, Tensor]]) -> Found:
        """Keeps the strongest so far in `strong`, adds the layer's total to `rest`, and yields its output bias."""
        base, scale = self._before(layer, block.ln2_post, "ln2_post")
        onto = base @ block.mlp.down.weight.double()
        acts = self.rows[f"blocks.{layer}.mlp.hook_post"].double()
        found = acts * onto[self.directions.which] / scale[:, None]
        rest.append((layer, found.sum(1)))
        best = found.abs().mean(0).topk(min(self.k, found.shape[1])).indices.tolist()
        self.strong += [((f"L{layer}N{i}", "neuron", layer, -1, i, -1), found[:, i].clone()) for i in best]
        self.strong = sorted(self.strong, key=lambda part: -float(part[1].abs().mean()))[: self.k]
        if block.mlp.down.bias is not None or (block.ln2_post is not None and block.ln2_post.bias is not None):
            yield _label("mlp_bias", layer), self._bias(bias_of(block.mlp.down), block.ln2_post, base, scale)


def _label(component: str, layer: int = -1) -> Label:
    return component if layer < 0 else f"L{layer} {component}", component, layer, -1, -1, -1


def _check_sum(values: Float[Tensor, "part place"], logit: Float[Tensor, "place"], dtype: torch.dtype) -> None:
    # The stream itself is rounded once for each part that is added to it, in proportion to what is added.
    allowed = TOLERANCE + 4 * torch.finfo(dtype).eps * values.abs().sum(0)
    missed = (logit - values.sum(0)).abs()
    if bool((missed > allowed).any()) or not bool(torch.isfinite(missed).all()):
        worst = int((missed - allowed).argmax())
        raise ValueError(
            f"the parts miss the logit {float(logit[worst]):.6f} by {float(missed[worst]):.2e}, over the "
            f"{float(allowed[worst]):.0e} that rounding explains: a hook or intervention may edit the stream; remove it"
        )


def _reader(model: HookedTransformer) -> Callable[[Tensor], list[str]]:
    """Ids as text, or as numbers where the model has no tokenizer."""
    if model.tokenizer is None:
        return lambda ids: [str(i) for i in ids.tolist()]
    return model.tokenizer.to_str_tokens
