"""The vector of a sweep: read from a file, or fitted, with a note in its card of what it has seen.

1. `read_source` looks at what is named: contrast pairs, labelled texts, a store, the file of a probe or of an SAE.
2. Of pairs, whole groups are held out (`VectorSpec.held_out`). The card keeps hashes of the pairs and groups that the vector was
   fitted on, so that `inputs.unseen_pairs` can leave them out of what is measured.
3. `fit_vector` fits it at one site, at every site of a range, or on heads.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from interp import artifact
from interp.dataset import ContrastPair, datasets, grouped_split, load_dataset, load_pairs, read_table
from interp.jobs import file_hash
from interp.model import HookedTransformer
from interp.probe import load_probe
from interp.sae import latent_direction, load_sae
from interp.steer_job.spec import VectorSpec, is_path
from interp.steering.fit import steering_vector, steering_vectors
from interp.steering.heads import head_vectors, load_head_vectors
from interp.steering.seen import seen_card
from interp.steering.vector import load_steering_vector
from interp.steering.vectors import load_steering_vectors
from interp.store import open_store

LOADERS: dict[str, Callable[[Any], Any]] = {
    "steering vector": load_steering_vector,
    "steering vectors": load_steering_vectors,
    "head vectors": load_head_vectors,
}
"""Kind in the card -> what reads the file."""
KEPT_APART = "kept_apart"
"""Key of a card: the share and number of the pairs that were held out to be measured on."""

READY = ("probe", "sae")
"""Sources that hold a direction; nothing is fitted on them."""
_OF_FIT = ("method", "tokens", "C", "heads")
"""Options of a fit."""
_IS = {"pairs": "holds pairs", "texts": "holds texts", "store": "is a store", "probe": "is a probe", "sae": "is an SAE"}


@dataclass(frozen=True, eq=False)
class Source:
    """What a vector is fitted on."""

    kind: str
    """pairs, texts, store, probe or sae."""
    data: Any
    """For `steering_vector`."""
    card: dict[str, Any]
    """What the vector's card says of it."""
    hash: str
    """Of everything in it that decides the vector."""


def card_kind(path: str | Path) -> str | None:
    """What the card of a safetensors file says that it is; None for a file without such a card."""
    try:
        with safe_open(path, framework="pt") as file:
            card = json.loads((file.metadata() or {}).get("card", "{}"))
    except (OSError, SafetensorError, ValueError):
        return None
    return card.get("kind") if isinstance(card, dict) else None


