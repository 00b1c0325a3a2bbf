"""Run again only what a change reaches.

Sweeps ask one question many times: what would the model say if this one value were another? A change at layer l changes
nothing before l.

1. Run the model once and keep the stream into every block that changes will start at.
2. A changed run begins at its layer, from the kept stream.
3. Runs that begin at one layer stand side by side in one batch, each in rows of its own (`copies`).
4. Only the rows that are asked for are unembedded; the vocabulary is the widest thing that a model makes.

The figures are those of whole runs, up to the rounding of another batch size.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks import HookContext
from interp.model import HookedTransformer
from interp.tokens import Tokens

Change = Callable[[Tensor, HookContext], Tensor | None]
"""fn(value [(copies batch) ...], ctx) -> the new value, or None to keep it."""
ROWS = 2048
"""Most tokens of one batch of copies: more gain nothing on a CPU and cost memory."""


@dataclass(frozen=True, eq=False)
class BaseRun:
    """A run whose streams are kept, from which changed runs start."""

    model: HookedTransformer
    """What ran."""
    tokens: Tokens
    """The texts, on the model's device."""
    streams: Mapping[int, Float[Tensor, "batch pos d_model"]]
    """Stream into each block that was asked for."""
    final: Float[Tensor, "batch pos d_model"]
    """Stream out of the last block, before the final norm."""

    def stream(
        self, layer: int, hooks: Mapping[str, Change], copies: int = 1
    ) -> Float[Tensor, "copies batch pos d_model"]:
        """Final streams of `copies` changed runs that begin at block `layer`.

        Args:
            layer: the first block that runs; 0 runs everything.
            hooks: full site name or shorthand -> change. A value's first axis counts copies x texts, copy by copy:
                `value.unflatten(0, (copies, -1))` parts them.
            copies: runs side by side.
        """
        n, d_model = len(self.tokens), self.final.shape[-1]
        resid = self.streams[layer].expand(copies, n, -1, d_model).reshape(copies * n, -1, d_model)
        with torch.no_grad(), self.model.hooks(dict(hooks)):
            out = self.model(
                resid, start_at_layer=layer, tokens=self.repeated(copies), stop_at_layer=self.model.cfg.n_layers
            )
        return out.unflatten(0, (copies, n))

    def repeated(self, copies: int) -> Tokens:
        """The texts, `copies` times one after the other."""
        return self.tokens if copies == 1 else repeat_tokens(self.tokens, copies)

    def last_logits(self, stream: Float[Tensor, "*copies batch pos d_model"]) -> Float[Tensor, "*copies batch d_vocab"]:
        """Logits at each text's last real token, of final streams."""
        rows = stream[..., torch.arange(len(self.tokens), device=stream.device), self.tokens.last, :]
        with torch.no_grad():
            return self.model.unembed_logits(rows)

    def copies_at_once(self, wished: int | Any = None) -> int:
        """How many copies make a batch: as many as the caller wishes, else what suits a CPU.

        Raises:
            ValueError: a wish that is no number of runs.
        """
        if wished is None:
            return max(1, ROWS // self.tokens.ids.numel())
        if isinstance(wished, bool) or not isinstance(wished, int) or wished < 1:
            raise ValueError(f"batch_size={wished!r}: at least one run must go at once")
        return wished


def base_run(model: HookedTransformer, x: Any, layers: Iterable[int] | None = None) -> BaseRun:
    """Run the texts once and keep the stream into each of `layers` (None: all).

    Args:
        model: any loaded model.
        x: what `model.tokenize` takes.
        layers: first blocks of later changed runs.
    """
    tokens = model.tokenize(x)
    wanted = range(model.cfg.n_layers) if layers is None else sorted(set(layers))
    # Where blocks norm the stream itself, it is the normed one that the unembedding reads.
    end = "normalized_resid_post" if model.cfg.norm_placement == "post_ln" else "resid_post"
    last = f"{end}:{model.cfg.n_layers - 1}"
    names = {layer: f"blocks.{layer}.hook_resid_pre" for layer in wanted}
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, [*names.values(), last], stop_at_layer=model.cfg.n_layers)
    return BaseRun(model, tokens, {layer: cache[name] for layer, name in names.items()}, cache[last])


def repeat_tokens(tokens: Tokens, copies: int) -> Tokens:
    """A batch with all its texts `copies` times, one batch after the other."""
    documents = None if tokens.documents is None else tokens.documents.repeat(copies, 1)
    parents = None if tokens.parents is None else tokens.parents.repeat(copies, 1)
    return Tokens(tokens.ids.repeat(copies, 1), tokens.mask.repeat(copies, 1), documents=documents, parents=parents)
