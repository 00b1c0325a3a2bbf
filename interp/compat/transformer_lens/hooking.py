"""Recording and hooks by TransformerLens' calls: `run_with_cache`, `run_with_hooks`, `hooks`, `add_hook`, `reset_hooks`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torch import Tensor

from interp.compat.transformer_lens.activation_cache import ActivationCache
from interp.compat.transformer_lens.config import HookedTransformerConfig
from interp.compat.transformer_lens.hook_points import HookFunction, Hooks, LensHandle, LensPoint
from interp.compat.transformer_lens.utils import Slice
from interp.hooks import Handle
from interp.model import HookedTransformer as NativeTransformer
from interp.sites import kind_of, layer_of

FLAGGED = {
    "hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Sites that are recorded without being named where a flag of the configuration is set."""


class Hooking:
    """The part of HookedTransformer that looks inside and changes things."""

    native: NativeTransformer
    cfg: HookedTransformerConfig
    hooks_attached: Hooks
    __call__: Callable[..., Any]

    def run_with_cache(
        self,
        *model_args: Any,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        names_filter: Any = None,
        device: Any = None,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Any, Any]:
        """(what `forward` returns, what was recorded), detached.

        Args:
            model_args, model_kwargs: as in `forward`.
            return_cache_object: an ActivationCache; otherwise a dict by full name.
            remove_batch_dim: leave the batch axis out, for one text.
            names_filter: a name, names, or a predicate; None for every site that the flags switch on.
            device: where the values go; None leaves them.
            incl_bwd: call backward on what the pass returns, and record the gradients as "<name>_grad".
            reset_hooks_end: unused: recording takes off its own hooks, and no others.
            clear_contexts: empty every point's `ctx` in the end.
            pos_slice: positions to keep, as `Slice` takes them.
        """
        del reset_hooks_end
        keep, values = Slice.unwrap(pos_slice), {}

        def save(name: str, value: Tensor) -> None:
            value = value.detach() if device is None else value.detach().to(device)
            axis = -3 if kind_of(name.removesuffix("_grad")).component == 2 and value.ndim == 4 else -2
            value = keep.apply(value, dim=axis)
            values[name] = value[0] if remove_batch_dim else value

        with self._recording(self._filtered(names_filter, model_kwargs.get("stop_at_layer")), save, incl_bwd):
            out = self(*model_args, **model_kwargs)
            if incl_bwd:
                out.backward()
        if clear_contexts:
            self.clear_contexts()
        cache = ActivationCache(values, self, has_batch_dim=not remove_batch_dim) if return_cache_object else values
        return out, cache

    @contextmanager
    def _recording(self, names: list[str], save: Callable[[str, Tensor], None], backward: bool) -> Iterator[None]:
        """Readers at these sites, behind the hooks that are there."""
        handles = []
        for name in names:
            point = self.native.hook_dict[name]
            handles.append(Handle(point, lambda value, ctx: save(ctx.name, value), "read"))
            if backward:
                handles.append(Handle(point, lambda gradient, hook: save(f"{hook.name}_grad", gradient), "grad"))
        for handle in handles:
            handle.point.handles.append(handle)
        try:
            yield
        finally:
            for handle in handles:
                handle.point.handles = [other for other in handle.point.handles if other is not handle]

    def _filtered(self, names_filter: Any, stop: int | None) -> list[str]:
        if names_filter is not None and not callable(names_filter):
            return self.native.expand_sites(names_filter)
        names = self._active_sites()
        if stop is not None:
            last = stop + (self.cfg.n_layers if stop < 0 else 0)
            names = [name for name in names if _reached(name, last)]
        return names if names_filter is None else [name for name in names if names_filter(name)]

    def _active_sites(self) -> list[str]:
        """Sites that exist without being named: all, but for those whose flag is off."""

        def active(name: str) -> bool:
            flag = FLAGGED.get(name.rpartition(".")[2])
            return getattr(self.cfg, flag) if flag else not kind_of(name).on_request

        return [name for name in self.native.site_names if active(name)]

    # Hooks ---------------------------------------------------------------------------------------------------------

    @property
    def hook_dict(self) -> dict[str, LensPoint]:
        """Every site by full name, in the order of computation."""
        return {name: LensPoint(point, self.hooks_attached) for name, point in self.native.hook_dict.items()}

    def hook_points(self) -> list[LensPoint]:
        """Every site."""
        return list(self.hook_dict.values())

    def add_hook(
        self,
        name: Any,
        hook: HookFunction,
        dir: str = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Attach fn(value, hook=point) to a site, or to all that a predicate selects, until hooks are reset."""
        self.hooks_attached.add(name, hook, dir, is_permanent, level, prepend)

    def add_perma_hook(self, name: Any, hook: HookFunction, dir: str = "fwd") -> None:
        """Attach a hook that `reset_hooks()` leaves."""
        self.add_hook(name, hook, dir, is_permanent=True)

    def remove_all_hook_fns(
        self, direction: str = "both", including_permanent: bool = False, level: int | None = None
    ) -> None:
        """Take off what was attached."""
        self.hooks_attached.remove(direction, including_permanent, level)

    def reset_hooks(
        self,
        clear_contexts: bool = True,
        direction: str = "both",
        including_permanent: bool = False,
        level: int | None = None,
    ) -> None:
        """Take off what was attached, and empty the points' `ctx`."""
        if clear_contexts:
            self.clear_contexts()
        self.remove_all_hook_fns(direction, including_permanent, level)

    def clear_contexts(self) -> None:
        """Empty the `ctx` of every point."""
        for point in self.native.hook_dict.values():
            point.ctx = {}

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Iterable[tuple[Any, HookFunction]] = (),
        bwd_hooks: Iterable[tuple[Any, HookFunction]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[Self]:
        """Attach (name or predicate, fn(value, hook=point)) for the length of the block.

        Args:
            fwd_hooks: called with a site's value.
            bwd_hooks: called with its gradient, in the backward pass.
            reset_hooks_end: take them off in the end; False leaves them, for a backward pass that comes later.
            clear_contexts: empty the points' `ctx` in the end.

        Raises:
            ValueError: an unknown name, or a pass that never came to a named site.
        """
        attached, run = self.hooks_attached, self.native.run
        attached.level += 1
        before, mine = run.forwards, []
        try:
            for direction, pairs in (("fwd", fwd_hooks), ("bwd", bwd_hooks)):
                for name, fn in pairs:
                    mine += attached.add(name, fn, direction, level=attached.level)
            yield self
        finally:
            if reset_hooks_end:
                self.reset_hooks(clear_contexts, level=attached.level)
            attached.level -= 1
        _refuse_silent(mine, run.forwards > before)

    def run_with_hooks(
        self,
        *model_args: Any,
        fwd_hooks: Sequence[tuple[Any, HookFunction]] = (),
        bwd_hooks: Sequence[tuple[Any, HookFunction]] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """One pass with hooks; `bwd_hooks` need reset_hooks_end=False, since the backward pass comes later."""
        if bwd_hooks and reset_hooks_end:
            raise ValueError(
                "bwd_hooks would be taken off before any backward pass: pass reset_hooks_end=False and call "
                "model.reset_hooks() behind loss.backward(), or use `with model.hooks(bwd_hooks=...)`"
            )
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            return self(*model_args, **model_kwargs)


def _reached(name: str, stop: int) -> bool:
    """Whether a pass that stops before block `stop` comes to a site."""
    layer = layer_of(name)
    return not name.startswith("ln_final") if layer is None else layer < stop


def _refuse_silent(handles: list[LensHandle], ran: bool) -> None:
    silent = sorted({entry.handle.point.name for entry in handles if entry.explicit and not entry.handle.fired})
    if silent and ran:
        raise ValueError(f"these hooks were asked for and no pass came to them: {', '.join(silent)}")
