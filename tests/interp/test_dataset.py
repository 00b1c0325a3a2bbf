"""Data files are read exactly or refused with the rows named, and a grouped split never divides a group."""

import json
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.artifact import hash_json
from interp.dataset import (
    ContradictoryLabelsWarning,
    Dataset,
    Example,
    datasets,
    grouped_folds,
    grouped_split,
    load_corpus,
    load_dataset,
    load_pairs,
    load_questions,
    read_table,
    write_dataset,
)

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared test data are not here")


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


# ------------------------------------------------------------------------------------------------------------ reading


def test_csv_with_quotes_bom_and_odd_values(tmp_path: Path) -> None:
    text = 'text,label,group,n,score,note\n"One, ""two""\nthree",1,NA,7,1.5,\nNA,0,null,-2,2,x\n'
    data = load_dataset(written(tmp_path / "a.csv", text, "utf-8-sig"))
    assert data.texts == ['One, "two"\nthree', "NA"]
    assert data.groups == ["NA", "null"]
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0]
    assert [e.meta for e in data] == [{"n": 7, "score": 1.5, "note": ""}, {"n": -2, "score": 2.0, "note": "x"}]
    assert data.name == "a"


def test_tables_have_numbers_where_every_value_is_one(tmp_path: Path) -> None:
    frame = read_table(written(tmp_path / "a.csv", "p,label,who\n0.25,1,7a\n1e-3,0,8\n"), columns=["p", "label"])
    assert frame.p.to_numpy().dtype == np.float64
    assert frame.label.tolist() == [1, 0]
    assert frame.who.tolist() == ["7a", "8"]
    with pytest.raises(ValueError, match=r"a\.csv has no column 'prob'\. There are: p, label, who"):
        read_table(tmp_path / "a.csv", columns=["prob"])
    with pytest.raises(ValueError, match="there is no file"):
        read_table(tmp_path / "b.csv")


def test_codes_of_digits_keep_every_digit(tmp_path: Path) -> None:
    """What a number would write otherwise is text: zeros in front, and whole numbers that no 64 bits or float hold."""
    columns = {
        "big": (["1234567890123456789", "-9223372036854775808"], [1234567890123456789, -(2**63)]),
        "bigger": (["12345678901234567890", "5"], ["12345678901234567890", "5"]),
        "zeros": (["01234", "5"], ["01234", "5"]),
        "zeros_point": (["00.5", "1.5"], ["00.5", "1.5"]),
        "minus": (["-0", "1"], ["-0", "1"]),
        "mixed": (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
        "huge": (["1e400", "1"], ["1e400", "1"]),
        "decimal": (["7", "-2.50"], [7.0, -2.5]),
        "exponent": (["1e3", "2.5E-1"], [1000.0, 0.25]),
    }
    rows = [",".join(columns), *(",".join(written[row] for written, _ in columns.values()) for row in range(2))]
    for name in ("codes.csv", "codes.tsv"):
        lines = "\n".join(rows)
        found = read_table(written(tmp_path / name, lines if name.endswith("csv") else lines.replace(",", "\t")))
        for column, (_, expected) in columns.items():
            assert found[column].tolist() == expected, column
            assert [type(value) for value in found[column].tolist()] == [*map(type, expected)], column


def test_every_format_reads_the_same(tmp_path: Path) -> None:
    rows = [{"text": "Ä b.", "label": 1, "group": "g1", "n": 3}, {"text": "c", "label": 0, "group": "g2", "n": 4}]
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "d.csv", index=False)
    frame.to_csv(tmp_path / "d.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "d.parquet")
    written(tmp_path / "d.jsonl", "\n\n".join(json.dumps(row) for row in rows), "utf-8-sig")
    read = [load_dataset(tmp_path / f"d.{kind}") for kind in ("csv", "tsv", "parquet", "jsonl")]
    assert len({data.hash for data in read}) == 1
    assert read[0].examples[0] == Example("Ä b.", 1, "g1", None, {"n": 3})


def test_text_file_is_one_text_a_line(tmp_path: Path) -> None:
    data = load_corpus(written(tmp_path / "a.txt", "first\r\n\n  second\u2028part\n"))
    assert data.texts == ["first", "  second\u2028part"]
    assert data.labels is None
    assert data.groups is None


def test_home_folder_and_string_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path / "a.txt", "x")
    assert load_dataset("~/a.txt").texts == ["x"]


