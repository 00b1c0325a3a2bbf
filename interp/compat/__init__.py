"""Ways in and out of other libraries: models of TransformerLens, and notebooks that were written for it."""

from interp.compat.transformer_lens.convert import from_transformer_lens

__all__ = ["from_transformer_lens"]
