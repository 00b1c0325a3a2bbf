"""Lenses: what the model would predict if it stopped at a layer."""

from interp.lens.compare import LensComparison, compare_lenses, load_lens_comparison
from interp.lens.jacobian import JacobianLens, fit_jacobian_lens, load_jacobian_lens
from interp.lens.logit import logit_lens
from interp.lens.result import LensResult, load_lens
from interp.lens.translate import Translator
from interp.lens.tuned import TunedLens, import_tuned_lens, load_tuned_lens
from interp.lens.tuning import TunedLensConfig, train_tuned_lens

__all__ = [
    "JacobianLens",
    "LensComparison",
    "LensResult",
    "Translator",
    "TunedLens",
    "TunedLensConfig",
    "compare_lenses",
    "fit_jacobian_lens",
    "import_tuned_lens",
    "load_jacobian_lens",
    "load_lens",
    "load_lens_comparison",
    "load_tuned_lens",
    "logit_lens",
    "train_tuned_lens",
]
