"""Labels for many latents: one call of an explainer each, written down as they come.

1. An `Explainer` is any function of an `ExplainerPage` that returns a text, or a `Rule`, which is a text that can be
   tested. The built-in one is `statistics_explainer`.
2. With a path each answer is a line of a JSONL file before the next one is asked for. A run that was stopped goes on
   there: what has a label is not asked again, what failed is.
3. An explainer that fails on a latent leaves its error in the table. After several failures in a row the run stops.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from interp.artifact import hash_json, provenance
from interp.engine import RayEngine, run_tasks
from interp.model import HookedTransformer
from interp.sae.features import SAEFeatures
from interp.sae.labels.files import Journal, read_table, write_table
from interp.sae.labels.identity import function_card, require_callable, require_identified
from interp.sae.labels.page import ExplainerPage, check_latents, explainer_pages
from interp.sae.labels.statistics import Rule, rule_from_json, statistics_explainer
from interp.store import Store
from interp.tokens import Tokenizer

log = logging.getLogger("interp.sae.labels")

Explainer = Callable[[ExplainerPage], str | Rule]
"""Anything that says in words what a latent fires on."""
GIVE_UP = 10
"""Failures in a row after which a run stops: the explainer itself is broken, not its answer to a page."""
_LONGEST = 2000
"""Characters of a label; longer ones are refused."""
COLUMNS = {
    "latent": "int64",
    "label": "object",
    "rule": "object",
    "error": "object",
    "n_shown": "int64",
    "shown_texts": "object",
}
"""Column -> dtype."""


@dataclass(frozen=True, eq=False, repr=False)
class SAELabels:
    """What an explainer said about latents."""

    frame: pd.DataFrame
    """A row per latent: latent, label (None where it failed), rule (the label as a `Rule` in JSON, None for a text),
    error (why there is no label, else None), n_shown (passages that the page showed), shown_texts (numbers of the store's
    texts that they were from: scoring leaves their documents out); after `scored`, also its columns."""
    card: Mapping[str, Any]
    """Explainer, features, settings, counts, versions."""

    def __repr__(self) -> str:
        named = sum(row["label"] is not None for row in self._rows())
        scored = ", scored" if "balanced_accuracy" in self.frame else ""
        return f"SAELabels({named:,} of {len(self.frame):,} latents have a label{scored})"

    def to_frame(self) -> pd.DataFrame:
        """A row per latent."""
        return self.frame

    def label(self, latent: int | Any) -> str:
        """The label of a latent. ValueError where it has none, with the reason."""
        row = next((row for row in self._rows() if row["latent"] == latent), None)
        if row is None:
            raise ValueError(f"latent {latent} was not labelled: {len(self.frame)} others were")
        if row["label"] is None:
            raise ValueError(f"latent {latent} has no label: {row['error']}")
        return row["label"]

    def rules(self) -> dict[int, Rule]:
        """Latent -> rule, of those whose label is one."""
        found = {row["latent"]: row["rule"] for row in self._rows() if row["rule"] is not None}
        return {latent: rule_from_json(json.loads(rule)) for latent, rule in found.items()}

    def scored(self, scores: pd.DataFrame) -> "SAELabels":
        """With the columns of a table of scores beside the labels, such as `DetectionScores.frame`; rows without a score
        have NaN there."""
        kept = [name for name in scores.columns if name == "latent" or name not in self.frame.columns]
        frame = self.frame.merge(scores[kept], on="latent", how="left", validate="one_to_one")
        return SAELabels(frame, self.card)

    def summary(self) -> str:
        """How many latents have a label, and why others have none."""
        failed = [row for row in self._rows() if row["label"] is None]
        said = f"{len(self.frame) - len(failed):,} of {len(self.frame):,} latents have a label"
        if not failed:
            return said + "."
        ((reason, times), *others) = Counter(row["error"] for row in failed).most_common()
        return (
            f"{said}; {len(failed):,} failed, most often ({times:,}) with {reason!r}"
            f"{f' and with {len(others)} other errors' if others else ''}; the first is latent {failed[0]['latent']}."
        )

    def _rows(self) -> list[dict[str, Any]]:
        return pd.DataFrame(self.frame[list(COLUMNS)]).to_dict("records")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write `table.parquet` and `card.json` into a new folder, which `load_sae_labels` reads."""
        return write_table(path, "sae labels", self.frame, self.card)


def load_sae_labels(path: str | os.PathLike[str]) -> SAELabels:
    """Read what `SAELabels.save` wrote. ValueError for no such folder, another kind, or a newer format."""
    return SAELabels(*read_table(path, "sae labels"))


