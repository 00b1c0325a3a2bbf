"""Tasks: pairs of prompts that differ in what matters, and numbers that say how far a run is from one to the other."""

from interp.task.builders import TASKS, task_pairs
from interp.task.metric import METRICS, Effect, PairMetric, mean_effect, pair_metric
from interp.task.pairs import PromptPairs, load_prompt_pairs, prompt_pairs

__all__ = [
    "METRICS",
    "TASKS",
    "Effect",
    "PairMetric",
    "PromptPairs",
    "load_prompt_pairs",
    "mean_effect",
    "pair_metric",
    "prompt_pairs",
    "task_pairs",
]
