"""`ProbeSpec`: a probe job as frozen values, read from TOML. A key that is not known is an error, never ignored.

A specification states its question and, before any figure is seen, what would count as an answer. Only what it lacks has
a default; `--set` and `settings=` change single values and go through the same checks.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from interp.content import content_folder
from interp.dataset import datasets
from interp.dataset.truthfulqa import FORMS
from interp.jobs import at_least, build, plain, read_toml
from interp.probe.methods import GRID, METHODS

PROTOCOLS = ("nested", "split")
LEAST_DRAWS = 19
"""Random directions and permutations: with fewer the smallest rank p, 1 / (n + 1), is over 0.05."""
NO_JOBS = ("demo",)
"""Files of `probes/` that are no probe jobs."""


@dataclass(frozen=True)
class TextSpec:
    """One set of labelled texts: the name of a bundled one, or a file."""

    name: str | None = None
    """Of a bundled set; with a file what its texts are called in the column `topic`, None for the file's stem."""
    path: str | None = None
    """CSV, TSV, JSONL or Parquet, relative to the specification; neither name nor path leaves the place to `--data`."""
    text: str = "text"
    """Column with the texts."""
    label: str = "label"
    """Column with the labels: 0/1, true/false or yes/no."""
    group: str | None = None
    """Column with the groups; None for `group` where there is one."""
    group_rule: str | None = None
    """Instead of a column: columns (`n1,n2`), `quoted`, or a regular expression whose first group names the row's group."""
    topic: str | None = None
    """Column that is read as the topic; None for `topic`, and where there is none the name of the set."""
    select: dict[str, Any] = field(default_factory=dict)
    """Column -> value, or list of values, of the rows that are kept."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Column -> value of every row that has none there, such as `language = "en"`."""
    control: bool = False
    """Whether the label means something else on purpose, such as how likely a text is. Such a set takes no part in the
    figures; it is a control of transfer by topic."""
    form: str | None = None
    """Of TruthfulQA's own files, which become statements: `statements` (all answers), `binary`, `mc1` or `mc2`."""

    def __post_init__(self) -> None:
        if self.form is not None and self.form not in FORMS:
            raise ValueError(f"form must be {', '.join(FORMS)}, got {self.form!r}")
        if self.group is not None and self.group_rule is not None:
            raise ValueError("group names a column and group_rule a rule: give one of them")


@dataclass(frozen=True)
class ControlSpec:
    """What stands beside the figures."""

    n: int = 19
    """Random directions, and permutations of the labels, at each place; at least 19."""
    log_likelihood: bool = True
    """Whether the model's own log-likelihood of each text is a baseline."""

    def __post_init__(self) -> None:
        at_least("n", self.n, LEAST_DRAWS)


@dataclass(frozen=True)
class TransferSpec:
    """Probes trained on one part of the texts and judged on every part."""

    by: tuple[str, ...] = ("topic",)
    """Columns whose values are the parts, a matrix for each: `topic`, `polarity`, `language` ..."""
    train: tuple[str, ...] = ()
    """Train sets, also sums and differences (`affirmative + negated`, `all - cities`); none for every part and all."""
    test: tuple[str, ...] = ()
    """Test sets; none for every part."""
    kinds: tuple[str, ...] = ()
    """Kinds of probe; none for those of the job."""
    sites: tuple[str, ...] = ()
    """Places to choose from; none for those of the job."""

    def __post_init__(self) -> None:
        _known_kinds(self.kinds)
        if not self.by:
            raise ValueError("by names the columns whose values are the parts, and it is empty: leave [transfer] out")


