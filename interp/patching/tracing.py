"""Causal tracing: where a fact comes back into a run that lost its subject (Meng et al. 2022, arXiv 2202.05262).

1. A clean run gives the answer's probability.
2. Corrupted runs add Gaussian noise to the embeddings of the subject's tokens, each with a draw of its own.
3. One value of a corrupted run - a site, a layer (or a window of layers around it), a position - is put back to its clean
   value. What the answer gains over the corrupted run is the indirect effect of that value.
4. Restored runs start at the first restored layer, from the stream that the corrupted run had there. Before the subject
   nothing was lost in a causal model, so nothing runs there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp.bootstrap import mean_interval
from interp.hooks import HookContext
from interp.intervene import Noise
from interp.model import ActivationCache, HookedTransformer
from interp.model.vocabulary import token_id, token_labels
from interp.patching.sweep import within
from interp.plot.tracing import trace_grid
from interp.rerun import BaseRun, base_run
from interp.tokens import Tokens

SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
MEASURES = ("probability", "logit")
FLOOR = 1e-6
"""Smallest drop of the measure that effects are divided by."""


@dataclass(frozen=True, eq=False)
class CausalTrace:
    """The answer's probability and logit after each restoration, for every draw of the noise."""

    places: pd.DataFrame
    """A row per restoration: site, layer, pos."""
    probability: Float[Tensor, "place draw"]
    """Of the answer, fp64."""
    logit: Float[Tensor, "place draw"]
    """Of the answer, fp64."""
    clean: Float[Tensor, "measure"]
    """Probability and logit in the clean run."""
    corrupted: Float[Tensor, "measure draw"]
    """Probability and logit in each corrupted run."""
    labels: tuple[str, ...]
    """Tokens by position."""
    card: dict[str, Any]
    """Provenance: prompt, subject span, answer, noise, window, seed, model."""

    def to_frame(self, measure: str | Any = "probability", *, normalised: bool = False) -> pd.DataFrame:
        """A row per restoration: site, layer, pos, token, subject, effect, low, high (95 % over draws; NaN for one), n.

        Args:
            measure: "probability" or "logit" of the answer.
            normalised: as a share of the mean drop from the clean to the corrupted runs: 1 brings all of it back.
        """
        if measure not in MEASURES:
            raise ValueError(f"measure={measure!r} is unknown; choose from {', '.join(MEASURES)}")
        which = MEASURES.index(measure)
        raw = self.probability if which == 0 else self.logit
        effects = (raw - self.corrupted[which]).numpy()
        if normalised:
            drop = float(self.clean[which] - self.corrupted[which].mean())
            if abs(drop) < FLOOR:
                raise ValueError(
                    f"the noise moved the {measure} by {drop:.2g} only, too little to divide by: raise scale="
                )
            effects = effects / drop
        frame, (start, stop) = self.places.copy(), self.card["subject_span"]
        frame["token"] = [self.labels[pos] for pos in frame["pos"]]
        frame["subject"] = [start <= pos < stop for pos in frame["pos"]]
        frame["effect"], (frame["low"], frame["high"]) = effects.mean(1), mean_interval(effects, self.card["seed"])
        return frame.assign(n=effects.shape[1])

    def plot(
        self, site: str | Any = None, measure: str | Any = "probability", *, normalised: bool = False
    ) -> alt.Chart:
        """Positions down, layers across, for one site (None: the first)."""
        frame, known = self.to_frame(measure, normalised=normalised), list(dict.fromkeys(self.places["site"]))
        site = known[0] if site is None else site
        if site not in known:
            raise ValueError(f"site={site!r} was not traced; choose from {', '.join(known)}")
        return trace_grid(frame.loc[frame["site"] == site], f"indirect effect of {site} ({measure})")

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_causal_trace` reads it."""
        tensors = {n: getattr(self, n) for n in ("probability", "logit", "clean", "corrupted")}
        places = {"columns": list(self.places.columns), "data": self.places.to_numpy(object).tolist()}
        return artifact.save_artifact(
            Path(path), "causal trace", tensors, self.card | {"places": places, "labels": list(self.labels)}
        )


def load_causal_trace(path: str | Path) -> CausalTrace:
    """Read what `CausalTrace.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "causal trace")
    places, labels = pd.DataFrame(**card.pop("places")), tuple(card.pop("labels"))
    return CausalTrace(places, labels=labels, card=card, **tensors)


