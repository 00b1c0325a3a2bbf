"""From the state of a run, on scaled rows, to an SAE on raw activations.

With x' = x s_in and y' = y s_out, factors per column, the same function of raw rows has W_enc s_in, W_dec / s_out and
b_dec / s_out. Latents are then measured in other units by one factor u for all of them: the mean length of the new
decoder rows, so that these have length 1 (exactly, where all columns share one scale, as in an SAE of one site). TopK,
ReLU and thresholds commute with a positive factor that all latents share, so the choice of latents does not change.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from interp.artifact import provenance
from interp.sae.config import BatchTopKConfig, SAEConfig, TopKConfig
from interp.sae.model import SAE
from interp.sae.pool import PoolBatches
from interp.sae.rows import TrainingRows
from interp.sae.step import TrainState


@torch.no_grad()
def trained_sae(state: TrainState, source: TrainingRows, config: SAEConfig, metrics: dict[str, Any]) -> SAE:
    """The SAE that a run has made, with a card that says how."""
    value = {name: tensor.detach().double() for name, tensor in state.parameters.items()}
    scale_in, scale_out = source.scale_in, source.scale_out
    W_dec = value["W_dec"] / scale_out
    unit = W_dec.norm(dim=1).mean()
    b_enc, b_dec = value["b_enc"], value["b_dec"]
    skip, b_mag = value.get("W_skip"), value.get("b_mag")
    if state.centre is not None:  # what is taken off the rows goes into the biases
        centre = state.centre.double()
        shift = value["encoder"] @ centre
        b_enc = b_enc - shift
        b_mag = None if b_mag is None else b_mag - value["r_mag"].exp() * shift
        b_dec = b_dec if skip is None else b_dec - centre @ skip
    tensors: dict[str, Any] = {
        "W_enc": value["encoder"].T * (scale_in * unit)[:, None],
        "b_enc": b_enc * unit,
        "W_dec": W_dec / unit,
        "b_dec": b_dec / scale_out,
        "W_skip": None if skip is None else scale_in[:, None] * skip / scale_out,
        "b_mag": None if b_mag is None else b_mag * unit,
        "r_mag": value.get("r_mag"),
        "threshold": _threshold(state, config, unit),
    }
    tensors = {name: None if tensor is None else tensor.float().contiguous() for name, tensor in tensors.items()}
    k = config.k if isinstance(config, TopKConfig) and tensors["threshold"] is None else None
    required = [tensors.pop(name) for name in ("W_enc", "b_enc", "W_dec", "b_dec")]
    return SAE(
        *required, **tensors, k=k, apply_b_dec_to_input=state.centre is None, card=_card(source, config, metrics)
    )


def _threshold(state: TrainState, config: SAEConfig, unit: Tensor) -> Tensor | None:
    if isinstance(config, BatchTopKConfig):
        return (state.threshold * unit).expand(len(state.encoder))
    own = state.extra.get("threshold")
    return None if own is None else own.detach().double() * unit


def _card(source: TrainingRows, config: SAEConfig, metrics: dict[str, Any]) -> dict[str, Any]:
    live = {}
    if isinstance(source.batches, PoolBatches):  # outliers are only known when their rows have been made
        live = {"live": {**source.card["live"], "left_out": source.batches.left_out}}
    return {
        **source.card,
        **live,
        "config": dataclasses.asdict(config),
        "scales": source.scales,
        "n_rows": source.n_rows,
        "n_steps": source.n_steps,
        "final": metrics,
        "provenance": provenance(model=source.card["model"], seed=config.seed),
    }
