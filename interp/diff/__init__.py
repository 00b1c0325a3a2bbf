"""Two models side by side: base against tuned, full against quantised."""

from interp.diff.compare import model_diff
from interp.diff.result import ModelDiff, load_model_diff

__all__ = ["ModelDiff", "load_model_diff", "model_diff"]
