"""The plan of a recording: texts, rows and hashes against answers counted by hand, whatever is read at a time."""

import gc
import logging
import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from tiny import byte_tokenizer

from interp.dataset import ContradictoryLabelsWarning, Example
from interp.recording import plan as plan_module
from interp.recording.plan import make_plan
from interp.recording.rules import parse_rules
from interp.recording.texts import generated_texts
from interp.tokens import Tokenizer

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXTS = [f"text {number} " + "ab" * (number % 5) for number in range(23)]


def tokenizer(**options):
    backend = byte_tokenizer().backend
    return Tokenizer(backend, eos_id=256, pad_id=257, special_ids=[256, 257], name="bytes", **options)


def planned(data, tokens="all", *, bos=None, long=None, stride=None, max_length=128, generate=None, **options):
    examples = [Example(item) if isinstance(item, str) else item for item in data]
    return make_plan(
        examples,
        tokenizer(**options),
        parse_rules(tokens),
        bos=bos,
        long=long,
        stride=stride,
        max_length=max_length,
        generate=generate,
    )


def whole(plan):
    return plan.shard(0, plan.n_texts)


def kept(plan):
    """The text of each row, a list for each text."""
    texts, found = whole(plan), [[] for _ in range(plan.n_texts)]
    for row in range(texts.n_rows):
        ids = texts.ids[texts.member[texts.member_row == row]].tolist()
        found[texts.row_text[row]].append(byte_tokenizer().decode(ids))
    return found


# Texts and rows -----------------------------------------------------------------------------------------------------


def test_a_shard_holds_its_texts_and_rows(monkeypatch):
    monkeypatch.setattr(plan_module, "READ_EXAMPLES", 4)
    plan = planned(TEXTS, ["all", "mean"], long="error")
    ids = [byte_tokenizer().encode(text) for text in TEXTS]
    assert (plan.n_texts, plan.n_inputs, plan.n_tokens) == (23, 23, sum(map(len, ids)))
    assert plan.lengths.tolist() == [len(each) for each in ids]
    assert plan.rows_per_text.tolist() == [len(each) + 1 for each in ids]
    for first, last in ((0, 23), (3, 4), (2, 11), (22, 23)):
        texts = plan.shard(first, last)
        assert (texts.first, len(texts)) == (first, last - first)
        assert texts.examples.column("text_index").to_pylist() == list(range(first, last))
        assert texts.examples.column("text").to_pylist() == TEXTS[first:last]
        assert texts.examples.column("token_ids").to_pylist() == ids[first:last]
        assert texts.examples.column_names == ["text_index", "text", "label", "group", "split", "token_ids"]
        assert texts.ids.tolist() == [i for each in ids[first:last] for i in each]
        assert [texts.tokens_of(at).tolist() for at in range(len(texts))] == ids[first:last]
        rows = [[*range(len(each)), -1] for each in ids[first:last]]
        assert texts.row_position.tolist() == [position for each in rows for position in each]
        assert texts.row_text.tolist() == [at for at, each in enumerate(rows) for _ in each]
        averaged = texts.averaged()
        assert averaged.to_pylist() == [None if at >= 0 else list(range(1, len(r) - 1)) for r in rows for at in r]
        assert averaged.type == pa.list_(pa.int32())
        assert texts.rules["mean"].tolist() == (texts.row_position == -1).tolist()
        assert texts.rules["all"].tolist() == (texts.row_position >= 0).tolist()
        single = texts.member[np.searchsorted(texts.member_row, np.flatnonzero(texts.row_position >= 0))]
        assert texts.ids[single].tolist() == texts.ids.tolist()
        assert texts.prompt_lens is None


