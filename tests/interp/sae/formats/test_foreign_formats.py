"""Files of other libraries, written by hand in their published layout, against the forward that each library defines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear

from interp.sae.formats import (
    load_circuit_tracer,
    load_dictionary_learning,
    load_gemma_scope,
    load_openai_sae,
    load_sparsify,
    normalize_rows,
)

D, LATENTS, D_OUT, K = 6, 20, 9, 4


def top(pre: Tensor, k: int) -> Tensor:
    """All but the k largest of each row set to 0, and negative ones too."""
    return torch.zeros_like(pre).scatter(-1, pre.topk(k, dim=-1).indices, pre.topk(k, dim=-1).values).relu()


# ------------------------------------------------------------------------------------------------ dictionary_learning


def dictionary(folder: Path, name: str, state: dict[str, Any], **trainer: Any) -> Path:
    folder.mkdir()
    torch.save(state, folder / "ae.pt")
    settings = {"dict_class": name, "trainer_class": "SomeTrainer", "layer": 8, "lm_name": "some/model", **trainer}
    (folder / "config.json").write_text(json.dumps({"trainer": settings, "buffer": {"ctx_len": 128}}))
    return folder


def linear_state(draw: Callable[..., Tensor]) -> dict[str, Any]:
    return {"encoder.weight": draw(LATENTS, D), "encoder.bias": draw(LATENTS), "decoder.weight": draw(D, LATENTS)}


def plain_state(draw: Callable[..., Tensor]) -> dict[str, Any]:
    return {"W_enc": draw(D, LATENTS), "b_enc": draw(LATENTS), "W_dec": draw(LATENTS, D), "b_dec": draw(D)}


def test_dictionary_standard(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    s = {**linear_state(draw), "bias": draw(D)}
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "AutoEncoder", s, submodule_name="resid_post_layer_8"))
    acts = linear(x - s["bias"], s["encoder.weight"], s["encoder.bias"]).relu()
    same_rows(sae(x), linear(acts, s["decoder.weight"]) + s["bias"])
    assert sae.sites == ("blocks.8.hook_resid_post",)
    assert sae.card["imported"]["trainer"]["lm_name"] == "some/model"


def test_dictionary_april_update(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    s = {**linear_state(draw), "decoder.bias": draw(D)}
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in s.items()}
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "AutoEncoderNew", compiled))
    acts = linear(x, s["encoder.weight"], s["encoder.bias"]).relu()
    same_rows(sae(x), linear(acts, s["decoder.weight"], s["decoder.bias"]))
    assert sae.sites == ()


def test_dictionary_gated(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    s = linear_state(draw)
    del s["encoder.bias"]
    s |= {name: draw(LATENTS) for name in ("gate_bias", "mag_bias", "r_mag")} | {"decoder_bias": draw(D)}
    h = linear(x - s["decoder_bias"], s["encoder.weight"])
    acts = (h + s["gate_bias"] > 0) * (s["r_mag"].exp() * h + s["mag_bias"]).relu()
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "GatedAutoEncoder", s), site="resid_post:8")
    same_rows(sae(x), linear(acts, s["decoder.weight"]) + s["decoder_bias"])
    torch.testing.assert_close(sae.encode(x), acts * s["decoder.weight"].norm(dim=0), atol=1e-5, rtol=1e-5)


def test_dictionary_topk(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    # The threshold is trained beside and not used.
    s = {**linear_state(draw), "b_dec": draw(D), "k": torch.tensor(K, dtype=torch.int), "threshold": torch.tensor(9.0)}
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "AutoEncoderTopK", s))
    acts = top(linear(x - s["b_dec"], s["encoder.weight"], s["encoder.bias"]), K)
    same_rows(sae(x), linear(acts, s["decoder.weight"]) + s["b_dec"])
    assert (sae.architecture, sae.k) == ("topk", K)


def test_dictionary_batch_topk(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    s = {**linear_state(draw), "b_dec": draw(D), "k": torch.tensor(K), "threshold": torch.tensor(0.7)}
    acts = linear(x - s["b_dec"], s["encoder.weight"], s["encoder.bias"]).relu()
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "BatchTopKSAE", s))
    same_rows(sae(x), linear(acts * (acts > 0.7), s["decoder.weight"]) + s["b_dec"])
    assert (sae.architecture, sae.card["config"]["kind"]) == ("jumprelu", "batchtopk")
    del s["threshold"]
    with pytest.raises(ValueError, match="depends on the whole batch"):
        load_dictionary_learning(dictionary(tmp_path / "b", "BatchTopKSAE", s))


def test_dictionary_matryoshka_before_its_threshold(
    draw: Callable[..., Tensor],
    x: Tensor,
    same_rows: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    s = {
        **plain_state(draw),
        "k": torch.tensor(K),
        "threshold": torch.tensor(0.5),
        "group_sizes": torch.tensor([8, 12]),
    }
    acts = ((x - s["b_dec"]) @ s["W_enc"] + s["b_enc"]).relu()
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "MatryoshkaBatchTopKSAE", s))
    same_rows(sae(x), (acts * (acts > 0.5)) @ s["W_dec"] + s["b_dec"])
    assert sae.card["config"]["kind"] == "matryoshka"
    s["threshold"] = torch.tensor(-1.0)
    young = load_dictionary_learning(dictionary(tmp_path / "b", "MatryoshkaBatchTopKSAE", s))
    same_rows(young(x), acts @ s["W_dec"] + s["b_dec"])
    assert "has not learned a threshold yet" in caplog.text


def test_dictionary_jumprelu(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    s = {**plain_state(draw), "threshold": draw(LATENTS).abs()}
    pre = x @ s["W_enc"] + s["b_enc"]
    acts = (pre * (pre > s["threshold"])).relu()
    sae = load_dictionary_learning(dictionary(tmp_path / "a", "JumpReluAutoEncoder", s))
    same_rows(sae(x), acts @ s["W_dec"] + s["b_dec"])
    torch.testing.assert_close(sae.encode(x), acts * s["W_dec"].norm(dim=1), atol=1e-5, rtol=1e-5)


def test_dictionary_that_cannot_be_read(draw: Callable[..., Tensor], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'CrossCoder'; known are AutoEncoder"):
        load_dictionary_learning(dictionary(tmp_path / "a", "CrossCoder", {}))
    s = {**linear_state(draw), "b_dec": draw(D)}
    with pytest.raises(ValueError, match="neither of its files says k"):
        load_dictionary_learning(dictionary(tmp_path / "b", "AutoEncoderTopK", s))
    (tmp_path / "b" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no trainer\.dict_class"):
        load_dictionary_learning(tmp_path / "b")


# ----------------------------------------------------------------------------------------------------------- sparsify


def coder(folder: Path, draw: Callable[..., Tensor], **options: Any) -> dict[str, Tensor]:
    """A folder of sparsify; its tensors. W_dec stands as the encoder does, [latent d]."""
    tensors = {
        "encoder.weight": draw(LATENTS, D),
        "encoder.bias": draw(LATENTS),
        "W_dec": draw(LATENTS, D),
        "b_dec": draw(D),
    }
    if options.get("skip_connection"):
        tensors["W_skip"] = draw(D, D)
    cfg = {
        "activation": "topk",
        "expansion_factor": 32,
        "normalize_decoder": True,
        "num_latents": LATENTS,
        "k": K,
        "multi_topk": False,
        "skip_connection": False,
        "transcode": False,
        "d_in": D,
        **options,
    }
    folder.mkdir()
    (folder / "cfg.json").write_text(json.dumps(cfg))
    save_file(tensors, folder / "sae.safetensors")
    return tensors


def test_sparsify_autoencoder(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = coder(tmp_path / "layers.5", draw)
    sae = load_sparsify(tmp_path / "layers.5")
    best = linear(x - t["b_dec"], t["encoder.weight"], t["encoder.bias"]).relu().topk(K, sorted=False)
    want = torch.stack([v @ t["W_dec"][i] for v, i in zip(best.values, best.indices, strict=True)]) + t["b_dec"]
    same_rows(sae(x), want)
    assert sae.sites == ("blocks.5.hook_resid_post",)


@pytest.mark.parametrize("skip", [False, True])
def test_sparsify_transcoder(
    skip: bool, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = coder(tmp_path / "layers.5.mlp", draw, transcode=True, skip_connection=skip)
    want = top(linear(x, t["encoder.weight"], t["encoder.bias"]), K) @ t["W_dec"] + t["b_dec"]
    if skip:
        want = want + x @ t["W_skip"].mT
    sae = load_sparsify(tmp_path / "layers.5.mlp")
    same_rows(sae(x), want)
    assert sae.sites == ()
    named = load_sparsify(tmp_path / "layers.5.mlp", site="mlp_in:5", target="mlp_out:5")
    assert (named.sites, named.targets) == (("blocks.5.hook_mlp_in",), ("blocks.5.hook_mlp_out",))
    with pytest.raises(ValueError, match="give site and target"):
        load_sparsify(tmp_path / "layers.5.mlp", site="mlp_in:5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "groupmax"}, "groupmax coder: the largest latent of each"),
        ({"activation": "other"}, "'other' is not known"),
        ({"signed": True}, "signed is on .its latents may be negative"),
        ({"gram_lookup": True}, "gram_lookup is on"),
        ({"k": None}, "needs k, a whole number"),
        ({"skip_connection": False, "k": 0}, "k must lie between 1"),
    ],
)
def test_sparsify_options_that_no_sae_has(
    options: dict[str, Any], message: str, draw: Callable[..., Tensor], tmp_path: Path
) -> None:
    coder(tmp_path / "layers.5", draw, **options)
    with pytest.raises(ValueError, match=message):
        load_sparsify(tmp_path / "layers.5")


# -------------------------------------------------------------------------------------------------------- Gemma Scope


def scope(draw: Callable[..., Tensor], d_out: int = D) -> dict[str, Tensor]:
    return {
        "W_enc": draw(D, LATENTS),
        "W_dec": draw(LATENTS, d_out),
        "b_enc": draw(LATENTS),
        "b_dec": draw(d_out),
        "threshold": draw(LATENTS).abs(),
    }


def test_gemma_scope_npz(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = scope(draw)
    folder = tmp_path / "gemma-scope-2b-pt-res" / "layer_20" / "width_16k" / "average_l0_71"
    folder.mkdir(parents=True)
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in t.items()}
    np.savez(folder / "params.npz", **arrays)
    pre = x @ t["W_enc"] + t["b_enc"]
    want = (pre.relu() * (pre > t["threshold"])) @ t["W_dec"] + t["b_dec"]
    sae = load_gemma_scope(folder)
    same_rows(sae(x), want)
    assert sae.sites == ("blocks.20.hook_resid_post",)
    transcoder = load_gemma_scope(folder / "params.npz", site="ln2.normalized:20", target="mlp_out:20")
    same_rows(transcoder(x), want)
    assert transcoder.is_transcoder


def test_gemma_scope_of_the_second_release(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = scope(draw, D_OUT)
    lower = {name.replace("W_", "w_"): tensor for name, tensor in t.items()}
    lower["affine_skip_connection"] = draw(D, D_OUT)
    save_file(lower, tmp_path / "params.safetensors")
    pre = x @ t["W_enc"] + t["b_enc"]
    want = (pre.relu() * (pre > t["threshold"])) @ t["W_dec"] + t["b_dec"] + x @ lower["affine_skip_connection"]
    same_rows(load_gemma_scope(tmp_path)(x), want)
    save_file({**lower, "w_dec": draw(LATENTS, 3, D_OUT)}, tmp_path / "params.safetensors")
    with pytest.raises(ValueError, match="cross-layer transcoder"):
        load_gemma_scope(tmp_path)


# ------------------------------------------------------------------------------------------------------------- OpenAI


def openai_state(draw: Callable[..., Tensor]) -> dict[str, Any]:
    return {
        "pre_bias": draw(D),
        "latent_bias": draw(LATENTS),
        "stats_last_nonzero": torch.zeros(LATENTS, dtype=torch.long),
        "latents_activation_frequency": torch.ones(LATENTS),
        "latents_mean_square": torch.zeros(LATENTS),
        "encoder.weight": draw(LATENTS, D),
        "decoder.weight": draw(D, LATENTS),
    }


def test_openai_relu(draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path) -> None:
    s = {**openai_state(draw), "activation": "ReLU", "activation_state_dict": {}}
    torch.save(s, tmp_path / "5.pt")
    acts = linear(x - s["pre_bias"], s["encoder.weight"], s["latent_bias"]).relu()
    sae = load_openai_sae(tmp_path / "5.pt", site="post:5")
    same_rows(sae(x), linear(acts, s["decoder.weight"]) + s["pre_bias"])
    assert sae.sites == ("blocks.5.mlp.hook_post",)


def test_openai_topk_reads_layer_normalised_rows(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    topk = {"activation": "TopK", "activation_state_dict": {"k": K, "postact_fn": "ReLU"}}
    s = {**openai_state(draw), **topk}
    torch.save(s, tmp_path / "5.pt")
    with pytest.raises(ValueError, match=r"normalises each row by itself \(layer_norm\).*normalized=True"):
        load_openai_sae(tmp_path / "5.pt")
    centred = x - x.mean(-1, keepdim=True)
    deviation = centred.std(-1, keepdim=True)
    acts = top(linear(centred / (deviation + 1e-5) - s["pre_bias"], s["encoder.weight"], s["latent_bias"]), K)
    want = (linear(acts, s["decoder.weight"]) + s["pre_bias"]) * deviation + x.mean(-1, keepdim=True)
    sae, rows = load_openai_sae(tmp_path / "5.pt", normalized=True), normalize_rows(x, "layer_norm")
    same_rows(rows.undo(sae(rows.z)), want)
    for activation, message in [
        ({"activation": "Identity"}, "activation 'Identity'"),
        ({**topk, "activation_state_dict": {"k": K, "postact_fn": "Identity"}}, "latents may be negative"),
        ({**topk, "activation_state_dict": {}}, "does not say k"),
    ]:
        torch.save({**s, **activation}, tmp_path / "other.pt")
        with pytest.raises(ValueError, match=message):
            load_openai_sae(tmp_path / "other.pt", normalized=True)


def test_rows_are_normalised_one_by_one(x: Tensor) -> None:
    for how in ("layer_norm", "constant_norm_rescale"):
        rows = normalize_rows(x, how)
        torch.testing.assert_close(rows.undo(rows.z), x, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(normalize_rows(x[7:8], how).z, rows.z[7:8])
    torch.testing.assert_close(normalize_rows(x, "constant_norm_rescale").z.square().mean(-1), torch.ones(len(x)))
    with pytest.raises(ValueError, match="got 'other'"):
        normalize_rows(x, "other")
    with pytest.raises(ValueError, match="a row of zeros"):
        normalize_rows(torch.zeros(2, D), "constant_norm_rescale")


# ----------------------------------------------------------------------------------------------------- circuit-tracer


@pytest.mark.parametrize("kind", ["relu", "jumprelu", "topk", "skip"])
def test_circuit_tracer(
    kind: str, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = {"W_enc": draw(LATENTS, D), "W_dec": draw(LATENTS, D), "b_enc": draw(LATENTS), "b_dec": draw(D)}
    pre = linear(x, t["W_enc"], t["b_enc"])
    acts = pre.relu()
    if kind == "jumprelu":
        t["activation_function.threshold"] = draw(1, LATENTS).abs()
        acts = acts * (pre > t["activation_function.threshold"])
    if kind == "topk":
        t["k"], acts = torch.tensor(K), top(pre, K)
    want = acts @ t["W_dec"] + t["b_dec"]
    if kind == "skip":
        t["W_skip"] = draw(D, D)
        want = want + x @ t["W_skip"].T
    file = tmp_path / "layer_3.safetensors"
    save_file(t, file)
    assert load_circuit_tracer(file).sites == ()
    (tmp_path / "config.yaml").write_text(
        'model_kind: transcoder_set\nfeature_input_hook: "hook_resid_mid"\nfeature_output_hook: hook_mlp_out  # after\n'
    )
    sae = load_circuit_tracer(file)
    same_rows(sae(x), want)
    assert (sae.sites, sae.targets) == (("blocks.3.hook_resid_mid",), ("blocks.3.hook_mlp_out",))
    # A name that is no site here leaves both unknown, and the SAE is still known to be a transcoder.
    (tmp_path / "config.yaml").write_text("feature_input_hook: mlp.hook_in\nfeature_output_hook: mlp.hook_out\n")
    assert load_circuit_tracer(file).sites == ()
    assert load_circuit_tracer(file).card["imported"]["transcoder"] is True


def test_circuit_tracer_that_is_turned_or_cross_layer(draw: Callable[..., Tensor], tmp_path: Path) -> None:
    t = {"W_enc": draw(D, LATENTS), "W_dec": draw(LATENTS, D), "b_enc": draw(LATENTS), "b_dec": draw(D)}
    save_file(t, tmp_path / "layer_3.safetensors")
    with pytest.raises(ValueError, match=r"b_enc has the shape \[20\], wanted \[latent\] with latent = 6 from W_enc"):
        load_circuit_tracer(tmp_path / "layer_3.safetensors")
    save_file({f"{name}_3": tensor for name, tensor in t.items()}, tmp_path / "W_enc_3.safetensors")
    with pytest.raises(ValueError, match="cross-layer transcoder"):
        load_circuit_tracer(tmp_path / "W_enc_3.safetensors")
