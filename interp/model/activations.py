"""ActivationCache: what one forward pass recorded, by full name, shorthand or (kind, layer)."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from interp import sites
from interp.tokens import Tokens


class NotRecorded(ValueError, KeyError):
    """A site that exists but was not recorded in this pass."""

    def __str__(self) -> str:
        return str(self.args[0])


class ActivationCache(Mapping[str, Tensor]):
    """Site name -> value, in the order of computation. Values are those of the pass, neither moved nor copied.

    `cache["blocks.6.hook_resid_post"]`, `cache["resid_post:6"]`, `cache["resid_post", 6]` and `cache["z:5.3"]` (one
    head) all work.
    """

    def __init__(self, values: Mapping[str, Tensor], tokens: Tokens, available: list[str]) -> None:
        self._values = dict(values)
        self._available = available
        self.tokens = tokens
        """The tokens of the pass, with their mask."""

    def __getitem__(self, site: Any) -> Tensor:
        found = sites.select(site, self._available)
        if len(found) != 1:
            raise NotRecorded(f"{site!r} names {len(found)} sites; ask for one")
        name, component = found[0].name, found[0].component
        if name not in self._values:
            raise NotRecorded(
                f"{name} was not recorded; ask for it by run_with_cache(x, sites={sites.short_name(name)!r})"
            )
        value = self._values[name]
        axis = sites.kind_of(name).component
        if component is None or axis is None:
            return value
        if component >= value.shape[axis]:
            raise NotRecorded(f"{site!r}: the site has components 0 to {value.shape[axis] - 1}")
        return value.select(axis, component)

    def __contains__(self, site: object) -> bool:
        try:
            self[site]
        except ValueError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        size = sum(value.numel() * value.element_size() for value in self._values.values())
        return f"ActivationCache({len(self)} sites, {size / 1e6:.1f} MB)"
