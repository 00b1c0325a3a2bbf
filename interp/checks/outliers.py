"""Massive activations (Sun et al. 2024, arXiv 2402.17762): where they are, how large, and what statistics leave out.

A token whose norm is over ten times the typical one decides every mean, variance and principal component alone. The
*typical norm* is the median over tokens that are neither special nor first in their text; `interp.store.stats` has the
one rule, by which steering strength, mean ablation and autoencoders leave the others out.
"""

import pandas as pd
import torch

from interp.checks.patient import TEXT, Patient, skipped
from interp.checks.report import MASSIVE, Check
from interp.intervene import special_tokens, typical_rows
from interp.sites import short_name
from interp.store.stats import OUTLIER_FACTOR
from interp.tokens import Tokens

N_DIMENSIONS = 3
COLUMNS = pd.Index(MASSIVE)


def massive(patient: Patient) -> tuple[Check, pd.DataFrame]:
    """The check line, and a row for each layer and token whose norm is over ten times the layer's typical norm."""
    model = patient.model
    tokens = _texts(patient)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, sites="resid_post:*", stop_at_layer=model.cfg.n_layers)
    special = special_tokens(model, tokens.ids)
    if not bool((tokens.mask & (tokens.positions > 0) & ~special).any()):
        why = "the texts hold nothing but first and special tokens"
        return skipped("massive activations", _compared(int(tokens.mask.sum())), why), pd.DataFrame(columns=COLUMNS)
    rows, kept, total = [], [], int(tokens.mask.sum())
    for layer in range(model.cfg.n_layers):
        stream = cache["resid_post", layer].float()
        typical = typical_rows(stream, tokens.mask, special)
        kept.append(len(typical))
        norm = float(typical.norm(dim=-1).median())
        norms = stream.norm(dim=-1).masked_fill(~tokens.mask, 0.0)
        for text, column in (norms > OUTLIER_FACTOR * norm).nonzero().tolist():
            row = stream[text, column]
            top = row.abs().topk(min(N_DIMENSIONS, len(row)))
            share = float(top.values[0] ** 2 / row.pow(2).sum())
            size = float(norms[text, column])
            rows.append(
                (short_name(f"blocks.{layer}.hook_resid_post"), layer, text, int(tokens.positions[text, column]),
                 _label(patient, int(tokens.ids[text, column])), size, norm, size / norm, top.indices.tolist(), share)
            )  # fmt: skip
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return Check(
        "massive activations", _compared(total), "info", float(len(frame)), None, _note(frame, kept, total)
    ), frame


def _texts(patient: Patient) -> Tokens:
    """The paragraph's first half and second half, or random ids."""
    tokenizer, n_ctx = patient.model.tokenizer, patient.model.cfg.n_ctx
    if tokenizer is None:
        return patient.padded([patient.random_ids(min(48, n_ctx), stream) for stream in (5, 6)], "right")
    ids = torch.tensor(tokenizer.encode(TEXT), device=patient.model.device)
    half = len(ids) // 2
    return patient.padded([ids[:half][: min(64, n_ctx)], ids[half:][: min(64, n_ctx)]], "right")


def _compared(total: int) -> str:
    return (
        f"number of norms over {OUTLIER_FACTOR:.0f} times their layer's typical norm, of {total} tokens in every layer"
    )


def _note(frame: pd.DataFrame, kept: list[int], total: int) -> str:
    if not len(frame):
        return f"none; statistics leave out {total - min(kept)} of {total} tokens (special, or first in their text)"
    layers = sorted(set(frame["layer"]))
    largest = frame.loc[frame["ratio"].idxmax()]
    places = ", ".join(map(str, sorted(set(frame["pos"]))[:6]))
    dimensions = frame["dimensions"].map(lambda found: found[0]).value_counts().index[:3].tolist()
    return (
        f"layers {layers[0]}-{layers[-1]}, positions {places}, dimensions {', '.join(map(str, dimensions))}; largest at "
        f"{largest['site']}, position {largest['pos']}: norm {largest['norm']:.0f}, {largest['ratio']:.0f} times the typical "
        f"{largest['typical_norm']:.0f}, {largest['share']:.0%} of it in one dimension; statistics leave out up to "
        f"{total - min(kept)} of {total} tokens (special, first in their text, or outliers)"
    )


def _label(patient: Patient, token: int) -> str:
    tokenizer = patient.model.tokenizer
    return tokenizer.views([token])[0].display if tokenizer is not None else str(token)
