"""A probe job that takes a second: a tiny model, statements whose label stands in a word, affirmed and negated."""

from pathlib import Path
from typing import Any

import pandas as pd
from tiny import tiny_model

from interp.probe_job import ProbeJobReport, load_probe_spec, run_probe_job

JOB = """
question = "Is the label decodable?"
model = "tiny"
datasets = [{ path = "statements.csv" }]
kinds = ["logistic", "mass_mean"]
C = [0.01, 0.1]
folds = 3
n_boot = 100
"""


def statements(n_groups: int = 16, first: int = 0) -> pd.DataFrame:
    """Two right and two wrong statements a group: true where something good is affirmed, or something bad negated."""
    rows = []
    for entity in range(first, first + n_groups):
        for word in ("good", "bad"):
            for negated in (False, True):
                rows.append(
                    {
                        "text": f"Item {entity} is {'not ' * negated}{word}.",
                        "label": int((word == "good") != negated),
                        "group": f"item {entity}",
                        "polarity": "negated" if negated else "affirmative",
                        "pair": f"{entity} {word}",
                        "topic": "even" if entity % 2 == 0 else "odd",
                    }
                )
    return pd.DataFrame(rows)


def write_job(folder: Path, text: str = JOB, frame: pd.DataFrame | None = None) -> Path:
    """The specification as a file, with its statements beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (statements() if frame is None else frame).to_csv(folder / "statements.csv", index=False)
    path = folder / "small.toml"
    path.write_text(text)
    return path


def run_small(spec: Path, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> ProbeJobReport:
    """Run it with a tiny model that is made anew each time."""
    return run_probe_job(load_probe_spec(spec, settings), out, model=tiny_model(), **options)


def finished_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a finished job but its lock, its log and what the recording keeps for itself."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".lock", "log.jsonl"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
