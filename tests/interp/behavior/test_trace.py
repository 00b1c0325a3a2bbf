"""A trace says what other analyses say of the same places, and its sentences follow its figures."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model

from interp.behavior.trace import TraceReport, hallucination_trace
from interp.lens import logit_lens
from interp.model import HookedTransformer
from interp.probe import fit_probe, score_tokens
from interp.uncertainty import token_uncertainty
from interp.uncertainty.answers import SIGNALS, answer_signals

PROMPT = "The capital of France is"


def reference(model: HookedTransformer, n: int = 20) -> pd.DataFrame:
    return answer_signals(model, [f"The capital of place {i} is" for i in range(n)], [f"town {i}" for i in range(n)])


def test_tables_equal_the_analyses_that_they_come_from(tiny: HookedTransformer) -> None:
    report = hallucination_trace(tiny, PROMPT, answer="Paris", against="Rome", subject="France", joint="")
    assert tiny.tokenizer is not None
    start, ids = len(PROMPT), tiny.tokenizer.encode(f"{PROMPT}Paris")
    tokens = report.tables["tokens"]
    whole = token_uncertainty(tiny, torch.tensor([ids])).to_frame()
    assert tokens["token"].tolist() == whole["token"].tolist()
    assert tokens["part"].tolist() == ["prompt"] * start + ["answer"] * 5
    np.testing.assert_allclose(tokens["logprob"][1:], whole["logprob"][1:].astype(float), rtol=1e-5)
    for name, own in (("entropy", "entropy"), ("rank", "rank"), ("p_expected", "p_top1"), ("margin", "margin")):
        np.testing.assert_allclose(tokens[name][1:], whole[own][:-1].astype(float), rtol=1e-4, atol=1e-6)
    assert tokens["expected"][1:].tolist() == whole["top1"][:-1].tolist()
    assert tokens.loc[0, ["p", "entropy", "rank", "attention_diffusion", "settle_layer"]].isna().all()

    lens = logit_lens(tiny, torch.tensor([ids]), answer=ids[start])
    layers = report.tables["layers"]
    for row in layers.loc[layers["pos"] == start].to_dict("records"):
        site = lens.layers.index(int(row["layer"]))
        assert row["top1"] == lens.vocabulary[int(lens.top_ids[site, start - 1, 0])]
        assert row["p_token"] == pytest.approx(float(lens.answer_probs[site, start - 1, 0]), rel=1e-4)
        assert row["said"] == (int(lens.top_ids[site, start - 1, 0]) == ids[start])
    assert tokens["settle_layer"][1:].tolist() == lens.settle_layer[:-1].tolist()

    _, cache = tiny.run_with_cache(torch.tensor([ids]), sites="pattern:*")
    rows = torch.cat([cache["pattern", layer][0, :, start - 1].detach() for layer in range(2)]).double()
    rest = rows[:, 1:start] / rows[:, 1:start].sum(-1, keepdim=True)
    first = report.answer.iloc[0]
    spread = torch.special.entr(rest).sum(-1) / np.log(start - 1)
    assert first["attention_diffusion"] == pytest.approx(float(spread.mean()), rel=1e-4)
    assert first["attention_prompt"] == pytest.approx(1.0)
    at = PROMPT.index("France")
    assert first["attention_subject"] == pytest.approx(float(rest[:, at - 1 : at + 5].sum(-1).mean()), rel=1e-4)
    assert tokens["attention_subject"][: at + 6].isna().all()
    assert (report.answer["attention_prompt"][1:] < 1).all()
    signals = report.tables["signals"].set_index("signal")["value"]
    wanted = answer_signals(tiny, [PROMPT], ["Paris"], joint="").iloc[0]
    np.testing.assert_allclose(signals[list(SIGNALS)].astype(float), wanted[list(SIGNALS)].astype(float))
    rivals = report.tables["rivals"]
    last = rivals.loc[rivals["layer"] == 1].set_index("answer")["probability"]
    assert last["Paris"] == pytest.approx(first["p"], rel=1e-4)


def layered(prompt_says: dict[int, str]) -> HookedTransformer:
    """A model of which layer l says a chosen sign at every place: the stream is set to that sign's unembedding."""
    model = tiny_model(n_layers=4, tie_embeddings=False)
    assert model.tokenizer is not None
    assert model.unembed is not None
    model.says = {layer: model.unembed.weight[model.tokenizer.encode(sign)[0]] for layer, sign in prompt_says.items()}  # type: ignore[assignment]
    return model


def trace_of(model: HookedTransformer, answer: str, **options: Any) -> TraceReport:
    says: dict[int, torch.Tensor] = model.says  # type: ignore[assignment]
    hooks = {
        f"resid_post:{layer}": lambda value, ctx, row=row: row.expand_as(value) * 50 for layer, row in says.items()
    }
    with model.hooks(hooks):
        return hallucination_trace(model, "ab c", answer=answer, joint="", **options)


def test_where_an_answer_forms_and_where_it_is_lost() -> None:
    model = layered({0: "x", 1: "y", 2: "y", 3: "y"})
    held = trace_of(model, "y", against="x")
    first = held.answer.iloc[0]
    assert (first["first_layer"], first["formed_layer"]) == (1, 1)
    assert np.isnan(first["lost_layer"])
    assert "for good at layer 1 of 3" in held.summary()
    assert "“x” (first token “x”) was the top guess at 1 layer (layer 0) and was lost" in held.summary()
    lost = trace_of(model, "x").answer.iloc[0]
    assert (lost["first_layer"], lost["lost_layer"]) == (0, 0)
    assert np.isnan(lost["formed_layer"])
    assert "was lost. The model ends on “y”" in trace_of(model, "x").summary()
    assert "not the lens' top guess at any layer" in trace_of(model, "z").summary()
    late = trace_of(layered({0: "y", 1: "x", 2: "x", 3: "y"}), "y")
    assert late.answer["first_layer"][0] == 0
    assert late.answer["formed_layer"][0] == 3
    assert "only in the last layer" in late.summary()
    assert "was displaced in between" in late.summary()
    assert [run["token"] for run in late.values["runs"][-2:]] == ["x", "y"]