def label_latents(
    features: SAEFeatures,
    store: Store,
    model: HookedTransformer | Tokenizer,
    explainer: Explainer | Any = statistics_explainer,
    *,
    latents: Sequence[int] | Any | None = None,
    path: str | os.PathLike[str] | None = None,
    explainer_id: str | None = None,
    engine: str | RayEngine | Any = "local",
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> SAELabels:
    """Ask an explainer about many latents.

    Args:
        features: what `sae_features` made of the store.
        store: that store.
        model: the model or its tokenizer, for the texts of tokens.
        explainer: any function (page) -> text or `Rule`.
        latents: numbers of latents, None for all that fire.
        path: a JSONL file that takes each answer as it comes; a run with the same explainer, features and settings goes on
            with it. A function is the same where its code and the values that it uses are (see `interp.sae.labels.identity`).
        explainer_id: a name for the explainer in place of its code: for one that holds what cannot be compared, such as an
            open connection, or changes. Choose another one whenever it would answer otherwise.
        engine: "local", "ray" or a `RayEngine`: with Ray several are asked at a time.
        progress: called with (latents done, latents asked for).
        settings: hold_out, before, after, n_others, seed of `explainer_pages`.

    Returns:
        The labels, by latent. A failure is a row with its error, and a warning in the log.

    Raises:
        ValueError: an explainer that cannot be called, a latent that does not exist or never fires, a path with the answers
            of another run, or a path for an explainer that cannot be told from others, without explainer_id.
        RuntimeError: the explainer failed GIVE_UP times in a row; what was answered before is in `path`.
    """
    require_callable("explainer", explainer, "a page, that returns a text or a Rule, or endpoint_explainer(...)")
    chosen = list(dict.fromkeys(check_latents(features, _firing(features) if latents is None else latents)))
    explained_by = function_card(explainer, explainer_id)
    identity = {"explainer": explained_by, "features": features_id(features), "settings": dict(settings)}
    identity["sae"] = features.card["sae"]
    if path is not None:
        require_identified(explained_by, "explainer_id")
    journal = None if path is None else Journal(path, identity)
    done = {} if journal is None else {row["latent"]: row for row in journal.rows if row["label"] is not None}
    missing = [latent for latent in chosen if latent not in done]
    pages = explainer_pages(features, store, missing, model, **settings)
    for number, row in enumerate(giving_up(_asked(explainer, pages, engine)), len(chosen) - len(missing) + 1):
        done[row["latent"]] = row
        if journal is not None:
            journal.add(row)
        if row["error"] is not None:
            log.warning("latent %d has no label: %s", row["latent"], row["error"])
        if progress is not None:
            progress(number, len(chosen))
    rows = [done[latent] for latent in sorted(chosen)]
    card = {
        **identity,
        "n": len(rows),
        "n_failed": sum(row["label"] is None for row in rows),
        "n_never_firing": len(features.latents) - len(_firing(features)),
        "provenance": provenance(),
    }
    # A text column of pandas would make NaN of None.
    columns = {name: pd.Series([row[name] for row in rows], dtype=COLUMNS[name]) for name in COLUMNS}
    return SAELabels(pd.DataFrame(columns), card)


def features_id(features: SAEFeatures) -> str:
    """A hash of which SAE the features are of, and which rows of which store."""
    return hash_json({name: value for name, value in features.card.items() if name not in ("provenance", "store")})


def _firing(features: SAEFeatures) -> list[int]:
    return features.latents.loc[features.latents["n_active"] > 0, "latent"].tolist()


def _asked(explainer: Explainer, pages: Iterable[ExplainerPage], engine: Any) -> Iterator[dict[str, Any]]:
    for _, row in run_tasks(_make, pages, shared=(explainer,), engine=engine):
        yield row


def _make(explainer: Explainer) -> Callable[[ExplainerPage], dict[str, Any]]:
    def ask(page: ExplainerPage) -> dict[str, Any]:
        shown = (*page.examples, *page.quantiles, *page.others)
        row: dict[str, Any] = {"latent": page.latent, "label": None, "rule": None, "error": None}
        row |= {"n_shown": len(shown), "shown_texts": list(page.shown_texts)}
        try:
            answer = explainer(page)
            row["label"] = _checked_label(answer)
            row["rule"] = json.dumps(answer.as_json(), sort_keys=True) if isinstance(answer, Rule) else None
        except Exception as error:  # whatever somebody's function raises belongs to its latent, and is shown there
            row["label"], row["error"] = None, f"{type(error).__name__}: {error}"
        return row

    return ask


def _checked_label(answer: Any) -> str:
    if not isinstance(answer, str | Rule):
        raise TypeError(f"the explainer returned a {type(answer).__name__}: it has to return a text or a Rule")
    label = str(answer).strip().encode("utf-8", "replace").decode()  # half a surrogate pair has no place in a file
    if not label:
        raise ValueError("the explainer returned an empty text")
    if len(label) > _LONGEST:
        raise ValueError(f"the explainer returned {len(label)} characters, more than {_LONGEST}: let it be brief")
    return label


def giving_up(rows: Iterable[dict[str, Any]], what: str = "explainer") -> Iterator[dict[str, Any]]:
    """The rows, as long as not GIVE_UP of them in a row have an error; then RuntimeError."""
    failed = 0
    for row in rows:
        yield row
        failed = 0 if row["error"] is None else failed + 1
        if failed == GIVE_UP:
            raise RuntimeError(f"the {what} failed on {GIVE_UP} latents in a row, the last time with {row['error']}")