@pytest.mark.parametrize("tokens", ["all", "mean", ["last", "first", "mean", [0, -1]]])
def test_how_much_is_read_at_a_time_makes_no_difference(monkeypatch, tokens):
    examples = [Example(text, n % 2, meta={"n": n if n < 20 else n + 0.5}) for n, text in enumerate(TEXTS)]
    plans = []
    for size in (1, 5, 2000):
        monkeypatch.setattr(plan_module, "READ_EXAMPLES", size)
        plans.append(planned(examples, tokens, long="chunk", stride=3, max_length=5))
    first, *others = plans
    for other in others:
        assert other.hashes() == first.hashes()
        a, b = whole(first), whole(other)
        assert a.examples.equals(b.examples)
        for name in ("ids", "offsets", "row_text", "row_position", "member", "member_row"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert all(np.array_equal(a.rules[name], b.rules[name]) for name in a.rules)


def test_spans_of_characters_become_tokens():
    text = "Capital of Übersee: São Tomé."
    start = text.index("São")
    for meta, expected in (
        ({"answer_span": (start, start + 3)}, "São"),
        ({"answer_span": np.array([start, start + 3])}, "São"),
        ({"answer_start": start}, "São Tomé."),
    ):
        for options in ({}, {"bos_id": 256, "add_bos": True}, {"closing_id": 257}):
            texts = whole(planned([Example(text, meta=meta)], "answer", **options))
            assert byte_tokenizer().decode(texts.ids[texts.member].tolist()) == expected
    plan = planned([Example("the cat sat", meta={"subject_span": (4, 7)})], ["last:subject", "subject", "mean:subject"])
    assert kept(plan) == [["c", "a", "t", "cat"]]


def test_tokens_around_the_text():
    plan = planned(["ab", "<|end|>c"], bos_id=256, add_bos=True, closing_id=257)
    decoded = [byte_tokenizer().decode(ids) for ids in whole(plan).examples.column("token_ids").to_pylist()]
    assert decoded == ["<|end|>ab<|pad|>", "<|end|>c<|pad|>"]
    assert planned(["ab"], bos=False, bos_id=256, add_bos=True).n_tokens == 2
    with pytest.raises(ValueError, match="no BOS token"):
        planned(["ab"], bos=True)


def test_a_shard_holds_on_to_nothing_else():
    plan = planned([f"text {number} " + "ab" * 50 for number in range(500)], ["last", "mean"])
    assert len(pickle.dumps(plan.shard(100, 105))) < 20_000  # as it is sent to a worker


# Long texts ---------------------------------------------------------------------------------------------------------


def test_pieces_that_do_not_overlap(caplog):
    with caplog.at_level(logging.INFO, "interp"):
        plan = planned(["abcdefgh", "xyz", "abcdef"], max_length=3)
    assert "2 of 3 texts have over 3 tokens: long='chunk', 6 texts in all" in caplog.text
    examples = whole(plan).examples
    assert examples.column_names[-4:] == ["document", "chunk", "start", "token_ids"]
    assert examples.column("text").to_pylist() == ["abc", "def", "gh", "xyz", "abc", "def"]
    assert examples.column("document").to_pylist() == [0, 0, 0, 1, 2, 2]
    assert examples.column("chunk").to_pylist() == [0, 1, 2, 0, 0, 1]
    assert examples.column("start").to_pylist() == [0, 3, 6, 0, 0, 3]
    assert (plan.n_texts, plan.n_inputs, plan.n_long, plan.long, plan.n_rows) == (6, 3, 2, "chunk", 17)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("bos", [False, True])
def test_pieces_that_overlap_keep_each_token_once(stride, bos):
    options = {"bos_id": 256, "add_bos": True} if bos else {}
    document = "abcdefghijk"
    plan = planned([document], long="chunk", stride=stride, max_length=4 + bos, **options)
    texts = whole(plan)
    starts = texts.examples.column("start").to_pylist()
    assert texts.examples.column("text").to_pylist() == [document[start : start + 4] for start in starts]
    assert [start for start in starts if start % stride] == []
    assert starts[-1] + 4 >= len(document) > starts[-2] + 4
    rows = kept(plan)
    head = ["<|end|>"] if bos else []
    assert rows[0] == [*head, *document[:4]]
    if stride == 4:
        rows = [each[len(head) :] for each in rows[1:]]  # pieces of their own, with a BOS of their own
        assert rows == [list(document[4:8]), list(document[8:])]
    else:
        assert [token for each in rows[1:] for token in each] == list(document[4:])
        assert max(map(len, rows[1:])) <= stride


def test_cut_texts():
    plan = planned([Example("abcdefgh", 1), Example("ab", 0)], long="truncate", max_length=3)
    examples = whole(plan).examples
    assert examples.column("text").to_pylist() == ["abc", "ab"]
    assert "chunk" not in examples.column_names
    marked = Example("abcdefgh", meta={"answer_span": (0, 2)})
    assert kept(planned([marked], "answer", long="truncate", max_length=3)) == [["a", "b"]]


def test_cut_texts_are_named(caplog):
    data = ["abcd", *("abc" if n % 2 else "abcdef" for n in range(12))]
    planned(data, long="truncate", max_length=3)
    assert (
        "7 of 13 texts have over 3 tokens and are cut to them (long='truncate'): text 0, 1, 3, 5, 7 ...;" in caplog.text
    )
    assert [record.levelname for record in caplog.records if "cut to" in record.message] == ["WARNING"]
    caplog.clear()
    planned(["ab", "abcd"], long="truncate", max_length=3)
    assert "text 1; what is cut off" in caplog.text


def test_a_place_may_be_written_as_columns_with_gaps_write_it():
    for start in (1, 1.0, "1", np.float64(1)):
        assert kept(planned([Example("abc", meta={"answer_start": start})], "answer")) == [["b", "c"]]


def test_dicts_that_have_keys_somewhere_are_kept():
    data = [Example("a", meta={"x": {}}), Example("b", meta={"x": {"k": 1}})]
    assert whole(planned(data)).examples.column("x").to_pylist() == [{"k": None}, {"k": 1}]


def test_labels_decide_what_becomes_of_long_texts(monkeypatch):
    assert planned(["a" * 300]).n_texts == 3
    assert planned([Example("a" * 300, 1)], long="chunk").n_texts == 3
    assert planned([Example("a" * 300, 1)], stride=128).long == "chunk"
    assert planned([Example("ab", 1)]).long == "error"
    monkeypatch.setattr(plan_module, "READ_EXAMPLES", 1)
    with pytest.raises(ValueError, match="text 0 has 300 tokens"):  # known to be wrong when the label comes
        planned([Example("a" * 300), Example("b", 1)])


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "the data has no text"),
        (["a", ""], {}, "text 1 is empty"),
        (["a", "b\ud800"], {}, "text 1 cannot be tokenised"),
        ([Example("a", meta={"text": 1})], {}, "a column 'text'"),
        ([Example("a", meta={"token_ids": 1})], {}, "a column 'token_ids'"),
        ([Example("a", meta={"start": 1})], {}, "a column 'start'"),
        ([Example("a", meta={"prompt": 1})], {"generate": 2}, "a column 'prompt'"),
        (
            [Example("a", meta={"x": 1}), Example("b", meta={"x": "1"})],
            {},
            "column 'x' does not fit a table .* one type",
        ),
        ([Example("a", meta={"x": 2**70})], {}, "'x' holds a whole number of over 64 bits.*: write it as text"),
        ([Example("a", label=2**63)], {}, "'label' holds a whole number of over 64 bits"),
        ([Example("a", meta={"x": "b\ud800"})], {}, "'x' holds a lone surrogate"),
        ([Example("a", meta={"b\ud800": 1})], {}, "whose name holds a lone surrogate"),
        ([Example("a", meta={"x": {}})], {}, "'x' holds dicts that have no key in any example"),
        ([Example("a", meta={"x": [{"a": {}}]})], {}, "'x' holds dicts that have no key"),
        ([Example("a", meta={"x": object()})], {}, r"'x' holds <object .* \(object\).* or leave the column out"),
        ([Example("a", meta={"x": {5: 1}})], {}, r"'x' holds \{5: 1\} .*dicts with text as keys"),
        ([Example("a", meta={"x": {"a", "b"}})], {}, "'x' holds a set, which has no order"),
        (
            [Example("a", meta={"x": 1}), Example("b", meta={"x": "1"}), Example("c", meta={"x": 2**70})],
            {},
            "column 'x' ",
        ),
        ([Example("a", meta={"x": 2**60 + 1}), Example("b", meta={"x": 0.5})], {}, "column 'x' does not fit a table"),
        (["a"], {"tokens": "lst"}, "did you mean 'last'"),
        (["a"], {"tokens": "generated"}, "pass generate="),
        (["ab"], {"tokens": lambda view: False}, "keeps no token of any text"),
        (["a"], {"long": "cut"}, "long='cut' is unknown"),
        (["a"], {"stride": 0}, "stride=0 must be 1 to 128"),
        (["a"], {"stride": 4, "max_length": 3}, "stride=4 must be 1 to 3"),
        (["a"], {"stride": 2, "long": "truncate"}, "with long='chunk'"),
        (["a"], {"generate": 2, "long": "chunk"}, "a prompt cannot be cut into pieces"),
        (["a"], {"generate": 3, "max_length": 3}, "max_length=3 and generate=3 leave no room"),
        (["a"], {"bos": True, "bos_id": 256, "max_length": 1}, "no room for a token besides the BOS"),
        (["abcd"], {"generate": 2, "max_length": 5}, r"over the limit of 3 \(max_length=5, 2 of them new\)"),
        ([Example("abc")], {"tokens": "answer"}, "needs to know the answer of text 0"),
        ([Example("abc", meta={"answer_span": (2, 9)})], {"tokens": "answer"}, "not inside its 3 characters"),
        ([Example("abc", meta={"answer_start": 1.7})], {"tokens": "answer"}, r"as \(start, end\), got \(1.7, 3\)"),
        ([Example("abc", meta={"answer_span": 3})], {"tokens": "answer"}, r"marked as \(start, end\), got 3"),
        ([Example("abc", meta={"answer_span": (1, 2, 3)})], {"tokens": "answer"}, r"got \(1, 2, 3\)"),
        (
            [Example("abcd", meta={"answer_start": 1})],
            {"tokens": "answer", "max_length": 3, "long": "chunk"},
            "over the limit of 3 .* or pass long='truncate'; tokens='answer' picks from a span, which pieces would cut",
        ),
        (
            [Example("abcdefgh", meta={"answer_span": (1, 5)})],
            {"tokens": "answer", "long": "truncate", "max_length": 3},
            "lies beyond the limit of 3 tokens",
        ),
        ([Example("a" * 129, 1)], {}, "text 0 has 129 tokens, over the limit of 128.*long='chunk'"),
        (["ab", "abcd"], {"max_length": 3, "long": "error"}, "text 1 has 4 tokens, over the limit of 3"),
        ([Example("", messages=({"role": "user", "content": "a"},))], {}, "has no chat template"),
    ],
)
@pytest.mark.parametrize("size", [1, 2000])
def test_bad_input_is_refused(monkeypatch, data, options, message, size):
    monkeypatch.setattr(plan_module, "READ_EXAMPLES", size)
    with pytest.raises(ValueError, match=message):
        planned(data, **options)


