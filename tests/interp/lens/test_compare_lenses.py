"""Lenses side by side, against the definition written out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model

from interp.lens import TunedLens, TunedLensConfig, load_tuned_lens, logit_lens, train_tuned_lens
from interp.lens.batches import text_hash
from interp.lens.compare import compare_lenses, load_lens_comparison
from interp.lens.jacobian import JacobianLens, fit_jacobian_lens
from interp.model import HookedTransformer
from interp.recording import record

TEXTS = ["hello there, all", "a much longer walk by the sea", "third"]


@pytest.fixture
def lens(tiny: HookedTransformer) -> JacobianLens:
    """Fitted on other text."""
    return fit_jacobian_lens(tiny, ["words of another kind"], skip=0)


def test_both_figures_equal_the_definition(tiny: HookedTransformer, lens: JacobianLens) -> None:
    result = compare_lenses(tiny, TEXTS, [lens], horizon=3, skip=2)
    assert result.lenses == ("logit", "jacobian")
    for t, text in enumerate(TEXTS):
        ids = tiny.tokenizer.encode(text)
        _, cache = tiny.run_with_cache(text)
        final = tiny(text)[0].log_softmax(-1)
        for s, site in enumerate(result.sites):
            stream = cache["resid_pre", 0][0] if site == "hook_embed" else cache[site][0]
            for which in range(2):
                if which and site == "hook_embed":
                    assert np.isnan(result.kl[1, s, t])
                    continue
                x = lens.translate(stream, site) if which else stream
                logp = tiny.unembed_logits(x).log_softmax(-1)
                places = range(2, len(ids) - 1)
                kl = (final.exp() * (final - logp)).sum(-1)[2:-1].mean()
                ranks = [min(int((logp[p] > logp[p, i]).sum()) + 1 for i in ids[p + 1 : p + 4]) for p in places]
                assert result.kl[which, s, t] == pytest.approx(float(kl), rel=1e-3, abs=1e-5)
                assert result.log_rank[which, s, t] == pytest.approx(np.log(ranks).mean(), abs=1e-6)


def test_means_weigh_rows_and_agree_with_the_logit_lens(tiny: HookedTransformer) -> None:
    frame = compare_lenses(tiny, TEXTS, skip=0).to_frame()
    rows = logit_lens(tiny, TEXTS).to_frame()
    rows = rows[rows["loss"].notna()]
    for line in frame.itertuples():
        expected = rows.loc[rows["layer"] == line.layer, "kl"].mean()
        assert line.kl == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert line.kl_low <= line.kl <= line.kl_high
        assert line.rank_low <= line.rank <= line.rank_high
    assert frame["kl"].iloc[-1] == pytest.approx(0.0, abs=1e-6)
    assert (frame["n_texts"] == 3).all()
    assert (frame["n"] == sum(len(text) - 1 for text in TEXTS)).all()


def test_a_planted_exact_lens_has_no_divergence() -> None:
    model = tiny_model("llama", n_layers=2)
    for weight in (model.blocks[1].attn.o.weight, model.blocks[1].mlp.down.weight):
        weight.zero_()
    turn = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0))).Q
    lens = fit_jacobian_lens(model, ["something else"], skip=0, sites="resid_post:0")
    torch.testing.assert_close(lens.matrices[0], torch.eye(32))
    frame = compare_lenses(model, TEXTS, [lens], skip=0).to_frame().set_index(["lens", "layer"])
    assert frame.loc[("jacobian", 0), "kl"] < 1e-5
    wrong = replace(lens, matrices=turn[None])
    assert (
        compare_lenses(model, TEXTS, [wrong], skip=0).to_frame().set_index(["lens", "layer"]).loc[("jacobian", 0), "kl"]
        > 0.1
    )


def test_it_is_saved_and_drawn(tiny: HookedTransformer, lens: JacobianLens, tmp_path: Path) -> None:
    result = compare_lenses(tiny, TEXTS, [lens], skip=0)
    again = load_lens_comparison(result.save(tmp_path / "comparison.json"))
    assert again.to_frame().equals(result.to_frame())
    for column in ("kl", "rank"):
        assert result.plot(column).to_dict()
    assert compare_lenses(tiny, TEXTS[:1], [lens], skip=0).plot().to_dict()
    with pytest.raises(ValueError, match="column must"):
        result.plot("loss")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a lens comparison"):
        load_lens_comparison(tmp_path / "other.json")


def test_texts_that_a_tuned_lens_was_trained_on_are_refused(tiny: HookedTransformer, tmp_path: Path) -> None:
    texts = [f"words of a store, number {n}, and {n * n} more of them" for n in range(8)]
    store = record(tiny, texts, ["resid_post:*"], path=tmp_path / "store", dtype="float32", progress=False)
    lens = train_tuned_lens(tiny, store, config=TunedLensConfig(batch_size=64, held_out=0.25))
    known = [text_hash(tiny.tokenizer.encode(text)) in lens.card["text_hashes"] for text in texts]
    assert sum(known) == len(lens.card["text_hashes"]) == 6  # those held out are none of them
    compare_lenses(tiny, [texts[known.index(False)]], [lens], skip=0)
    again = load_tuned_lens(lens.save(tmp_path / "lens.safetensors"))
    with pytest.raises(ValueError, match="tuned lens was fitted on text 1"):
        compare_lenses(tiny, ["new", texts[known.index(True)]], [again], skip=0)
    old = replace(lens, card={name: value for name, value in lens.card.items() if name != "text_hashes"})
    compare_lenses(tiny, texts, [old], skip=0)


def test_translators_take_both_forms_of_a_site(tiny: HookedTransformer, lens: JacobianLens) -> None:
    rows, site = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)), "blocks.0.hook_resid_post"
    weight, bias = torch.full((1, 32, 32), 0.1), torch.ones(1, 32)
    for translator in (lens, TunedLens((site,), weight, bias, pd.DataFrame(), {})):
        assert torch.equal(translator.translate(rows, "resid_post:0"), translator.translate(rows, site))
        with pytest.raises(ValueError, match=r"resid_mid:0; it has resid_post:0"):
            translator.translate(rows, "blocks.0.hook_resid_mid")


def test_unfair_comparisons_are_refused(tiny: HookedTransformer, lens: JacobianLens) -> None:
    with pytest.raises(ValueError, match="was fitted on text 1"):
        compare_lenses(tiny, ["new", "words of another kind"], [lens], skip=0)
    with pytest.raises(ValueError, match="fit one on it"):
        compare_lenses(tiny_model(seed=5), TEXTS, [lens], skip=0)
    with pytest.raises(ValueError, match="name of its own"):
        compare_lenses(tiny, TEXTS, [lens, lens], skip=0)
    with pytest.raises(ValueError, match="give longer texts"):
        compare_lenses(tiny, "short", skip=4)
    with pytest.raises(ValueError, match="encoder"):
        compare_lenses(tiny_model("bert"), TEXTS)
    with pytest.raises(ValueError, match="horizon"):
        compare_lenses(tiny, TEXTS, horizon=0)
