"""What the model does when an SAE stands in for the activations of its site.

Each batch of texts runs four times: as it is, with reconstructions in place of activations, with zeros, and with the
mean activation. Rows that are not typical (the first token, special tokens, outliers) keep their own activation in all
four: without its sink any model breaks, and beside that everything looks good.

    loss recovered = (loss_ablated - loss_sae) / (loss_ablated - loss_clean)

On the residual stream an ablation costs so much that this share flatters; so the change of the loss in nats and
KL(clean || SAE) stand beside it.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from interp import sites
from interp.artifact import write_json
from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.sae.evaluate import METRIC_VERSION
from interp.sae.model import SAE
from interp.store import OUTLIER_FACTOR
from interp.tokens import Tokens


@dataclass(frozen=True)
class SpliceReport:
    """Next-token loss with and without the SAE in place. Losses in nats per predicted token."""

    loss_clean: float
    loss_sae: float
    loss_zero: float
    loss_mean: float
    delta_loss: float
    """loss_sae - loss_clean."""
    kl: float
    """KL(clean || SAE) of the next-token distributions, mean over predicted tokens."""
    recovered_zero: float | None
    """Share of the loss that replacing by zeros costs and the SAE does not; None where zeros cost nothing."""
    recovered_mean: float | None
    """The same against replacing by the mean activation of these texts."""
    n_texts: int
    n_tokens: int
    """Predicted tokens."""
    n_replaced: int
    """Rows that were replaced."""
    n_kept: int
    """Rows that kept their own activation, for they are not typical."""
    site: str
    metric_version: str = METRIC_VERSION

    def to_frame(self) -> pd.DataFrame:
        """One row, a column for each figure."""
        return pd.DataFrame([dataclasses.asdict(self)])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figures as JSON."""
        return write_json(path, {"kind": "splice_report", **dataclasses.asdict(self)})


@torch.inference_mode()
def evaluate_in_model(
    sae: SAE, model: HookedTransformer, texts: Sequence[str], *, site: str | None = None, batch_size: int = 8
) -> SpliceReport:
    """Run texts through the model with the SAE in place of the activations of its site.

    Args:
        sae: the SAE; its card's `typical_norm` decides what an outlier is, or else the median norm of these texts.
        model: the model that it was trained on.
        texts: texts that training did not see; each fits the context.
        site: full name or shorthand, where it is not the one in the card.
        batch_size: texts at a time.

    Raises:
        ValueError: no text, no site, a site of another width, no typical row, or nothing to predict.
    """
    if isinstance(texts, str) or len(texts) == 0:
        raise ValueError(f"give a list of texts, at least one; got {texts!r}")
    wanted = site or sae.site
    if wanted is None:
        raise ValueError("the SAE does not say its site: give site=...")
    refuse_encoder(model.cfg, "the change of a next-token loss")
    names = model.expand_sites([wanted])
    if len(names) != 1:
        raise ValueError(f"{wanted!r} names {len(names)} sites; an SAE stands in for one, for example {names[0]!r}")
    batches = [list(texts[at : at + batch_size]) for at in range(0, len(texts), batch_size)]
    return _Splice(sae, model, names[0], batches).report()


