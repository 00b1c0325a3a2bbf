"""Inference by a transformers classifier: labels by name, both rules, no influence of order and batch."""

import json
from pathlib import Path

import pytest
import torch
from encoders import WORDS, word_tokenizer, write_nli, write_sentence_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertForSequenceClassification

from interp.meaning import NLIMatch, NLIModel, load_nli

PAIRS = [
    ("paris is the capital of france", "the capital of france is paris"),
    ("paris", "rome"),
    ("rome", "paris"),
    ("it is a big city and not small", "it is not big"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nli") / "nli"
    write_nli(path)
    return path


@pytest.fixture(scope="module")
def nli(folder: Path) -> NLIModel:
    return load_nli(folder)


def test_probabilities_are_transformers_in_our_order(folder: Path, nli: NLIModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    found = nli(PAIRS)
    for row, (one, other) in zip(found, PAIRS):
        with torch.no_grad():
            p = model(**tokenizer(one, other, padding=False, return_tensors="pt")).logits[0].softmax(0)
        # The folder's labels are contradiction, entailment, neutral; ours entailment, neutral, contradiction.
        torch.testing.assert_close(row, p[[1, 2, 0]], atol=1e-5, rtol=0)
    assert len({tuple(row.round(decimals=3).tolist()) for row in found}) == len(PAIRS)
    described = nli.describe()
    assert (described["nli"], described["max_length"]) == ("nli", 40)
    assert json.loads(json.dumps(described)) == described
    assert described["fingerprint"] == load_nli(folder).fingerprint
    other = load_nli(folder)
    other.classifier.classifier.bias.data[0] += 1
    assert other.fingerprint != nli.fingerprint


@given(
    pairs=st.lists(
        st.tuples(*[st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)] * 2),
        min_size=1,
        max_size=7,
    ),
    size=st.integers(1, 8),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_order_and_batch_change_nothing(
    folder: Path, nli: NLIModel, pairs: list[tuple[str, str]], size: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pairs))))
    fresh = NLIModel(nli.classifier, nli.tokenizer, "fresh")  # without what is kept of earlier pairs
    found = fresh([pairs[i] for i in order], batch_size=size)
    alone = torch.cat([NLIModel(nli.classifier, nli.tokenizer, "alone")([pairs[i]]) for i in order])
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(1), torch.ones(len(pairs)))


def test_a_pair_is_run_once(nli: NLIModel) -> None:
    fresh = NLIModel(nli.classifier, nli.tokenizer, "fresh")
    first = fresh(PAIRS)
    fresh.classifier = None  # a second run would fail
    assert torch.equal(fresh([*PAIRS[::-1], PAIRS[0]]), torch.cat([first.flip(0), first[:1]]))


# ------------------------------------------------------------------------------------------------------ the two rules

E, N, C = 0, 1, 2


class Planted:
    """Answers by a table of labels, in place of a classifier."""

    def __init__(self, table: dict[tuple[str, str], int]) -> None:
        self.table = table

    def __call__(self, pairs: list[tuple[str, str]]) -> torch.Tensor:
        return torch.eye(3)[[self.table[pair] for pair in pairs]]

    def describe(self) -> dict[str, str]:
        return {"nli": "planted"}


@pytest.mark.parametrize(
    ("forth", "back", "lenient", "strict"),
    [
        (E, E, True, True),
        (E, N, True, False),
        (N, E, True, False),
        (N, N, False, False),
        (E, C, False, False),
        (C, E, False, False),
        (N, C, False, False),
        (C, C, False, False),
    ],
)
def test_both_rules(
    forth: int, back: int, lenient: bool, strict: bool, monkeypatch: pytest.MonkeyPatch, nli: NLIModel
) -> None:
    planted = Planted({("x", "y"): forth, ("y", "x"): back})
    for wanted, option in ((lenient, False), (strict, True)):
        match = NLIMatch(nli, strict=option)
        monkeypatch.setattr(match, "nli", planted)
        assert match.same([("x", "y"), ("y", "x")]) == [wanted, wanted]
        # Without content, and equal ones, are not asked about: the table has no such pair.
        assert match.same([("", "x"), ("", "..."), ("X.", "x")]) == [False, True, True]
        assert match.describe()["rule"].startswith("both directions" if option else "neither direction")


def test_verdicts_are_symmetric(nli: NLIModel) -> None:
    for strict in (False, True):
        match = NLIMatch(nli, strict)
        assert match.same(PAIRS) == match.same([(other, one) for one, other in PAIRS])


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "labels",
    [
        ("LABEL_0", "LABEL_1", "LABEL_2"),
        ("entailment", "not_entailment"),
        ("entailment", "neutral", "contradiction", "other"),
        ("entailment", "neutral", "neutral "),
        ("entailment", "neutral", "no"),
    ],
)
def test_other_labels_are_refused(tmp_path: Path, labels: tuple[str, ...]) -> None:
    write_nli(tmp_path, labels)
    with pytest.raises(
        ValueError, match=r"needed are entailment, neutral, contradiction, each once. If you know which"
    ):
        load_nli(tmp_path)


def test_folders_that_are_no_classifiers_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_nli(tmp_path / "nothing")
    write_sentence_encoder(tmp_path / "encoder")
    with pytest.raises(ValueError, match="no sequence classifier: its answers would come from a random head"):
        load_nli(tmp_path / "encoder")
    write_nli(tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").rename(tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"transformers cannot read .*pickled as a sequence classifier"):
        load_nli(tmp_path / "pickled")


def test_input_that_does_not_fit_is_refused(nli: NLIModel) -> None:
    with pytest.raises(ValueError, match="a pair has 43 tokens, and nli reads 40"):
        nli([("one " * 20, "two " * 20)])
    with pytest.raises(ValueError, match="the list is empty"):
        nli([])
    with pytest.raises(ValueError, match="pair 1 is not two texts"):
        nli([("a", "b"), "ab"])
    with pytest.raises(ValueError, match="batch_size must be"):
        nli(PAIRS, batch_size=0)


def test_damaged_weights_give_no_answers(tmp_path: Path) -> None:
    classifier = write_nli(tmp_path)
    with torch.no_grad():
        classifier.classifier.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="damaged gives NaN for a pair"):
        NLIModel(classifier, word_tokenizer(), "damaged")(PAIRS)