# Columns and hashes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 2000])
def test_columns_have_one_type_over_all_examples(monkeypatch, size):
    monkeypatch.setattr(plan_module, "READ_EXAMPLES", size)
    metas = [
        {"score": 1, "span": [], "none": None},
        {"score": 0.5, "late": {"a": 1}},
        {"span": [0, 1], "late": {"b": 2}},
    ]
    table = whole(planned([Example(f"text {n}", n % 2, "g", meta=meta) for n, meta in enumerate(metas)])).examples
    names = ["text_index", "text", "label", "group", "split", "score", "span", "none", "late", "token_ids"]
    assert table.column_names == names
    assert table.column("score").to_pylist() == [1.0, 0.5, None]
    assert table.column("span").to_pylist() == [[], None, [0, 1]]
    assert (table.column("none").type, table.column("split").type) == (pa.null(), pa.string())
    assert table.column("late").to_pylist() == [None, {"a": 1, "b": None}, {"a": None, "b": 2}]
    assert table.column("label").to_pylist() == [0, 1, 0]


def test_hashes_see_every_input():
    base = [Example("one", 1, "g", "train", {"a": 1}), Example("two", 0, "h", "test", {"a": 2})]
    hashes = planned(base).hashes()
    assert set(hashes) == {"hash", "columns_hash", "rows_hash"}
    assert planned(base).hashes() == hashes
    changes = [
        ([Example("one!", 1, "g", "train", {"a": 1}), base[1]], "all", {"hash", "rows_hash"}),
        ([Example("eno", 1, "g", "train", {"a": 1}), base[1]], "all", {"hash"}),
        ([Example("one", 0, "g", "train", {"a": 1}), base[1]], "all", {"columns_hash"}),
        ([Example("one", 1, "f", "train", {"a": 1}), base[1]], "all", {"columns_hash"}),
        ([Example("one", 1, "g", "test", {"a": 1}), base[1]], "all", {"columns_hash"}),
        ([base[0], Example("two", 0, "h", "test", {"a": 3})], "all", {"columns_hash"}),
        ([base[0], Example("two", 0, "h", "test", {"a": 2, "b": None})], "all", {"columns_hash"}),
        (base, "last", {"rows_hash"}),
        (base, "mean", {"rows_hash"}),
        (base, ["all", "last"], {"rows_hash"}),
    ]
    for data, tokens, differ in changes:
        other = planned(data, tokens).hashes()
        assert {name for name in hashes if hashes[name] != other[name]} == differ, (data, tokens)
    assert planned(["ab", "c"]).hashes()["hash"] != planned(["a", "bc"]).hashes()["hash"]


