"""`steering_experiment`: effect, damage and generations of a vector, beside random directions of its norm."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.dataset import ContrastPair
from interp.intervene import Steer, special_tokens, typical_rows
from interp.model import HookedTransformer
from interp.steering.fit import encode_responses
from interp.steering.report import EFFECTS, GENERATIONS, SteeringReport
from interp.steering.vector import SteeringVector


def steering_experiment(
    model: HookedTransformer,
    vector: SteeringVector,
    prompts: str | Sequence[str],
    *,
    strengths: Sequence[float] = (-0.1, 0.1),
    pairs: Sequence[ContrastPair] = (),
    texts: str | Sequence[str] = (),
    n_random: int = 19,
    max_new_tokens: int = 30,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> SteeringReport:
    """Steer, generate side by side, and measure effect and damage.

    Args:
        model, vector: the vector must be the model's.
        prompts: continued without and with the vector, greedily.
        strengths: in typical norms; 0 is always measured too.
        pairs: held-out contrasts. The effect is the change of log p(positive | prompt) - log p(negative | prompt), in
            nats for each response, by the vector, which must not have been fitted on them.
        texts: other text, whose rise of loss is the damage.
        n_random: random directions at the largest strength, half isotropic, half with the covariance of the held-out
            activations, all orthogonal to the vector; 19 give p <= .05.
        max_new_tokens: of each continuation.
        seed: of the random directions.
        progress: called with (done, total) settings.
    """
    if vector.card.get("fingerprint") not in (None, model.fingerprint):
        raise ValueError(
            f"the vector was fitted on another model ({vector.card.get('model')}), not on {model.cfg.name}"
        )
    prompts = [prompts] if isinstance(prompts, str) else prompts
    texts = [texts] if isinstance(texts, str) else texts
    if n_random < 0:
        raise ValueError(f"n_random must be 0 or more, got {n_random}")
    if not prompts and not pairs:
        raise ValueError("give prompts to continue, held-out pairs to measure on, or both")
    grid = sorted({0.0, *map(float, strengths)})
    largest = max(grid, key=lambda strength: (abs(strength), strength))
    settings = [("vector", vector, strength) for strength in grid]
    if pairs and largest:
        randoms = random_directions(model, vector, pairs, n_random, seed)
        settings += [(f"random {i} ({kind})", each, largest) for i, (kind, each) in enumerate(randoms)]
    base = _preferences(model, pairs, None) if pairs else None
    base_loss = _mean_loss(model, texts, None)
    rows = []
    for done, (name, direction, strength) in enumerate(settings):
        steer = Steer(direction, strength)
        change = _preferences(model, pairs, steer) - base if base is not None else torch.zeros(0)
        loss = _mean_loss(model, texts, steer) - base_loss if texts else float("nan")
        rows.append({"direction": name, "strength": strength, **_summary(change, strength, seed), "loss_rise": loss})
        if progress is not None:
            progress(done + 1, len(settings))
    card = artifact.provenance(
        model=model.cfg.name, fingerprint=model.fingerprint, vector=vector.card, site=vector.site, n_pairs=len(pairs),
        n_texts=len(texts), n_random=n_random if pairs else 0, seed=seed,
    )  # fmt: skip
    return SteeringReport(
        pd.DataFrame(rows, columns=pd.Index(EFFECTS)), _side_by_side(model, vector, prompts, grid, max_new_tokens), card
    )


def _summary(change: Tensor, strength: float, seed: int) -> dict[str, float | int]:
    """Mean change with its 95 % bootstrap interval over pairs, and the share that moved the wrong way."""
    if not len(change):
        return {"effect": math.nan, "low": math.nan, "high": math.nan, "wrong_way": math.nan, "n": 0}
    draws = torch.randint(0, len(change), (1000, len(change)), generator=torch.Generator().manual_seed(seed))
    low, high = change[draws].mean(1).quantile(torch.tensor([0.025, 0.975]))
    wrong = float((change * strength < 0).float().mean()) if strength else 0.0
    return {
        "effect": float(change.mean()),
        "low": float(low),
        "high": float(high),
        "wrong_way": wrong,
        "n": len(change),
    }


@torch.inference_mode()
def _preferences(model: HookedTransformer, pairs: Sequence[ContrastPair], steer: Steer | None) -> Float[Tensor, "pair"]:
    """log p(positive | prompt) - log p(negative | prompt) of each pair, summed over the response's tokens."""
    prompts = [pair.prompt for pair in pairs] * 2
    responses = [pair.positive for pair in pairs] + [pair.negative for pair in pairs]
    found = []
    for start in range(0, len(prompts), 16):
        batch, lengths = encode_responses(model, prompts[start : start + 16], responses[start : start + 16])
        with model.intervene(*([steer] if steer is not None else [])):
            losses = model.loss(batch, per_token=True)
        response = torch.arange(1, batch.ids.shape[1]) >= lengths[:, None]
        found.append(-(losses * response).sum(1))
    total = torch.cat(found)
    return total[: len(pairs)] - total[len(pairs) :]


@torch.inference_mode()
def _mean_loss(model: HookedTransformer, texts: Sequence[str], steer: Steer | None) -> float:
    if not texts:
        return math.nan
    with model.intervene(*([steer] if steer is not None else [])):
        return float(model.loss(list(texts)))


@torch.inference_mode()
def random_directions(
    model: HookedTransformer, vector: SteeringVector, pairs: Sequence[ContrastPair], n: int, seed: int
) -> list[tuple[str, SteeringVector]]:
    """n unit directions orthogonal to the vector: isotropic ones, and random combinations of held-out activations."""
    generator = torch.Generator().manual_seed(seed)
    layer = site_names.layer_of(vector.site)
    batch, _ = encode_responses(model, [pair.prompt for pair in pairs], [pair.positive for pair in pairs])
    _, cache = model.run_with_cache(batch, sites=vector.site, stop_at_layer=None if layer is None else layer + 1)
    rows = typical_rows(cache[vector.site].flatten(2), cache.tokens.mask, special_tokens(model, cache.tokens.ids))
    rows = rows - rows.mean(0)
    found = []
    for index in range(n):
        kind = "isotropic" if index % 2 == 0 else "covariance"
        weights = torch.randn(len(rows) if kind == "covariance" else rows.shape[1], generator=generator)
        raw = weights @ rows if kind == "covariance" else weights
        raw = raw - (raw @ vector.direction) * vector.direction
        found.append((kind, replace(vector, direction=raw / raw.norm(), card={"method": f"random {kind}"})))
    return found


def _side_by_side(
    model: HookedTransformer, vector: SteeringVector, prompts: Sequence[str], grid: Sequence[float], max_new_tokens: int
) -> pd.DataFrame:
    """Greedy continuations at every strength, all prompts of a strength in one batch."""
    if not prompts:
        return pd.DataFrame(columns=pd.Index(GENERATIONS))
    plain = model.generate(list(prompts), max_new_tokens)
    rows = []
    for strength in grid:
        with model.intervene(Steer(vector, strength)):
            out = plain if strength == 0 else model.generate(list(prompts), max_new_tokens)
        for index, prompt in enumerate(prompts):
            before, after = plain.tokens[index], out.tokens[index]
            assert isinstance(before, list)
            assert isinstance(after, list)
            differs = [i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
            first = differs[0] if differs else (None if len(before) == len(after) else min(len(before), len(after)))
            rows.append((prompt, strength, out.text[index], first))
    return pd.DataFrame(rows, columns=pd.Index(GENERATIONS))
