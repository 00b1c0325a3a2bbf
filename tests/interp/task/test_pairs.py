"""Pairs align or are refused; metrics are what transformers-style arithmetic gives; builders suit the tokenizer."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pairs import telling_pairs
from tiny import byte_tokenizer, shaken_model

from interp.model import HookedTransformer
from interp.task import METRICS, TASKS, load_prompt_pairs, mean_effect, pair_metric, prompt_pairs, task_pairs


def test_pairs_hold_what_was_given_and_show_where_they_differ() -> None:
    model = shaken_model("llama")
    pairs = prompt_pairs(model, ["the cat", "a"], ["the cot", "b"], ["x", ["y", "z"]], "w")
    assert pairs.labels(0) == list("the·cat")
    assert pairs.answers.tolist() == [[ord("x") - 33, -1], [ord("y") - 33, ord("z") - 33]]
    assert pairs.answer.tolist() == pairs.answers[:, 0].tolist()
    assert pairs.alignment(0)["differs"].tolist() == [False] * 5 + [True, False]
    assert pairs.differs.sum(1).tolist() == [1, 1]
    assert not pairs.same_length
    assert pairs[1].same_length
    assert pairs[1].clean.ids.shape == (1, 1)
    assert pairs[[1, 0]].clean_texts == ("a", "the cat")
    assert pairs.to_frame()["answer"].tolist() == ["x", "y | z"]
    with pytest.raises(ValueError, match="no pair is left"):
        pairs[5:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("abc", "abcd", "x"), r"has 3 tokens and the corrupted one 4(?s:.*)\*"),
        ((["a", "b"], ["c"], "x"), "go in pairs"),
        (("a", "b", "xy"), "single token"),
        (("a", "b", ["x", "y"]), "2 values for 1 pairs"),
        (("a", "b", "x", "x"), "is an answer and"),
        (("a", "b", 999), "0..257"),
        (("a", "b", True), "takes texts of one token"),
    ],
)
def test_pairs_that_mean_nothing_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prompt_pairs(shaken_model("llama"), *arguments)


def test_pairs_are_saved_for_their_tokenizer(tmp_path: Path) -> None:
    model = shaken_model("llama")
    pairs = prompt_pairs(model, ["the cat", "a"], ["the cot", "b"], ["x", ["y", "z"]], "w", name="mine")
    read = load_prompt_pairs(model, pairs.save(tmp_path / "pairs.json"))
    assert read.to_frame().equals(pairs.to_frame())
    assert torch.equal(read.clean.ids, pairs.clean.ids)
    assert torch.equal(read.clean.mask, pairs.clean.mask)
    other = HookedTransformer(model.cfg, None)
    with pytest.raises(ValueError, match="another tokenizer"):
        load_prompt_pairs(other, tmp_path / "pairs.json")


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_metrics_are_their_definitions(family: str) -> None:
    model = shaken_model(family)
    pairs = prompt_pairs(model, ["the cat", "abc"], ["the cot", "abd"], [["x", "y"], "z"], ["w", "v"])
    clean, corrupted = (
        torch.stack([model(text)[0, -1] for text in side]) for side in (pairs.clean_texts, pairs.corrupted_texts)
    )
    logp, old = clean.double().log_softmax(-1), corrupted.double().log_softmax(-1)
    for name in METRICS:
        found = pair_metric(model, pairs, name)
        for i, (answers, against) in enumerate(zip(pairs.answers.tolist(), pairs.againsts.tolist())):
            ids = [a for a in answers if a >= 0]
            p = logp[i, ids].exp().sum()
            expected = {
                "logit_diff": math.log(p) - float(logp[i, against[0]]),
                "probability": float(p),
                "log_probability": math.log(p),
                "rank": math.log10(1 + min(int((logp[i] > logp[i, a]).sum()) for a in ids)),
                "kl": 0.0,
            }[name]
            assert float(found.clean[i]) == pytest.approx(expected, abs=2e-4)
            if name == "kl":
                kl = float((logp[i].exp() * (logp[i] - old[i])).sum())
                assert float(found.corrupted[i]) == pytest.approx(kl, abs=2e-4)


def test_intervals_of_the_ratio_cover_the_truth() -> None:
    """Planted: effects of .3 of gaps that differ much between pairs."""
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        gaps = rng.gamma(2.0, 2.0, 20)
        raw = torch.tensor(0.3 * gaps + rng.normal(0, 0.5, 20))
        zero = torch.zeros(20, dtype=torch.float64)
        effect = mean_effect(raw, torch.tensor(gaps), zero, float(gaps.mean()), seed)
        covered += bool(effect.low <= 0.3 <= effect.high)
    assert 0.88 <= covered / 200 <= 0.99


def test_a_metric_that_is_none_is_refused() -> None:
    model, pairs = shaken_model("llama"), telling_pairs(shaken_model("llama"))
    with pytest.raises(ValueError, match="name or a function"):
        pair_metric(model, pairs, 3)
    with pytest.raises(ValueError, match="NaN or infinity"):
        pair_metric(model, pairs, lambda logits: logits[:, -1, 0] * float("nan"))
    with pytest.raises(ValueError, match="each of the 2 pairs"):
        pair_metric(model, pairs, lambda logits: logits.mean())


def test_repeats_need_no_tokenizer_and_the_others_say_so() -> None:
    model = HookedTransformer(shaken_model("llama").cfg, None)
    assert len(task_pairs(model, "repeats", 3)) == 3
    with pytest.raises(ValueError, match="take repeats"):
        task_pairs(model, "capitals", 3)
    with pytest.raises(ValueError, match="unknown"):
        task_pairs(model, "ioi", 3)
    with pytest.raises(ValueError, match="at least 1"):
        task_pairs(model, "repeats", 0)
    assert byte_tokenizer().bos_id is None
    # Words are many tokens to a byte tokenizer: no pair of names is left.
    with pytest.raises(ValueError, match="leaves 0 pairs"):
        task_pairs(shaken_model("llama"), "indirect_objects", 2)


def test_numbers_of_single_digits_ask_for_the_next_digit() -> None:
    model = shaken_model("llama")
    pairs = task_pairs(model, "greater_than", 5)
    for text, answers, againsts in zip(pairs.clean_texts, pairs.answers.tolist(), pairs.againsts.tolist()):
        tens = int(text.split("year ")[1][2])
        assert [chr(i + 33) for i in answers if i >= 0] == [str(digit) for digit in range(tens + 1, 10)]
        assert [chr(i + 33) for i in againsts if i >= 0] == [str(digit) for digit in range(tens)]


@pytest.mark.parametrize("task", TASKS)
def test_the_real_model_solves_every_task(smollm: HookedTransformer, task: str) -> None:
    pairs = task_pairs(smollm, task, 8)
    assert len(pairs) == 8
    again, other = task_pairs(smollm, task, 8), task_pairs(smollm, task, 8, seed=1)
    assert again.clean_texts == pairs.clean_texts != other.clean_texts
    assert len(set(pairs.clean_texts)) == 8
    assert pairs.same_length
    measured = pair_metric(smollm, pairs)
    assert measured.gap > 3  # nats
    assert measured.n_reversed == 0
    assert int((measured.clean > 0).sum()) >= 7


def test_pairs_of_another_tokenizer_repeated_answers_and_pads_are_refused() -> None:
    model = shaken_model("llama")
    pairs = prompt_pairs(model, "the cat", "the cot", "x", "w")
    with pytest.raises(ValueError, match="made with the tokenizer of tiny-llama"):
        pair_metric(HookedTransformer(model.cfg, None), pairs)
    with pytest.raises(ValueError, match="would count double"):
        prompt_pairs(model, "the cat", "the cot", [["x", "x"]], "w")
    with pytest.raises(ValueError, match="no token for pair 0"):
        prompt_pairs(model, "the cat", "the cot", [[]], "w")
    with pytest.raises(ValueError, match="there are no prompts"):
        prompt_pairs(model, [], [], "x")
    uneven = prompt_pairs(model, ["the cat", "a"], ["the cot", "b"], "x", "w")
    with pytest.raises(ValueError, match="would read pads"):
        pair_metric(model, uneven, lambda logits: logits[:, -1, 0])
    assert prompt_pairs(model, "a", "b", np.int64(5)).answer.tolist() == [5]


def test_damaged_weights_are_named_and_not_called_a_small_gap() -> None:
    model = shaken_model("llama")
    pairs = telling_pairs(model)
    list(model.parameters())[3].data.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"NaN|finite"):
        pair_metric(model, pairs)


def test_files_of_another_kind_are_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no prompt pairs"):
        load_prompt_pairs(shaken_model("llama"), tmp_path / "other.json")
