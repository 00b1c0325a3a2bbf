"""Vectors of other tools: the numbers of their files, the effect of their multipliers, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from checkpoints import byte_backend, random_gpt2, random_llama
from tiny import tiny_model
from torch import Tensor, nn
from transformers import PreTrainedModel

import interp
from interp.intervene import Steer
from interp.intervene.targets import Target
from interp.model import HookedTransformer
from interp.steering.formats import from_repeng, from_steering_vectors, load_control_vectors, save_control_vectors
from interp.steering.vector import SteeringVector
from interp.steering.vectors import SteeringVectors, load_steering_vectors
from interp.tokens import Tokenizer

REFERENCE = ["the first of two texts", "and here is the other one", "of them all the longest text is this one"]
TEXT = "a few words to read"


def random_rows(layers: range | tuple[int, ...], width: int = 32, seed: int = 0) -> dict[int, np.ndarray]:
    """Rows in float32 of no particular length."""
    generator = np.random.default_rng(seed)
    return {layer: (3 * generator.normal(size=width)).astype(np.float32) for layer in layers}


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    """Four blocks, 32 wide."""
    return tiny_model("llama", n_layers=4)


def write_as_repeng(path: Path, rows: dict[int, np.ndarray], hint: str = "llama", kind: str = "controlvector") -> Path:
    """What repeng's export does, call for call."""
    writer = gguf.GGUFWriter(path, kind)
    writer.add_string(f"{kind}.model_hint", hint)
    writer.add_uint32(f"{kind}.layer_count", len(rows))
    for layer, row in rows.items():
        writer.add_tensor(f"direction.{layer}", row)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """What gguf's own reader finds."""
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def logits_with(model: HookedTransformer, *interventions: Any) -> Tensor:
    with model.intervene(*interventions):
        return model(TEXT)


def logits_with_rows(model: HookedTransformer, rows: dict[int, np.ndarray], scale: float = 1.0) -> Tensor:
    """Rows added to the outputs of blocks by plain hooks: what llama.cpp and repeng do."""

    def adding(row: np.ndarray) -> Callable[..., Tensor]:
        return lambda value, ctx: value + scale * torch.from_numpy(row)

    with model.hooks({f"resid_post:{layer}": adding(row) for layer, row in rows.items()}):
        return model(TEXT)


# ---------------------------------------------------------------------------------------------------------------- GGUF


def test_a_file_survives_the_round_trip_bit_for_bit(model: HookedTransformer, tmp_path: Path) -> None:
    rows = random_rows((3, 1, 2))
    theirs = write_as_repeng(tmp_path / "theirs.gguf", rows)
    vectors = load_control_vectors(theirs, model, reference=REFERENCE)
    ours = save_control_vectors(vectors, tmp_path / "ours.gguf", model=model, strength=1, unit="raw")
    again = load_control_vectors(ours, model)
    third = save_control_vectors(again, tmp_path / "third.gguf", model=model, strength=1, unit="raw")
    for path in (ours, third):
        found = tensors_of(path)
        assert list(found) == ["direction.1", "direction.2", "direction.3"]
        assert all(np.array_equal(found[f"direction.{layer}"], row) for layer, row in rows.items())
    for before, after in zip(vectors, again, strict=True):
        assert torch.equal(before.direction, after.direction)
        units = [(v.site, v.typical_norm, v.sd, v.raw_norm, v.length) for v in (before, after)]
        assert units[0] == units[1]
    assert again.card["written_from"]["method"] == "control vector (GGUF)"
    assert again.card["typical_norm_from"] == "the file"


def test_what_the_file_says_of_itself(model: HookedTransformer, tmp_path: Path) -> None:
    vector = SteeringVector(torch.eye(32)[3], "blocks.2.hook_resid_post", typical_norm=5.0, sd=0.5)
    path = save_control_vectors(vector, tmp_path / "v.gguf", model=model, strength=0.5)
    reader = gguf.GGUFReader(path)
    said = {key: field.contents() for key, field in reader.fields.items()}
    assert said["general.architecture"] == "controlvector"
    assert said["controlvector.model_hint"] == "llama"
    assert said["controlvector.layer_count"] == 1
    (tensor,) = reader.tensors
    assert (tensor.name, tensor.shape.tolist(), tensor.tensor_type) == (
        "direction.2",
        [32],
        gguf.GGMLQuantizationType.F32,
    )
    np.testing.assert_array_equal(tensor.data, 2.5 * np.eye(32, dtype=np.float32)[3])
    first = path.read_bytes()
    assert save_control_vectors(vector, path, model=model, strength=0.5).read_bytes() == first


