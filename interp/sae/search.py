"""Find latents: by a token, by what a prompt makes fire, or by a direction such as a probe or a steering vector.

Each search returns a frame, the best hit first. A latent is found for what it fires on and for what it does: a token may
be among those that it reads or those that it raises; a direction may be near its encoder or its decoder.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from interp import sites as site_names
from interp.model import HookedTransformer
from interp.model.splicing import check_model
from interp.sae.features import SAEFeatures, check_features
from interp.sae.model import SAE
from interp.sae.tokenmask import typical_tokens
from interp.tokens import Tokens

_LISTS = {
    "reads": ("top_token_ids", "top_tokens", "top_token_shares"),
    "raises": ("up_token_ids", "up_tokens", "up_values"),
    "lowers": ("down_token_ids", "down_tokens", "down_values"),
}
_MOST_TOKENS = 2**24
"""No vocabulary has so many: a number from there on is a mistake."""


def search_by_token(features: SAEFeatures, token: int | str | Any, *, n: int | Any = 20) -> pd.DataFrame:
    """Latents that have a token among those that they fire on, or among those that they raise or lower.

    Args:
        features: what `sae_features` made; with a model for texts, and for tokens that are raised or lowered.
        token: an id, or a text: every token that reads so, in any case and with or without spaces around it.
        n: hits in each role, at most.

    Returns:
        A row per hit: role ("reads": summed activation, "raises", "lowers": logits), latent, rank (place in the latent's
        list), token_id, token (with a model), value (share of the summed activation, or logits), density, max; by role,
        largest value first.

    Raises:
        ValueError: something else than an id or a text, a text where the features were made without a model, an empty one,
            or n below 1.
    """
    _require_count(n)
    if not isinstance(token, str):
        token = _token_id(token)
    latents = features.latents
    if isinstance(token, str) and ("top_tokens" not in latents or not token.strip()):
        reason = "is empty" if not token.strip() else "cannot be found: these features were made without model="
        raise ValueError(f"the token {token!r} {reason}; give the id of a token")
    frames = []
    for role, names in _LISTS.items():
        there = {name: new for name, new in zip(names, ("token_id", "token", "value")) if name in latents}
        if names[0] not in there:
            continue
        # Exploded together: entry i of each list belongs to the same token. A latent without tokens has none.
        hits = latents.loc[:, ["latent", "density", "max", *there]].explode(column=list(there)).rename(columns=there)
        hits = hits.loc[hits["token_id"].notna()]
        hits.insert(1, "rank", hits.groupby("latent").cumcount())
        hits = hits.loc[_is_token(hits, token)]
        order = np.argsort(-hits["value"].to_numpy(np.float64) * (-1 if role == "lowers" else 1), kind="stable")
        frames.append(hits.iloc[order[:n]].assign(role=role))
    found = pd.concat(frames, ignore_index=True)
    columns = ["role", "latent", "rank", "token_id", "token", "value", "density", "max"]
    kept = [name for name in columns if name in found]
    return found.loc[:, kept].astype({"token_id": np.int64, "value": np.float64})


def _token_id(token: Any) -> int:
    """ValueError for what can be no id."""
    whole = isinstance(token, Integral) and not isinstance(token, bool)
    if not whole or not 0 <= int(token) < _MOST_TOKENS:
        raise ValueError(f"token={token!r} is no token: give an id, a whole number from 0 on, or a text")
    return int(token)


def _is_token(hits: pd.DataFrame, token: Any) -> Bool[np.ndarray, " hit"]:
    if not isinstance(token, str):
        return (hits["token_id"] == token).to_numpy(bool)
    wanted = token.strip().casefold()
    return np.array([text.strip().casefold() == wanted for text in hits["token"]], dtype=bool)


@torch.inference_mode()
def search_by_prompt(
    sae: SAE,
    model: HookedTransformer,
    prompt: str | Sequence[int] | Any,
    *,
    n: int | Any = 20,
    per_token: bool = False,
    features: SAEFeatures | None = None,
    max_density: float | None = None,
) -> pd.DataFrame:
    """The latents that fire most strongly on a prompt.

    Tokens that are not typical (position 0, special tokens, norms over 10 times the typical norm in the SAE's card) are
    left out, as they were in training: what an SAE says of them means nothing. Norms are not looked at where the card has no
    typical norm.

    Args:
        sae: the SAE; its card names the sites that it reads.
        model: the model that it was trained on.
        prompt: one text, or token ids.
        n: latents over the whole prompt, or, with `per_token`, of each token.
        per_token: the strongest latents of each token instead of those of the whole prompt.
        features: adds density, and relative (the activation as a share of the latent's maximum over the store).
        max_density: leaves out latents that fire more often than this; needs `features`.

    Returns:
        Over the prompt a row per latent: latent, max, position, token_id, token (where it is largest), n_tokens (on which it
        fires), n_read (tokens that were read). Per token a row per token and latent: position, token_id, token, rank,
        latent, value.

    Raises:
        ValueError: no site in the card, an SAE of another model, features of another SAE, several texts, no typical token,
            another width, max_density without features, or n below 1.
    """
    _require_count(n)
    if max_density is not None and features is None:
        raise ValueError("max_density= needs features=, which say how often each latent fires")
    check_model(model, [sae])
    if features is not None:
        check_features(features, sae)
    tokens = model.tokenize(prompt)
    if len(tokens) != 1:
        raise ValueError(f"give one prompt, got {len(tokens)}")
    x, typical = _rows_of_prompt(sae, model, tokens)
    read = typical.nonzero().flatten()
    if len(read) == 0:
        raise ValueError("no token of this prompt is typical (each is first, special or an outlier): give a longer one")
    active = sae.active(x[read].to(sae.W_enc.device))
    ids = tokens.ids[0].cpu().numpy()
    position = read.cpu().numpy()[active.row.cpu().numpy()]
    hits = pd.DataFrame(
        {
            "position": position,
            "token_id": ids[position],
            "token": _displayed(model, ids)[position],
            "latent": active.latent.cpu().numpy(),
            "value": active.values.double().cpu().numpy(),
        }
    )
    if features is not None:
        hits = _with_density(hits, features, max_density)
    hits = hits.sort_values(by=["value", "position", "latent"], ascending=[False, True, True], kind="stable")
    if per_token:
        hits.insert(3, "rank", hits.groupby("position").cumcount())
        return hits.loc[hits["rank"] < n].sort_values(by=["position", "rank"]).reset_index(drop=True)
    counts = hits.groupby("latent")["value"].transform("size")
    hits = hits.assign(n_tokens=counts, n_read=len(read)).drop_duplicates("latent").rename(columns={"value": "max"})
    first = ["latent", "max"]
    return hits.loc[:, first + [name for name in hits if name not in first]].head(n).reset_index(drop=True)


def _rows_of_prompt(
    sae: SAE, model: HookedTransformer, tokens: Tokens
) -> tuple[Float[Tensor, "pos d_in"], Bool[Tensor, " pos"]]:
    """What the SAE reads of each token, and whether the token is typical."""
    if not sae.sites:
        raise ValueError('the SAE does not say its site: put it into the card, card={"site": ...}')
    names = list(dict.fromkeys(sae.sites + sae.targets))
    layers = [site_names.layer_of(name) for name in names]
    stop = None if None in layers else max(layer for layer in layers if layer is not None) + 1
    cache = model.run_with_cache(tokens, names, stop_at_layer=stop)[1]
    found = {name: cache[name].flatten(2) for name in names}
    typical = typical_tokens(model, tokens, found, _typical_norms(sae))[0]
    return sae.rows_of(torch.cat([found[name][0].float() for name in sae.sites], dim=1)), typical


def _typical_norms(sae: SAE) -> Mapping[str, float]:
    """Site -> typical norm, of the sites and targets whose norm the card has."""
    norms = dict(sae.card.get("typical_norms") or {})
    if sae.site is not None:
        norms.setdefault(sae.site, sae.card.get("typical_norm"))
    return {name: norm for name, norm in norms.items() if norm and name in sae.sites + sae.targets}


def _displayed(model: HookedTransformer, ids: np.ndarray) -> np.ndarray:
    """What a person sees of each token; its id where the model has no tokenizer."""
    if model.tokenizer is None:
        return np.array([f"⟨id {i}⟩" for i in ids], dtype=object)
    return np.array([view.display for view in model.tokenizer.views(ids.tolist())], dtype=object)


def _with_density(hits: pd.DataFrame, features: SAEFeatures, max_density: float | None) -> pd.DataFrame:
    of_latent = features.latents.set_index("latent")[["density", "max"]].loc[hits["latent"]]
    hits = hits.assign(density=of_latent["density"].to_numpy(), relative=hits["value"] / of_latent["max"].to_numpy())
    return hits if max_density is None else hits.loc[hits["density"] <= max_density]


@torch.no_grad()
def search_by_direction(
    sae: SAE,
    direction: Any,
    *,
    site: str | None = None,
    n: int | Any = 20,
    n_random: int | Any = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Latents whose decoder or encoder points along a direction, or against it.

    Among thousands of latents one always looks close. So each cosine is compared with the largest one, over all latents,
    that a random direction reaches: `p` is the share of `n_random` directions that reach as much. They are drawn with equal
    probability from all directions; a direction that was fitted on activations also shares their few large dimensions with
    every latent, and no p rules that out.

    Args:
        sae: the SAE.
        direction: a vector [d], or what has a `direction`, as probes and steering vectors do.
        site: which of its sites the direction belongs to, where it has several; else the direction's own `site`.
        n: latents, those with the largest absolute cosine of decoder or encoder.
        n_random: random directions.
        seed: of them.

    Returns:
        A row per latent: latent, decoder_cosine, decoder_p, encoder_cosine, encoder_p, and the 95 % quantile of what random
        directions reach, decoder_null and encoder_null. A transcoder has those columns whose side has the direction's site
        (both, where the site is not known and both widths fit).

    Raises:
        ValueError: another width, a direction that is no vector, zero or not finite, a site that is none of the SAE's, or
            counts below 1.
    """
    _require_count(n)
    _require_count(n_random, "n_random")
    vector = _vector(direction)
    if not bool(vector.isfinite().all()) or not bool(vector.any()):
        raise ValueError("a direction has finite numbers that are not all zero")
    where = site or getattr(direction, "site", None)
    sides = _sides(sae, None if where is None else site_names.full_name(where), len(vector))
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(n_random, len(vector), generator=generator, dtype=torch.float64)
    columns: dict[str, Any] = {"latent": np.arange(sae.n_latents)}
    for name, rows in sides.items():
        unit = torch.nn.functional.normalize(rows.detach().double().cpu(), dim=1)
        cosine = unit @ (vector / vector.norm())
        reached = (unit @ torch.nn.functional.normalize(random, dim=1).T).abs().amax(0)
        above = (reached[None] >= cosine.abs()[:, None]).sum(1)
        columns[f"{name}_cosine"] = cosine.numpy()
        columns[f"{name}_p"] = ((above + 1) / (n_random + 1)).numpy()
        columns[f"{name}_null"] = float(reached.quantile(0.95))
    frame = pd.DataFrame(columns)
    largest = np.maximum.reduce([np.abs(frame[f"{name}_cosine"].to_numpy()) for name in sides])
    return frame.iloc[np.argsort(-largest, kind="stable")[:n]].reset_index(drop=True)


def _vector(direction: Any) -> Float64[Tensor, " d"]:
    """The numbers of a vector, or of the `direction` of something. ValueError where there are none."""
    given = getattr(direction, "direction", direction)
    try:
        if given is None or isinstance(given, str | bytes):  # numpy makes numbers of them
            raise TypeError
        # A copy: torch warns of arrays that must not be written to.
        numbers = given if isinstance(given, Tensor) else torch.tensor(np.array(given, dtype=np.float64))
    except (TypeError, ValueError):
        raise ValueError(
            f"a direction is a vector of numbers, or has one as its `direction`; got {direction!r}. For a word see "
            "search_by_token and search_by_prompt"
        ) from None
    return numbers.detach().double().cpu().flatten()


def _sides(sae: SAE, site: str | None, width: int) -> dict[str, Float[Tensor, "latent d"]]:
    """ "decoder" and "encoder" -> rows that a direction of this width, at this site, can be compared with."""
    both = {"decoder": (sae.W_dec, sae.targets), "encoder": (sae.W_enc.T, sae.sites)}
    known = {*sae.targets, *sae.sites}
    several = len(sae.targets) > 1 or len(sae.sites) > 1
    if site is None and several:
        raise ValueError(f"the SAE has several sites, {', '.join(sorted(known))}: say which one by site=")
    if several and site not in known:
        raise ValueError(f"the direction is of {site}; the SAE has {', '.join(sorted(known))}")
    sides = {}
    for name, (rows, names) in both.items():
        # A direction of a neighbouring site may well be compared with an SAE; in a transcoder the site decides the side.
        if sae.is_transcoder and site in known and site not in names:
            continue
        if several and site in names:
            rows = rows.split([sae.widths[each] for each in names], dim=1)[names.index(site)]
        if rows.shape[1] == width:
            sides[name] = rows
    if not sides:
        raise ValueError(
            f"the direction has width {width}; the SAE reads {sae.d_in} and writes {sae.d_out}: is it of another site?"
        )
    return sides


def _require_count(value: int | Any, name: str = "n") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
