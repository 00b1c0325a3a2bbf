"""Sparse autoencoders of the workspace, one latent of them, and the searches for latents."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
import torch
from safetensors import SafetensorError, safe_open

import interp
from interp import artifact
from interp.sae.features import HISTOGRAM_EDGES, fingerprint
from interp.sae.features.effects import effects_on_logits, written_directions
from interp.sae.labels.labelling import features_id
from ui import library
from ui.services import tints
from ui.services.live import checked, engine, model_name, token_ids
from ui.services.runs import KEPT

DENSE = 0.01
"""Share of tokens above which the pages call a latent dense."""
TOKENS = 10
"""Tokens shown that a latent raises, and as many that it lowers."""
NEAR = 8
"""Neighbours shown."""
BINS = 60
"""Of the histogram of logits."""
MOST_STEER = 40
"""Longest steered continuation, in tokens."""


@dataclass(frozen=True)
class Latent:
    """One latent, as far as it was measured."""

    n_latents: int
    facts: dict[str, Any]
    """encoder_norm, decoder_norm; with features also density, n_active, n_rows and, if it fires, max and
    mean_active."""
    near: pd.DataFrame
    """latent, cosine: nearest decoder directions."""
    together: pd.DataFrame
    """latent, phi: those that fire on the same tokens; empty without features."""
    edges: list[float]
    """Of the histogram of activations."""
    counts: list[int]
    """Rows in its bins; empty without features, or for a latent that never fires."""


# ---------------------------------------------------------------------------------------------------------------- list


def listed() -> pd.DataFrame:
    """A row per SAE: key, sae, kind, site, latents, k, l0, fvu, fvu_low, fvu_high, dead_share, ce_recovered, figures (the
    file they come from), model (fingerprint)."""
    rows = [_row(entry) for entry in library.entries("sae")]
    names = (
        "key", "sae", "kind", "site", "latents", "k", "l0", "fvu", "fvu_low", "fvu_high", "dead_share", "ce_recovered",
        "figures", "model",
    )  # fmt: skip
    return pd.DataFrame(rows, columns=list(names))


def _row(entry: library.Entry) -> dict[str, Any]:
    head = _head(str(entry.path), entry.stamp)
    row: dict[str, Any] = {"key": entry.key, "sae": entry.title, "model": entry.model, **head}
    folder = entry.path.parent
    # A report does not name its SAE: beside several of them nobody can tell whose figures these are.
    alone = sum(each.path.parent == folder for each in library.entries("sae")) == 1
    for kind in ("sae_report", "splice_report"):
        beside_it = [each for each in library.entries(kind) if alone and each.path.parent == folder]
        if beside_it:
            _add(row, _json(str(beside_it[0].path), beside_it[0].stamp), beside_it[0].title)
    beside = entry.path.parent / "sae.json"
    if "fvu" not in row and beside.is_file() and entry.path.name == "sae.safetensors":
        _add(row, _json(str(beside), beside.stat().st_mtime_ns), f"{entry.path.parent.name}/sae.json")
    return row


def _add(row: dict[str, Any], held: dict[str, Any], source: str) -> None:
    """Figures of a report that can only be of this SAE: same site, and as many latents where it says so."""
    if held.get("site") != row.get("site") or held.get("n_latents", row["latents"]) != row["latents"]:
        return
    for name in ("l0", "fvu", "fvu_low", "fvu_high", "dead_share"):
        if isinstance(held.get(name), int | float):
            row[name] = float(held[name])
    if isinstance(held.get("recovered_mean"), int | float):
        row["ce_recovered"] = float(held["recovered_mean"])
    row["figures"] = ", ".join(name for name in (row.get("figures"), source) if name)


@st.cache_data(**KEPT)
def _head(path: str, stamp: int) -> dict[str, Any]:  # noqa: ARG001 (the stamp is part of the key)
    try:
        with safe_open(path, framework="np") as file:
            card = json.loads((file.metadata() or {}).get("card", "{}"))
            width = file.get_slice("b_enc").get_shape()[0]
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"an SAE of the workspace is damaged ({error}): make it again") from None
    sites = ", ".join(str(site) for site in card.get("sites") or [card.get("site") or "not said"])
    return {"kind": card.get("architecture"), "site": sites, "latents": width, "k": card.get("k")}


@st.cache_data(**KEPT)
def _json(path: str, stamp: int) -> dict[str, Any]:  # noqa: ARG001 (the stamp is part of the key)
    held = artifact.read_json(path)
    return held if isinstance(held, dict) else {}


def is_of_the_model(entry: library.Entry) -> bool:
    """Whether an SAE may be used with the loaded model; one that names no model may."""
    return entry.model in (None, engine().fingerprint)


# ------------------------------------------------------------------------------------------------- what belongs to it


def features_of(key: str) -> library.Entry | None:
    """The newest features that were collected of this SAE, told by the hash of its weights."""
    entry = library.entry(key, "sae")
    own = _fingerprint(key, entry.stamp)
    return next((e for e in library.entries("sae features") if _card(str(e.path), e.stamp).get("sae") == own), None)


def labels_key(key: str) -> str:
    """Key of the labels of this SAE's features; empty where there are none."""
    found = features_of(key)
    if found is None:
        return ""
    own = features_id(_features(str(found.path), found.stamp))
    return next(
        (e.key for e in library.entries("sae labels") if _card(str(e.path), e.stamp).get("features") == own), ""
    )


