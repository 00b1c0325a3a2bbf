"""Probes in the running model: every reading against one pass over the whole text, computed from recorded activations."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model

from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.probe.live import Flag, score_tokens, watch_probe
from interp.probe.value import Probe
from interp.recording import record
from interp.tokens import Tokens

RESID, Z = "blocks.1.hook_resid_post", "blocks.0.attn.hook_z"
PROMPTS = ["The river is", "a much longer stone", "x"]


def make_probe(site: str, width: int, head: int | None = None, seed: int = 0, **fields: Any) -> Probe:
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(width, generator=generator) / width
    return Probe(direction, 0.1, "logistic", torch.zeros(width), torch.ones(width), site=site, head=head, **fields)


@pytest.fixture
def probes() -> dict[str, Probe]:
    """A whole site, a head, the heads of a site together, and a network."""
    network = {"hidden": torch.eye(32)[:4], "hidden_bias": torch.zeros(4), "output": torch.ones(4)}
    zeros, ones = torch.zeros(32), torch.ones(32)
    return {
        "network": Probe(None, 0.1, "mlp", zeros, ones, site="blocks.0.hook_resid_post", tensors=network),
        "whole": make_probe(RESID, 32),
        "head": make_probe(Z, 8, 2, seed=1),
        "joined": make_probe(Z, 32, seed=2),
    }


def one_pass(model: HookedTransformer, probes: dict[str, Probe], ids: list[int]) -> pd.DataFrame:
    """The answer, without a watch: record the sites in one pass over one text, and read them."""
    _, cache = model.run_with_cache([ids], sites=[probe.site for probe in probes.values()])
    parts = []
    for name, probe in probes.items():
        value = cache[str(probe.site)][0]
        rows = value[:, probe.head] if probe.head is not None else value.flatten(1)
        parts.append(
            pd.DataFrame(
                {
                    "probe": name,
                    "position": np.arange(len(ids)),
                    "token_id": ids,
                    "score": probe.score(rows),
                    "probability": probe(rows),
                }
            )
        )
    return pd.concat(parts)


def assert_as_in_one_pass(
    frame: pd.DataFrame, model: HookedTransformer, probes: dict[str, Probe], ids: list[int]
) -> None:
    wanted = one_pass(model, probes, ids).set_index(["probe", "position"]).sort_index()
    found = frame.set_index(["probe", "position"]).sort_index()
    assert found.index.equals(wanted.index)
    assert found["token_id"].tolist() == wanted["token_id"].tolist()
    np.testing.assert_allclose(found["score"], wanted["score"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["probability"], wanted["probability"], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------- the same readings


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "dynamic"])
def test_generation_reads_what_one_pass_reads(family: str, probes: dict[str, Probe]) -> None:
    model = tiny_model(family)
    with watch_probe(model, probes) as watch:
        out = model.generate(PROMPTS, max_new_tokens=7)
    frame = watch.to_frame(out)
    assert frame["row"].unique().tolist() == [0, 1, 2]
    for number, row in enumerate(out.rows):
        mine = frame[frame["row"] == number]
        fed = row.all_tokens[: mine["position"].max() + 1]
        assert len(fed) >= len(row.all_tokens) - 1  # the last token is chosen and not fed
        assert_as_in_one_pass(mine, model, probes, fed)
        if family != "dynamic":  # there the prompt passes again when the text grows beyond its context
            prompt = mine["position"] < len(row.prompt_tokens)
            assert set(mine["phase"][prompt]) == {"prefill"}
            assert set(mine["phase"][~prompt]) == {"decode"}


@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_are_left_out(tiny: HookedTransformer, probes: dict[str, Probe], side: str) -> None:
    rows = [[70, 71, 72, 73], [80, 81]]
    pad = [257, 257]
    ids = torch.tensor([rows[0], pad + rows[1] if side == "left" else rows[1] + pad])
    frame = score_tokens(tiny, probes, Tokens(ids, ids != 257))
    for number, text in enumerate(rows):
        assert_as_in_one_pass(frame[frame["row"] == number], tiny, probes, text)


def test_without_a_cache_the_last_call_reads_the_same(tiny: HookedTransformer, probes: dict[str, Probe]) -> None:
    ids = [70, 71, 72]
    with watch_probe(tiny, probes) as watch:
        for _ in range(3):
            ids = [*ids, int(tiny([ids])[0, -1].argmax())]
        tiny([ids])
        out = tiny.generate([70, 71, 72], max_new_tokens=4, stop_at_eos=False)
    frame = watch.to_frame()
    assert frame["call"].unique().tolist() == [0, 1, 2, 3, 4]
    assert_as_in_one_pass(frame[frame["call"] == 3], tiny, probes, ids)
    assert out.all_tokens[:-1] == ids
    assert_as_in_one_pass(frame[frame["call"] == 4], tiny, probes, ids)
    np.testing.assert_allclose(
        frame.loc[frame["call"] == 3, "score"], frame.loc[frame["call"] == 4, "score"], rtol=1e-4, atol=1e-5
    )


def test_samples_of_a_prompt_are_rows_of_their_own(tiny: HookedTransformer, probes: dict[str, Probe]) -> None:
    with watch_probe(tiny, probes) as watch:
        out = tiny.generate(PROMPTS[:2], max_new_tokens=5, temperature=1.0, n_samples=2)
    frame = watch.to_frame(out)
    assert frame["row"].unique().tolist() == [0, 1, 2, 3]
    for number, row in enumerate(out.rows):
        mine = frame[frame["row"] == number]
        assert_as_in_one_pass(mine, tiny, probes, row.all_tokens[: mine["position"].max() + 1])


def test_rows_that_ended_are_cut(probes: dict[str, Probe], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    assert model.tokenizer is not None
    options = {"max_new_tokens": 8, "temperature": 1.0}
    free = model.generate(PROMPTS[:2], stop_at_eos=False, **options)
    end = next(token for token in free.tokens[0][2:6] if token not in free.tokens[1] + free.tokens[0][:2])
    with watch_probe(model, probes) as watch:  # a stop that the watch is not told of
        out = model.generate(PROMPTS[:2], stop=end, **options)
    assert 2 <= len(out.tokens[0]) < len(out.tokens[1]) == 8
    length = len(out.all_tokens[0])
    assert watch.to_frame().query("row == 0")["position"].max() >= length
    assert watch.to_frame(out).query("row == 0")["position"].max() == length - 1
    monkeypatch.setattr(model.tokenizer, "eos_id", end)
    with watch_probe(model, probes) as watch:
        out = model.generate(PROMPTS[:2], **options)
    frame = watch.to_frame()
    pd.testing.assert_frame_equal(frame, watch.to_frame(out))
    for number, row in enumerate(out.rows):
        mine = frame[frame["row"] == number]
        assert_as_in_one_pass(mine, model, probes, row.all_tokens[: mine["position"].max() + 1])
    assert frame.query("row == 0")["position"].max() == length - 1
    with watch_probe(model, probes, stop_at_eos=False) as watch:
        out = model.generate(PROMPTS[:2], stop_at_eos=False, **options)
    assert watch.to_frame().query("row == 0")["position"].max() == len(out.all_tokens[0]) - 2


@pytest.mark.parametrize("outside", [True, False])
def test_a_watch_reads_what_interventions_leave(
    tiny: HookedTransformer, probes: dict[str, Probe], outside: bool
) -> None:
    def double(value: torch.Tensor, ctx: HookContext) -> torch.Tensor:
        return 2 * value

    ids = [70, 71, 72]
    probe = probes["whole"]
    if outside:
        with watch_probe(tiny, probe) as watch, tiny.hooks({RESID: double}):
            tiny([ids])
    else:
        with tiny.hooks({RESID: double}), watch_probe(tiny, probe) as watch:
            tiny([ids])
    _, cache = tiny.run_with_cache([ids], sites=RESID)
    np.testing.assert_allclose(watch.to_frame()["score"], probe.score(2 * cache[RESID][0]), rtol=1e-5)


def test_a_watch_leaves_the_model_bit_identical(tiny: HookedTransformer, probes: dict[str, Probe]) -> None:
    before = tiny(PROMPTS)
    with watch_probe(tiny, probes):
        assert torch.equal(tiny(PROMPTS), before)
    assert_restored(tiny)


def assert_restored(model: HookedTransformer) -> None:
    assert not any(point.handles for point in model.hook_dict.values())
    assert not model.embed._forward_pre_hooks


# ------------------------------------------------------------------------------------------------------------- flags


def test_flags_are_ordinary_tokens_over_the_threshold(tiny: HookedTransformer) -> None:
    text = "river<|end|>stone"
    probe = make_probe(RESID, 32, threshold=0.5)
    frame = score_tokens(tiny, probe, text)
    assert frame["probe"].unique().tolist() == ["logistic resid_post:1"]
    assert frame["token"].tolist()[:2] == ["r", "i"]
    assert (frame["ordinary"] == ((frame["position"] > 0) & (frame["token_id"] != 256))).all()
    assert (~frame["ordinary"]).sum() == 2
    assert (frame["flag"] == (frame["ordinary"] & (frame["probability"] > 0.5))).all()
    assert 0 < frame["flag"].sum() < frame["ordinary"].sum()
    told: list[Flag] = []
    with watch_probe(tiny, {"p": probe}, threshold=0.0, on_flag=told.append) as watch:
        tiny(text)
    assert [flag.position for flag in told] == frame["position"][frame["ordinary"]].tolist()
    assert [flag.probability for flag in told] == pytest.approx(frame["probability"][frame["ordinary"]].tolist())
    assert [flag.token_id for flag in told] == frame["token_id"][frame["ordinary"]].tolist()
    assert watch.flags["position"].tolist() == [flag.position for flag in told]
    assert {(flag.probe, flag.row, flag.phase, flag.threshold) for flag in told} == {("p", 0, "forward", 0.0)}
    none = score_tokens(tiny, {"p": probe}, text, threshold={"p": 1.0})
    assert not none["flag"].any()


class Enough(Exception):
    """Raised by a callback."""


def test_a_callback_may_stop_a_generation(tiny: HookedTransformer) -> None:
    probe = make_probe(RESID, 32)
    before = tiny("stone")
    seen: list[Flag] = []

    def stop(flag: Flag) -> None:
        seen.append(flag)
        if flag.phase == "decode" and flag.step == 3:
            raise Enough

    with pytest.raises(Enough), watch_probe(tiny, probe, threshold=0.0, on_flag=stop) as watch:
        tiny.generate("stone", max_new_tokens=20, stop_at_eos=False)
    assert_restored(tiny)
    assert torch.equal(tiny("stone"), before)
    frame = watch.to_frame()
    assert frame["position"].tolist() == list(range(5 + 3))  # the prompt and three new tokens
    assert seen[-1].position == 7
    assert len({(flag.row, flag.position) for flag in seen}) == len(seen)  # each token once


def test_tokens_that_pass_again_are_told_of_once(probes: dict[str, Probe]) -> None:
    model = tiny_model("dynamic")  # turns all tokens anew when the text grows beyond eight
    told: list[Flag] = []
    with watch_probe(model, probes["whole"], threshold=0.0, on_flag=told.append):
        model.generate("stones", max_new_tokens=6, stop_at_eos=False)
    assert [flag.position for flag in told] == list(range(1, 11))


# ------------------------------------------------------------------------------------------------- what is refused


def test_a_place_that_no_pass_came_to_is_an_error(tiny: HookedTransformer, probes: dict[str, Probe]) -> None:
    with pytest.raises(ValueError, match="never fired"), watch_probe(tiny, probes):
        tiny("stone", stop_at_layer=1)
    assert_restored(tiny)
    with watch_probe(tiny, probes) as watch:
        pass
    with pytest.raises(ValueError, match="no pass has run"):
        watch.to_frame()


def test_a_pass_from_a_stream_has_no_token_ids(tiny: HookedTransformer) -> None:
    stream = tiny("stone", stop_at_layer=1)
    probe = make_probe(RESID, 32)
    with watch_probe(tiny, probe) as watch:
        tiny(stream, start_at_layer=1)
    frame = watch.to_frame()
    assert set(frame["token_id"]) == {-1}
    np.testing.assert_allclose(frame["score"], score_tokens(tiny, probe, "stone")["score"], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_watched_is_refused(tiny: HookedTransformer) -> None:
    probe = make_probe(RESID, 32)
    card = {"provenance": {"model": "other", "fingerprint": "0" * 32}}
    width = torch.ones(32)
    texts = Probe(None, 0.0, "attention", width, width, site=RESID, tensors={"query": width, "value": width})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "there is no probe"),
        ({}, {}, "there is no probe"),
        ("resid_post:1", {}, "takes probes, got str"),
        ({"a": 3}, {}, "'a' is a int, no probe"),
        ([probe, probe], {}, "two probes are logistic resid_post:1: give them names"),
        (Probe(width, 0.0, "logistic", width, width), {}, "does not say its site"),
        (make_probe("blocks.7.hook_resid_post", 32), {}, "layers 0 to 1"),
        (make_probe(RESID, 32, card=card), {}, "fitted on other"),
        (texts, {}, "reads all tokens of a text together"),
        (probe, {"threshold": 1.5}, "between 0 and 1; got 1.5"),
        (probe, {"threshold": True}, "between 0 and 1; got True"),
        ({"a": probe}, {"threshold": {"b": 0.5}}, "threshold= names 'b', the probes are 'a'"),
    ]
    for given, options, message in cases:
        with pytest.raises(ValueError, match=message), watch_probe(tiny, given, **options):
            pass
    for broken, message in (
        (make_probe(RESID, 30), "reads activations of width 30"),
        (make_probe(Z, 8, head=4), "reads head 4 of .*which has 4 heads"),
        (make_probe(RESID, 8, head=0), "which has no heads"),
    ):
        with pytest.raises(ValueError, match=message):
            score_tokens(tiny, broken, "stone")
        assert_restored(tiny)
    with watch_probe(tiny, probe) as watch:
        tiny.generate("stone", max_new_tokens=2)
        out = tiny.generate("stone", max_new_tokens=2)
    with pytest.raises(ValueError, match="2 generations ran"):
        watch.to_frame(out)


# ---------------------------------------------------------------------------------------------------- the real model


def test_the_real_model_reads_alive_what_its_store_holds(smollm: HookedTransformer) -> None:
    texts = ["The city of Paris is in France.", "The city of Lima is in Norway, people say."]
    store = record(smollm, texts, sites=["resid_post:12", "z:10"], tokens="last", dtype="float32", progress=False)
    resid, _ = store.pooled("resid_post:12")
    heads, _ = store.pooled("z:10")
    probes = {
        "resid": make_probe("blocks.12.hook_resid_post", resid.shape[1]),
        "head": make_probe("blocks.10.attn.hook_z", 64, head=4),
    }
    last = score_tokens(smollm, probes, texts).groupby(["probe", "row"], sort=False).tail(1).set_index("probe")
    np.testing.assert_allclose(last.loc["resid", "score"], probes["resid"].score(resid), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        last.loc["head", "score"], probes["head"].score(heads[:, 4 * 64 : 5 * 64]), rtol=1e-3, atol=1e-4
    )
    with watch_probe(smollm, probes) as watch:
        out = smollm.generate(texts, max_new_tokens=3)
    mine = watch.to_frame(out).query("row == 0")  # the shorter text, whose pads stood left
    whole = score_tokens(smollm, probes, [out.all_tokens[0][: mine["position"].max() + 1]])
    assert len(mine) == len(whole) > 2 * len(out.rows[0].prompt_tokens)
    np.testing.assert_allclose(mine["score"], whole["score"], rtol=1e-3, atol=1e-3)
