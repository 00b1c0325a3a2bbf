"""What is read at a place: against the store's own rows and counts made by hand, and stores that do not fit."""

import numpy as np
import pandas as pd
import pytest
import torch
from planted import MemoryStore, frame_of
from tiny import tiny_model

from interp.dataset import Dataset, Example
from interp.probe.joining import check_texts, join_labels
from interp.probe.reading import TokenRows, expand_places, place_layer, place_name, read_place, site_of
from interp.recording import record
from interp.store import Store

Z = "blocks.{}.attn.hook_z"
WORDS = ("river", "stone", "lamp", "cloud", "sun", "sea")
TEXTS = [f"{word} is {'not ' * (i % 2)}word {i}<|end|>" for i, word in enumerate(WORDS)]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset(
        "words",
        tuple(
            Example(
                text, i % 2, f"group {i // 2}", meta={"polarity": "negated" if i % 2 else "affirmative", "id": f"r{i}"}
            )
            for i, text in enumerate(TEXTS)
        ),
    )


@pytest.fixture(scope="module")
def store(dataset: Dataset) -> Store:
    return record(tiny_model("llama"), dataset, sites=["z:*", "resid_post:*"], dtype="float32", progress=False)


# ----------------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("z:1.2", [Z.format(1) + ".2"]),
        ("z:-1.2", [Z.format(1) + ".2"]),
        ("z:1.*", [f"{Z.format(1)}.{head}" for head in range(4)]),
        ("z:*.1-2", [f"{Z.format(layer)}.{head}" for layer in range(2) for head in (1, 2)]),
        ("z:*", [Z.format(0), Z.format(1)]),
        (Z.format(1) + ".3", [Z.format(1) + ".3"]),
        (Z.format(1) + ".*", [f"{Z.format(1)}.{head}" for head in range(4)]),
        ("blocks.*.hook_zz.0", None),
        ("blocks.*.attn.hook_z.0", [Z.format(0) + ".0", Z.format(1) + ".0"]),
        ("*hook_z*", [Z.format(0), Z.format(1)]),
        (("resid_post", 1), ["blocks.1.hook_resid_post"]),
        (["resid_post:0", "z:0.1", "z:0.*", "z:0"], None),
    ],
)
def test_places_of_names_shorthand_and_patterns(store: Store, wanted: object, expected: list[str] | None) -> None:
    if isinstance(wanted, list):
        found = expand_places(wanted, store)
        # Model order, each once: a site before its heads.
        assert found == [Z.format(0), *(f"{Z.format(0)}.{head}" for head in range(4)), "blocks.0.hook_resid_post"]
    elif expected is None:
        with pytest.raises(ValueError, match="unknown site"):
            expand_places(wanted, store)
    else:
        assert expand_places(wanted, store) == expected


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("zz:0.1", "did you mean z:0"),
        ("resid_pots:0", "did you mean resid_post:0"),
        ("z:0.4", r"'z:0.4': 'z:0' has heads 0 to 3"),
        ("z:0.2-9", "has heads 0 to 3"),
        ("z:0.3-1", "has heads 0 to 3"),
        (Z.format(0) + ".7", "has heads 0 to 3"),
        ("z:7.1", "layers 0 to 1"),
        ("resid_post:0.3", "asks for heads, but 'resid_post:0' has none"),
        ("q:0.1", "the store does not hold it"),
        ([], "say which sites are read"),
        (None, "say which sites are read"),
        (3.5, "say which sites are read"),
    ],
)
def test_a_place_that_is_not_there_is_refused(store: Store, wanted: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_places(wanted, store)


def test_names_of_places() -> None:
    assert site_of(Z.format(5) + ".3") == (Z.format(5), 3)
    assert site_of("blocks.5.hook_resid_post") == ("blocks.5.hook_resid_post", None)
    assert place_name(Z.format(5) + ".3") == "z:5.3"
    assert place_name("blocks.6.hook_resid_post") == "resid_post:6"
    assert place_name("ln_final.hook_normalized") == "ln_final.normalized"
    assert place_name("layer six") == "layer six"
    assert place_layer(Z.format(5) + ".3") == 5
    assert place_layer("hook_embed") is None


# ---------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("tokens", ["last", "first", "mean"])
def test_a_head_is_its_slice_of_the_site(store: Store, tokens: str) -> None:
    whole, frame = store.pooled("z:1", tokens)
    heads = [read_place(store, f"z:1.{head}", tokens) for head in range(4)]
    torch.testing.assert_close(torch.cat([rows for rows, _ in heads], 1), whole, rtol=0, atol=0)
    for rows, own in heads:
        assert isinstance(rows, torch.Tensor)
        assert rows.shape == (6, 8)
        pd.testing.assert_frame_equal(own, frame)
    site, _ = read_place(store, Z.format(1), tokens)
    torch.testing.assert_close(site, whole, rtol=0, atol=0)


def test_every_gives_each_typical_token_of_each_text(store: Store) -> None:
    site = "blocks.1.hook_resid_post"
    rows, frame = read_place(store, site, "every")
    typical = np.flatnonzero(store.typical(site))
    torch.testing.assert_close(rows, store.rows(site, typical))
    assert frame["text_index"].tolist() == store.tokens["text"].iloc[typical].tolist()
    assert frame["position"].tolist() == store.tokens["position"].iloc[typical].tolist()
    assert (frame["position"] > 0).all()
    for row in frame.itertuples():
        assert (row.text, row.group) == (TEXTS[row.text_index], f"group {row.text_index // 2}")
    left_out = frame.attrs["left_out"]
    assert left_out == {
        "first": 6,
        "special": 6,
        "outlier": int((store.tokens["is_outlier"] & ~store.typical(site)).sum()),
    }
    assert sum(left_out.values()) + len(rows) == store.n_rows


def test_tokens_of_a_text_come_together(store: Store) -> None:
    site = "blocks.1.hook_resid_post"
    every, by_token = read_place(store, site, "every")
    for tokens in ("every", "last", "mean", "every:text"):
        found, frame = read_place(store, site, tokens, reads="tokens")
        assert isinstance(found, TokenRows)
        torch.testing.assert_close(found.X, every)
        assert frame["text"].tolist() == TEXTS
        assert found.text.tolist() == by_token["text_index"].tolist()
        assert frame.attrs["left_out"] == by_token.attrs["left_out"]
    head, _ = read_place(store, "z:0.1", reads="tokens")
    assert isinstance(head, TokenRows)
    assert head.X.shape[1] == 8


def test_token_rows_are_taken_and_padded() -> None:
    rng = np.random.default_rng(0)
    texts = [torch.tensor(rng.normal(size=(n, 3)), dtype=torch.float32) for n in (2, 5, 1, 3)]
    rows = TokenRows(torch.cat(texts), torch.tensor([0, 2, 7, 8, 11]))
    assert len(rows) == 4
    for chosen in ([3, 0, 0], [], np.array([1]), torch.tensor([2, 1]), np.array([True, False, True, False])):
        wanted = np.flatnonzero(chosen) if np.asarray(chosen).dtype == bool else np.asarray(chosen, dtype=int)
        taken = rows.take(chosen)
        assert len(taken) == len(wanted)
        for place, text in enumerate(wanted):
            torch.testing.assert_close(taken.X[taken.starts[place] : taken.starts[place + 1]], texts[text])
    values, mask = rows.padded()
    assert mask.sum(1).tolist() == [2, 5, 1, 3]
    for value, real, text in zip(values, mask, texts):
        torch.testing.assert_close(value[real], text)
    assert not values[~mask].any()
    with pytest.raises(ValueError, match="text 1 has no token"):
        TokenRows(rows.X, torch.tensor([0, 11, 11]))
    with pytest.raises(ValueError, match="number of tokens, 11"):
        TokenRows(rows.X, torch.tensor([0, 2]))


def test_rules_that_were_recorded_are_read_by_their_names() -> None:
    texts = [f"Q{i} answers {i}" for i in range(6)]
    examples = [
        Example(text, i % 2, meta={"answer_span": [3, len(text)], "position": i}) for i, text in enumerate(texts)
    ]
    model = tiny_model("llama")
    several = record(model, examples, sites="resid_post:1", tokens=["all", "answer", "mean"], progress=False)
    site = several.sites[0]
    every, _ = read_place(several, site, "every")
    answers, frame = read_place(several, site, "every:answer")
    assert len(every) == sum(len(text) - 1 for text in texts)  # averages are no tokens
    assert frame["position"].min() == 3
    assert frame["example_position"].tolist() == frame["text_index"].tolist()  # the caller's own column stays
    for tokens in ("answer", "last:answer"):
        found, _ = read_place(several, site, tokens, reads="tokens")
        assert isinstance(found, TokenRows)
        torch.testing.assert_close(found.X, answers)
    mean, _ = read_place(several, site, "mean:answer")
    torch.testing.assert_close(mean, several.pooled(site, "mean:answer")[0])
    alone = record(model, examples, sites="resid_post:1", tokens="answer", progress=False)
    torch.testing.assert_close(read_place(alone, site, "every")[0], answers)
    two = record(model, examples, sites="resid_post:1", tokens=["answer", "last"], progress=False)
    torch.testing.assert_close(read_place(two, site, "every")[0], answers)
    with pytest.raises(ValueError, match="every token is read as 'every', 'every:answer'"):
        read_place(alone, site, "every:prompt")
    last = record(model, examples, sites="resid_post:1", tokens="last", progress=False)
    with pytest.raises(ValueError, match=r"kept one row a text.*record with tokens='all'"):
        read_place(last, site, "every")


def test_a_view_is_read_like_a_store(store: Store) -> None:
    view = store.select(texts=[4, 1])
    rows, frame = read_place(view, "resid_post:1", "every")
    every, whole = read_place(store, "resid_post:1", "every")
    chosen = whole["text_index"].isin([1, 4]).to_numpy()
    torch.testing.assert_close(rows, every[chosen.tolist()])
    assert frame["text_index"].unique().tolist() == [1, 4]
    tokens, texts = read_place(view, "resid_post:1", reads="tokens")
    assert (len(tokens), texts.index.tolist()) == (2, [1, 4])


def test_what_cannot_be_read_is_refused(store: Store) -> None:
    memory = MemoryStore([np.zeros((4, 3))], frame_of(np.array([0, 1, 0, 1]), None))
    assert expand_places("resid_post:*", memory) == memory.sites
    assert read_place(memory, memory.sites[0])[0].shape == (4, 3)
    with pytest.raises(ValueError, match="asks for heads"):
        expand_places("resid_post:0.1", memory)
    with pytest.raises(ValueError, match="a MemoryStore has one row a text"):
        read_place(memory, memory.sites[0], "every")
    with pytest.raises(ValueError, match="names 4 places"):
        read_place(store, "z:0.*")
    with pytest.raises(ValueError, match="reads is 'row' or 'tokens'"):
        read_place(store, "z:0", reads="rows")
    with pytest.raises(ValueError, match="'last', 'first' or 'mean' for one a text, 'every' for each token a row"):
        read_place(store, "z:0", "all")
    with pytest.raises(ValueError, match="cannot be read from a store"):
        read_place(store, "z:0", "every:answer")
    short = record(tiny_model("llama"), ["a", "longer"], sites="resid_post:1", progress=False)
    with pytest.raises(ValueError, match="text 0 has no typical token"):
        read_place(short, "resid_post:1", "every")


def test_nan_in_single_tokens_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "rows", lambda self, site, index: torch.full((len(index), 32), torch.nan))
    with pytest.raises(ValueError, match="holds NaN or infinite"):
        read_place(store, "resid_post:1", "every")


