"""What will be recorded, decided before the first forward pass: texts, their tokens, and which rows are kept of them.

1. `make_plan` reads the examples some at a time, tokenises them, cuts what is too long, and asks the rules for the rows.
2. Texts, ids, rows and the caller's columns go to temporary files; a few numbers for each text stay in memory.
3. `Plan.shard` reads the texts of one shard back.

Everything here follows from the inputs alone, so that a recording that goes on after a crash, or on another machine,
cuts its work the same way and gives the same bytes. How many examples are read at a time makes no difference.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from interp.dataset import Example
from interp.recording.cutting import LONG_RULES, Cutter, Piece
from interp.recording.inputs import Reader, Stretches
from interp.recording.repeats import Repeats
from interp.recording.rules import TokenRules
from interp.recording.spool import Digest, Spool, column, hash_rows, refuse_empty_dicts
from interp.recording.texts import RowColumns, Texts, flat_lists, joined, lists, no_rows, offsets_of
from interp.tokens import Tokenizer

log = logging.getLogger("interp.recording")

SHARD_ROWS = 16_384
"""Rows that a shard holds about."""
LEAST_ROWS, FEW_SHARDS = 2048, 8
"""A small recording is cut into about eight shards, if each has so many rows: one is written while the next is computed."""
SHARD_TOKENS = 4 * SHARD_ROWS
"""Most tokens that are computed for a shard, about: what a crash can cost."""
SHARD_BYTES = 1 << 30
"""Most bytes of activations in a shard, about: two shards are in memory at a time."""
READ_EXAMPLES = 2000
"""Examples that are in memory at a time, at most."""
READ_CHARACTERS = 1 << 20
"""Characters of examples, and tokens of texts, that are in memory at a time, about: a longer example is there as a whole."""
RESERVED = ("text_index", "text", "label", "group", "split", "token_ids")
PIECE_COLUMNS = ("document", "chunk", "start")
PROMPT_COLUMNS = ("prompt", "prompt_tokens")


@dataclass(frozen=True, eq=False)
class Plan:
    """What will be recorded. Holds temporary files: `close()` gives them back, at the latest the end of the object does."""

    rules: TokenRules
    """Which tokens are kept."""
    long: str
    """What was done with texts over the limit."""
    generate: int | None
    """New tokens after each text, at most; None for no generation."""
    n_texts: int
    """Texts; the pieces of a long one count each."""
    n_inputs: int
    """Examples."""
    n_long: int
    """Examples over the limit."""
    n_labelled: int
    """Examples with a label."""
    n_characters: int
    """Characters of all texts."""
    duplicates: int
    """Examples whose text stands earlier in the data already, apart from case and spacing."""
    contradictions: int
    """Texts that carry more than one label."""
    has_prompts: bool
    """Whether some text is a prompt with an answer: a chat, or a text to be continued."""
    lengths: Int[np.ndarray, " text"]
    """Tokens of each text, int32; of the prompt alone where texts will be continued."""
    rows_per_text: Int[np.ndarray, " text"]
    """Rows of each text, int32; the most there can be where texts will be continued."""
    digests: tuple[str, str, str]
    """Hashes of texts, columns and rows."""
    texts: Spool
    """A row per text."""
    columns: Spool
    """A row per example: label, group, split and the caller's columns."""

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts, with the new ones that there can be at most."""
        return int(self.lengths.sum(dtype=np.int64)) + self.n_texts * (self.generate or 0)

    @property
    def n_rows(self) -> int:
        """Rows of all texts; at most, where texts will be continued."""
        return int(self.rows_per_text.sum(dtype=np.int64))

    def texts_per_shard(self, row_bytes: int) -> int:
        """The count of texts that makes a shard of a good size; `row_bytes` are those of a row of activations."""
        most = min(SHARD_ROWS, SHARD_BYTES // row_bytes, max(LEAST_ROWS, self.n_rows // FEW_SHARDS))
        rows = self.n_texts * most / max(self.n_rows, 1)
        tokens = self.n_texts * SHARD_TOKENS / max(self.n_tokens, 1)
        return max(1, min(round(rows), round(tokens)))

    def n_bytes(self, row_bytes: int) -> int:
        """Bytes of the whole store, on the safe side: rows, a line of tokens.parquet for each, texts, the rest."""
        lines = 48 + (len(self.rules.rules) if self.rules.several else 0)
        averaged = 4 * self.n_tokens * self.rules.averages
        return self.n_rows * (row_bytes + lines) + 4 * self.n_tokens + averaged + 2 * self.n_characters + (1 << 22)

    def hashes(self) -> dict[str, str]:
        """Hashes of what the store depends on: the texts and their tokens, the columns beside them, and the rows."""
        return dict(zip(("hash", "columns_hash", "rows_hash"), self.digests))

    def shard(self, first: int, last: int) -> Texts:
        """The texts from number `first` to before `last`; of texts that will be continued, the prompts without rows."""
        table = self.texts.read(first, last)
        document = table.column("document").to_numpy()
        begin = int(document[0])
        own = self.columns.read(begin, int(document[-1]) + 1).take(pa.array(document - begin))
        examples = pa.table({"text_index": pa.array(np.arange(first, last)), "text": table.column("text")})
        names = [*PIECE_COLUMNS] if self.long == "chunk" else []
        names += ["prompt_tokens"] if self.has_prompts else []
        for source in (own, table.select([*names, "token_ids"])):
            for name, values in zip(source.column_names, source.columns):
                examples = examples.append_column(name, values.combine_chunks())
        prompt_lens = None
        ids, lengths = flat_lists(table, "token_ids")
        if self.has_prompts:
            prompt_lens = table.column("prompt_tokens").fill_null(-1).to_numpy()
            prompt_lens = np.where(prompt_lens < 0, lengths, prompt_lens)
        spans = [] if self.generate is None else list(map(_read_spans, table.column("spans").to_pylist()))
        return RowColumns.from_table(table).texts(
            self.rules,
            first=first,
            examples=examples,
            ids=ids,
            offsets=offsets_of(lengths),
            prompt_lens=prompt_lens,
            spans=spans,
        )

    def close(self) -> None:
        """Give the temporary files back."""
        self.texts.close()
        self.columns.close()


def make_plan(
    examples: Iterable[Example],
    tokenizer: Tokenizer,
    rules: TokenRules,
    *,
    bos: bool | None,
    long: str | None,
    stride: int | None,
    max_length: int,
    generate: int | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Plan:
    """Read the inputs, tokenise them, and decide what is kept.

    Args:
        examples: read once, some at a time.
        tokenizer: the model's.
        rules: which tokens are kept.
        bos: put a BOS before each text; None follows the tokenizer.
        long: texts over the limit: "error", "chunk" or "truncate". None is "error" if any example has a label or texts
            will be continued, and "chunk" otherwise.
        stride: tokens from the beginning of one piece to that of the next; None for pieces that do not overlap. A number
            means `long="chunk"`.
        max_length: most tokens of a text, with its BOS and, where it is continued, its new tokens.
        generate: new tokens that each text will be continued by, at most.
        progress: called with the examples and tokens read so far.

    Raises:
        ValueError: no text, an empty one, one that cannot be tokenised, a text over `max_length` under `long="error"`, a
            span that is not marked or was cut off, rules that keep nothing, or columns that do not fit a table.
        OSError: the folder for temporary files is full.

    Warns:
        ContradictoryLabelsWarning: the same text, apart from case and spacing, carries two labels.
    """
    if long not in (*LONG_RULES, None):
        raise ValueError(f"long={long!r} is unknown, there is {', '.join(map(repr, LONG_RULES))}")
    tokenizer.encode("", bos)  # bos=True is refused where there is no BOS
    if generate is None and rules.needs_generation:
        raise ValueError(f"tokens={rules.naming('generated')!r} needs new tokens: pass generate=")
    reader = Reader(tokenizer, rules, tokenizer.add_bos if bos is None else bos, generate is not None)
    planner = _Planner(reader, Cutter(reader, long, stride, max_length, generate), generate)
    try:
        for some in _portions(examples, _size):
            planner.add(some)
            if progress is not None:
                progress(planner.n_inputs, planner.n_tokens)
        return planner.finish()
    except BaseException:
        planner.close()
        raise


def _portions(items: Iterable[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Some items at a time: not too many, and not too large together."""
    some: list[Any] = []
    total = 0
    for item in items:
        some.append(item)
        total += size(item)
        if len(some) == READ_EXAMPLES or total >= READ_CHARACTERS:
            yield some
            some, total = [], 0
    if some:
        yield some


