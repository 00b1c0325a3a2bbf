"""Knockout sweeps against whole runs under `Knockout`."""

from pathlib import Path

import pytest
import torch
from tiny import shaken_model
from torch import Tensor

from interp.intervene import Knockout
from interp.patching.knockout import _side_by_side, knockout_sweep, load_knockout_sweep

TEXTS = ["hello there", "other words"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox", "gemma2"])
def test_every_cut_is_a_whole_run(family: str, tmp_path: Path) -> None:
    model = shaken_model(family)
    sweep = knockout_sweep(model, TEXTS, ["a", "b"], "c", window=2)
    assert len(sweep.places) == 2 * 10
    ids = [model.tokenizer.to_single_token(t) for t in "abc"]
    right, wrong = torch.tensor(ids[:2]), ids[2]
    for index in sweep.places.sample(6, random_state=0).index:
        place = sweep.places.loc[index]
        layers = range(int(place["first"]), int(place["last"]) + 1)
        with model.hooks(_side_by_side([Knockout("last", [int(place["pos"])], layers=layers)], model)):
            logits = model(TEXTS)[:, -1].as_subclass(Tensor).double()
        expected = logits[torch.arange(2), right] - logits[:, wrong]
        torch.testing.assert_close(sweep.values[2, index], expected, atol=1e-4, rtol=1e-4)
    loaded = load_knockout_sweep(sweep.save(tmp_path / "sweep.safetensors"))
    assert loaded.to_frame().equals(sweep.to_frame())
    sweep.plot().to_dict()


def test_prompts_of_unequal_length_need_keys() -> None:
    model = shaken_model("llama")
    with pytest.raises(ValueError, match="not the same places"):
        knockout_sweep(model, ["hello", "hi"], "a")
    sweep = knockout_sweep(model, ["hello", "hey"], "a", keys=[(0, 2)], layers=[1])
    alone = knockout_sweep(model, "hey", "a", keys=[(0, 2)], layers=[1])
    torch.testing.assert_close(sweep.values[:, :, 1:], alone.values, atol=1e-5, rtol=1e-4)
    assert sweep.to_frame().n.item() == 2
    with pytest.raises(ValueError, match="shortest prompt"):
        knockout_sweep(model, ["hello", "hi"], "a", keys=[3])


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "deepseek"])
def test_cuts_side_by_side_are_those_one_by_one(family: str) -> None:
    model = shaken_model(family)
    seen: list[tuple[int, int]] = []
    options = {"keys": [0, 2, (1, 4)], "queries": [(3, 5)], "window": 2}
    together = knockout_sweep(model, ["hello", "you and me"], "a", progress=lambda *at: seen.append(at), **options)
    single = knockout_sweep(model, ["hello", "you and me"], "a", batch_size=1, **options)
    torch.testing.assert_close(together.values, single.values, atol=1e-5, rtol=1e-4)
    assert together.places.equals(single.places)
    assert not torch.allclose(together.values[0], together.plain[0])
    assert seen == [(3, 6), (6, 6)]


def test_layers_count_from_the_end_and_those_that_do_not_exist_are_named() -> None:
    model = shaken_model("llama")
    assert set(knockout_sweep(model, "hello", "a", layers=[-1]).places["layer"]) == {1}
    with pytest.raises(ValueError, match="layer 2: there are layers 0 to 1"):
        knockout_sweep(model, "hello", "a", layers=[2])
    with pytest.raises(ValueError, match="batch_size must be"):
        knockout_sweep(model, "hello", "a", batch_size=0)
