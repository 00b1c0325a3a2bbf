"""The Jacobian lens: how a small change of the stream at a layer moves the end of the model, on average over text.

The logit lens reads a middle layer as if it were the last. The Jacobian lens first asks what the layers between make of it,
by the derivative that they have on real text:

1. Run the texts and keep the graph from the first site on. Its end is h_final, the last block's output before the final
   norm: what `model.unembed_logits` reads, so that the lens ends as the model does, with the norm of that row.
2. For each source position p and site l take the sum over all targets p' >= p of d h_final[p'] / d h_l[p]: what this token
   says now and what it will say later. (`same_position=True` counts p' = p alone.)
3. Average over source positions and texts. The first 16 positions are left out: attention sinks live there, whose
   derivatives are those of no other token.
4. Read a row h at layer l as J_l h.

One backward pass gives one row of every J_l: the cotangent e_i stands at all targets at once, and the gradient at p is then
the sum over targets. d_model passes for a batch, whatever the number of layers; where a batch is small, several cotangents
go side by side as copies of its texts. `same_position` gives the cotangents random signs s by position and multiplies the
gradient at p by s[p]: in the mean only p' = p stays (Hutchinson 1989), at the same cost and with some noise.

Definition: the reference implementation anthropics/jacobian-lens. A replication on GPT-2 medium finds that quality saturates
near 100 texts, and that this lens is *worse* than the logit lens at the next token: it shows what a place is disposed to say
within the text that follows, so compare it by rank as well (`compare_lenses`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp import artifact, plot
from interp import sites as site_names
from interp.hooks import Request, attached
from interp.lens.batches import text_hash, token_batches, token_rows
from interp.lens.places import EMBED, FIRST, end_kind
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder, refuse_not_finite
from interp.rerun import repeat_tokens
from interp.sites import kind_of, layer_of
from interp.store.lookup import whole_number
from interp.tokens import Tokens

KIND = "jacobian lens"
SKIP = 16
BATCH_TOKENS = 512
"""Tokens of one graph: the memory is that of a training step on so many tokens."""


@dataclass(frozen=True, eq=False)
class JacobianLens:
    """Average Jacobians from sites of the stream to the end of the model; `fit_jacobian_lens` makes one."""

    sites: tuple[str, ...]
    """Full site names, in the order of computation."""
    matrices: Float[Tensor, "site d_model d_model"]
    """J: a row h is read as J @ h. fp32."""
    halves: Float[Tensor, "agreed 2"]
    """Of the lenses of two halves of the texts: cosine of the two matrices, and the norm of their difference over the norm
    of the whole. Empty [0 2] for one text."""
    card: dict[str, Any]
    """Model, fingerprint, estimator, texts, positions, seed, and hashes of the texts."""

    @property
    def name(self) -> str:
        """For tables: "jacobian", or "jacobian (same position)"."""
        return "jacobian (same position)" if self.card["same_position"] else "jacobian"

    def translate(self, rows: Float[Tensor, "row d_model"], site: str) -> Float[Tensor, "row d_model"]:
        """Rows of the stream at a site as `model.unembed_logits` then reads them: J @ h.

        No mean is added: J of the sum over targets is longer than the identity, and the final norm takes the length away.
        """
        full = site_names.full_name(site)
        if full not in self.sites:
            have = ", ".join(map(site_names.short_name, self.sites))
            raise ValueError(f"this lens was not fitted at {site_names.short_name(full)}; it has {have}")
        matrix = self.matrices[self.sites.index(full)].to(rows.device)
        return (rows.to(matrix.dtype) @ matrix.T).to(rows.dtype)

    def check_model(self, model: HookedTransformer) -> None:
        """ValueError if the lens was fitted on another model: its matrices mean nothing there."""
        if model.fingerprint != self.card["fingerprint"]:
            raise ValueError(
                f"this lens was fitted on {self.card['model']} ({self.card['fingerprint'][:8]}), the model is "
                f"{model.cfg.name} ({model.fingerprint[:8]}): fit one on it"
            )

    def to_frame(self) -> pd.DataFrame:
        """A line for each site: site, layer, gain (|J| / sqrt(d_model), 1 for the identity), from_identity
        (|J - 1| / |1|), half_cosine and half_error (NaN for one text), n_texts, n (source positions)."""
        eye = torch.eye(self.matrices.shape[-1])
        length = eye.norm()
        halves = self.halves if len(self.halves) else torch.full((len(self.sites), 2), torch.nan)
        return pd.DataFrame(
            {
                "site": [site_names.short_name(site) for site in self.sites],
                "layer": _layers(self.sites),
                "gain": [float(matrix.norm() / length) for matrix in self.matrices],
                "from_identity": [float((matrix - eye).norm() / length) for matrix in self.matrices],
                "half_cosine": halves[:, 0].numpy(),
                "half_error": halves[:, 1].numpy(),
                "n_texts": self.card["n_texts"],
                "n": self.card["n_positions"],
            }
        )

    def plot(self, column: str = "half_cosine") -> alt.LayerChart:
        """A column of `to_frame` over layers; the agreement of the two halves says whether there were enough texts."""
        frame = self.to_frame()
        domain = (0.0, 1.0) if column == "half_cosine" else None
        return plot.layer_curve(frame.dropna(subset=[column]), column, domain=domain)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_jacobian_lens` reads it."""
        tensors = {"matrices": self.matrices, "halves": self.halves}
        return artifact.save_artifact(Path(path), KIND, tensors, self.card | {"sites": list(self.sites)})


