"""Signs of doubt against definitions written out, against other analyses, and against the way they are batched."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import shaken_model, tiny_model

from interp.lens import logit_lens
from interp.model import HookedTransformer
from interp.uncertainty import token_uncertainty
from interp.uncertainty.answers import EMPTY, SIGNALS, answer_signals, oriented
from interp.uncertainty.attention import Queries, spread
from interp.uncertainty.settling import middle_places, sites_by_layer

PROMPTS = [
    "The capital of France is",
    "The capital of Peru is",
    "One",
    "Question: how many legs has a spider?\nAnswer:",
]
ANSWERS = ["Paris", "Lima, of course", "two", "8"]


def one_by_one(model: HookedTransformer, prompt: str, answer: str) -> dict[str, float]:
    """Every signal from whole logits, whole patterns and the logit lens of one text."""
    assert model.tokenizer is not None
    n, ids = len(model.tokenizer.encode(prompt)), model.tokenizer.encode(f"{prompt} {answer}")
    logits, cache = model.run_with_cache(torch.tensor([ids]), sites="pattern:*")
    assert logits is not None
    logp = logits[0].detach().double().log_softmax(-1)[n - 1 : -1]
    p, targets = logp.exp(), torch.tensor(ids[n:])
    own = logp.gather(1, targets[:, None])[:, 0]
    entropy = -(p * logp).sum(-1)
    top = p.sort(descending=True).values
    spreads, spreads_all, sinks = [], [], []
    for layer in range(model.cfg.n_layers):
        pattern = cache["pattern", layer][0].detach().double()  # [head query key]
        for query in range(n - 1, len(ids) - 1):
            row = pattern[:, query, : query + 1]
            rest = row[:, 1:] / row[:, 1:].sum(-1, keepdim=True)
            spreads.append(torch.special.entr(rest).sum(-1) / np.log(query))
            spreads_all.append(torch.special.entr(row).sum(-1) / np.log(query + 1))
            sinks.append(row[:, 0])
    lens = logit_lens(model, torch.tensor([ids]))
    names = middle_places(list(lens.sites), model.cfg.n_layers)
    middle = [lens.sites.index(name) for name in names]
    return {
        "nll": float(-own.sum()),
        "nll_mean": float(-own.mean()),
        "logprob_first": float(own[0]),
        "logprob_min": float(own.min()),
        "entropy_first": float(entropy[0]),
        "entropy_mean": float(entropy.mean()),
        "entropy_max": float(entropy.max()),
        "varentropy_mean": float((p * (logp + entropy[:, None]) ** 2).sum(-1).mean()),
        "margin_mean": float((top[:, 0] - top[:, 1]).mean()),
        "p_top1_mean": float(top[:, 0].mean()),
        "attention_diffusion": float(torch.stack(spreads).mean()),
        "attention_diffusion_all": float(torch.stack(spreads_all).mean()),
        "attention_sink": float(torch.stack(sinks).mean()),
        "settle_depth": (int(lens.settle_layer[n - 1]) + 1) / model.cfg.n_layers,
        "lens_entropy": float(lens.entropy[middle, n - 1].mean()),
        "lens_kl": float(lens.kl[middle, n - 1].mean()),
        "n_tokens": float(len(ids) - n),
    }


def same(found: pd.DataFrame, wanted: pd.DataFrame, **tolerance: Any) -> None:
    for name in SIGNALS:
        np.testing.assert_allclose(found[name], wanted[name], err_msg=name, **tolerance)


def test_every_signal_equals_its_definition(tiny: HookedTransformer) -> None:
    found = answer_signals(tiny, PROMPTS, ANSWERS)
    wanted = pd.DataFrame([one_by_one(tiny, prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS)])
    same(found, wanted, rtol=2e-4, atol=2e-5)
    assert found["reason"].tolist() == [""] * 4
    assert not found["merged"].to_numpy().any()
    assert found["answer"].tolist() == [f" {answer}" for answer in ANSWERS]
    assert set(found) == {"prompt", "answer", "merged", "reason", *SIGNALS}


@pytest.mark.parametrize("family", ["neox", "bloom", "gemma2", "olmo2", "mixtral", "deepseek", "dynamic"])
def test_other_architectures(family: str) -> None:
    model = shaken_model(family)
    alone = pd.concat([answer_signals(model, [prompt], [answer]) for prompt, answer in zip(PROMPTS, ANSWERS)])
    same(answer_signals(model, PROMPTS, ANSWERS), alone, rtol=1e-3, atol=1e-4)
    logprob = [one_by_one(model, p, a)["nll"] for p, a in zip(PROMPTS, ANSWERS)]
    np.testing.assert_allclose(alone["nll"], logprob, rtol=1e-4)


def test_neither_batches_nor_shared_beginnings_change_anything(tiny: HookedTransformer) -> None:
    few = "Q: one? A: 1\nQ: two? A: 2\nQ: three? A: 3\n"
    prompts = [f"{few}Q: {word}? A:" for word in ("four", "five", "six", "a hundred", "four", "zero", "ten")]
    answers = ["4", "5", "six", "100", "4", "0", "ten"]
    together = answer_signals(tiny, prompts, answers)
    for size in (1, 3):
        same(answer_signals(tiny, prompts, answers, batch_size=size), together, rtol=1e-4, atol=1e-5)
    alone = pd.concat([answer_signals(tiny, [prompt], [answer]) for prompt, answer in zip(prompts, answers)])
    same(alone, together, rtol=1e-4, atol=1e-5)
    order = [3, 1, 6, 0, 5, 2, 4]
    moved = answer_signals(tiny, [prompts[i] for i in order], [answers[i] for i in order])
    same(moved, together.iloc[order], rtol=1e-4, atol=1e-5)


def test_interventions_count_in_every_row(tiny: HookedTransformer) -> None:
    plain = answer_signals(tiny, PROMPTS[:2], ANSWERS[:2])
    with tiny.hooks({"resid_post:0": lambda value, ctx: value * 1.5}):
        changed = answer_signals(tiny, PROMPTS[:2], ANSWERS[:2])
        wanted = pd.DataFrame([one_by_one(tiny, p, a) for p, a in zip(PROMPTS[:2], ANSWERS[:2])])
    same(changed, wanted, rtol=2e-4, atol=2e-5)
    assert not np.allclose(plain["nll"], changed["nll"])


def test_an_answer_may_be_the_tokens_that_were_generated(tiny: HookedTransformer) -> None:
    out = tiny.generate(PROMPTS[0], 5)
    found = answer_signals(tiny, PROMPTS[:1], [out.tokens])
    assert found["nll"][0] == pytest.approx(-sum(out.logprobs), rel=1e-4)
    assert found["n_tokens"][0] == 5
    with pytest.raises(ValueError, match="outside 0 to 257"):
        answer_signals(tiny, PROMPTS[:1], [[300, 1]])


def test_an_empty_answer_is_no_number_and_says_why(tiny: HookedTransformer, caplog: pytest.LogCaptureFixture) -> None:
    found = answer_signals(tiny, PROMPTS[:3], ["Paris", "", "two"])
    assert found["reason"].tolist() == ["", EMPTY, ""]
    assert found.loc[1, "n_tokens"] == 0
    assert found.loc[1, [name for name in SIGNALS if name != "n_tokens"]].isna().all()
    assert "1 of 3 answers are empty" in caplog.text
    whole = answer_signals(tiny, [PROMPTS[0], PROMPTS[2]], ["Paris", "two"])
    same(found.iloc[[0, 2]], whole, rtol=1e-4, atol=1e-5)
    assert answer_signals(tiny, PROMPTS[:1], [""])["reason"].tolist() == [EMPTY]


def test_after_a_single_token_attention_has_nothing_to_spread_over(tiny: HookedTransformer) -> None:
    found = answer_signals(tiny, ["a"], ["b"], joint="")
    assert np.isnan(found["attention_diffusion"][0])
    assert "too few tokens" in found["reason"][0]
    assert np.isfinite(found["nll"][0])


def test_what_stands_between_prompt_and_answer(tiny: HookedTransformer) -> None:
    spaced = answer_signals(tiny, ["Answer:"] * 4, ["Oslo", " Oslo", "Oslo", "\nOslo"], joint=" ")
    assert spaced["answer"].tolist() == [" Oslo", " Oslo", " Oslo", "\nOslo"]
    assert answer_signals(tiny, ["Answer: "], ["Oslo"])["answer"].tolist() == ["Oslo"]
    assert answer_signals(tiny, ["Answer:"], ["Oslo"], joint="")["answer"].tolist() == ["Oslo"]


def test_diffusion_by_hand() -> None:
    # One query at position 3 with two heads: all on the sink and one key, and even over the rest.
    pattern = torch.tensor([[[0.5, 0.5, 0.0, 0.0, 0.0], [0.4, 0.2, 0.2, 0.2, 0.0]]])
    span = torch.tensor([[False, True, False, False, False]])
    queries = Queries(*(torch.tensor([i]) for i in (0, 3, 3, 0)), spans={"it": span})
    found = spread(pattern, queries)
    np.testing.assert_allclose(found["diffusion"][0], [0.0, 1.0], atol=1e-12)
    even = -(0.4 * np.log(0.4) + 3 * 0.2 * np.log(0.2)) / np.log(4)
    np.testing.assert_allclose(found["diffusion_all"][0], [np.log(2) / np.log(4), even], rtol=1e-6)
    np.testing.assert_allclose(found["sink"][0], [0.5, 0.4], rtol=1e-6)
    np.testing.assert_allclose(found["to it"][0], [1.0, 1 / 3], rtol=1e-6)
    resting = spread(torch.tensor([[[1.0, 0.0, 0.0, 0.0, 0.0]]]), queries)
    assert bool(resting["diffusion"].isnan().all())
    assert float(resting["diffusion_all"]) == 0
    # A window of two keys, out of sight of the sink.
    near = spread(torch.tensor([[[0.0, 0.0, 0.5, 0.5, 0.0]]]), queries, window=2)
    assert float(near["diffusion"]) == pytest.approx(1.0)
    assert float(near["diffusion_all"]) == pytest.approx(1.0)


def test_oriented_turns_every_signal_towards_doubt(tiny: HookedTransformer) -> None:
    frame = answer_signals(tiny, PROMPTS, ANSWERS)
    turned = oriented(frame)
    assert list(turned) == list(SIGNALS)
    np.testing.assert_allclose(turned["logprob_first"], -frame["logprob_first"])
    np.testing.assert_allclose(turned["nll"], frame["nll"])
    with pytest.raises(ValueError, match="none of the signals"):
        oriented(pd.DataFrame({"x": [1.0]}))


@pytest.mark.parametrize(
    ("prompts", "answers", "options", "message"),
    [
        ("one", ["a"], {}, "put a single one in a list"),
        ([], [], {}, "at least one"),
        (["a"], ["b", "c"], {}, "1 prompts and 2 answers"),
        (["a", ""], ["b", "c"], {}, "row 1: a prompt is a text that is not empty"),
        (["a"], ["b"], {"batch_size": 0}, "batch_size"),
        (["a" * 200], ["b"], {}, "context"),
    ],
)
def test_refusals(prompts: Any, answers: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answer_signals(tiny_model(), prompts, answers, **options)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match="encoder"):
        answer_signals(tiny_model("bert"), ["a"], ["b"])


def test_the_real_model_doubts_a_wrong_capital_more(smollm: HookedTransformer) -> None:
    few = "Question: What is the capital of Spain?\nAnswer: Madrid\nQuestion: What is the capital of {}?\nAnswer:"
    capitals = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Egypt": "Cairo", "Norway": "Oslo"}
    prompts = [few.format(country) for country in capitals]
    right = list(capitals.values())
    wrong = right[1:] + right[:1]
    found = answer_signals(smollm, [*prompts, *prompts], [*right, *wrong])
    assert (oriented(found)["nll_mean"][:5].to_numpy() < oriented(found)["nll_mean"][5:].to_numpy()).all()
    whole = token_uncertainty(smollm, f"{prompts[0]} Paris").to_frame()
    assert found["logprob_first"][0] == pytest.approx(float(whole["logprob"].iloc[-1]), abs=1e-4)
    lens = logit_lens(smollm, prompts[0])
    assert found["settle_depth"][0] == pytest.approx((int(lens.settle_layer[-1]) + 1) / 30)
    middle = middle_places(list(sites_by_layer(smollm)), 30)
    assert len(middle) == 4
    assert found["lens_kl"][0] == pytest.approx(
        float(lens.kl[[lens.sites.index(m) for m in middle], -1].mean()), rel=1e-4
    )
    assert 0.3 < found["attention_sink"].mean() < 0.7  # the sink takes most
