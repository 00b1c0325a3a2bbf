"""Hooks: each fires once and in order, one that looks moves no bit, and one that edits reaches the output.

An edit that is dropped on the way looks exactly like an effect of zero, so each site is edited and the logits must move.
All sites are edited in one pass, each by a small tensor of its own that takes part in the graph: the gradient of the
logits with respect to it is zero only if the edit goes nowhere. Where it is zero (a choice, such as an expert's index,
has no gradient) the site is edited alone, by a large amount.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from interp.checks.patient import Patient, judged
from interp.checks.report import Check
from interp.hooks import HookContext
from interp.sites import kind_of, layer_of, short_name

Edit = Callable[[Tensor, HookContext], Tensor | None]


def _same(value: Tensor, _: HookContext) -> Tensor:
    return value.clone()


def _witness(seen: list[str]) -> Edit:
    """Writes down where it was called."""

    def see(_: Tensor, ctx: HookContext) -> None:
        seen.append(ctx.name)

    return see


def fire(patient: Patient) -> Check:
    """Every site fires exactly once in a pass, in the order of `site_names`, and nothing stays attached."""
    model, wrong = patient.model, []
    # Copies of the stream are made beside the pass, so their turn means nothing.
    usual, *beside = together(patient)
    for group in (usual, *beside):
        seen: list[str] = []
        hooks: dict[str, Edit] = {name: _witness(seen) for name in group}
        with model.hooks(hooks), torch.no_grad():
            model(patient.ids[None])
        often = [f"{name} fired {seen.count(name)} times" for name in group if seen.count(name) != 1]
        wrong += often
        in_order = [name for name in seen if not kind_of(name).on_request]
        documented = [name for name in group if not kind_of(name).on_request]
        if not often and in_order != documented:
            early = next(name for name, due in zip(in_order, documented, strict=True) if name != due)
            wrong.append(f"{early} fired before its documented turn")
    left = [point.name for point in model.hook_dict.values() if point.handles]
    wrong += [f"{name} still has a function attached" for name in left]
    return judged(
        "hooks fire", f"{len(model.site_names)} sites, once each and in order, and all gone afterwards", wrong
    )


def identity(patient: Patient) -> Check:
    """A hook that returns its value unchanged, alone at every kind of site and at all at once, moves no bit."""
    model, cfg, ids = patient.model, patient.model.cfg, patient.ids[None, :8]
    wrong, n_groups = [], 0

    def hold(name: str, group: list[str], bare: Tensor, **start: Any) -> None:
        nonlocal n_groups
        n_groups += 1
        with model.hooks(dict.fromkeys(group, _same)), torch.no_grad():
            if not torch.equal(model(**start).as_subclass(Tensor), bare):
                wrong.append(f"identity hooks on {name} change the logits")

    bare = patient.run(ids)
    for group in together(patient):
        hold(f"{len(group)} sites together", group, bare, x=ids)
    for name in model.site_names:
        if layer_of(name) is None:
            hold(name, [name], bare, x=ids)
    # The last layer of each kind, from its own input on: the layers before it would be the same.
    for layer in {(cfg.has_window(n), cfg.has_experts(n)): n for n in range(cfg.n_layers)}.values():
        with torch.no_grad():
            start = {"x": model(ids, stop_at_layer=layer), "start_at_layer": layer, "tokens": model.tokenize(ids)}
            after = model(**start).as_subclass(Tensor)
        for name in model.site_names:
            if layer_of(name) == layer:
                hold(short_name(name), [name], after, **start)
    return judged("identity hooks", f"logits with and without them, bit for bit; {n_groups} groups of sites", wrong)


def edits_reach(patient: Patient) -> Check:
    """An edit at any site changes the logits."""
    model, ids = patient.model, patient.ids[None, :8]
    left = {name for name in model.site_names if not _inert(patient, name)}
    for group in together(patient):
        if not _refused(patient, group[0]):
            left -= _with_gradient(patient, ids, group)
    dead = [name for name in model.site_names if name in left and _dead(patient, ids, name)]
    wrong = [f"an edit of {name} does not reach the logits" for name in dead]
    n_sites = sum(not _inert(patient, name) for name in model.site_names)
    compared = f"logits with an edit at each of {n_sites} sites and without"
    return judged("edits reach the output", compared, wrong)


def together(patient: Patient) -> list[list[str]]:
    """All sites in groups that may be edited in one pass, the usual ones first.

    Inputs of heads (and of an MLP that shares attention's norm) are copies of the stream with a norm of their own once
    they are edited, so the shared norm's sites are not read then; nor is `attn_in` where q, k and v have inputs.
    """
    cfg, names = patient.model.cfg, patient.model.site_names
    inputs = ("hook_q_input", "hook_k_input", "hook_v_input", *(("hook_mlp_in",) if cfg.shared_norm else ()))
    own = [name for name in names if name.endswith(inputs)]
    shared = [name for name in names if name.endswith("hook_attn_in")]
    usual = [name for name in names if name not in {*own, *shared}]
    return [group for group in (usual, own, shared) if group]


def _with_gradient(patient: Patient, ids: Int[Tensor, "1 pos"], wanted: list[str]) -> set[str]:
    """Sites whose own small edit has a gradient that is not zero."""
    model, pushes = patient.model, {}
    generator = torch.Generator().manual_seed(patient.seed)

    def push(value: Tensor, ctx: HookContext) -> Tensor | None:
        if not value.is_floating_point():
            return None
        noise = torch.randn(value.shape, generator=generator).to(value)
        size = torch.where(value.isfinite(), value.detach(), 0.0).abs().mean()
        pushes[ctx.name] = (noise * size * 1e-2).requires_grad_()
        return value + pushes[ctx.name]

    with torch.enable_grad():
        edits: dict[str, Edit] = dict.fromkeys(wanted, push)
        with model.hooks(edits):
            logits = model(ids).as_subclass(Tensor)
        if not logits.requires_grad:
            return set()
        weights = torch.randn(logits.shape, generator=generator).to(logits)
        names = list(pushes)
        found = torch.autograd.grad((logits * weights).sum(), [pushes[name] for name in names], allow_unused=True)
    return {name for name, gradient in zip(names, found, strict=True) if gradient is not None and bool(gradient.any())}


def _refused(patient: Patient, name: str) -> bool:
    """With grouped keys an edit of attn_in by query head has no meaning, and the model says so."""
    return name.endswith("hook_attn_in") and patient.model.cfg.kv_heads != patient.model.cfg.n_heads


def _inert(patient: Patient, name: str) -> bool:
    """Whether no edit here can matter: a choice of one key, or of all experts, is the same whatever it is made from."""
    cfg, layer, kind = patient.model.cfg, layer_of(name), kind_of(name).kind
    if layer is None:
        return False
    if cfg.n_ctx == 1 or (cfg.window == 1 and cfg.has_window(layer)):
        return kind in ("q", "k", "rot_q", "rot_k", "attn_scores", "q_input", "k_input")
    all_of_them = cfg.experts is not None and cfg.experts.top_k == cfg.experts.n_experts
    only_one = cfg.experts is not None and cfg.experts.n_experts == 1
    return (all_of_them and kind == "expert_indices") or (only_one and kind in ("router_logits", "expert_weights"))


def _dead(patient: Patient, ids: Int[Tensor, "1 pos"], name: str) -> bool:
    """Whether a large edit at this site alone leaves every logit as it was."""
    model = patient.model
    if _refused(patient, name):
        return False
    generator = torch.Generator().manual_seed(patient.seed)

    def push(value: Tensor, _: HookContext) -> Tensor:
        if not value.is_floating_point():  # expert indices
            assert model.cfg.experts is not None
            return (value + 1) % model.cfg.experts.n_experts
        return value * 3 + torch.randn(value.shape, generator=generator).to(value)

    bare = patient.run(ids)
    with model.hooks({name: push}):
        return torch.equal(patient.run(ids), bare)
