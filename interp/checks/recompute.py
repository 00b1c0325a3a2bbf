"""The model against its own definition: every value computed once more, in fp64, from the weights and configuration.

Each layer starts from the model's own recorded stream, so a deviation stands where it arises: the note names the first
site that is off. This sees what no identity sees (dimensions turned in the wrong pairs, heads that read another's keys, a
gain without its 1, a bias or a soft-cap left out), and needs no other library.
"""

import math

import torch
from torch import Tensor

from interp.checks.patient import Patient, bounded, logit_error, row_error
from interp.checks.plain import PlainModel
from interp.checks.report import Check
from interp.sites import short_name

PARTS: dict[str, tuple[str, ...]] = {
    "embedding": ("hook_embed", "hook_pos_embed", "hook_token_type_embed", "hook_full_embed"),
    "norms": (".hook_scale", ".hook_normalized"),
    "attention": ("attn.", "hook_attn_out"),
    "MLP": ("mlp.", "hook_mlp_out"),
}
"""Which sites each check compares, by a part of their names."""


class Recomputed:
    """Worst deviation of each part, and the site where it first exceeds the bound."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self.worst: dict[str, float] = {}
        self.count: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def compare(self, found: dict[str, Tensor]) -> None:
        """Hold recomputed values against the recorded ones; sites that the model lacks are passed over."""
        for site, expected in found.items():
            part = next((name for name, marks in PARTS.items() if any(mark in site for mark in marks)), None)
            if part is None or not self.patient.has(site):
                continue
            recorded = self.patient.cache[site][0].detach().cpu()
            if site.endswith("hook_attn_scores"):
                error = self._score_error(recorded, expected, found, site)
            else:
                error = row_error(recorded, expected)
            self.count[part] = self.count.get(part, 0) + 1
            if error > self.worst.get(part, -1.0):
                self.worst[part] = error
            if not error <= self.patient.rounding and part not in self.first:
                self.first[part] = f"{short_name(site)} is the first that is off, by {error:.1e}"

    def _score_error(self, recorded: Tensor, expected: Tensor, found: dict[str, Tensor], site: str) -> float:
        """Deviation of scores by the size of the vectors that they are products of: a small score is a sum that cancels."""
        cfg, prefix = self.patient.model.cfg, site.removesuffix("hook_attn_scores")
        if cfg.positional == "alibi":
            recorded, expected = _centred(recorded), _centred(expected)
        if recorded.shape != expected.shape or not torch.equal(recorded.isfinite(), expected.isfinite()):
            return math.inf
        q, k = (found.get(f"{prefix}hook_rot_{side}", found[f"{prefix}hook_{side}"]) for side in ("q", "k"))
        size = (cfg.scaling * q.norm(dim=-1).max() * k.norm(dim=-1).max()).clamp(min=1.0)
        seen = expected.isfinite()
        return float((recorded.double() - expected)[seen].abs().max() / size)


def _centred(scores: Tensor) -> Tensor:
    """Scores without what is common to a row: softmax does not see it, and ALiBi may be written with or without."""
    seen = scores.isfinite()
    mean = torch.where(seen, scores.double(), 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    return scores.double() - mean


def recompute(patient: Patient) -> list[Check]:
    """One check for each part: embedding, norms, attention, MLP, unembedding."""
    what = "values recomputed from weights and configuration in fp64"
    plain, done = PlainModel(patient.model), Recomputed(patient)
    found = plain.embed(patient.ids)
    done.compare(found)
    start = patient.cache["resid_pre", 0][0].cpu().double()
    stream = row_error(start, found["resid"])
    if not stream <= patient.rounding:
        done.worst["embedding"] = max(stream, done.worst.get("embedding", 0.0))
        done.first.setdefault("embedding", f"resid_pre:0 is off by {stream:.1e}")
    for layer in patient.layers:
        done.compare(plain.block(layer, patient.cache["resid_pre", layer][0].cpu().double()))
    last = _last_stream(patient)
    head = plain.head(last)
    logits = head.pop("logits")
    done.compare(head)
    layers = f"layers {', '.join(map(str, patient.layers))}"
    checks = [
        bounded(
            f"recomputed: {part}",
            f"{done.count[part]} sites with {what}" + (f"; {layers}" if part in ("attention", "MLP", "norms") else ""),
            done.worst[part],
            patient.rounding,
            done.first.get(part, ""),
        )
        for part in PARTS
        if part in done.count
    ]
    error = logit_error(patient.logits[0].cpu(), logits)
    note = "" if error <= patient.rounding else "final norm, head matrix, its bias or the final soft-cap"
    unembedding = f"logits with {what}, from the last stream"
    return [*checks, bounded("recomputed: unembedding", unembedding, error, patient.rounding, note)]


def _last_stream(patient: Patient) -> Tensor:
    """What the model's head read."""
    last = patient.model.cfg.n_layers - 1
    normed = f"blocks.{last}.hook_normalized_resid_post"
    site = normed if patient.has(normed) else f"blocks.{last}.hook_resid_post"
    return patient.cache[site][0].cpu().double()
