"""Patching of a task's prompts, or of own ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp.task import METRICS, TASKS
from ui import state
from ui.services.kept import shelf
from ui.services.live import checked, engine
from ui.services.runs import KEPT

MAX_PAIR_TOKENS = 64
"""Longest prompt of a sweep."""
MAX_PAIRS = 16
"""Most pairs of a sweep."""
OWN = "own"
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Sweep:
    """What is asked: hashable, so that it names its result."""

    task: str
    """A name of `tasks()`; "own" takes the four texts that follow."""
    clean: str = ""
    corrupted: str = ""
    answer: str = ""
    against: str = ""
    n: int = 4
    """Pairs of a task."""
    seed: int = 0
    site: str = "resid_pre"
    by: str = "pos"
    mode: str = "denoise"
    metric: str = "logit_diff"
    exact: bool = True
    """Every patch run, or all estimated by one backward pass."""

    @property
    def prompts(self) -> tuple[str | int, ...]:
        """The part of it that decides on the pairs."""
        own = self.task == OWN
        return (
            (self.task, self.clean, self.corrupted, self.answer, self.against)
            if own
            else (self.task, self.n, self.seed)
        )


def tasks() -> tuple[str, ...]:
    """Names of the tasks that are built in."""
    return tuple(TASKS)


def metrics() -> tuple[str, ...]:
    """Names of what can be measured."""
    return tuple(METRICS)


def aligned(asked: Sweep) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The pairs (`PromptPairs.to_frame`), and the tokens of the first one side by side (`PromptPairs.alignment`).

    Raises:
        ValueError: prompts of unequal length, with a table of their tokens; answers of several tokens; too long ones.
    """
    return _aligned(engine().fingerprint, asked.prompts, asked)


def swept(asked: Sweep) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """The result of `run_sweep` for this, None where it was not run."""
    return shelf().get((engine().fingerprint, asked))


def run_sweep(asked: Sweep, progress: Progress) -> None:
    """Run the sweep and put its frame (`PatchResult.to_frame`) and its facts on the shelf."""
    fingerprint = engine().fingerprint
    aligned(asked)  # refuses what a page does not run
    with checked(fingerprint) as model:
        pairs = _pairs(model, asked)
        options: dict[str, Any] = {"site": asked.site, "mode": asked.mode, "by": asked.by}
        if asked.exact:
            found = interp.patch_sweep(model, pairs, metric=asked.metric, seed=asked.seed, progress=progress, **options)
        else:
            found = interp.attribution_patch(model, pairs, metric=asked.metric, seed=asked.seed, **options)
    facts = {
        "clean": float(found.clean.mean()),
        "corrupted": float(found.corrupted.mean()),
        "n": len(pairs),
        "agreement": found.card.get("rank_agreement"),
        "n_checked": 0 if found.checked is None else len(found.checked),
    }
    shelf().put((fingerprint, asked), (found.to_frame(), facts))


@st.cache_data(**KEPT)
def _aligned(fingerprint: str, prompts: Any, _asked: Sweep) -> tuple[pd.DataFrame, pd.DataFrame]:  # noqa: ARG001
    with checked(fingerprint) as model:
        pairs = _pairs(model, _asked)
    longest = int(pairs.clean.lengths.max())
    if longest > MAX_PAIR_TOKENS:
        raise ValueError(f"the prompts have {longest} tokens, more than the {MAX_PAIR_TOKENS} of a sweep on a page")
    return pairs.to_frame(), pairs.alignment(0)


def _pairs(model: Any, asked: Sweep) -> Any:
    if asked.task != OWN:
        if not 1 <= asked.n <= MAX_PAIRS:
            raise ValueError(f"{asked.n} pairs: a page takes 1 to {MAX_PAIRS}")
        return interp.task_pairs(model, asked.task, asked.n, asked.seed)
    for name in ("clean", "corrupted", "answer"):
        value = getattr(asked, name)
        if not value:
            raise ValueError(f"the {name} {'is' if name == 'answer' else 'prompt is'} empty: write one")
        if len(value) > state.MAX_CHARS:
            raise ValueError(
                f"the {name} prompt has {len(value):,} characters, more than the {state.MAX_CHARS:,} of a page"
            )
    return interp.prompt_pairs(model, asked.clean, asked.corrupted, asked.answer, asked.against or None)


def one_patch(asked: Sweep, layer: int, place: int, k: int = 8) -> pd.DataFrame:
    """The first pair's next tokens without and with one patch: token, p_a (the run without it), p_b (with it).

    The k most probable ones of either run, and the answer, come first.

    Args:
        asked: the sweep that the patch is one of.
        layer: of the patch.
        place: position, or head where the sweep is by head.
        k: tokens of each run.

    Raises:
        ValueError: a place that the sweep does not have.
    """
    fingerprint = engine().fingerprint
    aligned(asked)
    return _one_patch(fingerprint, asked, layer, place, k)


@st.cache_data(**KEPT)
def _one_patch(fingerprint: str, asked: Sweep, layer: int, place: int, k: int) -> pd.DataFrame:
    import torch

    with checked(fingerprint) as model, torch.inference_mode():
        pairs = _pairs(model, asked)[:1]
        source, base = (pairs.clean, pairs.corrupted) if asked.mode == "denoise" else (pairs.corrupted, pairs.clean)
        last, by_head = int(pairs.clean.mask[0].sum()) - 1, asked.by == "head"
        if not 0 <= layer < model.cfg.n_layers or not (by_head or 0 <= place <= last):
            raise ValueError(f"layer {layer}, {asked.by} {place} is no patch of this sweep: click a cell")
        site = f"{asked.site}:{layer}"
        _, cache = model.run_with_cache(source, sites=site)
        patch = interp.Patch(f"{site}.{place}" if by_head else site, cache, positions=None if by_head else [place])
        before = model(base)[0, last].float().softmax(-1)
        with model.intervene(patch):
            after = model(base)[0, last].float().softmax(-1)
        answers = [i for i in pairs.answers[0].tolist() if i >= 0]
        ids = [
            *answers,
            *after.topk(min(k, len(after))).indices.tolist(),
            *before.topk(min(k, len(before))).indices.tolist(),
        ]
        ids = sorted(dict.fromkeys(ids), key=lambda i: (i not in answers, -float(after[i])))
        read = [model.tokenizer.views([i])[0].display for i in ids]
        return pd.DataFrame({"token": read, "p_a": before[ids].numpy(), "p_b": after[ids].numpy()})
