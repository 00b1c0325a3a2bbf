"""Scored passes that begin at the steered layer: the figures of whole passes, for every family, and for every place."""

import numpy as np
import pytest
import torch
from tiny import FAMILIES, tiny_model

from interp.intervene import Ablate, Steer, Where
from interp.model import HookedTransformer
from interp.steering import SteeringVector
from interp.steering.runner import Sheet, first_layer, last_logprobs, response_logprobs

TEXTS = ["a short prompt", "and one that is a good deal longer", "b"]
ANSWERS = [" yes", " no indeed", " maybe"]


def vector(site: str, width: int = 32) -> SteeringVector:
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0))
    return SteeringVector(direction / direction.norm(), site, typical_norm=3.0)


def whole_pass(model: HookedTransformer, steer: list[Steer]) -> np.ndarray:
    """Sum of the responses' log-probabilities, one text at a time, from the tokens on."""
    found = []
    for prompt, answer in zip(TEXTS, ANSWERS):
        before, ids = model.tokenizer.encode(prompt), model.tokenizer.encode(prompt + answer)
        with model.intervene(*steer), torch.no_grad():
            logp = model(ids, prompt_len=len(before)).as_subclass(torch.Tensor)[0].double().log_softmax(-1)
        found.append(sum(float(logp[place - 1, ids[place]]) for place in range(len(before), len(ids))))
    return np.array(found)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("bert", "dynamic")])
@pytest.mark.parametrize("where", ["all", "prompt", "generated"])
def test_response_logprobs_are_those_of_whole_passes(family: str, where: str) -> None:
    model = tiny_model(family)
    site = "blocks.1.hook_resid_post"
    steer = [Steer(vector(site), 0.5, where=where)]
    layer = first_layer(model, steer)
    assert layer == 1
    ids = [model.tokenizer.encode(a + b) for a, b in zip(TEXTS, ANSWERS)]
    sheet = Sheet(model, ids, [len(model.tokenizer.encode(text)) for text in TEXTS], [layer], batch_size=2)
    np.testing.assert_allclose(response_logprobs(sheet, layer, steer), whole_pass(model, steer), atol=2e-4)
    np.testing.assert_allclose(response_logprobs(sheet, layer, []), whole_pass(model, []), atol=2e-4)


def test_last_logprobs(tiny: HookedTransformer) -> None:
    steer = [Steer(vector("blocks.0.hook_resid_post"), 0.5)]
    ids = [tiny.tokenizer.encode(text) for text in TEXTS]
    sheet = Sheet(tiny, ids, list(map(len, ids)), [0], batch_size=2)
    found = dict(
        pair for rows, logp in last_logprobs(sheet, 0, steer) for pair in zip(rows.tolist(), logp, strict=True)
    )
    for index, text in enumerate(TEXTS):
        with tiny.intervene(*steer):
            expected = tiny(text)[0, -1].log_softmax(-1)
        torch.testing.assert_close(found[index], expected, atol=1e-4, rtol=1e-4)


def test_first_layer(tiny: HookedTransformer) -> None:
    embed, late = vector("hook_embed"), vector("blocks.1.hook_resid_mid")
    assert first_layer(tiny, [Steer(late, 0.1)]) == 1
    assert first_layer(tiny, [Steer(late, 0.1), Ablate(heads=[(0, 1)], kind="zero")]) == 0
    assert first_layer(tiny, [Steer(embed, 0.1), Steer(late, 0.1)]) == 0
    assert first_layer(tiny, []) == 0
    with pytest.raises(ValueError, match="after the blocks"):
        first_layer(tiny, [Steer(vector("ln_final.hook_normalized"), 0.1)])


def test_an_intervention_that_reaches_no_token_and_a_long_text(tiny: HookedTransformer) -> None:
    ids = [tiny.tokenizer.encode(text) for text in TEXTS]
    sheet = Sheet(tiny, ids, list(map(len, ids)), [0])
    steer = Steer(vector("blocks.0.hook_resid_post"), 0.1, where=Where(positions=[500]))
    with pytest.raises(ValueError, match="found no token"):
        response_logprobs(sheet, 0, [steer])
    assert not tiny.hook_dict["blocks.0.hook_resid_post"].handles
    with pytest.raises(ValueError, match="context holds"):
        Sheet(tiny, [[1] * 10_000], [1], [0])
