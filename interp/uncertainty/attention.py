"""How spread attention is at chosen queries, without keeping a pattern.

1. The *diffusion* of a query is the entropy of each head's attention over the keys that it may see, divided by the log of
   their number: 0 is one key, 1 is all alike. It is the mean over the heads of all layers.
2. The first token of a text is a sink: it takes a large part of all attention in most models (Xiao et al. 2023, "Efficient
   Streaming Language Models with Attention Sinks"), and how much says whether a head is at rest, not where it looks. So the
   sink is left out and the rest made to sum to 1; the reading with it, and its own share, stand beside.
3. Patterns are read layer by layer while the pass runs, at the wanted queries alone.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.hooks import HookContext, Request, attached
from interp.model import HookedTransformer

LEAST_REST = 1e-4
"""A head with less than this beyond the sink looks at nothing: its spread there is rounding, and it is left out."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Places whose attention is read, in a batch [batch pos] of texts or trees of texts."""

    row: Int[Tensor, " query"]
    """Row of the batch."""
    place: Int[Tensor, " query"]
    """Place in the row."""
    position: Int[Tensor, " query"]
    """Position in its own text; it sees so many keys before itself, or a window of them."""
    sink: Int[Tensor, " query"]
    """Place in the row of its text's first token."""
    spans: Mapping[str, Bool[Tensor, "query key"]] = field(default_factory=dict)
    """Name -> which places in the row belong to a part of the text."""

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Attention:
    """What the heads do at each query, as means over the heads of all layers; NaN where nothing was in sight."""

    diffusion: Float[np.ndarray, " query"]
    """Normalised entropy without the sink, 0 to 1. NaN with fewer than 2 keys beside it."""
    diffusion_all: Float[np.ndarray, " query"]
    """The same with the sink. NaN for the first token, which sees itself alone."""
    sink: Float[np.ndarray, " query"]
    """Share of the attention at the first token."""
    spans: dict[str, Float[np.ndarray, " query"]]
    """Name -> share of the attention beyond the sink that goes to that part."""


class AttentionReader:
    """Reads the patterns of the passes inside `reading`; `found` gives the means afterwards."""

    def __init__(self, model: HookedTransformer) -> None:
        self._model = model
        kept = set(model.site_names)
        self._layers = {f"blocks.{i}.attn.hook_pattern": i for i in range(model.cfg.n_layers)}
        missing = [site for site in self._layers if site not in kept]
        if missing:
            raise ValueError(f"{model.cfg.name} has no {missing[0]}: its attention has no pattern to read")
        self._queries: Queries | None = None
        self._parts: list[dict[str, Tensor]] = []

    @contextmanager
    def reading(self, queries: Queries) -> Iterator[None]:
        """Look at one pass."""
        self._queries, self._parts = queries, []
        entries: list[tuple[str, Callable[..., Any], str]] = [(site, self._read, "read") for site in self._layers]
        with attached(self._model.hook_dict, Request(entries), self._model.run):
            yield

    def _read(self, pattern: Float[Tensor, "batch head query key"], ctx: HookContext) -> None:
        queries = self._queries
        assert queries is not None
        rows = pattern.detach()[queries.row, :, queries.place]
        assert ctx.layer is not None
        window = self._model.cfg.window if self._model.cfg.has_window(ctx.layer) else None
        self._parts.append(spread(rows, queries, window))

    def found(self) -> Attention:
        """Means over all heads of all layers, of those that look at something."""
        joined = {name: torch.cat([part[name] for part in self._parts], dim=1).numpy() for name in self._parts[0]}
        with warnings.catch_warnings():
            # A query without keys has no mean, and is said to have none.
            warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
            means = {name: np.nanmean(values, axis=1) for name, values in joined.items()}
        own = [means.pop(name) for name in ("diffusion", "diffusion_all", "sink")]
        return Attention(*own, spans={name.removeprefix("to "): values for name, values in means.items()})


def spread(
    pattern: Float[Tensor, "query head key"], queries: Queries, window: int | None = None
) -> dict[str, Float[Tensor, "query head"]]:
    """Diffusion with and without the sink, the sink's share, and the shares of the spans ("to " + name).

    Args:
        pattern: attention of each query; 0 at keys that it may not see.
        queries: where they stand.
        window: keys that a query of this layer sees at most, itself among them; None for no limit.
    """
    p = pattern.double().cpu()
    position = queries.position.cpu().double()
    visible = position + 1 if window is None else (position + 1).clamp(max=window)
    sees_sink = torch.ones_like(visible) if window is None else (position < window).double()
    at = queries.sink.cpu()[:, None, None].expand(-1, p.shape[1], 1)
    sink = p.gather(2, at)[..., 0]
    other = p.scatter(2, at, 0.0)
    rest = other.sum(-1)
    share = other / rest.clamp(min=LEAST_REST)[..., None]
    alone = rest < LEAST_REST
    values = {
        "diffusion": _normalised(torch.special.entr(share).sum(-1), visible - sees_sink).masked_fill(alone, torch.nan),
        "diffusion_all": _normalised(torch.special.entr(p).sum(-1), visible),
        "sink": sink,
    }
    for name, span in queries.spans.items():
        within = (share * span.cpu()[:, None, :].double()).sum(-1)
        values[f"to {name}"] = within.masked_fill(alone, torch.nan)
    return values


def _normalised(entropy: Float[Tensor, "query head"], n_keys: Float[Tensor, " query"]) -> Float[Tensor, "query head"]:
    """Entropy as a part of the most that so many keys allow; NaN for fewer than two."""
    most = n_keys.clamp(min=1).log()[:, None]
    return torch.where(most > 0, entropy / most.clamp(min=1e-9), torch.nan).clamp(max=1.0)
