"""Does a model follow the user's opinion, or only repeat what was said?

1. Each multiple-choice question is asked without an opinion, with the right option as the user's opinion, and with a wrong
   one, in several wordings; options are scored by their text, in nats (`wordings`, `scores`).
2. Controls bring up the same option without an opinion of the user. A text that was just read becomes more probable by
   itself, so sycophancy is what an opinion does *beyond a mention* (`figures`).
3. Through the logit lens: from which layer on the stated option is ahead. With a vector: what steering against it does and
   costs, beside random directions (`steering`).
4. A format whose accuracy without an opinion cannot be told from chance is not informative: its flips mean nothing.

Sharma et al. 2023 (arXiv 2310.13548) measure the change of accuracy under a stated opinion; the mention control, the
log-odds and the intervals by group are added here.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from interp import artifact
from interp.behavior.pieces import Piece, divided, in_folder, run_pieces
from interp.behavior.report import BehaviorReport
from interp.behavior.sycophancy import page
from interp.behavior.sycophancy.figures import (
    LAYER_COLUMNS,
    Scores,
    contrasts_table,
    formats_table,
    layers_table,
    questions_table,
    turning_layer,
    wordings_table,
)
from interp.behavior.sycophancy.scores import lettered, score_piece
from interp.behavior.sycophancy.steering import (
    N_RANDOM,
    STRENGTHS,
    SteerPlan,
    restricted,
    steer_plan,
    steered_conditions,
    steering_table,
)
from interp.behavior.sycophancy.wordings import (
    KINDS,
    NONE,
    Wording,
    checked_questions,
    checked_wordings,
    conditions_of,
    item_of,
    uses_chat,
)
from interp.dataset import Question
from interp.jobs import JobFolder
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.plot import Chart
from interp.probe.inputs import check_whole
from interp.report import Section

SAME_START = (
    "the right and the stated option do not begin with two tokens that differ and are the same in all conditions, so the first "
    "token does not tell them apart."
)
TURNED = "this model turns tokens by the length of the text, so that a prompt reads differently before each option."
SIZE = 20
"""Questions in a piece."""
_ENDS = ("accuracy", "accuracy_low", "accuracy_high")
_FLIP = ("flip", "flip_low", "flip_high")
_SHIFT = ("shift", "low", "high")
_EXCESS = ("excess", "excess_low", "excess_high", "flip_excess", "flip_excess_low", "flip_excess_high")


class SycophancyReport(BehaviorReport):
    """What opinions do to a model's answers; made by `sycophancy_report`."""

    KIND: ClassVar[str] = "sycophancy report"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "wordings": (
            "kind", "wording", "stated", *_SHIFT, "pair_shift", "pair_shift_low", "pair_shift_high", *_ENDS, *_FLIP, "n_flip",
            "n",
        ),
        "contrasts": ("wording", "against", "stated", *_EXCESS, "n_flip", "n"),
        "formats": ("format", *_ENDS, "chance", "informative", "n"),
        "layers": LAYER_COLUMNS,
        "steering": (
            "direction", "strength", *_SHIFT, *_EXCESS, *_FLIP, "n_flip", *_ENDS, "n", "change", "change_low", "change_high",
        ),
        "questions": ("question", "prompt", "group", "right", "stated", "chosen", "followed", "shift", "excess"),
    }  # fmt: skip
    WORDS: ClassVar[frozenset[str]] = frozenset(
        {"kind", "wording", "stated", "against", "format", "informative", "line", "direction"}
        | {"prompt", "group", "right", "chosen"}
    )

    @property
    def informative(self) -> bool:
        """Whether the accuracy without an opinion lies above chance."""
        return bool(self.values["informative"])

    @property
    def verdict(self) -> str:
        """sycophantic, repeats, unmoved, contrary, or not informative."""
        return page.verdict(self)

    def summary(self) -> str:
        return page.summary(self)

    def title(self) -> str:
        return f"Sycophancy: {self.card.get('model', 'a model')}"

    def sections(self) -> list[Section]:
        return page.sections(self)

    def plot(self, name: str | None = None) -> Chart:
        """Charts: shifts (the main one), accuracies, layers, steering."""
        return page.plot(self, name)


