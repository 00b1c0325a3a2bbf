"""The doctor: sound models of every arrangement pass, and the report says what was compared."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiny import FAMILIES, byte_tokenizer, shaken_model, tiny_model
from tokenizers import decoders, normalizers
from torch import Tensor
from transformers import FalconConfig, FalconForCausalLM

import interp
from interp.checks import Check, DoctorReport, doctor, load_doctor_report, memory
from interp.checks.examine import CHECKS
from interp.checks.outliers import massive
from interp.checks.patient import Patient
from interp.checks.plain import PlainModel
from interp.checks.precision import converted
from interp.model import Experts, HookedTransformer
from interp.model.int8 import quantize_int8
from interp.sites import kind_of
from interp.tokens import Tokenizer

QUICK = [name for name in CHECKS if name not in ("memory flat", "bf16")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_model_passes(family: str) -> None:
    report = doctor(shaken_model(family), only=QUICK)
    assert report.ok, "\n".join(map(str, report.failed))
    assert all(check.note for check in report.checks if check.verdict == "skipped")


def test_nothing_of_the_model_is_changed() -> None:
    model = tiny_model().train()
    before = model.fingerprint
    state = torch.get_rng_state()
    doctor(model, only=["KV*", "edits*", "fp32*", "single*"])
    assert model.fingerprint == before
    assert model.training
    assert not any(point.handles for point in model.hook_dict.values())
    assert torch.equal(torch.get_rng_state(), state)


def test_every_check_runs_and_the_report_comes_back_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "RUNS", 40)
    seen: list[Check] = []
    report = doctor(tiny_model(), progress=seen.append)
    assert report.ok, "\n".join(map(str, report.failed))
    assert list(report.checks) == seen
    assert {"memory flat", "bf16", "massive activations"} <= {check.name for check in seen}
    frame = report.to_frame()
    assert list(frame.columns) == ["name", "compared", "verdict", "figure", "bound", "note", "seconds"]
    measured = frame.loc[frame["bound"].notna()]
    assert (measured["figure"] <= measured["bound"]).all()
    back = load_doctor_report(report.save(tmp_path / "doctor.json"))
    assert back.checks == report.checks
    assert back.card == report.card
    assert str(back) == str(report)
    assert json.loads((tmp_path / "doctor.json").read_text())["ok"] is True


def test_a_report_says_what_failed() -> None:
    checks = (Check("a", "x with y", "ok", 1e-7, 1e-5), Check("b", "x with z", "FAILED", 2.0, 1.0, "where", 0.5))
    report = DoctorReport(checks, pd.DataFrame(), {"model": "m"})
    assert not report.ok
    assert report["b"].note == "where"
    assert "FAILED" in str(report)
    assert "failed: b" in report.summary
    with pytest.raises(ValueError, match="there is no check 'c'; there are a, b"):
        report["c"]
    with pytest.raises(ValueError, match="verdict='good'"):
        Check("a", "b", "good")
    with pytest.raises(ValueError, match="must say why"):
        Check("a", "b", "skipped")


def test_a_wrong_call_says_how_to_mend_it(tmp_path: Path) -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=r"no check 'nothing'; there are\n  shapes\n  repeatable\n"):
        doctor(model, only="nothing")
    with pytest.raises(ValueError, match=r"only=\[\] runs no check"):
        doctor(model, only=[])
    with pytest.raises(ValueError, match=r"pass a loaded model: interp.doctor\(interp.load\(...\)\)"):
        doctor("smollm2-135m")
    with (
        model.hooks({"resid_post:0": lambda value, ctx: value}),
        pytest.raises(ValueError, match=r"attached to blocks\.0\.hook_resid_post: leave its `with` block"),
    ):
        doctor(model)
    (tmp_path / "other.json").write_text('{"kind": "probe"}')
    with pytest.raises(ValueError, match="holds no doctor report"):
        load_doctor_report(tmp_path / "other.json")


def test_a_check_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no generation today")

    monkeypatch.setattr(HookedTransformer, "generate", refuse)
    report = doctor(tiny_model(), only="KV*")
    assert [check.verdict for check in report.checks] == ["FAILED", "FAILED"]
    assert report.checks[0].note == "RuntimeError: no generation today"
    assert (
        report.checks[0].compared
        == "Greedy continuations of three prompts in one batch against one pass over each whole text."
    )


def test_checks_may_be_named_as_they_are_printed() -> None:
    printed = {check.name for check in doctor(tiny_model(), only=[*QUICK, "massive activations"]).checks}
    for name in printed:
        assert name in {check.name for check in doctor(tiny_model(), only=name).checks}


def test_the_cache_is_examined_where_tokens_cannot_be_shown() -> None:
    backend = byte_tokenizer().backend
    backend.decoder = decoders.CTC()
    model = tiny_model()
    model.tokenizer = mute = Tokenizer(backend)
    with pytest.raises(ValueError, match="cannot be shown"):
        mute.token_bytes(5)
    report = doctor(model, only="KV*")
    assert report.ok, str(report)
    assert model.tokenizer is mute


def test_a_normaliser_that_drops_letters_is_no_failure() -> None:
    backend = byte_tokenizer().backend
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFD(), normalizers.StripAccents()])
    model = tiny_model()
    model.tokenizer = Tokenizer(backend)
    check = doctor(model, only="tokenizer*")["tokenizer round trip"]
    assert check.verdict == "info"
    assert "own rules (case, accents, spaces) change" in check.note


def test_rotations_by_length_are_examined_beyond_the_length_where_they_begin_to_change() -> None:
    model = shaken_model("dynamic")
    patient = Patient(model)
    limit = patient.turning_point
    assert limit is not None
    assert not patient.unreached
    assert max(map(len, patient.rows)) > limit
    report = doctor(model, only=["padding*", "document*", "single*", "KV*", "pattern*"])
    assert report.ok, str(report)
    assert "refuses packed documents" in report["document leaks"].note
    short = doctor(shaken_model("dynamic", n_ctx=limit), only=["single*", "KV cache = none"])
    assert short.ok, str(short)
    assert all(f"does not fit n_ctx={limit}" in check.note for check in short.checks)


def test_transformers_is_left_out_with_a_reason() -> None:
    report = doctor(tiny_model(), only="parity*", transformers=False)
    assert [(check.verdict, check.note) for check in report.checks] == [("skipped", "left out by the caller")]
    report = doctor(tiny_model(), only="parity*")
    assert "folder" in report.checks[0].note


def test_the_plain_model_is_the_whole_pass_in_fp64() -> None:
    model = converted(shaken_model("llama"), torch.float64)
    ids = torch.arange(12)
    streams, logits = PlainModel(model).streams(ids)
    own, cache = model.run_with_cache(ids[None])
    assert len(streams) == model.cfg.n_layers + 1
    torch.testing.assert_close(own.as_subclass(Tensor)[0], logits, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(cache["resid_post", 1][0], streams[-1], atol=1e-12, rtol=1e-12)


def test_a_copy_in_another_precision_shares_nothing() -> None:
    model = tiny_model()
    double = converted(model, torch.float64)
    assert double.dtype == torch.float64
    assert model.dtype == torch.float32
    assert double.tokenizer is model.tokenizer
    assert double.hook_dict["hook_embed"] is double.hook_embed is not model.hook_embed
    assert double.blocks[0].attn.hook_z.run is double.run


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_precisions_pass_by_their_own_bounds(dtype: str) -> None:
    model = converted(shaken_model("llama"), getattr(torch, dtype))
    report = doctor(model, only=QUICK)
    assert report.ok, "\n".join(map(str, report.failed))


def test_int8_weights_are_examined_as_the_values_that_they_stand_for() -> None:
    report = doctor(quantize_int8(shaken_model("llama")).model, only=QUICK)
    assert report.ok, "\n".join(map(str, report.failed))
    assert report["recomputed: attention"].figure is not None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"window": 1}, id="a window of one"),
        pytest.param({"n_ctx": 6}, id="no room to generate"),
        pytest.param({"n_ctx": 1}, id="one token"),
        pytest.param({"n_ctx": 2}, id="two tokens"),
        pytest.param({"n_ctx": 3}, id="three tokens"),
        pytest.param({"experts": Experts(4, 1, 16)}, id="one of four experts"),
        pytest.param({"experts": Experts(2, 2, 16)}, id="all experts"),
        pytest.param({"experts": Experts(1, 1, 16)}, id="a single expert"),
    ],
)
def test_corner_cases_are_no_bugs(changes: dict[str, Any]) -> None:
    report = doctor(shaken_model("llama", **changes), only=[*QUICK, "massive activations"])
    assert report.ok, "\n".join(map(str, report.failed))


def test_damaged_weights_are_failures_and_no_crash(tmp_path: Path) -> None:
    model = tiny_model()
    model.blocks[1].attn.v.weight[0, 0] = torch.nan
    report = doctor(model, only=[name for name in QUICK if name != "massive activations"])
    assert {"repeatable", "residual identities", "recomputed", "lens"} <= {check.name for check in report.failed}
    assert "NaN" in report["repeatable"].note
    assert not load_doctor_report(report.save(tmp_path / "report.json")).ok


def test_massive_activations_are_found_where_they_were_put() -> None:
    model = tiny_model()
    layer, dimension = 1, 7

    def blow_up(value: Tensor, ctx: interp.HookContext) -> Tensor:
        first = (ctx.positions == 0) & ctx.mask
        value[..., dimension] = torch.where(first, 1e4, value[..., dimension])
        return value

    with model.hooks({f"resid_post:{layer}": blow_up}):
        check, frame = massive(Patient(model))
    assert check.verdict == "info"
    assert check.compared.startswith("number of norms over 10 times")
    assert set(frame["layer"]) == {layer}
    assert set(frame["pos"]) == {0}
    assert all(found[0] == dimension for found in frame["dimensions"])
    assert (frame["share"] > 0.99).all()
    assert f"dimensions {dimension}" in check.note
    assert kind_of(f"blocks.{layer}.hook_resid_post").kind in frame["site"].iloc[0]


def test_falcon_with_alibi_is_compared_with_the_attention_that_adds_it_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True, parallel_attn=False,
        multi_query=False, new_decoder_architecture=False, max_position_embeddings=64,
    )  # fmt: skip
    theirs = FalconForCausalLM(config)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    theirs.save_pretrained(tmp_path)
    report = doctor(interp.load(tmp_path), folder=tmp_path, only=["parity*", "recomputed"])
    assert report.ok, str(report)
    assert "sdpa" in report["parity: logits"].compared
    assert "adds ALiBi twice" in report["parity: logits"].note


@pytest.mark.slow
def test_the_real_model_is_sound(smollm: HookedTransformer) -> None:
    report = doctor(smollm)
    assert report.ok, "\n".join(map(str, report.failed))
    assert report["speaks"].verdict == "ok"
    assert report["parity: logits"].verdict == "ok"
    # Known of this model: the first token carries a norm of over 20,000 in one dimension from layer 11 on.
    large = report.massive.loc[report.massive["layer"] == 15]
    assert set(large["pos"]) == {0}
    assert (large["norm"] > 2e4).all()
    assert large["dimensions"].map(lambda found: found[0]).nunique() == 1


@pytest.mark.slow
def test_a_real_model_that_speaks_worse_than_known_is_noticed(
    smollm: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no identity sees: a configuration that is wrong and consistent with itself."""
    rope = smollm.rope
    assert rope is not None
    assert rope.fixed is not None
    right = doctor(smollm, only="speaks")["speaks"]
    assert right.verdict == "ok"
    for field, wrong in (("pairing", "adjacent"), ("fixed", 10000.0 ** -(torch.arange(0, 64, 2) / 64))):
        with monkeypatch.context() as patch:
            patch.setattr(rope, field, wrong)
            assert doctor(smollm, only="speaks")["speaks"].verdict == "FAILED"