def load_vector(path: str | Path) -> Any:
    """A steering vector, vectors at several sites, or vectors of heads, as the file's card says.

    Raises:
        ValueError: no such file, or one of another kind.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path} is a folder, not a vector" if path.is_dir() else f"there is no file {path}")
    if path.suffix.lower() == ".gguf":
        raise ValueError(f"{path.name} is a GGUF file: make a vector of it first (interp steer convert)")
    kind = card_kind(path)
    if kind not in LOADERS:
        raise ValueError(f"{path} holds {_named(kind)}, not a steering vector: make one with interp steer make")
    return LOADERS[kind](path)


def read_source(spec: VectorSpec) -> Source:
    """Look at what a vector is to be fitted on, before a model is loaded.

    Raises:
        ValueError: nothing of that name, another kind of file, or an option that does not go with it.
    """
    found = _source(spec)
    if spec.latent is not None and found.kind != "sae":
        raise ValueError(f"latent is of an SAE, and {_short(spec)} {_IS[found.kind]}: leave it out")
    if found.kind in READY:
        given = [name for name in _OF_FIT if getattr(spec, name) is not None]
        if given:
            raise ValueError(
                f"{_short(spec)} {_IS[found.kind]}, whose direction is taken as it is: leave out {', '.join(given)}"
            )
    if spec.heads is not None and found.kind not in ("texts", "store"):
        raise ValueError(f"heads are found with labelled texts or a store, and {_short(spec)} {_IS[found.kind]}")
    return found


def _source(spec: VectorSpec) -> Source:
    assert spec.data is not None
    name, path = spec.data, Path(spec.data).expanduser()
    if not is_path(name):
        kinds = {str(row["name"]): row["kind"] for row in datasets().to_dict("records")}
        return _pairs(spec) if kinds.get(name, "pairs") == "pairs" else _texts(spec)
    if "://" in name or (path / "store.json").is_file():
        store = open_store(name)
        known = artifact.hash_json([store.card, artifact.hash_texts([str(store.examples.to_json())])])
        return Source("store", store, {"data": path.name}, known)
    if path.suffix.lower() == ".safetensors":
        return _artifact(spec, path)
    columns = set(read_table(path))
    return _pairs(spec) if {"positive", "negative"} <= columns else _texts(spec)


def _pairs(spec: VectorSpec) -> Source:
    pairs = load_pairs(str(spec.data))
    card: dict[str, Any] = {"data": _short(spec)}
    if spec.held_out:
        pairs, held = divided(pairs, spec.held_out, spec.seed)
        card |= {KEPT_APART: {"share": spec.held_out, "pairs": len(held), "seed": spec.seed}}
    card |= seen_card(pairs)
    known = artifact.hash_json([[pair.prompt, pair.positive, pair.negative, pair.group] for pair in pairs])
    return Source("pairs", pairs, card, known)


def divided(pairs: Sequence[ContrastPair], share: float, seed: int) -> tuple[list[ContrastPair], list[ContrastPair]]:
    """Pairs in two parts, the second with about this share of them; no group stands in both. A pair without one is its own.

    Raises:
        ValueError: a single group.
    """
    groups = [str(index) if pair.group is None else pair.group for index, pair in enumerate(pairs)]
    first, second = grouped_split(groups, (1 - share, share), seed=seed)
    return [pairs[index] for index in first], [pairs[index] for index in second]


def _texts(spec: VectorSpec) -> Source:
    data = load_dataset(str(spec.data), require_labels=True)
    return Source("texts", data, {"data": _short(spec)}, data.hash)


def _artifact(spec: VectorSpec, path: Path) -> Source:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    kind = card_kind(path)
    if kind == "sae":
        if spec.latent is None:
            raise ValueError(f"{path.name} is an SAE: say which latent (--latent, or latent in [vector])")
        return Source("sae", latent_direction(load_sae(path), spec.latent), {"data": path.name}, file_hash(path))
    if kind == "probe":
        return Source("probe", load_probe(path), {"data": path.name}, file_hash(path))
    raise ValueError(f"{path} holds {_named(kind)}: a vector is fitted on pairs, texts, a store, a probe or an SAE")


def fit_vector(spec: VectorSpec, model: HookedTransformer, source: Source | None = None, reference: Any = None) -> Any:
    """Fit a vector, at one site or at each site of a range.

    Args:
        spec: what it is fitted on, and how.
        model: whose vector it is.
        source: what `read_source` found; None to look again.
        reference: for a probe: a store or texts that the typical norm comes from.

    Returns:
        A `SteeringVector`, `SteeringVectors` where the site names several, or `HeadVectors`.

    Raises:
        ValueError: as `steering_vector`.
    """
    source = read_source(spec) if source is None else source
    options: dict[str, Any] = {"model": model}
    if source.kind not in READY:
        chosen = {"method": spec.method, "tokens": spec.tokens, "C": spec.C, "seed": spec.seed}
        options |= {name: value for name, value in chosen.items() if value is not None}
    if reference is not None:
        options["reference"] = reference
    if spec.heads is not None:
        options |= {"top": spec.heads} | ({} if spec.site is None else {"sites": spec.site})
        found: Any = head_vectors(source.data, **options)
    elif spec.site is not None and len(model.expand_sites(spec.site)) > 1:
        if source.kind in READY:
            raise ValueError(f"a {source.kind}'s direction stands at one site, and {spec.site!r} names several")
        found = steering_vectors(source.data, sites=spec.site, **options)
    else:
        found = steering_vector(source.data, site=spec.site, **options)
    return replace(found, card={**found.card, **source.card})


def _short(spec: VectorSpec) -> str:
    return Path(str(spec.data)).name


def _named(kind: str | None) -> str:
    return "no card that says what it is" if kind is None else f"a {kind!r}"
