"""The tables of a scan that other analyses make: prediction, lens, attribution, tokens, heads, patches.

An analysis that does not suit the model gives no table, and its reason is a note: a scan says what it left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.attribution import direct_logit_attribution
from interp.heads import head_scores
from interp.heads.folded import logit_products
from interp.lens import logit_lens
from interp.model.named_weights import head_output
from interp.model.norm import Norm
from interp.patching import PatchResult, attribution_patch, patch_sweep
from interp.scan.fields import each
from interp.scan.question import Question
from interp.task import PromptPairs
from interp.uncertainty import token_uncertainty

SCORES = ("induction", "previous_token", "duplicate_token", "first_token")
"""Scores of a head that are shown."""
LOOKS = 3
"""Tokens that a head looks at most."""
WRITES = 6
"""Tokens that a head writes."""
TELLING = 0.1
"""Least share, in logits, from which they are named."""
HEADS = 15
"""Most heads for which they are."""


def noted(notes: list[str], what: str, make: Callable[[], Any]) -> Any:
    """What `make` gives; where the analysis refuses the model, None, and the reason among the notes."""
    try:
        return make()
    except ValueError as error:
        notes.append(f"Left out: {what}. The reason: {error}")
        return None


def prediction(question: Question, k: int = 10) -> pd.DataFrame:
    """The k top next tokens, and the two that are compared: token, id, probability, logit, rank (0 is the top), role."""
    p = question.logits.softmax(-1)
    roles = {question.answer: "answer", question.against: "against"}
    ids = list(dict.fromkeys([*question.logits.topk(min(k, len(p))).indices.tolist(), *roles]))
    table = {
        "token": [question.read(i) for i in ids],
        "id": ids,
        "probability": [float(p[i]) for i in ids],
        "logit": [float(question.logits[i]) for i in ids],
        "rank": [int((question.logits > question.logits[i]).sum()) for i in ids],
        "role": [roles.get(i, "") for i in ids],
    }
    return pd.DataFrame(table).sort_values("rank", kind="stable", ignore_index=True)


def lens_tables(question: Question) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """By layer at the last token; by layer and token; the layer from which the last token's top prediction stays.

    The first has layer, top1, p_top1, entropy, p_answer, rank_answer, p_against, rank_against.
    """
    result = logit_lens(question.model, question.base.tokens, answer=[question.answer, question.against])
    grid, last = result.to_frame(), len(question.labels) - 1
    here = grid.loc[grid["pos"] == last, ["layer", "top1", "p_top1", "entropy"]].reset_index(drop=True)
    followed = result.followed()
    followed = followed.loc[followed["pos"] == last]
    for name, token in (("answer", question.answer), ("against", question.against)):
        mine = followed.loc[followed["answer_id"] == token]
        here[f"p_{name}"], here[f"rank_{name}"] = mine["probability"].to_numpy(), mine["rank"].to_numpy()
    kept = ["layer", "pos", "token", "top1", "p_top1", "entropy", "kl", "rank", "settle_layer"]
    return here, grid.loc[:, kept], int(result.settle_layer[last])


def shares(question: Question, by: str) -> pd.DataFrame:
    """Direct logit attribution of the difference: part, component, layer, head, source, mean (logits), without intervals
    (one prompt has none)."""
    found = direct_logit_attribution(question.model, question.base.tokens, question.answer, question.against, by=by)
    columns = ["part", "component", "layer", "head", "source", "mean"]
    return found.to_frame().loc[:, columns].assign(miss=float(found.residual.abs().max()))


def token_table(question: Question, effects: pd.DataFrame) -> pd.DataFrame:
    """What each token costs and how surprising it was: pos, token, effect, low, high, n, kl, specific, logprob, entropy,
    rank (of this token in the prediction before it), expected. NaN where a token was not exchanged, or not predicted."""
    frame = token_uncertainty(question.model, question.base.tokens).to_frame()
    table = pd.DataFrame({"pos": frame["pos"], "token": question.labels})
    table = table.merge(effects.drop(columns="token"), on="pos", how="left")
    table["n"] = table["n"].fillna(0).astype(int)
    table["logprob"] = frame["logprob"].to_numpy(dtype=float, na_value=np.nan)
    table["entropy"] = frame["entropy"].astype(float)
    # The row of a token predicts the next one.
    ranks = frame["rank"].to_numpy(dtype=float, na_value=np.nan)
    table["rank"] = [np.nan, *ranks[:-1].tolist()]
    table["expected"] = ["", *frame["top1"].tolist()[:-1]]
    table.loc[table["rank"] == 0, "expected"] = ""  # it was this one
    return table


def head_table(question: Question, parts: pd.DataFrame, direct: pd.DataFrame | None, *, scored: bool,
               seed: int, notes: list[str]) -> pd.DataFrame:  # fmt: skip
    """The heads that were run, with what they are, by size of effect.

    Columns: those of the effects, share (direct), looks_at, look_pos, look_token and look_weight (where the last token looks
    most, past the first), first_weight (its attention to the first), the scores of `interp.head_scores`, and `writes`: the
    tokens whose logits rise (or fall) most by what the head wrote at the last token, of heads whose share is telling.
    """
    heads = parts.loc[parts["kind"] == "head"].sort_values("effect", key=abs, ascending=False, kind="stable")
    heads = heads.reset_index(drop=True)
    by_head = {} if direct is None else {(h.layer, h.head): h.mean for h in each(direct)}
    places: list[tuple[int, int]] = list(zip(heads["layer"].tolist(), heads["head"].tolist()))
    heads["share"] = [by_head.get(place, np.nan) for place in places]
    rows = _last_rows(question, places)
    heads["looks_at"] = [_looks(question, row) for row in rows]
    past = rows[:, 1:] if rows.shape[1] > 1 else rows  # the first token is where heads rest
    best = past.argmax(1) + (rows.shape[1] > 1)
    heads["look_pos"], heads["look_token"] = best, [question.labels[pos] for pos in best]
    heads["look_weight"], heads["first_weight"] = past.max(1), rows[:, 0]
    scores = noted(notes, "scores of heads", lambda: head_scores(question.model, seed=seed)) if scored else None
    if scores is not None:
        for name in SCORES:
            mean = scores.scores[name].mean(-1)
            heads[name] = [float(mean[layer, head]) for layer, head in places]
    written = noted(notes, "what heads write", lambda: _writes(question, heads))
    heads["writes"] = written if written is not None else ""
    return heads


def _last_rows(question: Question, places: Sequence[tuple[int, int]]) -> Float[np.ndarray, "head pos"]:
    """Attention of the last token."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in sorted({layer for layer, _ in places})]
    with torch.no_grad():
        cache = question.model.run_with_cache(question.base.tokens, names)[1]
    rows = [cache[f"blocks.{layer}.attn.hook_pattern"][0, head, -1] for layer, head in places]
    return torch.stack(rows).double().cpu().numpy()


