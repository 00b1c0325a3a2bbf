"""Which format a file has, and files that are damaged, ambiguous or dangerous."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from interp.sae import SAE, load_sae
from interp.sae.formats import FORMATS, detect_format, export_sae, import_sae

D, LATENTS, K = 6, 20, 4
SITE = "blocks.1.hook_resid_post"


@pytest.fixture
def sae(draw: Callable[..., Tensor]) -> SAE:
    """A TopK SAE of ours."""
    return SAE(draw(D, LATENTS), draw(LATENTS), draw(LATENTS, D), draw(D), k=K, card={"site": SITE})


@pytest.fixture
def places(sae: SAE, tmp_path: Path) -> dict[str, Path]:
    """The same weights in every format."""
    W_enc, b_enc, W_dec, b_dec = (tensor.detach().clone() for tensor in (sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec))
    turned = W_enc.T.contiguous(), W_dec.T.contiguous()
    paths = {name: tmp_path / name for name in FORMATS}
    for name in ("dictionary_learning", "sparsify", "gemma_scope", "circuit_tracer"):
        paths[name].mkdir()
    sae.save(paths["interp"])
    export_sae(sae, paths["saelens"])
    state = {"encoder.weight": turned[0], "encoder.bias": b_enc, "decoder.weight": turned[1], "b_dec": b_dec}
    torch.save({**state, "k": torch.tensor(K)}, paths["dictionary_learning"] / "ae.pt")
    trainer = {"trainer": {"dict_class": "AutoEncoderTopK"}}
    (paths["dictionary_learning"] / "config.json").write_text(json.dumps(trainer))
    coder = {"encoder.weight": turned[0], "encoder.bias": b_enc, "W_dec": W_dec, "b_dec": b_dec}
    save_file(coder, paths["sparsify"] / "sae.safetensors")
    (paths["sparsify"] / "cfg.json").write_text(json.dumps({"k": K, "d_in": D}))
    plain = {"W_enc": W_enc, "b_enc": b_enc, "W_dec": W_dec, "b_dec": b_dec}
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in plain.items()}
    np.savez(paths["gemma_scope"] / "params.npz", **arrays, threshold=np.zeros(LATENTS, np.float32))
    paths["openai"] = tmp_path / "openai.pt"
    torch.save(
        {"encoder.weight": turned[0], "decoder.weight": turned[1], "latent_bias": b_enc, "pre_bias": b_dec},
        paths["openai"],
    )
    paths["circuit_tracer"] /= "layer_1.safetensors"
    save_file({**plain, "W_enc": turned[0]}, paths["circuit_tracer"])
    return paths


def test_every_format_is_found_out(
    places: dict[str, Path], sae: SAE, x: Tensor, same_rows: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    for name, place in places.items():
        with caplog.at_level("INFO", logger="interp"):
            read = import_sae(place)
        assert detect_format(place) == name
        assert f"{place}: an SAE of the format {name}" in caplog.text
        torch.testing.assert_close(read.W_enc, sae.W_enc)
        torch.testing.assert_close(read.W_dec, sae.W_dec)
        assert read.card.get("imported", {"format": "interp"})["format"] == name
        if read.architecture == "topk":
            same_rows(read(x), sae(x))
        same_rows(import_sae(place, name)(x), read(x))
    assert import_sae(places["gemma_scope"], site="resid_post:1").sites == (SITE,)


def test_what_was_imported_can_be_saved(
    places: dict[str, Path], x: Tensor, same_rows: Callable[..., None], tmp_path: Path
) -> None:
    for name, place in places.items():
        read = import_sae(place)
        read.save(tmp_path / f"{name}.safetensors")
        back = load_sae(tmp_path / f"{name}.safetensors")
        same_rows(back(x), read(x))
        export_sae(back, tmp_path / f"{name}.exported")
        again = import_sae(tmp_path / f"{name}.exported")
        same_rows(again(x), read(x))
        assert (again.sites, again.targets) == (read.sites, read.targets)
        assert again.card["config"] == read.card.get("config", again.card["config"])


def test_unknown_and_ambiguous_places(places: dict[str, Path], sae: SAE, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file or folder"):
        import_sae(tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "readme.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"it holds readme.txt.*saelens: a folder with cfg.json and sae_weights"):
        import_sae(empty)
    with pytest.raises(ValueError, match="is no SAE of a known format"):
        import_sae(empty / "readme.txt")
    with pytest.raises(ValueError, match="transcoders of 1 layers: give one of the files, such as layer_1"):
        import_sae(places["circuit_tracer"].parent)
    (places["sparsify"] / "sae_weights.safetensors").write_bytes(
        (places["saelens"] / "sae_weights.safetensors").read_bytes()
    )
    with pytest.raises(ValueError, match=r"several formats \(saelens, sparsify\): choose one"):
        import_sae(places["sparsify"])
    with pytest.raises(ValueError, match="no SAE format 'other' to read"):
        import_sae(places["saelens"], "other")
    with pytest.raises(ValueError, match="cannot be written as 'other'"):
        export_sae(sae, tmp_path / "new", "other")
    with pytest.raises(ValueError, match="dictionary_learning, which takes no target, normalized"):
        import_sae(places["dictionary_learning"], target="mlp_out:1", normalized=True)
    with pytest.raises(ValueError, match="'nonsense:1' does not name one site"):
        import_sae(places["saelens"], site="nonsense:1")


def weights_file(place: Path) -> Path:
    names = ("sae_weights.safetensors", "ae.pt", "sae.safetensors", "params.npz")
    return next((place / name for name in names if (place / name).exists()), place)


def test_a_file_that_was_cut_off(places: dict[str, Path]) -> None:
    for name, place in places.items():
        file = weights_file(place)
        whole = file.read_bytes()
        for length in (0, 7, len(whole) // 2, len(whole) - 3):
            file.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=file.name):
                import_sae(place, name)
    (places["saelens"] / "cfg.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        import_sae(places["saelens"])
    (places["saelens"] / "cfg.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list"):
        import_sae(places["saelens"])
    for name in ("saelens", "sparsify", "dictionary_learning"):
        for file in places[name].iterdir():
            file.unlink()
        with pytest.raises(ValueError, match="there is no file"):
            import_sae(places[name], name)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("b_dec", None, "lacks b_dec"),
        ("b_dec", torch.full((D,), torch.nan), "b_dec holds NaN"),
        ("b_dec", torch.full((D,), torch.inf), "b_dec holds NaN or infinity"),
        ("b_dec", torch.zeros(D + 1), r"b_dec has the shape \[7\], wanted \[d\] with d = 6 from encoder.weight"),
        ("b_dec", torch.zeros(1, D), r"b_dec has the shape \[1, 6\]"),
        ("W_dec", torch.zeros(D, LATENTS), r"W_dec has the shape \[6, 20\], wanted \[latent d\]"),
        ("b_dec", torch.zeros(D, dtype=torch.int32), "b_dec holds torch.int32"),
        ("extra", torch.zeros(D), "holds extra: an SAE of this format and kind has no such tensor"),
    ],
)
def test_tensors_that_do_not_fit(name: str, value: Tensor | None, message: str, places: dict[str, Path]) -> None:
    from safetensors.torch import load_file

    file = places["sparsify"] / "sae.safetensors"
    tensors = {**load_file(file), name: value}
    save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, file)
    with pytest.raises(ValueError, match=message):
        import_sae(places["sparsify"])


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "run")


def test_code_in_a_file_is_refused_and_not_run(places: dict[str, Path], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    state = torch.load(places["openai"], weights_only=True)
    for place, file in (
        (places["openai"], places["openai"]),
        (places["dictionary_learning"], places["dictionary_learning"] / "ae.pt"),
    ):
        torch.save({**state, "trap": Trap(marker)}, file)
        with pytest.raises(ValueError, match="Python objects, which are not opened"):
            import_sae(place)
        file.write_bytes(pickle.dumps(Trap(marker)))
        with pytest.raises(ValueError, match="cannot be read as tensors alone"):
            import_sae(place)
        assert not marker.exists()
    npz = places["gemma_scope"] / "params.npz"
    trapped = np.empty(1, dtype=object)
    trapped[0] = Trap(marker)
    np.savez(npz, W_enc=trapped, allow_pickle=True)
    with pytest.raises(ValueError, match="not a whole npz file of numbers"):
        import_sae(places["gemma_scope"])
    npz.write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(ValueError, match="not a whole npz file of numbers"):
        import_sae(places["gemma_scope"])
    assert not marker.exists()
    torch.save([1, 2], places["openai"])
    with pytest.raises(ValueError, match="holds a list"):
        import_sae(places["openai"])
    pickle.loads(pickle.dumps(Trap(marker)))  # the trap does work where pickles are opened
    assert marker.read_text() == "run"


def test_an_npz_that_is_a_zip_of_something_else(places: dict[str, Path]) -> None:
    with zipfile.ZipFile(places["gemma_scope"] / "params.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"params\.npz"):
        import_sae(places["gemma_scope"])
