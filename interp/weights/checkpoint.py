"""A checkpoint: configuration, tensors read on demand, tokenizer; and the reader for Hugging Face folders.

Tensors come out of safetensors as views of the mapped file: opening a model reads nothing but the header, and the
system brings pages in when a weight is used. Pickled weights are refused, since opening them can run code.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from interp import artifact
from interp.tokens import Tokenizer
from interp.weights.config_file import read_config

logger = logging.getLogger("interp")

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class Checkpoint:
    """What a file or folder holds, in Hugging Face's names."""

    config: Mapping[str, Any]
    """config.json."""
    tensors: Mapping[str, Tensor]
    """Checkpoint name -> tensor, read when it is asked for."""
    tokenizer: Tokenizer | None
    """None where the folder has no tokenizer.json; the model then takes token ids only."""
    name: str
    """What people call the model."""
    note: str = ""
    """What its user must know, for example `dequantised Q4_1`."""


class SafetensorsFiles(Mapping[str, Tensor]):
    """The tensors of one or several safetensors files, as views of the mapped files.

    Raises:
        ValueError: a file that is missing, cut off, or no safetensors file.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._open = {path: _opened(path) for path in sorted(set(self._files.values()))}
        held = {path: set(file.keys()) for path, file in self._open.items()}
        for name, path in self._files.items():
            if name not in held[path]:
                raise ValueError(f"{path} lacks the tensor {name} that its index names: download the folder again")

    @classmethod
    def of(cls, paths: list[Path]) -> "SafetensorsFiles":
        """All tensors of these files."""
        return cls({name: path for path in paths for name in _opened(path).keys()})  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        return self._open[self._files[name]].get_tensor(name)

    def apart(self, name: str) -> Tensor:
        """The same tensor from a mapping of its own, whose pages leave the memory when the tensor is let go.

        Pages that were read through the shared mapping stay as long as any tensor of the file is in use, which doubles
        the memory of a model whose tensors are copied (to another dtype, or out of a joint projection).
        """
        return _opened(self._files[name]).get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}: the download is not whole")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}): download it again") from None


def read_folder(path: Path, name: str | None = None) -> Checkpoint:
    """Open a Hugging Face folder: config.json, model.safetensors (or an index and its shards), tokenizer.json.

    Args:
        path: the folder.
        name: what people call the model; None takes it from config.json, or else the folder's.

    Raises:
        ValueError: a file that is missing or damaged, a config.json with a value that cannot be meant, or a folder with
            pickled weights only.
    """
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json: pass a Hugging Face model folder or a .gguf file")
    config = read_config(path / "config.json")
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if single.is_file():
        tensors = SafetensorsFiles.of([single])
    elif index.is_file():
        tensors = SafetensorsFiles({name: path / file for name, file in _weight_map(index).items()})
    else:
        raise ValueError(_no_weights(path))
    called = name or str(config.get("interp_name") or path.resolve().name)
    tokenizer = None
    if (path / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_folder(path)
        tokenizer.name = called
    else:
        logger.warning("%s has no tokenizer.json: the model takes token ids, but no text", path)
    return Checkpoint(config, tensors, tokenizer, called, config.get("interp_note", ""))


def _weight_map(index: Path) -> dict[str, str]:
    found = artifact.read_json(index)
    files = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not files:
        raise ValueError(f"{index} has no weight_map: download it again")
    outside = [file for file in files.values() if Path(file).name != file]
    if outside:
        raise ValueError(f"{index} names files outside its folder ({outside[0]!r}): it is not trustworthy")
    return files


def _no_weights(path: Path) -> str:
    pickled = sorted(file.name for pattern in PICKLED for file in path.glob(pattern))
    if pickled:
        return (
            f"{path} holds only pickled weights ({pickled[0]}), which can run code when they are opened. Convert them "
            "once where you trust them: transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new)"
        )
    return f"{path} has no model.safetensors (nor an index of shards): the download is not whole"
