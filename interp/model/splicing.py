"""SAEs inside the model: their latents become sites, and an edit of them changes what the model says.

`with model.splice(sae):` puts an SAE at the place that it was trained on, as SAELens' HookedSAETransformer does, with the
same names. At `blocks.6.hook_resid_post` (shorthand `resid_post.sae_acts_post:6`, one latent `...:6.1234`) these are

    .hook_sae_input        what the SAE reads
    .hook_sae_acts_post    its latents
    .hook_sae_recons       the latents decoded (a transcoder's skip path included)
    .hook_sae_error        value - reconstruction
    .hook_sae_output       what the model goes on with

1. The functions on the place itself come first, whenever they were attached: the SAE reads what they leave, and the place
   is recorded as it was read. What goes on is `hook_sae_output`.
2. Every pass encodes and decodes the value, and lets the functions on the SAE's sites change each step.
3. With the error term, value + (new reconstruction - reconstruction) + (new error - error) goes on. Where nobody edits the
   differences are zero, bit for bit, and so are those of the logits.
4. Without it the new reconstruction goes on.

Gradients run back through the reconstruction alone, as in SAELens: the error is a constant, and what a metric says of earlier
places is what latents carried. The model itself makes the error anew when an earlier value changes; `error_grad=True` counts
that too. The gradients of earlier places are then those of the bare model, and estimates of patches (`attribution_patch`) are
right also where another SAE stands behind. Gradients at the latents of the last SAE are the same in both.

A transcoder reads its site and stands at the place that it writes to: its names begin with that place. An SAE of several
sites reads them all before it writes; where it writes several, its input and latents are named after the first. Latents of
all tokens are there, also of those that SAEs are not trained on (the first token, special tokens); `only=` says at which
tokens what the SAE makes goes on, such as `lambda ctx: ctx.positions > 0`. Without the error that matters: most models break
when their first token is not what they expect.

Marks et al. 2024, Sparse feature circuits, https://arxiv.org/abs/2403.19647, for the error as a node of its own.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp import sites as site_names
from interp.hooks import HookContext, HookPoint, Request, RunState, attached

if TYPE_CHECKING:
    from interp.model.transformer import HookedTransformer


Only = Callable[[HookContext], Bool[Tensor, "batch pos"]]
"""Says for which tokens of a pass an SAE stands in the model."""


@runtime_checkable
class Dictionary(Protocol):
    """What a splice needs of an SAE; `interp.SAE` is one. Rows of several sites are concatenated in their order."""

    sites: tuple[str, ...]
    targets: tuple[str, ...]
    card: dict[str, Any]
    W_skip: Tensor | None

    @property
    def is_transcoder(self) -> bool: ...
    @property
    def d_in(self) -> int: ...
    @property
    def d_out(self) -> int: ...
    @property
    def n_latents(self) -> int: ...
    def encode(self, x: Tensor, /) -> Tensor: ...
    def decode(self, latents: Tensor, /) -> Tensor: ...


@contextmanager
def spliced(
    model: "HookedTransformer", saes: Any, site: Any, target: Any, *, error: bool, error_grad: bool, only: Only | None
) -> Iterator[None]:
    """See `HookedTransformer.splice`."""
    several = isinstance(saes, Sequence)
    given = list(saes) if several else [saes]
    if several and (site is not None or target is not None):
        raise ValueError("site= and target= say where one SAE goes; several go where their cards say")
    if error_grad and not error:
        raise ValueError("error_grad=True lets gradients run through the error, which error=False leaves out")
    if not given:
        raise ValueError("there is no SAE to splice: the list is empty")
    odd = [each for each in given if not isinstance(each, Dictionary)]
    if odd:
        raise ValueError(
            f"splice takes SAEs, or a list of them, got {type(odd[0]).__name__}: see train_sae and load_sae"
        )
    check_model(model, given)
    with ExitStack() as stack:
        for sae in given:
            places = _places(model, sae, site, target)
            splice = Splice(sae, *places, error=error, error_grad=error_grad, only=only, run=model.run)
            stack.enter_context(_among_sites(model, splice.points))
            stack.enter_context(attached(model.hook_dict, splice.request(), model.run))
        yield


class Splice:
    """One SAE in the model: its sites, and during a pass what it has read and what it is about to write.

    Args:
        sae: the SAE.
        sites: full names of what it reads -> width.
        targets: full names of what it writes -> width.
        error: whether what the SAE leaves out is added.
        error_grad: whether gradients run through it.
        only: at which tokens, None for all.
        run: the state of the model's passes.
    """

    def __init__(
        self,
        sae: Dictionary,
        sites: Mapping[str, int],
        targets: Mapping[str, int],
        *,
        error: bool,
        error_grad: bool,
        only: Only | None,
        run: RunState,
    ) -> None:
        self.sae, self.sites, self.targets, self.run = sae, list(sites), list(targets), run
        self.error, self.error_grad, self.only = error, error_grad, only
        self._widths = list(targets.values())
        self.points: dict[str, dict[str, HookPoint]] = {}
        """The SAE's own sites, by the place that they stand at and the part."""
        sizes = {"latent": sae.n_latents, "d_in": sae.d_in}
        for at, width in targets.items():
            parts = ["sae_input", "sae_acts_post"] if at == self.targets[0] else []
            parts += ["sae_recons", *(["sae_error"] if error else []), "sae_output"]
            self.points[at] = {part: HookPoint(f"{at}.hook_{part}", run) for part in parts}
            for point in self.points[at].values():
                point.sizes = sizes | {"d_out": width}
        self._read: dict[str, tuple[int, Tensor]] = {}
        self._pending: dict[str, tuple[Tensor, Tensor] | None] = {}
        self._pass = -1

    def request(self) -> Request:
        """What to attach where."""
        sources = [(name, self.read, "source") for name in self.sites]
        return Request([*sources, *((name, self.write, "splice") for name in self.targets)])

    def read(self, value: Tensor, ctx: HookContext) -> None:
        """Keep the value of a site until the SAE has all of them."""
        self._read[ctx.name] = (self.run.begun, value.flatten(2))

    def write(self, value: Tensor, ctx: HookContext) -> Tensor:
        """What goes on from a target."""
        if ctx.name == self.targets[0]:
            self._pending, self._pass = self._reconstructions(), self.run.begun
        if self._pass != self.run.begun:
            raise self._not_computed(self.targets[0])
        pair, points = self._pending.pop(ctx.name), self.points[ctx.name]
        if pair is None:
            return value
        recons, new = pair
        new = _changed(points["sae_recons"], new)
        if self.error:
            base, recons = (value, recons) if self.error_grad else (value.detach(), recons.detach())
            rest = base.flatten(2) - recons
            change = (new - recons) + (_changed(points["sae_error"], rest) - rest)
            out = base + change.to(value.dtype).view(value.shape)
        else:
            out = new.to(value.dtype).view(value.shape)
        if self.only is not None:
            chosen = self.only(ctx)
            out = torch.where(chosen.view(*chosen.shape, *([1] * (value.ndim - 2))), out, value)
        return points["sae_output"](out)

    def _reconstructions(self) -> dict[str, tuple[Tensor, Tensor] | None]:
        """Of each target (as the SAE has it, with the edits of input and latents); None where nothing depends on it."""
        rows = self._rows()
        listened = any(point.handles for points in self.points.values() for point in points.values())
        in_graph = torch.is_grad_enabled() and rows.requires_grad and not self.error_grad
        if self.error and not listened and not in_graph:
            return dict.fromkeys(self.targets)
        points = self.points[self.targets[0]]
        latents = self.sae.encode(rows)
        recons = self._decode(latents, rows)
        seen = _changed(points["sae_input"], rows)
        active = latents if seen is rows else self.sae.encode(seen)
        new = _changed(points["sae_acts_post"], active)
        edited = recons if new is latents else self._decode(new, seen)
        pairs = zip(recons.split(self._widths, -1), edited.split(self._widths, -1), strict=True)
        return dict(zip(self.targets, pairs, strict=True))

    def _rows(self) -> Float[Tensor, "batch pos d_in"]:
        parts = []
        for name in self.sites:
            begun, rows = self._read.pop(name, (-1, None))
            if rows is None or begun != self.run.begun:
                raise self._not_computed(name)
            parts.append(rows)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _not_computed(self, name: str) -> ValueError:
        return ValueError(
            f"the SAE at {self.targets[-1]} needs {name}, which this pass did not compute: start it at an earlier layer"
        )

    def _decode(
        self, latents: Float[Tensor, "batch pos latent"], rows: Float[Tensor, "batch pos d_in"]
    ) -> Float[Tensor, "batch pos d_out"]:
        decoded, skip = self.sae.decode(latents), self.sae.W_skip
        return decoded if skip is None else decoded + rows.to(decoded.dtype) @ skip