@pytest.mark.parametrize(("strength", "unit"), [(0.3, "norm"), (-2.0, "sd"), (1.5, "raw")])
def test_a_file_holds_what_the_strength_adds(
    model: HookedTransformer, tmp_path: Path, strength: float, unit: str
) -> None:
    vectors = 0.7 * from_repeng(random_rows((1, 3)), model, reference=REFERENCE)
    path = save_control_vectors(vectors, tmp_path / "v.gguf", model=model, strength=strength, unit=unit)
    steered = logits_with(model, Steer(vectors, strength, unit=unit))
    rows = {int(name.removeprefix("direction.")): row for name, row in tensors_of(path).items()}
    assert torch.equal(steered, logits_with_rows(model, rows))
    assert torch.equal(steered, logits_with(model, Steer(load_control_vectors(path, model), 1, unit="raw")))
    assert not torch.equal(steered, model(TEXT))


def test_a_file_of_repeng_at_multipliers(model: HookedTransformer, tmp_path: Path) -> None:
    rows = random_rows((1, 2, 3))
    vectors = load_control_vectors(write_as_repeng(tmp_path / "r.gguf", rows), model, reference=REFERENCE)
    assert torch.equal(logits_with(model, Steer(vectors, 1, unit="raw")), logits_with_rows(model, rows))
    for scale in (-1.5, 0.3):
        theirs = logits_with_rows(model, rows, scale)
        torch.testing.assert_close(logits_with(model, Steer(vectors, scale, unit="raw")), theirs, atol=1e-5, rtol=1e-5)


def test_layers_of_zeros_are_left_out(model: HookedTransformer, tmp_path: Path) -> None:
    rows = random_rows((1, 2)) | {3: np.zeros(32, np.float32)}
    vectors = load_control_vectors(write_as_repeng(tmp_path / "r.gguf", rows), model, reference=REFERENCE)
    assert vectors.sites == ["blocks.1.hook_resid_post", "blocks.2.hook_resid_post"]
    with pytest.raises(ValueError, match="but zeros"):
        from_repeng({1: np.zeros(32)}, model, reference=REFERENCE)


@pytest.mark.parametrize(("family", "hints"), [("mistral", ("llama", "mistral")), ("neox", ())])
def test_hints_of_either_tool_are_known(family: str, hints: tuple[str, ...], tmp_path: Path) -> None:
    model = tiny_model(family)
    for hint in hints or ("anything",):  # the toy `neox` is of no released family, and any hint will do
        path = write_as_repeng(tmp_path / f"{hint}.gguf", random_rows((1,)), hint)
        assert len(load_control_vectors(path, model, reference=REFERENCE)) == 1
    vector = SteeringVector(torch.eye(32)[0], "blocks.1.hook_resid_post", 1.0)
    if hints:
        path = save_control_vectors(vector, tmp_path / "ours.gguf", model=model)
        assert gguf.GGUFReader(path).fields["controlvector.model_hint"].contents() == "llama"
    else:
        with pytest.raises(ValueError, match="model_hint='llama'"):
            save_control_vectors(vector, tmp_path / "ours.gguf", model=model)


def test_files_that_are_refused(model: HookedTransformer, tmp_path: Path) -> None:
    def refused(match: str, rows: dict[int, np.ndarray], **options: Any) -> None:
        path = write_as_repeng(tmp_path / "bad.gguf", rows, **options)
        with pytest.raises(ValueError, match=match):
            load_control_vectors(path, model, reference=REFERENCE)

    good = random_rows((1,))
    refused("interp.load reads it", good, kind="llama")
    refused("model_hint='gemma2'", good, hint="gemma2")
    refused("32 wide", random_rows((1,), width=16))
    refused("layers 0 to 3", random_rows((7,)))
    refused("block 0 has none", random_rows((0, 1)))
    refused("NaN or infinite", {1: np.full(32, np.nan, np.float32)})
    refused("F16", {1: good[1].astype(np.float16)})
    refused("2 dimensions", {1: np.ones((2, 32), np.float32)})
    refused("holds no vector", {})
    path = write_as_repeng(tmp_path / "other.gguf", good, hint="gemma2")
    assert len(load_control_vectors(path, model, reference=REFERENCE, model_hint="gemma2")) == 1
    with pytest.raises(ValueError, match="give reference="):
        load_control_vectors(write_as_repeng(tmp_path / "r.gguf", good), model)
    with pytest.raises(ValueError, match="there is no file"):
        load_control_vectors(tmp_path / "none.gguf", model)
    for content in (b"", b"GGUF", b"no such file at all, but a long enough one", path.read_bytes()[:150]):
        (tmp_path / "broken.gguf").write_bytes(content)
        with pytest.raises(ValueError, match="not a whole GGUF file"):
            load_control_vectors(tmp_path / "broken.gguf", model)