@pytest.mark.parametrize("yes_no", ["1 0", "true false", "True FALSE", "yes no", "1.0 0.0", " 1  0"])
def test_spellings_of_labels(tmp_path: Path, yes_no: str) -> None:
    yes, no = yes_no.split()
    data = load_dataset(written(tmp_path / "a.csv", f"text,label\na,{yes}\nb, {no} \n"))
    assert [e.label for e in data] == [1, 0]


def test_typed_labels_of_parquet_and_jsonl(tmp_path: Path) -> None:
    for values in ([True, False], [1.0, 0.0], [1, 0]):
        pd.DataFrame({"text": ["a", "b"], "label": values}).to_parquet(tmp_path / "a.parquet")
        assert [e.label for e in load_dataset(tmp_path / "a.parquet")] == [1, 0]


def test_statement_column_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "statement,label,city\nx,1,A\ny,0,B\n")
    assert load_dataset(path).texts == ["x", "y"]
    data = load_dataset(path, text="statement", group="city")
    assert data.groups == ["A", "B"]
    assert all(not e.meta for e in data)


@needs_shared
def test_real_files() -> None:
    cities = load_dataset(SHARED / "truth" / "cities.csv", text="statement", group="city", require_labels=True)
    assert len(cities) == 1496
    assert Counter(Counter(cities.groups or []).values()) == {2: 748}
    assert load_dataset(SHARED / "truth" / "cities.csv", group="city").hash == cities.hash
    assert len(load_corpus(SHARED / "wikitext-2" / "valid.txt")) > 2000
    sides = {"positive": "positive_response", "negative": "negative_response"}
    assert len(load_pairs(SHARED / "contrast" / "formality.jsonl", **sides)) == 30


@needs_shared
def test_real_contradictions_are_counted() -> None:
    with pytest.warns(ContradictoryLabelsWarning, match=r"14 texts \(28 rows\) carry both labels"):
        load_dataset(SHARED / "truth" / "companies_true_false.csv")


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("text,label\n", "has no rows"),
        ("sentence,label\na,1\n", r"no column 'text'\. .*There are: sentence, label"),
        ("text,label\na,1\n ,0\n,1\n", r"2 of 3 rows have no text \(row 2, 3\)"),
        ("text,label\na,1\nb,\nc,nan\n", r"2 of 3 rows have no label \(row 2, 3\)"),
        ("text,label\na,1\nb,0\nc,2\n", r"holds 3 values \('1', '0', '2'\); labels are two classes"),
        ("text,label\na,pos\nb,neg\n", "'pos' is none of these"),
        ("text,label,group\na,1,g\nb,0,\n", r"1 of 2 rows have no group \(row 2\)"),
        ("text,label\na,1\nb,0,5,6\n", "Expected 2 fields in line 3, saw 4"),
        ("text,label,group\na,1,g\nb,0\n", "no group"),
        ("text,label\na,1,5\n", "more values than its header has names"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(written(tmp_path / "bad.csv", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n", "no column 'text'"),
        ('{"text": "a"}\nnot json\n', "line 2 is not JSON"),
        ('{"text": "a"}\n[1]\n', "line 2 is a list, not an object"),
        ('{"text": "a"}\n{"label": 1}\n', "no text"),
        ('{"text": ["a"]}\n', "a text that is not text"),
        ('{"text": "a", "label": NaN}\n{"text": "b", "label": 1}\n', "no label"),
        ("\n \n", "has no rows"),
    ],
)
def test_bad_jsonl_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(written(tmp_path / "bad.jsonl", text))


def test_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "statement,Label,city\nx,1,A\n")
    with pytest.raises(
        ValueError, match=r"no column 'citty'\. Did you mean 'city'\? There are: statement, Label, city"
    ):
        load_dataset(path, group="citty")
    with pytest.raises(ValueError, match=r"no column 'label'\. Did you mean 'Label'"):
        load_dataset(path, require_labels=True)
    with pytest.raises(ValueError, match="no column 'truth'"):
        load_dataset(path, label="truth")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        load_dataset(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="is a folder"):
        load_dataset(tmp_path)
    with pytest.raises(ValueError, match=r"cannot read a\.xlsx: the ending says the format, one of \.csv"):
        load_dataset(written(tmp_path / "a.xlsx", "x"))
    with pytest.raises(ValueError, match="is not UTF-8"):
        load_dataset(written(tmp_path / "latin.csv", "text\nä\n", "latin-1"))
    with pytest.raises(ValueError, match="cannot read"):
        load_dataset(written(tmp_path / "a.parquet", "not parquet"))