@dataclass(frozen=True)
class CausalSpec:
    """The direction is added to the stream, and the model's own judgement is watched."""

    strengths: tuple[float, ...] = (-0.1, 0.1)
    """Of the added direction, in units of the typical norm at its site."""
    n_random: int = 19
    """Random directions of the same norm; at least 19."""
    max_pairs: int = 100
    """Most pairs of a true and a false statement that are judged."""
    ask: bool = True
    """Whether the model is also asked for TRUE or FALSE, after examples."""

    def __post_init__(self) -> None:
        if not self.strengths or any(not math.isfinite(each) or each == 0 for each in self.strengths):
            raise ValueError(f"strengths must be numbers other than 0, got {list(self.strengths)}")
        at_least("n_random", self.n_random, LEAST_DRAWS)
        at_least("max_pairs", self.max_pairs, 1)


@dataclass(frozen=True)
class ProbeSpec:
    """A whole job. What decides a figure stands here, and nothing else does."""

    question: str
    """What is asked, in a sentence."""
    model: str
    """What `interp.load` reads."""
    datasets: tuple[TextSpec, ...]
    """Sets of texts; they are joined, in this order."""
    criterion: str = ""
    """What would count as an answer, written before the figures were seen."""
    select: dict[str, Any] = field(default_factory=dict)
    """Column -> value, or list of values, of the rows that are kept of every set."""
    max_texts: int | None = None
    """Most texts; whole groups are drawn."""
    sites: tuple[str, ...] = ("resid_post:*",)
    """Places: sites, shorthand, patterns, single heads (`z:5.3`)."""
    tokens: str = "last"
    """Which token of each text is read: `last`, `mean`, `answer` ..."""
    kinds: tuple[str, ...] = ("logistic", "mass_mean")
    """Kinds of probe. The verdict is that of the first: a best one of several, found afterwards, would be luck."""
    C: tuple[float, ...] = GRID
    """Strengths to choose from, for kinds that have one; smaller is a stronger penalty."""
    seeds: tuple[int, ...] = (0,)
    """Of folds, draws and random directions. The verdict is that of the first; the others show what folds decide."""
    protocol: str = "nested"
    """`nested`: every row is judged once, by probes of the other folds. `split`: one train, select and test part."""
    folds: int = 5
    """Outer folds, divided by group."""
    n_boot: int = 1000
    """Bootstrap draws of groups for the intervals."""
    controls: ControlSpec = field(default_factory=ControlSpec)
    """What stands beside the figures."""
    transfer: tuple[TransferSpec, ...] = ()
    """Matrices of training part and test part: a table `[transfer]`, or several `[[transfer]]`."""
    causal: CausalSpec | None = None
    """The check that what can be decoded is used; None for none."""
    keep: tuple[str, ...] | None = None
    """Kinds whose probe is kept as a file; None for all."""
    name: str = "job"
    """Of the job: the file's, without its ending."""
    settings: dict[str, Any] = field(default_factory=dict, compare=False)
    """What was changed by `--set`; it stands in the other fields already, and tells how to run the job again."""

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError("question is empty: say what is asked")
        for name in ("datasets", "sites", "kinds", "C", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty: give at least one")
        _known_kinds(self.kinds)
        strange = [kind for kind in self.keep or () if kind not in self.kinds]
        if strange:
            raise ValueError(f"keep names {strange[0]!r}, which is not fitted: kinds are {', '.join(self.kinds)}")
        for name in ("kinds", "seeds", "sites"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} has the same value twice: {list(values)}")
        if all(each.control for each in self.datasets):
            raise ValueError("every set is a control: at least one must have the label that is asked about")
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be {' or '.join(PROTOCOLS)}, got {self.protocol!r}")
        if any(not (math.isfinite(each) and each > 0) for each in self.C):
            raise ValueError(f"C must be over 0, got {list(self.C)}")
        for name, least in (("folds", 2), ("n_boot", 100)):
            at_least(name, getattr(self, name), least)
        if self.max_texts is not None:
            at_least("max_texts", self.max_texts, 10)
        if any(seed < 0 for seed in self.seeds):
            raise ValueError(f"seeds must be 0 or more, got {list(self.seeds)}")

    @property
    def kept(self) -> tuple[str, ...]:
        """Kinds whose probe is kept."""
        return self.kinds if self.keep is None else self.keep

    @property
    def every_kind(self) -> tuple[str, ...]:
        """Kinds of the job and of its transfer matrices, each once."""
        return tuple(dict.fromkeys([*self.kinds, *(kind for each in self.transfer for kind in each.kinds)]))

    def with_data(self, path: str | Path) -> "ProbeSpec":
        """The same job on a file or a bundled set: it fills the sets that have neither name nor path, or else replaces all.

        Raises:
            ValueError: no such file, and no bundled set of this name.
        """
        file = Path(path).expanduser()
        if file.is_file():
            given: dict[str, Any] = {"path": str(file.resolve())}
        elif str(path) in set(_bundled_sets()):
            given = {"name": str(path)}
        else:
            near = difflib.get_close_matches(str(path), _bundled_sets(), 1)
            hint = f"; did you mean the bundled set {near[0]!r}?" if near else f" and no bundled set {str(path)!r}"
            raise ValueError(f"{path} is a folder, not a file" if file.is_dir() else f"there is no file {path}{hint}")
        open_places = [each for each in self.datasets if each.name is None and each.path is None]
        filled = tuple(replace(each, **given) if each in open_places else each for each in self.datasets)
        return replace(self, datasets=filled if open_places else (TextSpec(**given),))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, for the report; of files only the names, for where they lie says nothing about a figure."""
        values = asdict(self)
        del values["settings"]
        for each in values["datasets"]:
            each["path"] = each["path"] and Path(each["path"]).name
        return plain(values)


def _bundled_sets() -> list[str]:
    """The bundled sets of labelled texts."""
    return [str(row["name"]) for row in datasets().to_dict("records") if row["kind"] == "statements"]


def job_names() -> list[str]:
    """The jobs that come with the package."""
    return sorted(path.stem for path in content_folder("probes").glob("*.toml") if path.stem not in NO_JOBS)


def load_probe_spec(source: str | Path, settings: Mapping[str, Any] | None = None) -> ProbeSpec:
    """Read a job by its name (`truth`) or from a TOML file.

    Args:
        source: the name of a bundled job, or a path that ends in `.toml`.
        settings: values that replace the file's, such as `{"folds": 3, "controls.n": 99}`; a dot leads into a table, and
            False removes the tables `transfer` and `causal`.

    Raises:
        ValueError: no such job or file, no TOML, an unknown key (with the nearest one), a missing key, or a value of
            another type or out of range; the message says where.
    """
    path = _locate(source)
    values = read_toml(path, settings)
    for table in ("transfer", "causal"):
        if values.get(table) is False:
            del values[table]
    values.setdefault("name", path.stem)
    if isinstance(values.get("datasets"), str | dict):
        values["datasets"] = [values["datasets"]]
    if isinstance(values.get("datasets"), list):
        values["datasets"] = [_text_values(each, path.parent) for each in values["datasets"]]
    return replace(build(ProbeSpec, values, path.name), settings=dict(settings or {}))


def _locate(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.suffix == ".toml" or path.is_file():
        return path
    names = job_names()
    if str(source) in names:
        return content_folder("probes") / f"{source}.toml"
    near = difflib.get_close_matches(str(source), names, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"there is no job {str(source)!r}.{hint} There are {', '.join(names)}; a file of your own ends in .toml"
    )


def _text_values(value: Any, folder: Path) -> Any:
    """A set as a table, its path relative to the specification made whole."""
    if isinstance(value, str):
        is_file = "/" in value or "." in value
        value = {"path": value} if is_file else {"name": value}
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        return {**value, "path": str(folder / Path(value["path"]).expanduser())}
    return value


def _known_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in METHODS:
            near = difflib.get_close_matches(kind, METHODS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown kind {kind!r}: {hint}there are {', '.join(METHODS)}")
