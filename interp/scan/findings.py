"""What a person should look at first: every table of a scan as sentences on one scale.

The scale is the share of the answer's lead: an exact effect over the size of the logit difference of the whole model, at
least one logit, so that a near tie does not make everything large. Every part is ranked by what its mean ablation costs,
which is run for all of them: draws are run for the strongest alone, and their interval, which says how far the effect hangs
on what the part is replaced by, stands beside the finding and does not move it. Tokens have no mean; the mean over their
draws is the same quantity. Two things lower an effect:

- a change that meets all tokens alike (`specific` under 2) says that the part is needed for anything at all, as the first
  MLP is, and not that it tells these two tokens apart;
- a layer's attention whose effect one of its heads has alone is that head's finding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from interp.scan.fields import each

SPECIFIC = 2.0
"""From here on a change is of these two tokens: two tokens drawn at random rarely move apart as far."""
LEAST = 0.02
"""Importance under which nothing is said."""
ALONE = 0.8
"""Share of its layer's attention that makes a head stand for it."""
LOOK = 0.1
"""Attention from which it is said where a head looks."""
COLUMNS = ["rank", "importance", "kind", "place", "finding", "value", "low", "high", "n", "unit", "check", "look"]


@dataclass(frozen=True)
class Scale:
    """What importance is measured by, and the names of both tokens."""

    difference: float
    """Logit difference of the whole model."""
    answer: str
    """As a person reads it."""
    against: str
    """In the same way."""

    @property
    def size(self) -> float:
        """Logits that are an importance of 1."""
        return max(1.0, abs(self.difference))

    def of(self, value: float, specific: float) -> float:
        """Importance of an effect."""
        return abs(value) / self.size * min(1.0, specific / SPECIFIC) ** 2


Row = dict[str, Any]


def rank_findings(
    scale: Scale,
    *,
    parts: pd.DataFrame,
    heads: pd.DataFrame,
    tokens: pd.DataFrame,
    lens: pd.DataFrame,
    settle: int,
    direct: pd.DataFrame,
    patched: dict[str, pd.DataFrame],
) -> pd.DataFrame:
    """One row for each finding, the most important first: see `COLUMNS`; `value`, `low`, `high` are in `unit`, over `n`
    draws (0: one exact run), `check` says what a second measure gives, `look` is the Python line to go on with."""
    found = [
        *_heads(scale, heads, parts, patched), *_layers(scale, parts, heads), *_tokens(scale, tokens),
        *_lens(lens, settle, scale), *_surprises(tokens), *_apart(scale, parts, heads, direct), *_patches(patched, heads),
    ]  # fmt: skip
    table = pd.DataFrame([row for row in found if row["importance"] >= LEAST], columns=COLUMNS)
    table = table.sort_values("importance", ascending=False, kind="stable", ignore_index=True)
    table["rank"] = np.arange(1, len(table) + 1)
    return table


def _row(kind: str, place: str, importance: float, finding: str, value: float, unit: str, check: str, look: str, *,
         low: float = math.nan, high: float = math.nan, n: int = 0) -> Row:  # fmt: skip
    return {
        "importance": float(importance), "kind": kind, "place": place, "finding": finding, "value": float(value),
        "low": float(low), "high": float(high), "n": int(n), "unit": unit, "check": check, "look": look,
    }  # fmt: skip


def _moved(scale: Scale, value: float) -> str:
    """What the lead does without a part."""
    lead = f"the lead of “{scale.answer}” over “{scale.against}”"
    return f"{lead} {'falls' if value > 0 else 'grows'} by {abs(value):.2f} logits"


def _ablated(part: Any) -> str:
    """Which ablation the effect of a part is of."""
    if part.n == 0:
        return "mean ablation, one run"
    return f"{_drawn(part, 'random texts')}; mean ablation {part.mean_ablated:+.2f}"


def _drawn(row: Any, what: str) -> str:
    """How many draws an effect is the mean of, and whether they agree on its sign."""
    return f"mean of {row.n} {what} (resample ablation)" + (", interval holds 0" if row.low <= 0 <= row.high else "")


def _specific(value: float) -> str:
    return f"{value:.1f} times what two random tokens move apart" + ("" if value >= SPECIFIC else ": not specific")