def test_the_model_writes_the_answer_itself(tiny: HookedTransformer) -> None:
    report = hallucination_trace(tiny, PROMPT, max_new_tokens=4, stop=None)
    out = tiny.generate(PROMPT, 4)
    np.testing.assert_allclose(report.answer["logprob"], out.logprobs, rtol=1e-4)
    assert (report.answer["rank"] == 0).all()
    assert "is what the model writes" in report.summary()
    assert any("limit of new tokens" in note for note in report.notes)


def test_a_stop_within_the_last_token_that_fits_is_an_end(
    tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tiny.generate(PROMPT, 2)
    stopped = dataclasses.replace(out.rows[0], stop_reason="stop", stop="\n")
    monkeypatch.setattr(HookedTransformer, "generate", lambda *_, **__: dataclasses.replace(out, rows=(stopped,)))
    report = hallucination_trace(tiny, PROMPT, max_new_tokens=2)
    assert report.values["ended"]
    assert not any("limit of new tokens" in note for note in report.notes)


def test_a_probe_reads_every_token(tiny: HookedTransformer) -> None:
    _, cache = tiny.run_with_cache("some words to fit a probe to, and more of them", sites="resid_post:1")
    X = cache["resid_post", 1][0].detach()
    probe = fit_probe(X, [i % 2 for i in range(len(X))], C=1.0, site="blocks.1.hook_resid_post")
    report = hallucination_trace(tiny, PROMPT, answer="Paris", probe={"doubt": probe})
    scores = score_tokens(tiny, {"doubt": probe}, f"{PROMPT} Paris")
    np.testing.assert_allclose(report.tables["probes"]["probability"], scores["probability"], rtol=1e-5)
    assert "probe doubt" in str(report.plot("tokens").to_dict())


def test_signs_are_held_against_a_reference(tiny: HookedTransformer) -> None:
    others = reference(tiny)
    report = hallucination_trace(tiny, PROMPT, answer="Paris", reference=others.assign(nll=-1.0, margin_mean=-1.0))
    table = report.tables["signals"].set_index("signal")
    assert table.loc["nll", "quantile"] == 1.0
    assert table.loc["nll", "high"]
    assert table.loc["margin_mean", "quantile"] == 0.0  # a higher margin is less doubtful
    assert "nll (quantile 1.00)" in report.summary()
    assert "by chance" in report.summary()
    with pytest.raises(ValueError, match="at least 20"):
        hallucination_trace(tiny, PROMPT, answer="Paris", reference=others.head(5))
    # Behind a single token attention has nothing to spread over: that is not a low value.
    short = hallucination_trace(tiny, "Q", answer="Z", joint="", reference=others)
    lacking = short.tables["signals"].set_index("signal")
    assert np.isnan(lacking.loc["attention_diffusion", "value"])
    assert np.isnan(lacking.loc["attention_diffusion", "quantile"])


def test_file_and_page(tiny: HookedTransformer, tmp_path: Path) -> None:
    report = hallucination_trace(
        tiny, "<b>bold</b>? A:", answer="it's <i>", against="no", reference=reference(tiny), joint=""
    )
    again = TraceReport.load(report.save(tmp_path / "trace.json"))
    assert again.summary() == report.summary()
    assert again.to_dict() == report.to_dict()
    for name, table in report.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_dtype=False)
    page = again.write_html(tmp_path / "trace.html").read_text()
    assert "<i>" not in page
    assert "bold</b>" not in page
    assert "Where it formed" in page
    assert page.count("<svg") == 3
    with pytest.raises(ValueError, match="there is no chart 'x'; there are layers, tokens, rivals"):
        report.plot("x")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {"answer": "a"}, "not empty"),
        ("ab", {"answer": ""}, "the answer is empty"),
        ("ab", {"answer": 5}, "a text or a list of token ids, got 5: write a number as text"),
        ("ab", {"answer": ["5"]}, "a text or a list of token ids"),
        ("ab", {"answer": [1.0]}, "a text or a list of token ids"),
        ("ab", {"answer": "Paris", "against": "Peru"}, "the same token"),
        ("ab", {"answer": "Paris", "joint": "", "subject": "x"}, "does not stand in the prompt"),
    ],
)
def test_refusals(prompt: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hallucination_trace(tiny_model(), prompt, **options)


def test_a_right_and_a_wrong_answer_of_the_real_model(smollm: HookedTransformer) -> None:
    prompt = "Question: What is the capital of Japan?\nAnswer: Tokyo\nQuestion: What is the capital of France?\nAnswer:"
    right = hallucination_trace(smollm, prompt, answer="Paris", subject="France")
    wrong = hallucination_trace(smollm, prompt, answer="Berlin", against="Paris")
    assert right.answer["rank"][0] == 0
    assert right.answer["formed_layer"][0] >= 10
    assert "for good" in right.summary()
    assert wrong.answer["rank"][0] > 0
    assert "The model ends on “·Paris”" in wrong.summary()
    assert "The other answer “Paris” (first token “·Paris”) is the model's first choice" in wrong.summary()
    assert right.tables["layers"]["layer"].nunique() == 31
    assert right.answer["attention_subject"][0] > 0.02
