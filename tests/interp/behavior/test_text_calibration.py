"""Calibration on text: temperatures that are planted in the text and in the layers, plain loops, broken runs."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from crash import call, start, wait_for
from far import far_workers
from probe_jobs import finished_bytes
from tiny import tiny_model

from interp.artifact import atomic_write, hash_json
from interp.behavior.text import TextCalibrationReport, text_calibration
from interp.behavior.text import page as text_page
from interp.behavior.text import run as module
from interp.behavior.text.tokens import ALL_CLASSES, CLASSES, FREQUENCIES, class_of_text, token_classes
from interp.dataset import grouped_split
from interp.lens import TunedLens, logit_lens
from interp.model import HookedTransformer
from interp.uncertainty import next_token_calibration

QUICK: dict[str, Any] = {"n_boot": 60, "n_null": 60}


@functools.cache
def writer(family: str = "llama", scale: float = 16.0) -> HookedTransformer:
    """Its 94 tokens are the printable ASCII characters, so that sampled ids survive decoding and encoding."""
    model = tiny_model(family, d_vocab=94, scale=scale)
    if family == "bare":  # the last block writes nothing, so layer 0 is the end of the model
        for name, weight in model.named_parameters():
            if name.startswith("blocks.1."):
                weight.zero_()
    return model


@functools.cache
def sampled(family: str, temperature: float, n: int, length: int = 60) -> list[str]:
    """Texts drawn from the writer at a temperature."""
    model = writer(family)
    assert model.tokenizer is not None
    prompts = [model.tokenizer.decode([i % 94]) for i in range(n)]
    out = model.generate(prompts, max_new_tokens=length, temperature=temperature, seed=1)
    return [prompt + text.removeprefix(prompt) for prompt, text in zip(prompts, out.text)]


def scaling_lens(model: HookedTransformer, embed: float, end: float) -> TunedLens:
    """x -> c x at the embedding and at the end of block 0."""
    eye = torch.eye(model.cfg.d_model)
    weight = torch.stack([(embed - 1) * eye, (end - 1) * eye])
    card = {"provenance": {"model": model.cfg.name, "fingerprint": model.fingerprint}, "n_layers": 2}
    sites = ("hook_embed", "blocks.0.hook_resid_post")
    return TunedLens(sites, weight, torch.zeros(2, model.cfg.d_model), pd.DataFrame(), card)


# ------------------------------------------------------------------------------------------------------ planted truth


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_sampling_temperature_is_found_on_other_documents(temperature: float) -> None:
    report = text_calibration(writer(), sampled("llama", temperature, 120), **QUICK)
    row = report.tables["overall"].iloc[0]
    assert report.temperature == pytest.approx(temperature, rel=0.1)
    assert row["temperature_low"] < temperature < row["temperature_high"]
    assert report.before.says_miscalibrated == (temperature == 2.0)
    assert report.after is not None
    assert not report.after.says_miscalibrated
    assert (row["nll_gain_low"] > 0) == (temperature == 2.0)
    assert row["n_groups"] == 60
    last = report.tables["layers"].iloc[-1]
    assert last["site"] == "resid_post:1"
    assert last["temperature_low"] < temperature < last["temperature_high"]
    # What was known before the token came keeps a calibrated model calibrated, band for band and class for class.
    state = "after" if temperature == 2.0 else "before"
    for name in ("positions", "predicted", "events"):
        frame = report.tables[name]
        above = frame.loc[frame[f"ece_{state}"] > 1.15 * frame[f"null_{state}_high"]]
        assert len(above) == 0, (name, above)
    said = "not told from calibrated" if temperature == 1.0 else "too sure"
    assert said in report.summary().split("A temperature")[0]


def test_a_temperature_that_a_lens_plants_at_a_layer_is_found_there() -> None:
    # Without norms, a lens that multiplies the stream by c multiplies the logits by c: the layer's temperature is c.
    model = writer("bare")
    texts = sampled("bare", 1.0, 120)
    report = text_calibration(model, texts, lens=scaling_lens(model, 1.0, 2.5), layer_positions=60, **QUICK)
    layers = report.tables["layers"].set_index("site")
    found, final = layers.loc["resid_post:0"], layers.loc["resid_post:1"]
    assert found["temperature"] == pytest.approx(2.5 * final["temperature"], rel=1e-3)
    assert found["temperature_low"] < 2.5 < found["temperature_high"]
    assert final["temperature_low"] < 1.0 < final["temperature_high"]
    assert found["ece_before"] > found["null_before_high"]
    assert found["ece_after"] == pytest.approx(final["ece_after"], abs=1e-3)
    assert found["accuracy"] == final["accuracy"]
    assert found["nll_after"] == pytest.approx(final["nll_after"], abs=1e-4)
    assert "tuned lens" in report.summary()


def test_a_layer_without_a_best_temperature_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The chart of its layers is drawn, those of the other parts take seconds and are drawn elsewhere.
    monkeypatch.setattr(text_page, "reliability_panels", lambda bins: text_page.calibration_by_layer(layers))
    model = writer("bare")
    lens = scaling_lens(model, 1.0, 0.005)
    report = text_calibration(model, sampled("bare", 1.0, 20), lens=lens, **QUICK)
    row = report.tables["layers"].set_index("site").loc["resid_post:0"]
    assert np.isnan(
        row[["temperature", "temperature_low", "ece_after", "null_after_high", "nll_gain"]].astype(float)
    ).all()
    assert row["ece_before"] > 0
    assert "beyond 0.05 .. 20.0" in row["note"]
    assert any("resid_post:0" in note for note in report.notes)
    assert "have no best temperature" in report.summary()
    loaded = TextCalibrationReport.load(report.save(tmp_path / "report.json"))
    assert hash_json(loaded.to_dict()) == hash_json(report.to_dict())
    assert loaded.to_dict()["tables"]["layers"][1]["temperature"] is None
    layers = report.tables["layers"]
    page = report.write_html(tmp_path / "page.html").read_text()
    assert "no temperature: the best temperature lies beyond" in page


def test_a_temperature_without_optimum_over_all_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every token is the arg max: text of a greedy writer.
    model = writer()
    assert model.tokenizer is not None
    prompts = [model.tokenizer.decode([i]) for i in range(6)]
    out = model.generate(prompts, max_new_tokens=20, temperature=0.0)
    texts = [prompt + text.removeprefix(prompt) for prompt, text in zip(prompts, out.text)]
    report = text_calibration(model, texts, layers=None, **QUICK)
    assert report.temperature is None
    assert report.after is None
    assert report.tables["overall"]["accuracy"].item() == 1.0
    assert "No temperature: all" in report.summary()
    assert "at T = 1" in report.summary()
    monkeypatch.setattr(text_page, "to_svg", lambda chart, **_: "")  # drawn elsewhere
    assert report.sections()[0].title == "All tokens"


# -------------------------------------------------------------------------------------------------------- plain oracles


def test_all_tokens_are_those_of_next_token_calibration() -> None:
    texts = sampled("llama", 2.0, 24)
    plain = next_token_calibration(writer(), texts, seed=3, **QUICK)
    report = text_calibration(writer(), texts, layers=None, seed=3, **QUICK)
    assert report.temperature == pytest.approx(plain.temperature.temperature, rel=1e-5)
    assert report.after is not None
    for mine, other in ((report.before, plain.before), (report.after, plain.after)):
        assert (mine.n, mine.n_groups, mine.mean_y) == (other.n, other.n_groups, other.mean_y)
        assert mine.ece == pytest.approx(other.ece, abs=1e-5)
        assert mine.null_band == pytest.approx(other.null_band, abs=1e-4)
    row = report.tables["overall"].iloc[0]
    assert row["nll_before"] == pytest.approx(plain.nll_before, abs=1e-6)
    assert row["nll_after"] == pytest.approx(plain.nll_after, abs=1e-5)
    assert row["n_fit"] == plain.temperature.n


def test_layers_are_those_of_the_logit_lens() -> None:
    texts = sampled("llama", 1.0, 8, 20)
    report = text_calibration(writer(), texts, layer_positions=100, n_boot=0, n_null=0)
    told = grouped_split([str(i) for i in range(8)], fractions=(0.5, 0.5), seed=0)[1]
    frame = report.tables["layers"]
    assert frame["site"].tolist() == ["embed", "resid_post:0", "resid_post:1"]
    found = logit_lens(writer(), [texts[i] for i in told], k=1)
    for place in range(3):
        known = ~found.loss[place].isnan()
        right = (found.top_ids[place, :-1, 0] == found.token_ids[1:])[known[:-1]]
        line = frame.iloc[place]
        assert line["n"] == int(known.sum())
        assert line["nll_before"] == pytest.approx(float(found.loss[place][known].double().mean()), abs=1e-5)
        assert line["stated_before"] == pytest.approx(
            float(found.top_probs[place, :, 0][known].double().mean()), abs=1e-6
        )
        assert line["accuracy"] == pytest.approx(float(right.double().mean()))


def test_the_parts_are_all_tokens_and_the_classes_all_probability() -> None:
    report = text_calibration(
        writer(), sampled("llama", 1.0, 30), bands=(5, 20), layers=[0], layer_positions=3, n_boot=0, n_null=0
    )
    n = report.before.n
    positions, events, targets = (report.tables[name] for name in ("positions", "events", "targets"))
    assert positions["band"].tolist() == ["1-4", "5-19", "20+"]
    assert positions["n"].tolist() == [15 * 4, 15 * 15, n - 15 * 19]
    assert report.tables["predicted"]["n"].sum() == n
    assert (events["n"] == n).all()
    for names in (CLASSES, FREQUENCIES):
        part = events.loc[events["token_class"].isin(names)]
        for column in ("share", "stated_before", "stated_after"):
            assert part[column].sum() == pytest.approx(1.0, abs=1e-5)
        assert targets.loc[targets["token_class"].isin(names), "n"].sum() == n
    both = targets.set_index("token_class")["n"] / n
    shares = events.set_index("token_class")["share"]
    assert both.to_dict() == pytest.approx(shares[both.index].to_dict())
    assert report.card["layer_rows"] == {"fitted": 45, "reported": 45}
    assert set(report.tables["layers"]["n"]) == {45}
    bins = report.tables["bins"]
    for (table, part, state), lines in bins.groupby(["table", "part", "state"]):
        frame = report.tables[table]
        row = frame.loc[frame.iloc[:, 0] == part].iloc[0]
        ece = (lines["n"] * (lines["confidence"] - lines["accuracy"]).abs()).sum() / lines["n"].sum()
        assert row[f"ece_{state}"] == pytest.approx(ece, abs=1e-9), (table, part)


def test_grouped_by_what_came_no_error_is_given() -> None:
    targets = text_calibration(writer(), sampled("llama", 1.0, 60), layers=None, **QUICK).tables["targets"]
    assert not [column for column in targets if "ece" in column or "null" in column]
    rare = targets.set_index("token_class").loc["rare"]
    assert rare["accuracy_high"] < rare["stated_before"]  # though the writer is calibrated


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" the", "word start"), ("ing", "continuation"), ("é", "continuation"), (" 1", "number"), ("19", "number"),
        (" ,", "punctuation"), ("@-@", "punctuation"), ("\n", "newline"), (" \n\n", "newline"), ("  ", "other"),
        ("a1", "other"), ("", "other"), ("\t", "other"), ("½", "number"), ("'s", "continuation"),
    ],
)  # fmt: skip
def test_classes_of_tokens(text: str, name: str) -> None:
    assert class_of_text(text) == name


def test_frequency_is_counted_with_equal_counts_together() -> None:
    # Ten tokens: id 0 five times, id 1 and 2 twice, id 3 once.
    found = token_classes(tiny_model(), np.array([0] * 5 + [1, 1, 2, 2, 3]))
    assert (found.frequent_from, found.rare_to, found.counted) == (5, 1, 10)
    assert found.frequency[:5].tolist() == [0, 1, 1, 2, 2]
    assert sum(found.members(name).sum() for name in FREQUENCIES) == 258
    assert sum(found.members(name).sum() for name in CLASSES) == 258
    assert found.members("other")[256]
    one = token_classes(tiny_model(), np.array([7, 7]))
    assert one.members("frequent").nonzero()[0].tolist() == [7]
    assert one.members("rare").sum() == 257


def test_samples_follow_the_seed_and_are_counted() -> None:
    texts = sampled("llama", 1.0, 20)
    first, again, other = (
        text_calibration(writer(), texts, fit_rows=100, layers=[0], layer_positions=5, seed=seed, n_boot=0, n_null=0)
        for seed in (0, 0, 1)
    )
    assert hash_json(first.to_dict()) == hash_json(again.to_dict())
    assert first.temperature != other.temperature
    assert first.card["tokens_fitted"] == first.tables["overall"]["n_fit"].item() == 100
    assert "cannot be told from chance" in first.summary()
    cut = text_calibration(writer(), texts, max_tokens=11, layers=None, n_boot=0, n_null=0)
    assert cut.card["tokens"] == 200
    assert cut.card["tokens_left_out"] == sum(len(text) - 11 for text in texts)
    assert "beyond max_tokens=11" in cut.notes[0]
    # What the page says one should call holds every setting that a figure depends on.
    for report, layers in ((first, "layers=[0, 1]"), (cut, "layers=None")):
        code = text_page._again(report).code
        assert layers in code
        for name in ("max_tokens", "bands", "n_bins", "n_boot", "seed"):
            assert f"{name}={report.card['settings'][name]!r}" in code


# -------------------------------------------------------------------------------------------------------- broken runs


def quick_page(report: TextCalibrationReport, path: Path) -> Path:
    """In place of `write_html`, whose charts take seconds."""
    return atomic_write(path, hash_json(report.to_dict()))


def run_job(out: Path, **options: Any) -> int:
    """A whole job of a model that is made anew, for a child that may be killed. The number of reported tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextCalibrationReport, "write_html", quick_page)
        texts = [f"text {i} says {i * i} and then " * (1 + i % 3) for i in range(40)]
        return text_calibration(
            tiny_model(), texts, layer_positions=4, out=out, n_boot=20, n_null=20, **options
        ).before.n


