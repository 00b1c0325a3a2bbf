"""Patches of an SAE's latents: the same as a change of its place by hand, and estimates that are their slope."""

from typing import Any

import pytest
import torch
from pairs import telling_pairs
from tiny import shaken_model

from interp.model import HookedTransformer
from interp.patching import attribution_patch, load_patch_result, patch_sweep
from interp.sae import SAE
from interp.task import pair_metric

KIND = "resid_post.sae_acts_post"


def sae_at(layer: int, **options: Any) -> SAE:
    generator = torch.Generator().manual_seed(layer)
    W_dec = torch.randn(48, 32, generator=generator, dtype=torch.float64)
    card = {"site": f"blocks.{layer}.hook_resid_post"}
    return SAE(
        W_dec.T.contiguous() / 5, torch.zeros(48).double(), W_dec, torch.zeros(32).double(), card=card, **options
    )


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return shaken_model("llama").to(torch.float64).requires_grad_(False)


def test_a_patch_of_a_latent_moves_its_place_by_its_decoder_row(model: HookedTransformer) -> None:
    """Both modes; the SAE's error is that of the run that is patched."""
    pairs, sae = telling_pairs(model), sae_at(0, k=6)
    site = str(sae.site)
    measured = pair_metric(model, pairs)
    acts = {
        side: sae.encode(model.run_with_cache(getattr(pairs, side), [site])[1][site]) for side in ("clean", "corrupted")
    }
    for mode, base, other in (("denoise", "corrupted", "clean"), ("noise", "clean", "corrupted")):
        with model.splice(sae):
            found = patch_sweep(model, pairs, site=KIND, mode=mode)
        assert found.places.columns.tolist() == ["layer", "latent"]
        assert len(found.places) == 48
        change = acts[other] - acts[base]
        live = change.abs().sum((0, 1)).topk(3).indices.tolist()
        tokens = getattr(pairs, base)
        for latent in live:
            moved = change[..., latent, None] * sae.W_dec[latent]
            with model.hooks({site: lambda value, ctx, moved=moved: value + moved}):
                logits = model(tokens)[torch.arange(len(tokens)), tokens.last].as_subclass(torch.Tensor)
            torch.testing.assert_close(found.raw[latent], measured.raw(logits), rtol=1e-6, atol=1e-8)
        still = (change == 0).all(0).all(0)
        unpatched = found.corrupted if mode == "denoise" else found.clean
        assert bool(still.any())
        assert torch.equal(found.raw[still], unpatched.expand(int(still.sum()), -1))


def test_all_latents_and_the_error_are_the_whole_place(model: HookedTransformer) -> None:
    """A dictionary that leaves nothing out: its latents, patched together, are the place itself."""
    both = torch.cat([torch.eye(32), -torch.eye(32)]).double()
    zeros = torch.zeros(64).double(), torch.zeros(32).double()
    perfect = SAE(both.T.contiguous(), zeros[0], both, zeros[1], card={"site": "blocks.0.hook_resid_post"})
    pairs = telling_pairs(model)
    whole = patch_sweep(model, pairs, site="resid_post", layers=[0])
    with model.splice(perfect):
        found = patch_sweep(model, pairs, site=KIND, by="pos")
        by_layer = attribution_patch(model, pairs, site=KIND, by="layer", check=0)
        by_latent = attribution_patch(model, pairs, site=KIND, check=0)
    assert found.places.equals(whole.places)
    torch.testing.assert_close(found.raw, whole.raw)
    summed = (by_latent.raw - by_latent.corrupted).sum(0)
    torch.testing.assert_close(by_layer.raw[0] - by_layer.corrupted, summed)


def test_estimates_of_latents_are_slopes(model: HookedTransformer) -> None:
    """The derivative of the metric along a patch, by a difference quotient, for SAEs of two layers at once."""
    pairs, saes = telling_pairs(model), [sae_at(0, k=6), sae_at(1, architecture="relu")]
    measured = pair_metric(model, pairs)
    with model.splice(saes, error_grad=True):
        found = attribution_patch(model, pairs, site=KIND, check=5)
        for layer in (0, 1):
            name = f"{KIND}:{layer}"
            new, old = (model.run_with_cache(side, [name])[1][name] for side in (pairs.clean, pairs.corrupted))
            latent = int((new - old).abs().sum((0, 1)).argmax())
            step = torch.zeros_like(new)
            step[..., latent] = 1e-5 * (new - old)[..., latent]
            ends = []
            for sign in (1, -1):
                with model.hooks({name: lambda value, ctx, sign=sign, step=step: value + sign * step}):
                    logits = model(pairs.corrupted)[torch.arange(len(pairs)), pairs.corrupted.last]
                ends.append(measured.raw(logits.as_subclass(torch.Tensor)))
            row = found.places.index[(found.places["layer"] == layer) & (found.places["latent"] == latent)][0]
            slope = (ends[0] - ends[1]) / 2e-5
            torch.testing.assert_close(found.raw[row] - found.corrupted, slope, rtol=1e-4, atol=1e-6)
    assert found.checked is not None
    assert found.top(3)["latent"].tolist() == found.checked["latent"].head(3).tolist()


def test_a_sweep_of_latents_is_saved_and_not_drawn(model: HookedTransformer, tmp_path: Any) -> None:
    with model.splice(sae_at(1, k=4)):
        found = attribution_patch(model, telling_pairs(model), site=KIND, check=2)
    again = load_patch_result(found.save(tmp_path / "patches.safetensors"))
    assert again.to_frame().equals(found.to_frame())
    with pytest.raises(ValueError, match="a grid of 48 latents"):
        found.plot()


def test_latents_that_are_not_there(model: HookedTransformer) -> None:
    pairs = telling_pairs(model)
    with pytest.raises(ValueError, match="no SAE stands there"):
        patch_sweep(model, pairs, site=KIND)
    with model.splice(sae_at(1, k=4)):
        with pytest.raises(ValueError, match=r"layer 0 has no resid_post.*in layers 1"):
            patch_sweep(model, pairs, site=KIND, layers=[0, 1])
        with pytest.raises(ValueError, match="choose from latent, pos, layer"):
            patch_sweep(model, pairs, site=KIND, by="head")
        with pytest.raises(ValueError, match="or latents of a spliced SAE"):
            patch_sweep(model, pairs, site="resid_post.sae_recons")
