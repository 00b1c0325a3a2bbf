"""SAELens folders written by hand in the published form, against forwards written out from the form's definition."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interp.sae import SAE
from interp.sae.formats import export_sae, load_saelens, saelens_density, save_saelens

D_IN, LATENTS, D_OUT, K = 6, 20, 9, 4
METADATA = {
    "sae_lens_version": "6.21.0",
    "hook_name": "blocks.7.hook_resid_post",
    "hook_head_index": None,
    "model_name": "some-model",
    "prepend_bos": True,
    "context_size": 128,
}


def written(folder: Path, tensors: dict[str, Tensor], **options: Any) -> Path:
    """A folder of version 6. Options of None are left out."""
    cfg = {
        "d_in": D_IN,
        "d_sae": LATENTS,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": METADATA,
        **options,
    }
    folder.mkdir()
    (folder / "cfg.json").write_text(json.dumps({key: value for key, value in cfg.items() if value is not None}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "sae_weights.safetensors")
    return folder


def plain(draw: Callable[..., Tensor], d_out: int = D_IN) -> dict[str, Tensor]:
    return {"W_enc": draw(D_IN, LATENTS), "b_enc": draw(LATENTS), "W_dec": draw(LATENTS, d_out), "b_dec": draw(d_out)}


def top(pre: Tensor, k: int) -> Tensor:
    """All but the k largest of each row set to 0, and negative ones too."""
    return torch.zeros_like(pre).scatter(-1, pre.topk(k, dim=-1).indices, pre.topk(k, dim=-1).values).relu()


def test_standard_without_b_dec_on_the_input(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = plain(draw)
    sae = load_saelens(written(tmp_path / "sae", t, architecture="standard", apply_b_dec_to_input=False))
    same_rows(sae(x), (x @ t["W_enc"] + t["b_enc"]).relu() @ t["W_dec"] + t["b_dec"])
    assert sae.card["config"] == {"kind": "standard"}
    assert sae.card["imported"]["metadata"]["context_size"] == 128


def test_topk_ranked_by_decoder_norms(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = plain(draw)
    folder = written(tmp_path / "sae", t, architecture="topk", k=K, rescale_acts_by_decoder_norm=True)
    norms = t["W_dec"].norm(dim=1)
    acts = top(((x - t["b_dec"]) @ t["W_enc"] + t["b_enc"]) * norms, K)
    sae = load_saelens(folder)
    same_rows(sae(x), (acts / norms) @ t["W_dec"] + t["b_dec"])
    torch.testing.assert_close(sae.encode(x), acts)
    unranked = top((x - t["b_dec"]) @ t["W_enc"] + t["b_enc"], K) @ t["W_dec"] + t["b_dec"]
    assert not torch.allclose(sae(x), unranked, atol=0.1)  # the option matters


def test_a_threshold_is_strict_and_raw(draw: Callable[..., Tensor], x: Tensor, tmp_path: Path) -> None:
    t = {**plain(draw), "threshold": draw(LATENTS).abs()}
    pre = (x - t["b_dec"]) @ t["W_enc"] + t["b_enc"]
    sae = load_saelens(written(tmp_path / "sae", t, architecture="jumprelu"))
    torch.testing.assert_close(sae.encode(x), pre.relu() * (pre > t["threshold"]), atol=1e-5, rtol=1e-5)


def test_gated_takes_the_gate_and_the_magnitude_apart(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = {**plain(draw), "b_gate": draw(LATENTS), "b_mag": draw(LATENTS), "r_mag": draw(LATENTS)}
    del t["b_enc"]
    h = x - t["b_dec"]
    acts = (h @ t["W_enc"] + t["b_gate"] > 0) * (h @ (t["W_enc"] * t["r_mag"].exp()) + t["b_mag"]).relu()
    same_rows(load_saelens(written(tmp_path / "sae", t, architecture="gated"))(x), acts @ t["W_dec"] + t["b_dec"])


@pytest.mark.parametrize("name", ["transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder"])
def test_transcoders(
    name: str, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = plain(draw, D_OUT)
    pre = x @ t["W_enc"] + t["b_enc"]
    acts = pre.relu()
    if "jumprelu" in name:
        t["threshold"] = draw(LATENTS).abs()
        acts = acts * (pre > t["threshold"])
    want = acts @ t["W_dec"] + t["b_dec"]
    if "skip" in name:
        t["W_skip"] = draw(D_OUT, D_IN)
        want = want + x @ t["W_skip"].T
    metadata = {**METADATA, "hook_name": "blocks.7.hook_resid_mid", "hook_name_out": "blocks.7.hook_mlp_out"}
    folder = written(tmp_path / "sae", t, architecture=name, d_out=D_OUT, apply_b_dec_to_input=False, metadata=metadata)
    sae = load_saelens(folder)
    same_rows(sae(x), want)
    assert (sae.sites, sae.targets) == (("blocks.7.hook_resid_mid",), ("blocks.7.hook_mlp_out",))
    assert sae.widths == {"blocks.7.hook_resid_mid": D_IN, "blocks.7.hook_mlp_out": D_OUT}
    save_saelens(sae, tmp_path / "again")
    written_tensors = load_file(tmp_path / "again" / "sae_weights.safetensors")
    assert {key: tuple(value.shape) for key, value in written_tensors.items()} == {
        key: tuple(value.shape) for key, value in t.items()
    }
    for key, value in t.items():
        torch.testing.assert_close(written_tensors[key], value)
    cfg = json.loads((tmp_path / "again" / "cfg.json").read_text())
    assert (cfg["architecture"], cfg["d_out"], cfg["apply_b_dec_to_input"]) == (name, D_OUT, False)
    assert cfg["metadata"]["hook_name_out"] == "blocks.7.hook_mlp_out"


def test_a_batchtopk_checkpoint_is_a_jumprelu_in_units_of_the_output(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = {**plain(draw), "topk_threshold": torch.tensor(0.8, dtype=torch.float64)}
    norms = t["W_dec"].norm(dim=1)
    options = {"normalize_activations": "expected_average_only_in", "rescale_acts_by_decoder_norm": True}
    folder = written(tmp_path / "sae", t, architecture="batchtopk", k=3.5, **options)
    with pytest.raises(ValueError, match=r"does not hold it \(activation_scaler\.json\): give scaling_factor"):
        load_saelens(folder)
    acts = ((0.5 * x - t["b_dec"]) @ t["W_enc"] + t["b_enc"]) * norms
    acts = acts * (acts > 0.8)
    want = ((acts / norms) @ t["W_dec"] + t["b_dec"]) / 0.5
    same_rows(load_saelens(folder, scaling_factor=0.5)(x), want)
    (folder / "activation_scaler.json").write_text('{"scaling_factor": 0.5}')
    sae = load_saelens(folder)
    same_rows(sae(x), want)
    torch.testing.assert_close(sae.encode(x), acts / 0.5, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(LATENTS))
    assert (sae.architecture, sae.card["config"]["kind"]) == ("jumprelu", "batchtopk")


def test_whitening_is_folded(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = plain(draw)
    mean, matrix = draw(D_IN).double(), draw(D_IN, D_IN).double() + 3 * torch.eye(D_IN)
    options = {"normalize_activations": "covariance_whitening", "apply_b_dec_to_input": False}
    folder = written(tmp_path / "sae", t, architecture="standard", **options)
    save_file(
        {"mean": mean, "matrix": matrix, "inverse_matrix": matrix.inverse().contiguous()},
        folder / "activation_whitening.safetensors",
    )
    z = (x - mean) @ matrix
    out = (z @ t["W_enc"].double() + t["b_enc"]).relu() @ t["W_dec"].double() + t["b_dec"]
    same_rows(load_saelens(folder)(x), out @ matrix.inverse() + mean)


def test_the_flat_form_of_before_version_6(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    t = plain(draw)
    folder = tmp_path / "sae"
    folder.mkdir()
    old = {
        "hook_point": "blocks.2.hook_resid_pre",
        "hook_point_layer": 2,
        "activation_fn_str": "topk",
        "activation_fn_kwargs": {"k": K},
        "d_in": D_IN,
        "d_sae": LATENTS,
        "dtype": "torch.float32",
        "normalize_activations": False,
        "model_name": "gpt2-small",
        "context_size": 64,
        "sae_lens_version": "3.2.1",
    }
    (folder / "cfg.json").write_text(json.dumps(old))
    save_file({**t, "scaling_factor": torch.ones(LATENTS)}, folder / "sae_weights.safetensors")
    sae = load_saelens(folder)
    same_rows(sae(x), top((x - t["b_dec"]) @ t["W_enc"] + t["b_enc"], K) @ t["W_dec"] + t["b_dec"])
    assert sae.sites == ("blocks.2.hook_resid_pre",)
    (folder / "cfg.json").write_text(json.dumps({**old, "normalize_activations": True}))
    with pytest.raises(ValueError, match="expected_average_only_in"):
        load_saelens(folder)
    (folder / "cfg.json").write_text(json.dumps({**old, "activation_fn_str": "tanh-relu"}))
    with pytest.raises(ValueError, match="'tanh-relu' is not relu or topk"):
        load_saelens(folder)
    (folder / "cfg.json").write_text(json.dumps(old))
    save_file({**t, "scaling_factor": torch.full((LATENTS,), 1.5)}, folder / "sae_weights.safetensors")
    with pytest.raises(ValueError, match="scaling_factor for each latent"):
        load_saelens(folder)


@pytest.mark.parametrize("metadata", [None, {name: value for name, value in METADATA.items() if "version" not in name}])
def test_ranking_by_decoder_norms_needs_no_version(
    metadata: dict[str, Any] | None,
    draw: Callable[..., Tensor],
    x: Tensor,
    same_rows: Callable[..., None],
    tmp_path: Path,
) -> None:
    """SAELens reads the option wherever it stands; the place is kept, which SAELens loses."""
    t = plain(draw)
    options = {"architecture": "topk", "k": K, "rescale_acts_by_decoder_norm": True, "metadata": metadata}
    sae = load_saelens(written(tmp_path / "sae", t, **options))
    norms = t["W_dec"].norm(dim=1)
    acts = top(((x - t["b_dec"]) @ t["W_enc"] + t["b_enc"]) * norms, K)
    same_rows(sae(x), (acts / norms) @ t["W_dec"] + t["b_dec"])
    assert sae.sites == (() if metadata is None else ("blocks.7.hook_resid_post",))


def test_bfloat16_is_read_as_float32(
    draw: Callable[..., Tensor], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    t = {name: tensor.bfloat16() for name, tensor in plain(draw).items()}
    with caplog.at_level("INFO", logger="interp"):
        sae = load_saelens(written(tmp_path / "sae", t, architecture="standard", dtype="bfloat16"))
    assert torch.equal(sae.W_enc, t["W_enc"].float())
    assert sae.card["imported"]["dtype"] == "bfloat16"
    assert "bfloat16; it is read as float32" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "abstopk"}, "abstopk.*may be negative"),
        ({"architecture": "matching_pursuit"}, "matching_pursuit.*in steps"),
        ({"architecture": "temporal"}, "temporal.*earlier tokens"),
        ({"architecture": "something"}, "'something'.*known are standard, topk"),
        ({"architecture": ["topk"]}, "which cannot be read"),
        ({"architecture": "standard", "d_sae": 64}, "says d_sae = 64, but the weights have 20"),
        ({"architecture": "topk", "k": float("inf")}, "needs k, a whole number, got inf"),
        ({"architecture": "topk"}, "needs k, a whole number, got None"),
        ({"architecture": "topk", "k": LATENTS + 1}, "k must lie between 1 and the 20 latents"),
        ({"architecture": "jumprelu"}, "lacks threshold"),
        ({"architecture": "standard", "normalize_activations": "layer_norm"}, "normalized=True"),
        ({"architecture": "standard", "normalize_activations": "other"}, "'other' is not known"),
        ({"architecture": "transcoder", "d_out": D_IN}, "none and false are what SAELens allows"),
        ({"architecture": "standard", "metadata": "no"}, "metadata is 'no', not an object"),
    ],
)
def test_what_no_sae_can_be_is_refused(
    options: dict[str, Any], message: str, draw: Callable[..., Tensor], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load_saelens(written(tmp_path / "sae", plain(draw), **options))


def test_a_saved_sae_comes_back_with_its_card(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    site = "blocks.4.hook_resid_post"
    card = {"site": site, "model": "fingerprint", "config": {"kind": "matryoshka", "width": LATENTS}}
    ours = SAE(*plain(draw).values(), threshold=draw(LATENTS).abs(), card=card)
    density = torch.linspace(0, 1, LATENTS)
    assert save_saelens(ours, tmp_path / "sae", model_name="m", density=density) == tmp_path / "sae"
    back = load_saelens(tmp_path / "sae")
    same_rows(back(x), ours(x))
    assert (back.site, back.architecture) == (site, "jumprelu")
    assert (back.card["model"], back.card["config"]) == ("fingerprint", card["config"])
    torch.testing.assert_close(saelens_density(tmp_path / "sae"), density)
    assert load_file(tmp_path / "sae" / "sparsity.safetensors")["sparsity"][0] == -10
    said = json.loads((tmp_path / "sae" / "cfg.json").read_text())["metadata"]
    assert said["exported_by"].startswith("interp ")
    with pytest.raises(ValueError, match="exists already"):
        save_saelens(ours, tmp_path / "sae")


def test_what_saelens_has_no_form_for_is_refused(draw: Callable[..., Tensor], tmp_path: Path) -> None:
    there = {"sites": ["blocks.1.hook_resid_mid"], "targets": ["blocks.1.hook_mlp_out"]}
    topk = SAE(*plain(draw, D_OUT).values(), k=K, card=there)
    with pytest.raises(
        ValueError, match=r"no transcoder of the architecture 'topk'.*batchtopk, .*jumprelu .*can be exported"
    ):
        save_saelens(topk, tmp_path / "sae")
    with pytest.raises(
        ValueError, match="takes no name; its options are model_name, context_size, prepend_bos, density"
    ):
        export_sae(SAE(*plain(draw).values()), tmp_path / "sae", name="m")
    names = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    card = {"sites": names, "targets": names, "widths": dict.fromkeys(names, D_IN // 2)}
    with pytest.raises(ValueError, match="no crosscoders"):
        save_saelens(SAE(*plain(draw).values(), card=card), tmp_path / "sae")
    t = plain(draw)
    t["W_dec"][3, 2] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity in W_dec"):
        save_saelens(SAE(*t.values()), tmp_path / "sae")
    with pytest.raises(ValueError, match="between 0 and 1"):
        save_saelens(SAE(*plain(draw).values()), tmp_path / "sae", density=torch.full((LATENTS,), 2.0))
    with pytest.raises(ValueError, match="one share for each of 20 latents"):
        save_saelens(SAE(*plain(draw).values()), tmp_path / "sae", density=torch.ones(3))
    assert not any(tmp_path.iterdir())


def test_b_dec_on_a_transcoders_input_goes_into_b_enc(
    draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    card = {"sites": ["blocks.1.hook_resid_mid"], "targets": ["blocks.1.hook_mlp_out"]}
    ours = SAE(*plain(draw).values(), apply_b_dec_to_input=True, card=card)
    save_saelens(ours, tmp_path / "sae")
    back = load_saelens(tmp_path / "sae")
    assert not back.apply_b_dec_to_input
    same_rows(back(x), ours(x))


def test_one_head_of_a_place_is_no_site(draw: Callable[..., Tensor], tmp_path: Path) -> None:
    metadata = {**METADATA, "hook_name": "blocks.7.attn.hook_z", "hook_head_index": 3}
    folder = written(tmp_path / "sae", plain(draw), architecture="standard", metadata=metadata)
    assert load_saelens(folder).sites == ()
    assert load_saelens(folder, site="resid_post:2").sites == ("blocks.2.hook_resid_post",)
    with pytest.raises(ValueError, match="target='mlp_out:2' is for transcoders"):
        load_saelens(folder, target="mlp_out:2")
