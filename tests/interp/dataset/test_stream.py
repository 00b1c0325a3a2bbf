"""Items of every kind become examples one at a time, or are refused with their number and what to do."""

import datetime
import itertools
import logging
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.dataset import Dataset, Example, iter_examples, load_corpus, load_dataset

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]


def read(data, **options) -> list[Example]:
    return list(iter_examples(data, **options))


def unchecked(**fields) -> Example:
    """An example as a caller without a type checker makes it."""
    example = Example("a")
    for name, value in fields.items():
        object.__setattr__(example, name, value)
    return example


# ---------------------------------------------------------------------------------------------------- what is accepted


def test_texts_examples_and_datasets():
    assert read("one text") == [Example("one text")]
    assert read(["a", Example("b", 1)]) == [Example("a"), Example("b", 1)]
    assert read(iter(("a", np.str_("b")))) == [Example("a"), Example("b")]
    assert read(np.array(["a", "b"])) == read(pd.Series(["a", "b"], index=[5, 5])) == [Example("a"), Example("b")]
    examples = (Example("a", 1, "g", "train", {"n": 3}), Example("b", 0, "h"))
    assert read(Dataset("d", examples)) == list(examples)
    assert read(examples[0]) == [examples[0]]
    assert read([" "]) == [Example(" ")]  # blank in code is meant; in a table it is a hole


def test_rows_give_their_columns():
    rows = [{"text": "a", "label": True, "group": 3, "split": "train", "n": 2}, {"text": 5, "label": None, "n": np.nan}]
    assert read(rows) == [Example("a", 1, "3", "train", {"n": 2}), Example("5", meta={"n": None})]
    assert read(pd.DataFrame([rows[0]], index=[7])) == [Example("a", 1, "3", "train", {"n": 2})]
    assert read([{"statement": "a", "city": "X"}], group="city") == [Example("a", group="X")]
    assert read([{"q": "a", "y": 7}], text="q", label="y") == [Example("a", 7)]
    assert read([{"q": "a", "y": "pos"}], text="q", label=None) == [Example("a", meta={"y": "pos"})]


def test_a_column_named_as_a_field_is_kept_under_another_name():
    row = {"text": "t", "label": "pos", "group": "g", "topic": "x", "statement": "s"}
    meta = {"text_column": "t", "label_column": "pos", "group_column": "g"}
    assert read([row], text="statement", label=None, group="topic") == [Example("s", group="x", meta=meta)]
    with pytest.raises(ValueError, match="columns 'label' and 'label_column': rename one"):
        read([{"text": "a", "label": 1, "label_column": 2}], label=None)


def test_fields_of_examples_are_read_as_those_of_rows():
    given = unchecked(label=np.int64(1), group=5, split=np.int64(2), meta={3: "x"})
    assert read([given]) == read([{"text": "a", "label": 1, "group": 5, "split": 2, 3: "x"}])
    assert read([given]) == [Example("a", 1, "5", "2", {"3": "x"})]


def test_values_that_are_kept_as_they_are_or_as_they_are_written():
    day, span, moment = datetime.date(2020, 1, 2), (1, 3), np.datetime64("2020-01-02")
    row = {"text": "a", "day": day, "moment": moment, "price": Decimal("1.50"), "answer_span": span, "deep": {"a": [1]}}
    meta = {"day": "2020-01-02", "moment": "2020-01-02", "price": "1.50", "answer_span": [1, 3], "deep": {"a": [1]}}
    assert read([row]) == [Example("a", meta=meta)]


def test_frames_of_several_pieces_keep_their_order_and_types():
    frame = pd.DataFrame({"text": [f"t{i}" for i in range(700)], "n": range(700), "label": [1.0] * 699 + [None]})
    examples = read(frame)
    assert [e.text for e in examples] == frame.text.tolist()
    assert [e.meta["n"] for e in examples] == list(range(700))
    assert {type(e.meta["n"]) for e in examples} == {int}
    assert [e.label for e in examples] == [1] * 699 + [None]


