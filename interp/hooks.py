"""HookPoint and the one hook lifecycle that recording, interventions and generation share.

A HookPoint stands at every site of the model and returns its input while nobody listens. Functions are attached for the
length of a `with` block only, by handles of their own: leaving the block removes those handles and no others, also
after an exception. A function that was asked for and never called is an error, since a hook that does nothing looks
exactly like an effect of zero.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp import sites


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of a pass from their beginning, the tokens in a KV cache included."""

    ids: Int[Tensor, "batch total"] | None
    """Token ids; None where the pass began from a stream and was not told whose."""
    real: Bool[Tensor, "batch total"]
    """True for a real token, False for a pad."""
    documents: Int[Tensor, "batch total"] | None = None
    """Number of each token's document, where rows hold several texts one after the other."""
    parents: Int[Tensor, "batch total"] | None = None
    """Place of the token before each token, where rows hold texts as a tree."""
    copies: int = 1
    """Continuations of each prompt: row i belongs to prompt i // copies. 1 until the prompts have been run."""
    token_bytes: Callable[[int], bytes] | None = None
    """What a token id stands for; None for a model without a tokenizer."""
    call: dict[Any, Any] = field(default_factory=dict)
    """Free space for functions that must remember, as long as the call: one forward pass, or all passes of a generation.
    What stands there of a prefill has a row for each prompt, also when `copies` rows go on from it."""
    now: dict[Any, Any] = field(default_factory=dict)
    """Free space for this pass alone: what several sites would work out anew."""


@dataclass
class RunState:
    """What every hook may know about the forward pass that is under way. One object a model, rewritten by each pass."""

    phase: str = "forward"
    """`forward` (a plain pass), `prefill` (the prompt of a generation) or `decode` (one new token)."""
    step: int = 0
    """Generated tokens so far."""
    positions: Int[Tensor, "batch pos"] | None = None
    """Absolute positions, counted from each text's first real token; the same with and without a KV cache."""
    mask: Bool[Tensor, "batch pos"] | None = None
    """True for real tokens."""
    prompt_len: Int[Tensor, "batch"] | None = None
    """Real tokens of each prompt, where the call has a prompt."""
    texts: Texts | None = None
    """All tokens so far."""
    begun: int = 0
    """Passes begun since the model was made."""
    forwards: int = 0
    """Passes finished."""
    last_stop: int | None = None
    """stop_at_layer of the last pass, for the message of a hook that never fired."""
    last_start: int = 0
    """start_at_layer of the last pass, for the same message."""
    sums: list[Tensor] = field(default_factory=list)
    """Sums of the queries and keys of this pass: fused kernels turn NaN there into finite numbers."""


@dataclass(frozen=True)
class HookContext:
    """Handed to a native hook function beside the value."""

    name: str
    """Full site name."""
    layer: int | None
    """Layer, None outside the blocks."""
    phase: str
    """`forward`, `prefill` or `decode`."""
    step: int
    """Generated tokens so far."""
    positions: Int[Tensor, "batch pos"]
    """Absolute positions of this pass's tokens."""
    mask: Bool[Tensor, "batch pos"]
    """True for real tokens."""
    prompt_len: Int[Tensor, "batch"] | None
    """Real tokens of each prompt, None where the call names no prompt."""
    handle: "Handle | None" = None
    """The attached function; an intervention notes on it whether it reached a token."""
    texts: Texts | None = None
    """The texts from their beginning, tokens in the KV cache included; None only in a context made by hand."""

    @property
    def ids(self) -> Int[Tensor, "batch total"] | None:
        """All token ids so far, those in the KV cache included; None where the pass began from a stream without them."""
        return None if self.texts is None else self.texts.ids

    @property
    def real(self) -> Bool[Tensor, "batch total"] | None:
        """True for the real tokens among `ids`."""
        return None if self.texts is None else self.texts.real


@dataclass(eq=False)
class Handle:
    """One function at one HookPoint."""

    point: "HookPoint"
    fn: Any
    style: str
    """`native` fn(value, ctx), `lens` fn(value, hook=point); `read` fn(value, ctx) sees the value itself and must not
    change it, and `keep` is the same for a value whose gradient will be asked for; `grad` fn(gradient, hook=point) is
    called in the backward pass. `source` and `splice` belong to an SAE in the model: fn(value, ctx) is called after all
    others, reads the value, and in a splice returns the one that goes on."""
    fired: int = 0
    reached: bool | None = None
    """Whether an intervention found a token to act on; None for functions that do not say."""

    @property
    def last(self) -> bool:
        """Called after the functions of other kinds, also those that are attached later."""
        return self.style in ("source", "splice")

    @property
    def needs_graph(self) -> bool:
        """The value must take part in the computation that gradients run through."""
        return self.style in ("keep", "grad")

    def call(self, value: Tensor) -> Tensor:
        """The value after this function. An editing one gets a copy: editing in place must not reach other sites."""
        self.fired += 1
        if self.needs_graph:
            value = self._in_graph(value)
        if self.style in ("read", "keep", "source"):
            self.fn(value, self.point.context())
            return value
        if self.style == "splice":
            return self.fn(value, self.point.context())
        if self.style == "grad":
            value.register_hook(lambda gradient: self.fn(gradient, hook=self.point))
            return value
        copy = value.clone()
        returned = self.fn(copy, hook=self.point) if self.style == "lens" else self.fn(copy, self.point.context(self))
        if returned is None:
            return copy
        if not isinstance(returned, Tensor) or returned.shape != value.shape:
            got = f"shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
            raise ValueError(
                f"the hook on {self.point.name} returned {got}; it must return {tuple(value.shape)} or None"
            )
        return returned.to(value.dtype)

    def _in_graph(self, value: Tensor) -> Tensor:
        """The value as a node of its own in the graph of gradients: one tensor may stand at several sites.

        Where the weights are frozen nothing before it has a gradient, and the graph begins here.
        """
        if value.requires_grad:
            return value.view_as(value)
        if not (torch.is_grad_enabled() and value.is_floating_point() and not value.is_inference()):
            raise ValueError(
                f"the gradient at {self.point.name} was asked for, but gradients are switched off here (no_grad or "
                "inference mode), or the value has none (expert indices)"
            )
        return value.detach().requires_grad_()