# ------------------------------------------------------------------------------------------------- texts and labels


def test_a_store_of_other_texts_is_refused(store: Store, dataset: Dataset) -> None:
    check_texts(store, dataset)
    changed = {
        "6 texts, the data set 'words' has 5": dataset.take(range(5)),
        "the text of 2 of 6 rows differs in another order, first of row 0": dataset.take([1, 0, 2, 3, 4, 5]),
        "the label of 1 of 6 rows differs, first of row 2": _with(dataset, 2, label=1),
        "the group of 1 of 6 rows differs": _with(dataset, 3, group="other"),
        "the polarity of 1 of 6 rows differs": _with(dataset, 0, meta={"polarity": "negated", "id": "r0"}),
        "the text of 1 of 6 rows differs, first of row 5": _with(dataset, 5, text="else"),
        "joined by labels=": Dataset("words", tuple(Example(e.text, group=e.group) for e in dataset)),
    }
    for message, other in changed.items():
        with pytest.raises(ValueError, match=message):
            check_texts(store, other)
    with pytest.raises(ValueError, match="record the data set again"):
        check_texts(store, dataset.take(range(5)))
    cut = record(tiny_model("llama"), ["long " * 40], sites="resid_post:1", long="chunk", progress=False)
    with pytest.raises(ValueError, match="pieces of long texts"):
        check_texts(cut, dataset)


