"""SteeringReport: what it says of planted results, its file, old files, its page, and what it refuses."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp import artifact
from interp.plot.steering import steering_slopes
from interp.report import Spans
from interp.steering import page
from interp.steering.figures import mean_change
from interp.steering.report import DAMAGE, EFFECTS, GENERATIONS, VALUES, SteeringReport, load_steering_report

GRID = (-0.1, 0.0, 0.1, 0.2)
PLAIN, STEERED = " long. I have worked.", " long but a joy."
HOSTILE = "</td><script>alert(1)</script>\u202e\x00"


def planted(
    *,
    steep: float = 30.0,
    n: int = 10,
    n_wrong: int = 1,
    n_random: int = 19,
    damage: bool = True,
    instruction: bool = True,
    measures: tuple[str, ...] = ("preference",),
) -> SteeringReport:
    """Items whose value is a slope times the strength: `n_wrong` of them go down, all others rise by `steep` and a bit."""
    rng = np.random.default_rng(0)
    slopes = np.where(np.arange(n) < n_wrong, -2.0, steep + np.arange(n) * (steep > 0))
    names = [("vector", "vector"), *((f"random {i} ({k})", k) for i in range(n_random) for k in [kinds(i)])]
    effects, harm, values = [], [], []
    for name, kind in names:
        own = slopes if kind == "vector" else rng.normal(0, 1, n)
        for strength in GRID if kind == "vector" else [s for s in GRID if s]:
            cost = (8.0 if kind == "vector" else 4.0) * strength**2 if damage else math.nan
            figures = {"loss_rise": cost, "kl_last": cost / 2, "kl_mean": cost / 4}
            about = {"direction": name, "kind": kind, "strength": strength}
            harm.append({**about, **figures, "loss_low": 0.9 * cost, "loss_high": 1.1 * cost, "n_texts": 5})
            for measure in measures:
                change = mean_change(own * strength, np.zeros(n), strength)
                effects.append({**vars(change), **about, **figures, "measure": measure, "unit": "nats"})
                values += [
                    {
                        **about,
                        "measure": measure,
                        "item": i,
                        "prompt": f"p{i}",
                        "group": None,
                        "value": own[i] * strength,
                    }
                    for i in range(n if kind == "vector" else 0)
                ]
    if instruction:
        told = {
            "direction": "instruction",
            "kind": "instruction",
            "strength": 0.0,
            "effect": 1.5,
            "low": 1.0,
            "high": 2.0,
        }
        effects += [{**told, "measure": measure, "unit": "nats", "n": n} for measure in measures]
    return SteeringReport(
        effects=pd.DataFrame(effects, columns=pd.Index(EFFECTS)),
        damage=pd.DataFrame(harm, columns=pd.Index(DAMAGE)),
        values=pd.DataFrame(values, columns=pd.Index(VALUES)),
        generations=pd.DataFrame(
            [
                ("My week", 0.0, "vector", PLAIN, None, PLAIN, ""),
                ("My week", 0.2, "vector", STEERED, 1, " long", " but a joy."),
            ],
            columns=pd.Index(GENERATIONS),
        ),
        card={"model": "tiny", "unit": "norm"},
        inputs={"settings": {"strengths": list(GRID)}},
    )


def kinds(index: int) -> str:
    return ("isotropic", "covariance")[index % 2]


# ---------------------------------------------------------------------------------------------------------- its tables


def test_slopes_and_wrong_ways_are_the_planted_ones() -> None:
    report = planted(steep=30.0, n=10, n_wrong=2)
    np.testing.assert_allclose(report.slopes["slope"], [-2.0, -2.0, *(30.0 + i for i in range(2, 10))])
    assert list(report.slopes["wrong"]) == [True] * 2 + [False] * 8
    told = report.steerability.iloc[0]
    assert (told["wrong_way"], told["n"], told["n_groups"]) == (0.2, 10, 10)
    assert told["slope"] == pytest.approx(report.slopes["slope"].mean())
    assert told["low"] < told["slope"] < told["high"]


def test_a_vector_that_is_taken_out_should_lower_the_values() -> None:
    added = planted(steep=-30.0, n=10, n_wrong=0)
    out = replace(added, card={**added.card, "kind": "ablate", "unit": "share"})
    assert added.slopes["wrong"].all()
    assert not out.slopes["wrong"].any()
    assert out.steerability["wrong_way"].tolist() == [0.0]
    assert "at strength +0.2 taking the vector out changes it by -6" in out.summary()
    assert page.dose(out) == "share taken out"
    assert "with the vector" in str(steering_slopes(out.slopes).to_dict())


def test_what_has_no_way_has_no_wrong_way() -> None:
    report = replace(planted(), card={"model": "tiny", "kind": "piecewise"})
    report.effects["wrong_way"] = math.nan
    assert report.slopes["wrong"].isna().all()
    assert report.steerability[["wrong_way", "wrong_low", "wrong_high"]].isna().to_numpy().all()
    assert "wrong way" not in report.summary()
    tables = [table for section in page.sections(report) for table in section.tables]
    assert not any({"wrong", "wrong_way", "wrong_low"} & set(table.frame) for table in tables)


def test_the_band_is_of_the_random_directions_at_each_strength() -> None:
    report = planted()
    assert sorted(report.band["strength"]) == [-0.1, 0.1, 0.2]
    at = report.band.set_index("strength").loc[0.2]
    random = report.effects.query("strength == 0.2 and direction not in ('vector', 'instruction')")["effect"]
    own = report.effects.query("direction == 'vector' and strength == 0.2").iloc[0]
    assert (at["low"], at["high"], at["n"]) == (random.min(), random.max(), 19)
    assert at["p"] == 1 / 20
    assert at["z"] == pytest.approx((own["low"] - random.mean()) / random.std())
    assert [set(report.random_band(kind)["n"]) for kind in ("isotropic", "covariance")] == [{10}, {9}]
    with pytest.raises(ValueError, match="isotropic, covariance, or None for both; got 'both'"):
        report.random_band("both")


def test_bands_of_a_report_without_random_directions_are_empty() -> None:
    assert planted(n_random=0).band.empty
    assert planted(n_random=0).random_band("isotropic").empty


def test_largest() -> None:
    report = planted()  # the loss rises by 8 s^2: 0.08, 0.08, 0.32
    assert report.largest(0.1) == 0.1
    assert report.largest(0.1, side=-1) == -0.1
    assert report.largest(1.0) == 0.2
    assert report.largest(0.081, "loss_rise", 1) == 0.1
    assert report.largest(0.05) == 0.0
    assert report.largest(0.083, "loss_high", 1) == 0.0  # its upper end is 0.088
    with pytest.raises(ValueError, match="damage must be one of loss_rise"):
        report.largest(0.1, "perplexity")
    with pytest.raises(ValueError, match="not measured at every strength"):
        report.largest(0.1, "repetition")


def test_what_falls_and_what_rises_is_held_against_strength_0() -> None:
    report = planted(n_random=0)
    table = report.damage.assign(accuracy=[0.7, 0.75, 0.74, 0.5], repetition=[0.3, 0.25, 0.26, 0.9])
    report = SteeringReport(report.effects, table, report.values, report.generations, {}, {})
    assert report.largest(0.02, "accuracy", 1) == 0.1
    assert report.largest(0.02, "accuracy", -1) == 0.0
    assert report.largest(0.02, "repetition", 1) == 0.1
    assert report.largest(0.7, "repetition") == 0.2


# ------------------------------------------------------------------------------------------------------------ in words


def test_summary_says_effect_band_cost_and_instruction() -> None:
    said = planted().summary()
    assert re.search(
        r"preference: at strength \+0\.2 the vector changes it by \+6\.\d+ \(\+\d\.\d+ to \+\d\.\d+\) nats", said
    )
    assert re.search(
        r"19 random directions .* lies outside them, its near end \d+\.\d of their standard deviations", said
    )
    assert "10% of the items move the wrong way there; over the whole grid, by their slopes, 10% (0% to 34%) do" in said
    assert "The instruction in its place changes it by +1.50 (+1.00 to +2.00), against the same context" in said
    assert (
        "the loss on other text changes by +0.320 (+0.288 to +0.352) nats a token (random directions: +0.160 to" in said
    )
    assert "Careful" not in said


def test_summary_is_careful() -> None:
    assert "Fewer random directions (5) stand beside the vector than the 19" in planted(n_random=5).summary()
    assert "No random directions stand beside" in planted(n_random=0).summary()
    assert "No damage was measured" in planted(damage=False).summary()
    assert "preference did not move at all" in planted(steep=0.0, n_wrong=0).summary()
    weak = planted(steep=0.01, n_wrong=0, n=3).summary()
    assert "The effect on preference is not told from that of random directions." in weak
    assert "the interval reaches into them" in weak


def test_a_report_of_text_alone_says_so(tmp_path: Path) -> None:
    full = planted()
    rows = [{"measure": "", "unit": "", "direction": "vector", "kind": "vector", "strength": s, "n": 0} for s in GRID]
    effects = pd.DataFrame(rows, columns=pd.Index(EFFECTS))
    report = SteeringReport(effects, full.damage.iloc[:0], full.values.iloc[:0], full.generations, {}, {})
    assert report.summary() == "No effect was measured."
    assert report.measures == []
    assert report.slopes.empty
    assert report.steerability.empty
    assert [section.title for section in page.sections(report)] == ["Side by side", "Run it again"]
    assert load_steering_report(report.save(tmp_path / "r.json")).measures == []


# ------------------------------------------------------------------------------------------------------------ its file


def test_a_saved_report_comes_back(tmp_path: Path) -> None:
    report = planted(measures=("preference", "probe"))
    again = load_steering_report(report.save(tmp_path / "report.json"))
    for name in ("effects", "damage", "values", "generations", "band", "slopes"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(report, name), check_dtype=False)
    assert (again.card, again.inputs) == (report.card, report.inputs)
    assert again.save(tmp_path / "again.json").read_bytes() == (tmp_path / "report.json").read_bytes()


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    vector = [
        {"direction": "vector", "strength": s, "effect": 9 * s, "low": 8 * s, "high": 10 * s, "wrong_way": 0.1, "n": 18}
        for s in (0.0, 0.1)
    ]
    random = [{**vector[1], "direction": f"random {i} ({kinds(i)})", "effect": 0.1 * i} for i in range(4)]
    old: dict[str, Any] = {
        "kind": "steering report",
        "format": 1,
        "effects": [{**row, "loss_rise": 0.02 * row["strength"]} for row in vector + random],
        "generations": [
            {"prompt": "My week", "strength": 0.0, "text": PLAIN, "first_difference": None},
            {"prompt": "My week", "strength": 0.1, "text": STEERED, "first_difference": 2},
        ],
        "band": [],
        "card": {"model": "tiny"},
    }
    report = load_steering_report(artifact.write_json(tmp_path / "old.json", old))
    assert list(report.effects["kind"]) == ["vector"] * 2 + ["isotropic", "covariance"] * 2
    assert report.measures == ["preference"]
    assert report.band["n"].tolist() == [4]
    assert report.largest(0.01) == 0.1
    assert list(report.generations["same"]) == [PLAIN, " long"]
    assert list(report.generations["differs"]) == ["", " but a joy."]
    assert "+0.900" in report.summary()
    assert "earlier version" in page.sections(report)[-1].text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"kind": "lens"}, "holds no steering report"),
        ([], "holds no steering report"),
        ({"kind": "steering report", "format": 99}, "format 99, newer than the 2"),
        ({"kind": "steering report", "format": 2, "effects": []}, "has effects and generations"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_steering_report(artifact.write_json(tmp_path / "x.json", content))


def test_a_table_without_a_column_is_refused() -> None:
    report = planted()
    with pytest.raises(ValueError, match="table of damage has no column kl_last"):
        SteeringReport(report.effects, report.damage.drop(columns="kl_last"), report.values, report.generations, {}, {})


# ----------------------------------------------------------------------------------------------------------- comparing


def test_compare_tells_same_within_and_moved() -> None:
    report = planted()
    assert set(report.compare(planted())["verdict"]) == {"same"}
    effects = report.effects.copy()
    own = effects["direction"] == "vector"
    effects.loc[own & (effects["strength"] == 0.1), "effect"] += 0.01
    effects.loc[own & (effects["strength"] == 0.2), "effect"] += 100.0
    effects = effects.loc[~(own & (effects["strength"] == -0.1))]
    texts = report.generations.assign(text=[PLAIN, "another"])
    other = SteeringReport(effects, report.damage.assign(kl_last=1.0), report.values, texts, {}, {})
    found = report.compare(other).set_index(["figure", "direction", "strength"])["verdict"]
    assert found["effect: preference", "vector", 0.1] == "within"
    assert found["effect: preference", "vector", 0.2] == "moved"
    assert found["effect: preference", "vector", -0.1] == "only ours"
    assert found["effect: preference", "instruction", 0.0] == "same"
    assert found["kl_last", "vector", 0.2] == "moved"
    assert found["loss_rise", "vector", 0.2] == "same"
    assert (found["text", "vector", 0.0], found["text", "vector", 0.2]) == ("same", "moved")


def test_reports_without_anything_in_common_are_refused() -> None:
    left, right = planted(damage=False), planted(damage=False, measures=("probe",))
    with pytest.raises(ValueError, match="nothing to compare"):
        left.compare(right)


# ------------------------------------------------------------------------------------------------------------ its page


def test_the_page_shows_all_loads_nothing_and_reads_no_text_as_markup(tmp_path: Path) -> None:
    report = planted(measures=("preference", HOSTILE))
    texts = pd.concat(
        [report.generations, report.generations.assign(**dict.fromkeys(("prompt", "same", "differs"), HOSTILE))]
    )
    values = report.values.assign(prompt=HOSTILE)
    hostile = SteeringReport(
        report.effects, report.damage, values, texts, {"model": HOSTILE}, {"settings": {"x": HOSTILE}}
    )
    shown = hostile.write_html(tmp_path / "report.html").read_text("utf-8")
    for title in ("Effect", "Damage", "Items one by one", "Side by side", "Run it again"):
        assert f"</span>{title}</h2>" in shown
    assert shown.count("<svg") == 3
    assert "steering_experiment_again(report, model)" in shown
    assert '<span class="quiet"> long </span><span class="marked">but</span><span class=""> a joy.</span>' in shown
    assert f'<span class="">{PLAIN}</span>' in shown
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", shown)
    for part in ("<script", "\u202e", "\x00"):
        assert part not in shown


def test_the_first_word_of_its_own_is_marked() -> None:
    assert list(page.told("ab", "c d").parts) == [("ab", "quiet"), ("c", "marked"), (" d", "")]
    assert list(page.told("ab", "\n\n").parts) == [("ab\n\n", "quiet")]
    assert list(page.told("ab", "c d", plain=True).parts) == [("abc d", "")]
    assert list(page.told("", "").parts) == []
    with pytest.raises(ValueError, match="one of '', 'quiet', 'marked', got 'loud'"):
        Spans([("a", "loud")])
