"""Train a tuned lens on a store: for each place an affine translator, by KL(final || lens).

1. Texts are divided: those of one group or document stand on one side. Rows that are typical at all places are used;
   position 0, special tokens and outliers, which would decide every sum, are counted and left out.
2. A batch is read once for all places. Of a few rows at a time the final distribution is computed once, and each place is
   compared with it: one product with the unembedding forwards and one backwards for each place and row, which is all that
   this costs. The gradient of the KL with respect to the logits is p - p_final, so nothing else of that size is kept.
3. Adam on W and b; gradients are clipped for each place alone, so that places do not depend on each other. b is trained in
   units of the place's typical size. The learning rate falls linearly to 0.
4. The table: held-out KL of the trained lens and of the logit lens, with intervals over texts.

A run that was stopped goes on from its checkpoint to bit-identical weights (same machine type and number of threads).
"""

import dataclasses
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.lens.batches import text_hash
from interp.lens.division import TuningRows
from interp.lens.intervals import mean_by_text
from interp.lens.places import final_site, lens_sites
from interp.lens.read import log_probabilities, rows_at_once
from interp.lens.source import read_stored, stored_parts, stored_sites
from interp.lens.translate import Translator
from interp.lens.tuned import TunedLens, lens_card, load_tuned_lens
from interp.model import HookedTransformer
from interp.model.norm import accumulate
from interp.store import Batches, Store

logger = logging.getLogger("interp.lens")

