"""The SAE as a value: what it computes, its errors, its file."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from interp.artifact import save_artifact
from interp.sae import SAE, load_sae


def random_sae(d_model: int = 6, n_latents: int = 20, k: int = 4, seed: int = 0) -> SAE:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((d_model, n_latents), (n_latents,), (n_latents, d_model), (d_model,))
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    tensors[2] /= tensors[2].norm(dim=1, keepdim=True)
    return SAE(*tensors, k=k, card={"site": "blocks.1.hook_resid_post", "typical_norm": 3.0})


@pytest.fixture
def x() -> Tensor:
    return torch.randn(7, 6, generator=torch.Generator().manual_seed(1))


def test_encode_keeps_the_k_largest_and_only_positive_ones(x: Tensor) -> None:
    sae = random_sae()
    latents = sae.encode(x)
    pre = (x - sae.b_dec) @ sae.W_enc + sae.b_enc
    for row, wanted in zip(latents, pre, strict=True):
        kept = row.nonzero().flatten()
        largest = wanted.topk(4)
        assert set(kept.tolist()) == {i for i, value in zip(largest.indices.tolist(), largest.values) if value > 0}
        torch.testing.assert_close(row[kept], wanted[kept])


def test_sparse_and_dense_ways_agree_for_any_leading_shape(x: Tensor) -> None:
    sae = random_sae()
    torch.testing.assert_close(sae(x), sae.decode(sae.encode(x)))
    folded = torch.stack([x, x.flip(0)])
    torch.testing.assert_close(sae(folded), torch.stack([sae(x), sae(x.flip(0))]))
    assert sae.encode(folded).shape == (2, 7, 20)
    torch.testing.assert_close(sae(x[0]), sae(x)[0])


def test_negative_pre_activations_never_fire(x: Tensor) -> None:
    sae = random_sae()
    sae.b_enc -= 100.0
    assert (sae.encode(x) == 0).all()
    torch.testing.assert_close(sae(x), sae.b_dec.expand_as(x))


def test_gradients_reach_the_input_and_not_the_frozen_weights(x: Tensor) -> None:
    sae = random_sae()
    x.requires_grad_()
    sae(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in sae.parameters())


def test_the_file_gives_the_same_sae_back(tmp_path: Path, x: Tensor) -> None:
    sae = random_sae()
    again = load_sae(sae.save(tmp_path / "a.safetensors"))
    assert torch.equal(again(x), sae(x))
    assert (again.k, again.site, again.card["typical_norm"]) == (4, "blocks.1.hook_resid_post", 3.0)
    first = (tmp_path / "a.safetensors").read_bytes()
    assert again.save(tmp_path / "b.safetensors").read_bytes() == first


def test_a_bfloat16_input_is_read_in_the_precision_of_the_sae(x: Tensor) -> None:
    sae = random_sae()
    torch.testing.assert_close(sae(x.bfloat16()), sae(x.bfloat16().float()))


def test_what_does_not_fit_is_refused(tmp_path: Path, x: Tensor) -> None:
    sae = random_sae()
    with pytest.raises(ValueError, match="width 6, got \\[7, 5\\]"):
        sae(x[:, :5])
    with pytest.raises(ValueError, match="do not make an SAE"):
        SAE(sae.W_enc, sae.b_enc, sae.W_dec.T, sae.b_dec, k=4)
    with pytest.raises(ValueError, match="between 1 and the 20 latents, got 21"):
        SAE(sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec, k=21)
    with pytest.raises(ValueError, match="there is no file"):
        load_sae(tmp_path / "none.safetensors")
    other = save_artifact(tmp_path / "c.safetensors", "sae", {"W_enc": x}, {"architecture": "gated", "k": 1})
    with pytest.raises(ValueError, match="architecture 'gated'"):
        load_sae(other)
    part = save_artifact(tmp_path / "d.safetensors", "sae", {"W_enc": x}, {"architecture": "topk", "k": 1})
    with pytest.raises(ValueError, match="lacks W_dec, b_dec, b_enc"):
        load_sae(part)
