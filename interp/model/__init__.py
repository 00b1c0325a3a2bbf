"""The hooked transformer. Read `transformer.py` first; the other files are its parts."""

from interp.model.activations import ActivationCache
from interp.model.config import Experts, Latent, ModelConfig, RopeScaling
from interp.model.generate import Generation
from interp.model.inputs import Logits
from interp.model.transformer import HookedTransformer

__all__ = [
    "ActivationCache",
    "Experts",
    "Generation",
    "HookedTransformer",
    "Latent",
    "Logits",
    "ModelConfig",
    "RopeScaling",
]
