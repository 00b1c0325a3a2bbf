"""SAELens itself as the oracle, both ways, for every kind that it has for inference and for its training checkpoints."""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.sae import SAE
from interp.sae.formats import load_saelens, normalize_rows, save_saelens

D_IN, LATENTS, D_OUT, K = 6, 20, 9, 4
KINDS = (
    "standard",
    "topk",
    "jumprelu",
    "gated",
    "transcoder",
    "skip_transcoder",
    "jumprelu_transcoder",
    "jumprelu_skip_transcoder",
)

pytestmark = pytest.mark.slow  # importing SAELens takes most of it


@pytest.fixture(scope="module")
def lens() -> Any:
    """SAELens; its imports warn of what is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("sae_lens", reason="SAELens is an extra: pip install 'interp-workbench[saelens]'")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """SAELens' own deprecation warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def made(lens: Any, name: str, draw: Callable[..., Tensor], *, training: bool = False, **options: Any) -> Any:
    """An SAE of SAELens with random weights."""
    registry = lens.registry
    sae_class, config_class = (registry.get_sae_training_class if training else registry.get_sae_class)(name)
    base: dict[str, Any] = {"d_in": D_IN, "d_sae": LATENTS, "apply_b_dec_to_input": "transcoder" not in name}
    if "topk" in name:
        base["k"] = K
    if "transcoder" in name:
        base["d_out"] = D_OUT
    metadata = lens.saes.sae.SAEMetadata(
        model_name="some-model", hook_name="blocks.3.hook_resid_mid", hook_name_out="blocks.3.hook_mlp_out"
    )
    sae = sae_class(config_class(**{**base, **options}, metadata=metadata))
    with torch.no_grad():
        for key, parameter in sae.named_parameters():
            parameter.copy_(draw(*parameter.shape).abs() if key == "threshold" else draw(*parameter.shape))
    return sae


@pytest.mark.parametrize("name", KINDS)
def test_reads_what_saelens_writes(
    name: str, lens: Any, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    theirs = made(lens, name, draw)
    theirs.save_model(tmp_path / "sae")
    ours = load_saelens(tmp_path / "sae")
    same_rows(ours(x), lens.SAE.load_from_disk(tmp_path / "sae")(x))
    torch.testing.assert_close(ours.encode(x), theirs.encode(x), rtol=1e-5, atol=1e-5)
    assert ours.sites == ("blocks.3.hook_resid_mid",)
    assert ours.is_transcoder == ("transcoder" in name)
    if ours.is_transcoder:
        assert ours.targets == ("blocks.3.hook_mlp_out",)


@pytest.mark.parametrize("name", KINDS)
def test_saelens_reads_what_is_written(
    name: str, lens: Any, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    made(lens, name, draw).save_model(tmp_path / "theirs")
    ours = load_saelens(tmp_path / "theirs")
    save_saelens(ours, tmp_path / "ours", context_size=128, prepend_bos=True)
    back = lens.SAE.load_from_disk(tmp_path / "ours")
    same_rows(back(x), ours(x))
    assert back.cfg.architecture() == name
    assert back.cfg.metadata.hook_name == "blocks.3.hook_resid_mid"
    assert back.cfg.metadata.model_name == "some-model"
    assert back.cfg.metadata.context_size == 128
    assert back.cfg.metadata.prepend_bos is True


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("topk", {"rescale_acts_by_decoder_norm": True}),
        ("topk", {"rescale_acts_by_decoder_norm": True, "apply_b_dec_to_input": False}),
        ("jumprelu", {"apply_b_dec_to_input": False}),
        ("gated", {"apply_b_dec_to_input": False}),
        ("standard", {"dtype": "float64"}),
    ],
)
def test_options_of_saelens(
    name: str,
    options: dict[str, Any],
    lens: Any,
    draw: Callable[..., Tensor],
    x: Tensor,
    same_rows: Callable[..., None],
    tmp_path: Path,
) -> None:
    theirs = made(lens, name, draw, **options)
    theirs.save_model(tmp_path / "sae")
    ours = load_saelens(tmp_path / "sae")
    same_rows(ours(x), theirs(x))
    torch.testing.assert_close(ours.encode(x), theirs.encode(x).float(), rtol=1e-5, atol=1e-5)


