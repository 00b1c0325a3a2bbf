"""Completion pairs: where statements are cut, what goes with what, and how the cut meets the tokenizer."""

import logging

import pandas as pd
import pytest
import tokenizers
from tiny import byte_tokenizer
from tokenizers import decoders, models, pre_tokenizers

from interp.dataset import Dataset, Example, load_dataset
from interp.probe.completions import CompletionPair, completion_pairs, encoded
from interp.tokens import Tokenizer


def pair_of(true: str, false: str) -> CompletionPair:
    (pair,) = completion_pairs([Example(true, 1, "g"), Example(false, 0, "g")])
    return pair


@pytest.mark.parametrize(
    ("true", "false", "prompt", "ends", "close"),
    [
        ("Oslo is in Norway.", "Oslo is in Chile.", "Oslo is in", (" Norway", " Chile"), "."),
        ("Oslo is in Norway.", "Oslo is in Niger.", "Oslo is in", (" Norway", " Niger"), "."),  # not inside a word
        ('"a" means "skirt".', '"a" means "winter".', '"a" means "', ("skirt", "winter"), '".'),
        ("2 + 2 = 4", "2 + 2 = 5", "2 + 2 =", (" 4", " 5"), ""),
        ("It is 15.", "It is 16.", "It is", (" 15", " 16"), "."),
        ("It is big.", "It is big", None, None, None),  # the one continues the other
        ("One is less than two.", "One is more than two.", "One is", (" less than two", " more than two"), "."),
        ("Is it so?!", "Is it no?!", "Is it", (" so", " no"), "?!"),
    ],
)
def test_the_cut(true: str, false: str, prompt: str | None, ends: tuple[str, str] | None, close: str | None) -> None:
    if prompt is None:
        with pytest.raises(ValueError, match="none of the 2 affirmative rows pair"):
            pair_of(true, false)
        return
    pair = pair_of(true, false)
    assert (pair.prompt, (pair.true, pair.false), pair.end) == (prompt, ends, close)
    assert (pair.statement(True), pair.statement(False)) == (true, false)


def test_rows_go_with_those_of_their_entity(caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        ("Oslo is in Norway.", 1, "g", "Oslo", "affirmative"),
        ("Lima is in Norway.", 0, "g", "Lima", "affirmative"),
        ("Oslo is not in Norway.", 0, "g", "Oslo", "negated"),
        ("Lima is in Peru.", 1, "g", "Lima", "affirmative"),
        ("Oslo is in Peru.", 0, "g", "Oslo", "affirmative"),
        ("Rome is in Italy.", 1, "h", "Rome", "affirmative"),
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["text", "label", "group", "entity", "polarity"]))
    with caplog.at_level(logging.INFO, logger="interp"):
        pairs = completion_pairs(frame)
    assert [(p.prompt, p.true, p.false) for p in pairs] == [
        ("Oslo is in", " Norway", " Peru"),
        ("Lima is in", " Peru", " Norway"),
    ]
    assert "4 of 6 rows make 2 completion pairs" in caplog.text
    # Without the column the longest common beginning finds the same.
    assert completion_pairs(frame.drop(columns="entity")) == pairs


def test_bundled_statements_pair_whole() -> None:
    data = load_dataset("capitals")
    pairs = completion_pairs(data)
    affirmative = data.select(polarity="affirmative")
    assert 2 * len(pairs) == len(affirmative)
    assert {pair.statement(truth) for pair in pairs for truth in (True, False)} == set(affirmative.texts)
    assert {pair.topic for pair in pairs} == {"capitals"}


def test_a_draw_takes_the_topics_in_turn() -> None:
    examples = [
        Example(f"{topic} {i} is {word}", label, f"{topic} {i}", meta={"topic": topic})
        for topic, n in (("many", 40), ("few", 4))
        for i in range(n)
        for word, label in (("so", 1), ("no", 0))
    ]
    data = Dataset("toy", tuple(examples))
    drawn = completion_pairs(data, max_pairs=10, seed=1)
    assert [pair.topic for pair in drawn].count("few") == 4
    assert drawn == completion_pairs(data, max_pairs=10, seed=1)
    assert drawn != completion_pairs(data, max_pairs=10, seed=2)
    assert len(completion_pairs(data, max_pairs=1000)) == 44


def test_refused() -> None:
    unlabelled = pd.DataFrame({"text": ["a b"], "label": [None], "group": ["g"]})
    with pytest.raises(ValueError, match="without label"):
        completion_pairs(unlabelled)
    with pytest.raises(ValueError, match="without group"):
        completion_pairs([Example("a b", 1)])
    with pytest.raises(ValueError, match="labels must be 1 and 0"):
        completion_pairs(pd.DataFrame({"text": ["a b"], "label": [2], "group": ["g"]}))
    with pytest.raises(ValueError, match="no row is affirmative"):
        completion_pairs(pd.DataFrame({"text": ["a b"], "label": [1], "group": ["g"], "polarity": ["negated"]}))
    with pytest.raises(ValueError, match="max_pairs"):
        completion_pairs(load_dataset("capitals"), max_pairs=0)
    with pytest.raises(ValueError, match="text in them"):
        CompletionPair("", " a", " b")
    with pytest.raises(ValueError, match="the same"):
        CompletionPair("x", " a", " a")


def test_tokens_of_a_completion_begin_where_all_agree() -> None:
    sequences, start = encoded(byte_tokenizer(), "x is", (" a", " bc"))
    assert start == 4
    assert [byte_tokenizer().decode(ids) for ids in sequences] == ["x is a", "x is bc"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)} | {"ab": 256}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    merging = Tokenizer(backend, name="merging")
    sequences, start = encoded(merging, "xa", ("b", "c"))
    assert start == 1  # "ab" is one token: both are scored from after the x
    assert [len(ids) for ids in sequences] == [2, 3]
    with pytest.raises(ValueError, match="share no token"):
        encoded(merging, "a", ("b", "c"))
    with pytest.raises(ValueError, match="adds no token"):
        encoded(merging, "xa", ("", "c"))
