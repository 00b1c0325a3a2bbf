"""Which rows `record` keeps, and that they are those of the text run alone."""

import numpy as np
import pytest
import torch
from tiny import byte_tokenizer, tiny_model

from interp.dataset import Example
from interp.recording import record
from interp.tokens import Tokenizer

SITES = ["resid_post:*", "z:0"]
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture
def chatty():
    model = tiny_model()
    backend = byte_tokenizer().backend
    model.tokenizer = Tokenizer(backend, bos_id=None, eos_id=256, pad_id=257, special_ids=[256, 257],
                                chat_template=TEMPLATE, name="chatty")  # fmt: skip
    return model


def value(model, ids, site):
    _, cache = model.run_with_cache([list(ids)], SITES)
    return cache[site][0].flatten(1)


def close(got, expected):
    return bool(((got - expected).norm(dim=-1) <= 1e-5 * expected.norm(dim=-1) + 1e-6).all())


def test_several_rules_in_one_pass(model):
    texts = [Example(f"{'x' * i}the answer is {i}", meta={"answer_start": i + 14}) for i in range(1, 9)]
    rules = ["last", "answer", "mean", [0, -2]]
    store = record(model, texts, sites=SITES, tokens=rules, dtype="float32", progress=False)
    assert store.card["tokens"] == ["last", "answer", "mean", "positions[0,-2]"]
    tokens = store.tokens
    for number, example in enumerate(texts):
        rows = np.flatnonzero(tokens.text == number)
        n = len(example.text)
        answer = list(range(example.meta["answer_start"], n))
        kept = sorted({0, n - 2, n - 1, *answer})
        assert tokens.position[rows].tolist() == [*kept, -1]
        assert tokens["rule:last"][rows].tolist() == [*(p == n - 1 for p in kept), False]
        assert tokens["rule:answer"][rows].tolist() == [*(p in answer for p in kept), False]
        assert tokens["rule:mean"][rows].tolist() == [*(False for _ in kept), True]
        assert list(tokens.averaged[rows[-1]]) == list(range(1, n))
        for site in store.sites:
            alone = value(model, model.tokenizer.encode(example.text), site)
            expected = torch.cat([alone[kept], alone[1:].double().mean(0, keepdim=True).float()])
            assert close(store.rows(site, rows), expected)
    pooled, frame = store.pooled("resid_post:1", tokens="mean")
    assert len(pooled) == len(frame) == 8
    assert torch.equal(pooled, store.rows("resid_post:1", (tokens.position == -1).to_numpy()))


def test_a_predicate_sees_what_a_person_sees(model):
    store = record(model, ["a.b.c", "..d"], tokens=lambda token: token.text == ".", progress=False)
    assert store.tokens.position.tolist() == [1, 3, 0, 1]
    assert store.card["texts"]["rows"] == 4


def test_a_mean_over_a_span(model):
    texts = [
        Example("one two three", meta={"subject_span": (4, 7)}),
        Example("a bb ccc", meta={"subject_span": (2, 4)}),
    ]
    store = record(model, texts, sites=SITES, tokens="mean:subject", dtype="float32", progress=False)
    for row, (text, span) in enumerate([("one two three", (4, 7)), ("a bb ccc", (2, 4))]):
        for site in store.sites:
            expected = value(model, model.tokenizer.encode(text), site)[slice(*span)].mean(0, keepdim=True)
            assert close(store.rows(site, [row]), expected)


def test_conversations_are_kept_by_role(chatty):
    chat = [{"role": "user", "content": "hi there"}, {"role": "assistant", "content": "yes"}]
    store = record(chatty, [chat, chat[:1]], tokens=["assistant", "last:user"], progress=False)
    text = "[user]hi there<|end|>[assistant]yes<|end|>"
    assert store.examples.text.tolist() == [text, "[user]hi there<|end|>"]
    first = store.tokens[store.tokens.text == 0]
    kept = chatty.tokenizer.decode(first.token_id[first["rule:assistant"]].tolist())
    assert kept == "yes<|end|>"
    assert first.token_id[first["rule:last:user"]].tolist() == [256]
    second = store.tokens[store.tokens.text == 1]
    assert not second["rule:assistant"].any()


