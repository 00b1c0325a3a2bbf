"""A prompt seen for the first time: what to look at, in one call.

1. Run it, and settle what is compared: the answer, and the token that it is measured against.
2. Lens, direct attribution, surprise of each token.
3. Exact effects of tokens, attentions, MLPs and heads on the answer's lead (`effects`), and with a corrupted prompt the
   patches that bring the answer back.
4. What the heads that matter look at and write.
5. All of it ranked on one scale (`findings`), after what to beware of (`cautions`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from interp import artifact
from interp.model import HookedTransformer
from interp.scan.cautions import cautions
from interp.scan.effects import part_effects, token_effects
from interp.scan.findings import Scale, rank_findings
from interp.scan.question import Question, ask
from interp.scan.result import ScanReport
from interp.scan.tables import head_table, lens_tables, noted, patches, prediction, shares, token_table
from interp.task import PromptPairs, pair_metric, prompt_pairs

EMPTY = ["part", "component", "layer", "head", "source", "mean", "miss"]


@dataclass(frozen=True)
class Effort:
    """How much is run."""

    heads: int
    """Heads whose exact effect is measured, by share and by estimate each."""
    drawn: int
    """Parts of each kind that are run with all draws."""
    draws: int
    """Random texts."""
    tokens: int
    """Tokens that are exchanged."""
    budget: int
    """Places x tokens of a sweep of patches; beyond it the places are estimated."""


EFFORTS = {
    "quick": Effort(heads=8, drawn=3, draws=4, tokens=12, budget=1500),
    "normal": Effort(heads=20, drawn=8, draws=8, tokens=20, budget=6000),
    "thorough": Effort(heads=80, drawn=20, draws=16, tokens=64, budget=60000),
}


def scan_prompt(
    model: HookedTransformer,
    prompt: Any,
    *,
    answer: Any = None,
    against: Any = None,
    corrupted: Any = None,
    head_scores: bool = True,
    effort: str | Any = "normal",
    seed: int = 0,
    progress: Callable[[str, int, int], object] | None = None,
) -> ScanReport:
    """Lens, attribution, exact effects, heads and uncertainty of one prompt, ranked into what to look at first.

    Args:
        model: any loaded model that predicts the next token. What does not suit it is left out, with the reason.
        prompt: one text, or what `model.tokenize` takes for one (ids for a model without tokenizer).
        answer: the next token to explain: a text of one token (mind the space before a word), or an id. None: the top
            prediction.
        against: in the same way, the token that it is compared with. None: the runner-up.
        corrupted: a prompt with as many tokens that lacks what matters; adds sweeps of patches.
        head_scores: score heads on repeated random tokens (induction and others), which takes a pass over 8 x 129 tokens.
        effort: "quick", "normal" or "thorough": how many heads, draws and tokens are run.
        seed: of the random texts and of the bootstraps.
        progress: fn(step, runs done, runs in all).

    Raises:
        ValueError: an encoder, several prompts, more than 256 tokens, an answer that is no single token, a corrupted prompt
            that does not align or leaves the lead as it is.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort={effort!r} is unknown; choose from {', '.join(EFFORTS)}")
    size, notes = EFFORTS[effort], []
    question = ask(model, prompt, answer, against)
    pairs = None if corrupted is None else _pairs(question, prompt, corrupted)

    def tell(step: str) -> Callable[[int, int], object]:
        return lambda done, total: progress(step, done, total) if progress is not None else None

    said = prediction(question)
    lens, grid, settle = lens_tables(question)
    direct, sources = _direct(question, notes)
    exchanged = token_effects(question, tokens=size.tokens, draws=size.draws, seed=seed, progress=tell("tokens"))
    parts = part_effects(
        question, direct, heads=size.heads, drawn=size.drawn, draws=size.draws, seed=seed, progress=tell("parts")
    )
    heads = head_table(question, parts, direct, scored=head_scores, seed=seed, notes=notes)
    tokens = token_table(question, exchanged)
    patched = {} if pairs is None else patches(question, pairs, budget=size.budget, seed=seed, notes=notes)
    scale = Scale(question.difference, question.read(question.answer), question.read(question.against))
    if len(exchanged) < len(question.labels):
        notes.append(f"{len(exchanged)} of {len(question.labels)} tokens were exchanged, those of the largest estimate")
    findings = rank_findings(
        scale, parts=parts, heads=heads, tokens=tokens, lens=lens, settle=settle, direct=direct, patched=patched
    )
    return ScanReport(
        findings=findings, warnings=tuple(cautions(question, said, heads)), notes=tuple(notes), prediction=said, lens=lens,
        lens_grid=grid, direct=direct, sources=sources, parts=parts, heads=heads, tokens=tokens, patching=patched,
        card=_card(question, prompt, pairs, direct, settle, effort=effort, seed=seed),
    )  # fmt: skip


