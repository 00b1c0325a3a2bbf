"""Scores of options in trees of tokens: equal to one text at a time, for several families; the lens ends in the logits."""

from typing import Any

import pytest
import torch
from tiny import tiny_model

from interp.behavior.sycophancy.scores import scored, token_logits
from interp.behavior.sycophancy.wordings import Wording, item_of
from interp.dataset import Question
from interp.model import HookedTransformer
from interp.uncertainty import score_options

OPTIONS = (" red", " green", " blue", " gold")
FEW = (
    Wording("mine", "I say {option}"),
    Wording("sure", "Sure: {option}"),
    Wording("sign", "A sign: {option}", "mention"),
)


def asked(n: int) -> list[Question]:
    return [Question(f"Q{index}?\nA:", OPTIONS, index % 4, f"g{index}") for index in range(n)]


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "bloom"])
def test_scores_in_a_tree_equal_a_plain_loop(family: str) -> None:
    model = tiny_model(family, n_ctx=256)
    items = [item_of(model, question, FEW, False, 0) for question in asked(3)]
    items[1]["options"] = [" a", " abc", " z", " zz"]
    found = scored(model, items, batch_size=2)
    for item, each in zip(items, found, strict=True):
        questions = [Question(prompt, tuple(item["options"]), 0) for prompt in item["prompts"]]
        plain = score_options(model, questions)
        assert each["logprobs"].ravel() == pytest.approx(plain["logprob_sum"].to_numpy(), abs=2e-4)
        assert each["n_tokens"].ravel().tolist() == plain["n_tokens"].tolist()


def test_models_that_turn_by_length_run_their_texts_apart() -> None:
    model = tiny_model("dynamic", n_ctx=256)
    items = [item_of(model, question, FEW[:3], False, 0) for question in asked(2)]
    found = scored(model, items)
    assert found[0]["logprobs"].ravel() == pytest.approx(written_out(model, items[0]), abs=2e-4)
    plain = score_options(model, [Question(p, tuple(items[0]["options"]), 0) for p in items[0]["prompts"]])
    assert found[0]["logprobs"].ravel() == pytest.approx(plain["logprob_sum"].to_numpy(), abs=2e-4)


def written_out(model: HookedTransformer, item: dict[str, Any]) -> list[float]:
    """The sum of each option's log-probabilities in each condition, one text at a time."""
    assert model.tokenizer is not None
    found = []
    for prompt in item["prompts"]:
        start = len(model.tokenizer.encode(prompt, close=False))
        for option in item["options"]:
            ids = model.tokenizer.encode(prompt + option, close=False)
            logp = model(torch.tensor([ids])).log_softmax(-1)[0]
            found.append(sum(float(logp[place - 1, ids[place]]) for place in range(start, len(ids))))
    return found


@pytest.mark.parametrize("family", ["llama", "gemma2", "gptj"])
def test_the_lens_reads_the_final_logits_at_the_last_layer(family: str) -> None:
    model = tiny_model(family, n_ctx=256)
    rows = torch.randn(3, 2, model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[[7, 9], [7, 9]], [[1, 2], [1, 2]], [[0, 5], [0, 5]]])
    assert torch.allclose(token_logits(model, rows, ids), model.unembed_logits(rows).gather(-1, ids), atol=1e-4)
    item = item_of(model, Question("Q?\nA:", ("x", "yy"), 0, "g"), FEW, False, 0)
    found = scored(model, [item], lens=[0, 2, 4])[0]["ahead"]
    for line, condition in enumerate((0, 2, 4)):
        logits = model(item["prompts"][condition])[0, -1]
        assert model.tokenizer is not None
        x, y = (model.tokenizer.encode(letter, close=False)[0] for letter in "xy")
        assert found[line, -1] == pytest.approx(float(logits[y] - logits[x]), abs=2e-4)
