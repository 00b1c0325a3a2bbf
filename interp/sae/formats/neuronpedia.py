"""Neuronpedia's import format: a folder of JSON lines, one source (an SAE at its layer) each.

    <model_id>/<source_id>/
      release.jsonl  model.jsonl  sourceset.jsonl  source.jsonl      one line each
      features/batch-0.jsonl.gz ...        a line per latent
      activations/batch-0.jsonl.gz ...     a line per example
      explanations/batch-0.jsonl.gz ...    a line per label, where labels are given

The fields are the columns of Neuronpedia's database (https://github.com/hijohnnylin/neuronpedia, apps/webapp/prisma). Its
importer takes the columns of a whole file from the first line, so that all lines have the same fields, and it fails on an
empty file, so that none is written. Times are left out: the database fills them in, and equal exports are equal bytes.

Fields that would need what no feature table holds stay empty lists: correlated neurons and features, direct feature
attribution, losses. Tokens that the SAE was not asked about (first and special ones, outliers) have activation 0.
"""

import dataclasses
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp import sites as site_names
from interp.artifact import atomic_folder, hash_json
from interp.model import HookedTransformer
from interp.sae.features import SAEFeatures, check_features
from interp.sae.features.effects import effects_on_logits, written_directions
from interp.sae.labels.labelling import SAELabels
from interp.sae.labels.page import latent_numbers
from interp.sae.labels.passages import Context, PassageReader
from interp.sae.model import SAE
from interp.store import Store

DEFAULT_CREATOR = "clkht01d40000jv08hvalcvly"
"""Id of the user that a fresh Neuronpedia has, and whose activations everyone sees."""
N_LOGITS = 10
"""Tokens that a latent raises, and that it lowers."""
N_ALIGNED = 3
"""Entries of the decoder row that are listed as aligned neurons."""
N_BINS = 50
"""Bars of each histogram."""
BATCH = 256
"""Latents in a file."""


