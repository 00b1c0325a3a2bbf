"""The books of the demo: which steps are done, how long the rest takes, and what was found.

`demo.json` in the run's folder is rewritten after every step. A step counts as done when its record carries the key of
the present model and specification and all its files are there; it is then not run again.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from interp import artifact
from interp.demo.spec import DemoSpec, load_demo_spec
from interp.demo.steps import Outcome, Place, Step, all_steps
from interp.demo.summary import write_summary
from interp.jobs import note_progress
from interp.model import HookedTransformer
from interp.weights.load import load

FORMAT = 1


def run_demo(
    folder: str | Path = "runs/demo", *, spec: DemoSpec | None = None, console: Console | None = None
) -> dict[str, Any]:
    """Run what is not done yet and write `folder/demo.json` and `folder/report.html`.

    Args:
        folder: of the run.
        spec: what to do; None for the bundled `probes/demo.toml`.
        console: where progress and the table go; None for nothing.

    Returns:
        The content of demo.json: model, prompt, steps, findings, seconds.

    Raises:
        ValueError: a specification that cannot be met; the steps done before stay done.
    """
    spec = spec or load_demo_spec()
    folder = Path(folder)
    console = console or Console(quiet=True)
    start = time.perf_counter()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the run")
    folder.mkdir(parents=True, exist_ok=True)
    console.print("Loading the model", style="bold")
    model = load(spec.model)
    fingerprint = model.fingerprint
    console.print(f"  {model!r}", highlight=False, markup=False)
    books = _open_books(folder, model, fingerprint, spec)
    steps = all_steps(spec)
    keys = {step.name: artifact.hash_json([FORMAT, step.name, step.depends, fingerprint]) for step in steps}
    todo = [step for step in steps if not _is_done(books, step, keys[step.name], folder)]
    place = Place(folder, model, spec)
    for number, step in enumerate(steps, 1):
        label = f"[{number}/{len(steps)}] {step.title}"
        if step not in todo:
            console.print(f"{label}: already there", highlight=False, markup=False)
            continue
        _set_aside(books, step, keys[step.name], folder)
        rest = sum(later.seconds for later in todo[todo.index(step) + 1 :])
        record = _run_step(place, step, label, rest, console)
        record["key"] = keys[step.name]
        books["steps"] = [old for old in books["steps"] if old["name"] != step.name] + [record]
        books["steps"].sort(key=lambda each: [step.name for step in steps].index(each["name"]))
        books["findings"] = [finding for each in books["steps"] for finding in each["findings"]]
        books["seconds"] = round(sum(each["seconds"] for each in books["steps"]), 1)
        artifact.write_json(folder / "demo.json", books)
    if todo or not (folder / "report.html").is_file():
        write_summary(folder, books)
    console.print(_table(books, folder))
    console.print(
        f"Report: {folder / 'report.html'}   ({time.perf_counter() - start:.0f} s)", highlight=False, markup=False
    )
    return books


def _open_books(folder: Path, model: HookedTransformer, fingerprint: str, spec: DemoSpec) -> dict[str, Any]:
    cfg = model.cfg
    about = {
        "name": cfg.name, "note": model.note, "fingerprint": fingerprint, "n_layers": cfg.n_layers, "n_heads": cfg.n_heads,
        "d_model": cfg.d_model, "d_vocab": cfg.d_vocab, "n_params": model.n_params, "loads_as": spec.model,
    }  # fmt: skip
    path = folder / "demo.json"
    old = artifact.read_json(path) if path.is_file() else {}
    if old and old.get("format") != FORMAT:
        raise ValueError(f"{path} has format {old.get('format')}, this version writes {FORMAT}; give another folder")
    known = {step.name for step in all_steps(spec)}
    steps = [each for each in old.get("steps", []) if each["name"] in known]
    return {
        "format": FORMAT, "model": about, "prompt": spec.prompt, "answer": spec.answer, "steps": steps,
        "findings": [finding for each in steps for finding in each["findings"]], "seconds": old.get("seconds", 0.0),
        "provenance": artifact.provenance(),
    }  # fmt: skip


def _is_done(books: dict[str, Any], step: Step, key: str, folder: Path) -> bool:
    for record in books["steps"]:
        if record["name"] == step.name and record["state"] == "done" and record.get("key") == key:
            return all((folder / name).exists() for name in record["files"])
    return False


def _set_aside(books: dict[str, Any], step: Step, key: str, folder: Path) -> None:
    """Rename the stores of a step whose model or specification changed; what was recorded stays readable."""
    for record in books["steps"]:
        if record["name"] != step.name or record.get("key") == key:
            continue
        for store in [(folder / name).parent for name in record["files"] if name.endswith("store.json")]:
            if store.is_dir():
                number = next(n for n in range(1, 10_000) if not store.with_name(f"{store.name}.before-{n}").exists())
                store.rename(store.with_name(f"{store.name}.before-{number}"))


def _run_step(place: Place, step: Step, label: str, rest: float, console: Console) -> dict[str, Any]:
    """Run one step under a progress bar; its record for the books."""
    start = time.perf_counter()
    if not console.is_terminal:
        console.print(f"{label} (about {_duration(step.seconds + rest)} left)", highlight=False, markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=1.0, left=f"about {_duration(step.seconds + rest)} left")

        def progress(done: int, total: int) -> None:
            share, spent = done / max(total, 1), time.perf_counter() - start
            own = spent / share * (1 - share) if share > 0.1 else max(step.seconds - spent, 0)
            note_progress(label, done, total)
            bar.update(task, completed=share, left=f"about {_duration(own + rest)} left")

        outcome: Outcome = step.run(place, progress)
    seconds = time.perf_counter() - start
    console.print(f"{label}: {outcome.headline}  ({seconds:.0f} s)", highlight=False, markup=False)
    return {
        "name": step.name, "title": step.title, "state": "done", "seconds": round(seconds, 1), "headline": outcome.headline,
        "files": outcome.files, "findings": [asdict(finding) for finding in outcome.findings],
    }  # fmt: skip


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _table(books: dict[str, Any], folder: Path) -> Table:
    table = Table(title="What was found", title_justify="left")
    table.add_column("what")
    table.add_column("figure")
    table.add_column("where", overflow="fold")
    for finding in books["findings"]:
        table.add_row(finding["what"], finding["figure"], str(folder / finding["where"]))
    return table
