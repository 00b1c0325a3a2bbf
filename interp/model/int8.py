"""Weight-only int8: a smaller, faster copy of a model, with its logit error measured.

Each row of a weight matrix is stored as integers in -127..127 and one scale, its largest weight / 127 (symmetric, absmax;
for example Dettmers et al. 2022, arXiv 2208.07339, section 2.1). Scales are rounded to bf16 before the integers are chosen,
so that this rounding costs nothing. Norms, biases, position embeddings and routers of experts keep their precision.

On a CPU the product is PyTorch's int8 kernel, which reads a quarter of the bytes and takes bf16: each product rounds its
input and its output to bf16 and adds up in fp32, whatever the number of rows, so a token gets the same values in prefill
and decode. On SmolLM2-135M that rounding adds a tenth to the KL divergence which int8 itself costs. The stream between the
products keeps the model's dtype.
Elsewhere, in fp64, and for widths that the kernel cannot take, weights are dequantised and the product is made in the
model's dtype. Gradients flow to activations, never to the weights.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.model.inputs import Logits
from interp.model.linear import Embedding, Linear
from interp.model.transformer import HookedTransformer

LOG = logging.getLogger("interp")
LEVELS = 127
KERNEL_WIDTH = 16
"""The kernel reads rows in steps of so many weights and reads beyond rows of another width."""
_kernel = torch._weight_int8pack_mm  # pyright: ignore[reportPrivateImportUsage]
CHECK_TEXT = (
    "The river rises in the hills north of the town and reaches the sea after ninety miles. In 1872 a bridge of seven "
    "arches replaced the ferry, which had carried people, cattle and carts since the Middle Ages. Why it was built of brick "
    "and not of stone is told in a letter from the engineer to his brother: there was no quarry within a day's ride."
)
N_CHECK = 64


@dataclass(frozen=True)
class Int8Report:
    """What int8 weights cost in precision, and save in memory. Figures are over all `n_tokens` places of the check."""

    model: HookedTransformer
    """The copy with int8 weights."""
    max_error: float
    """Largest absolute difference of a logit."""
    mean_kl: float
    """KL(original || int8) of the next-token distributions, in nats, mean over places."""
    top1_agreement: float
    """Share of places at which both have the same most probable token."""
    n_tokens: int
    """Places that were compared."""
    bytes_before: int
    """Of the original's weights."""
    bytes_after: int
    """Of the copy's weights."""

    def __post_init__(self) -> None:
        for field in ("max_error", "mean_kl", "top1_agreement"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be finite and 0 or more, got {getattr(self, field)}")

    def __str__(self) -> str:
        return (
            f"int8 weights: logits off by at most {self.max_error:.3g}, mean KL {self.mean_kl:.3g} nats, same top token at "
            f"{self.top1_agreement:.1%} of {self.n_tokens} places; {self.bytes_before / 1e6:.0f} -> "
            f"{self.bytes_after / 1e6:.0f} MB"
        )


@torch.no_grad()
def quantize_int8(model: HookedTransformer, *, check: Any = None) -> Int8Report:
    """A copy of the model with int8 weights; the original stays as it is and shares nothing with it.

    Args:
        model: in float32, bfloat16 or float64.
        check: what the logit error is measured on: text, texts, ids or Tokens. None for a paragraph of English, or for
            random ids where there is no tokenizer.

    Returns:
        The copy and its error, which also stands in the copy's `note` and in the log.

    Raises:
        ValueError: a float16 model (its range is too narrow for the scales), one that is int8 already, or one whose
            weights are NaN or infinite.
    """
    if model.dtype == torch.float16:
        raise ValueError("int8 weights need a float32, bfloat16 or float64 model; this one is float16")
    if isinstance(model.embed, Int8Embedding):
        raise ValueError(f"{model.cfg.name} has int8 weights already")
    copy = HookedTransformer(model.cfg, model.tokenizer, dtype=model.dtype, blank=True)
    _copy_small(model, copy)
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear):
            _replace(copy, name, Int8Linear(module))
        elif isinstance(module, Embedding) and module is not model.pos_embed and module is not model.type_embed:
            _replace(copy, name, Int8Embedding(module))
    report = _measured(model, copy, _check_ids(model) if check is None else check)
    notes = [model.note] if model.note else []
    copy.note = "; ".join([*notes, f"int8 weights, mean KL {report.mean_kl:.2g} nats"])
    LOG.info("%s: %s", model.cfg.name, report)
    return report


# ---------------------------------------------------------------------------------------------------------- modules


