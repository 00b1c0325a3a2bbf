"""The activations of a job: recorded once, found again by what they are.

The folder of a store is named by a hash of model, texts, columns, sites and tokens. Another model or another text is
another folder, so nothing is ever mixed; the same ones are read, or recorded to the end if they are half there.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from interp import artifact
from interp import sites as site_names
from interp.dataset import Dataset
from interp.model import HookedTransformer
from interp.probe.methods import METHODS
from interp.probe.reading import EVERY
from interp.probe_job.folder import JobFolder
from interp.probe_job.spec import ProbeSpec
from interp.recording import record
from interp.store import Store

FORMAT = 1


def job_store(
    folder: JobFolder,
    model: HookedTransformer,
    data: Dataset,
    spec: ProbeSpec,
    engine: Any = "local",
    progress: Callable[[int, int], Any] | None = None,
) -> Store:
    """The activations that a job reads; what is missing is recorded.

    Args:
        folder: of the job.
        model: whose activations.
        data: the texts.
        spec: names places and tokens.
        engine: as in `record`.
        progress: called with (texts done, texts in all).

    Raises:
        ValueError: sites or tokens that the model or the texts do not have, NaN activations.
    """
    sites = recorded_sites(model, [*spec.sites, *(site for each in spec.transfer for site in each.sites)])
    tokens = recorded_tokens(spec)
    key = artifact.hash_json([FORMAT, model.fingerprint, str(model.dtype), data.hash, sites, tokens])

    def report(done: int, total: int, _tokens: int) -> None:
        if progress is not None:
            progress(done, total)

    return record(model, data, sites, tokens, path=folder.store(key), engine=engine, long="error", progress=report)


def recorded_sites(model: HookedTransformer, places: Sequence[str]) -> list[str]:
    """The sites that hold these places, heads left out: `z:5.3` is read of `z:5`."""
    available = list(model.sites()["site"])
    wanted = []
    for place in places:
        site, _, head = place.rpartition(".")
        is_head = bool(re.fullmatch(r"\*|\d+|\d+-\d+", head)) and (":" in site or site in available)
        wanted.append(site if is_head else place)
    return site_names.expand(wanted, available)


def recorded_tokens(spec: ProbeSpec) -> str:
    """The rule by which tokens are kept: one row a text, unless a kind or the job reads single tokens."""
    pick, _, span = spec.tokens.partition(":")
    reads_tokens = any(METHODS[kind].reads == "tokens" for kind in spec.every_kind)
    if pick == EVERY or reads_tokens:
        return span or "all"
    return spec.tokens
