"""`question_report`: a model answers questions in several ways, and every signal of doubt is held against its errors.

1. Draw the shown questions (`asking`), and divide the others into pieces, each measured on its own (`work`).
2. Put the pieces together, fit probes by group, and rank (`tables`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp import artifact
from interp.behavior.pieces import divided, in_folder, run_pieces
from interp.behavior.questions import tables
from interp.behavior.questions.asking import GRADERS, Asked, asked, has_last_line, to_json
from interp.behavior.questions.report import QuestionReport
from interp.behavior.questions.work import FREE, TEXT, question_piece
from interp.dataset import Question
from interp.jobs import JobFolder, at_least
from interp.meaning import Match, load_sentence_encoder
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.uncertainty.knowing import knowing_sites
from interp.uncertainty.questions import right_options

PIECE = 32
"""Questions in a piece of work."""


def question_report(
    model: HookedTransformer,
    questions: Sequence[Question],
    *,
    n_samples: int | Any = 10,
    n_shots: int | Any = 3,
    max_new_tokens: int | Any = 8,
    free: bool = True,
    p_true: bool = True,
    eigenscore: bool = True,
    match: Any = None,
    grader: str | Any = "match",
    encoder: str = "minilm",
    sites: Sequence[str] | None = None,
    n_folds: int | Any = 5,
    n_bins: int | Any = 15,
    n_boot: int | Any = 1000,
    seed: int | Any = 0,
    batch_size: int | Any = 32,
    out: str | Path | Any | None = None,
    engine: Any = "local",
    resume: bool = True,
    replace: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> QuestionReport:
    """Does the model know when it is wrong, and where inside does it show?

    Args:
        model: a decoder with a tokenizer.
        questions: multiple choice with groups (questions that share facts share one); the places of all right options stand
            in `meta["right"]` where several are.
        n_samples: drawn answers of each question at temperature 1.
        n_shots: questions shown with their answers before a free one; they and their groups are not measured.
        max_new_tokens: of a free answer, which ends at the line's end.
        free: also let the model answer in its own words.
        p_true: also ask the model whether its answer is true.
        eigenscore: also the samples' EigenScore.
        match: what decides that two samples mean the same (`ExactMatch`, `EmbeddingMatch`, `NLIMatch`); None for ExactMatch.
        grader: "match" (the right option, as text) or "nearest" (the nearest option by `encoder` is a right one).
        encoder: sentence encoder of "nearest".
        sites: where probes read; None for `knowing_sites`.
        n_folds: folds of every fit, by group.
        n_bins: of calibration errors.
        n_boot: draws of groups.
        seed: of shown questions, samples, folds and intervals.
        batch_size: most texts in a pass.
        out: folder that keeps report and pieces; the same call again goes on where it was.
        engine: "local", "ray", or a `RayEngine`.
        resume, replace: as in `in_folder`.
        progress: called with (pieces done, in all).

    Returns:
        The report. Tasks of its signals are "text" (the option with the most probable text) and "free"; one whose accuracy is
        not told from chance is left out.

    Raises:
        ValueError: questions without groups or with a broken option, values out of their range, texts beyond the context, an
            encoder model.
    """
    refuse_encoder(model.cfg, "a report on answers")
    for name, value, least in (
        ("n_samples", n_samples, 2), ("n_shots", n_shots, 0), ("max_new_tokens", max_new_tokens, 1), ("n_folds", n_folds, 3),
        ("n_boot", n_boot, 100), ("seed", seed, 0), ("batch_size", batch_size, 1), ("n_bins", n_bins, 1),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        at_least(name, value, least)
    if grader not in GRADERS:
        raise ValueError(f"grader must be {' or '.join(map(repr, GRADERS))}, got {grader!r}")
    if match is not None and not isinstance(match, Match):
        raise ValueError(f"match is ExactMatch(), EmbeddingMatch(encoder), NLIMatch(nli) or None, got {match!r}")
    chosen = asked(list(questions), n_shots if free else 0, seed)
    places = _sites(model, sites)
    settings = {
        "n_samples": n_samples, "max_new_tokens": max_new_tokens, "free": free, "p_true": p_true, "eigenscore": eigenscore,
        "grader": grader, "encoder": encoder if grader == "nearest" else None, "sites": places, "seed": seed,
        "batch_size": batch_size,
        "pmi": all(map(has_last_line, chosen.questions)),
        "shots": [[shot.prompt, shot.options[shot.answer]] for shot in chosen.shots],
    }  # fmt: skip
    decides = {**settings, "match": None if match is None else match.describe()}
    if grader == "nearest":
        decides["encoder"] = load_sentence_encoder(encoder).describe()
    inputs = [to_json(question) for question in chosen.questions]
    # The match comes last: its description is long, and a person looks for the option that differs.
    job = {"n_shots": n_shots, "n_folds": n_folds, "n_bins": n_bins, "n_boot": n_boot, **decides}
    job["match"] = job.pop("match")

    def make(folder: JobFolder | None) -> QuestionReport:
        found = run_pieces(
            model, question_piece, {**settings, "match": match}, divided("questions", inputs, PIECE), decides=decides,
            folder=folder, engine=engine, progress=progress,
        )  # fmt: skip
        options, answers, arrays = _together(found)
        answers["group"] = [str(chosen.questions[i].group) for i in answers["question"]]
        answers["prompt"] = [chosen.questions[i].prompt for i in answers["question"]]
        by_site = {name: {site: values[:, k] for k, site in enumerate(places)} for name, values in arrays.items()}
        card = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, seed=seed)
        card |= {"questions": artifact.hash_json(inputs), "n_questions": len(inputs)}
        return _report(chosen, options, answers, by_site, card, job)

    return in_folder(out, QuestionReport, job, inputs, model, make, resume=resume, replace=replace)


def _sites(model: HookedTransformer, sites: Sequence[str] | None) -> list[str]:
    if sites is not None:
        return list(model.expand_sites(list(sites)))
    return knowing_sites(model)


def _together(found: Sequence[Any]) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, np.ndarray]]:
    """Options, answers and streams of all pieces, questions numbered through."""
    options, answers, before = [], [], 0
    for _, values in found:
        for rows, into in ((values["options"], options), (values["answers"], answers)):
            frame = pd.DataFrame(rows)
            into.append(frame.assign(question=frame["question"] + before))
        before += 1 + max(row["question"] for row in values["answers"])
    arrays = {name: np.concatenate([arrays[name] for arrays, _ in found]) for name in found[0][0]}
    table = pd.concat(answers, ignore_index=True)
    # By task, so that the rows of a task are in the order of the questions.
    table = table.sort_values(["task", "question"], ascending=[False, True], kind="stable").reset_index(drop=True)
    for column in table.columns:
        if column not in QuestionReport.WORDS:
            table[column] = pd.to_numeric(table[column])
    return pd.concat(options, ignore_index=True), table, arrays


def _report(
    chosen: Asked, options: pd.DataFrame, answers: pd.DataFrame, streams: dict[str, dict[str, np.ndarray]], card: dict[str, Any],
    job: dict[str, Any],
) -> QuestionReport:  # fmt: skip
    questions, draws = chosen.questions, {"n_boot": job["n_boot"], "seed": job["seed"]}
    options = options.assign(
        group=[questions[i].group for i in options["question"]],
        right=[place in right_options(questions[i]) for i, place in zip(options["question"], options["option"])],
    )
    formats, reports, unfitted = tables.formats(
        options, answers, questions, grader=job["grader"], pmi=job["pmi"], n_bins=job["n_bins"], **draws
    )
    told = formats.loc[formats["informative"].astype(bool)]
    informative = [TEXT] if ((told["format"] == TEXT) & (told["by"] == "sum")).any() else []
    informative += [FREE] if (told["format"] == FREE).any() else []
    folds = {"n_folds": job["n_folds"], "seed": job["seed"]}
    answers, notes, knowing = tables.with_probes(answers, questions, streams, **folds)
    signals, curves, said = tables.ranked(answers, questions, informative, **draws)
    added, more = tables.added(answers, questions, informative, **folds, n_boot=job["n_boot"])
    inside, probe, lacking = tables.inside(options, questions, streams["option_streams"], **folds, n_boot=job["n_boot"])
    notes += [*unfitted, *said, *more, *lacking, *_cautions(chosen, options, answers, informative, job)]
    sites = [report.sites.assign(task=task) for task, report in knowing.items()]
    sites += [] if probe is None else [probe.sites.assign(task="options")]
    return QuestionReport(
        {
            "signals": signals, "formats": formats, "curves": curves, "added": added, "inside": inside,
            "letters": tables.letters(options), "answers": answers,
            "sites": pd.concat(sites, ignore_index=True) if sites else pd.DataFrame({"task": [], "site": []}),
        },
        {"settings": job, "calibration": reports[f"{TEXT} sum"].calibration.to_dict()},
        card,
        tuple(notes),
    )  # fmt: skip


def _cautions(
    chosen: Asked, options: pd.DataFrame, answers: pd.DataFrame, informative: Sequence[str], job: dict[str, Any]
) -> list[str]:
    found = []
    if chosen.shots:
        shown = f"{len(chosen.shots)} questions stand with their answers before each free one"
        found.append(f"{shown}; they and the {chosen.left_out} others of their groups are not measured.")
    n_empty = int(np.count_nonzero(answers["empty"].to_numpy(dtype=bool)))
    if n_empty:
        hint = "" if chosen.shots else " Show some answered questions before them (n_shots)."
        found.append(
            f"{n_empty} free answers are empty: they count as wrong, and have no signals of their tokens.{hint}"
        )
    if not job["pmi"]:
        found.append(
            "Some prompts are a single line: what an option gains over the last line alone (pmi) was left out."
        )
    found += _too_short(options, answers, job)
    for task in answers["task"].unique():
        n_wrong = int(np.count_nonzero(~answers.loc[answers["task"] == task, "right"].to_numpy(dtype=bool)))
        if task in informative and n_wrong < 30:
            found.append(f"{task}: only {n_wrong} answers are wrong, so no signal's AUROC is known well.")
    if not informative:
        found.append(
            "No format is told from chance: no signal was ranked, since there would be nothing to be right about."
        )
    return found


def _too_short(options: pd.DataFrame, answers: pd.DataFrame, job: dict[str, Any]) -> list[str]:
    """Free answers that the limit may have made wrong."""
    free, limit = answers.loc[answers["task"] == FREE], job["max_new_tokens"]
    if free.empty or job["grader"] != "match":
        return []
    found = []
    n_cut = int(np.count_nonzero(free["cut"].to_numpy(dtype=bool)))
    if n_cut:
        found.append(
            f"{n_cut} of {len(free)} free answers reached {limit} tokens before their end and are graded as they stand."
        )
    right = options.loc[(options["format"] == TEXT) & options["right"].astype(bool)]
    n_long = int((right.groupby("question")["n_tokens"].min() > limit).sum())
    if n_long:
        found.append(
            f"{n_long} questions have no right option of at most {limit} tokens, so their free answers cannot be right: raise "
            "max_new_tokens, or use grader='nearest'."
        )
    return found
