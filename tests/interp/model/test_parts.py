"""Models taken apart and assembled again compute the same bits, over read-only memory, and others are refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tiny import FAMILIES, shaken_model, tiny_config, tiny_model
from torch import Tensor

from interp.model import HookedTransformer, quantize_int8
from interp.model.parts import ModelParts, Weight

IDS = torch.arange(3, 40).reshape(1, 37)


def read_only(parts: ModelParts) -> ModelParts:
    """As they come out of Ray's object store."""
    weights = {name: dataclasses.replace(w, values=w.values.copy()) for name, w in parts.weights.items()}
    for weight in weights.values():
        weight.values.setflags(write=False)
    return dataclasses.replace(parts, weights=weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_arrives_bit_for_bit(family: str) -> None:
    model = shaken_model(family)
    model.note = "shaken"
    for dtype in (torch.float32, torch.bfloat16):
        model = model.to(dtype)
        there = read_only(ModelParts.of(model)).assemble()
        assert torch.equal(there(IDS), model(IDS))
        assert (there.fingerprint, there.note, there.dtype) == (model.fingerprint, "shaken", dtype)
        assert not any(weight.requires_grad for weight in there.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_int8_models_and_tied_embeddings_arrive(dtype: torch.dtype, tied: bool) -> None:
    plain = tiny_model("gpt2", tie_embeddings=tied).to(dtype)
    model = quantize_int8(plain).model
    there = read_only(ModelParts.of(model)).assemble()
    assert type(there.embed) is type(model.embed)
    assert torch.equal(there(IDS), model(IDS))
    assert there.note == model.note
    assert (there.unembed is None) is tied


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_weights_keep_their_layout_and_share_memory(order: tuple[int, ...]) -> None:
    for tensor in (
        torch.randn(3, 4, 5),
        torch.randn(3, 4, 5).bfloat16(),
        torch.arange(60).view(3, 4, 5).to(torch.int8),
    ):
        wanted = tensor.permute(order)
        weight = Weight.of(wanted)
        arrived = weight.tensor()
        assert torch.equal(arrived, wanted)
        assert (arrived.stride(), arrived.dtype) == (wanted.stride(), wanted.dtype)
        assert arrived.data_ptr() == tensor.data_ptr()
    part = torch.randn(8, 12)[:, 4:8].T  # as the columns of a fused matrix: copied once, the order of axes stays
    assert torch.equal(Weight.of(part).tensor(), part)
    assert Weight.of(part).tensor().stride() == (1, 4)
    assert torch.equal(Weight.of(torch.tensor(2.5)).tensor(), torch.tensor(2.5))


def test_changed_weights_are_noticed() -> None:
    parts = ModelParts.of(tiny_model())
    values = parts.weights["embed.weight"].values.copy()
    values[0, 0] = np.nextafter(values[0, 0], np.float32(9))
    weights = {**parts.weights, "embed.weight": dataclasses.replace(parts.weights["embed.weight"], values=values)}
    with pytest.raises(ValueError, match=r"tiny-llama arrived with the fingerprint .* changed on the way"):
        dataclasses.replace(parts, weights=weights).assemble()


def test_functions_of_this_process_cannot_travel() -> None:
    model = tiny_model()
    with model.hooks({"resid_post:0": lambda value, ctx: None}), pytest.raises(ValueError, match="engine='local'"):
        ModelParts.of(model)
    handle = model.blocks[0].register_forward_hook(lambda *args: None)
    with pytest.raises(ValueError, match=r"torch hooks on blocks\.0, which cannot travel: use engine='local'"):
        ModelParts.of(model)
    handle.remove()
    ModelParts.of(model)


def test_foreign_parts_are_named() -> None:
    class Doubled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)

    class Own(HookedTransformer):
        def extra(self, x: Any) -> Any:
            return x

    model = tiny_model()
    model.blocks[1] = Doubled(model.blocks[1])
    with pytest.raises(ValueError, match=r"blocks\.1 is a Doubled.*engine='local'"):
        ModelParts.of(model)
    with pytest.raises(ValueError, match="the model is a Own"):
        ModelParts.of(Own(tiny_config(), seed=0))
    dropping = tiny_model(attention_dropout=0.1)
    ModelParts.of(dropping)
    with pytest.raises(ValueError, match=r"training mode.*model\.eval"):
        ModelParts.of(dropping.train())