@given(st.integers())
def test_whole_numbers_of_any_size_are_labels_in_every_spelling(number: int):
    for value in (number, str(number), f" {number}.0 "):
        assert read([{"text": "a", "label": value}])[0].label == number


@pytest.mark.parametrize(
    ("value", "label"),
    [(True, 1), (np.bool_(False), 0), (np.int8(-1), -1), (2.0, 2), ("TRUE", 1), ("no", 0), ("yes", 1), ("False", 0)]
    + [(missing, None) for missing in (None, "", " nan", "None", "null", float("nan"), pd.NA)],
)
def test_spellings_of_labels(value, label):
    found = read([{"text": "a", "label": value}])[0].label
    assert found == label
    assert type(found) is type(label)


def test_conversations():
    tuples = tuple(CHAT)
    assert read([CHAT, "a"]) == [Example("", messages=tuples), Example("a")]
    assert read([{"messages": CHAT, "label": 1, "id": 4}]) == [Example("", 1, meta={"id": 4}, messages=tuples)]
    assert read([{"turns": CHAT}], text="turns") == [Example("", messages=tuples)]
    assert read([Example("", 1, messages=tuples)]) == [Example("", 1, messages=tuples)]
    # A text column is the text; then the messages are a column like any other.
    assert read([{"text": "a", "messages": CHAT}]) == [Example("a", meta={"messages": CHAT})]
    # Tables give every message the keys of all of them.
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    assert read([[CHAT[0] | {"name": None}, call | {"content": None}]])[0].messages == (CHAT[0], call)


def test_laziness_and_limit():
    numbers = itertools.count()
    endless = (f"text {next(numbers)}" for _ in itertools.repeat(None))
    assert [e.text for e in iter_examples(endless, limit=3)] == ["text 0", "text 1", "text 2"]
    assert next(numbers) == 3  # nothing beyond the limit was drawn
    assert len(read(["a", "b"], limit=5)) == 2
    stream = iter_examples(["a", 3])
    assert next(stream) == Example("a")
    with pytest.raises(ValueError, match="item 1 is a int"):
        next(stream)


