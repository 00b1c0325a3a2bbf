"""`SteerSpec`: a steering sweep as frozen values, read from TOML or put together from options.

Only what a sweep lacks has a default. Values are checked here, before a model is loaded; a key that is not known is an error.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from interp.intervene.edits import KINDS
from interp.intervene.place import PLACES
from interp.intervene.targets import UNITS
from interp.jobs import at_least, build, plain, read_toml
from interp.steering.plan import RANDOM_STRENGTHS, STRENGTHS, USUAL

SWEPT = tuple(kind for kind in KINDS if kind != "clamp")
"""What can be swept: clamp holds a coordinate, so that its strength 0 is no unsteered run."""


@dataclass(frozen=True)
class VectorSpec:
    """The vector: a file, or what it is fitted on."""

    file: str | None = None
    """A saved vector, relative to the specification."""
    data: str | None = None
    """Instead: contrast pairs or labelled texts (a bundled set or a file), a store's folder, or the file of a probe or an SAE."""
    method: str | None = None
    """How it is fitted on pairs, labelled texts or a store; None for mean_difference, and mass_mean for heads."""
    site: str | None = None
    """Place, or a range of layers (`resid_post:8-12`) for a vector at each; None for the data's own, or the last layer."""
    tokens: str | None = None
    """Which tokens are read: `response_mean`, `last`, `answer`; None for what fits the data."""
    C: float | None = None
    """Strength of a logistic fit; smaller is a stronger penalty."""
    heads: int | None = None
    """Of labelled texts or a store with z: directions of so many heads, those that tell the labels apart best."""
    latent: int | None = None
    """Of an SAE: the latent whose direction is taken."""
    held_out: float = 0.2
    """Share of the pairs, in whole groups, that the vector does not see; what is measured on the same set is those."""
    seed: int = 0
    """Of that division, and of the fit."""

    def __post_init__(self) -> None:
        if (self.file is None) == (self.data is None):
            raise ValueError("a vector is a file, or is fitted on data: give file or data, one of the two")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out is a share of the pairs, from 0 to below 1, got {self.held_out}")
        if self.C is not None and not (math.isfinite(self.C) and self.C > 0):
            raise ValueError(f"C must be over 0, got {self.C}")
        if self.heads is not None:
            at_least("heads", self.heads, 1)
        at_least("seed", self.seed, 0)


@dataclass(frozen=True)
class MeasureSpec:
    """What is measured beside the preference of pairs: next tokens, a probe, or phrases in what is written."""

    tokens: tuple[str, ...] = ()
    """Next tokens, with their space: `" good"`."""
    against: tuple[str, ...] = ()
    """Tokens that they are measured against."""
    kind: str = "log_odds"
    """Of tokens: `logit`, `log_odds`, `log_probability` or `probability`."""
    probe: str | None = None
    """File of a probe, relative to the specification."""
    phrases: tuple[str, ...] = ()
    """A continuation counts 1 where it holds any of them."""
    name: str | None = None
    """In the report; None for one made of what is measured."""

    def __post_init__(self) -> None:
        given = [bool(self.tokens), self.probe is not None, bool(self.phrases)]
        if sum(given) != 1:
            raise ValueError("a measure has tokens, a probe or phrases: give one of the three")
        if self.against and not self.tokens:
            raise ValueError("against names what tokens are measured against: give tokens too")


