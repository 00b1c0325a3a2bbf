"""Changed runs that start at their layer against whole runs."""

import pytest
import torch
from tiny import FAMILIES, shaken_model

from interp.rerun import base_run

TEXTS = ["the cat sat on the mat", "a dog", "one two three"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_changed_runs_are_whole_runs(family: str, side: str) -> None:
    model = shaken_model(family)
    assert model.tokenizer is not None
    tokens = model.tokenizer.tokenize(TEXTS, pad=side)
    base = base_run(model, tokens)
    whole = model(tokens)
    at = torch.arange(len(TEXTS))
    torch.testing.assert_close(base.last_logits(base.final), whole[at, tokens.last].as_subclass(torch.Tensor))
    for layer in range(model.cfg.n_layers):
        site = f"blocks.{layer}.attn.hook_z"

        def double(value: torch.Tensor, ctx: object) -> torch.Tensor:
            return value.unflatten(0, (2, -1)).mul(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1, 1)).flatten(0, 1)

        logits = base.last_logits(base.stream(layer, {site: double}, copies=2))
        with model.hooks({site: lambda value, ctx: value * 2}):
            doubled = model(tokens)
        torch.testing.assert_close(logits[0], whole[at, tokens.last].as_subclass(torch.Tensor), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(logits[1], doubled[at, tokens.last].as_subclass(torch.Tensor), rtol=1e-4, atol=1e-4)


def test_only_the_layers_asked_for_are_kept() -> None:
    base = base_run(shaken_model("llama"), "some text", layers=[1])
    assert list(base.streams) == [1]
    assert base.copies_at_once() >= 1


@pytest.mark.parametrize("wished", [0, -1, 1.5, True])
def test_a_batch_of_no_runs_is_refused(wished: object) -> None:
    base = base_run(shaken_model("llama"), "some text", layers=[1])
    with pytest.raises(ValueError, match="at least one run"):
        base.copies_at_once(wished)
    assert base.copies_at_once(3) == 3