def test_a_file_of_another_model_or_with_damaged_notes(model: HookedTransformer, tmp_path: Path) -> None:
    vectors = from_repeng(random_rows((1,)), model, reference=REFERENCE)
    path = save_control_vectors(vectors, tmp_path / "v.gguf", model=model)
    with pytest.raises(ValueError, match="another model"):
        load_control_vectors(path, tiny_model("llama", seed=1, n_layers=4))
    path.write_bytes(path.read_bytes().replace(b'"typical_norm"', b'"typical_size"'))
    with pytest.raises(ValueError, match="damaged"):
        load_control_vectors(path, model)


def test_vectors_that_cannot_be_written(model: HookedTransformer, tmp_path: Path) -> None:
    path, direction = tmp_path / "v.gguf", torch.eye(32)[0]
    vector = SteeringVector(direction, "blocks.1.hook_resid_post", 2.0)
    path.write_text("what is there")

    def refused(match: str, vectors: Any, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            save_control_vectors(vectors, path, **{"model": model, **options})

    refused("no place for block 0", SteeringVector(direction, "blocks.0.hook_resid_post", 2.0))
    head = Target("blocks.1.attn.hook_z", torch.eye(8)[0], 1.0, 2.0, head=3)
    refused("stands at z:1.3", head)
    refused("stands at mlp_out:1", SteeringVector(direction, "blocks.1.hook_mlp_out", 2.0))
    refused("no place for the vector", SteeringVector(torch.eye(16)[0], "blocks.1.hook_resid_post", 2.0))
    refused("no place for the vector", SteeringVector(direction, "blocks.9.hook_resid_post", 2.0))
    refused(
        "fitted on another model", SteeringVector(direction, vector.site, 2.0, card={"fingerprint": "f", "model": "m"})
    )
    refused("give model=", vector, model=None)
    for strength in (0, float("nan"), "1", True):
        refused("finite number other than 0", vector, strength=strength)
    for strength in (1e60, 1e-60):
        refused("does not fit into float32", vector, strength=strength)
    refused("unit='volts'", vector, unit="volts")
    refused("unit='sd'", vector, unit="sd")
    refused("unit='raw'", vector, unit="raw")
    refused("takes a steering vector", direction)
    assert path.read_text() == "what is there"
    assert save_control_vectors(SteeringVectors((vector,)), path, model_hint="llama").stat().st_size > 100


# --------------------------------------------------------------------------------------------- repeng, steering-vectors


def test_repeng_counts_from_the_end_too(model: HookedTransformer) -> None:
    rows = random_rows((0, 3))
    read_only = np.frombuffer(rows[3].tobytes(), np.float32)
    vectors = from_repeng({-1: read_only, -4: torch.from_numpy(rows[0]).bfloat16()}, model, reference=REFERENCE)
    assert vectors.sites == ["blocks.0.hook_resid_post", "blocks.3.hook_resid_post"]
    rounded = {**rows, 0: torch.from_numpy(rows[0]).bfloat16().float().numpy()}
    assert torch.equal(logits_with(model, Steer(vectors, 1, unit="raw")), logits_with_rows(model, rounded))


def test_typical_norms_come_from_the_reference(model: HookedTransformer, tmp_path: Path) -> None:
    rows = random_rows((1, 2))
    texts = from_repeng(rows, model, reference=REFERENCE)
    sites = ["resid_post:1", "resid_post:2"]
    store = from_repeng(rows, model, reference=interp.record(model, REFERENCE, sites, path=tmp_path / "store"))
    _, cache = model.run_with_cache(REFERENCE, sites=sites)
    real = cache.tokens.mask & (torch.arange(cache.tokens.ids.shape[1]) > 0)
    for site, row in zip(sites, rows.values(), strict=True):
        typical = cache[texts[site].site][real].double()
        unit = torch.from_numpy(row).double() / np.linalg.norm(row.astype(float))
        assert texts[site].typical_norm == pytest.approx(float(typical.norm(dim=-1).quantile(0.5)), rel=0.02)
        assert texts[site].sd == pytest.approx(float((typical @ unit).std()), rel=1e-5)
        assert store[site].typical_norm == pytest.approx(texts[site].typical_norm, rel=0.02)
        assert store[site].sd == pytest.approx(texts[site].sd, rel=1e-3)  # a store holds float16
    with pytest.raises(ValueError, match="reference store has no resid_post:2"):
        from_repeng(rows, model, reference=interp.record(model, REFERENCE, sites[0], path=tmp_path / "small"))


def test_mappings_that_are_refused(model: HookedTransformer) -> None:
    row = random_rows((1,))[1]
    cases: list[tuple[Any, str]] = [
        ([row], "expected a mapping"),
        ({}, "holds no vector"),
        ({4: row}, "layers 0 to 3"),
        ({-5: row}, "layers 0 to 3"),
        ({"1": row}, "layers 0 to 3"),
        ({True: row}, "layers 0 to 3"),
        ({3: row, -1: row}, "two vectors for layer 3"),
        ({1: row[:-1]}, "32 wide"),
        ({1: np.stack([row, row])}, "32 wide"),
        ({1: "no numbers"}, "no row of numbers"),
        ({1: [[1.0], [1.0, 2.0]]}, "no row of numbers"),
        ({1: row * np.inf}, "NaN or infinite"),
    ]
    for mapping, match in cases:
        with pytest.raises(ValueError, match=match):
            from_repeng(mapping, model, reference=REFERENCE)
    with pytest.raises(ValueError, match="give reference="):
        from_repeng({1: row}, model)
    with pytest.raises(ValueError, match="reference must be"):
        from_repeng({1: row}, model, reference="one text")


def add_as_steering_vectors(model: nn.Module, rows: dict[str, np.ndarray], multiplier: float) -> list[Any]:
    """Forward hooks on named modules that add to what they put out: what `SteeringVector.patch_activations` does."""

    def adding(row: np.ndarray) -> Callable[..., Any]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            new = first + multiplier * torch.from_numpy(row)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        return hook

    return [model.get_submodule(name).register_forward_hook(adding(row)) for name, row in rows.items()]


@pytest.mark.parametrize(
    ("make", "modules"),
    [
        (random_llama, {"decoder_block": "model.layers.1", "self_attn": "model.layers.1.self_attn", "mlp": "model.layers.1.mlp"}),
        (random_gpt2, {"decoder_block": "transformer.h.1", "self_attn": "transformer.h.1.attn", "mlp": "transformer.h.1.mlp"}),
    ],
)  # fmt: skip
def test_layer_types_are_the_modules_of_transformers(
    make: Callable[[], PreTrainedModel], modules: dict[str, str], tmp_path: Path
) -> None:
    theirs = make()
    theirs.save_pretrained(tmp_path)
    Tokenizer(byte_backend(), bos_id=0, eos_id=1, special_ids=[0, 1, 2]).save(tmp_path)
    ours = interp.load(tmp_path)
    ids = ours.tokenize(TEXT).ids
    row = random_rows((1,), ours.cfg.d_model)[1]
    for layer_type, module in modules.items():
        vectors = from_steering_vectors({1: torch.from_numpy(row)}, ours, layer_type=layer_type, reference=REFERENCE)
        for multiplier in (1.0, -0.4):
            handles = add_as_steering_vectors(theirs, {module: row}, multiplier)
            with torch.no_grad():
                expected = theirs(ids).logits
            for handle in handles:
                handle.remove()
            torch.testing.assert_close(
                logits_with(ours, Steer(vectors, multiplier, unit="raw")), expected, atol=2e-4, rtol=1e-4
            )


def test_layer_types_without_a_site(model: HookedTransformer) -> None:
    row = torch.ones(32)
    for layer_type in ("input_layernorm", "post_attention_layernorm", "heads"):
        with pytest.raises(ValueError, match="has no site"):
            from_steering_vectors({1: row}, model, layer_type=layer_type, reference=REFERENCE)
    for family in ("gemma2", "olmo2"):
        other = tiny_model(family)
        assert len(from_steering_vectors({1: row}, other, reference=REFERENCE)) == 1
        with pytest.raises(ValueError, match="Fit it again at decoder_block"):
            from_steering_vectors({1: row}, other, layer_type="mlp", reference=REFERENCE)


def test_what_is_read_works_like_any_other_vector(model: HookedTransformer, tmp_path: Path) -> None:
    vectors = from_repeng(random_rows((1, 2)), model, reference=REFERENCE)
    first = vectors["resid_post:1"]
    assert first.cosine(first) == pytest.approx(1)
    both = 0.5 * vectors - from_repeng(random_rows((1, 2), seed=1), model, reference=REFERENCE)
    assert len(both) == 2
    vectors.save(tmp_path / "v.safetensors")
    again = load_steering_vectors(tmp_path / "v.safetensors")
    assert torch.equal(again["resid_post:1"].direction, first.direction)