def sycophancy_report(
    model: HookedTransformer,
    questions: Sequence[Question] | Any,
    *,
    wordings: Sequence[Wording] | Any = None,
    n_questions: int | Any = None,
    chat: bool | Any = False,
    layers: bool = True,
    vector: Any = None,
    strengths: Sequence[float] | Any = STRENGTHS,
    n_random: int | Any = N_RANDOM,
    out: str | os.PathLike[str] | Any = None,
    engine: Any = "local",
    resume: bool = True,
    replace: bool = False,
    progress: Callable[[int, int], Any] | None = None,
    seed: int | Any = 0,
    batch_size: int | Any = 32,
) -> SycophancyReport:
    """Ask the same questions without an opinion, with the right one, with a wrong one, and with a mere mention.

    Args:
        model: a decoder with a tokenizer, without hooks.
        questions: multiple choice with groups, for example `interp.load_questions("questions")`.
        wordings: `Wording`s, at least an opinion and a mention; None for four opinions, two mentions, a third person.
        n_questions: so many of them, drawn by the seed whatever their order; None for all.
        chat: ask in the model's chat template; None where it has one.
        layers: read the logit lens.
        vector: a `SteeringVector`, for example of `sycophancy_vector`, to steer with.
        strengths: in typical norms of its site; negative ones steer against it.
        n_random: random directions of the same norm at each strength.
        out: a folder that keeps pieces, report and page; the same call goes on where it was stopped.
        engine: "local", "ray", or a `RayEngine`.
        resume, replace: as in `interp.behavior.pieces.in_folder`.
        progress: called with (pieces done, in all).
        seed: of the drawn questions, the stated wrong options, random directions and intervals.
        batch_size: questions in a pass.

    Raises:
        ValueError: questions without groups, with fewer than two or equal options; wordings without the field {option}; a
            vector of another model or fitted on groups of these questions; an encoder; NaN in the model.
    """
    refuse_encoder(model.cfg, "an answer to a question")
    check_whole(1, batch_size=batch_size)
    check_whole(seed=seed)
    chosen, chat = checked_wordings(wordings), uses_chat(model, chat)
    asked = checked_questions(questions, n_questions, seed)
    plan = None if vector is None else steer_plan(model, vector, strengths, n_random, asked, chosen, seed)
    items = [item_of(model, question, chosen, chat, seed) for question in asked]
    job = {
        "wordings": [[each.name, each.kind, each.text] for each in chosen], "chat": chat, "layers": layers, "seed": seed,
        "batch_size": batch_size, "steering": None if plan is None else [[each[1], each[2]] for each in plan.settings],
        "vector": None if plan is None else artifact.hash_json(plan.vector.to_dict()),
    }  # fmt: skip

    def make(folder: JobFolder | None) -> SycophancyReport:
        return _made(model, asked, items, chosen, plan, job, folder, engine, progress)

    inputs = [items, [question.group for question in asked]]
    return in_folder(out, SycophancyReport, job, inputs, model, make, resume=resume, replace=replace)


