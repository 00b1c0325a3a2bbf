"""Every line of a Neuronpedia export, against the columns of its database and against the feature tables."""

import dataclasses
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.recording import record
from interp.sae import SAE
from interp.sae.features import SAEFeatures, sae_features
from interp.sae.formats import neuronpedia
from interp.sae.formats.neuronpedia import export_neuronpedia
from interp.sae.labels import SAELabels, label_latents
from interp.store import Store

NAMES: dict[str, Any] = {
    "model_id": "tiny-llama",
    "source_set": "res-test",
    "release": "test-release",
    "creator": "somebody",
}
FLOATS, INTS, STRINGS = [float], [int], [str]
# Column -> type, as in Neuronpedia's schema: what the importer's INSERT would cast to.
FEATURE = {
    "modelId": str, "layer": str, "index": str, "sourceSetName": str, "creatorId": str, "maxActApprox": float,
    "hasVector": bool, "vector": FLOATS, "vectorLabel": None, "vectorDefaultSteerStrength": float, "hookName": str,
    "topkCosSimIndices": INTS, "topkCosSimValues": FLOATS, "neuron_alignment_indices": INTS,
    "neuron_alignment_values": FLOATS, "neuron_alignment_l1": FLOATS, "correlated_neurons_indices": INTS,
    "correlated_neurons_pearson": FLOATS, "correlated_neurons_l1": FLOATS, "correlated_features_indices": INTS,
    "correlated_features_pearson": FLOATS, "correlated_features_l1": FLOATS, "neg_str": STRINGS, "neg_values": FLOATS,
    "pos_str": STRINGS, "pos_values": FLOATS, "frac_nonzero": float, "freq_hist_data_bar_heights": FLOATS,
    "freq_hist_data_bar_values": FLOATS, "logits_hist_data_bar_heights": FLOATS, "logits_hist_data_bar_values": FLOATS,
    "decoder_weights_dist": FLOATS,
}  # fmt: skip
ACTIVATION = {
    "id": str, "modelId": str, "layer": str, "index": str, "creatorId": str, "tokens": STRINGS, "values": FLOATS,
    "maxValue": float, "maxValueTokenIndex": int, "minValue": float, "qualifyingTokenIndex": int, "binMin": float,
    "binMax": float, "binContains": float, "dataIndex": str, "dataSource": str, "dfaValues": FLOATS,
    "dfaTargetIndex": None, "dfaMaxValue": None, "lossValues": FLOATS, "logitContributions": None,
}  # fmt: skip
EXPLANATION = {
    "id": str, "modelId": str, "layer": str, "index": str, "description": str, "authorId": str, "typeName": None,
    "explanationModelName": None, "notes": str,
}  # fmt: skip
REQUIRED = {
    "release": {"name", "description", "urls", "creatorName", "creatorId"},
    "model": {"id", "creatorId", "layers", "neuronsPerLayer", "owner"},
    "sourceset": {"modelId", "name", "description", "creatorName", "urls", "creatorId", "releaseName"},
    "source": {"id", "modelId", "setName", "creatorId"},
}


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model("llama", scale=2.0)


@pytest.fixture(scope="module")
def store(model: HookedTransformer) -> Store:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["river", "stone", "cloud", "Paris", "7", "é"], size=6)) for _ in range(40)]
    return record(model, texts, sites="resid_post:1", dtype="float32", progress=False)