_ADAM = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class TunedLensConfig:
    """How to train a tuned lens. With the defaults one pass over 12,000 rows is enough to see every layer's gain."""

    lr: float = 1e-3
    """Learning rate of Adam at the first step; it falls linearly to 0."""
    epochs: int = 1
    """Passes over the rows."""
    batch_size: int = 128
    """Rows in a step."""
    rows: int | None = None
    """Most rows to train on, drawn from those that could be; None for all."""
    weight_decay: float = 0.0
    """Decoupled decay of W and b, towards the logit lens."""
    grad_clip: float = 1.0
    """Largest norm of the gradient of one place's translator."""
    held_out: float = 0.1
    """Share of the texts that only the table sees; texts of one group or document stay together."""
    table_rows: int = 2000
    """Most held-out rows that the table reads."""
    autocast: bool = False
    """Make the products with the unembedding in bfloat16: more than twice as fast on CPUs that have such units. Targets, the
    table and the translators stay in fp32."""
    seed: int = 0
    """Of the division of texts, the order of rows and the bootstrap."""
    checkpoint_every: int = 25
    """Steps between checkpoints, where a path is given."""

    def __post_init__(self) -> None:
        _require("lr", self.lr, 0 < self.lr < math.inf, "above 0")
        for name in ("epochs", "batch_size", "checkpoint_every"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _require("rows", self.rows, self.rows is None or self.rows >= 1, "at least 1")
        _require("table_rows", self.table_rows, self.table_rows >= 2, "at least 2")
        _require("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "at least 0")
        _require("grad_clip", self.grad_clip, self.grad_clip > 0, "above 0")
        _require("held_out", self.held_out, 0 < self.held_out < 1, "a share between 0 and 1")
        _require("seed", self.seed, self.seed >= 0, "at least 0")


def train_tuned_lens(
    model: HookedTransformer,
    store: Store,
    *,
    sites: Any = None,
    config: TunedLensConfig | None = None,
    path: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> TunedLens:
    """Train an affine translator for each place of a store, by KL to the model's own prediction.

    Args:
        model: the model that the store was recorded from.
        store: with the end of the last block and the places to translate, of all tokens or a rule's.
        sites: places to translate; None for the end of every block but the last, and the embedding, as far as the store
            holds them.
        config: every choice of the run; the defaults of `TunedLensConfig` where None.
        path: file of the finished lens; checkpoints lie beside it until then. None keeps nothing.
        resume: go on from what lies at `path`, and return a finished lens of the same run at once; False begins anew and
            writes over it.
        progress: called with (steps done, steps in all) after each step.

    Returns:
        The lens, with its table of held-out KL.

    Raises:
        ValueError: a store of another model or without the final stream, nothing to translate, too few texts or typical
            rows, what lies at `path` is of another run, rows or a loss that are not finite.
    """
    config = config or TunedLensConfig()
    run = _Run(model, store, _sites(model, store, sites), config, None if path is None else Path(path))
    if resume and (finished := run.finished()) is not None:
        return finished
    if resume:
        run.resume()
    while run.step < run.n_steps:
        for batch in run.batches:
            run.train(batch)
            if progress is not None:
                progress(run.step, run.n_steps)
    lens = run.lens()
    if run.path is not None:
        lens.save(run.path)
        run.checkpoint.unlink(missing_ok=True)
    return lens


def _sites(model: HookedTransformer, store: Store, wanted: Any) -> list[str]:
    final = final_site(model.cfg)
    names = [name for name in lens_sites(model, wanted, stored_sites(model, store), None) if name != final]
    if not names:
        raise ValueError(
            f"{store.path} holds nothing to translate: record more places of the stream, for example "
            'sites=["embed", "resid_post:*"]'
        )
    return names


class _Run:
    """One run: translators, optimizer, where it stands, and its files."""

    def __init__(
        self, model: HookedTransformer, store: Store, sites: Sequence[str], config: TunedLensConfig, path: Path | None
    ) -> None:
        self.model, self.store, self.sites, self.config, self.path = model, store, tuple(sites), config, path
        self.parts = {site: stored_parts(model, store, site) for site in (*sites, final_site(model.cfg))}
        stored = dict.fromkeys(part for parts in self.parts.values() for part in parts)
        self.rows = TuningRows.of(
            store,
            list(stored),
            held_out=config.held_out,
            most=(config.rows, config.table_rows),
            seed=config.seed,
        )
        self.batches: Batches[dict[str, Tensor]] = store.batches(
            self.rows.sites,
            size=config.batch_size,
            seed=config.seed,
            typical=False,  # the rows are chosen already
            rows=self.rows.train,
            epochs=config.epochs,
        )
        self.n_steps, self.step = len(self.batches), 0
        n, d = len(sites), model.cfg.d_model
        self.weight = torch.nn.Parameter(torch.zeros(n, d, d, device=model.device))
        self.bias = torch.nn.Parameter(torch.zeros(n, d, device=model.device))
        self.adam = torch.optim.AdamW([self.weight, self.bias], lr=config.lr, weight_decay=config.weight_decay)
        sample = self.rows.train[:: max(1, len(self.rows.train) // 512)]
        self.size = [float(read_stored(model, store, site, sample).pow(2).mean().sqrt()) for site in sites]
        """Root mean square of the rows of each place, the unit of its bias."""
        identity = {
            "config": {key: value for key, value in dataclasses.asdict(config).items() if key != "checkpoint_every"},
            "sites": sites,
            "model": model.fingerprint,
            "texts": store.card["texts"],
            "rows": self.batches.state()["selection"],
        }
        self.identity = json.loads(json.dumps(identity))

    # Steps ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def train(self, batch: Mapping[str, Float[Tensor, "row _"]]) -> None:
        """One step on rows of all places."""
        n, chunk = len(next(iter(batch.values()))), rows_at_once(self.model.cfg.d_vocab)
        self.weight.grad, self.bias.grad = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        total = torch.zeros(len(self.sites), device=self.model.device)
        for start in range(0, n, chunk):
            streams = {site: self._stream(batch, site, slice(start, start + chunk)) for site in self.parts}
            final = log_probabilities(self.model, streams[final_site(self.model.cfg)].to(self.model.dtype))
            target = final.exp()
            certainty = (final * target).sum(-1)
            for index, site in enumerate(self.sites):
                total[index] += self._accumulate(index, streams[site], target, certainty, n)
        if not bool(torch.isfinite(total).all()):
            site = self.sites[int((~torch.isfinite(total)).int().argmax())]
            raise ValueError(f"the loss at {site} is not finite at step {self.step}: lower lr ({self.config.lr:g})")
        self._update()
        self.step += 1
        logger.debug("step %d of %d: mean KL %.3f nats", self.step, self.n_steps, float(total.mean()) / n)
        if self.path is not None and (self.step == self.n_steps or self.step % self.config.checkpoint_every == 0):
            self._save()

    def _stream(self, batch: Mapping[str, Tensor], site: str, rows: slice) -> Float[Tensor, "row d_model"]:
        found = sum(batch[part][rows] for part in self.parts[site])
        assert isinstance(found, Tensor)
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"{site} holds NaN or infinite values: store.verify() lists what is damaged")
        return found.to(self.model.device)

    def _accumulate(
        self,
        index: int,
        x: Float[Tensor, "row d_model"],
        target: Float[Tensor, "row d_vocab"],
        certainty: Float[Tensor, "row"],
        n: int,
    ) -> Tensor:
        """Add the gradient of the mean KL over n rows that these rows make; the sum of their KL."""
        assert self.weight.grad is not None
        assert self.bias.grad is not None
        size = self.size[index]
        translated = x + torch.nn.functional.linear(x, self.weight[index], self.bias[index] * size)
        with torch.enable_grad():
            translated.requires_grad_()
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.config.autocast):
                logits = self.model.unembed_logits(translated.to(self.model.dtype))
        logp = accumulate(logits.detach()).log_softmax(-1)
        divergence = certainty - torch.einsum("rv,rv->r", logp, target)
        slope = logp.exp_().sub_(target).div_(n)
        (gradient,) = torch.autograd.grad(logits, translated, slope.to(logits.dtype))
        self.weight.grad[index].addmm_(gradient.T, x)
        self.bias.grad[index].add_(gradient.sum(0), alpha=size)
        return divergence.sum()

    def _update(self) -> None:
        assert self.weight.grad is not None
        assert self.bias.grad is not None
        norm = (self.weight.grad.pow(2).sum((1, 2)) + self.bias.grad.pow(2).sum(1)).sqrt()
        shrink = (self.config.grad_clip / norm.clamp(min=self.config.grad_clip))[:, None]
        self.weight.grad.mul_(shrink[..., None])
        self.bias.grad.mul_(shrink)
        self.adam.param_groups[0]["lr"] = self.config.lr * (1 - self.step / self.n_steps)
        self.adam.step()

    # Results ----------------------------------------------------------------------------------------------------------

    def lens(self) -> TunedLens:
        """The lens with its table."""
        size = torch.tensor(self.size, device=self.bias.device)[:, None]
        card = lens_card(self.model, seed=self.config.seed, store=str(self.store.path), texts=self.store.card["texts"])
        card |= {"config": dataclasses.asdict(self.config), "run": self.identity, "rows": self.rows.counts()}
        card |= {"text_hashes": self._text_hashes()}
        weight, bias = self.weight.detach().cpu().clone(), (self.bias.detach() * size).cpu()
        bare = TunedLens(self.sites, weight, bias, pd.DataFrame(), card)
        return dataclasses.replace(bare, table=self._table(bare))

    def _text_hashes(self) -> list[str]:
        """Of the texts that were trained on; empty where the store did not keep their tokens."""
        if self.store.card["format"] < 2:
            return []
        texts = np.unique(self.store.tokens["text"].to_numpy()[self.rows.train])
        return sorted({text_hash(self.store.token_ids(int(text)).tolist()) for text in texts})

    def _table(self, lens: TunedLens) -> pd.DataFrame:
        held, groups = self.rows.held, self.rows.held_groups
        tuned, plain = held_out_kl(self.model, self.store, held, self.sites, [lens, None])
        columns: dict[str, Any] = {
            "site": [site_names.short_name(site) for site in self.sites],
            "layer": [-1 if (layer := site_names.layer_of(site)) is None else layer for site in self.sites],
        }
        for name, values in (("kl", tuned), ("logit_lens_kl", plain), ("gain", plain - tuned)):
            found = mean_by_text(values, groups, seed=self.config.seed)
            columns |= dict(zip((name, f"{name}_low", f"{name}_high"), found))
        return pd.DataFrame(columns | {"n": len(held), "n_texts": len(np.unique(groups))})

    # Files ------------------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        """The file to go on from."""
        assert self.path is not None
        return self.path.with_name(f"{self.path.stem}.checkpoint.safetensors")

    def finished(self) -> TunedLens | None:
        """The lens at the path, if there is one. ValueError where it is of another run."""
        if self.path is None or not self.path.exists():
            return None
        lens = load_tuned_lens(self.path)
        self._require_same(lens.card.get("run", {}), self.path)
        return lens

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one. ValueError where it is of another run."""
        if self.path is None or not self.checkpoint.exists():
            return
        tensors, card = artifact.load_artifact(self.checkpoint, "tuned_lens_checkpoint")
        self._require_same(card["run"], self.checkpoint)
        with torch.no_grad():
            for name, parameter in (("weight", self.weight), ("bias", self.bias)):
                parameter.copy_(tensors[name])
                kept = {key: tensors[f"adam.{name}.{key}"] for key in _ADAM}
                self.adam.state[parameter] = kept | {key: kept[key].to(parameter.device) for key in _ADAM[1:]}
        self.step = card["step"]
        if self.step < self.n_steps:
            self.batches.load_state(card["cursor"])
        logger.info("going on at step %d of %d from %s", self.step, self.n_steps, self.checkpoint)

    def _save(self) -> None:
        tensors: dict[str, Tensor] = {"weight": self.weight, "bias": self.bias}
        for name, parameter in list(tensors.items()):
            tensors |= {f"adam.{name}.{key}": self.adam.state[parameter][key] for key in _ADAM}
        card = {"run": self.identity, "step": self.step, "cursor": self.batches.state()}
        artifact.save_artifact(self.checkpoint, "tuned_lens_checkpoint", tensors, card)

    def _require_same(self, theirs: Mapping[str, Any], path: Path) -> None:
        differs = [name for name, ours in self.identity.items() if theirs.get(name) != ours]
        if differs:
            raise ValueError(
                f"{path} is of another run ({', '.join(differs)} differ): choose another path, or resume=False to write over it"
            )


@torch.inference_mode()
def held_out_kl(
    model: HookedTransformer,
    store: Store,
    rows: Int[np.ndarray, "row"],
    sites: Sequence[str],
    lenses: Sequence[Translator | None],
) -> Float[np.ndarray, "lens site row"]:
    """KL(final || lens) in nats of each lens (None: the logit lens), place and row of a store; `rows` ascend."""
    found = np.empty((len(lenses), len(sites), len(rows)))
    step = rows_at_once(model.cfg.d_vocab)
    for start in range(0, len(rows), step):
        index = rows[start : start + step]

        def stream(site: str, index: Int[np.ndarray, "part"] = index) -> Tensor:
            return read_stored(model, store, site, index).to(model.device, model.dtype)

        final = log_probabilities(model, stream(final_site(model.cfg)))
        target = final.exp()
        for at, site in enumerate(sites):
            own = stream(site)
            for number, lens in enumerate(lenses):
                logp = log_probabilities(model, own if lens is None else lens.translate(own, site))
                divergence = (final - logp).mul_(target).sum(-1).clamp(min=0.0)
                found[number, at, start : start + step] = divergence.cpu().numpy()
    return found


def _require(name: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise ValueError(f"{name} must be {rule}, got {value!r}")
