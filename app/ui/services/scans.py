"""A scan of the prompt: everything that the library looks at in one, ranked."""

from typing import Any

import pandas as pd

import interp
from ui.services.kept import shelf
from ui.services.live import checked, engine, token_ids
from ui.services.patches import Progress

MAX_SCAN_TOKENS = 128
"""Longest prompt that a page scans: it takes minutes beyond."""
EFFORT = "quick"
PAGES = {
    "attn": "attribution", "mlp": "attribution", "head": "heads", "indirect": "attribution", "lens": "lens",
    "logits": "attribution", "patch": "patching", "surprise": "lens", "token": "patching",
}  # fmt: skip
"""Kind of a finding -> the page that shows more of it."""


def scanned(prompt: str, seed: int) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """What `run_scan` found for this prompt: findings (`ScanReport.findings` with `page`), and warnings, notes, summary; None
    where it was not run."""
    return shelf().get((engine().fingerprint, "scan", token_ids(prompt), seed))


def run_scan(prompt: str, seed: int, progress: Progress) -> None:
    """Scan the prompt and put the findings on the shelf.

    Raises:
        ValueError: a prompt of more than `MAX_SCAN_TOKENS`, or a model without next tokens.
    """
    ids = token_ids(prompt)
    if len(ids) > MAX_SCAN_TOKENS:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, more than the {MAX_SCAN_TOKENS} that a page scans: shorten it, or run "
            "`interp scan` in a shell"
        )
    fingerprint = engine().fingerprint
    with checked(fingerprint) as model:
        # The text itself where there is one: ids alone would keep the library from some warnings.
        found = interp.scan_prompt(
            model,
            prompt,
            effort=EFFORT,
            seed=seed,
            progress=lambda step, done, whole: progress(done, whole),  # noqa: ARG005
        )
    findings = found.to_frame("findings")
    findings["page"] = [PAGES.get(str(kind), "attribution") for kind in findings["kind"]]
    facts = {"warnings": list(found.warnings), "notes": list(found.notes), "summary": found.summary()}
    shelf().put((fingerprint, "scan", ids, seed), (findings, facts))
