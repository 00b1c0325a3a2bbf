"""`steered_logits`: what the model says next after each prompt, at every strength of a grid."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.steering.measures.base import prompt_ids
from interp.steering.runner import Sheet, first_layer, refuse_rows


@torch.inference_mode()
def steered_logits(
    model: HookedTransformer,
    vector: Any,
    prompts: Sequence[str],
    strengths: Sequence[float] | Any,
    *,
    kind: str = "add",
    where: Any = "all",
    unit: str | Any = None,
    site: str | Any = None,
    when: Any = None,
    batch_size: int | Any = 32,
) -> Float[Tensor, "strength prompt d_vocab"]:
    """Logits after the last token of each prompt.

    What lies before the steered layer runs once, however many strengths there are.

    Args:
        model: a decoder with a tokenizer.
        vector: what `Steer` takes.
        prompts: texts.
        strengths: in any order, which is that of the result.
        kind, where, unit, site, when: as in `Steer`.
        batch_size: prompts in a pass.

    Raises:
        ValueError: no prompts or strengths, an empty prompt, or what `Steer` refuses.
    """
    grid = [strengths] if isinstance(strengths, int | float) else list(strengths)
    if isinstance(prompts, str) or not prompts or not grid:
        raise ValueError("give a list of prompts and a list of strengths, at least one of each")
    refuse_rows(where)
    options = {"kind": kind, "where": where, "unit": unit, "site": site, "when": when}
    steers = [Steer(vector, strength, **options) for strength in grid]
    ids, layer = prompt_ids(model, prompts), first_layer(model, steers)
    sheet = Sheet(model, ids, list(map(len, ids)), [layer], batch_size)
    order = np.concatenate([batch.texts for batch in sheet.batches])
    found = []
    for steer in steers:
        rows = [
            model.unembed_logits(stream[torch.arange(len(stream), device=stream.device), batch.lengths - 1])
            for batch, stream in sheet.runs(layer, [steer])
        ]
        found.append(torch.cat(rows)[torch.as_tensor(np.argsort(order), device=model.device)])
    return torch.stack(found)