def test_generated_tokens_are_recorded_while_they_are_made(model):
    prompts = ["ab", "abc", "hello you", "ab"]
    options = {"max_new_tokens": 6, "temperature": 1.0, "seed": 3}
    store = record(model, prompts, sites=SITES, tokens=["all", "generated"], dtype="float32", generate=options,
                   signals=True, batch_size=2, progress=False)  # fmt: skip
    for number, prompt in enumerate(prompts):
        out = model.generate(prompt, **options)
        ids = store.token_ids(number).tolist()
        assert ids == [*model.tokenizer.encode(prompt), *out.tokens]
        rows = np.flatnonzero(store.tokens.text == number)
        tokens = store.tokens.iloc[rows]
        assert tokens["rule:generated"].tolist() == [position >= len(prompt) for position in tokens.position]
        for site in store.sites:
            assert close(store.rows(site, rows), value(model, ids, site))
        logp = model([ids])[0].log_softmax(-1)
        own = logp[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
        np.testing.assert_allclose(tokens.logprob[1:], own, atol=1e-4)
    assert store.examples.prompt.tolist() == prompts
    assert store.examples.prompt_tokens.tolist() == [2, 3, 9, 2]
    assert store.token_ids(0).tolist() == store.token_ids(3).tolist()  # draws depend on seed and prompt alone


def test_generation_goes_on_after_an_interruption(model, tmp_path, monkeypatch):
    from interp.recording import plan

    monkeypatch.setattr(plan, "SHARD_ROWS", 40)
    prompts = [f"text {i}" for i in range(20)]
    call = {"sites": "resid_post:1", "tokens": "generated", "generate": 4, "progress": False}
    record(model, prompts, path=tmp_path / "whole", **call)

    def stop(done, total, tokens):
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(model, prompts, path=tmp_path / "parts", **{**call, "progress": stop})
    store = record(model, prompts, path=tmp_path / "parts", **call)
    assert store.complete
    for file in sorted((tmp_path / "whole").rglob("*")):
        if file.is_file() and file.name != ".lock":
            assert file.read_bytes() == (tmp_path / "parts" / file.relative_to(tmp_path / "whole")).read_bytes()


def test_all_new_tokens_have_rows_also_where_the_context_ends(model):
    prompts = ["ab", "y" * 107]
    store = record(model, prompts, SITES, tokens="generated", generate=20, dtype="float32", progress=False)
    assert store.tokens.groupby("text").size().tolist() == [20, 20]
    for number, prompt in enumerate(prompts):
        assert store.examples.text[number] == prompt + model.generate(prompt, 20).text
    one = record(model, ["ab"], SITES, tokens="generated", generate=1, progress=False)
    assert one.tokens.position.tolist() == [2]
    with pytest.raises(ValueError, match="108"):
        record(model, ["y" * 108], SITES, tokens="generated", generate=20, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "generated"}, r"pass generate=\{'max_new_tokens': 20\}"),
        ({"generate": {"max_tokens": 3}}, "no option 'max_tokens'.*did you mean 'max_new_tokens'"),
        ({"generate": 0}, "max_new_tokens must be a whole number"),
        ({"generate": {"n_samples": 3}}, "no option 'n_samples'"),
        ({"generate": "yes"}, "a number of new tokens or a mapping"),
        ({"generate": 3, "head_stats": True}, "head_stats cannot be recorded while generating"),
        ({"tokens": "lst"}, "did you mean"),
        ({"tokens": [7]}, "text 0"),
        ({"tokens": lambda token: False}, "keep"),
        ({"stride": 0}, "stride"),
        ({"limit": 0}, "limit"),
        ({"bos": "x"}, "bos is True or False, or None for what the tokenizer does; got 'x'"),
        ({"signals": 1}, "signals is True or False; got 1"),
        ({"head_stats": "yes"}, "head_stats is True or False; got 'yes'"),
        ({"label": "truth"}, "text 0 has no columns, so label='truth' names nothing"),
        ({"model": "smollm2-135m"}, r"pass the model, interp.load\('smollm2-135m'\)"),
        ({"model": 5}, "a int is no model that can be recorded"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_before_anything_runs(model, tmp_path, options, message):
    before = model.run.forwards
    with pytest.raises(ValueError, match=message):
        record(**{"model": model, "data": ["abc", "abcdef"], "path": tmp_path / "a", "progress": False, **options})
    assert model.run.forwards == before
    assert not (tmp_path / "a").exists()


def test_a_sliding_window_keeps_each_token_once_with_more_before_it(model):
    text = "abcdefghijklmnopqrstuvw"
    store = record(
        model, [text], sites="resid_post:1", long="chunk", max_length=8, stride=3, dtype="float32", progress=False
    )
    tokens, starts = store.tokens, store.examples.start
    assert starts.tolist() == list(range(0, 16, 3))
    absolute = [int(starts[t]) + p for t, p in zip(tokens.text, tokens.position)]
    assert absolute == list(range(len(text)))
    assert all(position >= 5 for position in tokens.position[tokens.text > 0])
    for number in store.examples.index:
        rows = np.flatnonzero(tokens.text == number)
        piece = text[starts[number] : starts[number] + 8]
        expected = value(model, model.tokenizer.encode(piece), "resid_post:1")[tokens.position[rows].tolist()]
        assert close(store.rows("resid_post:1", rows), expected)


def test_a_store_may_not_lie_in_the_folder_of_its_data(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cities").mkdir()
    (tmp_path / "cities/a.txt").write_text("a city")
    call = {"sites": "embed", "tokens": "last", "progress": False}
    for data in (tmp_path / "cities", "./cities"):
        for path in (tmp_path / "cities/run", "cities/../cities/deep/run", "cities"):
            with pytest.raises(ValueError, match=r"the folder of the data, .*: choose a path outside it"):
                record(model, data, path=path, **call)
    assert [found.name for found in tmp_path.rglob("*")] == ["cities", "a.txt"]
    for path in ("run", "cities/.run"):  # what is hidden is not read
        assert record(model, tmp_path / "cities", path=path, **call).n_texts == 1
        assert record(model, tmp_path / "cities", path=path, **call).n_texts == 1
    assert record(model, "cities", path="cities/run", limit=2, **call).n_texts == 2  # the bundled set of that name


# What is added to a store -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["add_sites", "append"])
def test_nothing_is_added_under_hooks(model, tmp_path, verb):
    def add(store):
        more = "resid_post:0" if verb == "add_sites" else ["c"]
        return getattr(store, verb)(model, more, progress=False)

    def zero(value, ctx):
        return value * 0

    call = {"sites": "resid_post:1", "progress": False}
    store = record(model, ["a", "b"], path=tmp_path / "plain", **call)
    with model.hooks({"resid_pre:0": zero}):
        with pytest.raises(ValueError, match=f"{verb}: functions are attached to the model at blocks.0.hook_resid_pre"):
            add(store)
        edited = record(model, ["a", "b"], path=tmp_path / "edited", **call)
        with pytest.raises(ValueError, match="functions are attached to the model"):
            add(edited)
    with pytest.raises(ValueError, match=f"was recorded with functions attached .*so {verb} cannot make rows that fit"):
        add(edited)
    assert not list(tmp_path.rglob("parts"))
    assert add(store).complete
    with pytest.raises(ValueError, match=r"interp.load\('m'\)"):
        getattr(store, verb)("m", ["c"])


def test_texts_are_appended_by_the_rules_of_the_card(model, tmp_path):
    def vowel(view):
        return view.text in "aeiou"

    def recorded(tokens, text="abe"):
        return record(
            model, [text], "embed", tokens, progress=False, path=tmp_path / str(len(list(tmp_path.iterdir())))
        )

    marked = Example("abe", meta={"end_span": (1, 3)})
    for tokens, positions in (([0, -1], [0, 2]), (["last", [1]], [1, 2]), ("first:end", [1])):
        more = recorded(tokens, marked).append(model, [marked], progress=False)
        assert more.tokens.position.tolist() == positions * 2
    for tokens in (vowel, ["last", vowel]):
        store = recorded(tokens)
        with pytest.raises(ValueError, match=r"the function 'vowel' chose.*: pass the function again"):
            store.append(model, ["oba"], progress=False)
        assert store.append(model, ["oba"], tokens=tokens, progress=False).n_rows == 4