class HookPoint:
    """A named place in the forward pass. Calling it returns the value, changed by whoever is attached."""

    def __init__(self, name: str, run: RunState) -> None:
        self.name = name
        self.run = run
        self.handles: list[Handle] = []
        self.ctx: dict[str, Any] = {}
        """Free space for TransformerLens-style functions."""
        self.sizes: Mapping[str, int] = {}
        """Lengths of axes that the model's configuration does not know: the latents of an SAE."""

    def __call__(self, value: Tensor) -> Tensor:
        if self.handles:
            for handle in sorted(self.handles, key=lambda handle: handle.last):
                value = handle.call(value)
        return value

    def edited(self, value: Tensor) -> Tensor | None:
        """Call the functions on a value that the fused path never makes; the new value, None if nobody changed it.

        The caller keeps its fused result on None, so a function that only looks leaves the logits bit-identical. Where a
        gradient is asked for the value itself comes back: it must stand in the graph.
        """
        new = self(value)
        if any(handle.needs_graph for handle in self.handles):
            return new
        same = (
            new is value
            or torch.equal(new, value)
            or (torch.isnan(value).any() and torch.allclose(new, value, 0, 0, True))
        )
        return None if same else new

    def layer(self) -> int:
        """The layer of the site, as TransformerLens-style functions ask for it."""
        layer = sites.layer_of(self.name)
        if layer is None:
            raise ValueError(f"{self.name} lies outside the blocks and has no layer")
        return layer

    def context(self, handle: Handle | None = None) -> HookContext:
        """What a native function is told."""
        run = self.run
        assert run.positions is not None
        assert run.mask is not None
        return HookContext(
            self.name, sites.layer_of(self.name), run.phase, run.step, run.positions, run.mask, run.prompt_len, handle,
            run.texts,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"HookPoint({self.name!r}, {len(self.handles)} attached)"


@dataclass
class Request:
    """Functions to attach: (site name, function, style)."""

    entries: list[tuple[str, Any, str]] = field(default_factory=list)

    @classmethod
    def native(cls, hooks: Mapping[Any, Any], expand: Callable[[Any], list[str]]) -> "Request":
        """From `{site: fn}`; a site may be shorthand or a pattern, and `expand` says which full names it stands for."""
        return cls([(name, fn, "native") for site, fn in hooks.items() for name in expand(site)])

    @classmethod
    def lens(cls, pairs: Iterable[Any], expand: Callable[[Any], list[str]], style: str = "lens") -> "Request":
        """From TransformerLens-style `(name or predicate, fn)` pairs; style `grad` for backward hooks."""
        entries: list[tuple[str, Any, str]] = []
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ValueError(f"hooks are a list of pairs [(site, function), ...], got {pair!r} among them")
            site, fn = pair
            names = [name for name in expand("*") if site(name)] if callable(site) else expand(site)
            if not names:
                raise ValueError(f"the hook predicate {site!r} selects no site of this model; model.sites() lists them")
            entries += [(name, fn, style) for name in names]
        return cls(entries)


@contextmanager
def attached(points: Mapping[str, HookPoint], request: Request, run: RunState) -> Iterator[list[Handle]]:
    """Attach the functions for the length of the block, in order, after those that are there already.

    Raises:
        ValueError: on the way out, if a forward pass ran and one of the functions was never called.
    """
    _check_functions(request)
    handles = [Handle(points[name], fn, style) for name, fn, style in request.entries]
    before = run.forwards
    for handle in handles:
        handle.point.handles.append(handle)
    try:
        yield handles
    finally:
        for handle in handles:
            handle.point.handles = [other for other in handle.point.handles if other is not handle]
    if run.forwards == before:
        return
    idle = sorted({handle.point.name for handle in handles if handle.reached is False})
    if idle:
        raise ValueError(
            f"an intervention at {', '.join(idle)} found no token to act on: its positions or rows lie outside the "
            "texts, or its phase never came (model(x) is 'forward', generate is 'prefill' and 'decode')"
        )
    silent = sorted({handle.point.name for handle in handles if not handle.fired})
    if silent:
        why = "the pass never came there"
        if run.last_stop is not None:
            why = f"the pass stopped at layer {run.last_stop}"
        elif run.last_start:
            why = f"the pass started at layer {run.last_start}"
        raise ValueError(f"these hooks were asked for and never fired ({why}): {', '.join(silent)}")


def _check_functions(request: Request) -> None:
    """ValueError at once for what cannot be called as it will be, and not from inside the pass."""
    seen: set[int] = set()
    for name, fn, style in request.entries:
        if id(fn) in seen or style in ("read", "keep", "source", "splice"):
            continue
        seen.add(id(fn))
        if not callable(fn):
            raise ValueError(f"the hook on {name} must be a function, got {type(fn).__name__}")
        try:
            signature = inspect.signature(fn)
        except ValueError:  # some built-in functions have none
            continue
        try:
            signature.bind(None, None) if style == "native" else signature.bind(None, hook=None)
        except TypeError:
            form = "fn(value, ctx)" if style == "native" else "fn(value, hook)"
            raise ValueError(f"the hook on {name} must be callable as {form}; it is {signature}") from None
