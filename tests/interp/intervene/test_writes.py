"""Orthogonal weights against directional ablation by hooks written by hand, in every arrangement that has them."""

import re

import numpy as np
import pytest
import torch
from tiny import FAMILIES, shaken_model, tiny_model
from torch import Tensor

from interp.intervene import Steer
from interp.intervene.targets import Target
from interp.intervene.writes import orthogonalise_weights, write_sites
from interp.model import HookedTransformer
from interp.model.int8 import quantize_int8

NORMED = ("gemma2", "gemma3", "olmo2")
"""Norms between the weights and the stream."""
PLAIN = [name for name in FAMILIES if name not in (*NORMED, "bert")]
TEXTS = ["hello there", "a longer text than that"]


def directions(n: int, seed: int = 0, width: int = 32) -> Tensor:
    """Orthonormal rows in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, n, generator=generator, dtype=torch.float64)).Q.T


def ablated(model: HookedTransformer, basis: Tensor) -> Tensor:
    """Logits where the directions are taken out of each term of the stream, by a hook."""
    basis = basis.to(model.dtype)
    with model.hooks({site: lambda value, ctx: value - value @ basis.T @ basis for site in write_sites(model)}):
        return model(TEXTS)


# ----------------------------------------------------------------------------------------------------------- the places


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "bert"])
def test_the_writes_sum_to_the_stream(family: str) -> None:
    model = shaken_model(family).double()
    _, cache = model.run_with_cache(TEXTS, [*write_sites(model), "resid_post:-1"])
    total = sum(cache[site] for site in write_sites(model))
    torch.testing.assert_close(total, cache["resid_post", 1], atol=1e-9, rtol=1e-9)


def test_a_norm_of_the_summed_embedding_is_the_term_that_enters(tiny: HookedTransformer) -> None:
    model = shaken_model("gpt2", embed_norm="sum").double()
    sites = write_sites(model)
    assert sites[:2] == ["hook_full_embed", "blocks.0.hook_attn_out"]
    _, cache = model.run_with_cache(TEXTS, [*sites, "resid_post:-1"])
    torch.testing.assert_close(sum(cache[site] for site in sites), cache["resid_post", 1], atol=1e-9, rtol=1e-9)
    assert write_sites(tiny)[0] == "hook_embed"


def test_a_normed_stream_has_no_writes() -> None:
    with pytest.raises(ValueError, match=r"norms its stream .* 'resid_pre:\*' for attention and 'mlp_in:\*'"):
        write_sites(tiny_model("bert"))


# ---------------------------------------------------------------------------------------------------------- the weights


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("family", PLAIN)
def test_orthogonal_weights_are_directional_ablation(family: str, n: int) -> None:
    basis = directions(n)
    for model, bound in ((shaken_model(family), 1e-4), (shaken_model(family).double(), 1e-9)):
        before = model.fingerprint
        changed = orthogonalise_weights(model, basis)
        expected = ablated(model, basis)
        assert (changed(TEXTS) - expected).abs().max() < bound * max(1.0, expected.abs().max())
        assert (model(TEXTS) - expected).abs().max() > 0.1, "the direction matters here"
        assert model.fingerprint == before
        assert changed.dtype == model.dtype


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "falcon", "deepseek"])
def test_steer_says_the_same_in_words(family: str) -> None:
    model, direction = shaken_model(family), directions(1)[0].float()
    vector = Target("blocks.0.hook_resid_post", direction, 1.0, norm=2.0)
    with model.intervene(Steer(vector, kind="ablate", site="writes")):
        expected = model(TEXTS)
    difference = orthogonalise_weights(model, vector)(TEXTS) - expected
    real = expected.tokens.mask  # pads have no part in an intervention
    assert difference[real].abs().max() < 1e-4 * max(1.0, expected.abs().max())


@pytest.mark.parametrize("family", PLAIN)
def test_the_new_stream_has_no_part_along_the_direction(family: str) -> None:
    basis = directions(2)
    model = orthogonalise_weights(shaken_model(family).double(), basis)
    _, cache = model.run_with_cache(TEXTS, ["resid_pre:*", "resid_post:-1"])
    for stream in cache.cache_dict.values():
        assert (stream @ basis.T).abs().max() < 1e-10 * stream.norm(dim=-1).max()


@pytest.mark.parametrize("family", NORMED)
def test_norms_that_write_are_refused_with_the_mend(family: str) -> None:
    mend = re.escape("Steer(vector, kind='ablate', site='writes')")
    with pytest.raises(ValueError, match=rf"norm_placement='\w+'.*{mend}"):
        orthogonalise_weights(tiny_model(family), directions(1))


def test_other_norms_that_write_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stream itself is normed .*site='resid_pre:\*'"):
        orthogonalise_weights(tiny_model("bert"), directions(1))
    with pytest.raises(ValueError, match="norm of the summed embeddings"):
        orthogonalise_weights(tiny_model("gpt2", embed_norm="sum"), directions(1))


@pytest.mark.parametrize("placement", ["post", "sandwich", "post_ln"])
def test_placements_without_norms_are_no_obstacle(placement: str) -> None:
    model, basis = shaken_model("llama", norm="none", norm_placement=placement, final_norm=False), directions(1)
    torch.testing.assert_close(orthogonalise_weights(model, basis)(TEXTS), ablated(model, basis), atol=1e-3, rtol=1e-4)


def test_bfloat16_is_rounded_once() -> None:
    model, basis = shaken_model("llama").to(torch.bfloat16), directions(1)
    changed = orthogonalise_weights(model, basis)
    for name, weight in changed.state_dict().items():
        old = model.state_dict().get(name, model.embed.weight).double()
        if name == "embed.weight":
            old = old - old @ basis.T @ basis
        elif name.endswith((".o.weight", ".down.weight")):
            old = old - basis.T @ (basis @ old)
        assert torch.equal(weight, old.to(torch.bfloat16)), name


def test_the_new_model_is_untied_and_says_what_was_done() -> None:
    model = tiny_model("llama")
    changed = orthogonalise_weights(model, directions(2))
    assert model.cfg.tie_embeddings
    assert not changed.cfg.tie_embeddings
    assert torch.equal(changed.W_U, model.W_U)
    assert re.search(r"nothing is written along 2 directions \([0-9a-f]{16}\)", changed.note)
    assert changed.fingerprint != model.fingerprint
    again = orthogonalise_weights(changed, directions(1, seed=5))
    assert again.note.count("nothing is written") == 2
    assert orthogonalise_weights(model, directions(2)).fingerprint == changed.fingerprint
    changed.embed.weight.zero_()
    assert model.embed.weight.abs().max() > 0, "no memory is shared"


def test_every_form_of_a_direction_means_the_same() -> None:
    model, (a, b) = tiny_model("llama"), directions(2).float()
    vector = Target("blocks.0.hook_resid_post", a, 1.0, norm=5.0)
    one = orthogonalise_weights(model, a).fingerprint
    for given in (vector, [vector], 8 * a, a[None], [a], a.numpy().astype(np.float32)):
        assert orthogonalise_weights(model, given).embed.weight.equal(orthogonalise_weights(model, a).embed.weight)
    assert orthogonalise_weights(model, [a, 2 * a]).note == orthogonalise_weights(model, [a, -3 * a]).note != ""
    assert "1 direction (" in orthogonalise_weights(model, [a, 2 * a]).note, "they span one dimension"
    both = orthogonalise_weights(model, [vector, a + 0.1 * b])
    torch.testing.assert_close(
        both(TEXTS), orthogonalise_weights(model, torch.stack([a, b]))(TEXTS), atol=1e-4, rtol=1e-4
    )
    assert both.fingerprint != one


def test_what_is_no_direction_is_refused() -> None:
    model, unit = tiny_model("llama"), directions(1)[0]
    for bad, message in (
        (unit[:8], r"one of the stream, \[32\]; got \[8\]"),
        (0 * unit, "norm 0.0"),
        (unit * torch.nan, "norm nan"),
        ([], "no direction"),
        ("resid_post:1", "got str"),
        (torch.arange(32), "floating-point"),
        (directions(32), "span the whole stream"),
        (Target("blocks.0.ln1.hook_normalized", unit, 1.0, norm=1.0), "coordinates of a norm"),
        (Target("blocks.0.attn.hook_z", unit[:8] / unit[:8].norm(), 1.0, norm=1.0, head=2), "direction of head 2"),
    ):
        with pytest.raises(ValueError, match=message):
            orthogonalise_weights(model, bad)


def test_int8_weights_are_refused() -> None:
    quantized = quantize_int8(tiny_model("llama")).model
    with pytest.raises(ValueError, match="integer weights"):
        orthogonalise_weights(quantized, directions(1))


def test_on_the_real_model(smollm: HookedTransformer) -> None:
    _, cache = smollm.run_with_cache("The capital of France is Paris.", "resid_post:12")
    basis = torch.nn.functional.normalize(cache["resid_post", 12][0, -1].double(), dim=0)[None]
    changed, wide = orthogonalise_weights(smollm, basis), basis.float()
    text = "The capital of Italy is Rome, and"
    with smollm.hooks({site: lambda value, ctx: value - value @ wide.T @ wide for site in write_sites(smollm)}):
        expected = smollm(text)
    assert (changed(text) - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (smollm(text) - expected).abs().max() > 1
