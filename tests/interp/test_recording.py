"""record() against run_with_cache one text at a time, and against interruptions."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import byte_tokenizer, tiny_model

from interp.dataset import Dataset, Example
from interp.recording import plan, record
from interp.store import open_store
from interp.tokens import Tokenizer

WORDS = [
    "the",
    "model",
    "reads",
    "a",
    "text",
    "and",
    "keeps",
    "what",
    "each",
    "layer",
    "says",
    "about",
    "every",
    "token",
]
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 1 + i % 9]) + f" {i}" for i in range(60)]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture
def small_shards(monkeypatch):
    """About 200 rows a shard, so that a few texts make several."""
    monkeypatch.setattr(plan, "SHARD_ROWS", 200)
    monkeypatch.setattr(plan, "SHARD_TOKENS", 1000)


def with_bos() -> Tokenizer:
    """The byte tokenizer, but with `<|end|>` as a BOS that it adds by its own rule."""
    return Tokenizer(byte_tokenizer().backend, bos_id=256, eos_id=256, pad_id=257, add_bos=True, name="bytes with BOS")


def file_bytes(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def worst_row(got, expected):
    """Largest error of a row, relative to the row's own norm."""
    return float(((got - expected).norm(dim=1) / expected.norm(dim=1)).max())


# What is kept -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_equal_one_text_at_a_time(family):
    model = tiny_model(family)
    sites = ["embed", "resid_post:*", "z:1", "k:0", "post:1", "ln_final.normalized"]
    store = record(model, TEXTS, sites=sites, dtype="float32", progress=False)
    assert store.card["shards"] > 3
    assert store.complete
    assert store.sites == model.expand_sites(sites)
    assert store.shapes["blocks.1.attn.hook_z"] == (4, 8)
    for number, text in enumerate(TEXTS):
        _, cache = model.run_with_cache(text, sites=sites)
        for site, rows in store.activations(text=number).items():
            assert worst_row(rows, cache[site][0].flatten(1)) < 1e-5, (number, site)
    ids = [model.tokenizer.encode(text) for text in TEXTS]
    assert store.tokens.token_id.tolist() == [token for row in ids for token in row]
    assert store.tokens.position.tolist() == [pos for row in ids for pos in range(len(row))]
    assert store.tokens.text.tolist() == [number for number, row in enumerate(ids) for _ in row]
    assert store.tokens.is_first.equals(store.tokens.position == 0)
    assert store.verify().empty


def test_the_batches_do_not_matter(model):
    small, large = (record(model, TEXTS, dtype="float32", batch_size=size, progress=False) for size in (1, 64))
    for site in small.sites:
        assert worst_row(small.rows(site, slice(None)), large.rows(site, slice(None))) < 1e-5


def test_narrow_dtypes_are_rounded_rows(model):
    exact = record(model, TEXTS, dtype="float32", progress=False).rows("resid_post:1", slice(None))
    for dtype in ("bfloat16", "float16"):
        store = record(model, TEXTS, dtype=dtype, progress=False)
        assert store.dtype == dtype
        rounded = exact.to(getattr(torch, dtype)).float()
        torch.testing.assert_close(store.rows("resid_post:1", slice(None)), rounded, rtol=0, atol=0)
    assert record(model, TEXTS[:2], dtype=torch.float16, progress=False).dtype == "float16"


@pytest.mark.parametrize(("rule", "position"), [("last", -1), ("first", 0)])
def test_one_token_of_each_text(model, rule, position):
    store = record(model, TEXTS, tokens=rule, dtype="float32", progress=False)
    assert store.n_rows == len(TEXTS)
    pooled, frame = store.pooled("resid_post:1", tokens=rule)
    assert frame.text.tolist() == TEXTS
    for number in range(0, len(TEXTS), 7):
        _, cache = model.run_with_cache(TEXTS[number])
        assert worst_row(pooled[number : number + 1], cache["resid_post:1"][0, position][None]) < 1e-5
    assert store.tokens.token_id.tolist() == [model.tokenizer.encode(text)[position] for text in TEXTS]


