"""`steering_vector`: a direction from contrast pairs, from a store of labelled texts, or from a fitted probe."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.dataset import ContrastPair
from interp.intervene import special_tokens, typical_rows
from interp.model import HookedTransformer
from interp.probe.value import Probe
from interp.steering.probed import vector_of_probe
from interp.steering.vector import SteeringVector
from interp.store import Store
from interp.tokens import Tokens

TOKENS = ("response_mean", "last")
SITE = "resid_post:-1"
"""Where a vector is fitted if nothing is said."""


def steering_vector(
    data: object,
    *,
    model: HookedTransformer,
    method: str = "mean_difference",
    site: str | None = None,
    tokens: str | None = None,
    batch_size: int = 32,
    reference: object = None,
) -> SteeringVector:
    """Fit a direction from contrasts, or take that of a probe.

    Args:
        data: ContrastPairs, (positive, negative) texts, mappings with these keys, a store with labels 1 and 0, or a linear
            `Probe`: its direction, towards the label 1, at the site that it reads. That of a head's z becomes what the head
            adds to `attn_out`, through W_O.
        model: the model that the vector is for.
        method: `mean_difference`.
        site: one place of width d_model, for example `resid_post:12`; None for `resid_post:-1`, or the probe's.
        tokens: `response_mean` (mean over the response's tokens; the default for pairs with a prompt) or `last`.
        batch_size: texts in one forward pass.
        reference: for a probe, where the typical norm comes from: a store with the site, or texts; None for the rows that
            the probe was fitted on.

    Raises:
        ValueError: fewer than two pairs, one label only, a store or probe of another model, a site that the model lacks, or
            a probe of a kind that has no direction.
    """
    if method != "mean_difference":
        raise ValueError(f"method={method!r} is unknown; available is mean_difference")
    if isinstance(data, Probe):
        return vector_of_probe(data, model, site, reference)
    if reference is not None:
        raise ValueError("reference= says where a probe's typical norm comes from; pairs and stores bring their own")
    names = model.expand_sites(site or SITE)
    if len(names) != 1:
        raise ValueError(f"a steering vector is fitted at one site; {site!r} names {len(names)}")
    if isinstance(data, Store):
        return _from_store(data, model, names[0])
    pairs = _pairs(data)
    if len(pairs) < 2:
        raise ValueError(f"a direction needs at least two pairs, got {len(pairs)}")
    tokens = tokens or ("response_mean" if any(pair.prompt for pair in pairs) else "last")
    if tokens not in TOKENS:
        raise ValueError(f"tokens={tokens!r} is unknown; choose from {', '.join(TOKENS)}")
    prompts = [pair.prompt for pair in pairs] * 2
    responses = [pair.positive for pair in pairs] + [pair.negative for pair in pairs]
    pooled, norms = _pooled_responses(model, prompts, responses, names[0], tokens, batch_size)
    difference = (pooled[: len(pairs)] - pooled[len(pairs) :]).mean(0)
    card = {
        "tokens": tokens,
        "n_pairs": len(pairs),
        "n_typical_tokens": len(norms),
        "data_hash": artifact.hash_texts(prompts + responses),
    }
    return _vector(difference, names[0], float(norms.median()), model, card)


def _from_store(store: Store, model: HookedTransformer, site: str) -> SteeringVector:
    store.check_model(model)
    x, frame = store.pooled(site, tokens="last")
    labels = torch.tensor(frame["label"].astype("float").to_numpy())
    if not ((labels == 1).any() and (labels == 0).any()):
        raise ValueError("the store needs texts of both labels, 1 and 0; record examples with labels")
    difference = x[labels == 1].mean(0) - x[labels == 0].mean(0)
    card = {"tokens": "last", "n_positive": int((labels == 1).sum()), "n_negative": int((labels == 0).sum())}
    return _vector(difference, site, float(store.stats(site).typical_norm), model, card)


def _vector(
    difference: Tensor, site: str, typical: float, model: HookedTransformer, card: dict[str, Any]
) -> SteeringVector:
    raw = float(difference.norm())
    if not math.isfinite(raw):
        raise ValueError(f"the activations at {site} are NaN or infinite: a hook wrote it, or the dtype is too narrow")
    if not raw > 0:
        raise ValueError(f"the two sides have the same mean at {site}: there is no direction")
    origin = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint)
    return SteeringVector(difference / raw, site, typical, 1.0, raw, {"method": "mean_difference", **card, **origin})


def _pairs(data: object) -> list[ContrastPair]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise ValueError(f"expected contrast pairs, a store or a probe, got {type(data).__name__}")
    pairs = []
    for index, each in enumerate(data):
        if isinstance(each, ContrastPair):
            pairs.append(each)
        elif isinstance(each, Mapping) and {"positive", "negative"} <= set(each):
            prompt = str(each.get("prompt", ""))
            pairs.append(ContrastPair(prompt, str(each["positive"]), str(each["negative"]), group=str(index)))
        elif isinstance(each, Sequence) and not isinstance(each, str) and len(each) in (2, 3):
            prompt, positive, negative = each if len(each) == 3 else ("", *each)
            pairs.append(ContrastPair(prompt=prompt, positive=positive, negative=negative, group=str(index)))
        else:
            raise ValueError(f"pair {index} is {each!r}; expected (positive, negative) or (prompt, positive, negative)")
    return pairs


def encode_responses(
    model: HookedTransformer, prompts: Sequence[str], responses: Sequence[str]
) -> tuple[Tokens, Tensor]:
    """Prompt + response as one right-padded batch, and the number of tokens that belong to each prompt.

    The prompt is encoded alone and the response without a BOS, so the boundary never falls inside a token.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("contrast pairs are texts; load the model with a tokenizer")
    rows, lengths = [], []
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        before = tokenizer.encode(prompt, close=False) if prompt else []
        after = tokenizer.encode(response, bos=None if not prompt else False)
        if not after:
            raise ValueError(f"response {index} is empty")
        rows.append(before + after)
        lengths.append(len(before))
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    return Tokens(ids, mask, False, None), torch.tensor(lengths)


@torch.inference_mode()
def _pooled_responses(
    model: HookedTransformer, prompts: list[str], responses: list[str], site: str, tokens: str, batch_size: int
) -> tuple[Float[Tensor, "text d_model"], Float[Tensor, "row"]]:
    """One row for each text, and the norms of all typical rows."""
    layer = site_names.layer_of(site)
    stop = None if layer is None else layer + 1
    pooled, norms = [], []
    for start in range(0, len(prompts), batch_size):
        batch, lengths = encode_responses(
            model, prompts[start : start + batch_size], responses[start : start + batch_size]
        )
        _, cache = model.run_with_cache(batch, sites=site, stop_at_layer=stop)
        value, mask = cache[site].flatten(2).float(), cache.tokens.mask
        norms.append(typical_rows(value, mask, special_tokens(model, cache.tokens.ids)).norm(dim=-1))
        if tokens == "last":
            pooled.append(value[torch.arange(len(value)), cache.tokens.last])
        else:
            inside = mask & (torch.arange(mask.shape[1]) >= lengths[:, None])
            pooled.append((value * inside[..., None]).sum(1) / inside.sum(1, keepdim=True))
    return torch.cat(pooled), torch.cat(norms)
