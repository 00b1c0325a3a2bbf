"""Causal tracing against whole runs with hooks written by hand."""

from pathlib import Path

import pytest
import torch
from tiny import shaken_model
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene import Noise
from interp.patching.tracing import causal_trace, load_causal_trace

PROMPT = "the tower is in"


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox", "gemma2"])
@pytest.mark.parametrize("window", [1, 2])
def test_every_restoration_is_a_whole_run(family: str, window: int) -> None:
    model = shaken_model(family)
    sites = ("resid_post", "attn_out", "mlp_out")
    trace = causal_trace(model, PROMPT, "tower", n_noise=3, window=window, sites=sites, seed=2)
    assert trace.card["subject_span"] == [4, 9]
    noise = Noise(positions=range(4, 9), scale=trace.card["noise"]["scale"], seed=2)
    _, cache = model.run_with_cache(PROMPT)
    for index in trace.places.sample(8, random_state=0).index:
        site, layer, pos = trace.places.loc[index, ["site", "layer", "pos"]]
        layers = [layer] if window == 1 or site == "resid_post" else [v for v in (layer - 1, layer) if v >= 0]

        def restore(value: Tensor, ctx: HookContext, pos: int = pos) -> None:
            value[:, pos] = cache[ctx.name][0, pos]

        with model.intervene(noise), model.hooks({f"{site}:{v}": restore for v in layers}):
            logits = model([PROMPT] * 3)[:, -1].as_subclass(Tensor).double()
        torch.testing.assert_close(trace.logit[index], logits[:, trace.card["answer"]], atol=1e-4, rtol=1e-4)
        expected = logits.softmax(-1)[:, trace.card["answer"]]
        torch.testing.assert_close(trace.probability[index], expected, atol=1e-4, rtol=1e-3)


def test_the_last_stream_brings_all_back_and_what_is_saved_is_read(tmp_path: Path) -> None:
    model = shaken_model("llama")
    trace = causal_trace(model, PROMPT, (4, 9), n_noise=4)
    frame = trace.to_frame("logit", normalised=True)
    last = frame[(frame.site == "resid_post") & (frame.layer == 1) & (frame.pos == 14)]
    assert last.effect.item() == pytest.approx(1.0, abs=1e-4)
    assert (frame[frame.pos < 4].effect == 0).all()
    assert (frame.low <= frame.effect + 1e-9).all()
    assert (frame.n == 4).all()
    loaded = load_causal_trace(trace.save(tmp_path / "trace.safetensors"))
    assert loaded.to_frame().equals(trace.to_frame())
    assert "tower"[0] in trace.labels[4]
    trace.plot("mlp_out").to_dict()
    with pytest.raises(ValueError, match="does not hold"):
        causal_trace(model, PROMPT, "bridge")
    with pytest.raises(ValueError, match="site 'z'"):
        causal_trace(model, PROMPT, "tower", sites="z")
    assert set(causal_trace(model, PROMPT, "tower", n_noise=2, layers=[-1, 1]).places["layer"]) == {1}
    with pytest.raises(ValueError, match="layer 99: there are layers 0 to 1"):
        causal_trace(model, PROMPT, "tower", layers=[99])
    with pytest.raises(ValueError, match="next token"):
        causal_trace(shaken_model("bert"), PROMPT, "tower")
