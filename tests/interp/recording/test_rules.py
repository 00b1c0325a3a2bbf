"""Which tokens a rule keeps, against positions counted by hand."""

import re

import numpy as np
import pytest
from tiny import byte_tokenizer

from interp.recording.rules import TokenizedText, parse_rules, rows_of, rules_of_card
from interp.tokens import Tokenizer

PAD = 257


def tokenized(text, *, ids=None, tokenizer=None, **more):
    tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
    ids = tokenizer.encode(text) if ids is None else ids
    return TokenizedText(np.array(ids, dtype=np.int32), 7, tokenizer, text, **more)


def kept(rule, text):
    rows = rows_of(parse_rules(rule), text)
    return rows.positions.tolist(), [average.tolist() for average in rows.averages]


def is_vowel(view):
    return view.text in "aeiou"


def last(view):
    return view.pos == 0


# Parsing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("all", ["all"]),
        ("text", ["all"]),
        ("all:answer", ["answer"]),
        ("last:text", ["last"]),
        ("mean:answer", ["mean:answer"]),
        ("subject", ["subject"]),
        ([0, -1], ["positions[0,-1]"]),
        (np.array([2, 2, 3]), ["positions[2,3]"]),
        (range(2), ["positions[0,1]"]),
        (is_vowel, ["is_vowel"]),
        (["last", "mean", [1], is_vowel], ["last", "mean", "positions[1]", "is_vowel"]),
        (("first", "user"), ["first", "user"]),
    ],
)
def test_rules_have_one_name_each(given, names):
    rules = parse_rules(given)
    assert rules.names == names
    assert rules.card == (names[0] if len(names) == 1 else names)
    assert rules.several == (len(names) > 1)
    assert parse_rules(rules) is rules


def test_rules_are_read_back_from_what_the_card_names():
    for given in ("all", "mean:answer", [0, -1], ["last", [3], "first:user", [-2, 5]]):
        rules = parse_rules(given)
        assert rules_of_card(rules.card) == rules
    assert rules_of_card(parse_rules(is_vowel).card).spans == ["is_vowel"]  # of a function the name alone is left


def test_what_rules_need():
    rules = parse_rules(["last", "mean:answer", "generated"])
    assert (rules.averages, rules.needs_generation, rules.spans) == (True, True, ["answer", "generated"])
    rules = parse_rules("all")
    assert (rules.averages, rules.needs_generation, rules.spans) == (False, False, [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("men:answer", "'men' is unknown, there is 'all', 'last', 'first', 'mean'; did you mean 'mean'?"),
        ("last:", "'last:' is no rule"),
        ("last:mean", "'last:mean' is no rule"),
        ("", "is no rule"),
        ("last:a:b", "is no rule"),
        ([], "tokens= is empty"),
        (3, "tokens=3 is no rule"),
        (None, "tokens=None is no rule"),
        ({"last": 1}, "is no rule"),
        (["last", 3], "positions are a list, [3]"),
        ([True, False], "True is no token rule"),
        (["last", 0.5], "0.5 is no token rule"),
        (["last", "last:text"], "two rules that are called 'last': leave one out"),
        ([lambda view: True, lambda view: False], "give functions names of their own"),
        (last, "a function called 'last', which is the name of a rule: give it another one"),
    ],
)
def test_what_is_no_rule_is_refused(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_rules(given)


# Rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "positions", "averages"),
    [
        ("all", [0, 1, 2, 3, 4], []),
        ("last", [4], []),
        ("first", [0], []),
        ("mean", [], [[1, 2, 3, 4]]),
        ("answer", [1, 2, 4], []),
        ("first:answer", [1], []),
        ("last:answer", [4], []),
        ("mean:answer", [], [[1, 2, 4]]),
        ("user", [], []),
        ("last:user", [], []),
        ([-1, 0, 4], [0, 4], []),
        (is_vowel, [0, 4], []),
    ],
)
def test_each_rule_keeps_its_tokens(rule, positions, averages):
    text = tokenized("abcde", spans={"answer": [(1, 3), (4, 5)], "user": []})
    assert kept(rule, text) == (positions, averages)


