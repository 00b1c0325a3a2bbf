"""Labels of planted latents: each fires on tokens that are known, so page, label and score have one right answer."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from tiny import tiny_model

from interp.dataset import Example
from interp.model import HookedTransformer
from interp.recording import record
from interp.sae import SAE
from interp.sae.features import SAEFeatures, sae_features
from interp.sae.labels import (
    ExplainerPage,
    Passage,
    PassageReader,
    detection_score,
    explainer_page,
    explainer_pages,
    label_latents,
    labelling,
    load_detection_scores,
    load_sae_labels,
    scoring,
)
from interp.sae.labels.scoring import _Passages, detection_figures
from interp.store import Store

ALPHABET = "abcdefgh \n.xyzQR0123456789"
COMMON = "abcdefgh "
FIRES_ON = ("x", "y", "0123456789", "QR", "\n", ALPHABET, "")
"""The tokens of each latent; the last but one fires everywhere, the last never."""


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    """A token is a byte, and its embedding is all that the planted latents read."""
    return tiny_model("llama")


@pytest.fixture(scope="module")
def store(model: HookedTransformer) -> Store:
    """Texts of common characters in which a few rare ones stand."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(80):
        characters = rng.choice(list(COMMON), size=90)
        for at in rng.choice(90, size=3, replace=False):
            characters[at] = rng.choice(list("xxyyzQR.\n0123456789"))
        texts.append("".join(characters))
    examples = [Example(text, group=str(number)) for number, text in enumerate(texts)]
    return record(model, examples, sites="embed", dtype="float32", progress=False)


@pytest.fixture(scope="module")
def sae(model: HookedTransformer) -> SAE:
    """Latents that are 1 on their tokens and 0 on the others: as many embeddings as dimensions can be told apart."""
    assert model.tokenizer is not None
    ids = [model.tokenizer.to_single_token(character) for character in ALPHABET]
    wanted = torch.tensor([[float(character in tokens) for tokens in FIRES_ON] for character in ALPHABET])
    W_enc = torch.linalg.lstsq(model.embed.weight[ids].double(), wanted.double()).solution.float()
    threshold = torch.full((len(FIRES_ON),), 0.5)
    card = {"sites": ["hook_embed"], "targets": ["hook_embed"], "widths": {"hook_embed": 32}}
    return SAE(W_enc, torch.zeros(len(FIRES_ON)), W_enc.T.clone(), torch.zeros(32), threshold=threshold, card=card)


@pytest.fixture(scope="module")
def features(sae: SAE, store: Store) -> SAEFeatures:
    return sae_features(sae, store, n_examples=12, n_intervals=2, n_neighbours=1)


# ------------------------------------------------------------------------------------------------------------ pages


def test_pages_quote_the_store(features: SAEFeatures, store: Store, sae: SAE, model: HookedTransformer) -> None:
    dense = sae.encode(store.rows("embed", slice(None))).numpy() * store.typical("embed")[:, None]
    tokens = store.tokens
    for found in explainer_pages(features, store, [0, 2, 4], model, before=9, after=4, n_others=7):
        assert len(found.others) == 7
        assert len({each.text_number for each in found.others}) == 7
        for each in (*found.examples, *found.quantiles, *found.others):
            text = store.examples.loc[each.text_number, "text"]
            assert each.text == text[each.start : each.start + len(each.tokens)]
            rows = tokens.index[tokens["text"] == each.text_number][each.start : each.start + len(each.tokens)]
            assert np.allclose(each.values, dense[rows, found.latent], atol=1e-6)
            assert len(each.tokens) <= 14
        assert all(
            each.values[each.at] > 0 and each.tokens[each.at] in FIRES_ON[found.latent] for each in found.examples
        )
        assert not any(any(each.values) for each in found.others)


def test_every_second_example_is_held_out(features: SAEFeatures, store: Store, model: HookedTransformer) -> None:
    shown, every = (explainer_page(features, store, 0, model, hold_out=held) for held in (True, False))
    assert shown.examples == every.examples[::2]
    assert len(every.quantiles) > len(shown.quantiles) > 0
    assert set(shown.shown_texts) >= {each.text_number for each in shown.examples}


