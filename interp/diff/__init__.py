"""Two models side by side (base against tuned, full against quantised), or two prompts in one model."""

from interp.diff.compare import model_diff
from interp.diff.prompts import PromptDiff, prompt_diff
from interp.diff.result import ModelDiff, load_model_diff

__all__ = ["ModelDiff", "PromptDiff", "load_model_diff", "model_diff", "prompt_diff"]
