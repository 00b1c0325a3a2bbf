"""The rows of a shard while forward passes fill them, and the table of tokens beside them.

A row is one token's value, or the mean of several, summed in fp64. Rows and the tokens that they are made of stand in the
order of their texts, whatever the order of the passes.
"""

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.recording.job import Job
from interp.recording.signals import NO_RANK, SIGNALS, token_signals
from interp.recording.texts import Texts
from interp.store import DTYPES
from interp.store.files import empty_rows


class ShardRows:
    """The rows of a shard while its passes fill them."""

    def __init__(self, job: Job, texts: Texts) -> None:
        self._job, self._texts = job, texts
        n_rows = len(texts.row_text)
        self.acts = {
            site: empty_rows(n_rows, math.prod(shape), DTYPES[job.dtype]) for site, shape in job.shapes.items()
        }
        self.heads: dict[str, Tensor] = {}
        self._signals = {name: torch.full((n_rows,), NO_RANK, dtype=dtype) for name, dtype in SIGNALS.items()}
        self._counts = np.bincount(texts.member_row, minlength=n_rows)
        self._averages = bool((self._counts > 1).any() or (texts.row_position < 0).any())
        # Rows and members stand in the order of their texts.
        self._row_of_text = np.searchsorted(texts.row_text, np.arange(len(texts.offsets)))

    def take(
        self,
        chosen: Int[np.ndarray, " text"],
        cells: Int[np.ndarray, " token"],
        values: Mapping[str, Float[Tensor, "cell d"]],
        stream: Tensor | None,
        heads: Mapping[str, Tensor],
    ) -> None:
        """Put the rows of these texts in their places. `cells` gives the place of every token of them in `values`."""
        texts = self._texts
        cell_of = np.full(len(texts.ids), -1, dtype=np.int64)
        tokens = _ranges(texts.offsets[chosen], texts.offsets[chosen + 1])
        cell_of[tokens] = cells
        rows = _ranges(self._row_of_text[chosen], self._row_of_text[chosen + 1])
        first_member = np.concatenate([[0], np.cumsum(self._counts)])
        members = _ranges(first_member[rows], first_member[rows + 1])
        source = cell_of[texts.member[members]]
        into = torch.from_numpy(np.repeat(np.arange(len(rows)), self._counts[rows]))
        counts = torch.from_numpy(self._counts[rows])

        def pick(value: Float[Tensor, "cell d"]) -> Float[Tensor, "n d"]:
            picked = _picked(value, source)
            return _averaged(picked, into, counts) if self._averages else picked

        for site, value in values.items():
            picked = pick(value)
            stored = _put(self.acts[site], rows, picked)
            # The sum is NaN or infinite where a value is, and takes a twentieth of the time that looking at each takes.
            if not math.isfinite(float(stored.sum(dtype=torch.float32))) and not bool(torch.isfinite(stored).all()):
                raise ValueError(self._not_finite(site, picked, stored, rows))
        for name, value in heads.items():
            picked = pick(value)
            if name not in self.heads:
                self.heads[name] = torch.empty(len(texts.row_text), picked.shape[1])
            _put(self.heads[name], rows, picked)
        if stream is not None:
            self._take_signals(stream, cell_of, rows, first_member)

    def _take_signals(
        self,
        stream: Float[Tensor, "cell d_model"],
        cell_of: Int[np.ndarray, " token"],
        rows: Int[np.ndarray, " n"],
        first_member: Int[np.ndarray, " boundary"],
    ) -> None:
        texts = self._texts
        single = rows[texts.row_position[rows] >= 0]
        token = texts.member[first_member[single]]
        before = np.where(texts.row_position[single] > 0, cell_of[token - 1], -1)
        found = token_signals(
            self._job.model,
            stream,
            torch.from_numpy(cell_of[token]),
            torch.from_numpy(before),
            torch.from_numpy(texts.ids[token].astype(np.int64)),
        )
        for name, values in found.items():
            self._signals[name][torch.from_numpy(single)] = values.cpu()

    def token_table(self) -> pa.Table:
        """What tokens.parquet will hold, without what the statistics say."""
        texts, tokenizer = self._texts, self._job.tokenizer
        single = texts.row_position >= 0
        first_member = np.concatenate([[0], np.cumsum(self._counts)])[:-1]
        ids = np.where(single, texts.ids[texts.member[first_member]], -1).astype(np.int32)
        bos = -1 if tokenizer.bos_id is None else tokenizer.bos_id
        columns = {
            "text": pa.array(texts.row_text.astype(np.int64) + texts.first),
            "position": pa.array(texts.row_position.astype(np.int32)),
            "token_id": pa.array(ids),
            "is_bos": pa.array(single & (ids == bos)),
            "is_special": pa.array(np.isin(ids, np.array(sorted(tokenizer.special_ids), dtype=np.int32))),
            "is_first": pa.array(texts.row_position == 0),
        }
        if self._averages:
            columns["averaged"] = texts.averaged()
        columns |= {f"rule:{name}": pa.array(kept) for name, kept in texts.rules.items()}
        if self._job.signals:
            for name, values in self._signals.items():
                nothing = ~single
                if name in ("logprob", "rank"):
                    nothing = nothing | (texts.row_position == 0)
                columns[name] = pa.array(values.numpy(), mask=nothing)
        return pa.table(columns)

    def _not_finite(self, site: str, value: Tensor, stored: Tensor, rows: Int[np.ndarray, " n"]) -> str:
        first = int((~torch.isfinite(stored)).any(dim=1).nonzero()[0, 0])
        texts, row = self._texts, int(rows[first])
        position = int(texts.row_position[row])
        at = f"position {position}" if position >= 0 else "the mean of its tokens"
        where = f"{site}, text {texts.first + int(texts.row_text[row])}, {at}"
        if bool(torch.isfinite(value[first]).all()):
            largest = float(value[first].abs().max())
            dtype = self._job.dtype
            return f"{where}: a value of {largest:.3g} does not fit {dtype}: record with dtype='bfloat16' or 'float32'"
        return (
            f"{where}: the activation is NaN or infinite; nothing of this shard was written. The weights are damaged, or "
            "the computing dtype is too narrow: load the model in float32"
        )