def test_the_answer_is_found_by_its_characters(model):
    text = "Capital of Übersee: São Tomé."
    start = text.index("São")
    spans = [{"answer_span": (start, start + 3)}, {"answer_start": start}]
    store = record(model, [Example(text, meta=meta) for meta in spans[:1]], tokens="answer", progress=False)
    kept = store.tokens
    assert model.tokenizer.decode(kept.token_id.tolist()) == "São"
    assert kept.position.tolist() == list(range(start + 1, start + 1 + 4))  # Ü takes two bytes, ã as well
    store = record(model, [Example(text, meta=meta) for meta in spans[1:]], tokens="answer", bos=None, progress=False)
    assert model.tokenizer.decode(store.tokens.token_id.tolist()) == "São Tomé."
    assert store.pooled("resid_post:0", tokens="mean")[0].shape == (1, 32)


def test_the_answer_is_shifted_by_a_bos():
    model = tiny_model()
    model.tokenizer = with_bos()
    store = record(model, [Example("a b", meta={"answer_span": [2, 3]})], tokens="answer", progress=False)
    assert (store.tokens.position.tolist(), store.tokens.token_id.tolist()) == (
        [3],
        model.tokenizer.encode("b", bos=False),
    )
    assert store.card["bos"] is True


def test_bos_and_special_tokens_are_marked():
    model = tiny_model()
    model.tokenizer = with_bos()
    tokens = record(model, ["ab<|pad|>c"], progress=False).tokens
    assert tokens.token_id.tolist()[0] == 256
    assert tokens.is_bos.tolist() == [True, False, False, False, False]
    assert tokens.is_special.tolist() == [True, False, False, True, False]
    assert tokens.is_first.tolist() == [True, False, False, False, False]
    without = record(model, ["ab"], bos=False, progress=False)
    assert not without.tokens.is_bos.any()
    assert without.tokens.is_first.tolist() == [True, False]


def test_signals_equal_the_full_model(model):
    for rule in ("all", "last", "first"):
        store = record(model, TEXTS[:20], sites="resid_post:0", tokens=rule, signals=True, progress=False)
        for number, rows in store.tokens.groupby("text"):
            logp = model(TEXTS[int(str(number))])[0].log_softmax(-1)
            ids = torch.tensor(model.tokenizer.encode(TEXTS[int(str(number))]))
            at = torch.tensor(rows.position.tolist())
            before = torch.cat([torch.tensor([torch.nan]), logp[:-1].gather(1, ids[1:, None])[:, 0]])
            np.testing.assert_allclose(rows.logprob, before[at], atol=1e-4)
            np.testing.assert_allclose(rows.entropy, -(logp.exp() * logp).sum(-1)[at], atol=1e-4)
            assert rows.top1.tolist() == logp.argmax(-1)[at].tolist()
        assert store.tokens.logprob.isna().equals(store.tokens.position == 0)
    assert "entropy" not in record(model, TEXTS[:2], progress=False).tokens


def test_the_pass_stops_after_the_deepest_site(model):
    for sites, stop in (("resid_post:0", 1), ("embed", 0), (["z:1", "embed"], 2), ("ln_final.scale", None)):
        record(model, TEXTS[:3], sites=sites, progress=False)
        assert model.run.last_stop == stop


# Inputs -------------------------------------------------------------------------------------------------------------


def test_examples_keep_their_columns(model, tmp_path):
    examples = [
        Example("yes", 1, "g1", "train", {"topic": "words", "score": 0.5, "span": [0, 1]}),
        Example("no", 0, "g2", "test", {"topic": "more", "score": 2, "extra": None}),
    ]
    frame = record(model, Dataset("pair", tuple(examples)), path=tmp_path / "a", progress=False).examples
    assert frame.columns.tolist() == ["text", "label", "group", "split", "topic", "score", "span", "extra"]
    assert frame.label.tolist() == [1, 0]
    assert frame.group.tolist() == ["g1", "g2"]
    assert frame.score.tolist() == [0.5, 2.0]
    assert list(frame.span[0]) == [0, 1]
    assert frame.extra.isna().all()
    assert pd.read_parquet(tmp_path / "a/shards/000000/examples.parquet").topic.tolist() == ["words", "more"]


