"""How one answer formed, layer by layer and token by token.

`measure` runs the model, `run` makes the report, `page` says what was found.
"""

from interp.behavior.trace.run import TraceReport, hallucination_trace

__all__ = [
    "TraceReport",
    "hallucination_trace",
]