def causal_trace(
    model: HookedTransformer,
    prompt: Any,
    subject: Any,
    answer: Any = None,
    *,
    n_noise: int | Any = 10,
    scale: float | Any = 3.0,
    sites: Sequence[str] | Any = ("resid_post", "attn_out", "mlp_out"),
    window: int | Any = 1,
    layers: Iterable[int] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CausalTrace:
    """Restore each layer and position in runs whose subject is noise.

    Args:
        model: any loaded model that predicts the next token.
        prompt: one text, or what `model.tokenize` takes for one.
        subject: the words of the prompt (their last occurrence), or their positions (start, stop).
        answer: a text of one token, or an id; None for the clean run's top token.
        n_noise: draws of the noise.
        scale: of the noise, in standard deviations of the token embeddings.
        sites: of `SITES`; a model without one refuses it.
        window: layers restored at once around each, for attn_out and mlp_out (the paper takes 10); the stream is restored
            at one layer, since a later one overwrites it.
        layers: some layers; negatives count from the end, None for all.
        seed: of the noise and of the bootstrap.
        progress: fn(restorations done, in all).

    Raises:
        ValueError: several prompts, a subject that the prompt does not hold, an encoder, an unknown site or layer.
    """
    if not model.cfg.causal:
        raise ValueError(f"{model.cfg.name} does not predict the next token, so there is no answer to trace")
    for name, given, least in (("n_noise", n_noise, 1), ("window", window, 1)):
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            raise ValueError(f"{name} must be an integer from {least} up, got {given!r}")
    wanted = [sites] if isinstance(sites, str) else list(sites)
    for site in wanted:
        if site not in SITES:
            raise ValueError(f"site {site!r} is unknown; choose from {', '.join(SITES)}")
    tokens = model.tokenize(prompt)
    if len(tokens) != 1:
        raise ValueError(f"causal_trace takes one prompt, got {len(tokens)}: call it for each")
    tokens = Tokens(tokens.ids[tokens.mask][None], tokens.mask[tokens.mask][None])
    start, stop = subject_span(model, tokens, subject)
    chosen_layers = within(layers, model.cfg.n_layers, "layer")
    names = [model.expand_sites(f"{site}:{layer}")[0] for site in wanted for layer in range(model.cfg.n_layers)]
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names)
        assert logits is not None
        clean = logits[0, -1].as_subclass(Tensor).double()
    target = int(clean.argmax()) if answer is None else token_id(model, answer, "answer")
    deviation = float(model.embed.weight.float().std()) * (model.cfg.embed_scale or 1.0)
    noise = Noise(positions=range(start, stop), scale=float(scale) * deviation, seed=seed)
    rows = Tokens(tokens.ids.repeat(n_noise, 1), tokens.mask.repeat(n_noise, 1))
    with model.intervene(noise):
        base = base_run(model, rows)
    places = pd.DataFrame(
        [(s, layer, pos) for s in wanted for layer in chosen_layers for pos in range(tokens.ids.shape[1])],
        columns=["site", "layer", "pos"],
    )
    corrupted = read_answer(base.last_logits(base.final[None]), target)[:, 0]
    found = corrupted[:, None].repeat(1, len(places), 1)
    for key, group in places[places["pos"] >= start].groupby(["site", "layer"], sort=False):
        site, layer = _pair(key)
        around = _around(int(layer), window if site.endswith("_out") else 1, model.cfg.n_layers)
        for part in np.array_split(group.index.to_numpy(copy=True), -(-len(group) // base.copies_at_once())):
            where = places["pos"].to_numpy()[part].tolist()
            found[:, part] = read_answer(_restored(base, cache, str(site), around, where), target)
            if progress is not None:
                progress(int(part[-1]) + 1, len(places))
    card = artifact.provenance(
        analysis="causal tracing", model=model.cfg.name, fingerprint=model.fingerprint, ids=tokens.ids[0].tolist(),
        subject_span=[start, stop], answer=target, noise=noise.describe(), scale=float(scale), deviation=deviation,
        n_noise=n_noise, sites=wanted, window=window, seed=seed,
    )  # fmt: skip
    return CausalTrace(
        places, found[0], found[1], read_answer(clean[None, None], target)[:, 0, 0], corrupted,
        tuple(token_labels(model, tokens.row(0))), card,
    )  # fmt: skip


def _pair(key: Any) -> tuple[str, int]:
    return str(key[0]), int(key[1])


def _around(layer: int, window: int, n_layers: int) -> range:
    """The layers restored with one, cut at the ends of the model."""
    first = layer - window // 2
    return range(max(0, first), min(n_layers, first + window))


def _restored(
    base: BaseRun, cache: ActivationCache, site: str, layers: range, positions: list[int]
) -> Float[Tensor, "copies draw d_vocab"]:
    """Logits at the last token of runs that restore one position each, in all these layers."""

    def restore(value: Tensor, ctx: HookContext) -> Tensor:
        parts = value.unflatten(0, (len(positions), -1))
        for copy, pos in enumerate(positions):
            parts[copy, :, pos] = cache[ctx.name][0, pos].to(value)
        return value

    hooks = {base.model.expand_sites(f"{site}:{layer}")[0]: restore for layer in layers}
    return base.last_logits(base.stream(layers[0], hooks, len(positions)))


def read_answer(logits: Float[Tensor, "*rows d_vocab"], answer: int) -> Float[Tensor, "measure *rows"]:
    """Probability and logit of a token, in fp64 on the CPU."""
    wide = logits.as_subclass(Tensor).double()
    return torch.stack([wide.softmax(-1)[..., answer], wide[..., answer]]).cpu()


def subject_span(model: HookedTransformer, tokens: Tokens, subject: Any) -> tuple[int, int]:
    """Positions (start, stop) of the tokens that hold the subject, where one text is given."""
    n = int(tokens.lengths[0])
    if not isinstance(subject, str):
        ends = list(subject) if isinstance(subject, tuple | list) else []
        if len(ends) != 2 or not all(isinstance(e, int) for e in ends) or not 0 <= ends[0] < ends[1] <= n:
            raise ValueError(f"subject must be words or positions (start, stop) in 0..{n}, got {subject!r}")
        return ends[0], ends[1]
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer: give the subject's positions (start, stop)")
    texts = [view.text for view in model.tokenizer.views(tokens.row(0))]
    at = "".join(texts).rfind(subject) if subject else -1
    if at < 0:
        raise ValueError(f"the prompt does not hold the subject {subject!r}; it reads {''.join(texts)!r}")
    ends = np.cumsum([len(text) for text in texts])
    begins = ends - [len(text) for text in texts]
    inside = np.flatnonzero((begins < at + len(subject)) & (ends > at))
    return int(inside[0]), int(inside[-1]) + 1
