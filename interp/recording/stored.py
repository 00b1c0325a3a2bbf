"""A recorded store that can grow: more sites of the same texts, or more texts of the same kind.

Nothing that is there is touched: what is added lies in a part of its own, written like a store, and the same call goes on
where it stands after an interruption.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from interp import artifact
from interp.model import HookedTransformer
from interp.recording.job import Job, Run, can_share, edited_at, site_shapes, stop_layer
from interp.recording.prepare import prepared, require_model
from interp.recording.progress import reporter
from interp.recording.rules import SPANS, TokenRules, parse_rules, rules_of_card
from interp.recording.texts import Texts
from interp.recording.write import write_shards
from interp.store import Store
from interp.store import open_store as open_plain
from interp.store.parts import Segment, part_writer, segments
from interp.store.writer import read_store_card


def open_store(path: str | os.PathLike[str] | Any) -> "RecordedStore":
    """Open a store for reading, also one that is not finished; what killed writers left behind is ignored and removed.

    Args:
        path: a folder, or the URL of one in an object store.

    Raises:
        ValueError: no such folder (with the nearest stores), not a store, damaged, or of a newer format.
    """
    return open_plain(path, RecordedStore)


class RecordedStore(Store):
    """A `Store` that a model can add to."""

    def add_sites(
        self,
        model: HookedTransformer | Any,
        sites: str | Iterable[Any],
        *,
        engine: Any = "local",
        batch_size: int | Any = None,
        progress: Any = None,
    ) -> "RecordedStore":
        """Record further sites of the same rows by a second pass over the same tokens.

        Args:
            model: the one that made the store.
            sites: names, shorthand or patterns of sites that the store does not have.
            engine: as in `record`.
            batch_size: as in `record`.
            progress: as in `record`.

        Returns:
            The store with all sites, opened anew.

        Raises:
            ValueError: another model, hooks on it or on the one that made the store, a site that is there already or that
                has no row per token, a store that is not finished, or one of an older format, which does not hold its
                tokens.
        """
        path = self._home("add_sites", model)
        names = model.expand_sites(sites)
        if not names:
            raise ValueError("no site was asked for: pass for example sites='resid_mid:*'")
        if there := [name for name in names if name in self.shapes]:
            raise ValueError(f"{path} has {', '.join(there)} already: add the other sites only")
        shapes = site_shapes(model, names)
        assert model.tokenizer is not None
        job = Job(model, model.tokenizer, shapes, self.dtype, stop_layer(names, model.cfg.n_layers, False))
        base = read_store_card(path)
        with reporter(progress) as report:
            for segment in segments(path, base):
                texts = _SegmentTexts(segment)
                card = _added_card(segment.card, job, batch_size)
                n_bytes = (job.row_bytes + 64) * sum(shard.n_rows for shard in segment.shards) + (1 << 22)
                with part_writer(path, card, adds="sites", to=segment.name) as writer:
                    write_shards(job, writer, segment.n_texts, texts.read, n_bytes, engine, report)
        return open_store(path)

    def append(
        self,
        model: HookedTransformer | Any,
        data: Any,
        *,
        tokens: Any = None,
        engine: Any = "local",
        batch_size: int | Any = None,
        limit: int | Any = None,
        text: str = "text",
        label: str | None = "label",
        group: str | None = None,
        progress: Any = None,
    ) -> "RecordedStore":
        """Record more texts into the store, at its sites and by its rules; their numbers go on where the store ends.

        Args:
            model: the one that made the store.
            data: as in `record`.
            tokens: the store's own rule, where it is a function; None for the one that the store's card names.
            engine: as in `record`, like the other options.
            batch_size: most texts in a pass.
            limit: most examples.
            text: column of the texts.
            label: column of the labels.
            group: column of the groups.
            progress: as in `record`.

        Returns:
            The store with all texts, opened anew.

        Raises:
            ValueError: another model, hooks on it or on the one that made the store, another token rule, a store that is
                not finished, or bad input.
        """
        path = self._home("append", model)
        card = read_store_card(path)
        rule = self._own_rules(card["tokens"]) if tokens is None else tokens
        if parse_rules(rule).card != card["tokens"]:
            raise ValueError(
                f"{path} keeps tokens={card['tokens']!r}, not {parse_rules(rule).card!r}: pass the rule that it was "
                "recorded with"
            )
        ready = prepared(
            model, data, sites=self.sites, tokens=rule, dtype=self.dtype, engine=engine, bos=card["bos"],
            long=card["long"], stride=card.get("stride"), max_length=card["max_length"], signals=card["signals"],
            head_stats=card.get("head_stats", False), generate=card.get("generate"), batch_size=batch_size, limit=limit,
            text=text, label=label, group=group,
        )  # fmt: skip
        with (
            reporter(progress) as report,
            ready as it,
            part_writer(path, it.card, adds="texts", columns=it.plan.columns.schema) as writer,
        ):
            write_shards(it.job, writer, it.plan.n_texts, it.plan.shard, it.n_bytes, engine, report)
        return open_store(path)

    def _home(self, verb: str, model: Any) -> Any:
        """The path, if this model can add to what is there."""
        if not self.complete:
            raise ValueError(f"{self.path} is not finished: record again to go on with it, then call {verb}")
        require_model(model)
        self.check_model(model)
        # Whether two hooks do the same cannot be seen.
        if now := edited_at(model):
            raise ValueError(
                f"{verb}: functions are attached to the model at {', '.join(now[:3])}, and its rows would not fit those in "
                f"{self.path}: detach them, or record into a store of its own"
            )
        if then := read_store_card(self.path)["model"].get("edited_at"):
            raise ValueError(
                f"{self.path} was recorded with functions attached to the model at {', '.join(then[:3])}, which are not "
                f"kept, so {verb} cannot make rows that fit: record all of it at another path"
            )
        return self.path

    def _own_rules(self, named: str | list[str]) -> TokenRules:
        """The rules that the card names. ValueError where one is a function, of which only the name is kept."""
        rules = rules_of_card(named)
        columns = set(self.examples.columns) if set(rules.spans) - set(SPANS) else set()
        for span in rules.spans:
            if span not in SPANS and not columns & {f"{span}_span", f"{span}_start"}:
                raise ValueError(
                    f"{self.path} keeps the tokens that the function {span!r} chose, and a store keeps its name alone: pass "
                    "the function again, tokens= as it was recorded"
                )
        return rules


def _added_card(card: Mapping[str, Any], job: Job, batch_size: int | None) -> dict[str, Any]:
    """The card of a part with other sites: cut into the same shards, of the same texts."""
    run = Run(**card["run"])
    own = Run(run.texts_per_shard, batch_size, run.batch_tokens, can_share(job.model), torch.get_num_threads())
    same = ("kind", "model", "tokenizer", "dtype", "tokens", "bos", "max_length", "stride", "long", "texts", "shards")
    return {
        **{key: card[key] for key in same if key in card},
        "sites": [{"name": site, "shape": list(shape)} for site, shape in job.shapes.items()],
        "signals": False,
        "head_stats": False,
        "generate": None,
        "run": asdict(own),
        "provenance": artifact.provenance(),
    }


class _SegmentTexts:
    """The texts of finished shards, as they were recorded."""

    def __init__(self, segment: Segment) -> None:
        self._of_first = {shard.base.first_text: shard.base for shard in segment.shards}

    def read(self, first: int, last: int) -> Texts:
        """The texts of the shard that begins with number `first`."""
        shard = self._of_first[first]
        examples, tokens = shard.examples(), shard.tokens()
        assert examples.num_rows == last - first, "parts are cut like the store that they belong to"
        if "token_ids" not in examples.column_names:
            raise ValueError(
                "this store is of an older format and does not hold the tokens of its texts: record it again to add to it"
            )
        ids = examples.column("token_ids").combine_chunks()
        lengths = np.diff(ids.offsets.to_numpy())
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        row_text = tokens.column("text").to_numpy() - first
        position = tokens.column("position").to_numpy()
        members = _members(tokens, position)
        counts = np.array([len(each) for each in members])
        member_row = np.repeat(np.arange(len(members)), counts)
        member = offsets[row_text][member_row] + np.concatenate(members)
        return Texts(
            first, examples, ids.flatten().to_numpy().astype(np.int32), offsets, row_text, position, member, member_row, {}, None
        )  # fmt: skip


def _members(tokens: pa.Table, position: np.ndarray) -> Sequence[np.ndarray]:
    """Positions of the tokens that each row is made of."""
    if "averaged" not in tokens.column_names:
        return list(position[:, None])
    averaged = tokens.column("averaged").to_pylist()
    return [np.array([at] if many is None else many) for at, many in zip(position.tolist(), averaged)]