class Int8Matrix(nn.Module):
    """Rows of int8 with a scale each. `weight` is a dequantised copy: writing to it changes nothing."""

    def __init__(self, weight: Float[Tensor, "row width"]) -> None:
        nn.Module.__init__(self)
        codes, scale = _rounded(weight.detach())
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.register_buffer("scale", scale.to(weight.dtype))
        self.scale: Tensor
        # As the kernel takes them. No buffer: it must not follow a change of dtype.
        self._kernel_scale = scale.cpu()

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._kernel_scale = self.scale.bfloat16().cpu()  # exact: scales are bfloat16 numbers

    @property
    def weight(self) -> Float[Tensor, "row width"]:
        """The weights that the integers stand for, in the model's dtype."""
        return self.codes.to(self.scale.dtype) * self.scale[:, None]

    @property
    def dtype(self) -> torch.dtype:
        """Of the values that the rows stand for."""
        return self.scale.dtype

    @property
    def device(self) -> torch.device:
        """Of the rows."""
        return self.codes.device

    def product(
        self, x: Float[Tensor, "*rows width"], bias: Float[Tensor, " row"] | None = None
    ) -> Float[Tensor, "*rows row"]:
        """x times every row, plus the bias."""
        usable = self.codes.device.type == "cpu" and x.dtype != torch.float64 and x.shape[-1] % KERNEL_WIDTH == 0
        if not usable:
            return nn.functional.linear(x, self.weight, bias)
        if torch.is_grad_enabled() and x.requires_grad:
            out = _as_bf16(nn.functional.linear(_as_bf16(x), self.weight))
        else:
            flat = x.reshape(-1, x.shape[-1]).bfloat16()
            out = _kernel(flat, self.codes, self._kernel_scale).to(x.dtype)
            out = out.view(*x.shape[:-1], out.shape[-1])
        return out if bias is None else out + bias


class Int8Linear(Int8Matrix, Linear):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A Linear whose weight is int8."""

    bias: nn.Parameter | None

    def __init__(self, linear: Linear) -> None:
        Int8Matrix.__init__(self, linear.weight)
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone(), requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        return self.product(x, self.bias)


class Int8Embedding(Int8Matrix, Embedding):  # pyright: ignore[reportIncompatibleVariableOverride]
    """An Embedding whose rows are int8: looked up one by one, and multiplied with as an unembedding."""

    def __init__(self, embedding: Embedding) -> None:
        Int8Matrix.__init__(self, embedding.weight)

    def forward(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.codes[ids].to(self.scale.dtype) * self.scale[ids][..., None]

    def project(
        self, x: Float[Tensor, "*rows d_model"], bias: Float[Tensor, " row"] | None = None
    ) -> Float[Tensor, "*rows row"]:
        """The product of x with every row."""
        return self.product(x, bias)


def _rounded(weight: Float[Tensor, "row width"]) -> tuple[Int[Tensor, "row width"], Float[Tensor, " row"]]:
    """(codes in int8, scales in bf16)."""
    largest = weight.abs().amax(1).float()
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("the weights are NaN or infinite; int8 cannot hold them")
    scale = (largest / LEVELS).bfloat16()
    step = scale.to(weight.dtype).masked_fill(scale == 0, 1.0)
    # A scale that was rounded down would need codes beyond the range: they are cut, by less than half a step's error.
    return (weight / step[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def _as_bf16(x: Tensor) -> Tensor:
    """Rounded to bf16, with the gradient of the identity."""
    return x + (x.bfloat16().to(x.dtype) - x).detach()


# ------------------------------------------------------------------------------------------------ copying, measuring


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


def _copy_small(model: HookedTransformer, copy: HookedTransformer) -> None:
    """Every weight that stays in its precision."""
    large = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, (Linear, Embedding))}
    own = dict(copy.named_parameters())
    for name, weight in model.named_parameters():
        if name not in large or name.split(".")[0] in ("pos_embed", "type_embed"):
            own[name].data = weight.detach().clone()


def _check_ids(model: HookedTransformer) -> Int[Tensor, "1 pos"]:
    n_tokens = min(N_CHECK, model.cfg.n_ctx)
    if model.tokenizer is not None:
        return torch.tensor([model.tokenizer.encode(CHECK_TEXT)[:n_tokens]])
    return torch.randint(0, model.cfg.d_vocab, (1, n_tokens), generator=torch.Generator().manual_seed(0))


def _measured(model: HookedTransformer, copy: HookedTransformer, check: Any) -> Int8Report:
    before, after = model(check), copy(check)
    assert isinstance(before, Logits)
    real = before.tokens.mask
    before, after = before[real].double(), after[real].double()
    logp, logq = before.log_softmax(-1), after.log_softmax(-1)
    return Int8Report(
        copy,
        float((before - after).abs().max()),
        max(0.0, float((logp.exp() * (logp - logq)).sum(-1).mean())),
        float((before.argmax(-1) == after.argmax(-1)).double().mean()),
        len(before),
        _n_bytes(model),
        _n_bytes(copy),
    )


def _n_bytes(model: nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in (*model.parameters(), *model.buffers()))