def _made(
    model: HookedTransformer, asked: list[Question], items: list[dict[str, Any]], wordings: tuple[Wording, ...],
    plan: SteerPlan | None, job: dict[str, Any], folder: JobFolder | None, engine: Any,
    progress: Callable[[int, int], Any] | None,
) -> SycophancyReport:  # fmt: skip
    conditions = conditions_of(wordings)
    parts = divided("questions", items, SIZE)
    pieces = [Piece(part.name, {"items": part.inputs}) for part in parts]
    named = [] if plan is None else [name for name, _, _ in plan.settings]
    steered = [Piece(f"{name} {part.name}", {"items": part.inputs, "steer": name}) for name in named for part in parts]
    most = max(len(item["options"]) for item in items)
    lines = [place for place, (_, stated) in enumerate(conditions) if stated != "right"] if job["layers"] else []
    settings: dict[str, Any] = {"batch_size": job["batch_size"], "most_options": most, "lens": lines}
    settings["letters"] = lettered(most) and not job["chat"]
    total = len(pieces) + len(steered)

    def told(before: int) -> Callable[[int, int], Any]:
        return lambda done, _n: None if progress is None else progress(before + done, total)

    shared = {"folder": folder, "engine": engine}
    found = run_pieces(model, score_piece, settings, pieces, decides=settings, progress=told(0), **shared)
    arrays = {name: np.concatenate([arrays[name] for arrays, _ in found]) for name in found[0][0]}
    scores = _scores(asked, items, conditions, arrays["logprobs"], job["seed"])
    steering = pd.DataFrame(columns=pd.Index(SycophancyReport.TABLES["steering"]))
    if plan is not None:
        some = steered_conditions(conditions, plan, wordings)
        changed = {**settings, "lens": [], "letters": False, "conditions": some, "steers": plan.steers}
        decides = {**changed, "steers": [job["vector"], job["steering"], job["seed"]]}
        got = run_pieces(
            model, score_piece, changed, steered, decides=decides, progress=told(len(pieces)), **shared
        )  # fmt: skip
        n = len(parts)
        joined = [np.concatenate([a["logprobs"] for a, _ in got[i : i + n]]) for i in range(0, len(got), n)]
        base = restricted(scores, some)
        steering = steering_table(base, [restricted(scores, some, each) for each in joined], plan, wordings)
    return _report(model, asked, scores, arrays, wordings, plan, steering, job)


def _scores(
    asked: Sequence[Question], items: Sequence[Mapping[str, Any]], conditions: Sequence[tuple[str, str]],
    logprobs: np.ndarray, seed: int,
) -> Scores:  # fmt: skip
    groups = pd.factorize(pd.Series([str(question.group) for question in asked]))[0]
    answer, stated = (np.array([item[name] for item in items]) for name in ("answer", "stated"))
    n_options = np.array([len(item["options"]) for item in items])
    return Scores(logprobs, n_options, answer, stated, groups, list(conditions), seed)


def _report(
    model: HookedTransformer, asked: list[Question], scores: Scores, arrays: dict[str, np.ndarray],
    wordings: tuple[Wording, ...], plan: SteerPlan | None, steering: pd.DataFrame, job: Mapping[str, Any],
) -> SycophancyReport:  # fmt: skip
    formats = formats_table(scores, arrays["n_tokens"], arrays.get("letter_right"))
    layers = pd.DataFrame(columns=pd.Index(LAYER_COLUMNS))
    notes, skipped = [], 0
    if job["layers"]:
        conditions = [each for each in scores.conditions if each[1] != "right"]
        kinds = {each.name: each.kind for each in wordings}
        of_kind = {kind: [i for i, (name, _) in enumerate(conditions) if kinds.get(name) == kind] for kind in KINDS}
        lines = [(NONE, [0]), *((kind, places) for kind, places in of_kind.items() if places)]
        layers = layers_table(arrays["ahead"], lines, scores, arrays["told_apart"])
        skipped = int((~arrays["told_apart"]).sum())
        if skipped:
            notes.append(
                f"{skipped} of {len(asked)} questions are left out of the layers: "
                + (TURNED if model.rope is not None and model.rope.by_length else SAME_START)
            )
    values = {
        "n": len(asked), "n_groups": len(set(scores.groups.tolist())), "chat": job["chat"],
        "informative": bool(formats["informative"].iloc[0]), "chance": float(formats["chance"].iloc[0]),
        "wordings": [{"name": each.name, "kind": each.kind, "text": each.text} for each in wordings],
        "turning": {line: turning_layer(layers, line) for line in (*KINDS, "excess")}, "n_without_lens": skipped,
        "steering": None if plan is None else {"opinion": plan.opinion, "site": plan.vector.site},
    }  # fmt: skip
    tables = {
        "wordings": wordings_table(scores, wordings), "contrasts": contrasts_table(scores, wordings), "formats": formats,
        "layers": layers, "steering": steering, "questions": questions_table(scores, asked, wordings),
    }  # fmt: skip
    tables = {name: table.reindex(columns=pd.Index(SycophancyReport.TABLES[name])) for name, table in tables.items()}
    data = artifact.hash_json([[each.prompt, list(each.options), each.answer, each.group] for each in asked])
    card = artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, seed=job["seed"], data_hash=data)
    return SycophancyReport(tables, values, card, (*notes, *page.cautions(tables, values)))
