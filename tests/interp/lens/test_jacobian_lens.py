"""The Jacobian lens against the Jacobian itself, written out with torch.autograd."""

from pathlib import Path

import pytest
import torch
from tiny import shaken_model, tiny_model
from torch import Tensor

from interp.lens.jacobian import fit_jacobian_lens, load_jacobian_lens
from interp.model import HookedTransformer
from interp.tokens import Tokens

TEXTS = ["hello", "a long walk"]


def whole(model: HookedTransformer, text: str, layer: int) -> Tensor:
    """[target, d_model, source, d_model] of the stream after a block."""
    _, cache = model.run_with_cache(text, [f"resid_post:{layer}"])
    stream = cache["resid_post", layer][0]

    def rest(x: Tensor) -> Tensor:
        return model(x[None], start_at_layer=layer + 1, stop_at_layer=model.cfg.n_layers)[0]

    found = torch.autograd.functional.jacobian(rest, stream)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "deepseek", "neox"])
def test_it_is_the_mean_over_sources_of_the_sum_over_targets(family: str) -> None:
    model = shaken_model(family, n_layers=3, scale=3.0)
    lens = fit_jacobian_lens(model, TEXTS, skip=2)
    for index, layer in enumerate(range(3)):
        rows = [whole(model, text, layer)[:, :, 2:].sum(0) for text in TEXTS]
        expected = torch.cat(rows, 1).mean(1)
        torch.testing.assert_close(lens.matrices[index], expected, atol=1e-4, rtol=1e-3)
    assert lens.card["n_positions"] == sum(len(text) - 2 for text in TEXTS)


def test_signs_leave_the_effect_on_the_same_place() -> None:
    model = tiny_model("llama", scale=3.0, n_layers=2)
    expected = torch.cat([whole(model, text, 0).diagonal(dim1=0, dim2=2).movedim(-1, 1) for text in TEXTS], 1).mean(1)
    draws = [
        fit_jacobian_lens(model, TEXTS, sites="resid_post:0", skip=0, same_position=True, seed=seed).matrices[0]
        for seed in range(24)
    ]
    summed = fit_jacobian_lens(model, TEXTS, sites="resid_post:0", skip=0).matrices[0]
    mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0) / 24**0.5
    assert ((mean - expected).abs() < 8 * spread + 1e-5).all()
    assert (mean - expected).norm() < 0.1 * (summed - expected).norm()


def test_without_attention_between_places_both_estimators_are_the_product_of_the_mlps() -> None:
    model = tiny_model("llama", n_layers=3)
    for block in model.iter_blocks():
        block.attn.o.weight.zero_()
    one = fit_jacobian_lens(model, TEXTS, skip=0)
    other = fit_jacobian_lens(model, TEXTS, skip=0, same_position=True)
    torch.testing.assert_close(one.matrices, other.matrices, atol=1e-4, rtol=1e-3)
    assert torch.equal(one.matrices[-1], torch.eye(32))


def test_batches_copies_and_pads_do_not_matter() -> None:
    model = tiny_model("gpt2", n_layers=2)
    texts = [*TEXTS, "third one here"]
    together = fit_jacobian_lens(model, texts, skip=1)
    for batch_tokens in (1, 40, 100):
        other = fit_jacobian_lens(model, texts, skip=1, batch_tokens=batch_tokens)
        torch.testing.assert_close(other.matrices, together.matrices, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(other.halves, together.halves, atol=1e-3, rtol=1e-3)
    tokens = model.tokenize(texts, pad="left")
    left = fit_jacobian_lens(model, Tokens(tokens.ids, tokens.mask), skip=1)
    torch.testing.assert_close(left.matrices, together.matrices)


def test_halves_are_lenses_of_every_other_text() -> None:
    model = tiny_model("llama", n_layers=2)
    texts = ["first text", "second one", "and a third"]
    both = fit_jacobian_lens(model, texts, skip=2)
    # Halves are by the order of the texts, not of the batches.
    one = fit_jacobian_lens(model, texts[::2], skip=2).matrices[0].flatten()
    two = fit_jacobian_lens(model, texts[1::2], skip=2).matrices[0].flatten()
    assert float(both.halves[0, 0]) == pytest.approx(float(torch.cosine_similarity(one, two, 0)), abs=1e-4)
    whole_norm = both.matrices[0].norm()
    assert float(both.halves[0, 1]) == pytest.approx(float((one - two).norm() / whole_norm), rel=1e-3)
    assert fit_jacobian_lens(model, "one text", skip=2).to_frame()["half_cosine"].isna().all()


def test_the_embedding_is_the_stream_into_the_first_block() -> None:
    model = tiny_model("gpt2", n_layers=2)
    lens = fit_jacobian_lens(model, TEXTS, sites=["embed", "resid_pre:0", "resid_mid:1"], skip=0)
    assert torch.equal(lens.matrices[0], lens.matrices[1])
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(lens.translate(rows, "resid_mid:1"), rows @ lens.matrices[2].T)


def test_a_post_norm_decoder_ends_at_the_normed_stream() -> None:
    model = tiny_model("bert", causal=True, n_token_types=0, mlm_head=False)
    lens = fit_jacobian_lens(model, TEXTS, skip=0)
    assert lens.sites[-1] == "blocks.1.hook_normalized_resid_post"
    assert torch.equal(lens.matrices[-1], torch.eye(32))


def test_it_is_saved_drawn_and_refuses_another_model(tmp_path: Path) -> None:
    model, seen = tiny_model("llama"), []
    lens = fit_jacobian_lens(model, TEXTS, skip=2, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)
    again = load_jacobian_lens(lens.save(tmp_path / "lens.safetensors"), model)
    assert torch.equal(again.matrices, lens.matrices)
    assert again.to_frame().equals(lens.to_frame())
    assert again.name == "jacobian"
    assert lens.plot().to_dict()
    assert lens.plot("gain").to_dict()
    with pytest.raises(ValueError, match="fit one on it"):
        load_jacobian_lens(tmp_path / "lens.safetensors", tiny_model("llama", seed=1))


def test_what_makes_no_lens_is_refused() -> None:
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="16 positions that are skipped"):
        fit_jacobian_lens(model, TEXTS)
    with pytest.raises(ValueError, match="not the residual stream"):
        fit_jacobian_lens(model, TEXTS, sites="mlp_out:*", skip=0)
    with pytest.raises(ValueError, match="encoder"):
        fit_jacobian_lens(tiny_model("bert"), TEXTS)
    with pytest.raises(ValueError, match="skip must"):
        fit_jacobian_lens(model, TEXTS, skip=-1)
    with pytest.raises(ValueError, match="max_length must"):
        fit_jacobian_lens(model, TEXTS, max_length=1)
    with pytest.raises(ValueError, match="not fitted at"):
        fit_jacobian_lens(model, TEXTS, skip=0).translate(torch.zeros(1, 32), "resid_mid:0")
