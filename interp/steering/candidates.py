"""One direction for a behaviour, chosen among mean differences by what it does (Arditi et al. 2024, "Refusal in language
models is mediated by a single direction", arXiv 2406.11717).

1. Divide the prompts by groups into three parts: to *fit*, to *select* and to *test*. Positive prompts show the behaviour,
   negative ones do not.
2. Candidates: at every site and at each of the last positions, the mean of the positive prompts' activations minus that of
   the negative ones', on the fit part.
3. On the select part, for each candidate: the score of the positive prompts with the direction taken out of everything that
   writes to the stream; the score of the negative prompts with the difference added at its own site, at every token; and the
   KL divergence, unsteered against ablated, of the next token after the negative prompts.
4. Refuse candidates that change what they should leave alone (KL), that do not induce the behaviour, or that stand too late
   to be more than the answer itself. Of the rest keep the one whose ablation leaves the lowest score.
5. What the chosen one does is measured on the test part, which chose nothing.

The score is logit(p(T)), T some tokens that begin the behaviour: log p(T) - log(1 - p(T)), at the last position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from interp import artifact
from interp import sites as site_names
from interp.bootstrap import grouped_interval
from interp.hooks import HookContext
from interp.intervene.writes import write_sites
from interp.model import HookedTransformer
from interp.model.vocabulary import token_labels
from interp.probe.inputs import check_whole
from interp.steering.candidate_prompts import PromptParts
from interp.steering.candidate_report import CANDIDATES, FIGURES, CandidateReport, load_candidate_report
from interp.steering.candidate_runs import CandidateRuns, scorer
from interp.steering.rows import typical_of
from interp.steering.vector import SteeringVector

__all__ = ["CandidateReport", "candidate_direction", "load_candidate_report"]

STREAM = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
"""Sites that hold vectors of the stream."""
_NOTHING = 1e-5  # of the means' length: a difference this small is rounding


def candidate_direction(
    model: HookedTransformer,
    positive: Sequence[Any],
    negative: Sequence[Any],
    *,
    target: Any,
    sites: Any = "resid_pre:*",
    positions: Sequence[int] = (-5, -4, -3, -2, -1),
    max_kl: float = 0.1,
    min_induced: float = 0.0,
    max_layer_share: float = 0.8,
    groups: tuple[Sequence[Any], Sequence[Any]] | None = None,
    shares: Sequence[float] = (0.5, 0.25, 0.25),
    batch_size: int | Any = 32,
    seed: int | Any = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CandidateReport:
    """The mean difference whose ablation takes a behaviour away, and whose addition brings it.

    Args:
        model: any model whose stream is a sum of what is written to it.
        positive: prompts that show the behaviour: texts, or conversations (lists of messages), which the model's chat
            template writes. Where a template ends all prompts alike, the last positions are its own tokens.
        negative: prompts that do not.
        target: the tokens that begin the behaviour, as texts or ids; or a function of the logits [row d_vocab] at the last
            position, larger where the behaviour is present.
        sites: candidates' sites, of the stream: resid_pre, resid_mid, resid_post, attn_out, mlp_out.
        positions: from the end, -1 is the last token.
        max_kl: nats; more is refused.
        min_induced: score of the negative prompts with the difference added; less is refused. 0 is even odds.
        max_layer_share: candidates from this share of the layers on are refused without a run.
        groups: what each positive and each negative prompt is about; a group is never divided. None: each text for itself.
        shares: of the groups, to fit, to select and to test.
        batch_size: prompts side by side.
        seed: of the division and of the intervals.
        progress: called with (runs done, runs in all), a run being one prompt with one candidate.

    Raises:
        ValueError: prompts too few to divide, or no longer than the positions; a site that is none of the stream; a target
            of no or several tokens; no candidate that passes (the message names the nearest ones).
    """
    check_whole(1, batch_size=batch_size)
    check_whole(seed=seed)
    score, said = scorer(model, target)
    places = _positions(positions)
    names = _stream_sites(model, sites)
    prompts = PromptParts.of(model, positive, negative, groups, shares, seed)
    means = _means(model, prompts, names, places, batch_size)
    frame = _candidates(means, names, places, max_layer_share * model.cfg.n_layers)
    live = [row for row, reasons in enumerate(frame["refused"]) if not reasons]
    units = _units(means, frame)
    runs = CandidateRuns(model, score, batch_size, progress)
    chosen_on = prompts.part("select")
    runs.expect(len(live) * (len(chosen_on[0]) + 2 * len(chosen_on[1])))
    plain = [float(runs.plain(texts).mean()) for texts in chosen_on]
    if live:
        directions = units[torch.tensor(live)]
        frame.loc[live, "ablated"] = runs.ablated(chosen_on[0], directions)[0].mean(1)
        frame.loc[live, "kl"] = runs.ablated(chosen_on[1], directions)[1].mean(1)
        frame.loc[live, "induced"] = runs.added(chosen_on[1], frame.loc[live], directions).mean(1)
    frame["refused"] = [_refused(row, max_kl, min_induced) for row in frame.to_dict("records")]
    best = _best(frame, plain)
    frame["chosen"] = frame.index == best
    card: dict[str, Any] = {
        "score": said, "sites": [site_names.short_name(name) for name in names], "positions": list(places), "max_kl": max_kl,
        "min_induced": min_induced, "max_layer_share": max_layer_share,
        "unsteered": {"positive": plain[0], "negative": plain[1]}, **prompts.describe(),
        **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, seed=seed),
    }  # fmt: skip
    vector = _vector(model, prompts, frame.loc[best].to_dict(), units[best], card, batch_size)
    return CandidateReport(vector, frame, _figures(runs, prompts, frame.loc[[best]], units[[best]], seed), card)


# -------------------------------------------------------------------------------------------------------------- inputs


def _positions(positions: Sequence[int]) -> tuple[int, ...]:
    found = tuple(positions)
    if not found or len(set(found)) < len(found) or not all(isinstance(p, int) and p < 0 for p in found):
        raise ValueError(f"positions count from the end, each once, such as (-3, -2, -1); got {positions!r}")
    return found


def _stream_sites(model: HookedTransformer, sites: Any) -> list[str]:
    write_sites(model)  # refuses a model whose stream is no sum: nothing could be ablated there
    names = model.expand_sites(sites)
    odd = [name for name in names if site_names.kind_of(name).kind not in STREAM]
    if odd:
        raise ValueError(
            f"{site_names.short_name(odd[0])} is no place of the stream: candidates stand at {', '.join(STREAM)}"
        )
    return names


# ---------------------------------------------------------------------------------------------------------- candidates


@dataclass(frozen=True, eq=False)
class _Means:
    """What stands at the last positions of the fit prompts."""

    mean: dict[str, Float64[Tensor, "2 place d_model"]]
    """Site -> mean of the positive and of the negative prompts."""
    tokens: list[str]
    """At each place the token that all prompts have there, "" where it varies."""


@torch.inference_mode()
def _means(
    model: HookedTransformer, prompts: PromptParts, names: list[str], places: Sequence[int], batch_size: int
) -> _Means:
    """Means of both sides at every site, in one pass over the prompts; only the rows of the places are kept."""
    stop = 1 + max(site_names.layer_of(name) or 0 for name in names)
    sums = {name: torch.zeros(2, len(places), model.cfg.d_model, dtype=torch.float64) for name in names}
    seen: list[Tensor] = []
    for side, texts in enumerate(prompts.part("fit")):
        for start in range(0, len(texts), batch_size):
            tokens = model.tokenize(texts[start : start + batch_size])
            short = tokens.lengths + min(places) <= 0  # the first token is no candidate: its values are of another size
            if bool(short.any()):
                text = texts[start + int(short.int().argmax())]
                raise ValueError(
                    f"position {min(places)} needs prompts of at least {1 - min(places)} tokens; this one is shorter: {text!r}"
                )
            rows = torch.arange(len(tokens), device=tokens.ids.device)[:, None]
            columns = tokens.last[:, None] + 1 + torch.tensor(places, device=tokens.ids.device)
            seen.append(tokens.ids[rows, columns].cpu())

            def pick(value: Tensor, ctx: HookContext, rows=rows, columns=columns, side=side) -> None:
                sums[ctx.name][side] += value[rows, columns].double().sum(0).cpu()

            with model.hooks(dict.fromkeys(names, pick)):
                model(tokens, stop_at_layer=stop)
    counts = torch.tensor([len(texts) for texts in prompts.part("fit")], dtype=torch.float64)[:, None, None]
    ids = torch.cat(seen)
    same = (ids == ids[0]).all(0).tolist()
    labels = token_labels(model, ids[0].tolist())
    return _Means(
        {name: total / counts for name, total in sums.items()}, [t if s else "" for t, s in zip(labels, same)]
    )


def _candidates(means: _Means, names: list[str], places: Sequence[int], first_refused: float) -> pd.DataFrame:
    """A row for each candidate, with what is known without a run."""
    rows = []
    for name in names:
        layer = site_names.layer_of(name)
        assert layer is not None
        positive, negative = means.mean[name]
        for i, position in enumerate(places):
            length = float((positive[i] - negative[i]).norm())
            reasons = ["layer"] if layer >= first_refused else []
            if length <= _NOTHING * float(positive[i].norm() + negative[i].norm()):
                reasons.append("no difference")
            known = {"site": name, "layer": layer, "position": position, "token": means.tokens[i], "length": length}
            rows.append(known | {"refused": ", ".join(reasons), "chosen": False})
    frame = pd.DataFrame(rows, columns=pd.Index(CANDIDATES))
    return frame.astype(dict.fromkeys(("ablated", "induced", "kl"), float))


def _units(means: _Means, frame: pd.DataFrame) -> Float64[Tensor, "candidate d_model"]:
    """Unit directions, in the order of the frame; zeros where there is no difference."""
    differences = torch.cat([means.mean[name][0] - means.mean[name][1] for name in dict.fromkeys(frame["site"])])
    lengths = differences.norm(dim=1, keepdim=True)
    return torch.where(lengths > 0, differences / lengths.clamp_min(1e-300), 0.0)


def _refused(row: Mapping[Any, Any], max_kl: float, min_induced: float) -> str:
    """All the reasons against a candidate."""
    reasons = [row["refused"]] if row["refused"] else []
    if row["kl"] > max_kl:
        reasons.append("kl")
    if row["induced"] < min_induced:
        reasons.append("induced")
    return ", ".join(reasons)


def _best(frame: pd.DataFrame, plain: Sequence[float]) -> int:
    """The row whose ablation leaves the lowest score, of those that pass."""
    rows = frame.to_dict("records")
    passing = [row for row, known in enumerate(rows) if not known["refused"]]
    if passing:
        return min(passing, key=lambda row: (rows[row]["ablated"], rows[row]["kl"], row))
    tried = [row for row in rows if not np.isnan(row["ablated"])]
    if not tried:
        raise ValueError(
            f"none of {len(frame)} candidates could be tried: {', '.join(sorted(set(frame['refused'])))}; give earlier sites, a "
            "larger max_layer_share, or prompts that differ there"
        )
    near = sorted(tried, key=lambda row: (row["refused"].count(","), row["kl"]))[:3]
    lines = [
        f"{site_names.short_name(row['site'])} at {row['position']}: kl {row['kl']:.3f}, induced {row['induced']:+.2f}, "
        f"ablated {row['ablated']:+.2f} (refused: {row['refused']})"
        for row in near
    ]
    raise ValueError(
        f"none of {len(frame)} candidates passes. Unsteered, positive prompts score {plain[0]:+.2f} and negative ones "
        f"{plain[1]:+.2f}. The nearest: {'; '.join(lines)}. Raise max_kl or lower min_induced on purpose, or give more prompts"
    )


# -------------------------------------------------------------------------------------------------------------- result


def _vector(
    model: HookedTransformer,
    prompts: PromptParts,
    row: Mapping[Any, Any],
    unit: Float64[Tensor, " d_model"],
    card: Mapping[str, Any],
    batch_size: int,
) -> SteeringVector:
    """The chosen candidate with the units of its strength, from the fit prompts."""
    positive, negative = prompts.part("fit")
    typical = typical_of([*positive, *negative], model, [row["site"]], batch_size, card["seed"])[row["site"]]
    n = card["n"]["fit"]
    own = {
        "method": "mean difference, chosen by ablation", "position": row["position"], "token": row["token"],
        "tokens": f"position {row['position']}", "n_positive": n[0], "n_negative": n[1], "prompts": card["prompts"],
        **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, seed=card["seed"]),
    }  # fmt: skip
    sd = typical.sd(unit)
    return SteeringVector(unit.float(), row["site"], typical.norm, raw_norm=row["length"], card=own, sd=sd)


def _figures(
    runs: CandidateRuns, prompts: PromptParts, chosen: pd.DataFrame, unit: Float64[Tensor, "1 d_model"], seed: int
) -> pd.DataFrame:
    """What the chosen direction does on the test part."""
    runs.expect(0)
    positive, negative = prompts.part("test")
    plain = {"positive": runs.plain(positive), "negative": runs.plain(negative)}
    ablated = runs.ablated(positive, unit)[0][0]
    added = runs.added(negative, chosen, unit)[0]
    kl = runs.ablated(negative, unit)[1][0]
    measured = [
        ("positive", "none", "score", plain["positive"]),
        ("positive", "ablate", "score", ablated),
        ("positive", "ablate", "change", ablated - plain["positive"]),
        ("negative", "none", "score", plain["negative"]),
        ("negative", "add", "score", added),
        ("negative", "add", "change", added - plain["negative"]),
        ("negative", "ablate", "kl", kl),
    ]
    rows = []
    for side, intervention, measure, values in measured:
        groups = prompts.groups[prompts.side("test", 0 if side == "positive" else 1)]
        low, high = grouped_interval(values, groups, seed)
        low = np.maximum(low, 0.0) if measure == "kl" else low  # no divergence is below 0
        size = len(values), len(np.unique(groups))
        rows.append((side, intervention, measure, float(values.mean()), float(low), float(high), *size))
    return pd.DataFrame(rows, columns=pd.Index(FIGURES))
