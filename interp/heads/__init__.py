"""Attention heads: what each one does, what its weights say, and what the model loses without it."""

from interp.heads.circuit import HeadCircuit, head_circuit, load_head_circuit
from interp.heads.composition import Composition, head_composition, load_composition
from interp.heads.copying import CopyingScores, copying_scores, load_copying_scores
from interp.heads.effects import HeadEffects, head_effects, load_head_effects
from interp.heads.patterns import METRICS, pattern_scores
from interp.heads.protocol import repeated_tokens
from interp.heads.report import HeadReport, head_report, load_head_report
from interp.heads.scores import HeadScores, head_scores, load_head_scores
from interp.heads.sets import SetEffects, ablate_heads, load_set_effects
from interp.heads.streams import TokenStreams, token_streams

__all__ = [
    "METRICS",
    "Composition",
    "CopyingScores",
    "HeadCircuit",
    "HeadEffects",
    "HeadReport",
    "HeadScores",
    "SetEffects",
    "TokenStreams",
    "ablate_heads",
    "copying_scores",
    "head_circuit",
    "head_composition",
    "head_effects",
    "head_report",
    "head_scores",
    "load_composition",
    "load_copying_scores",
    "load_head_circuit",
    "load_head_effects",
    "load_head_report",
    "load_head_scores",
    "load_set_effects",
    "pattern_scores",
    "repeated_tokens",
    "token_streams",
]