def _picked(value: Float[Tensor, "cell d"], source: Int[np.ndarray, " member"]) -> Float[Tensor, "member d"]:
    """Some rows; without a copy where they are all of them in their order."""
    if len(source) == len(value) and np.array_equal(source, np.arange(len(value))):
        return value
    return value.index_select(0, torch.from_numpy(source).to(value.device))


def _put(rows: Float[Tensor, "row d"], place: Int[np.ndarray, " n"], values: Float[Tensor, "n d"]) -> Tensor:
    """Write values into rows, in their dtype; what stands there then."""
    if len(place) and int(place[-1]) - int(place[0]) + 1 == len(place) and bool((np.diff(place) == 1).all()):
        return rows[int(place[0]) : int(place[-1]) + 1].copy_(values)
    stored = values.to("cpu", rows.dtype)
    rows[torch.from_numpy(place)] = stored
    return stored


def _averaged(
    picked: Float[Tensor, "member d"], into: Int[Tensor, " member"], counts: Int[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """The mean of the members of each row: on the CPU, and in fp32 at least."""
    sums = torch.zeros(len(counts), picked.shape[1], dtype=torch.float64)
    sums.index_add_(0, into, picked.cpu().double())  # not every device has float64
    return (sums / counts[:, None]).to(torch.promote_types(picked.dtype, torch.float32))


def _ranges(starts: Int[np.ndarray, " n"], stops: Int[np.ndarray, " n"]) -> Int[np.ndarray, " total"]:
    """The numbers from each start to before its stop, one range after the other."""
    lengths = stops - starts
    skip = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return skip + np.arange(int(lengths.sum()))