def test_bundled_sets_by_name(caplog):
    with caplog.at_level(logging.INFO, "interp"):
        assert read("cities") == list(load_dataset("cities"))
    assert "bundled data set of that name; pass ['cities'] for the text itself" in caplog.text
    assert read("python_docs", limit=20) == list(load_corpus("python_docs"))[:20]
    assert read(["cities"]) == [Example("cities")]
    assert read("citys") == [Example("citys")]
    assert "'citys' is taken as a text; a bundled data set is called 'cities'" in caplog.text


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "there is nothing to record: the data has no text"),
        (pd.DataFrame({"text": []}), {}, "the data has no text"),
        (["a", ""], {}, "text 1 is empty: drop it"),
        ([Example("a"), Example("")], {}, "text 1 is empty"),
        (["a", 3], {}, "item 1 is a int: pass texts, Examples, rows"),
        (["a", ["b"]], {}, "item 1 is a list: pass texts"),
        (["a", ("b", 1)], {}, "item 1 is a tuple"),
        (5, {}, "cannot record int: pass a text, an iterable of texts"),
        (None, {}, "cannot record NoneType"),
        (b"abc", {}, "cannot record bytes"),
        ([b"abc"], {}, "item 0 is a bytes"),
        ({"text": "a"}, {}, r"cannot record dict: one row goes into a list, \[row\]: pass"),
        ({}, {}, "cannot record dict"),
        ({"a", "b"}, {}, r"cannot record set, which has no order: pass sorted\(...\)"),
        ("", {}, "text 0 is empty"),
        ([{"text": "a"}, {"text": " "}], {}, "text 1 is empty, the column 'text' holds ' ': fill the row or drop it"),
        ([{"text": None}], {}, "text 0 is empty, the column 'text' holds None"),
        ([{"text": 1.5}], {}, "text 0 is a float, the column 'text' is not text: write it as text"),
        ([{"text": b"a"}], {}, "text 0 is a bytes"),
        ([{"txt": "a"}], {}, "text 0 has no column 'text'. Did you mean 'txt'"),
        ([{"text": "a"}, {"label": 1}], {}, "text 1 has no column 'text'. There are: label"),
        ([{"text": "a"}], {"label": "truth"}, "text 0 has no column 'truth'. There are: text"),
        ([{"text": "a", "city": 1}], {"group": "citty"}, "no column 'citty'. Did you mean 'city'"),
        ([{"text": "a", "label": "pos"}], {}, r"'pos' in its column 'label': labels are whole .* or pass label=None"),
        ([{"text": "a", "label": 0.5}], {}, "text 0 has 0.5 in its column 'label'"),
        ([{"text": "a", "label": [1]}], {}, r"text 0 has \[1\] in its column 'label'"),
        ([{"text": "a", "group": 0.5}], {}, "text 0 has 0.5 in its column 'group', which is not text"),
        ([{"text": "a", "split": ["x"]}], {}, "column 'split', which is not text"),
        (CHAT, {}, r"text 0 is a message, not a conversation: a conversation is a list of messages, \[\[...\]\]"),
        ([CHAT, []], {}, "text 1 is a conversation without messages"),
        ([[{"from": "human", "value": "Hi"}]], {}, "text 0: message 0 is {'from'.*a message is"),
        ([[CHAT[0], {"role": "user"}]], {}, "text 0: the content of message 1 is None: pass text"),
        ([[{"role": "user", "content": [{"type": "image"}]}]], {}, "the content of message 0 is .*pass text"),
        ([{"messages": ["Hi"]}], {}, "text 0: message 0 is 'Hi'"),
        (["a"], {"limit": 0}, "limit is the most texts to read, at least 1, or None for all; got 0"),
        (["a"], {"limit": -1}, "got -1"),
        (["a"], {"limit": True}, "got True"),
        (["a"], {"limit": 1.5}, "got 1.5"),
        (
            [{"text": "a", "x": object()}],
            {},
            "text 0 has a object in its column 'x', which is neither text nor a number",
        ),
        ([{"text": "a", "x": b"a"}], {}, "text 0 has a bytes in its column 'x'"),
        ([{"text": "a", "x": {1, 2}}], {}, "text 0 has a set in its column 'x'"),
        ([{"text": "a", 1: 2, "1": 3}], {}, "text 0 has two columns that are written '1': rename one"),
        (
            pd.DataFrame([["a", "b"]], columns=["text", "text"]),
            {},
            "2 of its columns are called 'text': rename or drop",
        ),
        (pd.DataFrame([["a", 1, 2]], columns=["text", 1, "1"]), {}, "2 of its columns are called '1'"),
        (["a"], {"label": "foo"}, "text 0 has no columns, so label='foo' names nothing: leave it out, or pass rows"),
        ([Example("a")], {"text": "t", "group": "g"}, "text 0 has no columns, so text='t', group='g' names nothing"),
        ([{"text": "a", "y": 1}, CHAT], {"label": "y"}, "text 1 has no columns, so label='y'"),
        ("a text", {"group": "g"}, "text 0 has no columns, so group='g'"),
        ([unchecked(meta=[1])], {}, r"text 0: its meta is \[1\]: pass a dict"),
        ([unchecked(meta={1: 2, "1": 3})], {}, "text 0 has two columns that are written '1'"),
        ([unchecked(group=0.5)], {}, "text 0 has 0.5 in its column 'group', which is not text"),
        ("sentiment", {}, r"'sentiment' is a bundled set of pairs, read with load_pairs.*\['sentiment'\]"),
    ],
)
def test_bad_input_is_refused(data, options, message):
    with pytest.raises(ValueError, match=message):
        read(data, **options)


def test_a_wrong_source_is_refused_before_the_first_text():
    for data, options in ((5, {}), ({"a": 1}, {}), ("none.csv", {}), (["a"], {"limit": 0})):
        with pytest.raises(ValueError):
            iter_examples(data, **options)