class _Splice:
    """The passes, and what they have in common."""

    def __init__(self, sae: SAE, model: HookedTransformer, site: str, batches: list[list[str]]) -> None:
        self.sae, self.model, self.site = sae, model, site
        self.batches = [model.tokenize(batch) for batch in batches]
        special = sorted(model.tokenizer.special_ids) if model.tokenizer is not None else []
        self.special = torch.tensor(special, dtype=torch.int64, device=model.device)
        self.typical_norm = sae.card.get("typical_norm") or self._median_norm()
        self.n_replaced, self.mean = self._mean_row()

    def report(self) -> SpliceReport:
        replacements: dict[str, Callable[[Tensor], Tensor]] = {
            "sae": lambda rows: self.sae(rows).to(rows.dtype),
            "zero": torch.zeros_like,
            "mean": lambda rows: self.mean.to(rows.dtype).expand_as(rows),
        }
        loss = dict.fromkeys(("clean", *replacements), 0.0)
        kl, n_tokens = 0.0, 0
        for tokens in self.batches:
            clean = _log_probs(self.model(tokens))
            real = (tokens.mask[:, 1:] & tokens.mask[:, :-1]).nonzero(as_tuple=True)
            n_tokens += len(real[0])
            loss["clean"] += _summed_loss(clean, tokens, real)
            for name, replacement in replacements.items():
                with self.model.hooks({self.site: self._replace(tokens, replacement)}):
                    spliced = _log_probs(self.model(tokens))
                loss[name] += _summed_loss(spliced, tokens, real)
                if name == "sae":
                    kl += functional.kl_div(spliced[real], clean[real], log_target=True, reduction="sum").item()
        if n_tokens == 0:
            raise ValueError("these texts have one token each: nothing is predicted in them")
        return self._report({name: total / n_tokens for name, total in loss.items()}, kl / n_tokens, n_tokens)

    def _report(self, loss: dict[str, float], kl: float, n_tokens: int) -> SpliceReport:
        cost = {name: loss[name] - loss["clean"] for name in loss}
        return SpliceReport(
            loss_clean=loss["clean"],
            loss_sae=loss["sae"],
            loss_zero=loss["zero"],
            loss_mean=loss["mean"],
            delta_loss=cost["sae"],
            kl=kl,
            recovered_zero=(cost["zero"] - cost["sae"]) / cost["zero"] if cost["zero"] > 0 else None,
            recovered_mean=(cost["mean"] - cost["sae"]) / cost["mean"] if cost["mean"] > 0 else None,
            n_texts=sum(len(tokens) for tokens in self.batches),
            n_tokens=n_tokens,
            n_replaced=self.n_replaced,
            n_kept=sum(int(tokens.mask.sum()) for tokens in self.batches) - self.n_replaced,
            site=self.site,
        )

    def _replace(self, tokens: Tokens, new: Callable[[Tensor], Tensor]) -> Callable[[Tensor, HookContext], Tensor]:
        def hook(value: Tensor, _ctx: HookContext) -> Tensor:
            rows = value.reshape(*value.shape[:2], -1)
            chosen = self._typical(rows, tokens)
            rows[chosen] = new(rows[chosen])
            return rows.view(value.shape)

        return hook

    def _typical(self, rows: Float[Tensor, "batch pos d_model"], tokens: Tokens) -> Bool[Tensor, "batch pos"]:
        return self._ordinary(tokens) & (rows.norm(dim=-1) <= OUTLIER_FACTOR * self.typical_norm)

    def _ordinary(self, tokens: Tokens) -> Bool[Tensor, "batch pos"]:
        return tokens.mask & (tokens.positions > 0) & ~torch.isin(tokens.ids, self.special)

    def _rows(self) -> Iterator[tuple[Float[Tensor, "batch pos d_model"], Tokens]]:
        """The site's rows, batch by batch, from passes that stop behind it."""
        layer = sites.layer_of(self.site)
        for tokens in self.batches:
            stop = None if layer is None else layer + 1
            value = self.model.run_with_cache(tokens, [self.site], stop_at_layer=stop)[1][self.site].flatten(2).float()
            if value.shape[2] != self.sae.d_model:
                raise ValueError(
                    f"{self.site} has width {value.shape[2]}, the SAE reads {self.sae.d_model}: another site?"
                )
            yield value, tokens

    def _median_norm(self) -> float:
        norms = torch.cat([rows[self._ordinary(tokens)].norm(dim=-1) for rows, tokens in self._rows()])
        return norms.median().item() if len(norms) else 0.0

    def _mean_row(self) -> tuple[int, Float[Tensor, " d_model"]]:
        total, n_rows = torch.zeros(self.sae.d_model, dtype=torch.float64, device=self.model.device), 0
        for rows, tokens in self._rows():
            chosen = rows[self._typical(rows, tokens)]
            total, n_rows = total + chosen.double().sum(0), n_rows + len(chosen)
        if n_rows == 0:
            raise ValueError(
                "no row of these texts is typical (each is first, special or an outlier): give longer texts"
            )
        return n_rows, (total / n_rows).float()


def _log_probs(logits: Any) -> Float[Tensor, "batch pos d_vocab"]:
    return logits[:, :-1].float().log_softmax(-1)


def _summed_loss(log_probs: Tensor, tokens: Tokens, real: Any) -> float:
    return -log_probs[real].gather(1, tokens.ids[:, 1:][real][:, None]).double().sum().item()
