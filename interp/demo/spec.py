"""DemoSpec: `probes/demo.toml` as frozen values. An unknown or missing key is an error, never a default in silence."""

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.content import content_folder


@dataclass(frozen=True)
class TruthSpec:
    """Which statements are recorded and probed."""

    datasets: list[str]
    """Names of bundled sets, or paths."""
    sites: str
    """Where the last token is read."""
    kinds: list[str]
    """Kinds of probe."""
    seconds: dict[str, float]
    """Expected, for `record` and `probes`."""


@dataclass(frozen=True)
class CorpusSpec:
    """The text that the autoencoder learns from."""

    name: str
    """Name of a bundled corpus, or a path."""
    site: str
    """One site."""
    max_length: int
    """Tokens in a row of text."""
    max_documents: int
    """Documents recorded, from the start of the file."""
    seconds: float
    """Expected."""


@dataclass(frozen=True)
class SAESpec:
    """The autoencoder and its rivals."""

    k: int
    width: int | str
    batch_size: int
    epochs: int
    lr: float
    held_out: float
    """Share of the text, by group, that training never sees."""
    pca_ranks: list[int]
    """Ranks of PCA to compare with."""
    seconds: float


@dataclass(frozen=True)
class SteeringSpec:
    """The vector and the experiment."""

    concept: str
    """Name of the contrast pairs."""
    site: str
    strengths: list[float]
    n_random: int
    held_out: float
    """Share of the pairs, by group, kept for measuring."""
    prompts: list[str]
    max_new_tokens: int
    seconds: float
    instruction: str | None = None
    """A system prompt whose effect stands beside the vector's."""


@dataclass(frozen=True)
class UncertaintySpec:
    """Next-token calibration on the corpus and multiple-choice questions."""

    documents: int
    max_tokens: int
    """Scored in each document."""
    questions: str
    n_questions: int
    seconds: float


@dataclass(frozen=True)
class DemoSpec:
    """The whole demo."""

    model: str
    prompt: str
    answer: str
    seed: int
    truth: TruthSpec
    corpus: CorpusSpec
    sae: SAESpec
    steering: SteeringSpec
    uncertainty: UncertaintySpec


def load_demo_spec(path: str | Path | None = None) -> DemoSpec:
    """Read a specification; None is the bundled `probes/demo.toml`.

    Raises:
        ValueError: no such file, no TOML, an unknown key (with the nearest one) or a missing one.
    """
    path = content_folder("probes") / "demo.toml" if path is None else Path(path)
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    return _build(DemoSpec, values, path.name)


def _build(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    fields = {each.name: each for each in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            raise ValueError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    missing = [name for name, each in fields.items() if name not in values and each.default is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{where}: the key {missing[0]!r} is missing")
    built = {}
    for name, each in fields.items():
        if name not in values:
            continue
        nested = dataclasses.is_dataclass(each.type)
        if nested and not isinstance(values[name], Mapping):
            raise ValueError(f"{where}: {name} is a table, [{name}]")
        built[name] = _build(each.type, values[name], f"{where} [{name}]") if nested else values[name]
    return kind(**built)
