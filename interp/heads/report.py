"""Scores, effects, sets and verdicts of all heads in one table.

1. Score every head on repeated random tokens (`head_scores`), and where there are texts on these too.
2. Ablate every head alone (`head_effects`).
3. Take the best-scoring heads whose score is over the null as the set; ablate the set, its parts and random sets. A head
   over the null that is not in the set and has no effect alone is tried with it as well.
4. Say one word about each head (`interp/heads/verdict.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from interp import artifact
from interp.bootstrap import mean_interval
from interp.heads.ablation import Head, Progress, RepeatRun, repeat_run
from interp.heads.effects import effects_of
from interp.heads.patterns import METRICS
from interp.heads.scores import head_scores
from interp.heads.sets import added_to_set, set_effects_of
from interp.heads.verdict import band_end, effect_band, floor_of, head_verdicts, over_null
from interp.model import HookedTransformer
from interp.plot.effects import effect_bars, score_against_effect

KIND = "head report"


@dataclass(frozen=True, eq=False)
class HeadReport:
    """Every head with its scores, its effect and its verdict."""

    frame: pd.DataFrame
    """A line for each head; `head_report` says the columns."""
    set_effect: dict[str, Any] | None
    """The best-scoring heads as a set: `heads`, `effect` with `low` and `high`, `random` (an effect for each random set),
    in nats, and n. None where no score is over its null."""
    losses: dict[str, float]
    """`first_copy` and `second_copy` of the unchanged model, nats."""
    card: dict[str, Any]
    """Model, kind of ablation, period, sequences, BOS, seed."""

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table."""
        return self.frame.copy()

    def of(self, verdict: str) -> pd.DataFrame:
        """The heads with this verdict, the largest effect first."""
        found = self.frame.loc[self.frame["verdict"] == verdict]
        return found.sort_values("effect", ascending=False).reset_index(drop=True)

    def summary(self, named: int = 5) -> str:
        """What a person should know first, in sentences; `named` heads of each kind."""
        first, second = self.losses["first_copy"], self.losses["second_copy"]
        said = [f"The second copy of repeated tokens costs {second:.2f} nats a token, the first {first:.2f}."]
        said += [_set_sentence(self.set_effect)]
        for verdict, words in (
            ("induction", "Induction heads (score over the null, effect alone)"),
            ("redundant", "Redundant ones (score, no effect alone, but the set loses more without them)"),
            ("upstream", "Largest effects that are not induction"),
        ):
            heads = self.of(verdict)
            listed = [_named(line, verdict) for line in heads.head(named).to_dict("records")]
            more = f" and {len(heads) - named} more" if len(heads) > named else ""
            said += [f"{words}: {', '.join(listed) or 'none'}{more}."]
        return "\n".join(said)

    def plot(self) -> alt.LayerChart:
        """Score against effect, a point for each head."""
        return score_against_effect(self.frame)

    def plot_effects(self, top: int = 20) -> alt.LayerChart:
        """The largest effects with their intervals."""
        return effect_bars(self.frame, top=top)

    def save(self, path: str | Path) -> Path:
        """JSON; `load_head_report` reads it."""
        lines = [
            {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in line.items()}
            for line in self.frame.to_dict("records")
        ]
        rest = {"set_effect": self.set_effect, "losses": self.losses, "card": self.card}
        return artifact.write_json(path, {"kind": KIND, "columns": list(self.frame), "heads": lines, **rest})


def load_head_report(path: str | Path) -> HeadReport:
    """Read what `HeadReport.save` wrote."""
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} is not a head report: it has no kind {KIND!r}")
    frame = pd.DataFrame(found["heads"], columns=found["columns"])
    tried = [column for column in frame if str(column).startswith("in_set")]
    return HeadReport(frame.astype(dict.fromkeys(tried, float)), found["set_effect"], found["losses"], found["card"])