def test_one_class_is_refused_where_labels_are_required(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\na,1\nb,1\n")
    assert len(load_dataset(path)) == 2
    with pytest.raises(ValueError, match="every label is 1"):
        load_dataset(path, require_labels=True)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no bundled data set 'citys'\. Did you mean 'cities'"):
        load_dataset("citys")
    with pytest.raises(ValueError, match=r"'sentiment' holds pairs: read it with load_pairs"):
        load_dataset("sentiment")
    with pytest.raises(ValueError, match=r"'cities' holds statements: read it with load_dataset"):
        load_questions("cities")
    with pytest.raises(ValueError, match=r"'questions' holds questions: read it with load_questions"):
        load_pairs("questions")


def test_contradictions_warn_and_duplicates_do_not(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\nA  b,1\na b,0\na b,1\nc,1\nc,1\n")
    with pytest.warns(ContradictoryLabelsWarning, match=r"1 texts \(3 rows\) carry both labels.* for example 'A  b'"):
        load_dataset(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_dataset(path, label=None)


def test_pairs_and_questions_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the same text on both sides \(row 1\)"):
        load_pairs(written(tmp_path / "a.csv", "prompt,positive,negative\np,x,x\n"))
    for row, message in (
        ({"prompt": "p", "options": [" a"], "answer": 0}, r"q\.jsonl: 1 of 1 rows have fewer than two options"),
        ({"prompt": "p", "options": [" a", " a"], "answer": 0}, "have two equal options"),
        ({"prompt": "p", "options": [" a", " "], "answer": 0}, "have an empty option"),
        ({"prompt": "p", "options": [" a", 2], "answer": 0}, "have an option that is not text"),
        ({"prompt": "p", "options": " a", "answer": 0}, "have options that are no list .*CSV not"),
        (
            {"prompt": "p", "options": [" a", " b"], "answer": 2},
            "have an answer out of range .*index of the right option",
        ),
        ({"prompt": "p", "options": [" a", " b"], "answer": True}, "no whole number .*index of the right option"),
        ({"prompt": "p", "options": [" a", " b"], "answer": " a"}, "have an answer that is a text .*, not its text"),
        (
            {"prompt": "p", "options": [" a", " b"]},
            r"q\.jsonl has no column 'answer'.*A row of JSONL: \{\"prompt\": .*\"options\": .*\"answer\": 0, \"group\": ",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            load_questions(written(tmp_path / "q.jsonl", json.dumps(row)))
    row = {"prompt": "p", "options": [" a", " b"], "answer": 1, "topic": "t"}
    (question,) = load_questions(written(tmp_path / "q.jsonl", json.dumps(row)))
    assert question.options[question.answer] == " b"
    assert question.meta == {"topic": "t"}


def test_a_dataset_checks_its_examples() -> None:
    with pytest.raises(ValueError, match="no examples"):
        Dataset("d", ())
    with pytest.raises(ValueError, match=r"an empty text \(row 2\)"):
        Dataset("d", (Example("a"), Example(" ")))
    with pytest.raises(ValueError, match="not 0 or 1"):
        Dataset("d", (Example("a", 2),))
    with pytest.raises(ValueError, match=r"1 of 2 rows have no label \(row 2\)"):
        Dataset("d", (Example("a", 1), Example("b")))
    with pytest.raises(ValueError, match=r"1 of 2 rows have no group \(row 1\)"):
        Dataset("d", (Example("a"), Example("b", group="g")))


# ------------------------------------------------------------------------------------------------- the value, writing


def test_select_take_and_frame() -> None:
    data = Dataset("d", tuple(Example(f"t{i}", i % 2, f"g{i // 2}", meta={"n": i}) for i in range(6)), {"source": "s"})
    assert data.select(label=1, group=["g0", "g2"]).texts == ["t1", "t5"]
    assert data.select(n={3}).card == {"source": "s"}
    assert data.take(np.array([4, 0])).texts == ["t4", "t0"]
    frame = data.to_frame()
    assert list(frame) == ["text", "label", "group", "split", "n"]
    assert frame.n.tolist() == list(range(6))
    with pytest.raises(ValueError, match=r"no row is left with group='g9'; it holds 'g0', 'g1', 'g2'"):
        data.select(group="g9")
    with pytest.raises(ValueError, match="no row is left"):
        data.select(label=0, n=1)
    with pytest.raises(ValueError, match=r"no column 'grup'\. Did you mean 'group'"):
        data.select(grup="g0")
    with pytest.raises(ValueError, match="no row is left"):
        Dataset("d", (Example("a"),)).select(label=1)


def test_hash_follows_content_and_order() -> None:
    one, other = Example("a", 1, "g", meta={"x": 1, "y": 2}), Example("b", 0, "g")
    data = Dataset("d", (one, other))
    assert data.hash == Dataset("e", (one, other), {"source": "s"}).hash
    assert data.hash == Dataset("d", (Example("a", 1, "g", meta={"y": 2, "x": 1}), other)).hash
    changed = [(other, one), (one,), (Example("a", 0, "g", meta=one.meta), other), (Example("a", 1, "h"), other)]
    assert len({data.hash, *(Dataset("d", examples).hash for examples in changed)}) == 5


def test_conversations_count_and_nothing_else_changes() -> None:
    plain, chat = Example("a", 1), Example("", 1, messages=({"role": "user", "content": "a"},))
    # The hash from before there were conversations.
    assert Dataset("d", (plain,)).hash == hash_json([["a", 1, None, None, {}]])
    other = Example("", 1, messages=({"role": "user", "content": "b"},))
    assert len({Dataset("d", (example,)).hash for example in (plain, chat, other)}) == 3
    frame = Dataset("d", (chat, plain)).to_frame()
    assert list(frame) == ["text", "label", "group", "split", "messages"]
    assert frame.messages.tolist() == [[{"role": "user", "content": "a"}], None]
    assert "messages" not in Dataset("d", (plain,)).to_frame()
    with pytest.raises(ValueError, match=r"an empty text \(row 1\)"):
        Dataset("d", (Example("", messages=()),))
    with pytest.raises(ValueError, match=r"d\.csv cannot hold conversations: write \.jsonl or \.parquet"):
        write_dataset(Dataset("d", (chat,)), "d.csv")


odd_texts = st.text(min_size=1, max_size=20).filter(
    # No format holds lone surrogates, and an empty text is refused.
    lambda text: text.strip() and not any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)
)
odd_examples = st.lists(st.tuples(odd_texts, st.integers(0, 1), odd_texts, odd_texts), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows=odd_examples, kind=st.sampled_from(["csv", "tsv", "jsonl", "parquet"]))
def test_written_files_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list, kind: str) -> None:
    # A letter in front: CSV cannot tell the text "1" from the number.
    examples = tuple(Example(t, y, g, f"x{s}", {"note": f"x{m}"}) for (t, y, g, s), m in zip(rows, "abcde"))
    data = Dataset("d", examples)
    path = write_dataset(data, tmp_path_factory.mktemp("d") / f"d.{kind}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContradictoryLabelsWarning)
        read = load_dataset(path)
    assert read.examples == data.examples
    assert read.hash == data.hash


def test_writing_without_labels_and_to_other_endings(tmp_path: Path) -> None:
    data = Dataset("d", (Example("a", meta={"n": 1}), Example("b", meta={"n": None})))
    assert load_dataset(write_dataset(data, tmp_path / "d.jsonl")).examples == data.examples
    with pytest.raises(ValueError, match=r"cannot write d\.txt"):
        write_dataset(data, tmp_path / "d.txt")


def test_table_of_bundled_sets() -> None:
    frame = datasets()
    assert list(frame) == ["name", "kind", "rows", "groups", "source", "licence"]
    assert set(frame.kind) == {"statements", "pairs", "questions", "corpus", "paraphrases"}
    assert frame.name.is_unique


# ------------------------------------------------------------------------------------------------------------- splits

group_lists = st.lists(st.integers(0, 40), min_size=1, max_size=200)
fraction_lists = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(lambda parts: [p / sum(parts) for p in parts])


@settings(deadline=None)
@given(groups=group_lists, fractions=fraction_lists, seed=st.integers(0, 5))
def test_grouped_split_properties(groups: list[int], fractions: list[float], seed: int) -> None:
    sizes = Counter(groups)
    if len(sizes) < len(fractions):
        with pytest.raises(ValueError, match=rf"{len(sizes)} groups cannot make {len(fractions)} parts"):
            grouped_split(groups, fractions, seed)
        return
    parts = grouped_split(groups, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))  # every row once
    members = [{groups[row] for row in part} for part in parts]
    assert all(members)
    assert sum(map(len, members)) == len(sizes)  # no group twice
    assert all(np.array_equal(a, b) for a, b in zip(parts, grouped_split(groups, fractions, seed)))


@settings(deadline=None)
@given(groups=st.lists(st.integers(0, 60), min_size=60, max_size=300), seed=st.integers(0, 5))
def test_grouped_split_is_near_its_fractions(groups: list[int], seed: int) -> None:
    fractions = (0.6, 0.2, 0.2)
    sizes = Counter(groups)
    if len(sizes) < 10:
        return
    parts = grouped_split(groups, fractions, seed)
    for part, fraction in zip(parts, fractions):
        assert abs(len(part) - fraction * len(groups)) <= max(sizes.values())


def test_split_depends_on_the_seed_and_not_on_the_order_of_rows() -> None:
    groups = [f"g{i % 50}" for i in range(200)]
    order = np.random.default_rng(0).permutation(200)
    first = {groups[row] for row in grouped_split(groups, seed=1)[0]}
    assert first == {groups[order[row]] for row in grouped_split([groups[i] for i in order], seed=1)[0]}
    assert first != {groups[row] for row in grouped_split(groups, seed=2)[0]}
    assert first == {groups[row] for row in grouped_split(pd.Series(groups), seed=1)[0]}


def test_labels_are_kept_in_proportion() -> None:
    # Every group has one class, so that a split by size alone would leave the classes to chance.
    groups, labels = np.arange(100), np.repeat([0, 1], [80, 20])
    for part in grouped_split(groups, (0.5, 0.25, 0.25), labels=labels):
        assert labels[part].mean() == pytest.approx(0.2)
    with pytest.raises(ValueError, match="would lack a class"):
        grouped_split(groups, (0.5, 0.5), labels=[1] + [0] * 99)
    with pytest.raises(ValueError, match="3 labels for 4 rows"):
        grouped_split([1, 2, 3, 4], (0.5, 0.5), labels=[0, 1, 0])


def test_folds_cover_every_row_once() -> None:
    groups = [f"g{i // 2}" for i in range(100)]
    folds = grouped_folds(groups, n=5)
    assert [len(fold) for fold in folds] == [20] * 5
    assert sorted(np.concatenate(folds).tolist()) == list(range(100))
    with pytest.raises(ValueError, match="at least 2 folds"):
        grouped_folds(groups, n=1)


def test_bad_splits_are_refused() -> None:
    for fractions in ((0.5, 0.6), (1.0, 0.0), (), (1.2, -0.2)):
        with pytest.raises(ValueError, match="sum to 1"):
            grouped_split([1, 2, 3], fractions)
    for missing in (None, float("nan"), pd.NA):
        with pytest.raises(ValueError, match=r"1 of 3 rows have no group \(row 2\)"):
            grouped_split([1, missing, 3], (0.5, 0.5))
    with pytest.raises(ValueError, match="0 groups cannot make 2 parts"):
        grouped_split([], (0.5, 0.5))
