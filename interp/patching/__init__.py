"""Patching: move values between two runs, and see what the answer hangs on."""

from interp.patching.gradient import attribution_patch
from interp.patching.knockout import KnockoutSweep, knockout_sweep, load_knockout_sweep
from interp.patching.path import path_patch
from interp.patching.result import PatchResult, load_patch_result
from interp.patching.sweep import patch_sweep
from interp.patching.tracing import CausalTrace, causal_trace, load_causal_trace

__all__ = [
    "CausalTrace",
    "KnockoutSweep",
    "PatchResult",
    "attribution_patch",
    "causal_trace",
    "knockout_sweep",
    "load_causal_trace",
    "load_knockout_sweep",
    "load_patch_result",
    "patch_sweep",
    "path_patch",
]
