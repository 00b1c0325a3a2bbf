"""Multiple choice: scores against a plain loop, intervals against closed forms, the real model on bundled questions."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
from scipy.stats import binomtest
from tiny import tiny_model
from tokenizers import decoders, models, pre_tokenizers

from interp.dataset import Question, load_questions
from interp.model import HookedTransformer
from interp.tokens import Tokenizer
from interp.uncertainty import answer_report, score_options
from interp.uncertainty.questions import accuracy_interval

QUESTIONS = [
    Question("Q: capital of France?\nA:", (" Paris", " Rome", " Par", " Oslo"), 0, "europe"),
    Question("Q: 2 + 2?\nA:", (" 4", " 5"), 0, "sums"),
    Question("Q: a colour?\nA:", (" red", " dog", " reddish"), 1, "words"),
]


def written_out(model: HookedTransformer, prompt: str, option: str, start: int | None = None) -> tuple[float, int]:
    """Sum of log p of the tokens from `start` (the prompt's length) on, and how many they are."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(prompt + option)
    start = len(model.tokenizer.encode(prompt)) if start is None else start
    logp = model(ids)[0].detach().double().log_softmax(-1)
    return sum(float(logp[t - 1, ids[t]]) for t in range(start, len(ids))), len(ids) - start


def merging_model() -> HookedTransformer:
    """A byte model whose tokenizer merges a and b, so that a prompt and its option may share a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)} | {"ab": 256}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    model = tiny_model()
    model.tokenizer = Tokenizer(backend, name="merging")
    return model


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_scores_equal_a_plain_loop(tiny: HookedTransformer, batch_size: int) -> None:
    frame = score_options(tiny, QUESTIONS, batch_size=batch_size)
    assert list(zip(frame["question"], frame["option"])) == [(q, o) for q, n in enumerate((4, 2, 3)) for o in range(n)]
    for row in frame.to_dict("records"):
        question = QUESTIONS[row["question"]]
        total, n_tokens = written_out(tiny, question.prompt, question.options[row["option"]])
        assert row["n_tokens"] == n_tokens
        assert row["logprob_sum"] == pytest.approx(total, abs=2e-4)
        assert row["logprob_mean"] == pytest.approx(total / n_tokens, abs=2e-4)
        assert row["right"] == (row["option"] == question.answer)
        assert row["group"] == question.group
    best = frame["logprob_sum"] == frame.groupby("question")["logprob_sum"].transform("max")
    assert frame["chosen"].tolist() == best.tolist()


def test_letters_are_scored_after_the_list_of_options(tiny: HookedTransformer) -> None:
    frame = score_options(tiny, [Question("Question: two?\nAnswer:", (" one", " two"), 1)], format="letter")
    prompt = "Question: two?\nA. one\nB. two\nAnswer:"
    for row, letter in zip(frame.to_dict("records"), (" A", " B")):
        assert row["logprob_sum"] == pytest.approx(written_out(tiny, prompt, letter)[0], abs=2e-4)
    assert frame["text"].tolist() == [" one", " two"]
    assert set(frame["format"]) == {"letter"}


def test_a_merge_across_the_boundary_is_scored_from_the_shared_part() -> None:
    model = merging_model()
    frame = score_options(model, [Question("xa", ("b", "c", "bc"), 0)])
    assert frame["n_tokens"].tolist() == [1, 2, 2]  # x|ab, x|a|c, x|ab|c
    for row, option in zip(frame.to_dict("records"), ("b", "c", "bc")):
        assert row["logprob_sum"] == pytest.approx(written_out(model, "xa", option, start=1)[0], abs=2e-4)
    unmerged = score_options(model, [Question("xa", ("c", "d"), 0)])
    assert unmerged["n_tokens"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="share no token"):
        score_options(model, [Question("a", ("b", "c"), 0)])


def test_options_of_one_token_share_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    fed: list[int] = []
    tokenize = model.tokenize

    def spy(x: Any, **options: Any) -> Any:
        tokens = tokenize(x, **options)
        fed.append(int(tokens.mask.sum()))
        return tokens

    questions = [Question("Answer:", ("a", "b", "c", "cd"), 0)]
    expected = [written_out(model, "Answer:", option)[0] for option in questions[0].options]
    monkeypatch.setattr(model, "tokenize", spy)
    frame = score_options(model, questions)
    assert max(fed) == len("Answer:c")  # what `cd` needs; a, b and c read the same pass
    np.testing.assert_allclose(frame["logprob_sum"], expected, atol=2e-4)


def test_progress_is_told_and_nan_is_refused() -> None:
    model = tiny_model()
    told: list[tuple[int, int]] = []
    score_options(model, QUESTIONS[1:2], batch_size=1, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 2)]  # " 4" and " 5" read one pass
    with torch.no_grad():
        model.embed.weight[65] = torch.nan
    with pytest.raises(ValueError, match="NaN logits"):
        score_options(model, QUESTIONS)


@pytest.mark.parametrize(
    ("questions", "options", "message"),
    [
        ([], {}, "no questions"),
        (QUESTIONS, {"format": "essay"}, "'essay'"),
        (QUESTIONS, {"batch_size": 0}, "batch_size"),
        ([Question("p:", ("", " a"), 0)], {}, "adds no token"),
        ([Question("p" * 200, (" b", " a"), 0)], {}, "context"),
        ([Question("p:", tuple(f" {i}" for i in range(30)), 0)], {"format": "letter"}, "30 options"),
    ],
)
def test_bad_questions_are_refused(questions: list[Question], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_options(tiny_model(), questions, **options)


# ------------------------------------------------------------------------------------------------------------ reports


def scored(right: np.ndarray, confidence: float = 0.7, groups: Any = None) -> pd.DataFrame:
    """Scores of four options, the first chosen with `confidence`; the answer is the first where `right`."""
    rest = (1 - confidence) / 3
    rows = [
        {
            "question": q,
            "option": option,
            "format": "text",
            "group": None if groups is None else groups[q],
            "logprob_sum": float(np.log(confidence if option == 0 else rest)) - 5.0,
            "logprob_mean": -1.0 if option == 1 else -2.0,
            "right": option == (0 if hit else 1),
        }
        for q, hit in enumerate(right)
        for option in range(4)
    ]
    return pd.DataFrame(rows)


def test_report_of_planted_scores() -> None:
    right = np.arange(100) < 70
    report = answer_report(scored(right))
    assert (report.n, report.accuracy, report.chance) == (100, 0.7, 0.25)
    wilson = binomtest(70, 100).proportion_ci(method="wilson")
    assert report.interval == pytest.approx((wilson.low, wilson.high))
    assert report.informative
    np.testing.assert_allclose(report.choices["confidence"], 0.7)
    assert report.calibration.meaning == "p_top"
    assert report.calibration.ece == pytest.approx(0.0, abs=1e-9)
    assert set(report.choices["chosen"]) == {0}
    by_mean = answer_report(scored(right), by="mean")
    assert by_mean.accuracy == pytest.approx(0.3)
    assert set(by_mean.choices["chosen"]) == {1}
    frame = report.to_frame()
    assert (frame.loc[0, "accuracy"], bool(frame.loc[0, "informative"])) == (0.7, True)


@pytest.mark.parametrize(("n_right", "words"), [(25, "not above chance"), (3, "lies below chance")])
def test_chance_is_not_informative(n_right: int, words: str) -> None:
    report = answer_report(scored(np.arange(100) < n_right), n_boot=50, n_null=50)
    assert not report.informative
    assert "not informative" in report.verdict
    assert words in report.verdict
    dictionary = report.to_dict()
    assert dictionary["informative"] is False
    assert dictionary["calibration"]["n"] == 100


def test_groups_that_answer_alike_widen_the_interval() -> None:
    right = np.random.default_rng(0).random(50) < 0.6
    groups = np.repeat(np.arange(50), 8).tolist()
    clustered = accuracy_interval(np.repeat(right, 8), groups)
    assert clustered == pytest.approx(accuracy_interval(right), abs=0.005)
    independent = accuracy_interval(np.repeat(right, 8))
    assert np.diff(clustered) > 2 * np.diff(independent)
    # Unanimous answers show no variance: as many trials as groups.
    assert accuracy_interval(np.ones(400, dtype=bool), groups) == accuracy_interval(np.ones(50, dtype=bool))
    assert answer_report(scored(np.repeat(right, 8), groups=groups), n_boot=50, n_null=50).interval == clustered


def test_the_clustered_interval_covers() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        share = rng.beta(3, 2, 40).repeat(4)  # mean 0.6; questions of a group are alike
        low, high = accuracy_interval(rng.random(160) < share, np.arange(40).repeat(4).tolist())
        covered += low <= 0.6 <= high
    assert 0.9 <= covered / 400 <= 0.985


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda frame: frame, {"by": "product"}, "'product'"),
        (lambda frame: frame.drop(columns="right"), {}, "right"),
        (lambda frame: frame.iloc[:0], {}, "all rows"),
        (lambda frame: frame.assign(format=["text", "letter"] * (len(frame) // 2)), {}, "one format"),
        (lambda frame: frame.assign(right=False), {}, "question 0 has 0 right"),
        (lambda frame: frame.assign(right=True), {}, "question 0 has 4 right"),
    ],
)
def test_bad_frames_are_refused(change: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answer_report(change(scored(np.array([True, False]))), **options)


@pytest.mark.slow
def test_the_real_model_knows_capitals_by_text_and_not_by_letter(smollm: HookedTransformer) -> None:
    questions = [question for question in load_questions("questions") if question.meta["topic"] == "capitals"]
    by_text = answer_report(score_options(smollm, questions), n_boot=200, n_null=200)
    by_letter = answer_report(score_options(smollm, questions, format="letter"), n_boot=200, n_null=200)
    assert by_text.accuracy > 0.6
    assert by_text.informative
    assert not by_letter.informative
    assert torch.is_grad_enabled()


def test_pmi_takes_out_how_probable_an_option_is_anyway(tiny: HookedTransformer) -> None:
    frame = score_options(tiny, QUESTIONS, bare=True)
    for row in frame.to_dict("records"):
        bare, _ = written_out(tiny, "A:", QUESTIONS[row["question"]].options[row["option"]])
        assert row["logprob_bare"] == pytest.approx(bare, abs=2e-4)
    # A model that prefers one option whatever is asked: by its text it always wins, by pmi no option gains anything.
    blind = frame.assign(logprob_sum=frame["logprob_bare"])
    report = answer_report(blind, by="pmi", n_boot=0, n_null=0)
    sizes = [len(question.options) for question in QUESTIONS]
    assert report.choices["confidence"].tolist() == pytest.approx([1 / size for size in sizes])
    with pytest.raises(ValueError, match="bare=True"):
        answer_report(frame.drop(columns="logprob_bare"), by="pmi")
    for prompt in ("A:\n", "A:", "\nA:"):
        with pytest.raises(ValueError, match=r"last line|single line"):
            score_options(tiny, [Question(prompt, (" b", " c"), 0)], bare=True)
