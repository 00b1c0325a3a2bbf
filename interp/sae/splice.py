"""What the model does when an SAE stands in for the activations that it writes.

1. Run the texts as they are; keep what the SAE reads and the values that it would replace.
2. Run them again with its reconstructions in place of those values; with zeros; and with the mean value.
3. Compare the losses and the distributions of the next token, text by text: intervals are drawn over texts.

    loss recovered = (loss_ablated - loss_sae) / (loss_ablated - loss_clean)
    KL score       = 1 - KL(clean || SAE) / KL(clean || zero)

Rows that are not typical at one of the SAE's sites (the first token, special tokens, outliers) keep their own value in all
runs: without its sink any model breaks, and beside that everything looks good. The figures with all rows replaced stand
beside them (`_all`). On the residual stream an ablation costs so much that the shares flatter; so the change of the loss in
nats and the KL are there as they are.

A transcoder replaces the value that it writes, computed from what it reads in the clean run; a crosscoder replaces all its
sites at once, each by the reconstruction of the clean run.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn import functional

from interp import sites as site_names
from interp.artifact import write_json
from interp.bootstrap import ratio_interval
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.model.splicing import check_model
from interp.sae.evaluate import METRIC_VERSION, read_figures
from interp.sae.model import SAE
from interp.sae.roles import known_targets
from interp.sae.tokenmask import ordinary_tokens, typical_tokens
from interp.tokens import Tokens

RUNS = ("sae", "zero", "mean")
"""What stands in for the value."""


@dataclass(frozen=True)
class SpliceReport:
    """Next-token loss with and without the SAE in place. Losses and KL in nats per predicted token.

    `_low` and `_high` are ends of a 95 % bootstrap interval over texts, None for a single text. `_all` marks figures with
    every row replaced, those that are not typical too.
    """

    loss_clean: float
    loss_sae: float
    loss_zero: float
    loss_mean: float
    delta_loss: float
    """loss_sae - loss_clean."""
    delta_loss_low: float | None
    delta_loss_high: float | None
    kl: float
    """KL(clean || SAE) of the next-token distributions, mean over predicted tokens."""
    kl_low: float | None
    kl_high: float | None
    kl_zero: float
    """KL(clean || zero)."""
    kl_score: float | None
    """1 - kl / kl_zero; None where zeros change nothing."""
    recovered_zero: float | None
    """Share of the loss that replacing by zeros costs and the SAE does not; None where zeros cost nothing."""
    recovered_mean: float | None
    """The same against replacing by the mean value of these texts."""
    n_texts: int
    n_tokens: int
    """Predicted tokens."""
    n_replaced: int
    """Rows that were replaced."""
    n_kept: int
    """Rows that kept their own value, for they are not typical."""
    loss_sae_all: float
    loss_zero_all: float
    loss_mean_all: float
    delta_loss_all: float
    delta_loss_low_all: float | None
    delta_loss_high_all: float | None
    kl_all: float
    kl_low_all: float | None
    kl_high_all: float | None
    kl_zero_all: float
    kl_score_all: float | None
    recovered_zero_all: float | None
    recovered_mean_all: float | None
    site: str
    """What the SAE reads; several are joined by a comma."""
    target: str
    """What it writes: where the values were replaced."""
    metric_version: str = METRIC_VERSION

    def to_frame(self) -> pd.DataFrame:
        """One row, a column for each figure."""
        return pd.DataFrame([dataclasses.asdict(self)])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figures as JSON; `load_splice_report` reads it."""
        return write_json(path, {"kind": "splice_report", **dataclasses.asdict(self)})


def load_splice_report(path: str | os.PathLike[str]) -> SpliceReport:
    """Read what `SpliceReport.save` wrote. ValueError for another file, or figures of another metric version."""
    return SpliceReport(**read_figures(path, "splice_report", SpliceReport))