def test_hashes_are_the_same_in_every_process():
    data = [Example(f"text {n}", n % 2, meta={"b": n, "a": {"y": 1, "x": "é"}}) for n in range(9)]
    assert planned(data, ["last", "mean"], max_length=9).hashes() == {
        "hash": "cdd3072278504e8ceb32dc23d3401583",
        "columns_hash": "a88ae8cca7a533e575974b87b3c300a1",
        "rows_hash": "c5050f949b4b703255f958787f478608",
    }  # as another process found them: on them hangs whether a recording of another day can go on


# Reports ------------------------------------------------------------------------------------------------------------


def test_texts_that_repeat_are_counted(caplog):
    plan = planned(["A b", "c", "a  B ", "A b", "d"])
    assert (plan.duplicates, plan.contradictions, plan.n_labelled) == (2, 0, 0)
    assert "2 of 5 texts repeat an earlier one, apart from case and spacing, for example text 2" in caplog.text
    caplog.clear()
    assert planned(["a", "b"]).duplicates == 0
    assert not caplog.records


def test_labels_that_contradict_each_other_are_warned_of(caplog):
    data = [Example("A b", 1), Example("c", 0), Example("x"), Example("a B", 0), Example("c", 0), Example("a b")]
    with pytest.warns(ContradictoryLabelsWarning, match=r"1 texts \(2 rows\) carry two labels.* texts 0 and 3;"):
        plan = planned(data)
    assert (plan.duplicates, plan.contradictions, plan.n_labelled) == (3, 1, 4)
    assert "1 texts (2 rows) carry two labels" in caplog.text


