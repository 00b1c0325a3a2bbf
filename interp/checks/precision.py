"""Noise or bug: the same model in fp32, fp64 and bf16.

Rounding shrinks by eight orders of magnitude from fp32 to fp64; a wrong formula stays. So the whole pass is computed
three times, by the model in fp32, by the model in fp64 and from definitions in fp64: the first must be near the last, and
the second nearer by orders. In bf16 the model may be off by its eight bits, and must still predict the same.
"""

import copy

import torch
from torch import Tensor, nn

from interp.checks.patient import Patient, bounded, row_error, skipped
from interp.checks.plain import PlainModel
from interp.checks.report import Check
from interp.model import HookedTransformer

FALL = 100.0
"""By how much the error must fall at least; rounding alone falls by far more."""
MOST_BITS = 0.25
"""Bound on KL(fp32 || bf16), in nats, of a trained model's predictions."""


def converted(model: HookedTransformer, dtype: torch.dtype) -> HookedTransformer:
    """A copy of the model in another precision. Weights are converted one by one, never held twice in the old one."""
    memo: dict[int, object] = {id(model.tokenizer): model.tokenizer, id(model.cfg): model.cfg}
    for weight in model.parameters():
        new = weight.detach().to(dtype) if weight.is_floating_point() else weight.detach()
        memo[id(weight)] = nn.Parameter(new, requires_grad=False)
    for buffer in model.buffers():  # scales of int8 rows
        memo[id(buffer)] = buffer.to(dtype) if buffer.is_floating_point() else buffer
    return copy.deepcopy(model, memo)


def wide(patient: Patient) -> Check:
    """fp32 against definitions in fp64, and fp64 against the same: the error must fall by orders."""
    model, name = patient.model, "fp32 against fp64"
    compared = "every layer's stream and the logits with the whole pass from definitions in fp64"
    ids = patient.ids[:16]
    double = converted(model, torch.float64) if model.dtype != torch.float64 else model
    streams, logits = PlainModel(double).streams(ids)
    narrow = _worst(model, ids, streams, logits)
    exact = _worst(double, ids, streams, logits)
    del double
    bound = max(patient.rounding * max(1.0, model.cfg.n_layers / 4), 1e-9)
    note = f"{str(model.dtype).removeprefix('torch.')} is off by {narrow:.1e}, fp64 by {exact:.1e}: "
    noise = exact <= max(narrow / FALL, 1e-9)
    if not noise:
        return Check(name, compared, "FAILED", exact, max(narrow / FALL, 1e-9), note + "a bug, for noise would fall")
    return bounded(name, compared, narrow, bound, note + "noise")


def _worst(model: HookedTransformer, ids: Tensor, streams: list[Tensor], logits: Tensor) -> float:
    """Largest deviation of a row of any layer's stream, or of the logits."""
    with torch.no_grad():
        out, cache = model.run_with_cache(ids[None], sites=["resid_pre:*"])
    assert out is not None
    found = [cache["resid_pre", layer][0].cpu() for layer in range(model.cfg.n_layers)]
    errors = [row_error(value, expected) for value, expected in zip(found, streams, strict=False)]
    return max(*errors, row_error(out.as_subclass(Tensor)[0].cpu(), logits))


def narrow(patient: Patient) -> Check:
    """The model in bf16 predicts what it predicts in its own precision."""
    model, name = patient.model, "bf16"
    compared = "next-token distributions in bf16 with those in the model's own precision: mean KL in nats"
    if model.dtype == torch.bfloat16:
        return skipped(name, compared, "the model is in bf16 itself")
    half = converted(model, torch.bfloat16)
    with torch.no_grad():
        low = half(patient.ids[None]).as_subclass(Tensor)[0].double().log_softmax(-1)
    del half
    high = patient.logits[0].double().log_softmax(-1)
    kl = (high.exp() * (high - low)).sum(-1)
    same = float((low.argmax(-1) == high.argmax(-1)).double().mean())
    note = f"the best token is the same at {same:.0%} of {len(kl)} places, largest KL {float(kl.max()):.2g}"
    return bounded(name, compared, float(kl.mean()), MOST_BITS, note)
