"""Hooks that stay: TransformerLens' `add_hook`, `reset_hooks` and context levels, over our own HookPoints.

Our native calls attach functions for the length of a `with` block only. Notebooks also leave hooks behind on purpose
(permanent ones, and backward hooks until `loss.backward()`), so this module keeps the list of what was attached, and
takes off what a call asks for. The functions are called by the same `Handle` as native ones: in order, on a copy that
they may edit in place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from interp.hooks import Handle, HookPoint
from interp.model import HookedTransformer

__all__ = ["HookFunction", "HookPoint", "Hooks", "LensHandle", "LensPoint"]

HookFunction = Callable[..., Any]
"""fn(value, hook=HookPoint) -> new value or None."""


class Names(NamedTuple):
    """Where a hook goes, and whether somebody named the site."""

    sites: list[str]
    explicit: bool


@dataclass(eq=False)
class LensHandle:
    """One function that was attached."""

    handle: Handle
    """The native handle."""
    dir: str
    """fwd or bwd."""
    is_permanent: bool
    """Stays when hooks are reset, unless permanent ones are asked for."""
    context_level: int | None
    """Depth of the `hooks` block that attached it; None outside of one."""
    explicit: bool
    """A site's name was given, not a predicate: not being called is then an error."""


class Hooks:
    """What is attached to one model, in order."""

    def __init__(self, native: HookedTransformer, active: Callable[[], list[str]]) -> None:
        self.native, self.active = native, active
        self.attached: list[LensHandle] = []
        self.level = 0

    def names(self, name: Any) -> Names:
        """Sites of a name, shorthand or predicate; a predicate sees those that the configuration's flags switch on."""
        if not callable(name):
            return Names(self.native.expand_sites(name), True)
        found = [site for site in self.active() if name(site)]
        return Names(found, False)

    def add(
        self,
        name: Any,
        fn: HookFunction,
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> list[LensHandle]:
        """Attach a function to every site that a name or predicate selects."""
        if dir not in ("fwd", "bwd"):
            raise ValueError(f"dir must be 'fwd' or 'bwd', got {dir!r}")
        wanted = self.names(name)
        added = []
        for site in wanted.sites:
            point = self.native.hook_dict[site]
            handle = Handle(point, fn if dir == "fwd" else _one_gradient(fn), "lens" if dir == "fwd" else "grad")
            # A backward hook sees the value that the pass goes on with: it stays behind the forward ones.
            backward = [other for other in point.handles if other.style == "grad"]
            forward = [other for other in point.handles if other.style != "grad"]
            mine = forward if dir == "fwd" else backward
            mine.insert(0 if prepend else len(mine), handle)
            point.handles = [*forward, *backward]
            added.append(LensHandle(handle, dir, is_permanent, level, wanted.explicit))
        self.attached += added
        return added

    def remove(
        self,
        dir: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
        point: HookPoint | None = None,
    ) -> list[LensHandle]:
        """Take off what fits, at one point or everywhere; what was taken off."""
        if dir not in ("fwd", "bwd", "both"):
            raise ValueError(f"direction must be 'fwd', 'bwd' or 'both', got {dir!r}")

        def goes(entry: LensHandle) -> bool:
            if dir not in (entry.dir, "both") or (point is not None and entry.handle.point is not point):
                return False
            return including_permanent or (not entry.is_permanent and level in (None, entry.context_level))

        gone = [entry for entry in self.attached if goes(entry)]
        for entry in gone:
            home = entry.handle.point
            home.handles = [other for other in home.handles if other is not entry.handle]
        self.attached = [entry for entry in self.attached if entry not in gone]
        return gone


class LensPoint:
    """A HookPoint with TransformerLens' calls on it: `model.hook_dict[name].add_hook(fn)`."""

    def __init__(self, point: HookPoint, hooks: Hooks) -> None:
        self.point, self.hooks = point, hooks

    @property
    def name(self) -> str:
        """Full name of the site."""
        return self.point.name

    @property
    def ctx(self) -> dict[str, Any]:
        """Free space for functions."""
        return self.point.ctx

    def layer(self) -> int:
        """The layer; an error outside the blocks."""
        return self.point.layer()

    def add_hook(
        self,
        hook: HookFunction,
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Attach fn(value, hook=point)."""
        self.hooks.add(self.name, hook, dir, is_permanent, level, prepend)

    def add_perma_hook(self, hook: HookFunction, dir: str = "fwd") -> None:
        """Attach a function that `reset_hooks()` leaves."""
        self.add_hook(hook, dir, is_permanent=True)

    def remove_hooks(self, dir: str = "fwd", including_permanent: bool = False, level: int | None = None) -> None:
        """Take functions off."""
        self.hooks.remove(dir, including_permanent, level, self.point)

    def clear_context(self) -> None:
        """Empty `ctx`."""
        self.point.ctx = {}

    @property
    def fwd_hooks(self) -> list[LensHandle]:
        """The forward hooks that are attached."""
        return [entry for entry in self.hooks.attached if entry.handle.point is self.point and entry.dir == "fwd"]

    @property
    def bwd_hooks(self) -> list[LensHandle]:
        """The backward hooks that are attached."""
        return [entry for entry in self.hooks.attached if entry.handle.point is self.point and entry.dir == "bwd"]

    def has_hooks(self, dir: str = "both", including_permanent: bool = True, level: int | None = None) -> bool:
        """Whether a hook of this kind is attached."""
        return any(
            dir in (entry.dir, "both")
            and (including_permanent or not entry.is_permanent)
            and level in (None, entry.context_level)
            for entry in (*self.fwd_hooks, *self.bwd_hooks)
        )

    def __repr__(self) -> str:
        return f"HookPoint({self.name!r}, {len(self.fwd_hooks)} fwd, {len(self.bwd_hooks)} bwd)"


def _one_gradient(fn: HookFunction) -> HookFunction:
    """A backward hook may return (gradient,), as PyTorch's module hooks do."""

    def call(gradient: Tensor, hook: HookPoint) -> Tensor | None:
        returned = fn(gradient, hook=hook)
        return returned[0] if isinstance(returned, tuple) else returned

    return call