def test_progress_and_sizes(monkeypatch):
    monkeypatch.setattr(plan_module, "READ_EXAMPLES", 10)
    calls = []
    options = {"bos": None, "long": None, "stride": None, "max_length": 128}
    examples = (Example(text) for text in TEXTS)
    plan = make_plan(
        examples, byte_tokenizer(), parse_rules("all"), **options, progress=lambda *call: calls.append(call)
    )
    assert [done for done, _ in calls] == [10, 20, 23]
    assert calls[-1][1] == plan.n_tokens
    monkeypatch.setattr(plan_module, "SHARD_ROWS", 50)
    assert plan.texts_per_shard(100) == round(23 * 50 / plan.n_rows)
    monkeypatch.setattr(plan_module, "SHARD_TOKENS", 20)
    assert plan.texts_per_shard(100) == round(23 * 20 / plan.n_tokens)
    assert plan.n_bytes(100) > 100 * plan.n_rows


# Chats --------------------------------------------------------------------------------------------------------------


def chat(*turns, **fields):
    return Example("", messages=tuple({"role": role, "content": content} for role, content in turns), **fields)


TALK = chat(("system", "Be kind"), ("user", "user"), ("assistant", " Hi "), ("user", "Bye"), ("assistant", "Ciao"))


def test_turns_of_a_chat_are_found_without_their_headers():
    written = "<system>Be kind<|end|><user>user<|end|><assistant>Hi<|end|><user>Bye<|end|><assistant>Ciao<|end|>"
    for options in ({}, {"bos_id": 256, "add_bos": True}):
        for role, turns in (
            ("system", ["Be kind<|end|>"]),
            ("user", ["user<|end|>", "Bye<|end|>"]),
            ("assistant", ["Hi<|end|>", "Ciao<|end|>"]),
            ("tool", []),
        ):
            texts = whole(planned([TALK], [role, "first"], chat_template=CHAT, **options))
            own = texts.ids[texts.member[texts.rules[role][texts.member_row]]]
            assert byte_tokenizer().decode(own.tolist()) == "".join(turns)
        examples = texts.examples
        assert examples.column("text").to_pylist() == [written]
        assert examples.column_names[-2:] == ["prompt_tokens", "token_ids"]
        prompt = byte_tokenizer().encode(written[: written.index("Ciao")])
        assert examples.column("prompt_tokens").to_pylist() == [len(prompt) + bool(options)]
        assert examples.column("prompt_tokens").type == pa.int32()
        assert texts.prompt_lens.tolist() == [len(prompt) + bool(options)]


