"""The GGUF file of a control vector, as llama.cpp and repeng read and write it.

Metadata: `general.architecture` is `controlvector`, `controlvector.model_hint` names the architecture of the model,
`controlvector.layer_count` is the number of tensors. Tensors: `direction.N`, float32, one dimension, N from 1 on. N is the
block, counted from 0, whose output the tensor is added to; block 0 has none, and llama.cpp refuses a file in which it has.
(llama.cpp's own generator writes what it reads after block i as `direction.{i + 1}`, so that its vectors act one block after
the one where they were read. The number is where they act.)
"""

import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from jaxtyping import Float32

from interp import artifact

ARCHITECTURE = "controlvector"
HINT = f"{ARCHITECTURE}.model_hint"
NOTES = "interp.vectors"
"""Metadata of ours, which other readers pass over."""


@dataclass(frozen=True, eq=False)
class ControlFile:
    """What stands in a file."""

    rows: dict[int, Float32[np.ndarray, " d_model"]]
    """Block from 1 on -> what is added to its output at scale 1."""
    hint: str | None
    """Architecture of the model, in the words of whoever wrote it."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What `save_control_vectors` keeps beside the tensors: `layers` (typical_norm and sd of each), `strength`, `unit`, `card`.
    Empty in files of other tools."""


def write_control_file(path: str | Path, value: ControlFile) -> Path:
    """Write it whole or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "vector.gguf"
        writer = gguf.GGUFWriter(written, ARCHITECTURE)
        writer.add_string(HINT, value.hint or "")
        writer.add_uint32(f"{ARCHITECTURE}.layer_count", len(value.rows))
        writer.add_string(NOTES, json.dumps(value.notes, sort_keys=True, allow_nan=False))
        for layer, row in sorted(value.rows.items()):
            writer.add_tensor(f"direction.{layer}", row)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return artifact.atomic_write(path, written.read_bytes())


def read_control_file(path: str | Path) -> ControlFile:
    """Read metadata and tensors, copied out of the file.

    Raises:
        ValueError: no file, not a whole GGUF file, no control vector, a tensor that llama.cpp would refuse, or damaged notes.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        reader = gguf.GGUFReader(path)
        metadata = {key: value.contents() for key, value in reader.fields.items()}
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a whole GGUF file ({error}): write or download it again") from None
    found = metadata.get("general.architecture")
    if found != ARCHITECTURE:
        raise ValueError(
            f"{path} is no control vector: it says {found!r} where one says {ARCHITECTURE!r}. If it holds a model's weights, "
            "interp.load reads it"
        )
    rows = {_layer(path, tensor): np.array(tensor.data) for tensor in reader.tensors}
    hint = metadata.get(HINT)
    return ControlFile(rows, None if hint is None else str(hint), _notes(path, metadata.get(NOTES)))


def _layer(path: Path, tensor: gguf.ReaderTensor) -> int:
    """The block that a tensor belongs to."""
    found = re.fullmatch(r"direction\.(\d+)", tensor.name)
    if found is None or int(found[1]) == 0:
        why = "block 0 has none in this format" if found else "its tensors are direction.1, direction.2 and so on"
        raise ValueError(
            f"{path} holds the tensor {tensor.name!r}, and a control vector has no such one ({why}): read the file by the gguf "
            "package, and give the rows that you mean to from_repeng({layer: row}, model)"
        )
    if tensor.tensor_type != gguf.GGMLQuantizationType.F32 or len(tensor.shape) != 1:
        raise ValueError(
            f"{path}: {tensor.name} is {tensor.tensor_type.name} of {len(tensor.shape)} dimensions, and a control vector holds "
            "rows of F32: write it again"
        )
    return int(found[1])


def _notes(path: Path, text: Any) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
        layers = {int(layer): (float(note["typical_norm"]), note["sd"]) for layer, note in found["layers"].items()}
        return {**found, "layers": layers, "card": dict(found["card"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: its metadata {NOTES} is damaged ({error!r}): write the file again") from None
