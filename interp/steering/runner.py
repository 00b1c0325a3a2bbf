"""Texts that are scored many times, each time under another intervention.

1. The texts run once without anything, and the stream into the first changed layer is kept: a change there alters nothing
   before it.
2. Every later run begins at that layer, with the interventions attached as anywhere else, so that it sees what one pass over
   the whole text, or a generation, sees.
3. Only the rows that are read are unembedded, a chunk at a time; the vocabulary is the widest thing that a model makes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from interp import sites as site_names
from interp.intervene import Where
from interp.model import HookedTransformer
from interp.model.inputs import refuse_not_finite
from interp.tokens import Tokens

CHUNK = 2**23
"""Most logits held at a time: 32 MB in fp32."""


def first_layer(model: HookedTransformer, interventions: Iterable[Any]) -> int:
    """The first block that must run again under these interventions; 0 if the embedding is touched, or nothing is.

    Raises:
        ValueError: a place after the blocks, which no scored pass reaches.
    """
    names = [name for each in interventions for name, _ in each.hook_functions(model)]
    late = [name for name in names if name.startswith("ln_final")]
    if late:
        raise ValueError(f"{late[0]} comes after the blocks: steer at a site inside them, such as resid_post")
    layers = [site_names.layer_of(name) for name in names]
    return 0 if not layers or None in layers else min(layer for layer in layers if layer is not None)


def refuse_rows(where: Any) -> None:
    """ValueError for rows of a batch: texts that are scored are sorted into batches by length."""
    if isinstance(where, Where) and where.rows is not None:
        raise ValueError(
            f"rows={list(where.rows)} are rows of one batch, and scored texts are sorted into batches: leave rows out, "
            "or use model.intervene(...) and the model itself"
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts that run together."""

    texts: Int[np.ndarray, " row"]
    """Which texts the rows are."""
    tokens: Tokens
    """On the model's device, padded on the right."""
    prompt_len: Int[Tensor, " row"]
    """Tokens of each prompt."""
    streams: dict[int, Float[Tensor, "row pos d_model"]]
    """Stream into each layer that runs begin at."""

    @property
    def lengths(self) -> Int[Tensor, " row"]:
        """Tokens of each text."""
        return self.tokens.lengths

    def responses(self) -> Bool[Tensor, "row pos"]:
        """True for the tokens after each prompt."""
        place = torch.arange(self.tokens.ids.shape[1], device=self.tokens.ids.device)
        return self.tokens.mask & (place >= self.prompt_len[:, None])


class Sheet:
    """Texts and what they cost once."""

    def __init__(
        self,
        model: HookedTransformer,
        sequences: Sequence[Sequence[int]],
        prompt_len: Sequence[int],
        layers: Iterable[int],
        batch_size: int = 32,
    ) -> None:
        """Run the texts.

        Args:
            model: as it is, without interventions.
            sequences: token ids of each text.
            prompt_len: tokens of each prompt: what `where="prompt"` and `"generated"` mean.
            layers: where later runs begin.
            batch_size: texts in a pass.

        Raises:
            ValueError: a text that the context does not hold.
        """
        longest = max(map(len, sequences))
        if longest > model.cfg.n_ctx:
            raise ValueError(
                f"text {[len(each) for each in sequences].index(longest)} has {longest} tokens, the model's context holds "
                f"{model.cfg.n_ctx}: shorten it"
            )
        self.model, self.n = model, len(sequences)
        by_length = sorted(range(self.n), key=lambda i: len(sequences[i]))
        self.batches = [
            self._batch(by_length[begin : begin + batch_size], sequences, prompt_len, sorted(set(layers) - {0}))
            for begin in range(0, self.n, batch_size)
        ]

    @torch.inference_mode()
    def _batch(
        self, rows: list[int], sequences: Sequence[Sequence[int]], prompt_len: Sequence[int], layers: list[int]
    ) -> Batch:
        model, width = self.model, max(len(sequences[i]) for i in rows)
        pad = model.tokenizer.pad_id if model.tokenizer is not None else 0
        ids = torch.tensor([[*sequences[i], *[pad] * (width - len(sequences[i]))] for i in rows])
        mask = torch.arange(width) < torch.tensor([len(sequences[i]) for i in rows])[:, None]
        tokens = model.tokenize(Tokens(ids, mask, False, None))
        streams: dict[int, Tensor] = {}
        if layers:
            names = {layer: f"blocks.{layer}.hook_resid_pre" for layer in layers if layer < model.cfg.n_layers}
            _, cache = model.run_with_cache(tokens, list(names.values()), stop_at_layer=max(names) + 1)
            streams = {layer: cache[name] for layer, name in names.items()}
        lengths = torch.tensor([prompt_len[i] for i in rows], device=model.device)
        return Batch(np.array(rows), tokens, lengths, streams)

    @torch.inference_mode()
    def runs(self, layer: int, interventions: Sequence[Any] = ()) -> Iterator[tuple[Batch, Tensor]]:
        """Each batch and its final stream [row pos d_model], under the interventions, which change nothing before `layer`."""
        model, end = self.model, self.model.cfg.n_layers
        with model.intervene(*interventions):
            for batch in self.batches:
                options = {"stop_at_layer": end, "prompt_len": batch.prompt_len}
                if layer == 0:
                    stream = model(batch.tokens, **options)
                else:
                    stream = model(batch.streams[layer], start_at_layer=layer, tokens=batch.tokens, **options)
                refuse_not_finite(stream, batch.tokens)
                yield batch, stream


@torch.inference_mode()
def log_probabilities(
    model: HookedTransformer, rows: Float[Tensor, "read d_model"]
) -> Iterator[tuple[slice, Float[Tensor, "read d_vocab"]]]:
    """Log-probabilities of the next token at these rows of the final stream, in fp32, a chunk at a time.

    Raises:
        ValueError: NaN in the logits.
    """
    step = max(1, CHUNK // model.cfg.d_vocab)
    for begin in range(0, len(rows), step):
        logits = model.unembed_logits(rows[begin : begin + step])
        found = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        if bool(found[:, 0].isnan().any()):
            raise ValueError(
                "the steered model gives NaN logits: the strength is far too large, or its weights are damaged"
            )
        yield slice(begin, begin + len(found)), found


def response_logprobs(sheet: Sheet, layer: int, interventions: Sequence[Any]) -> Float64[np.ndarray, " text"]:
    """log p(response | prompt) of each text, summed over the response's tokens, nats."""
    total = np.zeros(sheet.n)
    for batch, stream in sheet.runs(layer, interventions):
        row, place = batch.responses().nonzero(as_tuple=True)
        wanted = batch.tokens.ids[row, place]
        found = torch.empty(len(row), dtype=torch.float64)
        for part, logp in log_probabilities(sheet.model, stream[row, place - 1]):
            found[part] = logp.gather(1, wanted[part, None])[:, 0].double().cpu()
        np.add.at(total, batch.texts[row.cpu().numpy()], found.numpy())
    return total


def last_logprobs(
    sheet: Sheet, layer: int, interventions: Sequence[Any]
) -> Iterator[tuple[Int[np.ndarray, " read"], Float[Tensor, "read d_vocab"]]]:
    """Which texts, and the log-probabilities after their last token."""
    for batch, stream in sheet.runs(layer, interventions):
        rows = stream[torch.arange(len(stream), device=stream.device), batch.lengths - 1]
        for part, logp in log_probabilities(sheet.model, rows):
            yield batch.texts[part], logp
