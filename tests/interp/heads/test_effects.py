"""Effects of ablated heads and sets against whole runs with the public interventions; the real model's known figures."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import shaken_model, tiny_model

from interp.heads.effects import head_effects, load_head_effects
from interp.heads.report import head_report, load_head_report
from interp.heads.sets import ablate_heads, load_set_effects, random_head_sets
from interp.intervene import Ablate, reference_means
from interp.model import HookedTransformer
from interp.plot import to_svg
from interp.plot.effects import effect_bars, set_against_random

IDS = torch.randint(0, 256, (3, 9), generator=torch.Generator().manual_seed(0))
TEXTS = ["the cat sat on the mat and looked", "a dog barked at the moon all night"]
CAUSAL = ["llama", "gpt2", "neox", "falcon", "gemma2", "olmo2", "mixtral", "deepseek", "bare"]


def whole_run(model: HookedTransformer, heads: list[tuple[int, int]], kind: str, reference: Any) -> torch.Tensor:
    """Second-copy loss by sequence from one plain pass under `Ablate`."""
    ids = torch.cat([torch.full((3, 1), 7), IDS, IDS], 1)
    with model.intervene(Ablate(heads, kind=kind, reference=reference)), torch.no_grad():
        return model.loss(ids, per_token=True)[:, 10:].double().mean(1)


@pytest.mark.parametrize("family", CAUSAL)
def test_singles_and_sets_are_those_of_whole_runs(family: str) -> None:
    model = shaken_model(family)
    for kind, reference in (("zero", None), ("mean", TEXTS)):
        options: dict[str, Any] = {"bos": 7, "kind": kind, "reference": reference}
        found = head_effects(model, IDS, **options)
        assert found.heads == tuple(itertools.product(range(2), range(4)))
        for line in (0, 3, 6):
            expected = whole_run(model, [found.heads[line]], kind, reference)
            torch.testing.assert_close(found.losses[line], expected, rtol=1e-4, atol=1e-4)
        group = [(0, 1), (1, 2), (1, 3)]
        sets = ablate_heads(model, group, IDS, n_random=2, **options)
        torch.testing.assert_close(sets.whole, whole_run(model, group, kind, reference), rtol=1e-4, atol=1e-4)
        without = whole_run(model, [(0, 1), (1, 3)], kind, reference)
        torch.testing.assert_close(sets.others[1], without, rtol=1e-4, atol=1e-4)
        drawn = whole_run(model, list(sets.random_heads[0]), kind, reference)
        torch.testing.assert_close(sets.random[0], drawn, rtol=1e-4, atol=1e-4)


def test_batches_of_copies_and_rows_change_nothing() -> None:
    model, wide = tiny_model(), torch.randint(0, 256, (8, 60), generator=torch.Generator().manual_seed(1))
    found = head_effects(model, wide, kind="zero")  # two copies at once
    one = head_effects(model, wide, kind="zero", heads=[(1, 3)], rows=2)
    torch.testing.assert_close(found.losses[-1, :2], one.losses[0], rtol=1e-5, atol=1e-5)
    assert one.card["n_sequences"] == 2


def test_resampled_values_are_those_of_other_random_tokens() -> None:
    model = tiny_model()
    one, again, other = (head_effects(model, IDS, bos=7, kind="resample", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.losses, again.losses)
    assert not torch.equal(one.losses, other.losses)
    assert head_effects(model, IDS, bos=7).card["ablation"] == "resample"
    assert head_effects(model, IDS, bos=7, reference=TEXTS).card["ablation"] == "mean"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mean"}, "needs reference="),
        ({"kind": "zero", "reference": TEXTS}, "uses no reference"),
        ({"kind": "median"}, "choose from mean, zero, resample"),
        ({"heads": [(2, 0)]}, "no head 2.0"),
        ({"heads": [3]}, "pairs"),
        ({"rows": 0}, "rows=0"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_effects(tiny_model(), IDS, **options)


def test_an_encoder_and_an_empty_set_are_refused() -> None:
    with pytest.raises(ValueError, match="encoder"):
        head_effects(tiny_model("bert"), IDS, kind="zero")
    with pytest.raises(ValueError, match="empty"):
        ablate_heads(tiny_model(), [], IDS, kind="zero")


def test_random_sets_have_as_many_other_heads_in_each_layer() -> None:
    group = [(0, 1), (2, 0), (2, 5)]
    drawn = random_head_sets(group, n_heads=9, n_random=20, seed=0)
    assert len(set(drawn)) == 20
    assert drawn == random_head_sets(group, 9, 20, 0)
    assert drawn != random_head_sets(group, 9, 20, 1)
    for one in drawn:
        assert [layer for layer, _ in one] == [0, 2, 2]
        assert len(set(one)) == 3
        assert not set(one) & set(group)
    assert len(random_head_sets([(0, 1), (1, 2)], 4, 20, 0)) == 9  # all that there are
    assert random_head_sets([(0, 0), (0, 1), (0, 2)], 4, 20, 0) == ()


def test_files_frames_and_charts(tmp_path: Path) -> None:
    model = tiny_model()
    found = head_effects(model, IDS, bos=7, kind="zero")
    again = load_head_effects(found.save(tmp_path / "effects.safetensors"))
    assert again.to_frame().equals(found.to_frame())
    assert again.gain == found.gain
    frame = found.to_frame()
    assert (frame["effect_low"] <= frame["effect"]).all()
    assert (frame["effect"] <= frame["effect_high"]).all()
    assert found.top(2)["effect"].tolist() == sorted(frame["effect"], reverse=True)[:2]
    sets = ablate_heads(model, [(0, 1), (1, 2)], IDS, bos=7, kind="zero")
    loaded = load_set_effects(sets.save(tmp_path / "set.safetensors"))
    assert loaded.to_frame().equals(sets.to_frame())
    assert loaded.random_heads == sets.random_heads
    assert "9 random sets" in sets.summary()
    report = head_report(model, IDS, bos=7, kind="zero", rows=2)
    back = load_head_report(report.save(tmp_path / "report.json"))
    pd.testing.assert_frame_equal(back.to_frame(), report.to_frame(), check_dtype=False)  # JSON has one kind of float
    assert back.summary() == report.summary()
    for chart in (found.plot(), sets.plot(), report.plot(), report.plot_effects()):
        assert "<svg" in to_svg(chart)


def test_charts_need_their_columns() -> None:
    with pytest.raises(ValueError, match="no column"):
        effect_bars(pd.DataFrame({"layer": [0]}))
    parts = pd.DataFrame({"name": ["L0H0"], "alone": [0.1], "in_set": [0.2]})
    assert "<svg" in to_svg(set_against_random(parts, 1.0, np.zeros(0)))


def typical_means(model: HookedTransformer, path: Path) -> dict[str, torch.Tensor]:
    """Mean z over the typical tokens of 16 rows of 128 tokens of WikiText."""
    assert model.tokenizer is not None
    ids = torch.tensor(model.tokenizer.encode(path.read_text()[:20000])[: 16 * 128]).view(16, 128)
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
    return reference_means(ids, names, model)


@pytest.mark.slow
def test_the_known_figures_of_the_real_model(smollm: HookedTransformer, shared_data: Path) -> None:
    ids = torch.randint(1000, 40000, (8, 64), generator=torch.Generator().manual_seed(0))
    reference = typical_means(smollm, shared_data / "wikitext-2" / "valid.txt")
    singles = head_effects(smollm, ids, bos=1, reference=reference, rows=1).to_frame().set_index(["layer", "head"])
    assert len(singles) == 270
    assert np.isfinite(singles["effect"]).all()
    assert singles["effect"].idxmax() == (16, 0)
    assert singles.loc[(16, 0), "effect"] > 5
    # Verdicts need intervals, so more sequences; the layers where the heads in question are will do.
    report = head_report(smollm, ids, bos=1, reference=reference, layers=[16, 17, 18, 23])
    frame = report.to_frame().set_index(["layer", "head"])
    found = report.set_effect
    assert found is not None
    assert {tuple(head) for head in found["heads"]} == {(18, 6), (17, 3), (17, 4), (18, 7), (17, 5), (23, 2)}
    assert found["effect"] == pytest.approx(8.9, abs=0.5)
    assert len(found["random"]) == 20
    assert found["effect"] > 3 * max(found["random"])
    for head in ((18, 6), (18, 7), (17, 3)):
        assert frame.loc[head, "verdict"] == "induction"
    assert frame.loc[(17, 4), "verdict"] == "redundant"
    assert frame.loc[(16, 0), ["verdict", "role"]].tolist() == ["upstream", "previous_token"]
    assert report.of("upstream").iloc[0]["effect"] == frame["effect"].max()
    assert "L16H0" in report.summary()