def _with(dataset: Dataset, row: int, **changes: object) -> Dataset:
    old = dataset.examples[row]
    fields = {"text": old.text, "label": old.label, "group": old.group, "meta": old.meta} | changes
    return Dataset(dataset.name, (*dataset.examples[:row], Example(**fields), *dataset.examples[row + 1 :]))  # type: ignore[arg-type]


def test_labels_that_come_later_find_their_texts(dataset: Dataset) -> None:
    bare = record(tiny_model("llama"), TEXTS, sites="resid_post:1", progress=False)
    shuffled = dataset.take(np.random.default_rng(0).permutation(6))
    want = [i % 2 for i in range(6)]
    by_text = {example.text: example.label for example in shuffled}
    by_number = {i: i % 2 for i in reversed(range(6))}
    for labels in (by_text, pd.Series(by_text), by_number, shuffled, shuffled.to_frame()):
        _, frame = read_place(bare, "resid_post:1", labels=labels)
        assert frame["label"].tolist() == want
        assert frame["text"].tolist() == TEXTS
        _, tokens = read_place(bare, "resid_post:1", "every", labels=labels)
        assert tokens["label"].tolist() == [i % 2 for i in tokens["text_index"]]
        assert tokens.attrs["left_out"]["first"] == 6
    _, frame = read_place(bare, "resid_post:1", labels=shuffled)
    assert frame["group"].tolist() == [f"group {i // 2}" for i in range(6)]
    assert frame["polarity"].tolist() == ["affirmative", "negated"] * 3
    by_id = join_labels(frame.assign(label=0), shuffled.to_frame().drop(columns="text"), by="id")
    assert by_id["label"].tolist() == want


def test_labels_that_fit_no_text_are_refused(store: Store, dataset: Dataset) -> None:
    _, frame = read_place(store, "resid_post:1")
    with pytest.raises(ValueError, match="a list, which does not say which text"):
        join_labels(frame, [0, 1, 0, 1, 0, 1])
    with pytest.raises(ValueError, match="nothing for 1 of 6 rows, the first is 'cloud"):
        join_labels(frame, {text: 1 for text in TEXTS if "cloud" not in text})
    twice = pd.concat([dataset.to_frame(), dataset.to_frame().iloc[:2]])
    assert join_labels(frame, twice)["label"].tolist() == frame["label"].tolist()
    with pytest.raises(ValueError, match="2 different rows for 'river"):
        join_labels(frame, twice.assign(label=[0, 1, 0, 1, 0, 1, 1, 1]))
    with pytest.raises(ValueError, match="labels= has no column 'key'"):
        join_labels(frame.assign(key=1), dataset.to_frame(), by="key")