def load_jacobian_lens(path: str | Path, model: HookedTransformer | None = None) -> JacobianLens:
    """Read what `JacobianLens.save` wrote; with `model`, ValueError if the lens is another model's."""
    tensors, card = artifact.load_artifact(Path(path), KIND)
    lens = JacobianLens(tuple(card.pop("sites")), tensors["matrices"], tensors["halves"], card)
    if model is not None:
        lens.check_model(model)
    return lens


def fit_jacobian_lens(
    model: HookedTransformer,
    texts: Any,
    *,
    sites: Any = None,
    same_position: bool = False,
    skip: int | Any = SKIP,
    max_length: int | Any = 128,
    batch_tokens: int | Any = BATCH_TOKENS,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> JacobianLens:
    """Average the Jacobians from sites of the stream to the end of the model over texts.

    Args:
        model: any causal model; its weights stay frozen.
        texts: what `model.tokenize` takes, and rows of ids of any lengths. About 100 are enough.
        sites: places in the stream; None for the end of each block.
        same_position: count the effect on the token's own place alone, not on the places after it.
        skip: first positions of each text that are no sources.
        max_length: texts are cut after so many tokens. The sum over targets grows with the tokens that follow.
        batch_tokens: tokens of one graph, copies counted; memory grows with it.
        seed: of the signs of `same_position`.
        progress: called with (backward passes done, in all).

    Raises:
        ValueError: an encoder, a site outside the stream, or no text longer than `skip` tokens.
    """
    refuse_encoder(model.cfg, "what a token says later")
    skip, batch_tokens = whole_number("skip", skip, 0), whole_number("batch_tokens", batch_tokens, 1)
    names = _stream_sites(model, sites)
    rows = token_rows(model, texts, max_length)
    used = [row for row in rows if len(row) > skip]
    if not used:
        raise ValueError(
            f"no text is longer than the {skip} positions that are skipped (the longest has {max(map(len, rows))} tokens): "
            "give longer texts, or a smaller skip"
        )
    signs = torch.Generator().manual_seed(seed) if same_position else None
    sums, counts = _sums(model, list(token_batches(used, batch_tokens)), names, skip, batch_tokens, signs, progress)
    card = artifact.provenance(
        analysis=KIND, model=model.cfg.name, fingerprint=model.fingerprint, same_position=same_position, skip=skip,
        max_length=max_length, seed=seed, n_texts=len(used), n_too_short=len(rows) - len(used),
        n_positions=int(counts.sum()), text_hashes=sorted({text_hash(row) for row in used}),
    )  # fmt: skip
    return JacobianLens(tuple(names), sums.sum(0) / counts.sum(), _agreement(sums, counts), card)


def _sums(
    model: HookedTransformer,
    batches: Sequence[tuple[list[int], Tokens]],
    names: list[str],
    skip: int,
    batch_tokens: int,
    signs: torch.Generator | None,
    progress: Callable[[int, int], object] | None,
) -> tuple[Float[Tensor, "2 site d_model d_model"], Int[Tensor, "2"]]:
    """Jacobians summed over the sources of each half of the texts, and the number of these sources."""
    d_model = model.cfg.d_model
    copies = [max(1, min(batch_tokens // tokens.ids.numel(), d_model)) for _, tokens in batches]
    total, done = sum(-(-d_model // n) for n in copies), 0
    sums = torch.zeros(2, len(names), d_model, d_model)
    counts = torch.zeros(2, dtype=torch.long)
    for (indices, tokens), n in zip(batches, copies):
        half = torch.tensor(indices) % 2  # every other text, so that both halves have texts of all kinds
        sources = tokens.mask & (tokens.positions >= skip)
        counts.index_add_(0, half, sources.sum(1))
        graph = _Graph(model, repeat_tokens(tokens, n), names)
        for dims, found in graph.jacobian_rows(sources, half, signs, n):
            sums[:, :, dims] += found
            done += 1
            if progress is not None:
                progress(done, total)
    return sums, counts


def _stream_sites(model: HookedTransformer, wanted: Any) -> list[str]:
    """Full names of the sites, all of them of the residual stream."""
    end = end_kind(model.cfg)
    kinds = ("embed", "resid_pre", "resid_mid", end)
    names = model.expand_sites(f"{end}:*" if wanted is None else wanted)
    odd = [name for name in names if kind_of(name).kind not in kinds]
    if odd or not names:
        where = site_names.short_name(odd[0]) if odd else repr(wanted)
        raise ValueError(f"{where} is not the residual stream, from which a lens reads; use {', '.join(kinds)}")
    return names


class _Graph:
    """One forward pass of a batch (its texts `copies` times) whose graph is walked back many times."""

    def __init__(self, model: HookedTransformer, tokens: Tokens, names: list[str]) -> None:
        read = {name: FIRST if name == EMBED else name for name in names}
        values: dict[str, Tensor] = {}
        readers: list[tuple[str, Callable[..., Any], str]] = [
            (name, lambda value, ctx: values.__setitem__(ctx.name, value), "keep")
            for name in dict.fromkeys(read.values())
        ]
        with torch.enable_grad(), attached(model.hook_dict, Request(readers), model.run):
            self.final: Float[Tensor, "batch pos d_model"] = model(tokens, stop_at_layer=model.cfg.n_layers)
        self.tokens = tokens.to(self.final.device)
        refuse_not_finite(self.final, self.tokens)
        self.values = [values[name] for name in read.values()]

    def jacobian_rows(
        self, sources: Bool[Tensor, "text pos"], half: Int[Tensor, "text"], signs: torch.Generator | None, copies: int
    ) -> Iterator[tuple[slice, Float[Tensor, "2 site dim d_model"]]]:
        """(output dimensions, those rows of the Jacobians summed over the sources of each half)."""
        device, d_model = self.final.device, self.final.shape[-1]
        sources, half = sources.to(device), half.to(device)
        targets = self.tokens.mask.unflatten(0, (copies, -1))
        share = torch.stack([sources & (half == h)[:, None] for h in (0, 1)]).to(self.final.dtype)
        for start in range(0, d_model, copies):
            dims = torch.arange(start, min(start + copies, d_model), device=device)
            at = targets[: len(dims)].to(self.final.dtype)
            if signs is not None:
                at = at * (2.0 * torch.randint(2, at.shape, generator=signs) - 1).to(at)
            cotangent = torch.zeros((*targets.shape, d_model), dtype=self.final.dtype, device=device)
            cotangent[torch.arange(len(dims)), :, :, dims] = at
            last = start + copies >= d_model
            found = torch.autograd.grad(
                self.final, self.values, cotangent.flatten(0, 1), retain_graph=not last, materialize_grads=True
            )
            weights = share[:, None].expand(-1, len(dims), -1, -1)
            weights = weights if signs is None else weights * at
            sums = [
                torch.einsum("hctp,ctpd->hcd", weights, gradient.unflatten(0, (copies, -1))[: len(dims)])
                for gradient in found
            ]
            yield slice(start, start + len(dims)), torch.stack(sums, 1).float().cpu()


def _agreement(sums: Float[Tensor, "2 site d_model d_model"], counts: Int[Tensor, "2"]) -> Float[Tensor, "agreed 2"]:
    """Cosine and relative error of the two halves' matrices at each site; empty if one half has no text."""
    if not counts.all():
        return torch.zeros(0, 2)
    first, second = sums.double().flatten(2) / counts[:, None, None]
    whole = sums.double().sum(0).flatten(1) / counts.sum()
    cosine = torch.cosine_similarity(first, second, dim=-1)
    return torch.stack([cosine, (first - second).norm(dim=-1) / whole.norm(dim=-1)], 1).float()


def _layers(names: tuple[str, ...]) -> list[int]:
    """Layer of each site; what enters block 0 counts as -1."""
    return [-1 if (layer := layer_of(name)) is None else layer for name in names]