@pytest.fixture(scope="module")
def sae() -> SAE:
    """Random directions, of which one fires never."""
    W_dec = torch.nn.functional.normalize(torch.randn(64, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    b_enc = torch.zeros(64)
    b_enc[50] = -1e6
    return SAE(W_dec.T.clone(), b_enc, W_dec, torch.zeros(32), k=4, card={"site": "blocks.1.hook_resid_post"})


@pytest.fixture(scope="module")
def features(sae: SAE, store: Store, model: HookedTransformer) -> SAEFeatures:
    return sae_features(sae, store, model=model, n_examples=4, n_intervals=3)


@pytest.fixture(scope="module")
def labels(features: SAEFeatures, store: Store, model: HookedTransformer) -> SAELabels:
    return label_latents(
        features, store, model, lambda page: f"latent number {page.latent}", latents=[0, 40], n_others=0
    )


@pytest.fixture(scope="module")
def folder(
    features: SAEFeatures,
    sae: SAE,
    store: Store,
    model: HookedTransformer,
    labels: SAELabels,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    place = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neuronpedia, "BATCH", 30)
        return export_neuronpedia(
            features, sae, store, model, place, labels=labels, n_context=12, dataset="words",
            urls=("https://example.com",), **NAMES,
        )  # fmt: skip


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    for number in range(len(list((folder / kind).iterdir()))):
        text = gzip.decompress((folder / kind / f"batch-{number}.jsonl.gz").read_bytes()).decode()
        assert text.endswith("\n")
        found += [json.loads(line) for line in text.splitlines()]
    return found


def check(line: dict[str, Any], schema: dict[str, Any]) -> None:
    assert line.keys() == schema.keys()
    for name, wanted in schema.items():
        value = line[name]
        if isinstance(wanted, list):
            assert all(type(each) is wanted[0] for each in value), name
        elif wanted is None:
            assert value is None, name
        else:
            assert type(value) is wanted, name
    assert (line["modelId"], line["layer"]) == ("tiny-llama", "1-res-test")


def test_the_folder_and_its_four_lines(folder: Path, store: Store, model: HookedTransformer) -> None:
    assert folder.parts[-2:] == ("tiny-llama", "1-res-test")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    batches = {f"{kind}/batch-{number}.jsonl.gz" for kind in ("features", "activations") for number in range(3)}
    explained = {f"explanations/batch-{number}.jsonl.gz" for number in range(2)}
    assert names == {f"{name}.jsonl" for name in REQUIRED} | batches | explained
    found = {name: json.loads((folder / f"{name}.jsonl").read_text()) for name in REQUIRED}
    for name, required in REQUIRED.items():
        assert required <= set(found[name])
        assert None not in found[name].values()
        assert found[name]["visibility"] == "PUBLIC"
    assert found["source"]["id"] == "1-res-test"
    assert found["source"]["setName"] == found["sourceset"]["name"] == "res-test"
    assert found["sourceset"]["releaseName"] == found["release"]["name"] == "test-release"
    assert found["source"]["modelId"] == found["sourceset"]["modelId"] == found["model"]["id"] == "tiny-llama"
    assert (found["model"]["layers"], found["model"]["neuronsPerLayer"], found["model"]["dimension"]) == (2, 64, 32)
    assert found["source"]["num_prompts"] == store.n_texts
    assert found["release"]["urls"] == ["https://example.com"]


def test_features_are_those_of_the_tables(
    folder: Path, features: SAEFeatures, sae: SAE, model: HookedTransformer
) -> None:
    found = lines(folder, "features")
    assert [line["index"] for line in found] == [str(latent) for latent in range(sae.n_latents)]
    norm = model.ln_final.weight
    effect = (torch.nn.functional.rms_norm(sae.W_dec, (32,), eps=model.cfg.norm_eps) * norm) @ model.W_U
    for line, row, logits in zip(found, features.latents.itertuples(), effect, strict=True):
        check(line, FEATURE)
        assert line["hookName"] == "blocks.1.hook_resid_post"
        assert line["frac_nonzero"] == row.density
        assert line["vector"] == pytest.approx(sae.W_dec[row.latent].tolist(), rel=1e-5)
        assert len(line["topkCosSimIndices"]) == len(line["topkCosSimValues"]) == 5
        assert line["topkCosSimIndices"] == list(row.decoder_latents)
        assert np.argsort(-sae.W_dec[row.latent].numpy())[:3].tolist() == line["neuron_alignment_indices"]
        assert line["neuron_alignment_values"] == sorted(line["neuron_alignment_values"], reverse=True)
        assert line["pos_values"] == pytest.approx(logits.topk(10).values.tolist(), rel=1e-4, abs=1e-5)
        assert line["neg_values"] == pytest.approx(logits.topk(10, largest=False).values.tolist(), rel=1e-4, abs=1e-5)
        assert line["pos_str"][:5] == list(row.up_tokens)
        assert line["neg_str"][:5] == list(row.down_tokens)
        assert sum(line["logits_hist_data_bar_heights"]) == len(logits)
        assert len(line["logits_hist_data_bar_values"]) == 50
        assert sum(line["freq_hist_data_bar_heights"]) == row.n_active
        if row.n_active:
            assert line["maxActApprox"] == pytest.approx(row.max, rel=1e-5)
            assert 0 < line["freq_hist_data_bar_values"][0] < line["freq_hist_data_bar_values"][-1] < row.max
        else:
            assert line["maxActApprox"] == 0
            assert line["freq_hist_data_bar_values"] == []


def test_a_latent_that_never_fires_has_a_line_without_examples(folder: Path) -> None:
    line = next(line for line in lines(folder, "features") if line["index"] == "50")
    assert (line["frac_nonzero"], line["maxActApprox"]) == (0, 0)
    assert all(line["index"] != "50" for line in lines(folder, "activations"))


def test_activations_are_those_of_the_examples(folder: Path, features: SAEFeatures, sae: SAE, store: Store) -> None:
    found = lines(folder, "activations")
    assert len(found) == len(features.examples) + len(features.interval_examples)
    assert len({line["id"] for line in found}) == len(found)
    site = "blocks.1.hook_resid_post"
    dense = sae.encode(store.rows(site, slice(None))).numpy() * store.typical(site)[:, None]
    by_latent: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in found:
        check(line, ACTIVATION)
        assert len(line["id"]) == 25
        assert len(line["tokens"]) == len(line["values"]) <= 12
        assert line["maxValue"] == max(line["values"]) == line["values"][line["maxValueTokenIndex"]]
        assert line["minValue"] == min(line["values"])
        assert line["values"][line["qualifyingTokenIndex"]] > 0
        text = store.examples.loc[int(line["dataIndex"]), "text"]
        assert "".join(line["tokens"]) in text
        by_latent[int(line["index"])].append(line)
    assert set(by_latent) == set(features.examples["latent"])
    tokens = store.tokens
    for latent, own in by_latent.items():
        top = features.examples[features.examples["latent"] == latent]
        strongest = own[: len(top)]
        assert [line["values"][line["qualifyingTokenIndex"]] for line in strongest] == pytest.approx(
            top["value"], rel=1e-5
        )
        for line, row in zip(strongest, top.itertuples(), strict=True):
            assert (line["binMin"], line["binContains"]) == (-1, -1)
            start = row.position - line["qualifyingTokenIndex"]
            rows = tokens.index[tokens["text"] == row.text][start : start + len(line["tokens"])]
            assert line["values"] == pytest.approx(dense[rows, latent], rel=1e-4, abs=1e-6)
        drawn, shares = own[len(top) :], {}
        for line in drawn:
            value = line["values"][line["qualifyingTokenIndex"]]
            assert line["binMin"] * (1 - 1e-5) <= value <= line["binMax"] * (1 + 1e-5)
            shares[line["binMax"]] = line["binContains"]
        density = features.latents["density"].iloc[latent]
        assert sum(shares.values()) == pytest.approx(density)


def test_labels_become_explanations(folder: Path) -> None:
    found = lines(folder, "explanations")
    assert [(line["index"], line["description"]) for line in found] == [
        ("0", "latent number 0"),
        ("40", "latent number 40"),
    ]
    for line in found:
        check(line, EXPLANATION)


def test_equal_exports_are_equal_bytes(
    features: SAEFeatures, sae: SAE, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    args = (features, sae, store, model)
    steps: list[tuple[int, int]] = []
    one, two = (
        export_neuronpedia(*args, tmp_path / name, latents=[3, 1, 5], progress=lambda *at: steps.append(at), **NAMES)
        for name in ("one", "two")
    )
    assert steps == [(3, 3), (3, 3)]
    assert [line["index"] for line in lines(one, "features")] == ["3", "1", "5"]
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 6
    for name in files:
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_what_makes_no_export_is_refused(
    features: SAEFeatures, labels: SAELabels, sae: SAE, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    args = (features, sae, store, model)
    export_neuronpedia(*args, tmp_path, latents=[0], source_id="7-mine", **NAMES)
    with pytest.raises(ValueError, match="7-mine exists already"):
        export_neuronpedia(*args, tmp_path, latents=[0], source_id="7-mine", **NAMES)
    with pytest.raises(ValueError, match="there is no latent 64"):
        export_neuronpedia(*args, tmp_path, latents=[64], **NAMES)
    with pytest.raises(ValueError, match=r"source_set='\.\./up' is no name"):
        export_neuronpedia(*args, tmp_path, **{**NAMES, "source_set": "../up"})
    with pytest.raises(ValueError, match="creator=' ' is empty"):
        export_neuronpedia(*args, tmp_path, **{**NAMES, "creator": " "})
    with pytest.raises(ValueError, match="none of PUBLIC"):
        export_neuronpedia(*args, tmp_path, visibility="public", **NAMES)
    for n_context in (1, "a", None, 2.5):
        with pytest.raises(ValueError, match=f"n_context={n_context!r} must be a whole number"):
            export_neuronpedia(*args, tmp_path, n_context=n_context, **NAMES)
    for name in ("release", "model_id"):
        with pytest.raises(ValueError, match=f"{name}=None is no name"):
            export_neuronpedia(*args, tmp_path, **{**NAMES, name: None})
    with pytest.raises(ValueError, match="latents is empty"):
        export_neuronpedia(*args, tmp_path, latents=[], **NAMES)
    with pytest.raises(ValueError, match="latents=3 is no list"):
        export_neuronpedia(*args, tmp_path, latents=3, **NAMES)
    strange = dataclasses.replace(labels, card={**labels.card, "sae": "another"})
    with pytest.raises(ValueError, match="labels are of another SAE"):
        export_neuronpedia(*args, tmp_path, labels=strange, **NAMES)
    other = SAE(sae.W_enc, sae.b_enc + 1, sae.W_dec, sae.b_dec, k=sae.k, card=sae.card)
    with pytest.raises(ValueError, match="features are of another SAE"):
        export_neuronpedia(features, other, store, model, tmp_path, **NAMES)
    assert sorted(path.name for path in (tmp_path / "tiny-llama").iterdir()) == ["7-mine"]
