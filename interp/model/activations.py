"""ActivationCache: what one forward pass recorded, by full name, shorthand or (kind, layer)."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from interp import sites
from interp.model.act_names import get_act_name
from interp.model.contributions import take
from interp.model.decomposition import Decomposition
from interp.model.lens_style import LensStyle
from interp.tokens import Tokens


class NotRecorded(ValueError, KeyError):
    """A site that exists but was not recorded in this pass."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownSite(ValueError, KeyError):
    """A name that no site of the model has; a KeyError too, so that `cache.get(name)` gives its default."""

    def __str__(self) -> str:
        return str(self.args[0])


class ActivationCache(Decomposition, Mapping[str, Tensor]):
    """Site name -> value, in the order of computation. Values are those of the pass, neither moved nor copied.

    `cache["blocks.6.hook_resid_post"]`, `cache["resid_post:6"]`, `cache["resid_post", 6]`, `cache["resid_post", -1]` and
    `cache["z:5.3"]` (one head) all work, and so do TransformerLens' `cache["scale", 3, "ln1"]` and `cache["k6"]`. The
    methods that take the stream apart stand in `Decomposition`.

    Args:
        values: full site name -> value.
        tokens: of the pass.
        available: every full site name of the model.
        model: that made the values; the methods of `Decomposition` need its weights.
    """

    def __init__(
        self, values: Mapping[str, Tensor], tokens: Tokens, available: list[str], model: LensStyle | None = None
    ) -> None:
        self.cache_dict = dict(values)
        """The values themselves, by full name."""
        self.tokens = tokens
        """The tokens of the pass, with their mask. They keep their batch axis."""
        self.model = model
        """The model of the pass, None where only values are wanted."""
        self.has_batch_dim = True
        """False after `remove_batch_dim`."""
        self._available = available

    def __getitem__(self, site: Any) -> Tensor:
        if isinstance(site, str) and site in self.cache_dict:
            return self.cache_dict[site]
        try:
            found = self._select(site)
        except ValueError as error:
            raise UnknownSite(str(error)) from None
        if len(found) != 1:
            raise NotRecorded(f"{site!r} names {len(found)} sites; ask for one")
        name, component = found[0].name, found[0].component
        if name not in self.cache_dict:
            raise NotRecorded(
                f"{name} was not recorded; ask for it by run_with_cache(x, sites={sites.short_name(name)!r})"
            )
        value = self.cache_dict[name]
        axis = sites.kind_of(name).component
        if component is None or axis is None:
            return value
        axis -= not self.has_batch_dim
        if component >= value.shape[axis]:
            raise NotRecorded(f"{site!r}: the site has components 0 to {value.shape[axis] - 1}")
        return value.select(axis, component)

    def _select(self, site: Any) -> list[sites.Selector]:
        if isinstance(site, tuple) and site and isinstance(site[0], str):
            kind, layer, part, *more = (*site, None, None)[: max(3, len(site))]
            if more:
                raise ValueError(f"cache[{site!r}]: a site is named by its kind, its layer and its part")
            if isinstance(layer, int):
                n_layers = 1 + max((sites.layer_of(name) or 0 for name in self._available), default=0)
                layer += n_layers if layer < 0 else 0
                if not 0 <= layer < n_layers:
                    raise ValueError(f"cache[{site!r}]: the model has layers 0 to {n_layers - 1}")
            return sites.select(get_act_name(kind, layer, part), self._available)
        try:
            return sites.select(site, self._available)
        except ValueError:
            name = _lens_name(site)
            if name is None:
                raise
            return sites.select(name, self._available)

    def __contains__(self, site: object) -> bool:
        try:
            self[site]
        except ValueError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.cache_dict)

    def __len__(self) -> int:
        return len(self.cache_dict)

    def __repr__(self) -> str:
        size = sum(value.numel() * value.element_size() for value in self.cache_dict.values())
        return f"ActivationCache({len(self)} sites, {size / 1e6:.1f} MB)"

    # As in TransformerLens these change the cache itself and return it.

    def to(self, device: str | torch.device) -> "ActivationCache":
        """Move every value to a device; the methods that need the model need it on the same one."""
        self.cache_dict = {name: value.to(device) for name, value in self.cache_dict.items()}
        self.tokens = self.tokens.to(device)
        return self

    def remove_batch_dim(self) -> "ActivationCache":
        """Drop the batch axis of every value; a second call changes nothing.

        Raises:
            ValueError: more than one text.
        """
        if self.has_batch_dim:
            if len(self.tokens) != 1:
                raise ValueError(f"the cache holds {len(self.tokens)} texts: the batch axis can go with one text alone")
            self.cache_dict = {name: value[0] for name, value in self.cache_dict.items()}
            self.has_batch_dim = False
        return self

    def apply_slice_to_batch_dim(self, batch_slice: Any) -> "ActivationCache":
        """A new cache with some of the texts.

        Args:
            batch_slice: a number (the batch axis goes), a (start, stop) tuple, a list or tensor of indices, or None.
        """
        if not self.has_batch_dim:
            raise ValueError("this cache has no batch axis any more: remove_batch_dim() was called")
        values = {name: take(value, batch_slice, 0) for name, value in self.cache_dict.items()}
        rows = [batch_slice] if isinstance(batch_slice, int) else batch_slice
        texts = None if self.tokens.texts is None else [self.tokens.texts[i] for i in _indices(rows, len(self.tokens))]
        documents, parents = (
            None if each is None else take(each, rows, 0) for each in (self.tokens.documents, self.tokens.parents)
        )
        ids, mask = take(self.tokens.ids, rows, 0), take(self.tokens.mask, rows, 0)
        tokens = Tokens(ids, mask, self.tokens.bos_added, texts, documents, parents)
        part = ActivationCache(values, tokens, self._available, self.model)
        part.has_batch_dim = not isinstance(batch_slice, int)
        return part


def _indices(rows: Any, n_rows: int) -> list[int]:
    return take(torch.arange(n_rows), rows, 0).tolist()


def _lens_name(site: Any) -> str | None:
    """The full name of a string that TransformerLens understands beyond our shorthand, such as `k6` or `scale`."""
    if not isinstance(site, str) or ":" in site:
        return None
    try:
        return get_act_name(site)
    except ValueError:
        return None