def _pairs(question: Question, prompt: Any, corrupted: Any) -> PromptPairs:
    """Clean and corrupted prompt, checked: they align, differ, and differ in the lead."""
    model = question.model
    other = model.tokenize(corrupted)
    if len(other) != 1:
        raise ValueError(f"corrupted= is one prompt, got {len(other)}")
    side = corrupted if isinstance(corrupted, str) else other
    pairs = prompt_pairs(
        model, prompt if isinstance(prompt, str) else question.base.tokens, side, question.answer, question.against
    )
    if not bool(pairs.differs.any()):
        raise ValueError("corrupted= is the prompt itself: change what the answer hangs on")
    _ = pair_metric(model, pairs).gap
    return pairs


def _direct(question: Question, notes: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Shares of whole parts and of heads, and of heads by source; both empty where the logits are no sum."""
    whole = noted(notes, "direct attribution", lambda: shares(question, "component"))
    if whole is None:
        return pd.DataFrame(columns=EMPTY), pd.DataFrame(columns=["layer", "head", "source", "token", "mean"])
    if question.model.cfg.final_softcap is not None:
        notes.append("Direct shares are of the logits before the soft-cap; effects are of those after it")
    heads = shares(question, "head")
    sources = shares(question, "source")
    sources = sources.loc[sources["source"] >= 0, ["layer", "head", "source", "mean"]].reset_index(drop=True)
    order = heads.loc[heads["head"] >= 0].sort_values("mean", key=abs, ascending=False, kind="stable").head(40)
    kept = set(zip(order["layer"], order["head"]))
    sources = sources.loc[[place in kept for place in zip(sources["layer"], sources["head"])]].reset_index(drop=True)
    sources["token"] = [question.labels[pos] for pos in sources["source"]]
    direct = pd.concat([whole, heads.loc[heads["head"] >= 0]], ignore_index=True)
    return direct, sources


def _card(question: Question, prompt: Any, pairs: PromptPairs | None, direct: pd.DataFrame, settle: int, *, effort: str,
          seed: int) -> dict[str, Any]:  # fmt: skip
    model, ids = question.model, question.base.tokens.row(0)
    p = question.logits.softmax(-1)
    text = (
        "".join(view.text for view in model.tokenizer.views(ids))
        if model.tokenizer is not None
        else " ".join(map(str, ids))
    )
    miss = max([0.0, *direct["miss"].tolist()])
    return artifact.provenance(
        analysis="scan", model=model.cfg.name, fingerprint=model.fingerprint,
        prompt_input=prompt if isinstance(prompt, str) else ids, ids=ids, text=text,
        answer=question.read(question.answer), answer_id=question.answer, against=question.read(question.against),
        against_id=question.against, chosen=list(question.chosen), logit_difference=question.difference,
        entropy=float(torch.special.entr(p).sum()), settle_layer=settle, direct_miss=miss,
        corrupted_text=None if pairs is None else pairs.corrupted_texts[0], effort=effort, draws=EFFORTS[effort].draws,
        n_tokens=len(ids), n_prompts=1, seed=seed,
    )  # fmt: skip
