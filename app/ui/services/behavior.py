"""Behaviour reports: those of the workspace, their charts, and the trace of one answer."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

import interp
from interp.plot import Chart
from ui import library
from ui.services.kept import shelf
from ui.services.live import checked, engine, in_memory, is_of_the_model, model_name, token_ids
from ui.services.runs import run

MOST_TRACE_TOKENS = 256
"""Longest prompt whose answer a page traces."""
MOST_ANSWER = 32
TITLES = {
    "question report": "Questions",
    "text calibration": "Text",
    "sycophancy report": "Opinions",
    "grounding report": "Evidence",
    "gate report": "Gate",
    "answer trace": "Trace",
}
"""Kind of report -> a word for it."""
CHARTS = {
    "question report": ("signals", "risk", "reliability"),
    "text calibration": ("layers", "reliability", "positions", "predicted", "events"),
    "sycophancy report": ("shifts", "accuracies", "layers", "steering"),
    "grounding report": ("errors", "abstention", "signals", "layers"),
    "gate report": ("curve", "risks"),
    "answer trace": ("layers", "tokens", "rivals"),
}
"""Kind of report -> the names that its `plot` knows."""


@dataclass(frozen=True)
class TraceAsked:
    """Which answer is traced: hashable, so that it names its result."""

    prompt: str
    answer: str | None = None
    """None lets the model write one."""
    against: str | None = None
    subject: str | None = None
    max_new_tokens: int = 8


@functools.cache
def kinds() -> tuple[str, ...]:
    """The kinds of behaviour report that the library reads."""
    from interp.behavior.loading import KINDS

    return tuple(KINDS)


def listed() -> pd.DataFrame:
    """A row per report of the workspace, newest first: key, kind, and model in the words of `whose`."""
    rows = [(each.key, each.kind, whose(each.model)) for each in library.entries(*kinds())]
    return pd.DataFrame(rows, columns=pd.Index(["key", "kind", "model"]))


def whose(fingerprint: str | None) -> str:
    """Whether a report is of the model that pages use, by what is in memory or what the run says; none is loaded for it."""
    if not fingerprint:
        return "not said"
    live, opened = in_memory().get(model_name()), run()
    own = live.fingerprint if live else opened.model.get("fingerprint") if opened and is_of_the_model(opened) else None
    return "not loaded" if own is None else "this one" if own == fingerprint else "another model"


def report(key: str) -> Any:
    """A report of the workspace (`interp.load_behavior_report`).

    Raises:
        ValueError: none under that key (any more), a damaged file, an unfinished report, or a newer format.
    """
    found = library.entry(key, *kinds())
    return _report(str(found.path), found.stamp)


def path_of(key: str) -> str:
    """The path below the workspace that the report's Python names."""
    return library.entry(key, *kinds()).key


def charts(found: Any) -> dict[str, Chart | str]:
    """Name -> chart of the report, or why there is none, in the report's own words."""
    drawn: dict[str, Chart | str] = {}
    for name in CHARTS.get(found.KIND, ()):
        try:
            drawn[name] = found.plot(name)
        except ValueError as error:
            drawn[name] = str(error)
    return drawn


def task_charts(found: Any, task: str) -> tuple[Chart, Chart]:
    """Of one task of a question report: its signals ranked, and the risk-coverage curves of the best ones."""
    from interp.behavior.questions import page

    return page.ranking(found, task), page.risks(found, task)


def tasks(found: Any) -> list[str]:
    """Tasks of a question report whose signals were ranked."""
    return list(dict.fromkeys(map(str, found.tables["signals"]["task"])))


def surest_errors(found: Any, task: str, n: int = 12) -> pd.DataFrame:
    """Wrong answers of a task, those first that the model was surest of: prompt, answer and the measure of it."""
    answers = found.tables["answers"]
    wrong = answers.loc[(answers["task"] == task) & ~answers["right"].astype(bool)]
    sure = next(
        (name for name in ("option_margin", "sequence_probability") if name in wrong and wrong[name].notna().any()),
        None,
    )
    if sure is not None:
        wrong = wrong.sort_values(sure, ascending=False)
    columns = ["prompt", "answer", *([sure] if sure else []), *(c for c in ("p_ik", "self_consistency") if c in wrong)]
    return wrong.loc[:, columns].head(n).reset_index(drop=True)


def trace(asked: TraceAsked) -> Any:
    """The result of `run_trace`, None where it was not run."""
    return shelf().get((engine().fingerprint, asked))


def run_trace(asked: TraceAsked) -> None:
    """Trace one answer (`interp.hallucination_trace`); the report goes on the shelf.

    Raises:
        ValueError: a long prompt, another length of the answer, or what the library refuses: an empty answer, a subject that
            the prompt does not hold, another answer that begins with the same token.
    """
    n = len(token_ids(asked.prompt))
    if n > MOST_TRACE_TOKENS:
        raise ValueError(
            f"the prompt has {n:,} tokens; a page traces at most {MOST_TRACE_TOKENS}: shorten it, or use `interp behave trace`"
        )
    if not 1 <= asked.max_new_tokens <= MOST_ANSWER:
        raise ValueError(f"an answer of {asked.max_new_tokens} tokens: a page takes 1 to {MOST_ANSWER}")
    fingerprint = engine().fingerprint
    with checked(fingerprint) as model:
        found = interp.hallucination_trace(
            model,
            asked.prompt,
            answer=asked.answer or None,
            against=asked.against or None,
            subject=asked.subject or None,
            max_new_tokens=asked.max_new_tokens,
        )
    shelf().put((fingerprint, asked), found)


def trace_code(asked: TraceAsked, name: str | None = None) -> str:
    """Python that makes the trace, and one of its charts."""
    given = {"against": asked.against or None, "subject": asked.subject or None}
    options = "".join(f", {key}={value!r}" for key, value in given.items() if value is not None)
    last = "print(report)" if name is None else f"chart = report.plot({name!r})"
    return f"""
import interp

model = interp.load({model_name()!r})
report = interp.hallucination_trace(
    model, {asked.prompt!r}, answer={asked.answer or None!r}, max_new_tokens={asked.max_new_tokens}{options}
)
{last}
"""


@st.cache_resource(max_entries=16, show_spinner=False)
def _report(path: str, stamp: int) -> Any:  # noqa: ARG001 (the stamp is part of the key)
    return interp.load_behavior_report(Path(path))