def _changed(point: HookPoint, value: Tensor) -> Tensor:
    """The value after the functions at a point; the same object where they left it as it was."""
    new = point.edited(value) if point.handles else None
    return value if new is None else new


@contextmanager
def _among_sites(model: "HookedTransformer", points: Mapping[str, Mapping[str, HookPoint]]) -> Iterator[None]:
    """List the SAE's sites in the model's table, each after the place that it stands at."""
    before = list(model.hook_dict.items())
    taken = [at for at, parts in points.items() if any(point.name in model.hook_dict for point in parts.values())]
    if taken:
        raise ValueError(f"an SAE stands at {taken[0]} already: leave its block first, or splice one of the two")
    model.hook_dict.clear()
    for name, point in before:
        model.hook_dict[name] = point
        model.hook_dict.update({part.name: part for part in points.get(name, {}).values()})
    try:
        yield
    finally:
        for parts in points.values():
            for point in parts.values():
                del model.hook_dict[point.name]


def _places(
    model: "HookedTransformer", sae: Dictionary, site: Any, target: Any
) -> tuple[dict[str, int], dict[str, int]]:
    """(sites, targets) of an SAE in this model, full name -> width."""
    if target is not None and site is None:
        raise ValueError("target= says where a transcoder writes: give site=, where it reads, as well")
    if site is not None and target is None and sae.is_transcoder:
        raise ValueError(f"site={site!r} says where a transcoder reads: give target= as well, where it writes")
    if site is None and sae.is_transcoder and sae.targets == sae.sites:
        raise ValueError("the card of this transcoder does not say where it writes: give site= and target=")
    sites = [site] if site is not None else list(sae.sites)
    targets = [target] if target is not None else sites if site is not None else list(sae.targets)
    if not sites:
        raise ValueError("the SAE does not say its site: give site=..., such as 'resid_post:6'")
    found = {wanted: model.expand_sites([wanted]) for wanted in (*sites, *targets)}
    several = next((wanted for wanted, names in found.items() if len(names) != 1), None)
    if several is not None:
        names = found[several]
        raise ValueError(f"{several!r} names {len(names)} sites; an SAE stands at one, for example {names[0]!r}")
    read, written = ([found[wanted][0] for wanted in wanted_sites] for wanted_sites in (sites, targets))
    _check_kinds(read, written)
    _check_order(model, read, written)
    return _widths(model, read, sae.d_in, "reads"), _widths(model, written, sae.d_out, "writes")