def test_prompts_of_chats_and_texts_beside_them():
    plan = planned([TALK, "plain"], chat_template=CHAT)
    texts = whole(plan)
    assert texts.examples.column("prompt_tokens").to_pylist()[1] is None
    assert texts.prompt_lens.tolist()[1] == 5
    asked = chat(("user", "Hi"))
    assert kept(planned([asked], "prompt", chat_template=CHAT)) == [[*"<user>Hi", "<|end|>"]]
    plan = planned([chat(("user", "Hi"), ("assistant", "Yes"))], "prompt", chat_template=CHAT)
    assert "".join(kept(plan)[0]) == "<user>Hi<|end|><assistant>"


def test_chats_that_do_not_fit():
    short = planned([TALK], ["assistant", "last"], chat_template=CHAT, long="truncate", max_length=45)
    assert "".join(kept(short)[0][:-1]).startswith("Hi<|end|>")
    with pytest.raises(ValueError, match="over the limit of 45"):
        planned([TALK], "user", chat_template=CHAT, long="chunk", max_length=45)
    pieces = planned([TALK], chat_template=CHAT, long="chunk", max_length=45)
    assert whole(pieces).examples.column("prompt_tokens").null_count == pieces.n_texts
    with pytest.raises(ValueError, match="it is a chat"):
        planned([chat(("user", "Hi"), meta={"answer_span": (0, 1)})], "answer", chat_template=CHAT)
    with pytest.raises(ValueError, match="text 0 cannot be written as a chat"):
        planned([Example("", messages=())], chat_template=CHAT)


FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('|')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_template_that_forgets_the_reasoning_of_earlier_turns():
    talk = chat(("user", "a"), ("assistant", "why|b"), ("user", "c"), ("assistant", "so|d"))
    text = "<user>a<|end|><assistant>b<|end|><user>c<|end|><assistant>so|d<|end|>"
    texts = whole(planned([talk], chat_template=FORGETFUL))
    assert texts.examples.column("text").to_pylist() == [text]
    assert texts.prompt_lens.tolist() == [len(byte_tokenizer().encode(text[: text.index("so|d")]))]
    with pytest.raises(ValueError, match="otherwise when more follow it"):
        planned([talk], "user", chat_template=FORGETFUL)


# Generation ---------------------------------------------------------------------------------------------------------


