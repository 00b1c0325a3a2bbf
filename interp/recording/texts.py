"""The texts of one shard in memory: their tokens, and which rows are kept of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int

from interp.recording.rules import OPEN, Ranges, Rows, TokenizedText, TokenRules, rows_of
from interp.tokens import Tokenizer

_ROW_COLUMNS, _FLAG = ("positions", "sizes", "members"), "flag "
AVERAGE = -1
"""The position of a row that is an average of tokens."""


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts of one shard. Row r is the token, or the average of the tokens, `ids[member[member_row == r]]`."""

    first: int
    """Number of the first text in its part."""
    examples: pa.Table
    """What examples.parquet will hold."""
    ids: Int[np.ndarray, " token"]
    """Token ids, int32, one text after the other."""
    offsets: Int[np.ndarray, " boundary"]
    """Text t has the tokens ids[offsets[t]:offsets[t + 1]]."""
    row_text: Int[np.ndarray, " row"]
    """Text of each row, counted inside the shard."""
    row_position: Int[np.ndarray, " row"]
    """Position of each row in its text, int32; -1 for an average."""
    member: Int[np.ndarray, " member"]
    """Index into `ids` of every token that a row is made of, rows in order."""
    member_row: Int[np.ndarray, " member"]
    """The row of each member."""
    rules: Mapping[str, Bool[np.ndarray, " row"]]
    """Name of a rule -> the rows it asked for. Only with several rules, else empty."""
    prompt_lens: Int[np.ndarray, " text"] | None
    """Tokens of each prompt, for generated and chat texts; a text without an answer is a prompt as a whole."""
    spans: Sequence[Ranges] = field(default=())
    """For each prompt that will be continued: where its spans lie; a range that ends at -1 runs to the end."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.row_text)

    @property
    def lengths(self) -> Int[np.ndarray, " text"]:
        """Tokens of each text."""
        return np.diff(self.offsets)

    def tokens_of(self, text: int) -> Int[np.ndarray, " pos"]:
        """Token ids of one text, counted inside the shard."""
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def averaged(self) -> pa.Array:
        """The column `averaged` of tokens.parquet: for each average its positions, null for a single token."""
        counts = np.bincount(self.member_row, minlength=self.n_rows)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        places = self.member - self.offsets[self.row_text[self.member_row]]
        rows = zip(self.row_position.tolist(), bounds[:-1].tolist(), bounds[1:].tolist())
        return pa.array([places[a:b] if at == AVERAGE else None for at, a, b in rows], pa.list_(pa.int32()))


@dataclass(frozen=True, eq=False)
class RowColumns:
    """The rows of several texts, one text after the other, as flat arrays."""

    counts: Int[np.ndarray, " text"]
    """Rows of each text."""
    positions: Int[np.ndarray, " row"]
    """Position of each row, int32; -1 for an average."""
    sizes: Int[np.ndarray, " row"] | None
    """Members of each row, None where each has one."""
    members: Int[np.ndarray, " member"] | None
    """Positions of all members, rows in order; None where they are `positions`."""
    flags: list[Bool[np.ndarray, " row"]]
    """For each rule the rows that it asked for; only with several rules."""

    @classmethod
    def of(cls, rules: TokenRules, rows: Sequence[Rows]) -> "RowColumns":
        """Flatten the rows of each text."""
        counts = np.array([len(each) for each in rows], dtype=np.int32)
        alone = [each.positions for each in rows]
        flags = []
        if rules.several:
            flags = [joined([each.flags[index] for each in rows], bool) for index in range(len(rules.rules))]
        if not rules.averages:
            return cls(counts, joined(alone, np.int32), None, None, flags)
        mark = np.array([AVERAGE], dtype=np.int32)
        positions = joined([part for each in rows for part in (each.positions, *[mark] * len(each.averages))], np.int32)
        ones = [np.ones(len(each), dtype=np.int32) for each in alone]
        sizes = [
            part for each, one in zip(rows, ones) for part in (one, np.array([*map(len, each.averages)], np.int32))
        ]
        members = [part for each in rows for part in (each.positions, *each.averages)]
        return cls(counts, positions, joined(sizes, np.int32), joined(members, np.int32), flags)

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by its name."""
        found = {"counts": self.counts, "positions": self.positions, "sizes": self.sizes, "members": self.members}
        found |= {f"{_FLAG}{index}": flag for index, flag in enumerate(self.flags)}
        return {name: values for name, values in found.items() if values is not None}

    def to_columns(self) -> dict[str, pa.Array]:
        """A list for each text in each column; `from_table` reads them back."""
        bounds = offsets_of(self.counts)
        each = {name: values for name, values in self.arrays().items() if name not in ("counts", "members")}
        columns = {name: lists(values, bounds) for name, values in each.items()}
        if self.members is not None and self.sizes is not None:
            columns["members"] = lists(self.members, offsets_of(self.sizes)[bounds])
        return columns

    @classmethod
    def from_table(cls, table: pa.Table) -> "RowColumns":
        """What `to_columns` made of them."""
        names = [name for name in table.column_names if name in _ROW_COLUMNS or name.startswith(_FLAG)]
        found = {name: flat_lists(table, name) for name in names}
        positions, counts = found["positions"]
        sizes, members = (found[name][0] if name in found else None for name in ("sizes", "members"))
        return cls(counts, positions, sizes, members, [found[name][0] for name in found if name.startswith(_FLAG)])

    def texts(
        self,
        rules: TokenRules,
        *,
        first: int,
        examples: pa.Table,
        ids: Int[np.ndarray, " token"],
        offsets: Int[np.ndarray, " boundary"],
        prompt_lens: Int[np.ndarray, " text"] | None,
        spans: Sequence[Ranges] = (),
    ) -> Texts:
        """The texts with these rows; the other arguments are fields of `Texts`."""
        row_text = np.repeat(np.arange(len(self.counts)), self.counts)
        members = self.positions if self.members is None else self.members
        rows = np.arange(len(row_text))
        member_row = rows if self.sizes is None else np.repeat(rows, self.sizes)
        return Texts(
            first=first,
            examples=examples,
            ids=ids,
            offsets=offsets,
            row_text=row_text,
            row_position=self.positions,
            member=offsets[row_text[member_row]] + members,
            member_row=member_row,
            rules=dict(zip(rules.names, self.flags)),
            prompt_lens=prompt_lens,
            spans=spans,
        )


