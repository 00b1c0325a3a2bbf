"""Several lenses on the same held-out text: how near each comes to the model's own prediction, and to what is said later.

1. Run texts that no lens was fitted on, a few at a time.
2. At each site read every row through each lens, and keep two numbers: KL(final || lens) in nats, and the *best rank*: the
   place in the lens's list of the first token that the text really says within the next `horizon` tokens (1 is the top).
3. Means over rows, the rank's on a log scale, with 95 % bootstrap intervals over texts.

KL asks for the next token's distribution, which is what a tuned lens is trained for. A Jacobian lens shows what a place is
disposed to say later, and is to be judged by the rank. Frequent words make every rank small: read ranks beside each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp import artifact, plot
from interp import sites as site_names
from interp.lens.batches import text_hash, token_batches, token_rows
from interp.lens.intervals import mean_by_text
from interp.lens.jacobian import SKIP, JacobianLens
from interp.lens.places import lens_sites
from interp.lens.read import log_probabilities, rows_at_once
from interp.lens.source import run_passages
from interp.lens.translate import Translator
from interp.lens.tuned import TunedLens
from interp.model import HookedTransformer
from interp.model.inputs import refuse_encoder
from interp.sites import layer_of
from interp.store.lookup import whole_number

KIND = "lens comparison"
LOGIT = "logit"
BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class LensComparison:
    """Two figures of each lens at each site, by text."""

    lenses: tuple[str, ...]
    """Names; the logit lens first."""
    sites: tuple[str, ...]
    """Full site names, the final stream last."""
    kl: Float[np.ndarray, "lens site text"]
    """Mean KL(final || lens) of each text, nats. NaN where a lens does not translate a site."""
    log_rank: Float[np.ndarray, "lens site text"]
    """Mean natural log of the best rank of a token said within the horizon."""
    n: Int[np.ndarray, "text"]
    """Rows of each text: its tokens but the skipped ones and the last."""
    card: dict[str, Any]
    """Model, horizon, skip, seed, hash of the texts."""

    def to_frame(self) -> pd.DataFrame:
        """A line for each lens and site that it translates: lens, site, layer (-1 is the embedding), kl and rank with `_low`
        and `_high` (NaN for one text), n (rows), n_texts. The rank is the geometric mean, 1 is the top."""
        text = np.repeat(np.arange(len(self.n)), self.n)
        lines: list[dict[str, Any]] = []
        for lens, kl, log_rank in zip(self.lenses, self.kl, self.log_rank):
            # Rows of one text weigh alike, so its mean may stand for each of them.
            parts = [np.repeat(values, self.n, axis=1) for values in (kl, log_rank)]
            figures = np.stack([mean_by_text(part, text, seed=int(self.card["seed"])) for part in parts])
            figures[1] = np.exp(figures[1])
            for index, site in enumerate(self.sites):
                named = zip(("kl", "rank"), figures[:, :, index])
                line = {f"{name}{end}": v for name, three in named for end, v in zip(("", "_low", "_high"), three)}
                layer = layer_of(site)
                place = {"lens": lens, "site": site_names.short_name(site), "layer": -1 if layer is None else layer}
                lines.append({**place, **line, "n": int(self.n.sum()), "n_texts": len(self.n)})
        return pd.DataFrame(lines).dropna(subset=["kl"]).reset_index(drop=True)

    def plot(self, column: str = "kl") -> alt.LayerChart:
        """KL or rank by layer, a line for each lens with its interval."""
        if column not in ("kl", "rank"):
            raise ValueError(f"column must be 'kl' or 'rank', got {column!r}")
        frame = self.to_frame()
        low, high = (None, None) if len(self.n) == 1 else (f"{column}_low", f"{column}_high")
        horizon = self.card["horizon"]
        title = "KL(final || lens) (nats)" if column == "kl" else f"best rank of a token said within {horizon}"
        return plot.layer_curve(frame, column, low=low, high=high, colour="lens", domain=None, title=title)

    def save(self, path: str | Path) -> Path:
        """A JSON file; `load_lens_comparison` reads it."""
        figures = {"kl": _listed(self.kl), "log_rank": _listed(self.log_rank), "n": self.n.tolist()}
        names = {"kind": KIND, "lenses": list(self.lenses), "sites": list(self.sites)}
        return artifact.write_json(path, names | figures | {"card": self.card})


def load_lens_comparison(path: str | Path) -> LensComparison:
    """Read what `LensComparison.save` wrote."""
    found = artifact.read_json(path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{path} is not a {KIND}: load it with the function for its kind")
    kl, log_rank = (np.array(found[key], dtype=float) for key in ("kl", "log_rank"))
    return LensComparison(
        tuple(found["lenses"]), tuple(found["sites"]), kl, log_rank, np.array(found["n"]), found["card"]
    )


@torch.inference_mode()
def compare_lenses(
    model: HookedTransformer,
    texts: Any,
    lenses: Sequence[Translator] = (),
    *,
    sites: Any = None,
    horizon: int | Any = 20,
    skip: int | Any = SKIP,
    max_length: int | Any = None,
    seed: int = 0,
) -> LensComparison:
    """Compare lenses with the logit lens on text that none was fitted on.

    Args:
        model: any causal model.
        texts: what `model.tokenize` takes, and rows of ids of any lengths.
        lenses: Translators with names of their own.
        sites: places in the stream; None for the embedding and the end of each block.
        horizon: a token counts as said if it is among so many next ones.
        skip: first positions of each text that are left out: sinks read like no other token.
        max_length: texts are cut after so many tokens; None for the model's context.
        seed: of the bootstrap.

    Raises:
        ValueError: an encoder, a lens of another model, two lenses of one name, texts without a row that counts, or a text
            that a Jacobian or tuned lens was fitted on, by the hashes in its card. Files from before cards of tuned lenses
            had hashes, imported lenses, and lenses from stores without token ids have none: there nothing is checked.
    """
    refuse_encoder(model.cfg, "what is said later")
    horizon, skip = whole_number("horizon", horizon, 1), whole_number("skip", skip, 0)
    names = (LOGIT, *(lens.name for lens in lenses))
    if len(set(names)) < len(names):
        raise ValueError(f"each lens needs a name of its own, got {', '.join(names)}")
    places = lens_sites(model, sites, model.site_names, None)
    rows = token_rows(model, texts, max_length)
    for lens in lenses:
        lens.check_model(model)
        _refuse_fitted(lens, rows)
    kept = [row for row in rows if len(row) > skip + 1]
    if not kept:
        raise ValueError(
            f"no text has a token with a next one after the {skip} positions that are skipped (the longest has "
            f"{max(map(len, rows))} tokens): give longer texts, or a smaller skip"
        )
    n = np.array([len(row) - skip - 1 for row in kept])
    kl, log_rank = (_sums(model, kept, places, lenses, horizon, skip) / torch.from_numpy(n)).numpy()
    card = artifact.provenance(
        analysis=KIND, model=model.cfg.name, fingerprint=model.fingerprint, horizon=horizon, skip=skip, seed=seed,
        data=artifact.hash_json(kept), n_too_short=len(rows) - len(kept),
    )  # fmt: skip
    return LensComparison(names, tuple(places), kl, log_rank, n, card)


def _sums(
    model: HookedTransformer,
    kept: Sequence[list[int]],
    places: Sequence[str],
    lenses: Sequence[Translator],
    horizon: int,
    skip: int,
) -> Float[Tensor, "2 lens site text"]:
    """KL and log best rank of each text, summed over its rows, fp64; the logit lens first."""
    sums = torch.zeros(2, 1 + len(lenses), len(places), len(kept), dtype=torch.float64)
    for indices, tokens in token_batches(kept, BATCH_TOKENS):
        for passage in run_passages(model, tokens, places):
            text = torch.tensor(indices)[passage.text.cpu()]
            said = _said([kept[index] for index in indices], passage.text, passage.pos, horizon)
            counted = ((passage.pos >= skip) & (passage.following >= 0)).nonzero()[:, 0]
            for part in counted.split(rows_at_once(model.cfg.d_vocab)):
                streams = [passage.streams[name][passage.cells[part]] for name in places]
                found = _read(model, streams, places, lenses, said[part.cpu()].to(part.device))
                sums.index_add_(3, text[part.cpu()], found.double().cpu())
    return sums


def _read(
    model: HookedTransformer,
    streams: Sequence[Float[Tensor, "row d_model"]],
    places: Sequence[str],
    lenses: Sequence[Translator],
    said: Int[Tensor, "row horizon"],
) -> Float[Tensor, "2 lens site row"]:
    """KL and log best rank of some rows; NaN where a lens does not translate a site."""
    final = log_probabilities(model, streams[-1])
    probabilities = final.exp()
    found = torch.full((2, 1 + len(lenses), len(places), len(final)), torch.nan, device=final.device)
    for at, (site, stream) in enumerate(zip(places, streams)):
        for which, lens in enumerate((None, *lenses)):
            if lens is not None and site not in lens.sites:
                continue
            logp = log_probabilities(model, stream if lens is None else lens.translate(stream, site))
            best = logp.gather(1, said).amax(1, keepdim=True)
            found[0, which, at] = ((final - logp) * probabilities).sum(1).clamp(min=0.0)
            found[1, which, at] = (1 + (logp > best).sum(1)).log()
    return found


def _said(
    rows: Sequence[Sequence[int]], text: Int[Tensor, "row"], pos: Int[Tensor, "row"], horizon: int
) -> Int[Tensor, "row horizon"]:
    """The tokens that follow each place, the last one repeated where the text ends; a text's own last token for itself."""
    following = [(rows[t][p + 1 : p + 1 + horizon] or rows[t][p:]) for t, p in zip(text.tolist(), pos.tolist())]
    return torch.tensor([ids + ids[-1:] * (horizon - len(ids)) for ids in map(list, following)])


def _refuse_fitted(lens: Translator, rows: Sequence[list[int]]) -> None:
    if not isinstance(lens, JacobianLens | TunedLens):  # of another kind nothing is known
        return
    known = set(lens.card.get("text_hashes", ()))
    again = [index for index, row in enumerate(rows) if text_hash(row) in known]
    if again:
        raise ValueError(
            f"the {lens.name} lens was fitted on text {again[0]} ({len(again)} of {len(rows)}): figures on them would flatter "
            "it; give other texts"
        )


def _listed(values: Float[np.ndarray, "lens site text"]) -> list[Any]:
    """Lists with None for NaN, which JSON does not have."""
    return [[[None if np.isnan(v) else float(v) for v in line] for line in lens] for lens in values]