def _looks(question: Question, row: Float[np.ndarray, "pos"]) -> str:
    best = np.argsort(-row, kind="stable")[:LOOKS].tolist()
    return ", ".join(f"{question.labels[pos]} ({pos}) {row[pos]:.2f}" for pos in best if row[pos] >= 0.01)


def _writes(question: Question, heads: pd.DataFrame) -> list[str]:
    """The tokens whose logits rise most by what each head wrote at the last token, or fall where its share is negative; the
    norm behind attention and the final norm's gain are in it. Nothing for heads that hardly write into the lead: theirs are
    no tokens."""
    model = question.model
    if model.cfg.norm_placement == "post_ln":
        raise ValueError("its norms change the stream itself between one head and the next")
    telling = heads.loc[heads["share"].abs() >= TELLING].head(HEADS)
    blocks, written = list(model.iter_blocks()), dict.fromkeys(heads.index.tolist(), "")
    if telling.empty:
        return list(written.values())
    names = [f"blocks.{layer}.attn.hook_z" for layer in sorted(set(telling["layer"]))]
    with torch.no_grad():
        cache = model.run_with_cache(question.base.tokens, names)[1]
        for head in each(telling):
            block = blocks[head.layer]
            row = cache[f"blocks.{head.layer}.attn.hook_z"][0, -1, head.head].float()
            row = row @ head_output(block, model.cfg)[head.head].float()
            row = _behind_norm(row, block.ln1_post)
            sign = 1.0 if head.share > 0 else -1.0
            ids = (sign * logit_products(model, row[None])[0]).topk(min(WRITES, model.cfg.d_vocab)).indices.tolist()
            written[head.Index] = f"{'raises' if sign > 0 else 'lowers'} " + "  ".join(question.read(i) for i in ids)
    return list(written.values())