def _heads(scale: Scale, heads: pd.DataFrame, parts: pd.DataFrame, patched: dict[str, pd.DataFrame]) -> Iterator[Row]:
    back = {(h.layer, h.head): h.effect for h in each(patched["heads"])} if "heads" in patched else {}
    for head in each(heads):
        importance = scale.of(head.mean_ablated, head.mean_specific)
        looks = (
            f" From the last token it looks at “{head.look_token}” (token {head.look_pos}) with {head.look_weight:.2f}."
        )
        looks = looks if head.look_weight >= LOOK else ""
        role = _role(head)
        check = f"{_ablated(head)}; {_specific(head.specific)}"
        check += "" if math.isnan(head.share) else f"; writes {head.share:+.2f} logits directly"
        whole = parts.loc[(parts["kind"] == "attn") & (parts["layer"] == head.layer), "effect"]
        check += f"; all attention of layer {head.layer} {float(whole.iloc[0]):+.2f}" if len(whole) else ""
        place = (head.layer, head.head)
        check += f"; of the clean run alone it brings back {back[place]:.0%} of the gap" if place in back else ""
        yield _row(
            "head", head.part, importance, f"Without head {head.part}{role}, {_moved(scale, head.effect)}.{looks}",
            head.effect, "logits", check,
            f'interp.path_patch(model, pairs, receivers="logits", senders=["z:{head.layer}.{head.head}"]).top()',
            low=head.low, high=head.high, n=head.n,
        )  # fmt: skip


def _role(head: Any) -> str:
    """What the head is by its scores on repeated random tokens."""
    named = {"induction": "an induction head", "previous_token": "a previous-token head",
             "duplicate_token": "a duplicate-token head"}  # fmt: skip
    scores = {name: getattr(head, name, 0.0) for name in named}
    best = max(scores, key=lambda name: scores[name])
    return f" ({named[best]}, score {scores[best]:.2f})" if scores[best] >= 0.3 else ""


def _layers(scale: Scale, parts: pd.DataFrame, heads: pd.DataFrame) -> Iterator[Row]:
    for part in each(parts.loc[parts["kind"] != "head"]):
        same = heads.loc[heads["layer"] == part.layer, "effect"] if part.kind == "attn" else heads["effect"].head(0)
        if part.kind == "attn" and len(same) and float((same * np.sign(part.effect)).max()) >= ALONE * abs(part.effect):
            continue
        words = f"the {'MLP' if part.kind == 'mlp' else 'attention'} of layer {part.layer}"
        look = f'interp.patch_sweep(model, pairs, site="{"mlp_out" if part.kind == "mlp" else "attn_out"}").plot()'
        if part.kind == "mlp":
            look = 'interp.direct_logit_attribution(model, prompt, answer, against, by="neuron").top()'
        yield _row(
            part.kind, part.part, scale.of(part.mean_ablated, part.mean_specific),
            f"Without {words}, {_moved(scale, part.effect)}.", part.effect, "logits",
            f"{_ablated(part)}; {_specific(part.specific)}; KL {part.kl:.2f} nats", look, low=part.low, high=part.high, n=part.n,
        )  # fmt: skip


def _tokens(scale: Scale, tokens: pd.DataFrame) -> Iterator[Row]:
    for token in each(tokens.dropna(subset=["effect"])):
        yield _row(
            "token", f"token {token.pos}", scale.of(token.effect, token.specific),
            f"With another token in the place of “{token.token}” (token {token.pos}), {_moved(scale, token.effect)}.",
            token.effect, "logits",
            f"{_drawn(token, 'random tokens')}; {_specific(token.specific)}; KL {token.kl:.2f} nats"
            f"{_FIRST if token.pos == 0 else ''}",
            f"interp.causal_trace(model, prompt, ({token.pos}, {token.pos + 1}), answer).plot()",
            low=token.low, high=token.high, n=token.n,
        )  # fmt: skip


_FIRST = "; heads rest on the first token, so any other one there changes much"


def _lens(lens: pd.DataFrame, settle: int, scale: Scale) -> Iterator[Row]:
    gains = np.diff(lens["p_answer"].to_numpy())
    if not len(gains):
        return
    best = int(gains.argmax())
    layer, before, after = (
        int(lens["layer"].iloc[best + 1]),
        lens["p_answer"].iloc[best],
        lens["p_answer"].iloc[best + 1],
    )
    top = str(lens["top1"].iloc[-1])
    yield _row(
        "lens", f"L{layer}", 0.5 * float(gains[best]),
        f"Read through the logit lens, “{scale.answer}” gains most in layer {layer}: from {before:.3f} to {after:.3f}.",
        float(gains[best]), "probability",
        f"from layer {settle} on the top prediction stays “{top}”; the lens is rough before the last layers",
        'interp.logit_lens(model, prompt, answer=[answer, against], sites="all").plot()',
    )  # fmt: skip


def _surprises(tokens: pd.DataFrame) -> Iterator[Row]:
    for token in each(tokens.dropna(subset=["logprob"]).nsmallest(3, "logprob")):
        nats = -float(token.logprob)
        if nats < 6:
            continue
        yield _row(
            "surprise", f"token {token.pos}", min(0.3, nats / 120),
            f"The model did not expect “{token.token}” (token {token.pos}): it expected “{token.expected}”.",
            nats, "nats", f"rank {int(token.rank):,} of the prediction before it",
            "interp.token_uncertainty(model, prompt).to_frame()",
        )  # fmt: skip


