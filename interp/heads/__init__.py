"""Attention heads: what each one does, and what the model loses without it."""

from interp.heads.scores import METRICS, HeadScores, head_scores, load_head_scores, pattern_scores, repeated_tokens

__all__ = ["METRICS", "HeadScores", "head_scores", "load_head_scores", "pattern_scores", "repeated_tokens"]