def test_several_rules_keep_a_token_once_and_say_whose_it_is():
    rules = parse_rules(["last", "mean", "answer", "mean:answer", [1, -1]])
    rows = rows_of(rules, tokenized("abcde", spans={"answer": [(1, 3)]}))
    assert rows.positions.tolist() == [1, 2, 4]
    assert [average.tolist() for average in rows.averages] == [[1, 2, 3, 4], [1, 2]]
    assert dict(zip(rules.names, (flag.tolist() for flag in rows.flags))) == {
        "last": [False, False, True, False, False],
        "mean": [False, False, False, True, False],
        "answer": [True, True, False, False, False],
        "mean:answer": [False, False, False, False, True],
        "positions[1,-1]": [True, False, True, False, False],
    }
    assert len(rows) == 5


def test_one_rule_owns_every_row():
    for rule in ("all", "mean", is_vowel):
        assert all(flag.all() for flag in rows_of(parse_rules(rule), tokenized("abcde")).flags)


def test_means_leave_out_special_and_first_tokens():
    text = tokenized("abc", ids=[97, PAD, 98, 99, PAD])
    assert kept("mean", text) == ([], [[2, 3]])
    with pytest.raises(ValueError, match=r"text 7 has no token for tokens='mean' \('a'\).* pass bos=True"):
        kept("mean", tokenized("a"))
    with pytest.raises(ValueError, match=r"tokens='mean:answer'.*nothing is left"):
        kept("mean:answer", tokenized("abc", spans={"answer": [(0, 1)]}))


def test_pieces_that_overlap_give_their_own_tokens():
    text = tokenized("abcde", own_from=3, cut=True)
    assert kept("all", text) == ([3, 4], [])
    assert kept("first", text) == ([3], [])
    assert kept("mean", text) == ([], [[3, 4]])
    assert kept(is_vowel, text) == ([4], [])
    with pytest.raises(ValueError, match="pass a stride below max_length"):
        kept("mean", tokenized("a", cut=True))


def test_positions_outside_the_text_name_it():
    with pytest.raises(ValueError, match=r"text 7 has 3 tokens, so there is no position 3 in it \('abc'\)"):
        kept([0, 3], tokenized("abc"))
    with pytest.raises(ValueError, match="no position -4"):
        kept([-4], tokenized("abc"))


def test_spans_that_nobody_marked_name_the_text():
    with pytest.raises(ValueError, match=r"did you mean 'last'\?"):
        kept("lst", tokenized("abc"))
    with pytest.raises(ValueError, match=r"the answer of text 7: .*'answer_span': \(start, end\)"):
        kept("last:answer", tokenized("abc"))
    with pytest.raises(ValueError, match="the user of text 7: pass examples with messages"):
        kept("user", tokenized("abc"))


def test_functions_see_the_tokens_as_a_person_does():
    backend = byte_tokenizer().backend
    tokenizer = Tokenizer(backend, bos_id=256, eos_id=256, pad_id=257, add_bos=True, name="bytes with BOS")
    seen = []
    assert kept(
        lambda view: seen.append((view.pos, view.text)) or view.kind == "space", tokenized("a é", tokenizer=tokenizer)
    )
    assert seen == [(0, ""), (1, "a"), (2, " "), (3, "é"), (4, "")]
    text = tokenized("<|end|>a", tokenizer=tokenizer)
    assert [view.text for view in text.views()] == ["<|end|>", "a"]
    assert text.views() is text.views()


def test_a_function_that_fails_names_the_text():
    def fails(view):
        return {0: True}[view.pos]

    with pytest.raises(
        ValueError, match=r"function 'fails' of tokens= failed on text 7 \('ab'\): KeyError: 1"
    ) as found:
        kept(fails, tokenized("ab"))
    assert isinstance(found.value.__cause__, KeyError)
    with pytest.raises(ValueError, match=r"failed on text 7 .*ambiguous"):
        kept(lambda view: np.ones(2), tokenized("ab"))


def test_the_most_rows_of_a_prompt_that_grows():
    spans = {"answer": [(1, 3)], "generated": [(4, -1)], "prompt": [(0, 4)]}
    expected = {"all": 10, "last": 1, "mean": 1, "answer": 2, "generated": 6, "prompt": 4, "mean:generated": 1}
    assert {name: parse_rules(name).most_rows(4, 6, spans) for name in expected} == expected
    assert parse_rules([[0, 5, -1]]).most_rows(4, 6, spans) == 3
    assert parse_rules(["all", "generated", "mean"]).most_rows(4, 6, spans) == 11
    assert parse_rules(is_vowel).most_rows(4, 6, spans) == 10
