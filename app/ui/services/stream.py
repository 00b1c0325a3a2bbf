"""The residual stream along a prompt: its length, its turn at each layer, and places where it is massive. And the model."""

import numpy as np
import pandas as pd
import streamlit as st

from interp.lens.places import end_kind
from ui.services.live import checked, engine, token_ids
from ui.services.runs import KEPT

MASSIVE = 10.0
"""Lengths of the stream from this many times the layer's median are called massive."""


def model_facts() -> dict[str, str | int]:
    """Name, sizes, dtype, parameters and fingerprint of the live model; it is loaded for this."""
    return _facts(engine().fingerprint)


def hook_points() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every place that can be read or written (`model.sites`), and the kinds that this model lacks, with the reason."""
    return _hook_points(engine().fingerprint)


def drift(prompt: str, pos: int) -> pd.DataFrame:
    """A row per layer: norm (of the chosen token's stream after it), median (of all tokens), cosine (with the layer before).

    The embedding is layer -1 and has no layer before it.
    """
    norm, cosine, _, _ = _stream(engine().fingerprint, token_ids(prompt))
    return pd.DataFrame(
        {
            "layer": np.arange(-1, len(norm) - 1),
            "norm": norm[:, pos],
            "median": np.median(norm, axis=1),
            "cosine": cosine[:, pos],
        }
    )


def sinks(prompt: str) -> pd.DataFrame:
    """A row per massive position: pos, first and last layer of it, ratio (largest, to the layer's median length), at (that
    layer), dimension and value of the stream's largest entry there. Empty where no position is, or with under 4 tokens."""
    norm, _, dimension, value = _stream(engine().fingerprint, token_ids(prompt))
    columns = ["pos", "first", "last", "ratio", "at", "dimension", "value"]
    if norm.shape[1] < 4:  # a median of three says little of what is usual
        return pd.DataFrame(columns=pd.Index(columns))
    ratio = norm / np.maximum(np.median(norm, axis=1, keepdims=True), 1e-12)
    rows = []
    for pos in np.flatnonzero((ratio >= MASSIVE).any(axis=0)).tolist():
        layers, top = np.flatnonzero(ratio[:, pos] >= MASSIVE), int(ratio[:, pos].argmax())
        rows.append(
            (pos, int(layers[0]) - 1, int(layers[-1]) - 1, float(ratio[top, pos]), top - 1, int(dimension[top, pos]),
             float(value[top, pos]))
        )  # fmt: skip
    found = pd.DataFrame(rows, columns=pd.Index(columns))
    return found.sort_values("ratio", ascending=False, ignore_index=True)


@st.cache_data(**KEPT)
def _facts(fingerprint: str) -> dict[str, str | int]:
    with checked(fingerprint) as model:
        cfg = model.cfg
        return {
            "Name": cfg.name,
            "Layers": cfg.n_layers,
            "Heads": cfg.n_heads,
            "Key/value heads": cfg.kv_heads,
            "Width": cfg.d_model,
            "Vocabulary": cfg.d_vocab,
            "Context": cfg.n_ctx,
            "Parameters": sum(weight.numel() for weight in model.parameters()),
            "Dtype": str(model.dtype).removeprefix("torch."),
            "Fingerprint": fingerprint,
        }


@st.cache_data(**KEPT)
def _hook_points(fingerprint: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    with checked(fingerprint) as model:
        return model.sites(), model.sites(missing=True)


@st.cache_data(**KEPT)
def _stream(fingerprint: str, ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Norm, cosine with the layer before (NaN at the first), dimension and value of the largest entry: [layer pos] each."""
    import torch

    with checked(fingerprint) as model, torch.inference_mode():
        kind = end_kind(model.cfg)
        names = model.expand_sites("resid_pre:0") + [
            model.expand_sites(f"{kind}:{layer}")[0] for layer in range(model.cfg.n_layers)
        ]
        _, cache = model.run_with_cache(list(ids), sites=names, stop_at_layer=model.cfg.n_layers)
        norm, cosine, dimension, value, before = [], [], [], [], None
        for name in names:
            stream = cache[name][0].float()
            largest = stream.abs().argmax(-1)
            norm.append(stream.norm(dim=-1))
            cosine.append(
                torch.full((len(stream),), torch.nan)
                if before is None
                else torch.cosine_similarity(stream, before, dim=-1)
            )
            dimension.append(largest)
            value.append(stream.gather(-1, largest[:, None])[:, 0])
            before = stream
        return tuple(torch.stack(each).numpy() for each in (norm, cosine, dimension, value))  # pyright: ignore