def test_inputs_of_every_kind(model):
    assert record(model, "one text", progress=False).examples.text.tolist() == ["one text"]
    assert record(model, (text for text in TEXTS[:3]), progress=False).n_texts == 3
    assert record(model, [Example("a"), "b"], progress=False).n_texts == 2


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "the data has no text"),
        (["a", ""], {}, "text 1 is empty"),
        (["a", 3], {}, "item 1 is a int"),
        (5, {}, "cannot record int"),
        ({"a": 1}, {}, "cannot record dict"),
        (["a", "b\ud800"], {}, "text 1 cannot be tokenised"),
        ([Example("a", meta={"text": 1})], {}, "a column 'text'"),
        ([Example("a", meta={"x": 1}), Example("b", meta={"x": "1"})], {}, "column 'x' does not fit"),
        (["a"], {"sites": "resid_pots:1"}, "did you mean resid_post:1"),
        (["a"], {"sites": "resid_post:9"}, "layers 0 to 1"),
        (["a"], {"sites": "pattern:0"}, "no row for each token"),
        (["a"], {"sites": ["resid_post:0", "attn_scores:1"]}, "no row for each token"),
        (["a"], {"sites": []}, "no site was asked for"),
        (["a"], {"tokens": "lst"}, "did you mean 'last'"),
        (["a"], {"dtype": "float8"}, "'bfloat16', 'float16', 'float32'"),
        (["a"], {"engine": "rya"}, r"engine='rya' is unknown, there is 'local', 'ray' .* did you mean 'ray'"),
        (["a"], {"long": "cut"}, "long='cut' is unknown"),
        (["a"], {"batch_size": 0}, "batch_size must be at least 1"),
        (["a"], {"max_length": 0}, "max_length must be 1 to 128"),
        (["a"], {"max_length": 129}, "max_length must be 1 to 128"),
        (["a"], {"bos": True}, "no BOS token"),
        (["a"], {"progress": 3}, "progress is None, False or a function"),
        ([Example("abc")], {"tokens": "answer"}, "needs to know the answer of text 0"),
        ([Example("abc", meta={"answer_span": (2, 9)})], {"tokens": "answer"}, "not inside its 3 characters"),
        ([Example("abc", meta={"answer_span": 3})], {"tokens": "answer"}, r"marked as \(start, end\), got 3"),
        ([Example("abc", meta={"answer_span": (1, 2, 3)})], {"tokens": "answer"}, r"got \(1, 2, 3\)"),
        (
            [Example("abcd", meta={"answer_start": 1})],
            {"tokens": "answer", "max_length": 3, "long": "chunk"},
            "over the limit of 3 .* or pass long='truncate'",
        ),
        ([Example("a" * 129, 1)], {}, "text 0 has 129 tokens, over the limit of 128.*long='chunk'"),
        (["ab", "abcd"], {"max_length": 3, "long": "error"}, "text 1 has 4 tokens, over the limit of 3"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(model, tmp_path, data, options, message):
    with pytest.raises(ValueError, match=message):
        record(model, data, path=tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_a_model_without_a_tokenizer_is_refused():
    model = tiny_model()
    model.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer"):
        record(model, "a")


# Long texts ---------------------------------------------------------------------------------------------------------


def test_long_texts_become_pieces(model, caplog):
    texts = ["abcdefgh", "xyz", "abcdef"]
    with caplog.at_level(logging.INFO, "interp"):
        store = record(model, texts, max_length=3, dtype="float32", progress=False)
    assert "2 of 3 texts have over 3 tokens" in caplog.text
    assert store.examples.text.tolist() == ["abc", "def", "gh", "xyz", "abc", "def"]
    assert store.examples.document.tolist() == [0, 0, 0, 1, 2, 2]
    assert store.examples.chunk.tolist() == [0, 1, 2, 0, 0, 1]
    assert store.examples.start.tolist() == [0, 3, 6, 0, 0, 3]
    counts = {name: value for name, value in store.card["texts"].items() if not name.endswith("hash")}
    assert counts == {
        "count": 6,
        "documents": 3,
        "over_max_length": 2,
        "duplicates": 0,
        "contradictions": 0,
        "tokens": 17,
        "rows": 17,
    }
    _, cache = model.run_with_cache("def")
    assert worst_row(store.activations(text=5)["blocks.1.hook_resid_post"], cache["resid_post:1"][0]) < 1e-5


def test_pieces_begin_with_the_bos():
    model = tiny_model()
    model.tokenizer = with_bos()
    store = record(model, ["abcde"], max_length=3, progress=False)
    assert store.tokens[store.tokens.is_first].token_id.tolist() == [256, 256, 256]
    assert store.tokens.is_bos.equals(store.tokens.is_first)
    assert store.examples.text.tolist() == ["ab", "cd", "e"]
    with pytest.raises(ValueError, match="no room for a token"):
        record(model, ["abcde"], max_length=1)


def test_long_texts_are_cut_where_asked(model):
    store = record(model, [Example("abcdefgh", 1), Example("ab", 0)], long="truncate", max_length=3, progress=False)
    assert store.examples.text.tolist() == ["abc", "ab"]
    assert store.examples.columns.tolist() == ["text", "label", "group", "split"]
    marked = [Example("abcdefgh", 1, meta={"answer_span": (1, 5)})]
    with pytest.raises(ValueError, match="lies beyond the limit of 3 tokens"):
        record(model, marked, tokens="answer", long="truncate", max_length=3)


def test_labels_make_long_texts_an_error_and_corpora_are_cut(model):
    assert record(model, ["a" * 300], progress=False).n_texts == 3
    assert record(model, [Example("a" * 300, 1)], long="chunk", progress=False).examples.label.tolist() == [1, 1, 1]


# Numbers that are none ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_shards")
def test_nan_names_its_place_and_what_was_whole_stays(tmp_path):
    model = tiny_model()
    texts = [*TEXTS, "a Z"]
    with torch.no_grad():
        model.embed.weight[model.tokenizer.to_single_token("Z")] = torch.nan
    with pytest.raises(ValueError, match=r"hook_embed, text 60, position 2: the activation is NaN"):
        record(model, texts, sites=["embed", "resid_post:1"], path=tmp_path / "a", progress=False)
    store = open_store(tmp_path / "a")
    last = store.card["shards"] - 1
    assert sorted(p.name for p in (tmp_path / "a/shards").iterdir()) == [f"{i:06d}" for i in range(last)]
    assert store.verify().shard.tolist() == [last]
    with pytest.raises(ValueError, match=r"next-token distribution is NaN|activation is NaN"):
        record(model, texts, sites="embed", signals=True, progress=False)


def test_what_float16_cannot_hold_is_refused():
    model = tiny_model()
    with torch.no_grad():
        model.embed.weight[model.tokenizer.to_single_token("Z"), 0] = 1e6
    with pytest.raises(ValueError, match=r"text 1, position 1: a value of 1e\+06 does not fit float16"):
        record(model, ["a", "aZ"], sites="embed", dtype="float16", progress=False)
    assert record(model, ["a", "aZ"], sites="embed", progress=False).n_rows == 3


# Going on -----------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Stands for whatever ends a recording half-way."""


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_recording_goes_on_and_gives_the_same_bytes(model, tmp_path):
    record(model, TEXTS, path=tmp_path / "whole", batch_size=4, progress=False)
    forwards = []
    for limit in (3, 8, 20, None):
        calls = []

        def stop(done, total, tokens, calls=calls, limit=limit):
            calls.append(done)
            if limit is not None and len(calls) == limit:
                raise Interrupted

        before = model.run.forwards
        try:
            record(model, TEXTS, path=tmp_path / "parts", batch_size=4, progress=stop)
        except Interrupted:
            open_store(tmp_path / "parts")
        forwards.append(model.run.forwards - before)
    assert file_bytes(tmp_path / "parts") == file_bytes(tmp_path / "whole")
    before = model.run.forwards
    store = record(model, TEXTS, path=tmp_path / "parts", batch_size=4, progress=False)
    assert model.run.forwards == before  # nothing is computed twice
    assert store.complete


@pytest.mark.usefixtures("small_shards")
def test_going_on_keeps_batches_and_threads_of_the_beginning(model, tmp_path):
    record(model, TEXTS, path=tmp_path / "whole", batch_size=4, progress=False)

    def stop(done, total, tokens):
        if done >= 30:
            raise Interrupted

    with pytest.raises(Interrupted):
        record(model, TEXTS, path=tmp_path / "parts", batch_size=4, progress=stop)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        record(model, TEXTS, path=tmp_path / "parts", batch_size=50, progress=False)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert file_bytes(tmp_path / "parts") == file_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": TEXTS[:5]}, "texts"),
        ({"sites": "resid_post:0"}, "sites"),
        ({"dtype": "float16"}, "dtype"),
        ({"tokens": "last"}, "tokens"),
        ({"signals": True}, "signals"),
        ({"data": [Example(text, 1) for text in TEXTS]}, "labels, groups or further columns"),
        ({"model": tiny_model(seed=1)}, "model"),
        ({"resume": False}, "resume=False"),
    ],
)
def test_other_inputs_at_the_same_path_are_refused(model, tmp_path, change, message):
    path = tmp_path / "a"
    rows = record(model, TEXTS, path=path, long="chunk", progress=False).rows("resid_post:1", slice(None))
    call = {"model": model, "data": TEXTS, "long": "chunk"} | change
    with pytest.raises(ValueError, match=message):
        record(**call, path=path, progress=False)
    assert torch.equal(open_store(path).rows("resid_post:1", slice(None)), rows)