def _check_kinds(sites: Sequence[str], targets: Sequence[str]) -> None:
    for name in sites:
        if not site_names.kind_of(name).shape.startswith("batch pos"):
            raise ValueError(
                f"{name} has no vector for each token ({site_names.kind_of(name).shape}): no SAE can read it"
            )
    for name in targets:
        if f"{site_names.kind_of(name).kind}.sae_acts_post" not in site_names.SAE_KINDS:
            raise ValueError(
                f"no SAE can stand at {name}: it is a copy, or no vector that the model goes on with; splice it at the stream, "
                "an output of attention or MLP, heads' z, or neurons"
            )


def _check_order(model: "HookedTransformer", sites: Sequence[str], targets: Sequence[str]) -> None:
    """An SAE must have read everything before it writes."""
    order = model.site_names
    first = min(targets, key=order.index)
    late = [name for name in sites if order.index(name) > order.index(first)]
    if late or first != targets[0]:
        raise ValueError(
            f"this SAE writes {first} before {late[0] if late else targets[0]} is computed, so one pass cannot hold it: a "
            "crosscoder of several layers is measured by evaluate_in_model, which runs the model first"
        )


def _widths(model: "HookedTransformer", names: Sequence[str], total: int, does: str) -> dict[str, int]:
    sizes = model.sites().set_index("site")["size"]
    widths = {name: math.prod(int(size) for size in str(sizes[name]).split()[2:]) for name in names}
    if sum(widths.values()) != total:
        have = ", ".join(f"{name} has width {width}" for name, width in widths.items())
        raise ValueError(f"{have}; the SAE {does} {total}: is it of another site or model?")
    return widths


def check_model(model: "HookedTransformer", saes: Sequence[Dictionary]) -> None:
    """Refuse an SAE of another model, where its card knows the model, and one that does not read raw activations."""
    for sae in saes:
        if how := (sae.card.get("imported") or {}).get("row_norm"):
            raise ValueError(
                f"this SAE reads rows that are normalised one by one ({how}): it cannot stand in the model as it is; "
                "normalize_rows of interp.sae.formats makes such rows"
            )
    known = {sae.card["model"] for sae in saes if sae.card.get("model")}
    if not known:
        return
    own = model.fingerprint
    other = known - {own}
    if other:
        raise ValueError(
            f"the SAE was trained on a model with the fingerprint {min(other)}, {model.cfg.name} has {own}: load the same one; "
            "to try it on a relative of its model, take 'model' out of sae.card"
        )