def _apart(scale: Scale, parts: pd.DataFrame, heads: pd.DataFrame, direct: pd.DataFrame) -> Iterator[Row]:
    """Parts whose direct share and exact effect differ by much: their work goes through others, or others make up for it."""
    if direct.empty:
        return
    shares = dict(zip(direct["part"], direct["mean"]))
    whole = parts.loc[parts["kind"] != "head"]
    names = {"attn": "attn", "mlp": "mlp"}
    rows = [(p.part, p, shares.get(f"L{p.layer} {names[str(p.kind)]}", math.nan)) for p in each(whole)]
    rows += [(h.part, h, h.share) for h in each(heads)]
    for name, part, share in rows:
        gap = part.effect - share
        clear = not math.isnan(gap) and (math.isnan(part.low) or not part.low <= share <= part.high)
        if not clear or abs(gap) < max(0.5, 0.25 * scale.size):
            continue
        if abs(share) > abs(part.effect):
            said = f"{name} writes {share:+.2f} logits directly, but without it the lead changes by {-part.effect:+.2f} only"
            why = "later parts make up for it, or it says the same on any text"
        elif part.specific < SPECIFIC:
            continue  # that everything needs it was said
        else:
            said = f"Without {name} the lead changes by {-part.effect:+.2f} logits, of which it writes {share:+.2f} directly"
            why = "its work goes through later layers"
        yield _row(
            "indirect", name, 0.5 * scale.of(part.mean_ablated - share, part.mean_specific), f"{said}: {why}.", gap,
            "logits", f"{_ablated(part)}; {_specific(part.specific)}",
            'interp.path_patch(model, pairs, receivers="logits", senders="all").top()',
        )  # fmt: skip


def _patches(patched: dict[str, pd.DataFrame], heads: pd.DataFrame) -> Iterator[Row]:
    agreement = dict(zip(patched["agreement"]["sweep"], patched["agreement"]["rank_agreement"])) if patched else {}
    if "stream" in patched:
        sweep = patched["stream"]
        last = sweep["pos"].max()
        for pos, group in sweep.loc[sweep["exact"]].groupby("pos"):
            best = group.loc[group["effect"].idxmax()]
            ends = group.loc[group["effect"] >= 0.5, "layer"]
            if pos == last or not len(ends):
                continue
            yield _row(
                "patch", f"token {pos}", min(1.0, float(best["effect"])),
                f"The clean stream at “{best['token']}” (token {pos}) brings back {best['effect']:.0%} of the gap to the "
                f"corrupted prompt, and still half of it up to layer {int(ends.max())}: then what matters has moved on.",
                float(best["effect"]), "of the gap", _agrees(agreement.get("stream")),
                'interp.patch_sweep(model, pairs, site="resid_pre").plot()',
            )  # fmt: skip
        end = sweep.loc[(sweep["pos"] == last) & sweep["exact"] & (sweep["effect"] >= 0.5), "layer"]
        if len(end):
            layer = int(end.min())
            yield _row(
                "patch", f"L{layer}", 0.9,
                f"At the last token half of the gap is there before layer {layer}: what the answer needs has arrived by then.",
                layer, "layer", _agrees(agreement.get("stream")), 'interp.patch_sweep(model, pairs, site="attn_out").plot()',
            )  # fmt: skip
    if "heads" in patched:
        known = set(zip(heads["layer"], heads["head"]))  # these have a finding of their own, which says it
        sweep = patched["heads"].loc[patched["heads"]["exact"]]
        sweep = sweep.assign(size=sweep["effect"].abs()).nlargest(5, "size")
        for head in each(sweep.loc[[place not in known for place in zip(sweep["layer"], sweep["head"])]]):
            yield _row(
                "patch", f"L{head.layer}H{head.head}", min(1.0, head.size),
                f"Head L{head.layer}H{head.head} of the clean run alone {'brings back' if head.effect > 0 else 'takes away'} "
                f"{head.size:.0%} of the gap to the corrupted prompt.",
                head.effect, "of the gap", _agrees(agreement.get("heads")),
                f'interp.path_patch(model, pairs, receivers="logits", senders=["z:{head.layer}.{head.head}"]).top()',
            )  # fmt: skip


def _agrees(agreement: Any) -> str:
    if agreement is None or math.isnan(agreement):
        return "exact run"
    return f"exact run; the gradient's estimates rank places alike to {agreement:.2f} (Spearman)"
