"""Record a model's activations into a store; analyse the store; act on the model; show the results.

The public names stand in `__init__.pyi` and are imported on first use, so `import interp` needs no torch.
"""

import lazy_loader as _lazy

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
