"""The logit lens: what would be predicted if the model stopped here (nostalgebraist 2020).

1. Run the model once and keep the residual stream at the sites asked for, or read it from a store.
2. For each site and token: the final norm *recomputed for that row*, then the unembedding. (Dividing by the final
   layer's scale instead is the well-known mistake; it flattens the early layers.)
3. Reduce each distribution at once to its top tokens, entropy, rank and divergence. Nothing of size
   [site, token, vocabulary] is ever held, and of long inputs only a part of the streams.

Divergence is KL(final || lens), in nats. The *settle layer* of a token is the first layer from which the top
prediction is the final one at every later layer. Another lens, a trained or a fitted one, goes before step 2 with `lens=`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from interp import artifact
from interp.lens.places import lens_sites
from interp.lens.read import joined, read_passage
from interp.lens.result import LensResult
from interp.lens.source import Passage, at_positions, run_passages, store_passages, stored_sites
from interp.lens.translate import Translator
from interp.model import HookedTransformer
from interp.model.vocabulary import token_id
from interp.store import Store
from interp.store.lookup import whole_number


@torch.inference_mode()
def logit_lens(
    model: HookedTransformer,
    x: Any,
    *,
    sites: Any = None,
    answer: Any = None,
    k: int | Any = 5,
    lens: Translator | None = None,
    texts: Any = None,
    rows: Any = None,
    positions: Any = None,
) -> LensResult:
    """Read the residual stream through the final norm and the unembedding.

    Args:
        model: any loaded model.
        x: a text, texts, token ids or Tokens; or a store that was recorded from this model, which is then read without
            running the model again. Its rows are those that were recorded, in that order.
        sites: places in the residual stream; None for the embedding and the stream after each block, "all" for the middle
            of each block as well. Of a store those of them that it holds; of a `lens` those that it translates. The end of
            the last block is always among them.
        answer: a token (text or id) to follow, or a list of them (`LensResult.followed`); None follows the final layer's
            own top prediction at each token.
        k: how many top tokens to keep.
        lens: a trained or fitted lens that translates each site first; None for the logit lens itself.
        texts: of a store, numbers of texts to read.
        rows: of a store, rows to read, as in `Store.rows`. The result takes about 100 bytes for each row and site.
        positions: of texts, the positions to read, counted from 0 over each text's tokens; None for all. Reading costs a
            vocabulary for each row and site, far more than running, so a window of a long text is quick.

    Raises:
        ValueError: a site outside the residual stream (its norm is not the stream's); an answer of several tokens; a store
            of another model, without the final stream, or of averages; a lens of another model, or that does not
            translate a site.
    """
    k = whole_number("k", k)
    if not 1 <= k <= model.cfg.d_vocab:
        raise ValueError(f"k must lie in 1..{model.cfg.d_vocab}, got {k}")
    answers = _answer_ids(model, answer)
    if lens is not None:
        lens.check_model(model)
    names, passages = _passages(model, x, sites, lens, texts, rows)
    if positions is not None:
        passages = at_positions(passages, _wanted(x, positions))
    places: list[tuple[Tensor, ...]] = []
    parts: list[dict[str, Tensor]] = []
    for passage in passages:
        places.append(tuple(column.cpu() for column in (passage.text, passage.pos, passage.ids)))
        parts.append(read_passage(model, passage, names, lens=lens, answers=answers, k=k))
        del passage  # its streams go before the next ones come
    found = joined(parts) | {"answer_ids": torch.tensor(answers, dtype=torch.long)}
    return _result(model, names, [torch.cat(column) for column in zip(*places)], found, lens)


def _result(
    model: HookedTransformer,
    names: Sequence[str],
    places: Sequence[Tensor],
    found: dict[str, Tensor],
    lens: Translator | None,
) -> LensResult:
    """The figures of all rows with their places (text, position, token) and every token's readable form."""
    text, pos, ids = places
    seen = torch.cat([found["top_ids"].flatten(), found["target_ids"], found["answer_ids"], ids]).unique()
    readable = _readable(model, seen.tolist())
    kind = "logit" if lens is None else lens.name
    return LensResult(
        sites=tuple(names),
        text=text,
        pos=pos,
        token_ids=ids,
        labels=tuple(readable[i] for i in ids.tolist()),
        vocabulary=readable,
        card={
            **artifact.provenance(model=model.cfg.name, fingerprint=model.fingerprint, analysis=f"{kind} lens"),
            "lens": kind,
        },
        **found,
    )


def _passages(
    model: HookedTransformer, x: Any, sites: Any, lens: Translator | None, texts: Any, rows: Any
) -> tuple[list[str], Iterator[Passage]]:
    """Names of the sites, the final one last, and the rows with their streams."""
    if not isinstance(x, Store):
        if texts is not None or rows is not None:
            raise ValueError("texts= and rows= choose from a store; of texts give those that are wanted")
        names = lens_sites(model, sites, model.site_names, lens)
        return names, run_passages(model, x, names)
    store = x if texts is None and rows is None else x.select(texts=texts, rows=rows)
    names = lens_sites(model, sites, stored_sites(model, store), lens)
    return names, store_passages(model, store, names)


def _wanted(x: Any, positions: Any) -> list[int]:
    if isinstance(x, Store):
        raise ValueError("positions= chooses from texts; of a store give rows=")
    wanted = [whole_number("a position", position) for position in positions]
    if not wanted or min(wanted) < 0:
        raise ValueError(f"positions must be whole numbers from 0 up, at least one, got {wanted[:8]}")
    return wanted


def _answer_ids(model: HookedTransformer, answer: Any) -> list[int]:
    if answer is None:
        return []
    given = list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]
    return [token_id(model, one, "answer") for one in given]


def _readable(model: HookedTransformer, ids: Sequence[int]) -> dict[int, str]:
    """Each token id as a person reads it."""
    if model.tokenizer is None:
        return {i: str(i) for i in ids}
    return {i: model.tokenizer.views([i])[0].display for i in ids}