@torch.inference_mode()
def evaluate_in_model(
    sae: SAE,
    model: HookedTransformer,
    texts: Sequence[str],
    *,
    site: str | None = None,
    target: str | None = None,
    batch_size: int = 8,
    seed: int = 0,
) -> SpliceReport:
    """Run texts through the model with the SAE in place of the values that it writes.

    Args:
        sae: an SAE, transcoder or crosscoder; the typical norms in its card decide what an outlier is, at sites of which
            it has none the median norms of these texts.
        model: the model that it was trained on.
        texts: texts that training did not see; each fits the context.
        site: full name or shorthand of what it reads, and without `target` writes, where the card says otherwise.
        target: what a transcoder writes; needed with `site`.
        batch_size: texts at a time.
        seed: of the bootstrap over texts.

    Raises:
        ValueError: no text, no site, a site of another width, another model's SAE, no typical row, or nothing to predict.
    """
    if isinstance(texts, str) or len(texts) == 0:
        raise ValueError(f"give a list of texts, at least one; got {texts!r}")
    if target is not None and site is None:
        raise ValueError("target= says what a transcoder writes: give site=, what it reads, as well")
    if site is not None and target is None and sae.is_transcoder:
        raise ValueError(f"site={site!r} says what a transcoder reads: give target= as well, what it writes")
    sites = sae.sites if site is None else (site,)
    targets = (target,) if target is not None else known_targets(sae) if site is None else sites
    if not sites:
        raise ValueError("the SAE does not say its site: give site=...")
    refuse_encoder(model.cfg, "the change of a next-token loss")
    check_model(model, [sae])
    read, written = ([_one_site(model, name) for name in names] for names in (sites, targets))
    batches = [list(texts[at : at + batch_size]) for at in range(0, len(texts), batch_size)]
    return _Evaluation(sae, model, read, written, batches).report(seed)


def _one_site(model: HookedTransformer, wanted: str) -> str:
    names = model.expand_sites([wanted])
    if len(names) != 1:
        raise ValueError(f"{wanted!r} names {len(names)} sites; an SAE stands in for one, for example {names[0]!r}")
    return names[0]


@dataclass(frozen=True, eq=False)
class _Batch:
    """What the clean run of some texts says."""

    tokens: Tokens
    values: Mapping[str, Float[Tensor, "batch pos _"]]
    """The sites, heads joined."""
    typical: Bool[Tensor, "batch pos"]
    log_probs: Float[Tensor, "batch next d_vocab"]
    """Of the next token, from the second position on."""


