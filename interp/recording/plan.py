"""What will be recorded, decided before the first forward pass: texts, their tokens, and which tokens are kept.

Everything here follows from the inputs alone, so that a recording that goes on after a crash, or on another machine,
cuts its work the same way and gives the same bytes.
"""

import functools
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from jaxtyping import Int

from interp import artifact
from interp.dataset import Dataset, Example
from interp.tokens import Tokenizer

log = logging.getLogger("interp.recording")

TOKEN_RULES = ("all", "last", "first", "answer")
LONG_RULES = ("error", "chunk", "truncate")
SHARD_ROWS = 16_384
"""Rows that a shard holds about."""
SHARD_TOKENS = 4 * SHARD_ROWS
"""Most tokens that are computed for a shard, about: what a crash can cost."""
SHARD_BYTES = 1 << 30
"""Most bytes of activations in a shard, about: two shards are in memory at a time."""
RESERVED = ("text_index", "text", "label", "group", "split")
PIECE_COLUMNS = ("document", "chunk")


@dataclass(frozen=True, eq=False)
class Plan:
    """Texts as the model will see them, one after the other in flat arrays."""

    texts: list[str]
    """Text of each row of examples; a piece of a long text is decoded from its tokens."""
    columns: pa.Table
    """Label, group, split and the caller's columns, a row per *input*."""
    document: Int[np.ndarray, " text"]
    """Number of the input that each text comes from."""
    chunk: Int[np.ndarray, " text"]
    """Which piece of that input it is."""
    ids: Int[np.ndarray, " token"]
    """Token ids of all texts."""
    offsets: Int[np.ndarray, " boundary"]
    """Text t has the tokens ids[offsets[t]:offsets[t + 1]]."""
    keep_from: Int[np.ndarray, " text"]
    """First kept position of each text."""
    keep_to: Int[np.ndarray, " text"]
    """One past the last kept position."""
    long: str
    """What was done with texts over the limit."""
    n_long: int
    """Inputs that were over the limit."""

    @property
    def n_texts(self) -> int:
        """Number of texts."""
        return len(self.texts)

    @functools.cached_property
    def kept(self) -> Int[np.ndarray, " text"]:
        """Kept tokens of each text."""
        return self.keep_to - self.keep_from

    @functools.cached_property
    def lengths(self) -> Int[np.ndarray, " text"]:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def tokens_of(self, text: int) -> Int[np.ndarray, " pos"]:
        """Token ids of one text."""
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def texts_per_shard(self, row_bytes: int) -> int:
        """The count of texts that makes a shard of a good size."""
        rows = self.n_texts * min(SHARD_ROWS, SHARD_BYTES // row_bytes) / max(int(self.kept.sum()), 1)
        tokens = self.n_texts * SHARD_TOKENS / max(len(self.ids), 1)
        return max(1, min(round(rows), round(tokens)))

    def n_bytes(self, row_bytes: int) -> int:
        """Bytes of the whole store, on the safe side: rows, a line of tokens.parquet for each, texts, the rest."""
        return int(self.kept.sum()) * (row_bytes + 48) + 2 * sum(map(len, self.texts)) + (1 << 22)

    def examples(self, start: int, stop: int) -> pa.Table:
        """The examples.parquet of the texts from `start` to `stop`."""
        source = self.document[start:stop]
        table = pa.table(
            {"text_index": pa.array(np.arange(start, stop)), "text": pa.array(self.texts[start:stop], pa.string())}
        )
        for name, column in zip(self.columns.column_names, self.columns.columns):
            table = table.append_column(name, column.take(pa.array(source)).combine_chunks())
        if self.long == "chunk":
            for name, values in zip(PIECE_COLUMNS, (source, self.chunk[start:stop])):
                table = table.append_column(name, pa.array(values))
        return table

    def hashes(self) -> dict[str, str]:
        """Hashes of what the store depends on: the texts as given by their tokens, and the columns beside them."""
        state = xxhash.xxh3_128(self.ids.tobytes())
        state.update(self.offsets.tobytes())
        state.update(artifact.hash_texts(self.texts).encode())
        columns = xxhash.xxh3_128()
        for batch in self.columns.to_batches(max_chunksize=1000):
            columns.update(json.dumps(batch.to_pylist(), sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
        return {"hash": state.hexdigest(), "columns_hash": columns.hexdigest()}


def make_plan(
    data: Any, tokenizer: Tokenizer, *, tokens: str, bos: bool | None, long: str | None, max_length: int
) -> Plan:
    """Read the inputs, tokenise them, and decide what is kept.

    Raises:
        ValueError: no text, an empty one, something that is no text, a text over `max_length` under `long="error"`, an
            answer that is not marked or was cut off, or columns that do not fit a table.
    """
    examples = read_examples(data)
    labelled = any(example.label is not None for example in examples)
    long = ("error" if labelled else "chunk") if long is None else long
    with_bos = tokenizer.add_bos if bos is None else bos
    if max_length <= int(with_bos):
        raise ValueError(f"max_length={max_length} leaves no room for a token besides the BOS")
    rows: list[tuple[int, int, str, np.ndarray, int, int]] = []
    n_long = 0
    for number, example in enumerate(examples):
        ids = _encode(tokenizer, example.text, bos, number)
        over = len(ids) > max_length
        n_long += over
        if over and (long == "error" or (long == "chunk" and tokens == "answer")):
            raise ValueError(_too_long(number, len(ids), max_length, example.text, tokens))
        pieces = _pieces(ids, max_length, tokenizer.bos_id if with_bos else None, long) if over else [ids]
        for chunk, piece in enumerate(pieces):
            text = _decode(tokenizer, piece, with_bos) if over else example.text
            keep = _kept(tokens, piece, ids, example, number, tokenizer)
            rows.append((number, chunk, text, np.array(piece, dtype=np.int32), *keep))
    if n_long:
        log.info(
            "%d of %d texts have over %d tokens: long=%r, %d texts in all",
            n_long,
            len(examples),
            max_length,
            long,
            len(rows),
        )
    document, chunk, texts, pieces, keep_from, keep_to = zip(*rows)
    return Plan(
        texts=list(texts),
        columns=_columns(examples, (*RESERVED, *(PIECE_COLUMNS if long == "chunk" else ()))),
        document=np.array(document),
        chunk=np.array(chunk),
        ids=np.concatenate(pieces),
        offsets=np.cumsum([0] + [len(piece) for piece in pieces]),
        keep_from=np.array(keep_from),
        keep_to=np.array(keep_to),
        long=long,
        n_long=n_long,
    )


def read_examples(data: Any) -> list[Example]:
    """One text, several texts, examples or a data set -> examples. ValueError names the item that is none of these."""
    if isinstance(data, str):
        items: Sequence[Any] = [data]
    elif isinstance(data, Dataset):
        items = data.examples
    elif isinstance(data, Iterable) and not isinstance(data, (bytes, dict)):
        items = list(data)
    else:
        raise ValueError(f"cannot record {type(data).__name__}: pass a text, a list of texts or Examples, or a Dataset")
    if not items:
        raise ValueError("there is nothing to record: the data has no text")
    examples = []
    for number, item in enumerate(items):
        if isinstance(item, str):
            item = Example(text=item)
        if not isinstance(item, Example):
            raise ValueError(
                f"item {number} is a {type(item).__name__}: pass texts or Examples (load_dataset reads tables)"
            )
        if not item.text:
            raise ValueError(f"text {number} is empty: drop it")
        examples.append(item)
    return examples


def _encode(tokenizer: Tokenizer, text: str, bos: bool | None, number: int) -> list[int]:
    try:
        ids = tokenizer.encode(text, bos)
    except ValueError as error:
        raise ValueError(f"text {number} cannot be tokenised: {error}") from None
    if not ids:
        raise ValueError(f"text {number} has no token ({text[:40]!r}): drop it")
    return ids


def _decode(tokenizer: Tokenizer, piece: list[int], with_bos: bool) -> str:
    return tokenizer.decode(piece[1:] if with_bos and piece[0] == tokenizer.bos_id else piece)


def _pieces(ids: list[int], max_length: int, bos_id: int | None, long: str) -> list[list[int]]:
    """The pieces of a long text, each with the BOS that its model expects at position 0."""
    if long == "truncate":
        return [ids[:max_length]]
    head = [] if bos_id is None else [bos_id]
    content = ids[len(head) :]
    size = max_length - len(head)
    return [head + content[start : start + size] for start in range(0, len(content), size)]


def _too_long(number: int, n: int, max_length: int, text: str, rule: str) -> str:
    chunk = "" if rule == "answer" else "long='chunk' (cut into texts of their own) or "  # a cut may go through it
    return (
        f"text {number} has {n} tokens, over the limit of {max_length} ({text[:40]!r} ...): shorten it, or pass "
        f"{chunk}long='truncate'"
    )


def _kept(
    rule: str, piece: list[int], ids: list[int], example: Example, number: int, tokenizer: Tokenizer
) -> tuple[int, int]:
    """The kept positions of a piece, as a range."""
    if rule == "all":
        return 0, len(piece)
    if rule == "last":
        return len(piece) - 1, len(piece)
    if rule == "first":
        return 0, 1
    start, stop = _answer_span(example, number)
    own = tokenizer.backend.encode(example.text, add_special_tokens=False)
    offsets, closing = own.offsets, tokenizer.closing_id
    closed = closing is not None and ids[-1:] == [closing] and own.ids[-1:] != [closing]
    shift = len(ids) - len(offsets) - closed
    inside = [i + shift for i, (a, b) in enumerate(offsets) if a < stop and b > start]
    if not inside:
        raise ValueError(f"text {number}: no token lies in its answer, characters {start} to {stop}")
    if len(piece) != len(ids) and inside[-1] >= len(piece):
        raise ValueError(
            f"text {number}: its answer (tokens {inside[0]} to {inside[-1]}) lies beyond the limit of {len(piece)} "
            "tokens: shorten what stands before it"
        )
    return inside[0], inside[-1] + 1


def _answer_span(example: Example, number: int) -> tuple[int, int]:
    span, start = example.meta.get("answer_span"), example.meta.get("answer_start")
    if span is None and start is None:
        raise ValueError(
            f"tokens='answer' needs to know the answer of text {number}: give its characters as "
            "Example(meta={'answer_span': (start, end)}), or {'answer_start': start} where it runs to the end"
        )
    marked: Any = (start, len(example.text)) if span is None else span
    try:
        start, stop = map(int, marked)
    except (TypeError, ValueError):
        raise ValueError(f"text {number}: an answer is marked as (start, end), got {marked!r}") from None
    if not 0 <= start < stop <= len(example.text):
        raise ValueError(
            f"text {number}: the answer, characters {start} to {stop}, is not inside its {len(example.text)} characters"
        )
    return start, stop


def _columns(examples: list[Example], reserved: Sequence[str]) -> pa.Table:
    """Label, group, split and every key of `meta`, each with one type over all examples."""
    keys = list(dict.fromkeys(key for example in examples for key in example.meta))
    clash = [key for key in keys if key in reserved]
    if clash:
        raise ValueError(f"the examples have a column {clash[0]!r}, a name that the store uses itself: rename it")
    arrays = {
        "label": _column("label", [example.label for example in examples], pa.int64()),
        "group": _column("group", [example.group for example in examples], pa.string()),
        "split": _column("split", [example.split for example in examples], pa.string()),
    }
    return pa.table(arrays | {key: _column(key, [example.meta.get(key) for example in examples], None) for key in keys})


def _column(name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"the column {name!r} does not fit a table ({error}): give all its values one type") from None
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array
