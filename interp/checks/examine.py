"""`doctor`: run every check on a loaded model, in order, and time it."""

import dataclasses
import fnmatch
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from interp import artifact
from interp.checks import cache, hooks_fire, identities, masks, memory, outliers, parity, precision, text
from interp.checks.patient import Patient
from interp.checks.recompute import PARTS, recompute
from interp.checks.report import MASSIVE, Check, DoctorReport
from interp.model import HookedTransformer
from interp.weights import catalog
from interp.weights.load import HUB_ID

logger = logging.getLogger("interp")

CHECKS: dict[str, Callable[[Patient], Check | list[Check]]] = {
    "shapes": identities.shapes,
    "repeatable": identities.repeatable,
    "residual identities": identities.residual,
    "recomputed": recompute,
    "pattern rows": identities.pattern_rows,
    "hooks fire": hooks_fire.fire,
    "identity hooks": hooks_fire.identity,
    "edits reach the output": hooks_fire.edits_reach,
    "leaks": masks.leaks,
    "window leaks": masks.window_leaks,
    "padding leaks": masks.padding_leaks,
    "document leaks": masks.document_leaks,
    "single = padded": masks.padding_sides,
    "KV cache = none": cache.plain,
    "KV cache = none, steering": cache.steered,
    "lens": identities.lens,
    "sum of attributions": identities.attributions,
    "no heads": identities.no_heads,
    "fp32 against fp64": precision.wide,
    "bf16": precision.narrow,
    "speaks": text.speaks,
    "tokenizer round trip": text.round_trip,
    "one BOS": text.one_bos,
    "chat template": text.chat,
    "parity with transformers": parity.parity,
    "memory flat": memory.flat,
}
"""Every check by its name, in the order in which they run. "massive activations" comes last: it makes a table as well."""
LAST = "massive activations"
LINES: dict[str, tuple[str, ...]] = {
    "recomputed": tuple(f"recomputed: {part}" for part in (*PARTS, "unembedding")),
    "leaks": ("causal leaks", "bidirectional reach"),
    "parity with transformers": ("parity: logits", "parity: every layer", "parity: tokenizer"),
}
"""Lines of the report that are named otherwise than the check that prints them."""


def doctor(
    model: HookedTransformer | str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str] | None = None,
    transformers: bool = True,
    only: str | Sequence[str] = "*",
    seed: int = 0,
    progress: Callable[[Check], None] | None = None,
) -> DoctorReport:
    """Prove a loaded model right, or say where it is wrong.

    Every check compares two ways to one value: what the model recorded against its definition computed once more from the
    weights in fp64, a text alone against the same text in a batch, decoding with a cache against one pass, and so on. A
    check that raises has failed, and says with what.

    Args:
        model: any loaded model, without hooks attached. Nothing of it is changed.
        folder: its Hugging Face folder, for the comparison with transformers; None finds it for a catalogue model.
        transformers: compare with transformers where it is installed.
        only: names of checks to run, as here or as the report prints them ("causal leaks"), or patterns such as "KV*"; all
            by default. A check that prints several lines runs whole.
        seed: of random ids and directions.
        progress: called with each check as it is done.

    Returns:
        The report. `report.ok` is True if no check failed.

    Raises:
        ValueError: no loaded model, hooks are attached to it, or `only` names no check.
    """
    if not isinstance(model, HookedTransformer):
        raise ValueError(
            f"doctor takes a loaded model, got {str(model)!r}: pass a loaded model: interp.doctor(interp.load(...))"
        )
    attached = [point.name for point in model.hook_dict.values() if point.handles]
    if attached:
        raise ValueError(f"a hook is attached to {attached[0]}: leave its `with` block before the examination")
    chosen = _chosen([only] if isinstance(only, str) else list(only))
    place = _folder(model) if folder is None else Path(folder).expanduser()
    patient = Patient(model, place, transformers, seed)
    done: list[Check] = []
    massive = pd.DataFrame(columns=pd.Index(MASSIVE))
    training = model.training
    model.eval()
    try:
        for name in chosen:
            start = time.perf_counter()
            found, table = _run(name, patient)
            massive = massive if table is None else table
            seconds = (time.perf_counter() - start) / len(found)
            for check in found:
                done.append(_timed(check, seconds))
                if progress is not None:
                    progress(done[-1])
    finally:
        model.train(training)
    card = artifact.provenance(
        model=model.cfg.name, fingerprint=model.fingerprint, seed=seed, dtype=str(model.dtype).removeprefix("torch.")
    )
    return DoctorReport(tuple(done), massive, card)


def _chosen(patterns: list[str]) -> list[str]:
    names = [*CHECKS, LAST]
    if not patterns:
        raise ValueError("only=[] runs no check: leave it out, or name some")
    for pattern in patterns:
        if not any(_named(name, pattern) for name in names):
            listed = "\n".join(f"  {name}" for name in names)
            raise ValueError(f"there is no check {pattern!r}; there are\n{listed}")
    return [name for name in names if any(_named(name, pattern) for pattern in patterns)]


def _named(name: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(each, pattern) for each in (name, *LINES.get(name, ())))


def _folder(model: HookedTransformer) -> Path | None:
    """Where the files of a catalogue model or of a hub id lie on this machine; None for other models."""
    name = model.cfg.name
    entry = catalog.find(name)
    if entry is not None:
        folder = artifact.home() / "models" / entry.name
        return folder if folder.is_dir() else None
    if not HUB_ID.fullmatch(name):
        return None
    # Imported here, for it costs half a second that no other model needs.
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def _run(name: str, patient: Patient) -> tuple[list[Check], pd.DataFrame | None]:
    """The check's lines, and its table if it makes one. One that raises has failed: nothing that it does may raise on a
    sound model."""
    try:
        if name == LAST:
            check, table = outliers.massive(patient)
            return [check], table
        found = CHECKS[name](patient)
    except Exception as error:
        logger.debug("check %r raised", name, exc_info=True)
        return [_raised(name, error)], None
    return (found if isinstance(found, list) else [found]), None


def _raised(name: str, error: Exception) -> Check:
    text = " ".join(str(error).split())
    made = outliers.massive if name == LAST else CHECKS[name]
    compared = " ".join((made.__doc__ or "the check itself").split("\n\n")[0].split())
    return Check(name, compared, "FAILED", note=f"{type(error).__name__}: {text[:300]}")


def _timed(check: Check, seconds: float) -> Check:
    return dataclasses.replace(check, seconds=round(seconds, 3))
