"""A model as plain values, for a process that has none: taken apart here, assembled there.

1. `ModelParts.of` takes configuration, tokenizer and weights. Weights become numpy arrays, which Ray keeps once a machine
   and hands to every process there without a copy. numpy has no bfloat16, so those are seen as uint16.
2. `assemble` puts the arrays into a blank model. On a CPU they are used where they lie: several processes share them, and
   none may write to them. On a GPU they are copied to it.
3. The fingerprint must be the same on both sides.

Each array keeps the order of its axes in memory, not its shape alone: a product with a transposed matrix may add up in
another order, and the last bits would differ.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from interp.model.config import ModelConfig
from interp.model.int8 import Int8Embedding, Int8Linear
from interp.model.linear import Embedding, Linear
from interp.model.transformer import HookedTransformer
from interp.tokens import Tokenizer


@dataclass(frozen=True, eq=False)
class Weight:
    """One tensor as a numpy array."""

    values: np.ndarray
    """Its numbers, contiguous, with the axes in the order in which they lay in memory."""
    axes: tuple[int, ...]
    """Which of the tensor's axes each axis of `values` is."""
    dtype: str
    """The tensor's dtype; bfloat16 lies in `values` as uint16."""

    @classmethod
    def of(cls, tensor: Tensor) -> "Weight":
        """From a tensor on any device. On a CPU a contiguous or transposed one is not copied."""
        dtype, tensor = str(tensor.dtype).removeprefix("torch."), tensor.detach().cpu()
        values = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        axes = sorted(range(values.ndim), key=lambda axis: -values.strides[axis])
        return cls(np.asarray(values.transpose(axes), order="C"), tuple(axes), dtype)

    def tensor(self) -> Tensor:
        """The tensor, over the memory of `values`. It must not be written to."""
        with warnings.catch_warnings():  # of arrays that are read-only; these tensors are frozen parameters
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            tensor = torch.from_numpy(self.values)
        return tensor.view(getattr(torch, self.dtype)).permute(tuple(np.argsort(self.axes)))


@dataclass(frozen=True, eq=False)
class ModelParts:
    """Everything about a model that decides what it computes."""

    cfg: ModelConfig
    """The architecture."""
    tokenizer: Tokenizer | None
    """Its tokenizer."""
    note: str
    """What stands in its cards beside its name."""
    dtype: str
    """Of its stream; int8 matrices have this dtype on the outside."""
    weights: Mapping[str, Weight]
    """The state dict."""
    fingerprint: str
    """Of the model."""

    @classmethod
    def of(cls, model: HookedTransformer) -> "ModelParts":
        """Take a model apart; it stays as it is.

        Raises:
            ValueError: a model with hooks, one of another class or with modules that are not ours, or one that drops out
                at random.
        """
        _refuse_what_cannot_travel(model)
        weights = {name: Weight.of(tensor) for name, tensor in model.state_dict().items()}
        dtype = str(model.dtype).removeprefix("torch.")
        return cls(model.cfg, model.tokenizer, model.note, dtype, weights, model.fingerprint)

    def assemble(self, device: str = "cpu") -> HookedTransformer:
        """The model on a device, its parameters frozen. On "cpu" they lie in the parts' own memory: do not write there.

        Raises:
            ValueError: a device that cannot be used, or weights that are not what was taken apart.
        """
        model = HookedTransformer(self.cfg, self.tokenizer, dtype=getattr(torch, self.dtype), blank=True)
        _put_int8(model, [name.removesuffix(".codes") for name in self.weights if name.endswith(".codes")])
        model.load_state_dict({name: weight.tensor() for name, weight in self.weights.items()}, assign=True)
        model.requires_grad_(False)
        model.note = self.note
        if model.fingerprint != self.fingerprint:
            raise ValueError(
                f"{self.cfg.name} arrived with the fingerprint {model.fingerprint}, it was sent with {self.fingerprint}: "
                "its weights were changed on the way, or interp differs between the two processes"
            )
        return model.to(device)


def _refuse_what_cannot_travel(model: HookedTransformer) -> None:
    local = "use engine='local', or"
    hooked = [name for name, point in model.hook_dict.items() if point.handles]
    if hooked:
        raise ValueError(
            f"there are hooks on {hooked[0]}: they are functions of this process and cannot go to another; {local} leave "
            "the block that attaches them"
        )
    watched = [name for name, module in model.named_modules() if module._forward_hooks or module._forward_pre_hooks]
    if watched:
        raise ValueError(
            f"there are torch hooks on {watched[0] or 'the model'}, which cannot travel: {local} remove them"
        )
    plain = HookedTransformer(model.cfg, dtype=model.dtype, blank=True)
    known = {type(module) for module in plain.modules()} | {Int8Linear, Int8Embedding}
    for name, module in model.named_modules():
        if type(module) not in known:
            what = f"{name} is a {type(module).__name__}" if name else f"the model is a {type(module).__name__}"
            raise ValueError(
                f"{what}, which cannot be made anew in another process: {local} pass a plain HookedTransformer"
            )
    if model.training and model.cfg.attention_dropout:
        raise ValueError("the model is in training mode, where dropout makes each run another: call model.eval()")


def _put_int8(model: HookedTransformer, names: list[str]) -> None:
    """int8 matrices in the places of the plain ones; their numbers come later."""
    for name in names:
        plain = model.get_submodule(name)
        assert isinstance(plain, (Embedding, Linear))
        plain.weight.zero_()
        parent, _, child = name.rpartition(".")
        quantized = Int8Embedding(plain) if isinstance(plain, Embedding) else Int8Linear(plain)
        setattr(model.get_submodule(parent), child, quantized)
