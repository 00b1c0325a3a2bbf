"""Search: BM25 against its formula written out, vectors against plain dot products, fusion against ranks by hand."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp.dataset import Dataset, Example, load_corpus, load_questions
from interp.meaning.passages import Passage, passages_of, sentences
from interp.meaning.retrieval import (
    BM25Retriever,
    DenseRetriever,
    HybridRetriever,
    Retriever,
    load_retriever,
    search_words,
)

TEXTS = [
    "The cat sat on the mat. The cat slept.",
    "A dog sat in the garden, and the dog barked at a cat.",
    "Birds sing in spring; nothing else is said of them here, at some length and in many words.",
    "The garden of the house has a gate.",
]


def planted(texts: Any) -> np.ndarray:
    """A stand-in for a sentence encoder: counts of letters, as unit rows."""
    counts = np.array([[text.casefold().count(c) + 0.1 for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts])
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def other(texts: Any) -> torch.Tensor:
    """Another encoder of the same width."""
    return torch.from_numpy(planted(texts)[:, ::-1].copy())


@pytest.fixture
def passages() -> list[Passage]:
    return passages_of(TEXTS, size=None)


def bm25(query: str, k1: float, b: float) -> list[float]:
    """Lucene's BM25, term by term."""
    documents = [text.lower().replace(".", "").replace(",", "").replace(";", "").split() for text in TEXTS]
    mean = sum(map(len, documents)) / len(documents)
    found = []
    for words in documents:
        counts, total = Counter(words), 0.0
        for word in query.lower().split():
            df = sum(word in each for each in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            total += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(words) / mean))
        found.append(total)
    return found


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (1.2, 0.0)])
@pytest.mark.parametrize("query", ["cat garden", "the DOG dog", "spring"])
def test_bm25_is_its_formula(passages: list[Passage], query: str, k1: float, b: float) -> None:
    expected = np.array(bm25(query, k1, b))
    scores = BM25Retriever(passages, k1=k1, b=b).scores(query)
    np.testing.assert_allclose(np.where(np.isfinite(scores), scores, 0), expected, rtol=1e-12)
    assert (np.isinf(scores) == (expected == 0)).all()
    found = BM25Retriever(passages, k1=k1, b=b).search(query, 10)
    assert found["passage"].tolist() == [i for i in np.argsort(-expected, kind="stable") if expected[i] > 0]