def _size(example: Example) -> int:
    return len(example.text) + sum(len(str(message.get("content"))) for message in example.messages or ())


class _Planner:
    """A plan under way."""

    def __init__(self, reader: Reader, cutter: Cutter, generate: int | None) -> None:
        self._reader, self._cutter, self._generate = reader, cutter, generate
        self._rules = reader.rules
        self.n_inputs = self.n_tokens = 0
        self._n_labelled = self._n_characters = 0
        self._has_prompts = generate is not None
        self._names: dict[str, None] = {}
        self._lengths, self._counts = list[np.ndarray](), list[np.ndarray]()
        self._repeats, self._hash, self._rows_hash = Repeats(), Digest(), Digest()
        self._texts, self._columns = Spool(), Spool()

    def close(self) -> None:
        self._texts.close()
        self._columns.close()

    def add(self, examples: list[Example]) -> None:
        """Take examples in."""
        labels = [example.label for example in examples]
        self._n_labelled += sum(label is not None for label in labels)
        if self._n_labelled:
            self._cutter.labels_seen()
        inputs = [self._reader.read(example, number) for number, example in enumerate(examples, self.n_inputs)]
        self._has_prompts |= any(read.prompt_end is not None for read in inputs)
        self._columns.append(self._own_columns(examples))
        self._repeats.add([read.text for read in inputs], labels)
        encoded = self._reader.encode(inputs, self.n_inputs)
        pieces = (
            piece
            for number, (read, each) in enumerate(zip(inputs, encoded), self.n_inputs)
            for piece in self._cutter.pieces(read, each, number)
        )
        for some in _portions(pieces, lambda piece: len(piece.ids)):
            self._keep(some)
        self.n_inputs += len(examples)

    def _keep(self, pieces: Sequence[Piece]) -> None:
        """Put texts and their rows on the disk."""
        lengths = np.array([len(piece.ids) for piece in pieces], dtype=np.int32)
        ids, text = joined([piece.ids for piece in pieces], np.int32), pa.array([piece.text for piece in pieces])
        table = {
            "document": pa.array([piece.document for piece in pieces], pa.int64()),
            "chunk": pa.array([piece.chunk for piece in pieces], pa.int64()),
            "start": pa.array([piece.start for piece in pieces], pa.int64()),
            "prompt_tokens": pa.array([piece.prompt_len for piece in pieces], pa.int32()),
            "text": text,
            "token_ids": lists(ids, offsets_of(lengths)),
        }
        if self._generate is None:
            rows = RowColumns.of(self._rules, list(map(self._cutter.rows_of, pieces)))
            counts = rows.counts
        else:
            rows = RowColumns.of(self._rules, [no_rows(self._rules)] * len(pieces))
            most = [self._rules.most_rows(len(piece.ids), self._generate, piece.spans) for piece in pieces]
            counts = np.array(most, dtype=np.int32)
            table["spans"] = pa.array([json.dumps(piece.spans, sort_keys=True) for piece in pieces])
            self._rows_hash.update(most=counts, **_bytes_of("spans", table["spans"]))
        self._texts.append(pa.table(table | rows.to_columns()))
        self._lengths.append(lengths)
        self._counts.append(counts)
        self.n_tokens += len(ids)
        self._n_characters += sum(len(piece.text) for piece in pieces)
        self._hash.update(ids=ids, lengths=lengths, **_bytes_of("text", text))
        self._rows_hash.update(**rows.arrays())

    def _own_columns(self, examples: list[Example]) -> pa.Table:
        """Label, group, split and every key of `meta`."""
        names = dict.fromkeys(key for example in examples for key in example.meta)
        self._names |= names
        self._refuse_names()
        fixed = {"label": pa.int64(), "group": pa.string(), "split": pa.string()}
        known = {name: column(name, [getattr(each, name) for each in examples], kind) for name, kind in fixed.items()}
        return pa.table(known | {name: column(name, [each.meta.get(name) for each in examples]) for name in names})

    def _refuse_names(self) -> None:
        for name in self._names:
            try:
                name.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    f"the examples have a column {name!r}, whose name holds a lone surrogate, which is no character: rename it"
                ) from None
        reserved = [*RESERVED, *(PIECE_COLUMNS if self._cutter.long == "chunk" else ())]
        reserved += PROMPT_COLUMNS if self._generate is not None else PROMPT_COLUMNS[1:] if self._has_prompts else ()
        clash = [name for name in self._names if name in reserved]
        if clash:
            raise ValueError(f"the examples have a column {clash[0]!r}, a name that the store uses itself: rename it")

    def finish(self) -> Plan:
        """The plan, when all examples are in."""
        if not self.n_inputs:
            raise ValueError("there is nothing to record: the data has no text")
        cutter = self._cutter
        cutter.long = cutter.long or "chunk"
        self._refuse_names()
        refuse_empty_dicts(self._columns.schema)
        lengths, counts = joined(self._lengths, np.int32), joined(self._counts, np.int32)
        if not counts.any():
            raise ValueError(f"tokens={self._rules.card!r} keeps no token of any text: ask for others")
        if cutter.n_long and cutter.long == "truncate":
            log.warning(
                "%d of %d texts have over %d tokens and are cut to them (long='truncate'): text %s%s; what is cut off is "
                "not recorded",
                cutter.n_long,
                self.n_inputs,
                cutter.limit,
                ", ".join(map(str, cutter.some_long)),
                " ..." if cutter.n_long > len(cutter.some_long) else "",
            )
        elif cutter.n_long:
            log.info(
                "%d of %d texts have over %d tokens: long=%r, %d texts in all",
                cutter.n_long,
                self.n_inputs,
                cutter.limit,
                cutter.long,
                len(lengths),
            )
        found = self._repeats.report()
        return Plan(
            rules=self._rules,
            long=cutter.long,
            generate=self._generate,
            n_texts=len(lengths),
            n_inputs=self.n_inputs,
            n_long=cutter.n_long,
            n_labelled=self._n_labelled,
            n_characters=self._n_characters,
            duplicates=found.duplicates,
            contradictions=found.contradictions,
            has_prompts=self._has_prompts,
            lengths=lengths,
            rows_per_text=counts,
            digests=(self._hash.hexdigest(), hash_rows(self._columns), self._rows_hash.hexdigest()),
            texts=self._texts,
            columns=self._columns,
        )


def _read_spans(said: str) -> dict[str, Stretches]:
    return {name: [(start, end) for start, end in ranges] for name, ranges in json.loads(said).items()}


def _bytes_of(name: str, strings: pa.StringArray) -> dict[str, Any]:
    """What `Digest` needs of a column of strings: their bytes and their lengths."""
    _, offsets, data = strings.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[: len(strings) + 1]
    return {name: b"" if data is None else data, f"{name} lengths": np.diff(bounds)}