def test_generated_texts_are_longer_and_have_rows():
    prompts = [Example("ab", meta={"answer_span": (1, 2)}), Example("cdé", meta={"answer_start": 0})]
    rules = ["generated", "last:prompt", "mean:generated", "answer"]
    plan = planned(prompts, rules, generate=5, max_length=10)
    assert plan.rows_per_text.tolist() == [5 + 1 + 1 + 1, 4 + 5 + 1]
    assert (plan.n_rows, plan.n_tokens, plan.long) == (18, 2 + 4 + 10, "error")
    before = whole(plan)
    assert before.n_rows == 0
    assert before.prompt_lens.tolist() == [2, 4]
    tok = byte_tokenizer()
    texts = generated_texts(parse_rules(rules), before, [tok.encode(" xy"), tok.encode("é")[:1]], tok)
    assert texts.examples.column_names[-3:] == ["prompt", "prompt_tokens", "token_ids"]
    assert texts.examples.column("text").to_pylist() == ["ab xy", "cdé\ufffd"]
    assert texts.examples.column("prompt").to_pylist() == ["ab", "cdé"]
    assert texts.examples.column("prompt_tokens").to_pylist() == [2, 4]
    assert texts.examples.column("token_ids").to_pylist() == [
        tok.encode("ab xy"),
        [*tok.encode("cdé"), tok.encode("é")[0]],
    ]
    assert texts.row_text.tolist() == [0] * 5 + [1] * 6
    assert texts.row_position.tolist() == [1, 2, 3, 4, -1, 0, 1, 2, 3, 4, -1]
    assert texts.rules["generated"].tolist() == [False, True, True, True, False] + [False] * 4 + [True, False]
    assert texts.rules["last:prompt"].tolist() == [True] + [False] * 7 + [True, False, False]
    assert texts.averaged().to_pylist()[4] == [2, 3, 4]
    assert texts.averaged().to_pylist()[-1] == [4]


def test_chats_are_continued_by_the_assistant():
    plan = planned([chat(("user", "Hi"))], ["assistant", "user"], generate=3, chat_template=CHAT)
    before = whole(plan)
    assert before.examples.column("text").to_pylist() == ["<user>Hi<|end|><assistant>"]
    tok = byte_tokenizer()
    texts = generated_texts(plan.rules, before, [tok.encode("Yes")], tok)
    own = {name: texts.ids[texts.member[flag]].tolist() for name, flag in texts.rules.items()}
    assert {name: tok.decode(ids) for name, ids in own.items()} == {"assistant": "Yes", "user": "Hi<|end|>"}
    with pytest.raises(ValueError, match="text 0 ends with a message of the assistant"):
        planned([TALK], generate=3, chat_template=CHAT)


def test_prompts_are_not_closed():
    plan = planned(["ab"], generate=2, closing_id=257, bos_id=256, add_bos=True)
    assert plan.lengths.tolist() == [3]


# Memory and files ---------------------------------------------------------------------------------------------------


def test_ten_times_the_text_needs_no_more_memory(monkeypatch):
    monkeypatch.setattr(plan_module, "READ_EXAMPLES", 20)

    def peak(n):
        examples = (Example(f"{number} " + "word " * 15, meta={"more": f"{number} " + "x" * 80}) for number in range(n))
        gc.collect()
        tracemalloc.start()
        arrow = pa.total_allocated_bytes()
        plan = make_plan(
            examples, byte_tokenizer(), parse_rules("all"), bos=None, long=None, stride=None, max_length=500
        )
        plan.shard(n - 10, n)
        held = pa.total_allocated_bytes() - arrow
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        plan.close()
        return found, held

    (small, _), (large, held) = peak(40), peak(400)
    assert large < 1.2 * small + 400 * 40
    assert held < 1 << 20


def test_the_temporary_files_go_with_the_plan():
    plan = planned(TEXTS)
    file = plan.texts._file
    assert not file.closed
    plan.close()
    assert file.closed
    plan = planned(TEXTS)
    file = plan.columns._file
    del plan
    gc.collect()
    assert file.closed