def labels_of(key: str) -> pd.DataFrame | None:
    """latent and label, of labels that were made from this SAE's features; None where there are none."""
    found = features_of(key)
    if found is None:
        return None
    own = features_id(_features(str(found.path), found.stamp))
    for entry in library.entries("sae labels"):
        if _card(str(entry.path), entry.stamp).get("features") == own:
            return _labels(str(entry.path), entry.stamp)
    return None


def stores_for(key: str) -> list[library.Entry]:
    """Stores of the SAE's model that hold every site that it reads."""
    dictionary, entry = tints.sae(key), library.entry(key, "sae")
    return [
        store
        for store in library.entries("store")
        if store.model is not None
        and store.model == entry.model
        and set(dictionary.sites) <= set(_sites(str(store.path), store.stamp))
    ]


def features_argv(key: str, store: library.Entry, model: str, name: str) -> list[str]:
    """Arguments of `interp` that collect the features into the workspace."""
    space = library.workspace()
    if space is None:
        raise ValueError("there is no workspace to write to: start with interp app --workspace FOLDER")
    sae = str(library.entry(key, "sae").path)
    out = str(space.resolve() / name)
    return ["sae", "features", sae, "--store", str(store.path), "--model", model, "--out", out]


def load_code(key: str, *, model: bool = False, features: bool = False) -> str:
    """Python that loads an SAE of the workspace (as `runs/`), and the model and the features where they are asked for."""
    lines = ["import interp", "", f"sae = interp.load_sae({'runs/' + key!r})"]
    if model:
        lines.append(f"model = interp.load({model_name()!r})")
    found = features_of(key) if features else None
    if found is not None:
        lines.append(f"features = interp.load_sae_features({'runs/' + found.key!r})")
    return "\n".join(lines) + "\n"


def densities(key: str) -> list[float]:
    """Share of tokens on which each latent fires; empty without features."""
    found = features_of(key)
    return [] if found is None else _table(str(found.path), found.stamp)["density"].fillna(0.0).tolist()


@st.cache_data(**KEPT)
def _fingerprint(key: str, stamp: int) -> str:  # noqa: ARG001 (the stamp is part of the key)
    return fingerprint(tints.sae(key))


@st.cache_data(**KEPT)
def _card(path: str, stamp: int) -> dict[str, Any]:  # noqa: ARG001 (the stamp is part of the key)
    held = artifact.read_json(f"{path}/card.json")
    return held if isinstance(held, dict) else {}


@st.cache_data(**KEPT)
def _sites(path: str, stamp: int) -> list[str]:  # noqa: ARG001 (the stamp is part of the key)
    return list(interp.open_store(path).sites)


@st.cache_data(**KEPT)
def _labels(path: str, stamp: int) -> pd.DataFrame:  # noqa: ARG001 (the stamp is part of the key)
    frame = interp.load_sae_labels(path).frame
    return frame.loc[frame["label"].notna(), ["latent", "label"]].reset_index(drop=True)


@st.cache_resource(max_entries=2, show_spinner=False)
def _features(path: str, stamp: int) -> interp.SAEFeatures:  # noqa: ARG001 (the stamp is part of the key)
    return interp.load_sae_features(path)


@st.cache_data(max_entries=2, show_spinner=False)
def _table(path: str, stamp: int) -> pd.DataFrame:
    return _features(path, stamp).latents.loc[:, ["latent", "density", "max"]]