class _Evaluation:
    """The passes, and what they have in common."""

    def __init__(
        self, sae: SAE, model: HookedTransformer, sites: list[str], targets: list[str], batches: list[list[str]]
    ) -> None:
        self.sae, self.model, self.sites, self.targets = sae, model, sites, targets
        self.batches = [model.tokenize(batch) for batch in batches]
        self.typical_norms = self._typical_norms()
        self.n_rows: dict[str, int] = {}
        self.means = self._mean_rows()

    def report(self, seed: int) -> SpliceReport:
        """All figures."""
        per_text: dict[str, list[np.ndarray]] = {}
        for tokens in self.batches:
            batch = self._clean(tokens)
            for name, sums in self._measure(batch).items():
                per_text.setdefault(name, []).append(sums)
        sums = {name: np.concatenate(parts) for name, parts in per_text.items()}
        n_tokens = sums.pop("n_tokens")
        if n_tokens.sum() == 0:
            raise ValueError("these texts have one token each: nothing is predicted in them")
        figures: dict[str, Any] = {"loss_clean": _ratio(sums["loss_clean"], n_tokens)}
        for rows in ("", "_all"):
            figures |= _figures(sums, n_tokens, rows, seed)
        return SpliceReport(
            **figures,
            n_texts=len(n_tokens),
            n_tokens=int(n_tokens.sum()),
            n_replaced=self.n_rows[""],
            n_kept=self.n_rows["_all"] - self.n_rows[""],
            site=", ".join(self.sites),
            target=", ".join(self.targets),
        )

    def _measure(self, batch: _Batch) -> dict[str, Float64[np.ndarray, " text"]]:
        """Sums over each text's predicted tokens: losses and KL of each run, and how many tokens there are."""
        tokens, clean = batch.tokens, batch.log_probs
        real = tokens.mask[:, 1:] & tokens.mask[:, :-1]
        found = {"n_tokens": real.sum(1).double(), "loss_clean": _loss(clean, tokens, real)}
        for rows, chosen in (("", batch.typical), ("_all", tokens.mask)):
            for name in RUNS:
                with self.model.hooks(self._replacements(batch, name, rows, chosen)):
                    spliced = _log_probs(self.model(tokens))
                found[f"loss_{name}{rows}"] = _loss(spliced, tokens, real)
                if name != "mean":
                    kl = functional.kl_div(spliced, clean, log_target=True, reduction="none").sum(-1)
                    found[f"kl_{name}{rows}"] = kl.double().masked_fill(~real, 0).sum(1)
        return {name: value.cpu().numpy() for name, value in found.items()}

    def _replacements(
        self, batch: _Batch, name: str, rows: str, chosen: Bool[Tensor, "batch pos"]
    ) -> dict[Any, Callable[[Tensor, HookContext], Tensor]]:
        """A function for each target that puts the run's value in where `chosen`."""
        if name == "sae":
            widths = [batch.values[target].shape[2] for target in self.targets]
            parts = self.sae(self._read(batch.values)).split(widths, -1)
            new = dict(zip(self.targets, parts, strict=True))
        else:
            means = self.means[rows]
            new = {target: torch.zeros_like(mean) if name == "zero" else mean for target, mean in means.items()}

        def replace(value: Tensor, ctx: HookContext) -> Tensor:
            flat = value.flatten(2)
            return torch.where(chosen[..., None], new[ctx.name].to(value.dtype), flat).view(value.shape)

        return dict.fromkeys(self.targets, replace)

    def _read(self, values: Mapping[str, Tensor]) -> Float[Tensor, "batch pos d_in"]:
        return torch.cat([values[site] for site in self.sites], -1)

    def _clean(self, tokens: Tokens) -> _Batch:
        logits, cache = self.model.run_with_cache(tokens, [*self.sites, *self.targets])
        values = {name: value.flatten(2) for name, value in cache.items()}
        return _Batch(tokens, values, self._typical(values, tokens), _log_probs(logits))

    def _values(self) -> Iterator[tuple[dict[str, Float[Tensor, "batch pos _"]], Tokens]]:
        """The values of all sites, batch by batch, from passes that stop behind the last one."""
        names = [*dict.fromkeys([*self.sites, *self.targets])]
        final = any(name.startswith("ln_final") for name in names)
        last = max(-1 if (layer := site_names.layer_of(name)) is None else layer for name in names)
        for tokens in self.batches:
            _, cache = self.model.run_with_cache(tokens, names, stop_at_layer=None if final else last + 1)
            values = {name: cache[name].flatten(2) for name in names}
            self._check_widths(values)
            yield values, tokens

    def _check_widths(self, values: Mapping[str, Tensor]) -> None:
        for does, names, total in (("reads", self.sites, self.sae.d_in), ("writes", self.targets, self.sae.d_out)):
            width = sum(values[name].shape[2] for name in names)
            if width != total:
                raise ValueError(f"{', '.join(names)} has width {width}, the SAE {does} {total}: another site?")

    def _typical(self, values: Mapping[str, Tensor], tokens: Tokens) -> Bool[Tensor, "batch pos"]:
        return typical_tokens(self.model, tokens, values, self.typical_norms)

    def _typical_norms(self) -> dict[str, float]:
        names = [*dict.fromkeys([*self.sites, *self.targets])]
        known = dict(self.sae.card.get("typical_norms") or {})
        if self.sae.site in names and self.sae.card.get("typical_norm"):
            known.setdefault(self.sae.site, self.sae.card["typical_norm"])
        missing = [name for name in names if not known.get(name)]
        norms: dict[str, list[Tensor]] = {name: [] for name in missing}
        for values, tokens in self._values() if missing else ():
            for name in missing:
                norms[name].append(values[name][ordinary_tokens(self.model, tokens)].float().norm(dim=-1))
        medians = {name: torch.cat(parts) for name, parts in norms.items()}
        known |= {name: each.median().item() if len(each) else 0.0 for name, each in medians.items()}
        return {name: known[name] for name in names}

    def _mean_rows(self) -> dict[str, dict[str, Float[Tensor, " width"]]]:
        """The mean value of each target over typical rows and over all, which are counted here."""
        sums: dict[str, dict[str, Tensor]] = {"": {}, "_all": {}}
        self.n_rows = {"": 0, "_all": 0}
        for values, tokens in self._values():
            for rows, chosen in (("", self._typical(values, tokens)), ("_all", tokens.mask)):
                self.n_rows[rows] += int(chosen.sum())
                for name in self.targets:
                    sums[rows][name] = values[name][chosen].double().sum(0) + sums[rows].get(name, 0.0)
        if self.n_rows[""] == 0:
            raise ValueError(
                "no row of these texts is typical (each is first, special or an outlier): give longer texts"
            )
        return {
            rows: {name: (total / self.n_rows[rows]).float() for name, total in by_name.items()}
            for rows, by_name in sums.items()
        }