def test_files_without_a_version(
    lens: Any, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    made(lens, "topk", draw, rescale_acts_by_decoder_norm=True).save_model(tmp_path / "sae")
    file = tmp_path / "sae" / "cfg.json"
    cfg = json.loads(file.read_text())
    del cfg["metadata"]["sae_lens_version"]
    file.write_text(json.dumps(cfg))
    ours = load_saelens(tmp_path / "sae")
    same_rows(ours(x), lens.SAE.load_from_disk(tmp_path / "sae")(x))
    assert ours.sites == ("blocks.3.hook_resid_mid",)


@pytest.mark.parametrize("how", ["layer_norm", "constant_norm_rescale"])
def test_rows_that_saelens_normalises(
    how: str, lens: Any, draw: Callable[..., Tensor], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    theirs = made(lens, "topk", draw, normalize_activations=how)
    theirs.save_model(tmp_path / "sae")
    with pytest.raises(ValueError, match=f"normalises each row by itself .{how}"):
        load_saelens(tmp_path / "sae")
    ours, rows = load_saelens(tmp_path / "sae", normalized=True), normalize_rows(x, how)
    same_rows(rows.undo(ours(rows.z)), theirs(x))
    save_saelens(ours, tmp_path / "ours")
    same_rows(lens.SAE.load_from_disk(tmp_path / "ours")(x), theirs(x))


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("how", ["none", "expected_average_only_in", "covariance_whitening"])
@pytest.mark.parametrize("name", ["batchtopk", "matryoshka_batchtopk", "topk", "gated", "standard", "jumprelu"])
def test_training_checkpoints_are_what_saelens_makes_of_them(
    name: str,
    how: str,
    rescale: bool,
    lens: Any,
    draw: Callable[..., Tensor],
    x: Tensor,
    same_rows: Callable[..., None],
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"normalize_activations": how}
    if "topk" in name:
        options["rescale_acts_by_decoder_norm"] = rescale
    if name.startswith("matryoshka"):
        options["matryoshka_widths"] = [8, LATENTS]
    theirs = made(lens, name, draw, training=True, **options)
    if "batchtopk" in name:
        theirs.topk_threshold.fill_(0.7)
    scaling = lens.training.activation_scaler
    scaler = scaling.ActivationScaler()
    if how == "expected_average_only_in":
        scaler.scaling_factor = 0.4
    if how == "covariance_whitening":
        matrix = draw(D_IN, D_IN).double() + 3 * torch.eye(D_IN)
        scaler.whitening = scaling.ActivationWhitening(draw(D_IN).double(), matrix, matrix.inverse())
    checkpoint = tmp_path / "checkpoint"
    theirs.save_model(checkpoint)
    scaler.save(str(checkpoint / "activation_scaler.json"))

    if scaler.scaling_factor is not None:
        theirs.fold_activation_norm_scaling_factor(scaler.scaling_factor)
    if scaler.whitening is not None:
        white = scaler.whitening
        theirs.fold_activation_whitening(white.mean, white.matrix, white.inverse_matrix)
    theirs.save_inference_model(tmp_path / "final")
    want = lens.SAE.load_from_disk(tmp_path / "final")

    ours = load_saelens(checkpoint)
    same_rows(ours(x), want(x))
    torch.testing.assert_close(ours.encode(x), want.encode(x), rtol=1e-4, atol=1e-5)
    assert ours.architecture == {"standard": "relu", "topk": "topk", "gated": "gated"}.get(name, "jumprelu")


def test_z_is_flattened_as_saelens_flattens_it(
    lens: Any, draw: Callable[..., Tensor], same_rows: Callable[..., None], tmp_path: Path
) -> None:
    card = {"site": "blocks.2.attn.hook_z"}
    ours = SAE(draw(D_IN, LATENTS), draw(LATENTS), draw(LATENTS, D_IN), draw(D_IN), k=K, card=card)
    save_saelens(ours, tmp_path / "sae")
    z = draw(50, 2, D_IN // 2)
    theirs = lens.SAE.load_from_disk(tmp_path / "sae")
    same_rows(ours(z.flatten(-2)), theirs(z).flatten(-2))
    assert json.loads((tmp_path / "sae" / "cfg.json").read_text())["reshape_activations"] == "hook_z"
    assert load_saelens(tmp_path / "sae").sites == ("blocks.2.attn.hook_z",)
