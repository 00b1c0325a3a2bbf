"""Is a language model right as often as it says, token by token: over all, by position, by kind of token, layer by layer?

1. Documents are halved. One half fits temperatures, the other is reported (`text_rows`).
2. One pass over the texts keeps the streams of the rows that are scored (`work.read_streams`, in pieces of texts).
3. The next token, and each layer through the logit lens or a lens that is given, gets a temperature of its own and is read
   before and after it (`work.read_place`, a piece each).
4. The tables (`figures`) and the page (`page`) are made of that.

Temperature scaling: Guo et al. 2017. The logit lens: nostalgebraist 2020; the tuned lens: Belrose et al. 2023.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import xxhash
from torch import Tensor

from interp import artifact, jobs
from interp import sites as site_names
from interp.behavior.pieces import Piece, Result, in_folder, run_pieces
from interp.behavior.report import BehaviorReport
from interp.behavior.text import figures, page
from interp.behavior.text.rows import TextRows, text_rows
from interp.behavior.text.tokens import ALL_CLASSES, TokenClasses, token_classes
from interp.behavior.text.work import read_place, read_streams
from interp.calibration import CalibrationReport
from interp.dataset import Dataset
from interp.jobs import JobFolder
from interp.lens.places import EMBED, end_kind, final_site, lens_sites
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.plot import Chart
from interp.recording.job import edited_at
from interp.report import Section

BANDS = (16, 64, 256, 1024, 4096, 16384)
"""Where bands of positions begin, beside 1."""


@dataclasses.dataclass(frozen=True, eq=False)
class TextCalibrationReport(BehaviorReport):
    """Calibration of the next token on documents that no temperature saw; made by `text_calibration`.

    Tables (columns in `interp.behavior.text.figures`): `overall`, one row; `layers`, each place of the lens with its own
    temperature; `positions`, by tokens before the scored one; `predicted`, by class of the most probable token; `events`, the
    probability that the next token is of a class against how often it was; `targets`, accuracy and NLL by the token that came;
    `bins`, the reliability behind each calibration error.
    """

    KIND: ClassVar[str] = "text calibration"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = figures.TABLES
    WORDS: ClassVar[frozenset[str]] = figures.WORDS

    @property
    def before(self) -> CalibrationReport:
        """All reported tokens at T = 1."""
        return CalibrationReport.from_dict(self.values["before"])

    @property
    def after(self) -> CalibrationReport | None:
        """The same at the fitted temperature; None where no temperature is the best one (`notes` say why)."""
        found = self.values["after"]
        return None if found is None else CalibrationReport.from_dict(found)

    @property
    def temperature(self) -> float | None:
        """Fitted on the other half of the documents."""
        return self.values["temperature"]

    def summary(self) -> str:
        """What was found, with n and intervals."""
        return page.summary(self)

    def title(self) -> str:
        """Of the page."""
        return f"Calibration of {self.card['model']} on text"

    def sections(self) -> list[Section]:
        """Of the page."""
        return page.sections(self)

    def plot(self, name: str | None = None) -> Chart:
        """A chart: `layers` (the main one where layers were read), `reliability`, `positions`, `predicted`, `events`."""
        return page.chart(self, name)


def text_calibration(
    model: HookedTransformer,
    texts: Dataset | Sequence[str],
    *,
    groups: Sequence[Any] | None = None,
    layers: Any = "all",
    lens: Translator | None = None,
    max_tokens: int | None = None,
    fit_rows: int | Any = 2000,
    layer_positions: int | Any = 16,
    bands: Sequence[int] = BANDS,
    n_bins: int = 15,
    n_boot: int | Any = 1000,
    n_null: int | Any = 1000,
    seed: int = 0,
    out: Any = None,
    engine: Any = "local",
    resume: bool = True,
    replace: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> TextCalibrationReport:
    """Calibration of the next token before and after a temperature, split by position, kind of token and layer.

    Args:
        model: a causal model with its tokenizer.
        texts: a `Dataset`, or texts; every scored token of the reported half is a row.
        groups: the document of each text; by default the data set's groups, else every text is its own.
        layers: "all" for the embedding and the end of each block; a list of layers (-1 the embedding; the last one comes by
            itself); None for none.
        lens: a lens that translates each layer first; None for the logit lens.
        max_tokens: read only the first so many tokens of each text; None reads all, and a text that is longer than the context
            is an error.
        fit_rows: the temperature of the next token is fitted on at most so many tokens of the fitting half, drawn by the seed.
        layer_positions: tokens of each text that are read at every layer, drawn by the seed.
        bands: tokens before the scored one at which a band of positions begins, ascending.
        n_bins, n_boot, n_null: as in `calibration_report`.
        seed: of the halving and all draws.
        out: folder to keep everything in; the same call again goes on where it was.
        engine: "local", "ray" or a `RayEngine`.
        resume, replace: as in `interp.behavior.pieces.in_folder`.
        progress: called with (pieces done, pieces in all); what it raises stops between two pieces.

    Memory: the streams of the reported tokens, of `fit_rows` others, and of the layer part (rows x places), each d_model
    fp32 numbers; over 2 GB are refused. Logits are made for a few rows at a time.

    Raises:
        ValueError: fewer than two documents, no token to score in one half, a text longer than the context, an encoder, no
            tokenizer, an unknown layer, a lens of another model, a model with hooks where `out` or Ray is used, settings out
            of range.
    """
    _check(model, bands, fit_rows, layer_positions, n_boot, n_null)
    if edited_at(model) and (out is not None or engine != "local"):
        raise ValueError("the model has hooks, which neither a folder nor Ray can keep: remove them, or leave both out")
    sites = _sites(model, layers, lens)
    rows = text_rows(
        model, texts, groups, max_tokens=max_tokens, fit_rows=fit_rows,
        layer_positions=0 if layers is None else layer_positions, n_sites=len(sites), seed=seed,
    )  # fmt: skip
    settings = {
        "layers": None if layers is None else [site_names.short_name(site) for site in sites],
        "lens": "logit" if lens is None else f"{lens.name} {_lens_hash(lens)}",
        "max_tokens": max_tokens, "fit_rows": fit_rows, "layer_positions": layer_positions, "bands": list(bands),
        "n_bins": n_bins, "n_boot": n_boot, "n_null": n_null, "seed": seed,
    }  # fmt: skip
    inputs = [rows.plain, rows.document]
    draws = figures.Draws(n_bins, n_boot, n_null, seed)

    def make(folder: JobFolder | None) -> TextCalibrationReport:
        options = {"folder": folder, "engine": engine}
        classes, read = _read(
            model, rows, sites if layers is not None else [], sites, lens, settings, progress, options
        )
        return _report(model, rows, classes, read, settings, draws)

    return in_folder(out, TextCalibrationReport, settings, inputs, model, make, resume=resume, replace=replace)


def _check(model: HookedTransformer, bands: Sequence[int], *values: int | Any) -> None:
    refuse_encoder(model.cfg, "the calibration of a next token")
    if list(bands) != sorted(set(bands)) or min(bands, default=2) < 2:
        raise ValueError(f"bands are ascending numbers from 2 on, where a band of positions begins; got {list(bands)}")
    least = {"fit_rows": 2, "layer_positions": 1, "n_boot": 0, "n_null": 0}
    for (name, smallest), value in zip(least.items(), values):
        jobs.at_least(name, value, smallest)


def _sites(model: HookedTransformer, layers: Any, lens: Translator | None) -> list[str]:
    """Full names of the places, the final one last; that alone where no layer is read."""
    if layers is None:
        if lens is not None:
            raise ValueError("a lens reads layers: leave layers at 'all', or name some")
        return [final_site(model.cfg)]
    if lens is not None:
        lens.check_model(model)
    if isinstance(layers, str) and layers == "all":
        return lens_sites(model, None, model.site_names, lens)
    known = range(-1, model.cfg.n_layers)
    numbers: list[Any] = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
    strange = [one for one in numbers if isinstance(one, bool) or one not in known]
    if strange or not numbers:
        raise ValueError(
            f"layers is 'all', None, or a list of layers from -1 (the embedding) to {model.cfg.n_layers - 1}; got {layers!r}"
        )
    end = end_kind(model.cfg)
    names = [EMBED if one < 0 else site_names.full_name(f"{end}:{one}") for one in sorted(set(numbers))]
    return lens_sites(model, names, model.site_names, lens)


def _lens_hash(lens: Translator) -> str:
    """What tells two lenses of one kind apart: their tensors."""
    if not dataclasses.is_dataclass(lens):
        raise ValueError(
            f"the {lens.name} lens is of no kind that interp makes: its parameters cannot be told from others"
        )
    digest = xxhash.xxh3_128()
    for field in dataclasses.fields(lens):
        value = getattr(lens, field.name)
        if isinstance(value, Tensor):
            digest.update(f"{field.name} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read(
    model: HookedTransformer,
    rows: TextRows,
    layer_sites: Sequence[str],
    sites: Sequence[str],
    lens: Translator | None,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], Any] | None,
    options: Mapping[str, Any],
) -> tuple[TokenClasses, dict[str, Result]]:
    """Classes of the vocabulary, and the result of `read_place` of the next token ("") and of each site."""
    texts = rows.pieces()
    n_all = len(texts) + 1 + len(layer_sites)

    def told(earlier: int) -> Callable[[int, int], Any] | None:
        report = progress
        return None if report is None else lambda done, _: report(earlier + done, n_all)

    decides = {"settings": dict(settings), "texts": artifact.hash_json([rows.plain, rows.document])}
    found = run_pieces(
        model, read_streams, {"sites": list(sites)}, texts, decides=decides, progress=told(0), **options
    )  # fmt: skip
    classes = token_classes(model, rows.target[rows.fits])
    shared = {
        "sites": list(sites),
        "lens": lens,
        "members": np.stack([classes.members(name) for name in ALL_CLASSES]),
        "whole": _part(rows, rows.whole, found, "whole"),
        "layers": _part(rows, rows.layered, found, "layers"),
    }
    places = [Piece("next token", {"part": "whole", "site": sites[-1]})]
    places += [Piece(site_names.short_name(site), {"part": "layers", "site": site}) for site in layer_sites]
    results = run_pieces(
        model, read_place, shared, places, decides=decides, progress=told(len(texts)), **options
    )  # fmt: skip
    return classes, dict(zip(["", *layer_sites], results))


def _part(rows: TextRows, chosen: np.ndarray, found: Sequence[Result], key: str) -> dict[str, np.ndarray]:
    stream = np.concatenate([arrays[key] for arrays, _ in found])
    return {"stream": stream, "target": rows.target[chosen], "fits": rows.fits[chosen], "group": rows.group[chosen]}


def _report(
    model: HookedTransformer,
    rows: TextRows,
    classes: TokenClasses,
    read: Mapping[str, Result],
    settings: Mapping[str, Any],
    draws: figures.Draws,
) -> TextCalibrationReport:
    tables, reports = figures.tables(rows, classes, read, settings["bands"], draws)
    fit = read[""][1]
    values = {
        "before": reports["before"].to_dict(),
        "after": reports["after"].to_dict() if "after" in reports else None,
        "temperature": fit["temperature"],
        "frequent_from": classes.frequent_from,
        "rare_to": classes.rare_to,
        "counted": classes.counted,
    }
    card = {
        "model": model.cfg.name,
        "fingerprint": model.fingerprint,
        "n_layers": model.cfg.n_layers,
        "texts": len(rows.plain),
        "documents": len(set(rows.document)),
        "texts_hash": artifact.hash_texts(rows.plain),
        "tokens": len(rows.target),
        "tokens_left_out": rows.left_out,
        "tokens_reported": int((rows.whole & ~rows.fits).sum()),
        "tokens_fitted": int((rows.whole & rows.fits).sum()),
        "layer_rows": {
            "fitted": int((rows.layered & rows.fits).sum()),
            "reported": int((rows.layered & ~rows.fits).sum()),
        },
        "settings": dict(settings),
        "versions": artifact.provenance(),
    }
    return TextCalibrationReport(tables, values, card, tuple(page.notes(tables, card)))