def _log_probs(logits: Any) -> Float[Tensor, "batch next d_vocab"]:
    return logits[:, :-1].float().log_softmax(-1)


def _loss(log_probs: Tensor, tokens: Tokens, real: Bool[Tensor, "batch next"]) -> Float64[Tensor, " text"]:
    """Summed loss of each text."""
    losses = -log_probs.gather(2, tokens.ids[:, 1:, None])[..., 0].double()
    return losses.masked_fill(~real, 0).sum(1)


def _ratio(sums: Float64[np.ndarray, " text"], n_tokens: Float64[np.ndarray, " text"]) -> float:
    return float(sums.sum() / n_tokens.sum())


def _figures(
    sums: Mapping[str, np.ndarray], n_tokens: Float64[np.ndarray, " text"], rows: str, seed: int
) -> dict[str, float | None]:
    """The figures of one choice of rows, `rows` appended to their names."""
    mean = {name: _ratio(sums[f"{name}{rows}"], n_tokens) for name in ("loss_sae", "loss_zero", "loss_mean")}
    kl, kl_zero = (_ratio(sums[f"{name}{rows}"], n_tokens) for name in ("kl_sae", "kl_zero"))
    clean = _ratio(sums["loss_clean"], n_tokens)
    cost = {name: mean[f"loss_{name}"] - clean for name in RUNS}
    found: dict[str, float | None] = {
        **mean,
        "delta_loss": cost["sae"],
        "kl": kl,
        "kl_zero": kl_zero,
        "kl_score": 1 - kl / kl_zero if kl_zero > 0 else None,
        "recovered_zero": (cost["zero"] - cost["sae"]) / cost["zero"] if cost["zero"] > 0 else None,
        "recovered_mean": (cost["mean"] - cost["sae"]) / cost["mean"] if cost["mean"] > 0 else None,
    }
    shown = {"delta_loss": sums[f"loss_sae{rows}"] - sums["loss_clean"], "kl": sums[f"kl_sae{rows}"]}
    low, high = ratio_interval(np.stack(list(shown.values())), n_tokens, seed)
    low[1] = max(low[1], 0.0)  # a mean of KLs; NaN stays
    for line, name in enumerate(shown):
        for end, ends in (("low", low), ("high", high)):
            found[f"{name}_{end}"] = None if np.isnan(ends[line]) else float(ends[line])
    return {f"{name}{rows}": value for name, value in found.items()}
