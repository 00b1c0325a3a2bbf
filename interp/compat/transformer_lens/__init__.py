"""Notebooks written for TransformerLens' HookedTransformer, on our own model.

Change one line, `import interp.compat.transformer_lens as transformer_lens` (or `from interp.compat.transformer_lens import
HookedTransformer`, `utils`, `patching` ...), and the rest runs as it is. Nothing here imports TransformerLens.
"""

from interp.compat.transformer_lens import head_detector, hook_points, patching, utils
from interp.compat.transformer_lens.activation_cache import ActivationCache
from interp.compat.transformer_lens.config import HookedTransformerConfig
from interp.compat.transformer_lens.convert import from_transformer_lens
from interp.compat.transformer_lens.head_detector import detect_head
from interp.compat.transformer_lens.hooked_transformer import HookedTransformer
from interp.hooks import HookPoint
from interp.model.factored import FactoredMatrix

__all__ = [
    "ActivationCache",
    "FactoredMatrix",
    "HookPoint",
    "HookedTransformer",
    "HookedTransformerConfig",
    "detect_head",
    "from_transformer_lens",
    "head_detector",
    "hook_points",
    "patching",
    "utils",
]
