"""The latents of an SAE: what each fires on, what it writes, and which others it belongs to.

`making` is the pass over a store, `activations` its sparse result in memory or on the disk. From that, `sums` has what adds
up, `examples` the rows to show, `neighbours` related latents and `effects` what a latent does to the logits. `table` is
the value with all of it, `contexts` what stands around a token.
"""

from interp.sae.features.activations import Activations
from interp.sae.features.making import FEATURES_VERSION, check_features, fingerprint, sae_features
from interp.sae.features.neighbours import nearest_rows
from interp.sae.features.sums import HISTOGRAM_EDGES
from interp.sae.features.table import LatentPage, SAEFeatures, load_sae_features

__all__ = [
    "FEATURES_VERSION",
    "HISTOGRAM_EDGES",
    "Activations",
    "LatentPage",
    "SAEFeatures",
    "check_features",
    "fingerprint",
    "load_sae_features",
    "nearest_rows",
    "sae_features",
]
