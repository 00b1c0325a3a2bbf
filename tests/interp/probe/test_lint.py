"""The lint finds what is planted, says nothing about a clean set, and knows the traps of real ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.dataset import Dataset, Example
from interp.dataset.group_rule import groups_by_rule
from interp.probe.controls import text_baseline
from interp.probe.linting import LintReport, lint_dataset, load_lint_report

N_BOOT = 100


def clean(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Pairs of entities that trade their answers, each statement affirmed and negated: no word tells the label."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(n):
        names, answers = (f"Ab{number:03d}", f"Cd{number:03d}"), (f"ef{number:03d}", f"gh{number:03d}")
        for i in (0, 1):
            for j in (0, 1):
                for polarity in ("affirmative", "negated"):
                    verb = "means" if polarity == "affirmative" else "does not mean"
                    rows.append(
                        {
                            "text": f"The word {names[i]} {verb} {answers[j]}.",
                            "label": int((i == j) == (polarity == "affirmative")),
                            "group": f"group {number}",
                            "topic": "ab"[number % 2],
                            "polarity": polarity,
                            "pair": f"{names[i]}-{answers[j]}",
                        }
                    )
    frame = pd.DataFrame(rows)
    return frame.iloc[rng.permutation(len(frame))].reset_index(drop=True)


def lint(source: Any, **options: Any) -> LintReport:
    return lint_dataset(source, **{"n_boot": N_BOOT, **options})


def codes(report: LintReport, *severities: str) -> set[str]:
    return {found.code for found in report.findings if not severities or found.severity in severities}


def figure(report: LintReport, what: str, split: str) -> pd.Series:
    frame = report.figures
    (row,) = np.flatnonzero((frame["what"] == what) & (frame["split"] == split))
    return frame.iloc[row]


# ------------------------------------------------------------------------------------------------------ the whole


def test_a_clean_set_has_nothing_but_the_leak_of_a_split_by_row() -> None:
    report = lint(clean())
    assert report.ok
    assert codes(report) == {"row_leak"}
    assert (report.n, report.n_groups) == (480, 60)
    leak = report.finding("row_leak")
    assert (leak.severity, leak.count) == ("note", 480)
    assert leak.figures["by_row"] < 0.3
    assert leak.figures["by_group"] == pytest.approx(0.5, abs=0.05)
    assert figure(report, "words", "row").high < 0.4
    assert report.words.empty
    assert report.not_measured == ()
    assert report.card["groups_from"] == "column 'group'"


def test_sources_say_the_same(tmp_path: Path) -> None:
    frame = clean(12)
    examples = tuple(
        Example(
            row["text"], row["label"], row["group"], None, {name: row[name] for name in ("topic", "polarity", "pair")}
        )
        for row in frame.to_dict("records")
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "a.parquet")
    sources = [frame, Dataset("a", examples), *(tmp_path / f"a.{ending}" for ending in ("csv", "jsonl", "parquet"))]
    reports = [lint(source) for source in sources]
    for report in reports[1:]:
        assert report.findings == reports[0].findings
        assert report.card["hash"] == reports[0].card["hash"]
        pd.testing.assert_frame_equal(report.figures, reports[0].figures)
    renamed = frame.rename(columns={"text": "claim", "label": "truth", "group": "who", "pair": "two"})
    report = lint(renamed, text="claim", label="truth", group="who", pair="two")
    assert report.findings == reports[0].findings


def test_a_bundled_set_is_clean() -> None:
    report = lint("comparisons")
    assert report.ok
    assert not codes(report, "warning")


def test_report_is_saved_and_read(tmp_path: Path) -> None:
    frame = clean(12)
    frame.loc[0, "text"] = " "
    frame.loc[1, "label"] = 1 - frame.loc[1, "label"]
    report = lint(frame)
    again = load_lint_report(report.save(tmp_path / "lint.json"))
    assert again.findings == report.findings
    assert again.card == report.card
    assert again.summary() == report.summary()
    pd.testing.assert_frame_equal(again.to_frame(), report.to_frame())
    pd.testing.assert_frame_equal(again.figures, report.figures)
    assert json.loads((tmp_path / "lint.json").read_text())["ok"] is False
    severities = [found.severity for found in report.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    for found in report.findings:
        assert found.what in report.summary()
        assert found.effect in report.summary()
        assert found.mend in report.summary()
    with pytest.raises(ValueError, match="has no finding 'none'; it has no_text"):
        report.finding("none")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no lint report"):
        load_lint_report(tmp_path / "other.json")


# ---------------------------------------------------------------------------------------------------------- rows


def test_rows_that_no_probe_can_use_are_named_and_left_out() -> None:
    frame = clean(12).astype({"label": object, "text": object})
    frame.loc[[0, 1], "text"] = [None, 3.5]
    frame.loc[[2, 3, 4], "label"] = [None, "perhaps", 2]
    frame.loc[5, "group"] = None
    report = lint(frame)
    assert not report.ok
    assert report.n == len(frame) - 5
    assert {code: report.finding(code).count for code in ("no_text", "no_label", "strange_label", "no_group")} == {
        "no_text": 2,
        "no_label": 1,
        "strange_label": 2,
        "no_group": 1,
    }
    assert report.finding("strange_label").examples == ("row 4: 'perhaps'", "row 5: 2")
    assert report.finding("no_group").examples[0].startswith("row 6: 'The word")
    assert report.n_groups == 13  # the row without one is its own


def test_labels_in_words_are_read() -> None:
    frame = clean(12)
    words = frame.assign(label=["yes" if label else "no" for label in frame["label"]])
    assert lint(words).findings == lint(frame).findings


# ------------------------------------------------------------------------------------------------------- repeats


def test_conflicting_labels_bound_the_accuracy() -> None:
    frame = clean(12)
    copies = frame.iloc[:3].assign(label=1 - frame["label"].iloc[:3], text=frame["text"].iloc[:3].str.upper() + " ")
    found = lint(pd.concat([frame, copies, copies.iloc[:1]])).finding("conflicting_labels")
    assert (found.severity, found.count) == ("error", 7)
    assert found.figures["best_accuracy"] == pytest.approx(1 - 3 / 100)
    assert "3 texts (7 rows)" in found.what


def test_duplicates_within_groups_are_a_note_and_across_groups_a_measured_leak() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([f"w{n}" for n in range(400)], 6)) for _ in range(120)]
    frame = pd.DataFrame({"text": texts, "label": rng.integers(0, 2, 120), "group": [f"g{n // 3}" for n in range(120)]})
    within = lint(pd.concat([frame, frame]))
    assert within.finding("duplicates_within_groups").severity == "note"
    assert within.finding("duplicates_within_groups").count == 120
    assert "duplicates_across_groups" not in codes(within)
    # The same texts under other groups: what the labels are by chance is learnt by heart.
    across = lint(pd.concat([frame, frame.assign(group="again " + frame["group"])])).finding("duplicates_across_groups")
    assert (across.severity, across.count) == ("warning", 120)
    assert across.figures["with"] > 0.8
    assert across.figures["without"] < 0.65
    assert "ties groups that share a text into one, and 40 of 80 are left" in across.effect


# ------------------------------------------------------------------------------------------------------- balance


def test_unbalanced_labels_topics_and_files_in_order_are_found() -> None:
    frame = clean(60)
    few = frame[(frame["label"] == 0) | (frame.index % 5 == 0)].drop(columns="pair")
    assert lint(few).finding("unbalanced_labels").figures["majority_accuracy"] == pytest.approx(1 - few["label"].mean())
    # True rows of topic a, false rows of topic b: the labels are balanced, the topic tells them.
    told = frame[(frame["label"] == 1) == (frame["topic"] == "a")].drop(columns="pair")
    report = lint(told)
    assert "unbalanced_labels" not in codes(report)
    assert report.finding("unbalanced_topic").figures["auroc"] == 1.0
    assert "label_order" not in codes(report)
    found = lint(frame.sort_values("label", ignore_index=True)).finding("label_order")
    assert (found.figures["runs"], found.figures["auroc"]) == (2, 1.0)
    assert "trains on 0.38 true and tests on 1.00" in found.effect
    assert "n = 480 in 60 groups" in found.what
    turns = frame.sort_values(["group", "label"], ignore_index=True).groupby(["group", "label"]).head(1)
    assert "alternate" in lint(turns).finding("label_order").what


def test_the_interval_of_the_row_number_holds_its_figure() -> None:
    """Pairs in a row, the true statement first: groups that are drawn twice must not move the interval past the figure."""
    rows = [{"text": f"w{i} is {i % 2}", "label": 1 - i % 2, "group": f"g{i // 2}"} for i in range(80)]
    found = lint(pd.DataFrame(rows)).finding("label_order").figures
    assert found["auroc"] == pytest.approx(0.5 - 0.5 / 40)
    assert found["low"] < found["auroc"] < found["high"] < 0.5


def test_labels_of_minus_one_and_one_are_one_finding() -> None:
    frame = clean(12)
    report = lint(frame.assign(label=2 * frame["label"] - 1))
    assert "one_class" not in codes(report)
    assert "-1 to 0" in report.finding("strange_label").mend
    missing = lint(frame.rename(columns={"label": "truth"})).finding("no_labels").mend
    assert missing.startswith("The columns are text, truth, group")
    assert "label=..., or --label on the command line" in missing


def test_sets_without_labels_or_with_one_are_looked_at_as_far_as_they_go() -> None:
    frame = clean(12)
    for bad, code in ((frame.drop(columns="label"), "no_labels"), (frame.assign(label=1), "one_class")):
        report = lint(pd.concat([bad, bad.iloc[:1]]))
        assert code in codes(report, "error")
        assert "duplicates_within_groups" in codes(report)
        assert report.figures.empty
        assert report.words.empty


# ---------------------------------------------------------------------------------------------------- groups, pairs


def test_missing_groups_are_an_error_with_a_rule_to_add() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"text": f"The city of Name{n} is in Land{rng.integers(30)}.", "label": label, "city": f"Name{n}"}
        for n in range(80)
        for label in (0, 1)
    ]
    frame = pd.DataFrame(rows)
    report = lint(frame)
    assert {"no_groups", "row_leak"} <= codes(report, "error")
    found = report.finding("no_groups")
    assert "group='city'" in found.mend
    assert r"group_rule='^The city of (.+?) is'" in found.mend
    assert report.n_groups is None
    by_column, by_rule = lint(frame, group="city"), lint(frame, group_rule=r"^The city of (.+?) is")
    assert by_column.ok
    assert by_column.findings == by_rule.findings
    assert by_rule.card["groups_from"] == "rule '^The city of (.+?) is'"
    written = frame.assign(group=groups_by_rule(frame, "city"))
    assert lint(written).findings == by_column.findings
    quoted = pd.DataFrame({"text": [f"Old 'w{n}' is {n}." for n in range(20)], "label": [0, 1] * 10})
    assert "group_rule='quoted'" in lint(quoted).finding("no_groups").mend
    on_purpose = lint(frame, group_rule="rows")
    assert (on_purpose.n_groups, on_purpose.ok) == (160, True)


def test_rules_give_the_groups() -> None:
    frame = pd.DataFrame(
        {"text": ["The word 'con' isn't here", 'The "new york" word', "none's"], "a": [1, 2, 3], "b": [2, 1, None]}
    )
    assert groups_by_rule(frame, "quoted") == ["con", "new york", None]
    assert groups_by_rule(frame, "a,b") == ["1 | 2.0", "1.0 | 2", None]
    whole = frame.astype({"b": "Int64"})
    assert groups_by_rule(whole, "a, b") == ["1 | 2", "1 | 2", None]
    assert groups_by_rule(frame, r"^The (\w+)") == ["word", None, None]
    for rule, message in (
        ("^The word", "has no group: put brackets"),
        ("(", "is no regular expression"),
        ("a,c", "not there, 'c'"),
        ("citty", "not there, 'citty'"),
        ("^(Berlin)", "finds no group in any of 3 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            groups_by_rule(frame, rule)


def test_few_large_misspelt_and_one_sided_groups_are_found() -> None:
    frame = clean(12)
    few = lint(frame.assign(group=[f"g{int(name[6:]) % 3}" for name in frame["group"]]))
    assert "few_groups" in codes(few, "error")
    assert any("3 groups are too few" in reason for reason in few.not_measured)
    large = frame.assign(group=["one" if int(name[6:]) < 5 else name for name in frame["group"]])
    assert lint(large).finding("large_group").count == 40
    spelt = frame.copy()
    spelt.loc[0, "group"] = spelt.loc[0, "group"].upper()
    assert lint(spelt).finding("group_spelling").severity == "error"
    one = frame.drop(index=frame.index[(frame["group"] == "group 3") & (frame["label"] == 1)])
    found = lint(one).finding("one_label_groups")
    assert (found.severity, found.count) == ("error", 4)
    assert lint(one.drop(columns="pair")).finding("one_label_groups").severity == "warning"


def test_broken_pairs_are_found() -> None:
    frame = clean(12)
    assert not codes(lint(frame)) & {"pairs_not_flipped", "pairs_divided", "pairs_same_polarity", "pairs_alone"}
    first = frame.index[frame["pair"] == frame.loc[0, "pair"]]
    assert len(first) == 2
    flipped, divided, polarity = frame.copy(), frame.copy(), frame.copy()
    flipped.loc[first, "label"] = 1
    divided.loc[first[0], "group"] = "elsewhere"
    polarity.loc[first, "polarity"] = "negated"
    for bad, code in ((flipped, "pairs_not_flipped"), (divided, "pairs_divided"), (polarity, "pairs_same_polarity")):
        found = lint(bad).finding(code)
        assert (found.severity, found.count) == ("error", 2)
    assert lint(frame.drop(index=first[0])).finding("pairs_alone").count == 1


def test_names_that_groups_share_are_measured() -> None:
    """Each land is always right or always wrong, in whichever group it stands."""
    rng, rows = np.random.default_rng(0), []
    for group in range(60):
        for label in (0, 1):
            land = f"{'North' if label else 'South'}land{rng.integers(5)}"
            rows.append({"text": f"The town ab{group} lies in {land}.", "label": label, "group": f"g{group}"})
    found = lint(pd.DataFrame(rows)).finding("shared_entities")
    assert (found.severity, found.count) == ("warning", 120)
    assert found.figures["low"] > 0.95
    assert "10 names" in found.what


# --------------------------------------------------------------------------------------------------- wording, form


def test_telling_words_length_and_form_are_measured() -> None:
    rng, rows = np.random.default_rng(0), []
    for group in range(60):
        for label in (0, 1):
            hedge = "perhaps " if label and rng.random() < 0.8 else ""
            text = f"thing{group} {hedge}does{rng.integers(9)}" + ("." if label else "")
            rows.append({"text": text, "label": label, "group": f"g{group}"})
    report = lint(pd.DataFrame(rows))
    skew = report.finding("wording_skew")
    assert skew.figures["low"] > 0.9
    assert figure(report, "words", "group").auroc == skew.figures["auroc"]
    frame = pd.DataFrame(rows)
    baseline = text_baseline(frame["text"], frame["label"], frame["group"], n_boot=N_BOOT)
    assert skew.figures == {
        "auroc": baseline.auroc,
        "low": baseline.low,
        "high": baseline.high,
    }  # a probe's own baseline
    words = report.words.set_index("word")
    assert set(words.index) == {".", "perhaps"}
    true, n = int(words.loc["perhaps", "true"]), 60
    assert words.loc["perhaps", "false"] == 0
    assert words.loc["perhaps", "odds"] == pytest.approx((true + 0.5) * (n + 0.5) / ((n - true + 0.5) * 0.5))
    length = report.finding("length_skew").figures
    lengths = pd.DataFrame(rows)["text"].str.len().to_numpy()
    y = np.tile([0, 1], 60)
    above = lengths[y == 1][:, None] - lengths[y == 0]
    assert length["auroc"] == pytest.approx((above > 0).mean() + (above == 0).mean() / 2)
    ends = [found for found in report.findings if found.code == "form_skew"]
    assert {found.figures["auroc"] for found in ends} == {1.0, 0.0}  # with a full stop, and without punctuation
    assert report.finding("mixed_ends").count == 60


def test_odd_characters_scripts_and_sizes_are_found(tmp_path: Path) -> None:
    frame = clean(12)
    for row, text in enumerate(
        ("CafÃ© is open.", "A\u200bhidden one.", "Слово значит дело.", "The wоrd with a Cyrillic o.", "long " * 2000)
    ):
        frame.loc[row, "text"] = text
    report = lint(frame)
    assert report.finding("damaged_characters").examples[0].startswith("row 1, ")
    assert report.finding("odd_characters").count == 1
    assert report.finding("mixed_scripts").count == 1
    assert report.finding("mixed_words").examples[0].startswith("row 4, ")
    assert report.finding("long_texts").severity == "warning"
    path = tmp_path / "marked.csv"
    clean(12).to_csv(path, index=False, encoding="utf-8-sig")
    assert codes(lint(path)) == {"row_leak", "byte_order_mark"}


# ------------------------------------------------------------------------------------------------------- bad calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "truth"}, r"has no column 'truth'.*There are: text, label"),
        ({"text": "txt"}, r"has no column 'txt'\. Did you mean 'text'"),
        ({"group": "grp"}, r"has no column 'grp'\. Did you mean 'group'"),
        ({"pair": "pears"}, "has no column 'pears'"),
        ({"group": "group", "group_rule": "quoted"}, "a column or a rule, not both"),
        ({"n_boot": 10}, "n_boot=10 is too few"),
        ({"n_folds": 1}, "n_folds=1"),
        ({"source": 3}, "cannot lint int"),
        ({"source": "no_such_set"}, "there is no bundled data set 'no_such_set'"),
        ({"source": "none.csv"}, r"there is no file none\.csv"),
        ({"source": pd.DataFrame({"text": []})}, "the table has no rows"),
        (
            {"source": pd.DataFrame({"text": ["a"], "label": ["x"]})},
            "none of 1 rows has both.*'x', and should be 0 and 1",
        ),
    ],
)
def test_bad_calls_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lint(**{"source": clean(6), **options})


# ------------------------------------------------------------------------------------------------------ real sets


def test_cities_is_told_by_rows_and_not_by_cities(shared_data: Path) -> None:
    path = shared_data / "truth" / "cities.csv"
    report = lint(path, group="city")
    assert report.ok
    assert report.n_groups == 748
    # A bag of words with naive Bayes has .04 and .45.
    assert figure(report, "words", "row").auroc < 0.15
    assert figure(report, "words", "group").auroc == pytest.approx(0.45, abs=0.03)
    assert report.finding("row_leak").severity == "note"
    assert "alternate" in report.finding("label_order").what
    blind = lint(path)
    assert {"no_groups", "row_leak"} <= codes(blind, "error")
    assert "group='city'" in blind.finding("no_groups").mend


def test_companies_contradict_each_other(shared_data: Path) -> None:
    report = lint(shared_data / "truth" / "companies_true_false.csv", group_rule="rows")
    found = report.finding("conflicting_labels")
    assert (found.severity, found.count) == ("error", 28)
    assert "14 texts" in found.what
    assert found.figures["best_accuracy"] == pytest.approx(1 - 14 / 1200)


def test_common_claims_are_told_by_words(shared_data: Path) -> None:
    claims = lint(shared_data / "truth" / "common_claim_true_false.csv", group_rule="rows")
    assert claims.finding("wording_skew").figures["auroc"] == pytest.approx(0.68, abs=0.04)
    assert {"if", "than", "not"} <= set(claims.words["word"])
    assert claims.finding("label_order").figures["runs"] == 2


def test_larger_than_is_told_by_nothing_but_its_rows(shared_data: Path) -> None:
    larger = lint(shared_data / "truth" / "larger_than.csv", group_rule="n1,n2")
    assert larger.n_groups == 990
    assert figure(larger, "words", "group").auroc == pytest.approx(0.5)
    assert figure(larger, "words", "row").high < 0.5
    assert "group_rule='n1,n2'" in lint(shared_data / "truth" / "larger_than.csv").finding("no_groups").mend
