"""What several commands share: where results go, which prompts and texts are meant, and how far the work is."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
from safetensors import SafetensorError, safe_open

import interp
from interp.cli.output import show
from interp.jobs import note_progress
from interp.lens.jacobian import KIND as JACOBIAN
from interp.task import TASKS

CHARTS = (".svg", ".png", ".html")
ALIGNED_ROWS = 40
"""Longest prompt whose alignment is printed whole."""


# ------------------------------------------------------------------------------------------------------- where it goes


def _file(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:  # noqa: ARG001 (click's)
    """A place that can be written, checked before the work and not after it."""
    if path is None:
        return None
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; give the name of a file in it")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise click.BadParameter(f"{path} cannot be made: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise click.BadParameter(f"{path} cannot be written: choose another place, or change its permissions")
    return path


def _chart(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in CHARTS:
        raise click.BadParameter(f"{path.name}: a chart is saved as {', '.join(CHARTS)}")
    return _file(ctx, option, path)


def file_option(name: str, text: str, *, required: bool = False) -> Any:
    """An option whose value is a file to write."""
    return click.option(name, type=click.Path(path_type=Path), callback=_file, required=required, help=text)


out_option = file_option("--out", "Also write the whole result to this file.")
html_option = file_option("--html", "Also write a page of its own, which needs no network.")
plot_option = click.option(
    "--plot", "chart", type=click.Path(path_type=Path), callback=_chart, help="Also draw it: .svg, .png or .html."
)
top_option = click.option(
    "--top", default=10, type=click.IntRange(min=1), show_default=True, help="Rows shown; --json prints all."
)
seed_option = click.option(
    "--seed", default=0, type=click.IntRange(min=0), show_default=True, help="Of random choices and of intervals."
)


@contextlib.contextmanager
def work_bar(label: str, *, hidden: bool) -> Iterator[Callable[..., None]]:
    """A bar on the error stream while it is a terminal; the function takes (done, in all), and the name of a new step."""
    quiet = hidden or not sys.stderr.isatty()
    with click.progressbar(length=1000, label=label, hidden=quiet, file=sys.stderr) as bar:

        def move(done: int, total: int, step: str = label) -> None:
            note_progress(step[:1].upper() + step[1:], done, total)
            bar.label = step
            bar.update(1000 * done // max(total, 1) - bar.pos)

        yield move


# ------------------------------------------------------------------------------------------------------ what is read


def read_texts(source: str, limit: int | None = None) -> list[str]:
    """Texts of a bundled set or a file, at most so many."""
    return interp.load_corpus(source).texts[:limit]


def read_reference(source: str, limit: int | None = None) -> Any:
    """A store, or the texts of a file or bundled set."""
    if "://" in source or (Path(source) / "store.json").is_file():
        return interp.open_store(source)
    return read_texts(source, limit)


def read_lens(path: Path) -> "interp.TunedLens | interp.JacobianLens":
    """A tuned or a Jacobian lens, as the file's card says."""
    card: Any = None
    # Whatever else is wrong with a file the loader says better.
    with contextlib.suppress(OSError, SafetensorError, ValueError), safe_open(path, framework="pt") as file:
        card = json.loads((file.metadata() or {}).get("card", "null"))
    found = isinstance(card, dict) and card.get("kind") == JACOBIAN
    return interp.load_jacobian_lens(path) if found else interp.load_tuned_lens(path)


# ---------------------------------------------------------------------------------------------------- pairs of prompts

_PAIRS = (
    click.option("--task", type=click.Choice(list(TASKS)), help="A task made for the model's tokenizer."),
    click.option("--n", type=click.IntRange(min=1), help="Pairs of the task; default: 16."),
    click.option("--clean", multiple=True, help="Own prompt; may be repeated, and the next three with it."),
    click.option("--corrupted", multiple=True, help="The same without what matters, in as many tokens."),
    click.option(
        "--answer", multiple=True, help="Next token of the clean prompt, with its space; one, or each pair's."
    ),
    click.option("--against", multiple=True, help="Token that the answer is measured against."),
    click.option(
        "--pairs",
        "file",
        type=click.Path(path_type=Path),
        help="File with the columns clean, corrupted, answer, against.",
    ),
)