def test_what_makes_no_page_is_refused(features: SAEFeatures, store: Store, model: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="there is no latent 99"):
        explainer_page(features, store, 99, model)
    with pytest.raises(ValueError, match="latent 6 never fires"):
        explainer_page(features, store, 6, model)
    with pytest.raises(ValueError, match="-1 tokens on one side"):
        explainer_page(features, store, 0, model, before=-1)
    with pytest.raises(ValueError, match="n_others=-1"):
        explainer_page(features, store, 0, model, n_others=-1)


# ----------------------------------------------------------------------------------------------------------- labels


def test_labels_of_planted_latents(
    features: SAEFeatures, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    labels = label_latents(features, store, model)
    assert labels.frame["latent"].tolist() == [0, 1, 2, 3, 4, 5]
    assert labels.label(0) == "token 'x' (100% of its activation)"
    assert labels.label(1) == "token 'y' (100% of its activation)"
    assert "number" in labels.label(2)
    assert "capital" in labels.label(3) or "'Q' or 'R'" in labels.label(3) or "'R' or 'Q'" in labels.label(3)
    assert labels.label(4) == "token '\\n' (100% of its activation)"
    assert labels.card["n_never_firing"] == 1
    assert labels.summary() == "6 of 6 latents have a label."
    back = load_sae_labels(labels.save(tmp_path / "labels"))
    pd.testing.assert_frame_equal(back.frame, labels.frame)
    assert back.rules() == labels.rules()
    assert back.card["explainer"]["function"] == "interp.sae.labels.statistics.statistics_explainer"
    assert repr(back) == "SAELabels(6 of 6 latents have a label)"
    with pytest.raises(ValueError, match="latent 6 was not labelled"):
        labels.label(6)
    with pytest.raises(ValueError, match="exists already"):
        labels.save(tmp_path / "labels")


def test_a_failure_belongs_to_its_latent(
    features: SAEFeatures, store: Store, model: HookedTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    def explainer(page: ExplainerPage) -> Any:
        if page.latent == 1:
            raise KeyError("no idea")
        return {0: "fires on x", 2: "  ", 3: 5, 4: "y" * 3000}[page.latent]

    with caplog.at_level(logging.WARNING, "interp"):
        labels = label_latents(features, store, model, explainer, latents=[4, 0, 1, 2, 3])
    assert labels.frame["latent"].tolist() == [0, 1, 2, 3, 4]
    assert labels.frame["label"].tolist() == ["fires on x", None, None, None, None]
    errors = labels.frame["error"].tolist()
    assert errors[:3] == [None, "KeyError: 'no idea'", "ValueError: the explainer returned an empty text"]
    assert "returned a int" in errors[3]
    assert "3000 characters" in errors[4]
    assert "latent 1 has no label: KeyError: 'no idea'" in caplog.text
    assert labels.summary().startswith("1 of 5 latents have a label; 4 failed")
    with pytest.raises(ValueError, match="latent 1 has no label: KeyError"):
        labels.label(1)


def test_an_interrupted_run_goes_on(
    features: SAEFeatures, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    journal, asked = tmp_path / "labels.jsonl", []

    def explainer(page: ExplainerPage) -> str:
        asked.append(page.latent)
        if len(asked) == 2:
            raise RuntimeError("busy")
        if len(asked) == 4:
            raise KeyboardInterrupt
        return f"latent {page.latent}"

    with pytest.raises(KeyboardInterrupt):
        label_latents(features, store, model, explainer, explainer_id="mine", path=journal)
    with journal.open("ab") as file:
        file.write(b'{"latent": 3, "label": "half a li')  # as signal 9 leaves it
    steps: list[tuple[int, int]] = []
    labels = label_latents(
        features, store, model, explainer, explainer_id="mine", path=journal, progress=lambda *at: steps.append(at)
    )
    assert asked == [0, 1, 2, 3, 1, 3, 4, 5]
    assert steps == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert labels.frame["label"].tolist() == [f"latent {latent}" for latent in range(6)]
    again = label_latents(features, store, model, explainer, explainer_id="mine", path=journal)
    pd.testing.assert_frame_equal(again.frame, labels.frame)
    assert len(asked) == 8
    with pytest.raises(ValueError, match="results of another run"):
        label_latents(features, store, model, explainer, explainer_id="mine", path=journal, seed=1)
    (tmp_path / "other.jsonl").write_text("not a journal\n")
    with pytest.raises(ValueError, match="is not a journal"):
        label_latents(features, store, model, explainer, path=tmp_path / "other.jsonl")
    assert (tmp_path / "other.jsonl").read_text() == "not a journal\n"


def test_answers_of_another_explainer_are_not_taken_over(
    features: SAEFeatures, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    def explainer_with(prompt: Any) -> Any:
        return lambda page: f"{prompt} {page.latent}"

    journal = tmp_path / "labels.jsonl"
    for _ in range(2):
        label_latents(features, store, model, explainer_with("first"), path=journal)
    with pytest.raises(ValueError, match=r"another run \(not the same: explainer\): .*explainer_id= in both runs"):
        label_latents(features, store, model, explainer_with("second"), path=journal)
    with pytest.raises(
        ValueError, match=r"cannot be kept in a file: it uses prompt \(builtins.object\).*explainer_id="
    ):
        label_latents(features, store, model, explainer_with(object()), path=tmp_path / "other.jsonl")
    labels = label_latents(features, store, model, explainer_with(object()))
    assert "unidentified" in labels.card["explainer"]
    judged = tmp_path / "scores.jsonl"
    detection_score(features, store, model, labels, lambda _, passages: [True] * len(passages), path=judged)
    with pytest.raises(ValueError, match=r"not the same: judge\)"):
        detection_score(features, store, model, labels, lambda _, passages: [False] * len(passages), path=judged)


def test_what_is_no_explainer_and_no_list_is_refused(
    features: SAEFeatures, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="explainer='gpt' cannot be called"):
        label_latents(features, store, model, "gpt")
    with pytest.raises(ValueError, match=r"latents=3 is no list of latents: give their numbers, such as \[3\]"):
        label_latents(features, store, model, latents=3)
    with pytest.raises(ValueError, match=r"latents holds 1\.5"):
        label_latents(features, store, model, latents=[0, 1.5])
    labels = label_latents(features, store, model, latents=np.array([0, 1]))
    with pytest.raises(ValueError, match="judge='gpt' cannot be called"):
        detection_score(features, store, model, labels, "gpt")
    with pytest.raises(ValueError, match="latents=0 is no list"):
        detection_score(features, store, model, labels, latents=0)
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(ValueError, match="is no folder: give one that sae labels were saved in"):
            load_sae_labels(place)


def test_a_broken_explainer_stops_the_run(
    features: SAEFeatures, store: Store, model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explainer(page: ExplainerPage) -> str:
        raise OSError("no network")

    monkeypatch.setattr(labelling, "GIVE_UP", 3)
    with pytest.raises(RuntimeError, match="3 latents in a row, the last time with OSError: no network"):
        label_latents(features, store, model, explainer)


# ---------------------------------------------------------------------------------------------------------- scoring


def test_right_labels_score_1_and_wrong_ones_a_half(
    features: SAEFeatures, store: Store, model: HookedTransformer, tmp_path: Path
) -> None:
    labels = label_latents(features, store, model, latents=range(5))
    scores = detection_score(features, store, model, labels, before=6, after=3)
    assert scores.frame["balanced_accuracy"].tolist() == [1.0] * 5
    assert (scores.frame["n_firing"] >= 5).all()
    assert (scores.frame["n_silent"] == 20).all()
    assert scores.mean == (1.0, 1.0, 1.0)
    assert repr(scores) == (
        "DetectionScores(balanced accuracy 1.000 (1.000 to 1.000), mean over 5 latents; 0.5 says nothing)"
    )
    swapped = labels.frame.assign(rule=labels.frame["rule"].tolist()[1:] + labels.frame["rule"].tolist()[:1])
    wrong = detection_score(features, store, model, dataclasses.replace(labels, frame=swapped), before=6, after=3)
    assert wrong.frame["balanced_accuracy"].between(0.3, 0.7).all()
    assert "mean over 5 latents; 0.5 says nothing." in wrong.summary()
    joined = labels.scored(scores.frame).frame
    assert joined["balanced_accuracy"].tolist() == [1.0] * 5
    assert joined["label"].tolist() == labels.frame["label"].tolist()
    back = load_detection_scores(scores.save(tmp_path / "scores"))
    pd.testing.assert_frame_equal(back.frame, scores.frame)
    with pytest.raises(ValueError, match="holds no sae labels"):
        load_sae_labels(tmp_path / "scores")


def test_the_judge_sees_passages_that_the_explainer_did_not(
    features: SAEFeatures, store: Store, model: HookedTransformer
) -> None:
    labels = label_latents(features, store, model, lambda page: f"fires on {page.latent}", latents=range(5))
    seen: dict[str, list[Passage]] = {}

    def judge(label: str, passages: Any) -> list[float]:
        assert all(type(passage) is Passage for passage in passages)
        seen[label] = list(passages)
        tokens = FIRES_ON[int(label.split()[-1])]
        return [0.9 if any(token in tokens for token in passage.tokens) else 0.2 for passage in passages]

    scores = detection_score(features, store, model, labels, judge, n_silent=9)
    assert (scores.frame["auroc"] == 1).all()
    assert (scores.frame["n_silent"] == 9).all()
    texts = store.examples["text"]
    for row in labels.frame.itertuples():
        for passage in seen[str(row.label)]:
            found = {
                n
                for n, text in texts.items()
                if text[passage.start : passage.start + len(passage.tokens)] == passage.text
            }
            assert found
            assert not found & set(row.shown_texts)  # pyright: ignore[reportArgumentType]
    again = detection_score(features, store, model, labels, judge, n_silent=9)
    pd.testing.assert_frame_equal(again.frame, scores.frame)


def test_no_piece_of_a_document_that_was_shown_is_judged(sae: SAE, store: Store, model: HookedTransformer) -> None:
    texts = store.examples["text"].tolist()
    long = ["".join(texts[start : start + 4]) for start in range(0, 80, 4)]
    cut = record(model, long, sites="embed", long="chunk", max_length=60, dtype="float32", progress=False)
    assert cut.n_texts > 100
    features = sae_features(sae, cut, n_examples=12, n_intervals=2, n_neighbours=1)
    document = cut.examples["document"]
    reader = PassageReader(features, cut, model)
    rows = reader.random_rows(100, seed=0)
    assert sorted(document.loc[cut.tokens["text"].iloc[rows]]) == list(range(20))
    labels = label_latents(features, cut, model, lambda page: "something", latents=[0, 1], n_others=4)
    for row in labels.frame.itertuples():
        shown = set(document.loc[list(row.shown_texts)])  # pyright: ignore[reportArgumentType]
        passages = _Passages(features, reader, 20, 20, seed=0)
        judged = {document.loc[context.text_number] for context, _ in passages.of(int(row.latent), row.shown_texts)}  # pyright: ignore[reportArgumentType]
        assert judged
        assert not judged & shown
    other = sae_features(sae, cut, rows=cut.tokens["text"].to_numpy() % 2 == 1, n_neighbours=1)
    even = sorted(set(range(0, cut.n_texts, 2)))
    read = other.activations.rows.row
    assert PassageReader(other, cut, model).in_documents_of(read, even).all()  # texts that these features did not read


def test_silent_passages_hold_no_activation(features: SAEFeatures, store: Store, model: HookedTransformer) -> None:
    reader = PassageReader(features, store, model, before=12, after=2)
    rows = reader.random_rows(60, seed=2)
    assert len(np.unique(store.tokens["text"].to_numpy()[rows])) == 60
    for latent in range(len(FIRES_ON)):
        silent = reader.silent(latent, rows)
        contexts = reader.contexts(latent, rows)
        assert silent.tolist() == [not any(each.values) for each in contexts]
        # The first token of a text is not typical, and was not read.
        holds = [any(t in FIRES_ON[latent] for t in each.tokens[int(each.start == 0) :]) for each in contexts]
        assert silent.tolist() == [not each for each in holds]


def test_what_cannot_be_scored_says_why(features: SAEFeatures, store: Store, model: HookedTransformer) -> None:
    labels = label_latents(features, store, model)

    def judge(label: str, passages: Any) -> Any:
        if "'x'" in label:
            raise RuntimeError("refused")
        if "'y'" in label:
            return [0.5]
        return [2.0] * len(passages) if "number" in label else [True] * len(passages)

    scores = detection_score(features, store, model, labels, judge).frame
    assert scores["score_error"].tolist()[0] == "RuntimeError: refused"
    assert "answers to" in scores["score_error"].tolist()[1]
    assert "no probability between 0 and 1" in scores["score_error"].tolist()[2]
    assert scores["balanced_accuracy"].tolist()[3:5] == [0.5, 0.5]
    assert scores["score_error"].tolist()[5] == "no passage is left in which the latent is silent, 5 are needed"
    assert scores["balanced_accuracy"].isna().tolist() == [True, True, True, False, False, True]
    texts = label_latents(features, store, model, lambda page: "something", latents=[0])
    with pytest.raises(ValueError, match="label of latent 0 is a text that cannot be tested: give judge="):
        detection_score(features, store, model, texts)
    with pytest.raises(ValueError, match="latent 1 has no label"):
        detection_score(features, store, model, texts, judge, latents=[1])
    with pytest.raises(ValueError, match="at least 1"):
        detection_score(features, store, model, texts, judge, n_silent=0)


def test_few_passages_are_no_score(
    features: SAEFeatures, store: Store, model: HookedTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = label_latents(features, store, model, latents=[0, 1])
    least = int(detection_score(features, store, model, labels).frame["n_firing"].min())
    monkeypatch.setattr(scoring, "MIN_PASSAGES", least + 1)
    scores = detection_score(features, store, model, labels).frame
    few = scores["n_firing"] == least
    assert few.any()
    assert (
        scores.loc[few, "score_error"] == f"{least} passages are left in which the latent fires, {least + 1} are needed"
    ).all()
    assert scores.loc[few, "balanced_accuracy"].isna().all()
    monkeypatch.setattr(scoring, "MIN_PASSAGES", 99)
    none = detection_score(features, store, model, labels, n_firing=100, n_silent=100)
    assert repr(none).startswith("DetectionScores(no latent has a score. 2 have no score, ")
    asked = detection_score(features, store, model, labels, n_firing=1, n_silent=1).frame  # as the caller wants it
    assert asked["score_error"].isna().all()


def test_scoring_goes_on_and_gives_up(
    features: SAEFeatures, store: Store, model: HookedTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = label_latents(features, store, model)
    journal, asked = tmp_path / "scores.jsonl", []

    def judge(label: str, passages: Any) -> list[bool]:
        asked.append(label)
        if 3 <= len(asked) <= 4:
            raise OSError("no network")
        return [True] * len(passages)

    monkeypatch.setattr(labelling, "GIVE_UP", 2)
    with pytest.raises(RuntimeError, match="the judge failed on 2 latents in a row, the last time with OSError"):
        detection_score(features, store, model, labels, judge, judge_id="mine", path=journal)
    scores = detection_score(features, store, model, labels, judge, judge_id="mine", path=journal)
    assert asked == [labels.label(latent) for latent in (0, 1, 2, 3, 2, 3, 4)]
    assert scores.frame["balanced_accuracy"].tolist()[:5] == [0.5] * 5
    with pytest.raises(ValueError, match="results of another run"):
        detection_score(features, store, model, labels, judge, judge_id="mine", path=journal, seed=3)
    strange = dataclasses.replace(labels, card={**labels.card, "sae": "another"})
    with pytest.raises(ValueError, match="labels are of another SAE"):
        detection_score(features, store, model, strange)


def test_figures_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(5)
    for n in (4, 30, 200):
        y = np.concatenate([[0, 1], rng.integers(0, 2, n)])
        answers = np.round(np.clip(0.3 * y + 0.7 * rng.random(n + 2), 0, 1), 1)
        found = detection_figures(answers, y)
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, answers > 0.5))
        assert found["f1"] == pytest.approx(f1_score(y, answers > 0.5))
        assert found["auroc"] == pytest.approx(roc_auc_score(y, answers))
        assert 0 <= found["low"] <= found["balanced_accuracy"] <= found["high"] <= 1
    perfect = detection_figures(np.array([1.0] * 10 + [0.0] * 10), np.array([1] * 10 + [0] * 10))
    assert (perfect["balanced_accuracy"], perfect["high"]) == (1.0, 1.0)
    assert 0.7 < perfect["low"] < 0.9


def test_the_interval_covers() -> None:
    """Of 300 draws with known rates about 95 % of the intervals hold the balanced accuracy."""
    rng = np.random.default_rng(1)
    y = np.array([1] * 20 + [0] * 20)
    held = []
    for _ in range(300):
        answers = np.concatenate([rng.random(20) < 0.85, rng.random(20) < 0.2]).astype(float)
        found = detection_figures(answers, y)
        held.append(found["low"] <= (0.85 + 0.8) / 2 <= found["high"])
    assert 0.91 <= np.mean(held) <= 0.99
