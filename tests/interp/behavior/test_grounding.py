"""Grounding: prompts, attention against recorded patterns, planted evidence, abstention, a resumed report, hostile text."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from far import far_workers
from tiny import tiny_model

from interp.behavior.grounding import GroundingReport, grounded_answer, grounding_report
from interp.behavior.grounding import run as grounding
from interp.behavior.grounding.figures import abstention
from interp.behavior.grounding.measures import (
    answer_logprob,
    attention_shares,
    best_cosines,
    sentence_support,
    word_support,
)
from interp.behavior.grounding.prompts import (
    Reading,
    Template,
    asked,
    fitting,
    query_of,
    reading,
    said_otherwise,
    spelled,
)
from interp.behavior.grounding.run import drawn_questions
from interp.behavior.grounding.work import DISTRACTOR, GOLD, MISLEADING, MISSING, NONE, RETRIEVED
from interp.dataset import Question, load_corpus, load_questions
from interp.meaning.passages import passages_of, sentences
from interp.meaning.retrieval import BM25Retriever
from interp.model import HookedTransformer

HOSTILE = "<script>alert(1)</script>\u202e{evidence}{question}{{7*7}}"
NAMES = ["Aro", "Bel", "Cyd", "Dov", "Eno", "Fal", "Gus", "Hux", "Ivo", "Jim", "Kip", "Lot"]
COLOURS = ["red", "blue", "green", "black"]
PLAIN = Template.of("plain")


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model("llama", n_ctx=512)


def questions() -> list[Question]:
    """Twelve people and their colours, in six groups."""
    return [
        Question(
            f"Question: Which colour does {name} like?\nAnswer:",
            tuple(f" {colour}" for colour in COLOURS),
            i % 4,
            group=f"g{i // 2}",
        )
        for i, name in enumerate(NAMES)
    ]


def documents(extra: str = "") -> list[Any]:
    texts = [f"{name} likes {COLOURS[i % 4]}.{extra}" for i, name in enumerate(NAMES)]
    return passages_of(texts, size=None, groups=[f"g{i // 2}" for i in range(len(NAMES))])


@pytest.fixture(scope="module")
def report(model: HookedTransformer) -> GroundingReport:
    return grounding_report(model, questions(), documents(), leave_out=0.34, n_boot=200)


# -------------------------------------------------------------------------------------------------------------- prompts


def test_a_template_is_joined_by_its_parts() -> None:
    shape = Template.of("E: {evidence}\nQ: {question}")
    assert shape.prompt("{question} {0}", "{evidence}?") == "E: {question} {0}\nQ: {evidence}?"
    assert shape.prompt("", "why?") == "E: why?"
    assert PLAIN.prompt("", "why?") == "why?"
    for wrong in (
        "no fields",
        "{question} {evidence}",
        "{evidence}{question} end",
        "{evidence}{evidence}{question}",
        3,
    ):
        with pytest.raises(ValueError, match="the template is"):
            Template.of(wrong)


def test_questions_and_queries() -> None:
    assert asked("Who? ") == "Question: Who?\nAnswer:"
    assert asked("Q: who?\nAnswer:") == "Q: who?\nAnswer:"
    assert query_of("Question: Who?\nAnswer:") == "Who?"
    assert query_of("Answer:") == "Answer:"


def test_answers_are_exchanged_as_whole_words() -> None:
    text = "Ada likes red, Tom likes blue; redder is no colour."
    assert said_otherwise(text, "red", "blue") == "Ada likes blue, Tom likes red; redder is no colour."
    assert said_otherwise("It is C++.", "C++", "C") == "It is C."
    assert said_otherwise(text, "green", "red") is None
    assert spelled("The  Sea!") in spelled("Over the sea.")
    assert spelled("sea") not in spelled("Seaside")


def test_what_does_not_fit_is_dropped_and_counted(model: HookedTransformer) -> None:
    small = tiny_model("llama", n_ctx=64)
    texts = ["a" * 20, "b" * 20, "c" * 20]
    kept, dropped = fitting(small, PLAIN, texts, "why?", [" yes", " no, never"])
    assert (kept, dropped) == (texts[:2], 1)  # one byte is one token: 20 + 1 + 20 + 2 + 4 + 10
    assert fitting(model, PLAIN, texts, "why?", [" yes"]) == (texts, 0)
    with pytest.raises(ValueError, match="with its best passage needs 106 tokens and the context holds 64"):
        fitting(small, PLAIN, ["a" * 90], "why?", ["  no never"])
    with pytest.raises(ValueError, match="context holds 64"):
        fitting(small, PLAIN, [], "w" * 90, [" yes"])


# ------------------------------------------------------------------------------------------------------------- measures


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_attention_is_that_of_the_recorded_patterns_in_any_batch(family: str) -> None:
    model = tiny_model(family, n_ctx=128)
    assert model.tokenizer is not None
    read = [
        reading(model.tokenizer, Template.of("> {evidence} | {question}"), evidence, "why?", [" yes", " never"], which)
        for evidence, which in [("It rains.", 0), ("A much longer passage of words.", 1), ("x y", 1)]
    ]
    shares, even = attention_shares(model, read)
    for size in (1, 2):
        np.testing.assert_allclose(attention_shares(model, read, batch_size=size)[0], shares, atol=1e-6)
    for index, each in enumerate(read):
        assert model.tokenizer.decode(each.ids[slice(*each.evidence)]) in (
            "It rains.",
            "A much longer passage of words.",
            "x y",
        )
        _, cache = model.run_with_cache(torch.tensor([each.ids[:-1]]), "pattern:*")
        queries = range(each.start - 1, len(each.ids) - 1)
        for layer in range(model.cfg.n_layers):
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0].double().mean(0).detach()
            expected = np.mean([float(pattern[q, slice(*each.evidence)].sum() / pattern[q, 1:].sum()) for q in queries])
            assert shares[index, layer] == pytest.approx(expected, abs=1e-6)
        n = each.evidence[1] - each.evidence[0]
        assert even[index] == pytest.approx(np.mean([n / q for q in queries]))


def test_position_0_is_never_evidence() -> None:
    model = tiny_model("llama")
    read = Reading(ids=[1, 2, 3, 4, 5, 6], start=5, evidence=(0, 3))
    shares, even = attention_shares(model, [read])
    _, cache = model.run_with_cache(torch.tensor([read.ids[:-1]]), "pattern:*")
    pattern = cache["blocks.0.attn.hook_pattern"][0].double().mean(0).detach()
    assert shares[0, 0] == pytest.approx(float(pattern[4, 1:3].sum() / pattern[4, 1:].sum()), abs=1e-6)
    assert even[0] == pytest.approx(2 / 4)


def test_support_by_hand() -> None:
    evidence = "Ada likes the red house. Tom likes a blue boat."
    assert word_support("the red boat", evidence) == 1.0
    assert word_support("green boat", evidence) == 0.5
    assert word_support("The", evidence) == 1.0
    assert word_support("...", evidence) is None
    # "What does Ada like?" has the words ada and like; the first sentence holds one of them.
    assert sentence_support("What does Ada like?", "red", evidence) == 0.5
    assert sentence_support("Does Ada likes it?", "red", evidence) == 1.0
    assert sentence_support("Does Ada likes it?", "blue", evidence) == 0.5
    assert sentence_support("Does Ada likes it?", "?", evidence) is None


def test_the_best_cosine_is_the_largest() -> None:
    def encoder(texts: list[str]) -> np.ndarray:
        angles = np.array([float(text.strip("!")) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)

    found = best_cosines(encoder, ["0.5", "1", "2"], ["0.1! 0.8!", "3!", ""])
    np.testing.assert_allclose(found[0], math.cos(0.3), atol=1e-6)
    np.testing.assert_allclose(found[1], math.cos(2), atol=1e-6)
    assert math.isnan(found[2])


def test_the_log_probability_of_an_answer_is_the_plain_one(model: HookedTransformer) -> None:
    logp = model(torch.tensor([[5, 6, 7, 8]])).detach().double().log_softmax(-1)[0]
    assert answer_logprob(model, [5, 6], [7, 8]) == pytest.approx(float(logp[1, 7] + logp[2, 8]), abs=1e-5)
    turned, ids = tiny_model("dynamic"), list(range(5, 25))
    logp = turned(torch.tensor([ids])).detach().double().log_softmax(-1)[0]
    wanted = sum(float(logp[i - 1, ids[i]]) for i in range(15, 20))
    assert answer_logprob(turned, ids[:15], ids[15:]) == pytest.approx(wanted, abs=1e-5)


# --------------------------------------------------------------------------------------------------------------- report


def test_every_condition_has_the_evidence_that_it_says(report: GroundingReport) -> None:
    answers = report.tables["answers"]
    table = {name: part.set_index("question") for name, part in answers.groupby("condition")}
    assert set(table) == {NONE, RETRIEVED, MISSING, GOLD, DISTRACTOR, MISLEADING}
    assert set(table[RETRIEVED].index) | set(table[MISSING].index) == set(range(12))
    assert not set(table[RETRIEVED].index) & set(table[MISSING].index)
    assert len(set(table[MISSING]["group"])) == report.values["left_out"] == 2
    for index in range(12):
        right = f"{NAMES[index]} likes {COLOURS[index % 4]}."
        assert table[NONE].loc[index, "evidence"] == ""
        assert table[GOLD].loc[index, "evidence"] == right
        misled = table[MISLEADING].loc[index, "evidence"]
        assert misled.startswith(f"{NAMES[index]} likes ")
        assert misled != right
        other = table[DISTRACTOR].loc[index, "evidence"]
        assert NAMES[index] not in other
        assert COLOURS[index % 4] not in other
        if index in table[RETRIEVED].index:
            assert table[RETRIEVED].loc[index, "evidence"] == right
        else:
            assert NAMES[index] not in table[MISSING].loc[index, "evidence"]


def test_following_is_told_apart_from_what_is_said_anyway(report: GroundingReport) -> None:
    answers = report.tables["answers"]
    alone = answers.loc[answers["condition"] == NONE].set_index("question")["answer"]
    misled = answers.loc[answers["condition"] == MISLEADING].set_index("question")
    moved = [bool(row["followed"]) and row["answer"] != alone[index] for index, row in misled.iterrows()]
    assert f"; in {np.mean(moved):.3f} of them it says another one without evidence" in report.summary()


def test_encoders_of_one_name_are_told_apart(model: HookedTransformer) -> None:
    class Encoder:
        name = "same"

        def __init__(self, weights: str) -> None:
            self.weights = weights

        def describe(self) -> dict[str, str]:
            return {"encoder": self.name, "fingerprint": self.weights}

        def __call__(self, texts: Any) -> np.ndarray:
            return np.tile([1.0, 0.0], (len(texts), 1))

    found = [
        grounding_report(
            model, questions(), documents(), conditions=["none", "retrieved"], encoder=Encoder(weights), n_boot=100
        ).card["encoder"]
        for weights in ("one", "other")
    ]
    assert found[0] != found[1]


def test_the_scores_are_those_of_the_plain_model(model: HookedTransformer, report: GroundingReport) -> None:
    answers = report.tables["answers"]
    assert model.tokenizer is not None
    for condition in (NONE, GOLD, MISLEADING):
        row = answers.loc[(answers["condition"] == condition) & (answers["question"] == 5)].iloc[0]
        scores = []
        for evidence in (row["evidence"], ""):
            prompt = (evidence + "\n\n" if evidence else "") + row["prompt"]
            start = len(model.tokenizer.encode(prompt))
            own = []
            for colour in COLOURS:
                ids = torch.tensor([model.tokenizer.encode(f"{prompt} {colour}")])
                logp = model(ids).detach().double().log_softmax(-1)[0]
                own.append(float(logp[:-1].gather(-1, ids[0, 1:, None])[start - 1 :].sum()))
            scores.append(np.array(own))
        chosen = int(scores[0].argmax())
        assert row["answer"] == COLOURS[chosen]
        assert row["right"] == (chosen == 5 % 4)
        assert row["p"] == pytest.approx(float(np.exp(scores[0][chosen]) / np.exp(scores[0]).sum()), abs=1e-4)
        if row["evidence"]:
            assert row["gain"] == pytest.approx(scores[0][chosen] - scores[1][chosen], abs=1e-4)


def test_figures_follow_from_the_answers(report: GroundingReport) -> None:
    answers, table = report.tables["answers"], report.to_frame().set_index("condition")
    plain = answers.loc[answers["condition"] == NONE].set_index("question")["right"].astype(float)
    for condition, part in answers.groupby("condition"):
        right = part["right"].astype(float)
        assert table.loc[condition, "error"] == pytest.approx(1 - right.mean())
        if condition != NONE:
            change = plain.loc[part["question"]].to_numpy() - right.to_numpy()
            assert table.loc[condition, "change"] == pytest.approx(change.mean())
            assert table.loc[condition, "change_low"] <= change.mean() <= table.loc[condition, "change_high"]
    assert report.tables["retrieval"]["recall"].tolist() == [1.0] * 5
    assert report.values["retrieval"]["mrr"] == 1.0
    layers = report.tables["layers"]
    for condition in (RETRIEVED, GOLD):
        own = layers.loc[layers["condition"] == condition, "share"]
        assert own.mean() == pytest.approx(table.loc[condition, "attention"])


def test_a_planted_threshold_is_found_on_one_half_and_checked_on_the_other() -> None:
    rng = np.random.default_rng(0)
    score = rng.uniform(0, 1, 400)
    right = rng.uniform(size=400) < np.where(score > 0.6, 0.97, 0.3)
    frame = pd.DataFrame(
        {"condition": RETRIEVED, "score": score, "right": right, "group": [f"g{i // 4}" for i in range(400)]}
    )
    curve, found, notes = abstention(frame, 0.1, 0, 200)
    assert notes == []
    assert found["reached"]
    assert found["threshold"] == pytest.approx(0.56, abs=0.06)
    assert found["error"] < 0.2 < found["error_all"]
    assert found["error_low"] <= found["error"] <= found["error_high"]
    assert found["n"] == 200
    own = curve.loc[(curve["part"] == "check") & (curve["threshold"] == found["threshold"])].iloc[0]
    assert (own["answered"], own["error"]) == (found["answered"], found["error"])
    hopeless = abstention(frame.assign(right=False), 0.1, 0, 200)[1]
    assert not hopeless["reached"]
    nothing = abstention(frame.assign(score=float("nan")), 0.1, 0, 200)
    assert (len(nothing[0]), nothing[1]) == (0, {})
    assert "no threshold was chosen" in nothing[2][0]
    assert abstention(frame.assign(group="one"), 0.1, 0, 200)[2] == ["Fewer than four groups: no threshold was chosen."]


def test_a_search_that_finds_nothing_is_told(model: HookedTransformer) -> None:
    blank = [Question("Question: Zzz?\nAnswer:", (" red", " blue"), 0, group="z"), *questions()]
    found = grounding_report(model, blank, documents(), conditions=["none", "retrieved"], n_boot=100)
    assert found.values["nothing_found"] == 1
    assert any("found nothing" in note for note in found.notes)
    assert found.tables["answers"]["attention"].isna().sum() == len(blank) + 1
    with pytest.raises(ValueError, match=r"1 of 13 questions have no known passage.*which gold need"):
        grounding_report(model, blank, documents(), conditions=["gold"])


def test_a_report_is_kept_resumed_and_read_again(
    model: HookedTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grounding, "PIECE", 6)

    def make(folder: str, **options: Any) -> GroundingReport:
        return grounding_report(
            model,
            questions(),
            documents(),
            free=True,
            max_new_tokens=3,
            n_boot=100,
            out=tmp_path / folder,
            **options,
        )

    whole = make("whole")
    assert whole.tables["answers"]["free"].map(type).eq(str).all()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make("parts", progress=stop)
    told: list[tuple[int, int]] = []
    make("parts", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    names = ("report.json", "report.html")
    assert all((tmp_path / "whole" / n).read_bytes() == (tmp_path / "parts" / n).read_bytes() for n in names)
    again = GroundingReport.load(tmp_path / "whole" / "report.json")
    assert again.summary() == whole.summary()
    assert json.dumps(again.to_dict(), sort_keys=True) == json.dumps(whole.to_dict(), sort_keys=True)
    for chart in (None, "errors", "abstention", "layers"):
        assert again.plot(chart).to_dict()
    with pytest.raises(ValueError, match="there is no chart 'x'"):
        again.plot("x")
    with pytest.raises(ValueError, match="replace"):
        make("whole", seed=1)


def test_the_size_of_batches_changes_nothing_that_counts(model: HookedTransformer, report: GroundingReport) -> None:
    other = grounding_report(model, questions(), documents(), leave_out=0.34, n_boot=200, batch_size=5)
    for name in ("attention", "gain", "p"):
        np.testing.assert_allclose(
            report.tables["answers"][name].astype(float), other.tables["answers"][name].astype(float), atol=1e-4
        )
    assert report.tables["answers"]["answer"].tolist() == other.tables["answers"]["answer"].tolist()


def test_over_ray_the_same_comes_out(
    model: HookedTransformer, report: GroundingReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = far_workers(monkeypatch)
    far = grounding_report(model, questions(), documents(), leave_out=0.34, n_boot=200, engine="ray")
    assert calls
    assert far.tables["answers"]["answer"].tolist() == report.tables["answers"]["answer"].tolist()


def test_hostile_documents_are_harmless_on_the_page(model: HookedTransformer, tmp_path: Path) -> None:
    found = grounding_report(model, questions()[:8], documents(extra=f" {HOSTILE}"), conditions=["none"], n_boot=100)
    text = found.write_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "{evidence}{question}" in json.dumps(found.to_dict())
    assert found.tables["answers"]["evidence"].str.contains(HOSTILE, regex=False).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"k": True}, "k must be"),
        ({"leave_out": 1.0}, "leave_out must lie"),
        ({"target_error": math.nan}, "target_error must lie"),
        ({"conditions": ["gold", "silver"]}, "unknown condition 'silver'"),
        ({"n_questions": 0}, "n_questions must be"),
        ({"n_questions": 1}, "no group of questions has 1 or fewer"),
        ({"gold": [[0]]}, "12 questions and 1 lists"),
        ({"gold": [[99]] * 12}, "gold passage 99 does not exist"),
        ({"gold": [[5]] * 12}, "does not spell the right option"),
        ({"template": "plain text"}, "the template is"),
    ],
)
def test_bad_settings_are_refused(model: HookedTransformer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grounding_report(model, questions(), documents(), **options)


def test_bad_inputs_are_refused(model: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="expected questions with options"):
        grounding_report(model, [], documents())
    with pytest.raises(ValueError, match="no passage is unrelated"):
        grounding_report(model, questions(), passages_of(["Aro likes red."]), conditions=["distractor"])
    with pytest.raises(ValueError, match="no documents"):
        grounding_report(model, questions(), [])


def test_questions_are_drawn_by_whole_groups() -> None:
    chosen = drawn_questions(questions(), 7, seed=0)
    assert len(chosen) == 6
    assert len({questions()[i].group for i in chosen}) == 3
    assert chosen == sorted(chosen) == drawn_questions(questions(), 7, seed=0)
    assert drawn_questions(questions(), None, 0) == list(range(12))


# -------------------------------------------------------------------------------------------------------------- answers


def test_nothing_is_answered_below_the_threshold(model: HookedTransformer) -> None:
    search = BM25Retriever(documents())
    found = grounded_answer(model, "Which colour does Aro like?", search, min_score=1e6)
    assert found.answer is None
    assert found.score == search.search("Which colour does Aro like?", 1)["score"].iloc[0]
    assert "below the 1e+06" in found.reason
    assert found.found["text"].iloc[0] == "Aro likes red."
    assert found.prompt == ""
    nothing = grounded_answer(model, "Zzz?", search)
    assert (nothing.answer, nothing.score, nothing.reason) == (None, None, "the search found no passage.")
    assert json.dumps([found.to_dict(), nothing.to_dict()], allow_nan=False)
    for question, options, message in [
        (" ", {}, "question is empty"),
        ("Aro?", {"min_score": math.nan}, "min_score must be"),
        ("Aro?", {"k": 0}, "k must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            grounded_answer(model, question, search, **options)


def test_an_answer_comes_with_its_passages(model: HookedTransformer) -> None:
    search = BM25Retriever(documents())
    question = "Aro likes what colour?"
    found = grounded_answer(model, question, search, k=2, template="plain", max_new_tokens=4, stop=None)
    assert found.prompt.startswith("Aro likes red.\n")
    assert found.found["used"].all()
    assert found.answer is not None
    assert found.gain == pytest.approx((found.logprob or 0) - (found.logprob_without or 0))
    assert len(found.attention) == model.cfg.n_layers
    short = tiny_model("llama", n_ctx=70)
    less = grounded_answer(short, question, search, k=3, template="plain", max_new_tokens=4)
    assert less.n_dropped == 2
    assert less.found["used"].tolist() == [True, False, False]
    assert "did not fit" in less.summary() or less.answer == ""


def test_an_answer_of_other_words_than_the_evidence_is_flagged(model: HookedTransformer) -> None:
    found = grounded_answer(model, "Aro likes what colour?", BM25Retriever(documents()), max_new_tokens=2, stop=None)
    for support, flagged in ((0.0, True), (0.5, False), (1.0, False), (None, False)):
        summary = dataclasses.replace(found, answer="teal", word_support=support).summary()
        head = "teal (none of its words stand in the evidence: do not trust it)" if flagged else "teal"
        assert summary.splitlines()[0] == head


# ----------------------------------------------------------------------------------------------------------- real model


def test_every_question_finds_its_answer_in_the_bundled_evidence() -> None:
    texts = {example.group: example.text for example in load_corpus("evidence")}
    asked_about = load_questions("questions")
    assert set(texts) == {question.group for question in asked_about}
    for question in asked_about:
        support = [
            sentence
            for sentence in sentences(texts[question.group or ""])
            if question.meta["entity"].casefold() in sentence.casefold()
            and spelled(question.options[question.answer]) in spelled(sentence)
        ]
        assert support, question.prompt
        assert all(spelled(option) in spelled(texts[question.group or ""]) for option in question.options)


def test_the_real_model_copies_what_the_evidence_says(smollm: HookedTransformer) -> None:
    names = ["Orvendal", "Miskatar", "Quellow", "Tarnbeck"]
    countries = ["Chile", "Norway", "Egypt", "Japan"]
    texts = [f"{name} is a large city in {country}." for name, country in zip(names, countries)]
    asked_of = [
        Question(
            f"Question: In which country is the city of {name}?\nAnswer:", tuple(f" {c}" for c in countries), i, f"g{i}"
        )
        for i, name in enumerate(names)
    ]
    passages = passages_of(texts, size=None, groups=[f"g{i}" for i in range(4)])
    found = grounding_report(
        smollm, asked_of, passages, leave_out=0, conditions=["gold", "misleading", "distractor"], n_boot=100
    )
    table = found.to_frame().set_index("condition")
    assert table.loc["gold", "error"] == 0
    assert table.loc["retrieved", "error"] == 0
    assert table.loc["misleading", "followed"] == 1  # the cities are made up: nothing is known against the passage
    assert table.loc["distractor", "error"] >= 0.5
    assert (found.tables["answers"].query("condition == 'gold'")["gain"] > 1).all()
    answer = grounded_answer(smollm, "In which country is the city of Quellow?", BM25Retriever(passages), k=1)
    assert answer.answer == "Egypt"
    assert answer.word_support == 1
    assert (answer.gain or 0) > 2