# ---------------------------------------------------------------------------------------------------------- one latent


def latent(key: str, number: int) -> Latent:
    """What is known of a latent. ValueError where the SAE has none of that number."""
    dictionary = tints.sae(key)
    if not 0 <= number < dictionary.n_latents:
        raise ValueError(f"there is no latent {number}: this SAE has {dictionary.n_latents:,}, numbered from 0")
    decoder = dictionary.W_dec.detach()
    facts: dict[str, Any] = {
        "encoder_norm": float(dictionary.W_enc[:, number].norm()),
        "decoder_norm": float(decoder[number].norm()),
    }
    cosine = torch.nn.functional.cosine_similarity(decoder, decoder[number][None], dim=1)
    cosine[number] = -math.inf
    top = cosine.topk(min(NEAR, dictionary.n_latents - 1))
    near = pd.DataFrame({"latent": top.indices.tolist(), "cosine": top.values.tolist()})
    together = pd.DataFrame({"latent": [], "phi": []})
    counts: list[int] = []
    if (found := features_of(key)) is not None:
        page = _features(str(found.path), found.stamp).latent(number)
        row = page.row
        facts |= {name: row[name] for name in ("density", "n_active")}
        # A latent that never fires has NaN there: no scale for colours, no strength to steer with.
        facts |= {name: row[name] for name in ("max", "mean_active") if row["n_active"]}
        facts["n_rows"] = page.features.n_rows
        pairs = zip(list(row["cofiring_latents"])[:NEAR], list(row["cofiring_phi"])[:NEAR])
        together = pd.DataFrame(list(pairs), columns=["latent", "phi"])
        counts = [int(n) for n in row["histogram"]] if row["n_active"] else []
    return Latent(dictionary.n_latents, facts, near, together, HISTOGRAM_EDGES.tolist(), counts)


def logits(key: str, number: int) -> tuple[pd.DataFrame, list[float], list[int]]:
    """What the decoder row does to the logits: token and value of both ends, and the histogram over the vocabulary.

    Raises:
        ValueError: an SAE of another model, or one that does not write to the residual stream.
    """
    entry = library.entry(key, "sae")
    _refuse_other(entry)
    return _logits(engine().fingerprint, key, entry.stamp, number)


@st.cache_data(**KEPT)
def _logits(
    model_print: str,
    key: str,
    stamp: int,  # noqa: ARG001 (part of the key)
    number: int,
) -> tuple[pd.DataFrame, list[float], list[int]]:
    dictionary = tints.sae(key)
    if not dictionary.targets:
        raise ValueError("the SAE does not say which site it writes: what it does to the logits is not known")
    with checked(model_print) as model:
        rows, why = written_directions(dictionary, model, dictionary.targets[0])
        if rows is None:
            raise ValueError(f"what the latent does to the logits is not known: {why}")
        effect = effects_on_logits(rows[number : number + 1], model)[0].double().cpu().numpy()
        order = np.argsort(-effect, kind="stable")
        ends = np.concatenate([order[:TOKENS], order[-TOKENS:]])
        frame = pd.DataFrame({"token": _texts(model, ends.tolist()), "value": effect[ends]})
    counts, edges = np.histogram(effect, BINS)
    return frame, edges.tolist(), counts.tolist()


def examples(key: str, number: int, around: int) -> pd.DataFrame:
    """`SAEFeatures.contexts` with the text of each token; empty without features. ValueError for those of another model."""
    found = features_of(key)
    if found is None:
        return pd.DataFrame()
    _refuse_other(library.entry(key, "sae"))
    return _examples(engine().fingerprint, str(found.path), found.stamp, number, around)


@st.cache_data(**KEPT)
def _examples(model_print: str, path: str, stamp: int, number: int, around: int) -> pd.DataFrame:
    with checked(model_print) as model:
        return _features(path, stamp).contexts(number, before=around, after=around, model=model)


def on_text(key: str, number: int, text: str) -> pd.DataFrame:
    """pos, token, value: activation on each token of a text; NaN where the SAE is not asked (position 0, special tokens).

    Raises:
        ValueError: an SAE of another model, an empty text, or one that is too long.
    """
    values = tints.activations(text, key, number)
    live = engine()
    ids = list(token_ids(text))
    with checked(live.fingerprint) as model:
        return pd.DataFrame({"pos": range(len(ids)), "token": _texts(model, ids), "value": values})