def test_dense_search_is_by_dot_products(passages: list[Passage]) -> None:
    retriever = DenseRetriever(passages, planted)
    expected = planted(TEXTS).astype(float) @ planted(["a bird in spring"])[0].astype(float)
    np.testing.assert_allclose(retriever.scores("a bird in spring"), expected, atol=1e-6)
    found = retriever.search("a bird in spring", 3)
    assert found["passage"].tolist() == np.argsort(-expected)[:3].tolist()
    assert found["rank"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(retriever.search(TEXTS[1], 1)["score"], [1.0], atol=1e-6)


def test_fusion_is_by_ranks(passages: list[Passage]) -> None:
    words, meaning = BM25Retriever(passages), DenseRetriever(passages, planted)
    hybrid = HybridRetriever([words, meaning])
    query = "garden gate"
    expected = np.zeros(len(passages))
    for part in (words, meaning):
        for rank, passage in zip(*[part.search(query, 10)[c].tolist() for c in ("rank", "passage")]):
            expected[passage] += 1 / (60 + rank)
    np.testing.assert_allclose(hybrid.scores(query), expected)
    assert len(words.search(query, 10)) < len(hybrid.search(query, 10)) == 4
    assert all(isinstance(each, Retriever) for each in (words, meaning, hybrid))


def test_equal_passages_keep_their_order_and_order_changes_no_score(passages: list[Passage]) -> None:
    twice = passages_of([*TEXTS, TEXTS[0]], size=None)
    assert BM25Retriever(twice).search("cat mat", 2)["passage"].tolist() == [0, 4]
    turned = BM25Retriever(passages[::-1]).scores("cat garden")
    np.testing.assert_allclose(turned[::-1], BM25Retriever(passages).scores("cat garden"))


def test_the_document_that_says_the_answer_is_found_first() -> None:
    documents = load_corpus("evidence")
    retriever = BM25Retriever(passages_of(documents, size=None))
    questions = load_questions("questions")[:200]
    groups = [retriever.search(q.prompt.split("\n")[0].removeprefix("Question: "), 1)["group"] for q in questions]
    right = [list(found) == [q.group] for found, q in zip(groups, questions)]
    assert np.mean(right) > 0.95


@pytest.mark.parametrize("kind", ["bm25", "dense", "hybrid"])
def test_save_and_load(passages: list[Passage], kind: str, tmp_path: Path) -> None:
    parts = {"bm25": BM25Retriever(passages, k1=1.1), "dense": DenseRetriever(passages, planted)}
    made = HybridRetriever(list(parts.values()), constant=10) if kind == "hybrid" else parts[kind]
    path = made.save(tmp_path / "retriever.safetensors")
    again = load_retriever(path, encoder=None if kind == "bm25" else planted)
    assert again.passages == made.passages
    assert again.describe() == made.describe()
    np.testing.assert_array_equal(again.scores("garden cat"), made.scores("garden cat"))
    assert path.read_bytes() == again.save(tmp_path / "again.safetensors").read_bytes()
    if kind != "bm25":
        with pytest.raises(ValueError, match="pass the same one as encoder="):
            load_retriever(path)
        with pytest.raises(ValueError, match="gives other vectors"):
            load_retriever(path, encoder=other)


def test_words_of_any_script() -> None:
    assert search_words("Bogotá's ＣＡＴ, straße_2!") == ["bogotá", "s", "cat", "strasse", "2"]
    assert search_words("東京タワー は") == ["東", "京", "タ", "ワ", "ー", "は"]
    assert search_words("हिन्दी में") == ["हिन्दी", "में"]  # vowel signs belong to their word
    assert search_words("\u202e... ;") == []
    found = BM25Retriever(passages_of(["東京は日本の首都です。", "Paris is in France."], size=None)).search("東京", 2)
    assert found["passage"].tolist() == [0]


@pytest.mark.parametrize("by", ["sentences", "words"])
@pytest.mark.parametrize(("size", "overlap"), [(1, 0), (2, 1), (3, 0), (50, 3)])
def test_nothing_is_cut_off(by: str, size: int, overlap: int) -> None:
    text = ' "Is it?" she asked.\n\nMr. J. R. Smith came at 3.5 p.m. yes… Then 東京です。次の文。 \t End without a mark'
    found = passages_of([text, TEXTS[0]], size=size, overlap=overlap, by=by, groups=["a", None])
    own = [passage for passage in found if passage.source == "document 0"]
    assert all(text[p.start : p.end] == p.text == p.text.strip() for p in own)
    covered = {place for p in own for place in range(p.start, p.end)}
    assert all(text[place].isspace() for place in set(range(len(text))) - covered)
    assert [p.group for p in found] == ["a"] * len(own) + [None] * (len(found) - len(own))
    if overlap and len(own) > 1:
        assert all(a.end > b.start for a, b in itertools.pairwise(own))


def test_sentences_end_where_they_end() -> None:
    assert sentences("Dr. Who is J. Smith. He left! Did he?  Yes.") == [
        "Dr. Who is J. Smith.",
        "He left!",
        "Did he?",
        "Yes.",
    ]
    assert sentences('He said "go." Then he went.\n\nA title\n\nText') == [
        'He said "go."',
        "Then he went.",
        "A title",
        "Text",
    ]
    assert sentences("東京です。次の文。") == ["東京です。", "次の文。"]


def test_files_and_data_sets(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("One. Two.\r\nThree.", encoding="utf-8")
    (passage,) = passages_of([file], size=None)
    assert (passage.text, passage.source) == ("One. Two.\r\nThree.", str(file))
    data = Dataset("d", (Example("One. Two.", group="g"), Example("Three.", group="h")))
    assert [(p.source, p.group) for p in passages_of(data, size=1, overlap=0)] == [
        ("d 0", "g"),
        ("d 0", "g"),
        ("d 1", "h"),
    ]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="no UTF-8 text"):
        passages_of(file)
    with pytest.raises(ValueError, match="cannot be read"):
        passages_of(tmp_path / "none.txt")


def test_a_folder_is_its_text_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in {"c.txt": "One.", "b/a.MD": "Two.", "a.pdf": "Three."}.items():
        (tmp_path / name).write_text(text)
    found = passages_of([tmp_path, "Four."], groups=["g", None])
    assert [(p.text, p.source, p.group) for p in found] == [
        ("Two.", str(tmp_path / "b/a.MD"), "g"),
        ("One.", str(tmp_path / "c.txt"), "g"),
        ("Four.", "document 1", None),
    ]
    (tmp_path / "b/a.MD").unlink()
    with pytest.raises(ValueError, match=r"has no .txt or .md file \(it holds nothing\)"):
        passages_of(tmp_path / "b")


def test_a_path_is_not_taken_for_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "a.txt"
    file.write_text("One.")
    for documents in (str(file), str(tmp_path), ["Two.", str(file)], "~/a.txt"):
        with pytest.raises(ValueError, match=r"is the path .*pathlib\.Path\(.*or its text"):
            passages_of(documents)
    assert passages_of(f"{file} ")[0].text == str(file)
    assert passages_of(["~\0", "x" * 9999, "a\0b"])


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([], {}, "no documents"),
        (["a", " \n"], {}, "document 1 is empty"),
        (["a"], {"size": 0}, "size must be"),
        (["a"], {"size": True}, "size must be"),
        (["a"], {"size": 2, "overlap": 2}, "overlap must be"),
        (["a"], {"by": "tokens"}, "'sentences' or 'words'"),
        (["a"], {"groups": []}, "1 documents and 0 groups"),
        ([3], {}, "document 0 is a int"),
    ],
)
def test_bad_documents_are_refused(documents: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        passages_of(documents, **options)


def test_bad_settings_are_refused(passages: list[Passage], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs passages"):
        BM25Retriever([])
    with pytest.raises(ValueError, match="needs passages"):
        DenseRetriever(["a text"], planted)
    with pytest.raises(ValueError, match="no passage holds a word"):
        BM25Retriever(passages_of(["..."]))
    with pytest.raises(ValueError, match="b lie in"):
        BM25Retriever(passages, b=2)
    with pytest.raises(ValueError, match="not of length 1"):
        DenseRetriever(passages, lambda texts: 2 * planted(texts))
    with pytest.raises(ValueError, match="not of length 1"):
        DenseRetriever(passages, lambda texts: planted(texts) * np.nan)
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        DenseRetriever(passages, lambda texts: np.ones(len(texts)))
    words = BM25Retriever(passages)
    with pytest.raises(ValueError, match="two retrievers"):
        HybridRetriever([words])
    with pytest.raises(ValueError, match="different passages"):
        HybridRetriever([words, BM25Retriever(passages[1:])])
    for query, k, message in [("", 1, "query is empty"), ("a", 0, "k must be"), ("a", True, "k must be")]:
        with pytest.raises(ValueError, match=message):
            words.search(query, k)
    assert words.search("zebra", 3).empty
    (tmp_path / "x").write_bytes(b"{}")
    with pytest.raises(ValueError, match="safetensors"):
        load_retriever(tmp_path / "x")