@dataclass(frozen=True)
class NeuronpediaSource:
    """How an export is called on Neuronpedia."""

    model_id: str | Any
    """Neuronpedia's name of the model, such as "gpt2-small"."""
    source_set: str | Any
    """Short name of the author, hook and width, such as "res-jb": all layers share it."""
    release: str | Any
    """Name of the release, such as the paper's."""
    creator: str | Any
    """Who made it: a person or a team."""
    description: str = ""
    """What the source set is, for people: hook and width."""
    release_title: str = ""
    """Title of the release, for people."""
    urls: tuple[str, ...] = ()
    """Paper, code."""
    dataset: str | None = None
    """What the texts of the examples are from."""
    hf_repo: str | None = None
    """Repository on the Hugging Face hub that holds the weights."""
    hf_folder: str | None = None
    """Folder in it."""
    source_id: str | None = None
    """None for "<layer>-<source_set>"."""
    creator_id: str = DEFAULT_CREATOR
    """Id of the user to whom the import belongs."""
    visibility: str = "PUBLIC"
    """PUBLIC, UNLISTED or PRIVATE."""

    def __post_init__(self) -> None:
        for name in (
            "model_id",
            "source_set",
            "release",
            "creator_id",
            *(["source_id"] if self.source_id is not None else []),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", value):
                raise ValueError(
                    f"{name}={value!r} is no name on Neuronpedia: use up to 128 letters, digits, dots, dashes, underscores"
                )
        if not isinstance(self.creator, str) or not self.creator.strip():
            raise ValueError(f"creator={self.creator!r} is empty: Neuronpedia shows who made a release")
        if self.visibility not in ("PUBLIC", "UNLISTED", "PRIVATE"):
            raise ValueError(f"visibility={self.visibility!r} is none of PUBLIC, UNLISTED and PRIVATE")


def export_neuronpedia(
    features: SAEFeatures,
    sae: SAE,
    store: Store,
    model: HookedTransformer,
    path: str | os.PathLike[str],
    *,
    model_id: str | Any,
    source_set: str | Any,
    release: str | Any,
    creator: str | Any,
    labels: SAELabels | None = None,
    latents: Sequence[int] | Any | None = None,
    n_context: int | Any = 128,
    progress: Callable[[int, int], None] | None = None,
    **details: Any,
) -> Path:
    """Write a folder that Neuronpedia's importer reads.

    Args:
        features: what `sae_features` made of this SAE and store.
        sae, store, model: what they were made of.
        path: the folder for exports; `<model_id>/<source_id>` in it is written, whole or not at all.
        model_id, source_set, release, creator: see `NeuronpediaSource`.
        labels: what `label_latents` said; written as explanations.
        latents: which to export, None for all, also those that never fire.
        n_context: tokens of an example, at most, the one that fires in the middle.
        progress: called with (latents done, latents in all).
        details: further fields of `NeuronpediaSource`.

    Returns:
        The folder that was written.

    Raises:
        ValueError: the source exists there, features or labels of another SAE, a store of another model, a latent that does
            not exist, no latent, a site without layer and no `source_id`, or a name that Neuronpedia would not take.
    """
    source = NeuronpediaSource(model_id, source_set, release, creator, **details)
    if isinstance(n_context, bool) or not isinstance(n_context, int) or n_context < 2:
        raise ValueError(f"n_context={n_context!r} must be a whole number of at least 2 tokens")
    check_features(features, sae)
    if labels is not None and labels.card.get("sae", features.card["sae"]) != features.card["sae"]:
        raise ValueError("these labels are of another SAE: label its own latents")
    store.check_model(model)
    chosen = list(range(sae.n_latents)) if latents is None else latent_numbers(latents)
    if not chosen:
        raise ValueError("latents is empty, so there is nothing to export: None means all")
    if missing := [latent for latent in chosen if not 0 <= latent < sae.n_latents]:
        raise ValueError(f"there is no latent {missing[0]}: they go from 0 to {sae.n_latents - 1}")
    target = sae.targets[-1] if sae.targets else features.sites[-1]
    source = _with_id(source, target)
    records = _Records(source, features, sae, store, model, target, n_context)
    place = Path(path) / source.model_id / str(source.source_id)
    with atomic_folder(place) as folder:
        for name, line in _metadata(source, features, store, model, n_context).items():
            (folder / f"{name}.jsonl").write_text(_json(line), encoding="utf-8")
        for number, start in enumerate(range(0, len(chosen), BATCH)):
            part = chosen[start : start + BATCH]
            _write_batch(folder / "features", number, records.features(part))
            _write_batch(folder / "activations", number, records.activations(part))
            _write_batch(folder / "explanations", number, records.explanations(part, labels))
            if progress is not None:
                progress(start + len(part), len(chosen))
    return place


def _with_id(source: NeuronpediaSource, target: str) -> NeuronpediaSource:
    if source.source_id is not None:
        return source
    if (layer := site_names.layer_of(target)) is None:
        raise ValueError(f"{target} lies in no layer, by which Neuronpedia orders sources: give source_id=")
    return dataclasses.replace(source, source_id=f"{layer}-{source.source_set}")


class _Records:
    """Lines about latents."""

    def __init__(
        self, source: NeuronpediaSource, features: SAEFeatures, sae: SAE, store: Store, model: HookedTransformer,
        target: str, n_context: int,
    ) -> None:  # fmt: skip
        self.source, self.source_features, self.sae, self.model, self.target = source, features, sae, model, target
        self.of = {"modelId": source.model_id, "layer": source.source_id}
        self.reader = PassageReader(features, store, model, before=n_context // 2, after=(n_context - 1) // 2)
        self.rows = features.latents.set_index("latent")
        self.directions, _ = written_directions(sae, model, target)
        self.examples, self.drawn = (
            dict(iter(table.groupby("latent", sort=False))) for table in (features.examples, features.interval_examples)
        )
        self.n_intervals = features.card["settings"]["n_intervals"]

    def features(self, latents: Sequence[int]) -> Iterator[dict[str, Any]]:
        """A line per latent."""
        written = self.sae.W_dec[:, -self.sae.widths.get(self.target, self.sae.d_out) :].float().cpu().numpy()
        logits = self._logits(latents)
        for place, latent in enumerate(latents):
            row, vector = self.rows.loc[latent], written[latent]
            largest = float(row["max"]) if row["n_active"] else 0.0
            yield {
                **self.of,
                "index": str(latent),
                "sourceSetName": self.source.source_set,
                "creatorId": self.source.creator_id,
                "maxActApprox": _rounded(largest),
                "hasVector": True,
                "vector": _rounded(vector),
                "vectorLabel": None,
                "vectorDefaultSteerStrength": _rounded(largest),
                "hookName": self.target,
                "topkCosSimIndices": [int(near) for near in row["decoder_latents"]],
                "topkCosSimValues": _rounded(row["decoder_cosines"]),
                **_aligned(vector),
                **{f"correlated_{what}_{kind}": [] for what in ("neurons", "features") for kind in _CORRELATED},
                **self._logit_fields(None if logits is None else logits[place]),
                "frac_nonzero": float(row["density"]),
                **_histogram("freq", self.source_features.activations.of_latent(latent)[1], low=0.0, high=largest),
                "decoder_weights_dist": [],
            }

    def activations(self, latents: Sequence[int]) -> Iterator[dict[str, Any]]:
        """A line per example: the strongest first, then those of each interval, from the strongest interval down."""
        for latent in latents:
            for number, (context, bin_fields) in enumerate(self._examples(latent)):
                yield {
                    "id": self._id("activation", latent, number),
                    **self.of,
                    "index": str(latent),
                    "creatorId": self.source.creator_id,
                    "tokens": list(context.tokens),
                    "values": _rounded(context.values),
                    "maxValue": _rounded(max(context.values)),
                    "maxValueTokenIndex": int(np.argmax(context.values)),
                    "minValue": _rounded(min(context.values)),
                    "qualifyingTokenIndex": context.at,
                    **bin_fields,
                    "dataIndex": str(context.text_number),
                    "dataSource": self.source.dataset,
                    "dfaValues": [],
                    "dfaTargetIndex": None,
                    "dfaMaxValue": None,
                    "lossValues": [],
                    "logitContributions": None,
                }

    def explanations(self, latents: Sequence[int], labels: SAELabels | None) -> Iterator[dict[str, Any]]:
        """A line per label."""
        if labels is None:
            return
        known = labels.frame[labels.frame["label"].notna()].set_index("latent")["label"]
        for latent in latents:
            if latent in known.index:
                yield {
                    "id": self._id("explanation", latent, 0),
                    **self.of,
                    "index": str(latent),
                    "description": known.loc[latent],
                    "authorId": self.source.creator_id,
                    "typeName": None,
                    "explanationModelName": None,
                    "notes": json.dumps(labels.card.get("explainer"), sort_keys=True),
                }

    def _examples(self, latent: int) -> Iterator[tuple[Context, dict[str, float]]]:
        if latent not in self.examples:
            return
        largest = float(self.rows.loc[latent, "max"])  # pyright: ignore[reportArgumentType]
        rows = self.examples[latent]["row"].to_numpy()
        for context in self.reader.contexts(latent, rows):
            yield context, {"binMin": -1.0, "binMax": _rounded(largest), "binContains": -1.0}
        drawn = self.drawn.get(latent)
        if drawn is None:
            return
        values = self.source_features.activations.of_latent(latent)[1].astype(np.float64)
        interval_of = np.ceil(values * self.n_intervals / largest).clip(1, self.n_intervals)
        for interval in sorted(drawn["interval"].unique(), reverse=True):
            fields = {
                "binMin": _rounded(largest * (interval - 1) / self.n_intervals),
                "binMax": _rounded(largest * interval / self.n_intervals),
                "binContains": float((interval_of == interval).sum() / self.source_features.n_rows),
            }
            own = drawn.loc[drawn["interval"] == interval, "row"].to_numpy()
            yield from ((context, fields) for context in self.reader.contexts(latent, own))

    def _logits(self, latents: Sequence[int]) -> Float[Tensor, "latent d_vocab"] | None:
        """What each latent adds to the logits; None where the SAE does not write to the residual stream."""
        return None if self.directions is None else effects_on_logits(self.directions[list(latents)], self.model).cpu()

    def _logit_fields(self, logits: Float[Tensor, " d_vocab"] | None) -> dict[str, Any]:
        if logits is None:
            empty: dict[str, Any] = {"pos_str": [], "pos_values": [], "neg_str": [], "neg_values": []}
            return {**empty, "logits_hist_data_bar_heights": [], "logits_hist_data_bar_values": []}
        found: dict[str, Any] = {}
        for name, largest in (("pos", True), ("neg", False)):
            top = logits.topk(min(N_LOGITS, len(logits)), largest=largest)
            found[f"{name}_str"] = self.reader.tokenizer.to_str_tokens(top.indices.tolist())
            found[f"{name}_values"] = _rounded(top.values)
        return {**found, **_histogram("logits", logits.numpy(), low=float(logits.min()), high=float(logits.max()))}

    def _id(self, what: str, latent: int, number: int) -> str:
        """25 signs as a cuid has, the same for the same line of the same export."""
        card = self.source_features.card
        return "c" + hash_json([what, *self.of.values(), card["sae"], card["rows"], latent, number])[:24]


_CORRELATED = ("indices", "pearson", "l1")


def _aligned(vector: Float[np.ndarray, " d"]) -> dict[str, Any]:
    """The largest entries of a decoder row, and the share of each in its L1 norm."""
    top = np.argsort(-vector, kind="stable")[:N_ALIGNED]
    total = float(np.abs(vector).sum())
    return {
        "neuron_alignment_indices": top.tolist(),
        "neuron_alignment_values": _rounded(vector[top]),
        "neuron_alignment_l1": _rounded(vector[top] / total) if total else [0.0] * len(top),
    }


def _histogram(name: str, values: Float[np.ndarray, " n"], low: float, high: float) -> dict[str, list[float]]:
    """Counts in bars of equal width, and the middle of each; no bars without values."""
    fields = (f"{name}_hist_data_bar_heights", f"{name}_hist_data_bar_values")
    if len(values) == 0 or not low < high:
        return {field: [] for field in fields}
    heights, edges = np.histogram(values.astype(np.float64), N_BINS, (low, high))
    return dict(zip(fields, (heights.astype(float).tolist(), _rounded((edges[1:] + edges[:-1]) / 2)), strict=True))


def _metadata(
    source: NeuronpediaSource, features: SAEFeatures, store: Store, model: HookedTransformer, n_context: int
) -> dict[str, dict[str, Any]]:
    """The lines about the release, the model, the source set and the source. What is not known is left out."""
    shared = {"creatorId": source.creator_id, "visibility": source.visibility}
    title = source.release_title or source.release
    lines = {
        "release": {
            **shared, "name": source.release, "description": title, "descriptionShort": title, "urls": list(source.urls),
            "creatorName": source.creator, "creatorNameShort": source.creator, "isNewUi": False, "featured": False,
            "defaultUmapSourceIds": [],
        },
        "model": {
            **shared, "id": source.model_id, "displayName": model.cfg.name, "displayNameShort": model.cfg.name,
            "dimension": model.cfg.d_model, "layers": model.cfg.n_layers, "neuronsPerLayer": model.cfg.d_mlp,
            "owner": "", "instruct": False, "inferenceEnabled": False,
        },
        "sourceset": {
            **shared, "modelId": source.model_id, "name": source.source_set, "description": source.description, "type": "",
            "creatorName": source.creator, "releaseName": source.release, "urls": list(source.urls),
            "hasDashboards": True, "defaultRange": 1, "defaultShowBreaks": True, "showDfa": False,
            "showCorrelated": False, "showHeadAttribution": False, "showUmap": False,
        },
        "source": {
            **shared, "id": source.source_id, "modelId": source.model_id, "setName": source.source_set,
            "hasDashboards": True, "inferenceEnabled": False, "inferenceHosts": [], "hfRepoId": source.hf_repo,
            "hfFolderId": source.hf_folder, "hasUmap": False, "hasUmapLogSparsity": False, "hasUmapClusters": False,
            "num_prompts": store.n_texts, "num_tokens_in_prompt": n_context, "dataset": source.dataset,
            "notes": json.dumps({name: features.card[name] for name in ("sae", "model", "n_rows", "left_out")}),
        },
    }  # fmt: skip
    return {name: {key: value for key, value in line.items() if value is not None} for name, line in lines.items()}


def _write_batch(folder: Path, number: int, lines: Iterator[Mapping[str, Any]]) -> None:
    """Write lines as gzip; no file where there are none."""
    data = "".join(_json(line) for line in lines).encode()
    if data:
        folder.mkdir(exist_ok=True)
        (folder / f"batch-{number}.jsonl.gz").write_bytes(gzip.compress(data, compresslevel=6, mtime=0))


def _json(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"


def _rounded(values: Any) -> Any:
    """A number or a list of them with six significant digits, about what float32 holds: half the size of the files."""
    if np.ndim(values) == 0:
        return float(f"{float(values):.6g}")
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=np.float64).tolist()]
