"""Steering vectors: a direction from contrasts, applied at a strength that means the same everywhere, and what it did.

1. `steering_vector` takes the mean difference of the activations of two sets (Turner et al. 2023; Rimsky et al. 2024,
   arXiv 2312.06681) and keeps a unit direction, the length of the fitted difference, and the site's *typical norm*.
2. `Steer(v, strength)` adds strength x typical norm along it.
3. `steering_experiment` measures the effect on prompts and continuations that the vector never saw, the damage to the
   loss on other text, and the same for random directions of the same norm, half of them isotropic and half with the
   activations' own covariance: without that band a large effect may be nothing but a large push.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp import artifact, plot
from interp import sites as site_names
from interp.dataset import ContrastPair
from interp.intervene import Steer, special_tokens, typical_rows
from interp.model import HookedTransformer
from interp.store import Store
from interp.tokens import Tokens

TOKENS = ("response_mean", "last")
EFFECTS = ("direction", "strength", "effect", "low", "high", "wrong_way", "n", "loss_rise")
GENERATIONS = ("prompt", "strength", "text", "first_difference")


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A unit direction at one site, and a length that arithmetic acts on: `0.5 * v`, `v + w`, `-v`."""

    direction: Float[Tensor, "d_model"]
    """Unit direction."""
    site: str
    """Full name of the site."""
    typical_norm: float
    """Median norm there over typical tokens (not special, not position 0, no outliers): the unit of strength."""
    length: float = 1.0
    """1 as fitted."""
    raw_norm: float | None = None
    """Norm of the difference as fitted; None for sums."""
    card: dict[str, Any] = field(default_factory=dict)
    """Method, n, tokens, provenance."""

    def __post_init__(self) -> None:
        norm = float(self.direction.norm())
        if not math.isfinite(norm) or abs(norm - 1) > 1e-3:
            raise ValueError(f"a steering vector needs a unit direction; its norm is {norm}")
        if not self.typical_norm > 0:
            raise ValueError(f"typical_norm must be positive, got {self.typical_norm}")

    def __mul__(self, factor: float) -> "SteeringVector":
        if factor < 0:
            return replace(self, direction=-self.direction, length=self.length * -factor)
        return replace(self, length=self.length * factor)

    __rmul__ = __mul__

    def __neg__(self) -> "SteeringVector":
        return self * -1.0

    def __add__(self, other: "SteeringVector") -> "SteeringVector":
        if other.site != self.site or other.direction.shape != self.direction.shape:
            raise ValueError(f"vectors of different sites cannot be added: {self.site} and {other.site}")
        total = self.direction * self.length + other.direction * other.length
        length = float(total.norm())
        if length < 1e-8:
            raise ValueError("the two vectors cancel each other; their sum has no direction")
        card = {"method": "sum", "parts": [self.card, other.card]}
        norm = (self.typical_norm + other.typical_norm) / 2
        return SteeringVector(total / length, self.site, norm, length, None, card)

    def __sub__(self, other: "SteeringVector") -> "SteeringVector":
        return self + -other

    def cosine(self, other: "SteeringVector") -> float:
        """Cosine of the two directions."""
        return float(self.direction @ other.direction)

    def save(self, path: str | Path) -> Path:
        """One safetensors file with a card; `load_steering_vector` reads it."""
        card = self.card | {
            "site": self.site,
            "typical_norm": self.typical_norm,
            "length": self.length,
            "raw_norm": self.raw_norm,
        }
        return artifact.save_artifact(Path(path), "steering vector", {"direction": self.direction}, card)


def load_steering_vector(path: str | Path) -> SteeringVector:
    """Read what `SteeringVector.save` wrote."""
    tensors, card = artifact.load_artifact(Path(path), "steering vector")
    known = {key: card.pop(key) for key in ("site", "typical_norm", "length", "raw_norm")}
    return SteeringVector(tensors["direction"], card=card, **known)


