"""A kept probe on new texts: its figure there, beside what the texts alone give.

Nothing is chosen: threshold and sign are the probe's own, so an AUROC below 1/2 stays below 1/2. Rows about an entity
that the probe was fitted on would measure memory, and are refused where the probe's card names its groups.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logit

from interp import artifact
from interp.dataset import Dataset
from interp.model import HookedTransformer
from interp.probe.controls import text_baseline
from interp.probe.figures import Figure, Resamples
from interp.probe.fit import Probe, load_probe
from interp.probe.labelled import Labelled
from interp.probe.methods import method
from interp.probe.reading import EVERY, place_name, read_place
from interp.probe_job.folder import short_hash
from interp.probe_job.stores import recorded_sites
from interp.recording import record
from interp.store import Store

TOKENS = "last"
"""What a probe reads whose card does not say."""


@dataclass(frozen=True, eq=False)
class ProbeEvaluation:
    """How a probe does on texts that it was not fitted on."""

    figure: Figure
    """Of the probe."""
    baselines: dict[str, Figure]
    """bag_of_words and text_length, fitted on the new texts themselves by grouped folds; none where they are too few."""
    predictions: pd.DataFrame = field(repr=False)
    """text, label, group, probability, guess."""
    card: dict[str, Any] = field(repr=False)
    """Probe, place, tokens, texts, how the overlap was checked."""

    def to_frame(self) -> pd.DataFrame:
        """A row for the probe and for each baseline."""
        rows = [{"what": self.card["kind"], **asdict(self.figure)}]
        return pd.DataFrame(rows + [{"what": name, **asdict(each)} for name, each in self.baselines.items()])

    def summary(self) -> str:
        """What was found, and what to read it beside."""
        own = self.figure
        lines = [
            f"{self.card['kind']} at {place_name(self.card['place'])}: AUROC {_interval(own)}, accuracy {own.accuracy:.3f} at "
            f"its own threshold, Brier {own.brier:.3f}, n = {own.n:,} in {own.n_groups:,} groups."
        ]
        lines += [
            f"{name.replace('_', ' ').capitalize()} of these texts, fitted on them: {_interval(each)}."
            for name, each in self.baselines.items()
        ]
        if own.high < 0.5:
            lines.append("The probe is the wrong way round here: what it reads goes against the label in these texts.")
        lines.append(self.card["overlap"])
        return "\n".join(lines)


def evaluate_probe(
    probe: Probe | str | Path,
    data: Store | Dataset | Any,
    model: HookedTransformer | None = None,
    n_boot: int = 1000,
    seed: int = 0,
) -> ProbeEvaluation:
    """Judge a probe on new labelled texts.

    Args:
        probe: the probe, or its file.
        data: a store that holds the probe's place, or a data set, which `model` then reads.
        model: with a data set, the model that the probe was fitted on.
        n_boot: bootstrap draws of groups.
        seed: of the draws and of the baselines' folds.

    Raises:
        ValueError: a probe that does not say what it reads; another model; a data set without a model; groups that the
            probe was fitted on; labels or groups that are missing.
    """
    probe = probe if isinstance(probe, Probe) else load_probe(probe)
    if probe.site is None:
        raise ValueError("the probe does not say which site it reads: fit it with site=, or by a job")
    place = probe.site if getattr(probe, "head", None) is None else f"{probe.site}.{probe.head}"
    tokens = str(probe.card.get("tokens", TOKENS))
    reads = method(probe.kind).reads
    store = data if isinstance(data, Store) else _recorded(data, model, place, tokens if reads == "row" else EVERY)
    _same_model(probe, store.model_fingerprint)
    X, frame = read_place(store, place, tokens, reads)
    labelled = Labelled.of(frame, n_folds=2)
    overlap = _overlap(probe, frame)
    p = probe(X).double().numpy()
    guess = p > probe.threshold
    groups = np.unique(labelled.groups, return_inverse=True)[1]
    score = logit(np.clip(p, 1e-12, 1 - 1e-12))
    return ProbeEvaluation(
        figure=Resamples.of(groups, n_boot, seed).figure(score, labelled.y, guess),
        baselines=_baselines(labelled, seed),
        predictions=pd.DataFrame(
            {"text": labelled.texts, "label": labelled.y, "group": list(frame["group"]), "probability": p, "guess": guess}
        ),
        card={
            "kind": probe.kind, "place": place, "tokens": tokens, "texts": artifact.hash_texts(labelled.texts),
            "overlap": overlap, "probe": probe.card.get("figure"), "provenance": artifact.provenance(seed=seed),
        },
    )  # fmt: skip


def _recorded(data: Any, model: HookedTransformer | None, place: str, tokens: str) -> Store:
    if not isinstance(data, Dataset):
        raise ValueError(f"give a store or a data set (load_dataset reads files), got {type(data).__name__}")
    if model is None:
        raise ValueError("a data set needs the model that reads it: give model=, or a recorded store")
    rule = "all" if tokens.partition(":")[0] == EVERY else tokens
    return record(model, data, recorded_sites(model, [place]), rule, long="error", progress=False)


def _same_model(probe: Probe, fingerprint: str) -> None:
    trained = probe.card.get("provenance", {}).get("fingerprint")
    if trained is not None and trained != fingerprint:
        raise ValueError(
            f"the probe was fitted on activations of another model ({trained[:12]}, here {fingerprint[:12]}): directions of one "
            "mean nothing in the other"
        )


def _overlap(probe: Probe, frame: pd.DataFrame) -> str:
    """What is known about shared groups; ValueError where there are some."""
    known = set(probe.card.get("trained_on", {}).get("groups", ()))
    if not known:
        return "The probe's card does not name its groups, so it is not known whether it was fitted on some of these."
    groups = list(dict.fromkeys(map(str, frame["group"])))
    shared = [group for group in groups if short_hash(group) in known]
    if shared:
        raise ValueError(
            f"{len(shared)} of {len(groups)} groups are among those that the probe was fitted on ({shared[0]!r}, for example): "
            "figures on them would measure memory. Leave them out, or quote the nested figure of the probe's card"
        )
    return f"None of the {len(groups):,} groups is among those that the probe was fitted on."


def _baselines(labelled: Labelled, seed: int) -> dict[str, Figure]:
    if labelled.n_groups < 5:
        return {}
    return {
        kind: text_baseline(labelled.texts, labelled.y, labelled.groups, seed=seed, kind=kind)
        for kind in ("bag_of_words", "text_length")
    }


def _interval(figure: Figure) -> str:
    return f"{figure.auroc:.3f} (95 % {figure.low:.3f} to {figure.high:.3f})"
