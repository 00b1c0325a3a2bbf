"""The SAE as a value: what it computes, its errors, its file."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from interp.artifact import save_artifact
from interp.model import HookedTransformer
from interp.sae import SAE, evaluate_sae, load_sae, sae_features
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


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
    other = save_artifact(tmp_path / "c.safetensors", "sae", dict(sae.state_dict()), {"architecture": "lasso", "k": 1})
    with pytest.raises(ValueError, match="architecture 'lasso' does not exist here"):
        load_sae(other)
    newer = save_artifact(tmp_path / "e.safetensors", "sae", {**sae.state_dict(), "W_new": x}, {"k": 1})
    with pytest.raises(ValueError, match="W_new, which no SAE has here"):
        load_sae(newer)
    part = save_artifact(tmp_path / "d.safetensors", "sae", {"W_enc": x}, {"architecture": "topk", "k": 1})
    with pytest.raises(ValueError, match="lacks W_dec, b_dec, b_enc"):
        load_sae(part)


@pytest.mark.parametrize("architecture", ["topk", "relu", "jumprelu", "gated"])
def test_each_architecture_by_its_definition(architecture: str, x: Tensor, tmp_path: Path) -> None:
    base, generator = random_sae(), torch.Generator().manual_seed(5)
    more = {name: torch.rand(20, generator=generator) for name in ("threshold", "b_mag", "r_mag")}
    given = {"topk": {"k": 4}, "jumprelu": {"threshold": more.pop("threshold")}, "gated": more}
    W_enc, b_enc, W_dec, b_dec = (getattr(base, name).data for name in ("W_enc", "b_enc", "W_dec", "b_dec"))
    sae = SAE(W_enc, b_enc, W_dec, b_dec, architecture=architecture, **given.get(architecture, {}))
    pre = (x - b_dec) @ W_enc + b_enc
    expected = {
        "topk": pre.relu() * (pre >= pre.topk(4).values[:, -1:]),
        "relu": pre.relu(),
        "jumprelu": pre.relu() * (pre > given["jumprelu"]["threshold"]),
        "gated": (pre > 0) * (((x - b_dec) @ W_enc) * more["r_mag"].exp() + more["b_mag"]).relu(),
    }[architecture]
    torch.testing.assert_close(sae.encode(x), expected)
    torch.testing.assert_close(sae(x), expected @ W_dec + b_dec)
    active = sae.active(x)
    assert (active.values > 0).all()
    assert torch.equal(active.counts, (sae.encode(x) > 0).sum(1))
    again = load_sae(sae.save(tmp_path / "sae.safetensors"))
    assert again.architecture == architecture
    assert torch.equal(again(x), sae(x))


def test_a_transcoder_writes_other_sites_than_it_reads(x: Tensor, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(6)
    shapes = ((6, 20), (20,), (20, 4), (4,), (6, 4))
    W_enc, b_enc, W_dec, b_dec, W_skip = (torch.randn(*shape, generator=generator) for shape in shapes)
    card = {"sites": ["blocks.1.ln2.hook_normalized"], "targets": ["blocks.1.hook_mlp_out"]}
    sae = SAE(W_enc, b_enc, W_dec, b_dec, k=3, W_skip=W_skip, card=card)
    pre = x @ W_enc + b_enc
    latents = pre.relu() * (pre >= pre.topk(3).values[:, -1:])
    torch.testing.assert_close(sae(x), latents @ W_dec + b_dec + x @ W_skip)
    assert (sae.d_in, sae.d_out, sae.is_transcoder, sae.site) == (6, 4, True, "blocks.1.ln2.hook_normalized")
    again = load_sae(sae.save(tmp_path / "t.safetensors"))
    assert torch.equal(again(x), sae(x))
    assert again.targets == ("blocks.1.hook_mlp_out",)
    with pytest.raises(ValueError, match="cannot be taken off the input"):
        SAE(W_enc, b_enc, W_dec, b_dec, k=3, apply_b_dec_to_input=True)
    with pytest.raises(ValueError, match="W_skip has the shape"):
        SAE(W_enc, b_enc, W_dec, b_dec, k=3, W_skip=W_skip.T)


def test_an_architecture_needs_its_tensors(x: Tensor) -> None:
    base = random_sae()
    tensors = [base.W_enc, base.b_enc, base.W_dec, base.b_dec]
    for architecture, needs in (
        ("topk", "needs k"),
        ("jumprelu", "needs threshold"),
        ("gated", "needs b_mag and r_mag"),
    ):
        with pytest.raises(ValueError, match=needs):
            SAE(*tensors, architecture=architecture)
    assert SAE(*tensors).architecture == "relu"


def test_an_sae_of_normalised_rows_is_kept_from_raw_ones(store: Store, tiny_llama: HookedTransformer) -> None:
    base = random_sae(d_model=store.width(SITE))
    sae = SAE(base.W_enc, base.b_enc, base.W_dec, base.b_dec, k=4)
    sae.card = {"site": SITE, "imported": {"row_norm": "layer_norm"}}
    sae.sites = sae.targets = (SITE,)
    for use in (
        lambda: evaluate_sae(sae, store),
        lambda: sae_features(sae, store),
        lambda: tiny_llama.splice(sae).__enter__(),
    ):
        with pytest.raises(ValueError, match=r"normalised one by one \(layer_norm\)"):
            use()


@pytest.mark.parametrize("architecture", ["topk", "relu"])
def test_nan_is_refused(architecture: str, x: Tensor) -> None:
    base = random_sae()
    sae = SAE(base.W_enc, base.b_enc, base.W_dec, base.b_dec, architecture=architecture, k=4)
    x[3, 2] = torch.nan
    for use in (sae, sae.encode):
        with pytest.raises(ValueError, match="1 of 7 rows that the SAE reads are NaN or infinite, the first is row 3"):
            use(x)