def steering_vector(
    data: object,
    *,
    model: HookedTransformer,
    method: str = "mean_difference",
    site: str = "resid_post:-1",
    tokens: str | None = None,
    batch_size: int = 32,
) -> SteeringVector:
    """Fit a direction from contrasts.

    Args:
        data: ContrastPairs, (positive, negative) texts, or a store with labels 1 and 0.
        model: the model that the vector is for.
        method: `mean_difference`.
        site: one place of width d_model, for example `resid_post:12`.
        tokens: `response_mean` (mean over the response's tokens; the default for pairs with a prompt) or `last`.
        batch_size: texts in one forward pass.

    Raises:
        ValueError: fewer than two pairs, one label only, a store of another model, or a site that the model lacks.
    """
    if method != "mean_difference":
        raise ValueError(f"method={method!r} is unknown; available is mean_difference")
    names = model.expand_sites(site)
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
    if not raw > 0:
        raise ValueError(f"the two sides have the same mean at {site}: there is no direction")
    origin = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint)
    return SteeringVector(difference / raw, site, typical, 1.0, raw, {"method": "mean_difference", **card, **origin})


def _pairs(data: object) -> list[ContrastPair]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise ValueError(f"expected contrast pairs or a store, got {type(data).__name__}")
    pairs = []
    for index, each in enumerate(data):
        if isinstance(each, ContrastPair):
            pairs.append(each)
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
        before = tokenizer.encode(prompt) if prompt else []
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


@dataclass(frozen=True, eq=False)
class SteeringReport:
    """What a vector did, at each strength, beside random directions of the same norm."""

    effects: pd.DataFrame
    """A row for each direction (`vector` or `random`) and strength: effect, low, high (95 % over pairs), loss_rise,
    wrong_way (share of pairs that moved against the vector), n."""
    generations: pd.DataFrame
    """prompt, strength, text, first_difference (index of the first new token that differs from the unsteered)."""
    card: dict[str, Any]
    """Provenance."""

    def to_frame(self) -> pd.DataFrame:
        """The effects."""
        return self.effects

    @property
    def band(self) -> pd.DataFrame:
        """strength -> mean, std, low and high of the random directions' effects, and the share of them that reach the
        vector's: p = (1 + as large) / (n + 1)."""
        rows = []
        for strength, part in self.effects.groupby("strength"):
            random = part.loc[part["direction"] != "vector", "effect"]
            own = float(part.loc[part["direction"] == "vector", "effect"].iloc[0])
            if len(random):
                as_large = int((random.abs() >= abs(own)).sum())
                rows.append(
                    (
                        strength,
                        random.mean(),
                        random.std(),
                        random.min(),
                        random.max(),
                        (1 + as_large) / (len(random) + 1),
                    )
                )
        return pd.DataFrame(rows, columns=pd.Index(["strength", "mean", "std", "low", "high", "p"]))

    def plot(self) -> alt.LayerChart | alt.Chart:
        """Effect over strength with the random band."""
        return plot.steering_effect(self.effects)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        tables = {"effects": self.effects, "generations": self.generations, "band": self.band}
        return {name: _records(frame) for name, frame in tables.items()} | {"card": self.card}

    def save(self, path: str | Path) -> Path:
        """One JSON file; `load_steering_report` reads it."""
        return artifact.write_json(Path(path), {"kind": "steering report", "format": 1, **self.to_dict()})


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, where what was not measured is null."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def load_steering_report(path: str | Path) -> SteeringReport:
    """Read what `SteeringReport.save` wrote."""
    found = artifact.read_json(Path(path))
    if found.get("kind") != "steering report":
        raise ValueError(f"{path} holds no steering report")
    effects = pd.DataFrame(found["effects"], columns=pd.Index(EFFECTS))
    return SteeringReport(effects, pd.DataFrame(found["generations"], columns=pd.Index(GENERATIONS)), found["card"])


def steering_experiment(
    model: HookedTransformer,
    vector: SteeringVector,
    prompts: Sequence[str],
    *,
    strengths: Sequence[float] = (-0.1, 0.1),
    pairs: Sequence[ContrastPair] = (),
    texts: Sequence[str] = (),
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
    if not prompts and not pairs:
        raise ValueError("give prompts to continue, held-out pairs to measure on, or both")
    grid = sorted({0.0, *map(float, strengths)})
    largest = max(grid, key=lambda strength: (abs(strength), strength))
    settings = [("vector", vector, strength) for strength in grid]
    if pairs and largest:
        randoms = _random_directions(model, vector, pairs, n_random, seed)
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
def _random_directions(
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
