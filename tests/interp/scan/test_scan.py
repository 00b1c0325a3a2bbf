"""A scan of one prompt: planted heads come first, effects are those of runs by hand, and the page is safe and whole."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import byte_tokenizer, shaken_model, tiny_model

from interp.attribution import direct_logit_attribution
from interp.model import HookedTransformer
from interp.report import render_report
from interp.scan import ScanReport, load_scan_report, scan_prompt
from interp.scan.effects import Change, run_changes
from interp.scan.findings import Scale, rank_findings
from interp.scan.question import LONGEST, ask, random_tokens
from interp.scan.tables import _writes

PROMPT = "hello there"
TOKEN = byte_tokenizer().to_single_token


def planted_model() -> HookedTransformer:
    """Three layers of attention alone, whose head L1H2 writes the direction of token `P` wherever there is an `x`."""
    model = tiny_model("bare", scale=1.0, n_layers=3, d_model=64, d_head=16, n_kv_heads=4, tie_embeddings=False)
    for weight in model.parameters():
        weight.mul_(0.02)
    rows = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0]
    model.embed.weight[TOKEN("x")] = 3 * rows[0]
    model.unembed.weight[TOKEN("P")] = 2 * rows[1]
    block = list(model.iter_blocks())[1]
    block.attn.q.weight.zero_()  # looks at all tokens alike
    block.attn.v.weight[2 * 16] = rows[0]
    block.attn.o.weight[:, 2 * 16] = 4 * rows[1]
    return model


@pytest.fixture(scope="module")
def report() -> ScanReport:
    model = shaken_model("llama")
    return scan_prompt(model, PROMPT, answer="P", against="R", corrupted="jello there", effort="quick")


def test_a_planted_head_comes_first() -> None:
    model = planted_model()
    report = scan_prompt(model, "xxxxxxxxxxxx", answer="P", against="R", head_scores=False)
    first = report.findings.iloc[0]
    assert (first["kind"], first["place"]) == ("head", "L1H2")
    assert first["low"] <= first["value"] <= first["high"]
    assert first["value"] == pytest.approx(report.card["logit_difference"], rel=0.2)  # the first x stays
    assert not ((report.findings["kind"] == "attn") & (report.findings["place"] == "L1 attention")).any()
    assert report.prediction.iloc[0]["token"] == "P"
    head = report.heads.iloc[0]
    assert head["share"] == pytest.approx(report.card["logit_difference"], rel=1e-3)
    assert head["writes"].startswith("raises P ")


@pytest.mark.parametrize(
    "family",
    ["llama", "gpt2", "neox", "gemma2", "olmo2", "deepseek", "sinusoidal", "bare"],
)
def test_every_family_is_scanned(family: str) -> None:
    model = shaken_model(family)
    gap = (model(PROMPT)[0, -1] - model("jello there")[0, -1]).as_subclass(torch.Tensor)
    told = {"answer": int(gap.argmax()), "against": int(gap.argmin())}
    report = scan_prompt(model, PROMPT, corrupted="jello there", effort="quick", **told)
    assert report.card["chosen"] == []
    assert set(report.prediction["role"]) == {"", "answer", "against"}
    assert report.direct["mean"].notna().all()
    assert ("mlp" in set(report.parts["kind"])) == (family not in ("sinusoidal", "bare"))
    assert (report.findings["importance"].diff().dropna() <= 0).all()
    assert set(report.patching) == {"stream", "heads", "agreement"}
    assert report.summary()
    json.dumps(report.to_dict(), allow_nan=False)


def test_effects_are_those_of_plain_hooks() -> None:
    model = shaken_model("gpt2")
    question = ask(model, PROMPT, "P", "R")
    clean = model(PROMPT)[0, -1].double()
    torch.testing.assert_close(question.logits, clean.as_subclass(torch.Tensor), rtol=1e-5, atol=1e-5)
    value = torch.randn(len(PROMPT), 8, generator=torch.Generator().manual_seed(1))

    def put(z: torch.Tensor, hook: object) -> torch.Tensor:
        z[:, :, 3] = value
        return z

    changed = model.run_with_hooks(PROMPT, fwd_hooks=[("blocks.1.attn.hook_z", put)])[0, -1].double()
    found = run_changes(question, [Change("z", 1, 3, value), Change("mlp_out", 0, -1, torch.zeros(len(PROMPT), 32))])
    lost = clean - changed
    effect = float(lost[TOKEN("P")] - lost[TOKEN("R")])
    p, q = clean.log_softmax(-1), changed.log_softmax(-1)
    expected = [effect, float((p.exp() * (p - q)).sum()), abs(effect) / (2**0.5 * float(lost.std()))]
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-6)


def test_the_same_seed_gives_the_same_report_and_another_one_other_draws() -> None:
    model = shaken_model("llama")
    one, same, other = (scan_prompt(model, PROMPT, effort="quick", seed=seed) for seed in (0, 0, 1))
    assert one.to_dict() == same.to_dict()
    assert one.parts["effect"].tolist() != other.parts["effect"].tolist()
    assert one.direct.equals(other.direct)


def test_random_texts_hold_no_special_token() -> None:
    question = ask(tiny_model(), PROMPT, None, None)
    drawn = random_tokens(question, 500, 0, keep_first=True).ids
    assert int(drawn.max()) < 256
    assert (drawn[:, 0] == TOKEN("h")).all()


def test_shares_are_those_of_direct_attribution(report: ScanReport) -> None:
    model = shaken_model("llama")
    expected = direct_logit_attribution(model, PROMPT, "P", "R", by="head").to_frame().set_index("part")["mean"]
    mine = report.heads.set_index("part")["share"]
    np.testing.assert_allclose(mine, expected[mine.index], rtol=1e-9)
    whole = report.direct.loc[report.direct["head"] < 0, "mean"].sum()
    assert whole == pytest.approx(report.card["logit_difference"], abs=1e-4)


def test_patches_bring_the_gap_back(report: ScanReport) -> None:
    stream = report.to_frame("stream")
    assert stream.loc[(stream["layer"] == 0) & (stream["pos"] == 0), "effect"].iloc[0] == pytest.approx(1, abs=1e-5)
    assert report.plot("stream").to_dict()


def test_json_round_trip(report: ScanReport, tmp_path) -> None:
    again = load_scan_report(report.save(tmp_path / "scan.json"))
    assert again.to_dict() == report.to_dict()
    for kind in ("findings", "prediction", "lens", "tokens", "parts", "heads", "direct", "stream", "agreement"):
        pd.testing.assert_frame_equal(again.to_frame(kind), report.to_frame(kind), check_dtype=False)
    assert again.summary() == report.summary()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a scan"):
        load_scan_report(tmp_path / "other.json")


def test_the_page_loads_nothing_and_escapes_tokens(tmp_path) -> None:
    prompt = "<script>alert(1)</script>"
    report = scan_prompt(shaken_model("bare"), prompt, effort="quick", head_scores=False)
    page = report.write_html(tmp_path / "scan.html").read_text("utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    assert not re.findall(r"https?://(?!www\.w3\.org/)", page)
    assert not re.search(r"\b(?:src|href)=\"(?!#)", page)
    assert "tensor(" not in page
    assert "Look at this first" in page


def test_the_page_of_a_whole_scan(report: ScanReport) -> None:
    sections = report.sections()
    assert [s.title for s in sections][:2] == ["Look at this first", "What the model says"]
    assert "What the corrupted prompt lacks" in [s.title for s in sections]
    page = render_report("t", sections)
    assert page.count("<figure") == 10
    assert "nan" not in re.sub(r"<[^>]*>", " ", page).split()


def test_one_token_and_no_tokenizer() -> None:
    with_tokenizer = shaken_model("gpt2")
    model = HookedTransformer(with_tokenizer.cfg, seed=0)
    report = scan_prompt(model, [[5]], answer=3, effort="quick")
    assert any("single token" in warning for warning in report.warnings)
    assert report.card["answer"] == "3"
    with pytest.raises(ValueError, match="no tokenizer"):
        scan_prompt(model, [[5]], answer="a")


def test_what_does_not_suit_a_model_is_left_out_with_the_reason(tmp_path) -> None:
    model = shaken_model("gpt2", norm_placement="post_ln", final_norm=False, n_ctx=4)
    report = scan_prompt(model, "hel", effort="quick")
    assert report.direct.empty
    assert [note.split(".")[0] for note in report.notes] == [
        "Left out: direct attribution", "Left out: scores of heads", "Left out: what heads write",
    ]  # fmt: skip
    again = load_scan_report(report.save(tmp_path / "scan.json"))
    assert "What is written into the lead directly" not in [s.title for s in again.sections()]
    with pytest.raises(ValueError, match="no direct shares"):
        again.plot("direct")


def test_an_unlikely_answer_is_a_warning() -> None:
    model = shaken_model("llama")
    least = int(ask(model, PROMPT, None, None).logits.argmin())
    report = scan_prompt(model, PROMPT, answer=least, effort="quick")
    assert "not among the ten top tokens" in report.warnings[0]
    assert report.prediction.iloc[-1]["role"] == "answer"
    assert report.card["chosen"] == ["against"]
    assert report.prediction.iloc[0]["role"] == "against"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer": "hello"}, "token"),
        ({"answer": 258}, "0..257"),
        ({"answer": True}, "0..257"),
        ({"answer": "P", "against": "P"}, "name two tokens"),
        ({"corrupted": "hello"}, "as many"),
        ({"corrupted": PROMPT}, "the prompt itself"),
        ({"corrupted": [PROMPT, PROMPT]}, "one prompt"),
        ({"effort": "all"}, "quick, normal, thorough"),
        ({"prompt": [PROMPT, "other text!"]}, "one prompt"),
        ({"prompt": "a" * 129}, "context"),
        ({"prompt": ""}, "empty"),
    ],
)
def test_what_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan_prompt(tiny_model(), **({"prompt": PROMPT} | settings))


def test_long_prompts_and_encoders_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {LONGEST}"):
        scan_prompt(tiny_model(n_ctx=512), "a" * (LONGEST + 1))
    with pytest.raises(ValueError, match="encoder"):
        scan_prompt(tiny_model("bert"), PROMPT)


def test_unknown_tables_and_charts_are_refused(report: ScanReport) -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        report.to_frame("card")
    with pytest.raises(ValueError, match="kind must be one of"):
        report.plot("card")
    without = scan_prompt(shaken_model("llama"), PROMPT, effort="quick")
    with pytest.raises(ValueError, match="corrupted="):
        without.plot("stream")


def test_padding_and_ids_do_not_matter() -> None:
    model = shaken_model("llama")
    by_text = scan_prompt(model, PROMPT, effort="quick")
    by_ids = scan_prompt(model, model.tokenize(PROMPT).ids, effort="quick")
    assert by_text.findings.equals(by_ids.findings)


def test_a_sweep_beyond_the_budget_is_estimated_and_says_so() -> None:
    model = shaken_model("llama", n_layers=3)
    report = scan_prompt(model, PROMPT * 6, corrupted="jello there" + PROMPT * 5, effort="quick", head_scores=False)
    stream = report.to_frame("stream")
    assert 10 <= stream["exact"].sum() < len(stream)
    assert (stream.loc[~stream["exact"], "effect"] == stream.loc[~stream["exact"], "estimate"]).all()
    assert any("estimated by the gradient" in note for note in report.notes)
    assert report.tokens["effect"].notna().sum() == 12


def test_a_part_without_draws_does_not_rank_above_a_stronger_one_with_them() -> None:
    nan = np.nan
    rows = [
        ("L0 MLP", 0, 1.1, 0.7, 1.5, 8, 1.2), ("L1 MLP", 1, 1.0, nan, nan, 0, 1.0), ("L2 MLP", 2, 0.9, -0.1, 1.9, 8, 0.8),
    ]  # fmt: skip
    parts = pd.DataFrame(rows, columns=["part", "layer", "effect", "low", "high", "n", "mean_ablated"])
    parts = parts.assign(kind="mlp", head=-1, specific=3.0, mean_specific=3.0, kl=0.5, share=nan)
    none = pd.DataFrame(columns=[*parts, "logprob", "p_answer"], dtype=float)
    found = rank_findings(
        Scale(2.0, "a", "b"), parts=parts, heads=none, tokens=none, lens=none, settle=0, direct=none, patched={}
    )
    assert found["place"].tolist() == ["L0 MLP", "L1 MLP", "L2 MLP"]
    assert found["importance"].tolist() == pytest.approx([0.6, 0.5, 0.4])
    first, second, third = found["check"]
    assert first.startswith("mean of 8 random texts (resample ablation); mean ablation +1.20")
    assert second.startswith("mean ablation, one run")
    assert "interval holds 0" in third


def test_what_a_head_writes_is_centred_before_the_gain_of_a_norm_behind_it() -> None:
    model = shaken_model("gpt2", norm_placement="sandwich", tie_embeddings=False)
    block = list(model.iter_blocks())[1]
    question = ask(model, PROMPT, "P", "R")
    frame = pd.DataFrame({"layer": [1], "head": [2], "share": [1.0]})
    with torch.no_grad():
        block.attn.o.weight[:, 16:24] += 100.0  # the same in all dimensions: the norm takes it out
        z = model.run_with_cache(PROMPT, ["blocks.1.attn.hook_z"])[1]["blocks.1.attn.hook_z"][0, -1, 2]
        written = block.attn.o.weight[:, 16:24] @ z

        def behind(out: torch.Tensor) -> torch.Tensor:
            return (out - out.mean()) * block.ln1_post.weight

        final = behind(written)
        final = final - final.mean()
        logits = model.unembedding() @ (final * model.ln_final.weight)
        best = question.read(int(logits.argmax()))
    assert _writes(question, frame)[0].startswith(f"raises {best} ")