def head_report(
    model: HookedTransformer,
    tokens: object = None,
    *,
    period: int | None = None,
    bos: int | bool | None = None,
    texts: list[str] | None = None,
    reference: Any = None,
    kind: str | None = None,
    top: int = 6,
    n_random: int = 20,
    rows: int = 4,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> HeadReport:
    """Score, ablate and name every head.

    The table has `layer`, `head`, `induction` with its interval and null, the other scores, `effect` alone with its
    interval, `in_set` (what the head adds to the loss without the set; missing where it was not tried) with its interval,
    `in_set_band`, `band`, `verdict` and `role`.

    Args:
        model: any loaded causal model.
        tokens, period, bos: the repeated sequences, as in `head_scores`.
        texts: natural text; the reference of means where none is given.
        reference, kind: as in `head_effects`. With neither reference nor texts heads get what they gave on other random
            tokens: the library chooses no text of its own.
        top: most heads of the set.
        n_random: random sets.
        rows: sequences for the effects of single heads, at least 2; sets use all.
        layers: heads of these layers alone, which takes less time; None for all.
        seed: of random tokens, random sets and bootstraps.
        progress: called with (single heads done, heads in all).
    """
    if top < 1:
        raise ValueError(f"top={top}: the set needs at least one head")
    if rows < 2:
        raise ValueError(f"rows={rows}: an interval, and so a verdict, needs at least 2 sequences")
    chosen = range(model.cfg.n_layers) if layers is None else sorted({layer % model.cfg.n_layers for layer in layers})
    reference = texts if reference is None and kind in (None, "mean") else reference
    scores = head_scores(model, tokens, period, bos, seed, texts=texts)
    frame = scores.to_frame().drop(columns=["n", "n_sequences"])
    options: dict[str, Any] = {"period": period, "bos": bos, "kind": kind, "reference": reference, "seed": seed}
    run = repeat_run(model, tokens, **options)
    if run.n_rows < 2:
        raise ValueError("there is one repeated sequence: an interval, and so a verdict, needs at least 2")
    frame = frame.loc[frame["layer"].isin(chosen)].reset_index(drop=True)
    every = list(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))
    singles = effects_of(run.first(rows), every, progress)
    frame = frame.merge(singles.to_frame().drop(columns="n_sequences"), on=["layer", "head"])
    frame, found = _with_set(run, frame, singles.gain, top, n_random, seed)
    frame = frame.join(head_verdicts(frame, singles.gain))
    losses = {"first_copy": float(run.first_losses().mean()), "second_copy": float(run.base_losses().mean())}
    card = artifact.provenance(
        analysis=KIND,
        **run.card,
        n_sequences_alone=len(singles.base),
        top=top,
        n_random=n_random,
        layers=list(chosen),
    )
    return HeadReport(frame.loc[:, _columns(frame)], found, losses, card)


def _with_set(
    run: RepeatRun, frame: pd.DataFrame, gain: float, top: int, n_random: int, seed: int
) -> tuple[pd.DataFrame, dict[str, Any] | None]:
    """The table with what each candidate adds to the set, and the set itself."""
    missing = {"in_set": np.nan, "in_set_low": np.nan, "in_set_high": np.nan}
    scored = frame.loc[over_null(frame)].sort_values("induction", ascending=False)
    if scored.empty:
        return frame.assign(**missing), None
    heads: list[Head] = sorted(_pairs(scored.head(top)))
    effects = set_effects_of(run, heads, n_random, seed)
    tried = effects.to_frame().loc[:, ["layer", "head", *missing]]
    rest = scored.iloc[top:]
    floor = floor_of(gain)
    band = pd.Series(effect_band(frame["layer"].to_numpy(float), frame["effect"].to_numpy(float), floor), frame.index)
    rest = rest.loc[rest["effect"] <= band[rest.index]]
    others = frame.loc[frame["layer"].isin(scored["layer"]) & ~over_null(frame) & (frame["effect"] <= band)]
    controls = others.sample(min(n_random, len(others)), random_state=seed)
    both = pd.concat([rest, controls])
    if len(both):
        added = added_to_set(run, heads, _pairs(both)).numpy()
        low, high = mean_interval(added, seed)
        more = both.loc[:, ["layer", "head"]].assign(in_set=added.mean(1), in_set_low=low, in_set_high=high)
        tried = pd.concat([tried, more], ignore_index=True)
        frame = frame.assign(in_set_band=band_end(added[len(rest) :].mean(1), floor))
    low, high = mean_interval((effects.whole - effects.base)[None].numpy(), seed)
    found = {
        "heads": [list(head) for head in heads], "effect": effects.effect, "low": float(low[0]), "high": float(high[0]),
        "random": effects.random_effects.tolist(), "n_sequences": run.n_rows,
    }  # fmt: skip
    return frame.merge(tried, on=["layer", "head"], how="left"), found


def _pairs(frame: pd.DataFrame) -> list[Head]:
    return list(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))


def _columns(names: Any) -> list[str]:
    """The order of the table: head, verdict, effect, set, scores."""
    first = ["layer", "head", "verdict", "role", "induction", "induction_low", "induction_high", "induction_null"]
    first += [f"{what}{end}" for what in ("effect", "in_set") for end in ("", "_low", "_high")] + ["band"]
    known = list(names)
    others = [metric for metric in METRICS if metric in known and metric not in first]
    return first + others + [name for name in known if name not in {*first, *others}]


def _named(line: dict[Any, Any], verdict: str) -> str:
    """`L16H0 +6.66 (previous token)`."""
    role = f" ({line['role'].replace('_', ' ')})" if verdict == "upstream" and line["role"] else ""
    return f"L{line['layer']}H{line['head']} {line['effect']:+.2f}{role}"


def _set_sentence(found: dict[str, Any] | None) -> str:
    if found is None:
        return "No head's induction score is over its null."
    named = ", ".join(f"L{layer}H{head}" for layer, head in found["heads"])
    effect = f"{found['effect']:+.2f} nats [{found['low']:.2f}, {found['high']:.2f}]"
    said = f"Without the best-scoring heads ({named}) it costs {effect}"
    if not found["random"]:
        return f"{said}; their layers have too few other heads for random sets."
    random = found["random"]
    sets = f"{len(random)} random sets with as many heads in the same layers"
    return f"{said}; without {sets} {min(random):+.2f} to {max(random):+.2f}."
