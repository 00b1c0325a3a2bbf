from .model import ActivationCache as ActivationCache
from .model import Generation as Generation
from .model import HookedTransformer as HookedTransformer
from .model import ModelConfig as ModelConfig

__version__: str