def test_hooks_at_work_stand_in_the_card(model, tmp_path):
    with model.hooks({"resid_post:0": lambda value, ctx: value * 0}):
        edited = record(model, TEXTS[:5], path=tmp_path / "a", progress=False)
    assert edited.card["model"]["edited_at"] == ["blocks.0.hook_resid_post"]
    with pytest.raises(ValueError, match="hooks on the model"):
        record(model, TEXTS[:5], path=tmp_path / "a", progress=False)


def test_a_store_knows_its_model(model):
    store = record(model, TEXTS[:5], progress=False)
    store.check_model(model)
    assert store.model_fingerprint == model.fingerprint
    with pytest.raises(ValueError, match="another model"):
        store.check_model(tiny_model(seed=1))
    other = tiny_model()
    other.tokenizer = with_bos()
    with pytest.raises(ValueError, match="another tokenizer"):
        store.check_model(other)


# Around it ----------------------------------------------------------------------------------------------------------


def test_without_a_path_the_store_goes_away_with_the_object(model):
    store = record(model, TEXTS[:5], progress=False)
    path = store.path
    shuffled = store.batches("resid_post:0", size=8)
    del store
    assert len(list(shuffled)) == len(shuffled)  # batches keep their store
    del shuffled
    assert not path.exists()
    assert not path.parent.exists()


@pytest.mark.usefixtures("small_shards")
def test_progress_is_reported(model, caplog):
    calls = []
    record(model, TEXTS, progress=lambda *call: calls.append(call), batch_size=4)
    n_tokens = sum(len(model.tokenizer.encode(text)) for text in TEXTS)
    assert calls[-1] == (60, 60, n_tokens)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    with caplog.at_level(logging.INFO, "interp"):
        record(model, TEXTS)
    assert "recorded 60 of 60 texts" in caplog.text


def test_the_card_says_how_it_was_made(model):
    card = record(model, TEXTS[:5], progress=False).card
    assert card["format"] == 2
    assert card["run"]["threads"] == torch.get_num_threads()
    assert (card["run"]["batch_size"], card["run"]["share"]) == (None, True)
    assert set(card["provenance"]) == {"interp", "torch", "python"}
    assert json.loads(json.dumps(card)) == card


def test_gradients_and_threads_are_as_before(model):
    threads = torch.get_num_threads()
    record(model, TEXTS[:5], progress=False)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == threads
    assert model("a").requires_grad == any(weight.requires_grad for weight in model.parameters())