_COLUMNS = ("clean", "corrupted", "answer", "against")


def pairs_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The three ways to give pairs of prompts; `pairs_source` reads them."""
    for option in reversed(_PAIRS):
        command = option(command)
    return command


def pairs_source(
    given: dict[str, Any], metric: str, seed: int
) -> Callable[["interp.HookedTransformer"], "interp.PromptPairs"]:
    """Check the options of `pairs_options` before the model is loaded, and make the pairs once it is there.

    Raises:
        click.UsageError: none of the ways, several at once, or one that lacks a part.
    """
    texts = {name: list(given[name]) for name in _COLUMNS}
    ways = [given["task"], any(texts.values()), given["file"]]
    if sum(map(bool, ways)) != 1:
        raise click.UsageError("give --task, or --clean, --corrupted and --answer, or --pairs FILE: one of the three")
    if given["task"] is None and given["n"] is not None:
        raise click.UsageError("--n is the number of pairs of a --task")
    if given["task"] is not None:
        return lambda model: interp.task_pairs(model, given["task"], given["n"] or 16, seed)
    if given["file"] is not None:
        texts = _table_columns(given["file"])
    for name in _COLUMNS[:3]:
        if not texts[name]:
            raise click.UsageError(f"--{name} is missing: own prompts need --clean, --corrupted and --answer")
    if metric == "logit_diff" and not texts["against"]:
        raise click.UsageError("--against is missing: logit_diff compares two tokens; or take --metric log_probability")
    # One answer stands for all pairs.
    sides: dict[str, Any] = {
        name: values[0] if len(values) == 1 else values for name, values in texts.items() if values
    }
    if len(texts["clean"]) == 1:
        sides |= {name: texts[name] for name in ("clean", "corrupted")}
    return lambda model: interp.prompt_pairs(model, **sides)


def _table_columns(file: Path) -> dict[str, list[str]]:
    frame = interp.read_table(file)
    missing = [name for name in _COLUMNS[:3] if name not in frame]
    if missing:
        has = ", ".join(map(str, frame.columns))
        raise click.BadParameter(f"{file} has no column {missing[0]!r}; it has {has}", param_hint="--pairs")
    return {name: [str(v) for v in frame[name]] if name in frame else [] for name in _COLUMNS}


def show_alignment(pairs: "interp.PromptPairs") -> None:
    """The first pair's tokens side by side, so that a person sees what is compared."""
    table, differing = pairs.alignment(0), pairs.differs.sum(1).tolist()
    low, high = min(differing), max(differing)
    most = f"{low} to {high} tokens" if low < high else f"{low} token{'s' * (low != 1)}"
    whole = len(table) <= ALIGNED_ROWS
    title = f"pair 1 of n = {len(pairs)} ({pairs.name}); the prompts of a pair differ in {most}"
    shown = table if whole else table.loc[table["differs"]]
    marks = ["*" if differs else "" for differs in shown["differs"]]
    show(shown.assign(differs=marks), as_json=False, title=title if whole else f"{title}, of which these are shown")
    asked = pairs.to_frame().to_dict("records")[0]
    other = "" if pairs.againsts is None else f", measured against {asked['against']}"
    click.echo(f"answer {asked['answer']}{other}")


def brief(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Those of the columns that are there, in this order."""
    return frame.loc[:, [name for name in names if name in frame]]


def counts(frame: pd.DataFrame) -> tuple[int, int]:
    """The columns n and n_texts of a table in which they are the same in every row."""
    return int(frame["n"].to_list()[0]), int(frame["n_texts"].to_list()[0])