def _behind_norm(row: Float[torch.Tensor, "d_model"], norm: Norm | None) -> Float[torch.Tensor, "d_model"]:
    """What a norm behind attention makes of a part of it, up to the scale: centred first, then the gain."""
    gain = None if norm is None else norm.multiplier()
    if norm is None or gain is None:
        return row
    return (row - row.mean() if norm.centred else row) * gain.float()


# ---------------------------------------------------------------------------------------------------------- patches


def patches(
    question: Question, pairs: PromptPairs, *, budget: int, seed: int, notes: list[str]
) -> dict[str, pd.DataFrame]:
    """Denoising sweeps: `stream` (layer x position) and `heads` (z), each exact where it fits the budget.

    Each frame has layer, pos or head, token, effect (0 is the corrupted run, 1 the clean one), estimate (by the gradient,
    of an exact sweep) and exact. An `agreement` frame has sweep, n, rank_agreement.
    """
    model, found, agreed = question.model, {}, []
    differs = pairs.differs[0].nonzero()[:, 0]
    n = len(question.labels)
    # In a causal model nothing differs before the first different token.
    positions = list(range(int(differs[0]), n))
    for name, site, places in (
        ("stream", "resid_pre", model.cfg.n_layers * len(positions)),
        ("heads", "z", model.cfg.n_layers * model.cfg.n_heads),
    ):
        if model.missing_site(f"{site}:0") is not None and name == "heads":
            notes.append(f"Patches of heads are left out: {model.missing_site(f'{site}:0')}")
            continue
        some = positions if name == "stream" else None
        if places * n <= budget:
            exact = patch_sweep(model, pairs, site=site, positions=some, seed=seed)
            estimated = attribution_patch(model, pairs, site=site, positions=some, check=0, seed=seed)
            frame = exact.to_frame().assign(estimate=estimated.to_frame()["effect"], exact=True)
            if places >= 3:
                agreed.append((name, places, _agreement(exact, estimated)))
        else:
            estimated = attribution_patch(model, pairs, site=site, positions=some, check=10, seed=seed)
            frame = _with_checked(estimated)
            agreed.append((name, len(frame.loc[frame["exact"]]), estimated.card.get("rank_agreement", np.nan)))
            notes.append(
                f"The sweep of {'the stream' if name == 'stream' else 'heads'} has {places:,} places, too many for this effort: "
                "they are estimated by the gradient, and the strongest are run"
            )
        found[name] = frame.loc[
            :, [c for c in ("layer", "pos", "token", "head", "effect", "estimate", "exact") if c in frame]
        ]
    found["agreement"] = pd.DataFrame(agreed, columns=["sweep", "n", "rank_agreement"])
    return found


def _agreement(exact: PatchResult, estimated: PatchResult) -> float:
    flat = len(set(exact.effect.mean.tolist())) < 2 or len(set(estimated.effect.mean.tolist())) < 2
    return np.nan if flat else exact.agreement(estimated)


def _with_checked(estimated: PatchResult) -> pd.DataFrame:
    """Estimates, with the exact effect in the places where it was measured."""
    frame = estimated.to_frame()
    frame["estimate"], frame["exact"] = frame["effect"], False
    assert estimated.checked is not None
    keys = [c for c in ("layer", "pos", "head") if c in frame]
    measured = {tuple(row[:-1]): row[-1] for row in estimated.checked[[*keys, "exact"]].itertuples(index=False)}
    for i, key in enumerate(frame[keys].itertuples(index=False)):
        if tuple(key) in measured:
            frame.loc[i, ["effect"]], frame.loc[i, ["exact"]] = measured[tuple(key)], True
    return frame