def steered(key: str, number: int, text: str, strength: float, n: int) -> tuple[str, str]:
    """The greedy continuation of a text without and with `strength` added to the latent at each token.

    Raises:
        ValueError: an SAE of another model, a text that is too long, or a strength that is not finite.
    """
    entry = library.entry(key, "sae")
    _refuse_other(entry)
    ids = list(token_ids(text))
    edit = interp.SteerLatent(tints.sae(key), number, "add", float(strength))
    with checked(engine().fingerprint) as model:
        plain = model.generate(ids, min(n, MOST_STEER))
        with model.intervene(edit):
            changed = model.generate(ids, min(n, MOST_STEER))
    return str(plain.text), str(changed.text)


def _texts(model: Any, ids: list[int]) -> list[str]:
    if model.tokenizer is None:
        return [f"⟨id {each}⟩" for each in ids]
    # One by one: in a list of unrelated tokens, neighbours must not join to one character.
    return [model.tokenizer.views([each])[0].display for each in ids]


def _refuse_other(entry: library.Entry) -> None:
    if not is_of_the_model(entry):
        raise ValueError(f"{entry.title} belongs to another model than the one that is loaded: choose its model")


# -------------------------------------------------------------------------------------------------------------- search


def by_label(key: str, text: str, n: int = 50) -> pd.DataFrame:
    """Latents whose label holds a text, in any case: latent, label, density. ValueError without labels."""
    labels = labels_of(key)
    if labels is None:
        raise ValueError("this SAE has no labels in the workspace: `interp sae label FEATURES` makes them")
    hits = labels.loc[labels["label"].str.casefold().str.contains(text.strip().casefold(), regex=False)]
    return _with_density(key, hits).head(n)


def by_prompt(key: str, prompt: str, position: int | None, hide_dense: bool, n: int = 50) -> pd.DataFrame:
    """Latents that fire on the prompt, or on one token of it; as `interp.search_by_prompt`."""
    entry = library.entry(key, "sae")
    _refuse_other(entry)
    found, dictionary = features_of(key), tints.sae(key)
    features = None if found is None else _features(str(found.path), found.stamp)
    most = DENSE if hide_dense and features is not None else None
    ids = list(token_ids(prompt))
    with checked(engine().fingerprint) as model:
        hits = interp.search_by_prompt(
            dictionary, model, ids, n=n, per_token=position is not None, features=features, max_density=most
        )
    if position is not None:
        hits = hits.loc[hits["position"] == position].rename(columns={"value": "activation"})
    else:
        hits = hits.rename(columns={"max": "activation"})
    return _named(key, hits.reset_index(drop=True))


def by_token(key: str, token: str, least: float, n: int = 50) -> tuple[pd.DataFrame, int]:
    """Latents that read, raise or lower a token, and how many hits were hidden since they fire on less than `least`."""
    found = features_of(key)
    if found is None:
        raise ValueError("this SAE has no features in the workspace: collect them on the page of the SAEs")
    features = _features(str(found.path), found.stamp)
    hits = interp.search_by_token(features, token, n=len(features.latents))
    kept = hits.loc[hits["density"] >= least]
    return _named(key, kept.groupby("role", sort=False).head(n).reset_index(drop=True)), len(hits) - len(kept)


def by_direction(key: str, vector: str, n: int = 30) -> pd.DataFrame:
    """Latents along a probe or steering vector of the workspace; as `interp.search_by_direction`.

    Raises:
        ValueError: a direction of another model than the SAE's, or of another width.
    """
    held, own = library.entry(vector, "probe", "steering vector"), library.entry(key, "sae")
    if None not in (held.model, own.model) and held.model != own.model:
        raise ValueError(f"{held.title} belongs to another model than the SAE: their directions cannot be compared")
    load = interp.load_probe if held.kind == "probe" else interp.load_steering_vector
    hits = interp.search_by_direction(tints.sae(key), load(held.path), n=n)
    return _named(key, _with_density(key, hits))


def _with_density(key: str, hits: pd.DataFrame) -> pd.DataFrame:
    found = features_of(key)
    if found is None:
        return hits
    return hits.merge(_table(str(found.path), found.stamp)[["latent", "density"]], on="latent", how="left")


def _named(key: str, hits: pd.DataFrame) -> pd.DataFrame:
    labels = labels_of(key)
    return hits if labels is None else hits.merge(labels, on="latent", how="left")
