"""Notebooks written for TransformerLens' HookedTransformer, on our own model.

Change one line, `import interp.compat.transformer_lens as transformer_lens` (or `from interp.compat.transformer_lens import
HookedTransformer`, `utils`, `patching` ...), and the rest runs as it is. Nothing here imports TransformerLens. A name that
is not offered says what to use for it (`absent.py`).
"""

from interp.compat.transformer_lens import head_detector, hook_points, patching, utils
from interp.compat.transformer_lens.absent import MODULE, not_offered
from interp.compat.transformer_lens.activation_cache import ActivationCache
from interp.compat.transformer_lens.config import HookedTransformerConfig
from interp.compat.transformer_lens.convert import from_transformer_lens
from interp.compat.transformer_lens.head_detector import detect_head
from interp.compat.transformer_lens.hooked_transformer import HookedTransformer
from interp.hooks import HookPoint
from interp.model.factored import FactoredMatrix

utilities = utils
"""The name of `utils` since TransformerLens 3."""
__getattr__ = not_offered(MODULE, __name__)

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
    "utilities",
    "utils",
]
