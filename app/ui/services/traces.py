"""Causal tracing and attention knockout of the prompt."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

import interp
from ui.services.kept import shelf
from ui.services.live import checked, engine, token_ids
from ui.services.patches import Progress

MAX_TRACE_TOKENS = 64
"""Longest prompt that a page traces or cuts: each layer and position is a run of its own."""
TRACE_SITES = {"resid_post": "Stream after a block", "attn_out": "Attention output", "mlp_out": "MLP output"}
MAX_DRAWS = 10


@dataclass(frozen=True)
class Trace:
    """What is traced: hashable, so that it names its result."""

    prompt: str
    subject: str
    answer: str | int
    site: str = "resid_post"
    draws: int = 4
    window: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Cuts:
    """What is cut."""

    prompt: str
    answer: str | int
    against: str | int | None = None
    window: int = 1
    seed: int = 0


def found(asked: Trace | Cuts) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """The result of `run_trace` or `run_cuts` for this, None where it was not run."""
    return shelf().get((engine().fingerprint, asked))


def run_trace(asked: Trace, progress: Progress) -> None:
    """Restore each layer and position under noise (`interp.causal_trace`); the frame and its facts go on the shelf.

    Raises:
        ValueError: a subject that the prompt does not hold, no subject, a long prompt, or another number of draws.
    """
    _check(asked.prompt)
    if not asked.subject:
        raise ValueError("the subject is empty: write the words of the prompt that become noise")
    if not 1 <= asked.draws <= MAX_DRAWS:
        raise ValueError(f"{asked.draws} draws: a page takes 1 to {MAX_DRAWS}")
    fingerprint = engine().fingerprint
    with checked(fingerprint) as model:
        result = interp.causal_trace(
            model, asked.prompt, asked.subject, asked.answer, n_noise=asked.draws, sites=[asked.site], window=asked.window,
            seed=asked.seed, progress=progress,
        )  # fmt: skip
    facts = {"clean": float(result.clean[0]), "corrupted": float(result.corrupted[0].mean())}
    shelf().put((fingerprint, asked), (result.to_frame(), facts))


def run_cuts(asked: Cuts, progress: Progress) -> None:
    """Cut the last token's attention to each other one, layer by layer (`interp.knockout_sweep`)."""
    _check(asked.prompt)
    fingerprint = engine().fingerprint
    with checked(fingerprint) as model:
        result = interp.knockout_sweep(
            model, asked.prompt, asked.answer, asked.against, window=asked.window, seed=asked.seed, progress=progress
        )
    measure = "logit_diff" if asked.against is not None else "probability"
    facts = {"measure": measure, "plain": float(result.plain[2 if asked.against is not None else 0].mean())}
    shelf().put((fingerprint, asked), (result.to_frame(), facts))


def _check(prompt: str) -> None:
    n = len(token_ids(prompt))
    if not 2 <= n <= MAX_TRACE_TOKENS:
        raise ValueError(
            f"the prompt has {n} token{'s' if n != 1 else ''}; a page takes 2 to {MAX_TRACE_TOKENS}: change it, or use "
            "`interp trace` or `interp knockout` in a shell"
        )
