"""The hooked transformer. Read `transformer.py` first; the other files are its parts."""

from interp.model.act_names import get_act_name
from interp.model.activations import ActivationCache
from interp.model.config import Experts, Latent, ModelConfig, RopeScaling
from interp.model.factored import FactoredMatrix
from interp.model.generate import Generation, Piece
from interp.model.generation import GenerationStream
from interp.model.inputs import Logits
from interp.model.int8 import Int8Report, quantize_int8
from interp.model.moe import balance_loss, expert_load, update_balance_bias
from interp.model.transformer import HookedTransformer

__all__ = [
    "ActivationCache",
    "Experts",
    "FactoredMatrix",
    "Generation",
    "GenerationStream",
    "HookedTransformer",
    "Int8Report",
    "Latent",
    "Logits",
    "ModelConfig",
    "Piece",
    "RopeScaling",
    "balance_loss",
    "expert_load",
    "get_act_name",
    "quantize_int8",
    "update_balance_bias",
]
