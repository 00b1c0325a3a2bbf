"""The only place that calls `interp`: the run's results, one shared model, and cached answers for a prompt.

1. A prompt that the run has already answered is served from the run's files; no model is loaded for it.
2. Any other prompt goes to the live model. There is one model per server, behind a lock: two browser tabs are two threads.
   A replaced model is released. Nothing of it is kept in a session.
3. Answers are frames, cached by the model's fingerprint and what was asked. Tensors never leave this package.
4. What takes minutes runs only when a button asks for it, and stands on a shelf afterwards (`kept`).

Where the model and the run lie comes from the environment (`interp app --run ... --model ...`), never from a page; lenses
are chosen by name among the files of the run and of the home folder.
"""

from ui.services.attribute import MAX_SOURCES, WAYS, attribution
from ui.services.head_answers import (
    NATURAL_CODE,
    NATURAL_TEXTS,
    causal_check,
    circuit,
    circuit_tokens,
    composition,
    heads,
    live_heads,
)
from ui.services.lenses import LOGIT, comparison, followed, lens, lens_code, lens_files
from ui.services.live import engine, mismatch, model_name, models_offered, token_ids
from ui.services.patches import MAX_PAIR_TOKENS, MAX_PAIRS, OWN, Sweep, aligned, metrics, run_sweep, swept, tasks
from ui.services.prompt import (
    MAX_STATEMENTS,
    Source,
    attention,
    candidates,
    next_tokens,
    score_statements,
    tokens,
    value_weighted,
    without_sink,
)
from ui.services.runs import default_prompt, run, run_frame, run_json, runs_offered, stores

__all__ = [
    "LOGIT",
    "MAX_PAIRS",
    "MAX_PAIR_TOKENS",
    "MAX_SOURCES",
    "MAX_STATEMENTS",
    "NATURAL_CODE",
    "NATURAL_TEXTS",
    "OWN",
    "WAYS",
    "Source",
    "Sweep",
    "aligned",
    "attention",
    "attribution",
    "candidates",
    "causal_check",
    "circuit",
    "circuit_tokens",
    "comparison",
    "composition",
    "default_prompt",
    "engine",
    "followed",
    "heads",
    "lens",
    "lens_code",
    "lens_files",
    "live_heads",
    "metrics",
    "mismatch",
    "model_name",
    "models_offered",
    "next_tokens",
    "run",
    "run_frame",
    "run_json",
    "run_sweep",
    "runs_offered",
    "score_statements",
    "stores",
    "swept",
    "tasks",
    "token_ids",
    "tokens",
    "value_weighted",
    "without_sink",
]