def no_rows(rules: TokenRules) -> Rows:
    """The rows of a text that is still to be continued."""
    return Rows(np.empty(0, dtype=np.int32), [], [np.empty(0, dtype=bool)] * len(rules.rules))


def generated_texts(rules: TokenRules, texts: Texts, new_ids: Sequence[list[int]], tokenizer: Tokenizer) -> Texts:
    """The texts with what was generated after them, and the rows that the rules ask for.

    The column `text` becomes the whole text; `prompt` holds what it began with, and `prompt_tokens` how many tokens that
    is.

    Args:
        rules: which tokens are kept.
        texts: prompts of a plan that was made with `generate=`.
        new_ids: for each prompt the new tokens that were fed to the model, so that each has activations.
        tokenizer: of the model.

    Raises:
        ValueError: as in `rows_of`.
    """
    assert len(new_ids) == len(texts) == len(texts.spans)
    prompts: list[str] = texts.examples.column("text").to_pylist()
    whole, ids, rows = [], [], []
    for index, (prompt, new, spans) in enumerate(zip(prompts, new_ids, texts.spans)):
        before = texts.tokens_of(index)
        ids.append(np.concatenate([before, np.array(new, dtype=np.int32)]))
        whole.append(prompt + _continuation(tokenizer, before.tolist(), new))
        closed = {
            name: [(start, len(ids[-1]) if end == OPEN else end) for start, end in ranges]
            for name, ranges in spans.items()
        }
        number = texts.first + index
        rows.append(rows_of(rules, TokenizedText(ids[-1], number, tokenizer, whole[-1], len(before), closed)))
    flat, bounds = joined(ids, np.int32), offsets_of([len(each) for each in ids])
    examples = texts.examples.set_column(
        texts.examples.column_names.index("text"), "text", pa.array(whole, pa.string())
    )
    place = examples.column_names.index("prompt_tokens")
    examples = examples.add_column(place, "prompt", pa.array(prompts, pa.string()))
    examples = examples.set_column(examples.num_columns - 1, "token_ids", lists(flat, bounds))
    return RowColumns.of(rules, rows).texts(
        rules, first=texts.first, examples=examples, ids=flat, offsets=bounds, prompt_lens=texts.prompt_lens
    )


def _continuation(tokenizer: Tokenizer, before: list[int], new: list[int]) -> str:
    """The text of new tokens: with the space that they begin with, and the characters that only they complete."""
    prompt, whole = tokenizer.decode(before), tokenizer.decode([*before, *new])
    return whole[len(prompt) :] if whole.startswith(prompt) else tokenizer.decode(new)


# -------------------------------------------------------------------------------------------------------- flat arrays


def joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """The arrays one after the other; an empty array for none."""
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype=dtype)


def offsets_of(lengths: Sequence[int] | Int[np.ndarray, " text"]) -> Int[np.ndarray, " boundary"]:
    """Where each of several runs begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])


def flat_lists(table: pa.Table, name: str) -> tuple[np.ndarray, Int[np.ndarray, " text"]]:
    """(values, lengths) of a column of lists: its values one after the other."""
    column = table.column(name).combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False), column.value_lengths().to_numpy()


def lists(values: np.ndarray, offsets: Int[np.ndarray, " boundary"]) -> pa.ListArray:
    """A column of lists from their values, one after the other."""
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