@dataclass(frozen=True)
class SteerSpec:
    """A whole sweep. What decides a figure stands here, and nothing else does."""

    model: str
    """What `interp.load` reads."""
    vector: VectorSpec
    """What is applied; in TOML a table `[vector]`, or the name of a file."""
    question: str = ""
    """What is asked, in a sentence."""
    criterion: str = ""
    """What would count as an answer, written before the figures were seen."""
    pairs: str | None = None
    """Contrast pairs whose preference is the effect: a bundled set or a file."""
    measures: tuple[MeasureSpec, ...] = ()
    """Other measures of the effect: tables `[[measures]]`."""
    prompts: tuple[str, ...] = ()
    """Texts that are continued at each strength."""
    texts: str | None = None
    """Other text, whose loss and KL are the damage: a bundled set or a file."""
    n_texts: int = 16
    """Most of these texts."""
    text_length: int = 400
    """Most characters of each."""
    choices: str | None = None
    """Multiple-choice questions, whose accuracy is damage too: a bundled set or a file."""
    n_choices: int = 60
    """Most of these questions; drawn by the seed."""
    strengths: tuple[float, ...] | None = None
    """Of the vector, in `unit`; 0 is always measured. None for -0.1 and 0.1, and for `ablate` 1, all of it."""
    n_random: int = 19
    """Random directions of the same norm; 19 give p = 0.05 at best."""
    random_strengths: str = "all"
    """Strengths at which they stand beside the vector: `all`, or the `largest` alone."""
    kind: str = "add"
    """`add`, `rotate`, `piecewise` or `ablate`."""
    unit: str | None = None
    """Of strengths: the site's typical `norm`, the `sd` along the direction, or `raw`; None for norm, and sd for heads."""
    site: str | None = None
    """Where the vector acts, if not where it was fitted: another place, a range of layers (`resid_post:4-12`), or `writes` for
    everything that writes to the stream; of a vector of several places, those that are changed."""
    where: str = "all"
    """Which tokens: `all`, `prompt` or `generated`."""
    after: str | None = None
    """A marker in the text; only tokens from its end on are changed."""
    instruction: str | None = None
    """What a model would be told instead; it stands beside the vector."""
    max_new_tokens: int = 30
    """Of each continuation."""
    temperature: float = 0.0
    """Of continuations; 0 is greedy."""
    seed: int = 0
    """Of random directions, draws and intervals."""
    batch_size: int = 32
    """Texts in a pass."""
    name: str = "steering"
    """Of the job: the file's, without its ending."""
    settings: dict[str, Any] = field(default_factory=dict, compare=False)
    """What was changed by `--set`; it stands in the other fields already, and tells how to run the job again."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError("model is empty: say what interp.load reads")
        if self.pairs is None and not self.measures and not self.prompts:
            raise ValueError("nothing is measured: give pairs, measures, or prompts to continue")
        if self.measures and not self.prompts:
            raise ValueError("measures of tokens, probes and phrases are read on prompts: give prompts")
        if self.strengths is None:
            object.__setattr__(self, "strengths", USUAL.get(self.kind, STRENGTHS))
        assert self.strengths is not None
        if not self.strengths or not all(map(math.isfinite, self.strengths)):
            raise ValueError(f"strengths must be finite numbers, got {list(self.strengths)}")
        if len(set(self.strengths)) < len(self.strengths):
            raise ValueError(f"strengths has the same value twice: {list(self.strengths)}")
        words = {"kind": SWEPT, "unit": (None, *UNITS), "where": PLACES, "random_strengths": RANDOM_STRENGTHS}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be {', '.join(filter(None, known))}, got {getattr(self, name)!r}")
        least = {
            "n_texts": 1,
            "text_length": 1,
            "n_choices": 1,
            "n_random": 0,
            "max_new_tokens": 1,
            "seed": 0,
            "batch_size": 1,
        }
        for name, value in least.items():
            at_least(name, getattr(self, name), value)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, for the report; of files only the names, for where they lie says nothing about a figure."""
        values = asdict(self)
        del values["settings"]
        for key in ("file", "data"):
            values["vector"][key] = _file_name(values["vector"][key])
        for each in values["measures"]:
            each["probe"] = _file_name(each["probe"])
        for key in ("pairs", "texts", "choices"):
            values[key] = _file_name(values[key])
        return plain(values)


def load_steer_spec(source: str | Path, settings: Mapping[str, Any] | None = None) -> SteerSpec:
    """Read a sweep from a TOML file.

    Args:
        source: the file. Paths in it are relative to it.
        settings: values that replace the file's, such as `{"n_random": 39, "vector.site": "resid_post:3"}`; a dot leads into
            a table.

    Raises:
        ValueError: no such file, no TOML, an unknown key (with the nearest one), a missing key, or a value of another type
            or out of range; the message says where.
    """
    path = Path(source).expanduser()
    values = read_toml(path, settings)
    values.setdefault("name", path.stem)
    return replace(spec_of(values, path.name, path.parent), settings=dict(settings or {}))


def spec_of(values: Mapping[str, Any], where: str, folder: Path = Path()) -> SteerSpec:
    """A sweep of plain values, as TOML or a command's options give them; ValueError as `load_steer_spec`."""
    found = dict(values)
    if isinstance(found.get("vector"), str):
        found["vector"] = {"file": found["vector"]}
    if isinstance(found.get("vector"), Mapping):
        found["vector"] = _located(found["vector"], ("file", "data"), folder)
    listed = found.get("measures", [])
    if isinstance(listed, Mapping):
        listed = [listed]
    if isinstance(listed, list | tuple):
        found["measures"] = [
            _located(each, ("probe",), folder) if isinstance(each, Mapping) else each for each in listed
        ]
    return build(SteerSpec, _located(found, ("pairs", "texts", "choices"), folder), where)


def _located(values: Mapping[str, Any], keys: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The same with paths made whole; a word without a dot or a slash is the name of a bundled set."""
    found = dict(values)
    for key in keys:
        value = found.get(key)
        if isinstance(value, str) and "://" not in value and is_path(value):
            found[key] = str(folder / Path(value).expanduser())
    return found


def is_path(source: str) -> bool:
    """Whether it names a file or folder, not a bundled set."""
    return "/" in source or "." in source


def _file_name(source: str | None) -> str | None:
    return Path(source).name if source is not None and is_path(source) else source
