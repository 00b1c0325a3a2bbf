"""A steering sweep that takes a second: a tiny model, pairs of good and bad words, some other text and questions."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from tiny import tiny_model

from interp.artifact import atomic_write, hash_json
from interp.steer_job import load_steer_spec, run_steer_job
from interp.steering.report import SteeringReport

JOB = """
question = "Does it steer?"
model = "tiny"
pairs = "pairs.csv"
texts = "texts.csv"
choices = "choices.jsonl"
prompts = ["The item is", "We saw"]
strengths = [-0.5, 0.5]
n_random = 2
instruction = "Be good."
max_new_tokens = 3

[vector]
data = "pairs.csv"
site = "resid_post:0"
held_out = 0.25

[[measures]]
tokens = "a"
against = "b"

[[measures]]
phrases = ["e", "t"]
"""


def pairs(n_groups: int = 8) -> pd.DataFrame:
    """Two pairs a group."""
    rows = [
        {
            "prompt": f"Item {number} {verb}",
            "positive": f" good{number}",
            "negative": f" bad{number}",
            "group": f"g{number}",
        }
        for number in range(n_groups)
        for verb in ("is", "was")
    ]
    return pd.DataFrame(rows)


def write_inputs(folder: Path) -> Path:
    """Pairs, texts, questions and labelled statements."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs().to_csv(folder / "pairs.csv", index=False)
    pd.DataFrame({"text": ["some other text", "and more of it, longer"]}).to_csv(folder / "texts.csv", index=False)
    questions = [
        {"prompt": "one and", "options": [" two", " ten"], "answer": 0},
        {"prompt": "a", "options": ["b", "c"], "answer": 1},
    ]
    (folder / "choices.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    labelled = [
        {"text": f"thing {n} is {'fine' if n % 2 else 'poor'}", "label": n % 2, "group": n // 2} for n in range(12)
    ]
    pd.DataFrame(labelled).to_csv(folder / "labelled.csv", index=False)
    return folder


def write_job(folder: Path, text: str = JOB) -> Path:
    """The specification as a file, with what it reads beside it."""
    path = write_inputs(folder) / "small.toml"
    path.write_text(text)
    return path


def plain_page(report: SteeringReport, path: Path) -> Path:
    """In place of `write_html`, whose charts take seconds: as many bytes as tell two reports apart."""
    return atomic_write(path, hash_json(report.to_dict()))


def run_small(spec: Path, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> SteeringReport:
    """Run it with a tiny model that is made anew each time."""
    return run_steer_job(load_steer_spec(spec, settings), out, model=tiny_model(), **options)
