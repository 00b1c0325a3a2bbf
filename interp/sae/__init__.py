"""Sparse autoencoders: train them on a store, measure them honestly, look at their latents.

`config` holds the choices, `rows` knows where rows come from, `step` and `sparse` do the arithmetic, `train` is the run
and `model` the trained value. `evaluate` says what it explains, `splice` what the model does with it in place, and
`features` what its latents fire on.
"""

from interp.sae.config import SAEConfig
from interp.sae.evaluate import SAEReport, evaluate_sae, pca_baseline
from interp.sae.features import SAEFeatures, sae_features
from interp.sae.model import SAE, ActiveLatents, load_sae
from interp.sae.rows import split_rows
from interp.sae.splice import SpliceReport, evaluate_in_model
from interp.sae.train import train_sae

__all__ = [
    "SAE",
    "ActiveLatents",
    "SAEConfig",
    "SAEFeatures",
    "SAEReport",
    "SpliceReport",
    "evaluate_in_model",
    "evaluate_sae",
    "load_sae",
    "pca_baseline",
    "sae_features",
    "split_rows",
    "train_sae",
]
