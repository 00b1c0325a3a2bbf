"""GGUF files: llama.cpp's format of one file with metadata, tokenizer and (mostly quantised) tensors.

1. The metadata is turned into what config.json would say, by the family of `general.architecture`.
2. Each tensor is dequantised to fp32 when it is asked for, one at a time, by the `gguf` package.
3. Names and row order go back to the checkpoint's own (llama.cpp permutes Llama's query and key rows).
4. The tokenizer is a tokenizer.json beside the file, or else built from the metadata.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from interp.model import ModelConfig
from interp.tokens import Tokenizer
from interp.weights.checkpoint import Checkpoint
from interp.weights.family import Family, Rule, expand
from interp.weights.gguf_tokenizer import build_tokenizer

WHOLE = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16)


class GGUFTensors(Mapping[str, Tensor]):
    """The tensors under their checkpoint names, dequantised to fp32 when asked for."""

    def __init__(
        self, path: Path, tensors: Mapping[str, gguf.ReaderTensor], rules: Mapping[str, Rule], cfg: ModelConfig
    ) -> None:
        self._path = path
        self._rows = {rules[name].ours if name in rules else name: (name, tensor) for name, tensor in tensors.items()}
        self._rules, self._cfg = rules, cfg

    def __getitem__(self, name: str) -> Tensor:
        theirs, tensor = self._rows[name]
        values = torch.from_numpy(dequantise(self._path, tensor))
        view = self._rules[theirs].view if theirs in self._rules else None
        return values if view is None else view(values, self._cfg)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def dequantise(path: Path, tensor: gguf.ReaderTensor) -> np.ndarray:
    """fp32 values of one tensor, in the order of its dimensions in torch; an own copy.

    Read from the file, not through the reader's mapping: pages of a mapping would stay in memory beside the copies.
    """
    mapped = tensor.data
    packed = np.fromfile(path, dtype=mapped.dtype, count=mapped.size, offset=tensor.data_offset).reshape(mapped.shape)
    try:
        values = gguf.dequantize(packed, tensor.tensor_type)
    except NotImplementedError:
        raise ValueError(
            f"{tensor.name} is quantised as {tensor.tensor_type.name}, which cannot be read: use a file of another type"
        ) from None
    return np.ascontiguousarray(values, dtype=np.float32)


def read_gguf(path: Path, families: Mapping[str, Family]) -> Checkpoint:
    """Open a GGUF file. `families`: `general.architecture` -> family.

    Raises:
        ValueError: not a GGUF file, damaged, of an architecture or with an option that is not supported, or with a
            tokenizer that cannot be built.
    """
    try:
        reader = gguf.GGUFReader(path)
        metadata = {key: _value(field) for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a whole GGUF file ({error}): download it again") from None
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in families:
        raise ValueError(
            f"{path} is of architecture {architecture!r}; supported are {', '.join(sorted(families))}. "
            "Another family needs one file in interp/weights (see family.py)"
        )
    family = families[architecture]
    assert family.gguf is not None
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    shapes = {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in tensors.items()}
    if "token_embd.weight" not in shapes:
        raise ValueError(f"{path} holds no weights (token_embd.weight is missing): it is a vocabulary or an adapter")
    # Small tables that the configuration depends on are looked at like metadata.
    metadata |= {name: dequantise(path, tensors.pop(name)) for name in family.gguf.ignorable if name in tensors}
    config = family.gguf.configure(metadata, shapes)
    cfg = family.configure(config, path.stem)
    rules = {rule.theirs: rule for rule in expand(family.gguf.rules, cfg.n_layers)}
    beside = path.parent / "tokenizer.json"
    tokenizer = Tokenizer.from_file(beside) if beside.is_file() else build_tokenizer(metadata, path.stem)
    return Checkpoint(config, GGUFTensors(path, tensors, rules, cfg), tokenizer, path.stem, _note(tensors))


def _note(tensors: Mapping[str, gguf.ReaderTensor]) -> str:
    """`dequantised Q4_1`: the type that holds most of the weights."""
    counts: Counter[gguf.GGMLQuantizationType] = Counter()
    for tensor in tensors.values():
        counts[tensor.tensor_type] += int(tensor.n_elements)
    kind = counts.most_common(1)[0][0]
    return "" if kind in WHOLE else f"dequantised {kind.name}"


def _value(field: gguf.ReaderField) -> Any:
    """A metadata value; 32-bit floats as the shortest decimal that means them, so that 1e-5 is 1e-5 again."""
    value = field.contents()
    return float(str(np.float32(value))) if field.types == [gguf.GGUFValueType.FLOAT32] else value