def stop_after(pieces: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        assert total == 5 + 1 + 3
        if done >= pieces:
            raise KeyboardInterrupt

    return progress


def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(tmp_path / "whole")
    whole = finished_bytes(tmp_path / "whole")
    for pieces in (2, 7):
        with pytest.raises(KeyboardInterrupt):
            run_job(tmp_path / f"broken-{pieces}", progress=stop_after(pieces))
    seen: list[tuple[int, int]] = []
    run_job(tmp_path / "broken-7", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(5, 9), (7, 9), (8, 9), (9, 9)]
    run_job(tmp_path / "broken-2")
    for pieces in (2, 7):
        assert finished_bytes(tmp_path / f"broken-{pieces}") == whole
    monkeypatch.setattr(module, "run_pieces", None)  # a finished report is read
    assert run_job(tmp_path / "whole") > 0
    with pytest.raises(ValueError, match="seed"):
        run_job(tmp_path / "whole", seed=1)


@pytest.mark.slow
def test_killed_runs_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    call(run_job, tmp_path / "whole")
    whole = finished_bytes(tmp_path / "whole")
    killed = 0
    for number in (2, 7):
        out = tmp_path / f"broken-{number}"
        child = start(run_job, out)
        wait_for(
            lambda child=child, out=out, number=number: child.ended or len(list(out.rglob("*.safetensors"))) >= number
        )
        child.kill()
        killed += child.end().signal is not None
        call(run_job, out)
        assert finished_bytes(out) == whole, number
    assert killed >= 1


def test_workers_of_a_cluster_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_job(tmp_path / "here")
    calls = far_workers(monkeypatch)
    run_job(tmp_path / "there", engine="ray")
    assert calls == [5, 4]
    assert finished_bytes(tmp_path / "there") == finished_bytes(tmp_path / "here")


def test_two_lenses_of_one_kind_are_two_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextCalibrationReport, "write_html", quick_page)
    model, texts = writer("bare"), sampled("bare", 1.0, 6, 20)
    options: dict[str, Any] = {"out": tmp_path / "out", "layer_positions": 3, "n_boot": 0, "n_null": 0}
    text_calibration(model, texts, lens=scaling_lens(model, 1.0, 2.0), **options)
    with pytest.raises(ValueError, match="lens"):
        text_calibration(model, texts, lens=scaling_lens(model, 1.0, 3.0), **options)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["abc"], {}, "two documents"),
        (["abc", "def"], {"groups": ["a"]}, "2 texts and 1 groups"),
        (["a", "b"], {}, "no text holds a token to score"),
        (["abc", "b"], {}, "holds no token to score"),
        (["abc", "x" * 200], {}, "text 1 has 200 tokens"),
        (["abc", "def"], {"max_tokens": 1}, "max_tokens"),
        (["abc", "def"], {"layers": [2]}, "from -1"),
        (["abc", "def"], {"layers": "last"}, "from -1"),
        (["abc", "def"], {"layers": []}, "from -1"),
        (["abc", "def"], {"bands": (1, 4)}, "bands"),
        (["abc", "def"], {"bands": (8, 4)}, "bands"),
        (["abc", "def"], {"fit_rows": 1}, "fit_rows"),
        (["abc", "def"], {"layer_positions": 0}, "layer_positions"),
        (["abc", "def"], {"n_null": -1}, "n_null"),
        (["abc", "def"], {"n_bins": 0}, "n_bins"),
    ],
)
def test_bad_input_is_refused(texts: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_calibration(writer(), texts, **options)


def test_models_lenses_and_sizes_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sampled("llama", 1.0, 4, 20)
    lens = scaling_lens(writer("bare"), 1.0, 2.0)
    with pytest.raises(ValueError, match="encoder"):
        text_calibration(tiny_model("bert"), texts)
    with pytest.raises(ValueError, match="this tuned lens was made for"):
        text_calibration(writer(), texts, lens=lens)
    with pytest.raises(ValueError, match="a lens reads layers"):
        text_calibration(writer(), texts, lens=lens, layers=None)
    broken = dataclasses.replace(lens, bias=torch.full_like(lens.bias, torch.nan))
    with pytest.raises(ValueError, match="embed hold NaN or infinity"):
        text_calibration(writer("bare"), texts, lens=broken)
    with writer().hooks({"resid_post:0": lambda value, _: value}), pytest.raises(ValueError, match="has hooks"):
        text_calibration(writer(), texts, out=tmp_path / "out")
    monkeypatch.setattr("interp.behavior.text.rows.STREAM_BYTES", 1000)
    with pytest.raises(ValueError, match="lower max_tokens or layer_positions"):
        text_calibration(writer(), texts)


# --------------------------------------------------------------------------------------------------- page and real model


def test_charts_and_page(tmp_path: Path) -> None:
    report = text_calibration(writer(), sampled("llama", 2.0, 12, 30), layer_positions=10, **QUICK)
    assert set(report.to_frame()["part"]) == {"all"}
    assert report.plot().to_dict() == report.plot("layers").to_dict()
    with pytest.raises(ValueError, match="this report has layers, reliability"):
        report.plot("bins")
    page = report.write_html(tmp_path / "page.html").read_text()
    for words in ("By layer", "drawn by seed 0", "10 of each text", "What this n can show", "ECE before"):
        assert words in page, words
    assert page.count("<svg") == 5
    assert "nan" not in report.summary()


def test_the_real_model_is_too_sure_in_the_middle_and_nearly_right_at_the_end(smollm: HookedTransformer) -> None:
    texts = [
        "The Eiffel Tower was built in 1889 for a fair in Paris, and it is still the tallest building in the city.",
        "Water boils at a lower temperature on a mountain, because the air presses less on its surface.",
        "In the spring the farmers of the valley sow their fields, and by the end of June the wheat is high.",
        "She opened the letter at the kitchen table, read it twice, and put it back into its envelope.",
    ]
    report = text_calibration(smollm, texts, layers=[-1, 15], layer_positions=6, **QUICK)
    layers = report.tables["layers"].set_index("layer")
    assert layers.index.tolist() == [-1, 15, 29]
    assert layers.loc[15, "ece_before"] > layers.loc[15, "null_before_high"]
    assert layers.loc[15, "temperature"] > 2
    assert layers.loc[15, "nll_gain"] > 1
    assert layers.loc[29, "nll_before"] < layers.loc[15, "nll_after"]
    assert {"word start", "punctuation"} <= set(report.tables["predicted"]["token_class"])
    assert set(report.tables["events"]["token_class"]) <= set(ALL_CLASSES)
