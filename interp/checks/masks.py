"""Who sees whom, found out by corrupting tokens and watching which rows change.

- *Causal and window leaks*: replace one token; a row may change only if a chain of allowed steps leads to it. A row that
  attends to the token noticeably in the first layer must change there: a mask that hides too much is wrong as well.
- *Padding leaks*: put other ids into the pads; no real row may change by a bit.
- *Document leaks*: replace a token of one packed document; the others may not change.
- *Padding sides*: a text alone, padded on the left and padded on the right is one text. Its positions count from its own
  first token; with rotary positions a constant shift leaves no trace in the logits, so the positions themselves are read.
"""

import dataclasses

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.checks.patient import LONGEST, Patient, bounded, judged, logit_error, skipped
from interp.checks.plain_attention import may_attend
from interp.checks.report import Check
from interp.tokens import Tokens

NOTICEABLE = 1e-3
"""Attention that a change must pass through."""


def leaks(patient: Patient) -> Check:
    """Corrupt one token at a time and compare who changed with who should."""
    cfg = patient.model.cfg
    name, kind = "causal leaks" if cfg.causal else "bidirectional reach", "earlier rows bit-identical"
    compared = f"rows of every layer before and after a token is replaced: {kind if cfg.causal else 'all may change'}"
    ids = patient.ids
    wrong: list[str] = []
    for place in sorted({0, len(ids) // 2, len(ids) - 1}):
        wrong += _wrong_rows(patient, ids, place)
    return judged(name, compared, wrong)


def window_leaks(patient: Patient) -> Check:
    """The same on a text that is longer than the window."""
    cfg = patient.model.cfg
    name, compared = "window leaks", "rows before and after a token is replaced, in a text longer than the window"
    if cfg.window is None:
        return skipped(name, compared, "the model has no window")
    if cfg.window + 4 > min(cfg.n_ctx, LONGEST):
        return skipped(name, compared, f"a text over the window of {cfg.window} is too long for a quick check")
    ids = patient.random_ids(min(cfg.n_ctx, max(cfg.window * 2, cfg.window + 8)), 3)
    return judged(name, compared, _wrong_rows(patient, ids, 1) + _wrong_rows(patient, ids, len(ids) // 3))


def _wrong_rows(patient: Patient, ids: Int[Tensor, "pos"], place: int) -> list[str]:
    """Rows that changed and should not have, and rows that should have and did not, in layer after layer."""
    model, cfg = patient.model, patient.model.cfg
    other = ids.clone()
    other[place] = (other[place] + 1) % cfg.d_vocab
    sites = ["resid_post:*", "z:0", "pattern:0"]
    with torch.no_grad():
        _, before = model.run_with_cache(ids[None], sites=sites)
        _, after = model.run_with_cache(other[None], sites=sites)
    reach = torch.zeros(len(ids), dtype=torch.bool)
    reach[place] = True
    found: list[str] = []
    pattern = torch.maximum(before["pattern", 0], after["pattern", 0])[0, :, :, place].amax(0).cpu()
    moved = _changed(patient, before["z", 0], after["z", 0])
    lost = (pattern > NOTICEABLE) & may_attend(cfg, 0, len(ids))[:, place] & ~moved
    if lost.any():
        found.append(f"token {place} is replaced, but z:0 at {int(lost.nonzero()[0])} attends to it and stays")
    for layer in range(cfg.n_layers):
        reach = (may_attend(cfg, layer, len(ids)) & reach).any(-1) | reach
        changed = _changed(patient, before["resid_post", layer], after["resid_post", layer])
        if (changed & ~reach).any():
            row = int((changed & ~reach).nonzero()[0])
            found.append(f"token {place} is replaced, and resid_post:{layer} changes at {row}, which may not see it")
            break
        if not changed[place]:
            found.append(f"token {place} is replaced, and its own row of resid_post:{layer} does not change")
            break
    return found


def _changed(patient: Patient, before: Tensor, after: Tensor) -> Bool[Tensor, "pos"]:
    """Rows of one text that differ in any bit; with experts, by more than rounding: an expert's rows are computed
    together, and who is among them changes with every token."""
    before, after = before[0].flatten(1).cpu(), after[0].flatten(1).cpu()
    if patient.model.cfg.experts is None:
        return (before != after).any(-1)
    apart = (before.double() - after.double()).norm(dim=-1)
    return apart > patient.rounding * before.double().norm(dim=-1)


def padding_leaks(patient: Patient) -> Check:
    """Other ids in the pads change no real row."""
    wrong = []
    for side in ("right", "left"):
        runs = []
        for fill in (0, patient.model.cfg.d_vocab - 1):
            tokens = patient.padded(patient.rows, side, fill)
            runs.append(patient.run(tokens)[tokens.mask])
        if bool(_changed(patient, runs[0][None], runs[1][None]).any()):
            wrong.append(f"ids of pads on the {side} change real rows by {logit_error(*runs):.1e}")
    return judged(
        "padding leaks",
        "real rows with two different ids in the pads, bit for bit, padded on both sides",
        wrong,
        patient.unreached,
    )


def document_leaks(patient: Patient) -> Check:
    """Documents packed into one row: each is what it is alone, and no other changes when a token of it does."""
    cfg = patient.model.cfg
    name, compared = "document leaks", "packed documents with the same texts alone, and who changes with a token of one"
    if "documents" not in {field.name for field in dataclasses.fields(Tokens)}:
        return skipped(name, compared, "this version packs no documents")
    if patient.turning_point is not None:
        return skipped(
            name, compared, "rotations depend on the length of a text, so the model refuses packed documents"
        )
    if cfg.n_ctx < 2:
        return skipped(name, compared, f"a context of {cfg.n_ctx} token holds no two documents")
    half = min(patient.width, cfg.n_ctx) // 2
    first, second = patient.ids[:half], patient.random_ids(half, 4)
    packed = _packed([first, second])
    logits = patient.run(packed)[0]
    alone = torch.cat([patient.run(first[None])[0], patient.run(second[None])[0]])
    error = logit_error(logits, alone)
    for place, outside in ((half - 1, slice(half, None)), (half, slice(0, half))):
        ids = torch.cat([first, second])
        ids[place] = (ids[place] + 1) % cfg.d_vocab
        changed = patient.run(_packed([ids[:half], ids[half:]]))[0]
        if bool(_changed(patient, logits[None, outside], changed[None, outside]).any()):
            return judged(name, compared, [f"a token of document {place // half} changes rows of the other"])
    return bounded(
        name, compared, error, patient.drift, "" if error <= patient.drift else "positions or mask of a part"
    )


def _packed(rows: list[Tensor]) -> Tokens:
    ids = torch.cat(rows)[None]
    number = torch.cat([torch.full_like(row, index) for index, row in enumerate(rows)])[None]
    return dataclasses.replace(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)), documents=number)


def padding_sides(patient: Patient) -> Check:
    """A text alone, in a batch padded on the right, and in one padded on the left."""
    worst, where = 0.0, ""
    alone = [patient.run(row[None])[0] for row in patient.rows]
    for side in ("right", "left"):
        tokens = patient.padded(patient.rows, side)
        batch = patient.run(tokens)
        positions = patient.model.run.positions
        expected = (tokens.mask.cumsum(1) - 1)[tokens.mask]
        if positions is None or not torch.equal(positions[tokens.mask], expected):
            wrong = [f"positions of texts padded on the {side} do not count from their first token"]
            return judged("single = padded", "positions of the tokens of padded texts", wrong)
        for index, single in enumerate(alone):
            error = logit_error(batch[index][tokens.mask[index]], single)
            if not error <= worst:
                worst, where = error, f"text {index} padded on the {side}"
    compared = f"logits of {len(alone)} texts of {', '.join(str(len(row)) for row in patient.rows)} tokens, "
    compared += "each alone and in a batch padded on either side"
    note = patient.unreached if worst <= patient.drift else where
    return bounded("single = padded", compared, worst, patient.drift, note)
