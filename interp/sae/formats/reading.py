"""Files of other libraries: open them without running anything in them, and check what they hold.

1. open: safetensors, pickled tensors (`weights_only`: code in the file is refused and not run), npz without pickles
2. check by a layout, file name -> axes: every tensor is there, none is left over (a tensor that nobody reads may change
   what the SAE computes), axes of one name have one length, and all entries are finite
3. hand them on as float32, whatever the file held: bfloat16 fits in it exactly
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.artifact import read_json
from interp.weights.checkpoint import SafetensorsFiles

logger = logging.getLogger("interp.sae")

Layout = Mapping[str, tuple[str, ...]]
"""Name of a tensor in a file -> names of its axes."""


def read_config(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. ValueError where it is missing, damaged or something else."""
    config = read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}, not the settings of an SAE")
    return config


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. ValueError where it is missing, cut off or another kind of file."""
    return dict(SafetensorsFiles.of([path]))


def read_pickle(path: Path) -> dict[str, Any]:
    """The state dictionary in a file of torch.save.

    Raises:
        ValueError: no such file, a damaged one, one with more in it than tensors and plain values (code is refused, not
            run), or no dictionary.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a foreign file fails in a dozen ways, of which torch documents none
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"{path} cannot be read as tensors alone ({first}): it is damaged, or it holds Python objects, which are not "
            "opened here since that can run code"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{path} holds a {type(state).__name__}, not the tensors of an SAE by name")
    return dict(state)


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of an npz file as tensors. ValueError where it is missing, damaged or holds pickled objects."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        # Opened here, for np.load leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays.files}
    except Exception as error:  # zip, zlib, header and dtype errors have no common class
        raise ValueError(f"{path} is not a whole npz file of numbers ({error})") from error


def take(tensors: Mapping[str, Any], layout: Layout, path: Path, ignored: Iterable[str] = ()) -> dict[str, Tensor]:
    """The tensors of a layout as float32, once all of them are as it says.

    Args:
        tensors: what the file holds.
        layout: file name -> axes; axes of the same name must have the same length.
        path: for messages.
        ignored: names that may be there as well and do not change what the SAE computes.

    Raises:
        ValueError: a tensor that is missing, unknown, of another shape, not of real numbers, or not finite.
    """
    missing = [name for name in layout if name not in tensors]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it holds {', '.join(sorted(tensors)) or 'nothing'}")
    unknown = sorted(set(tensors) - set(layout) - set(ignored))
    if unknown:
        raise ValueError(f"{path} holds {', '.join(unknown)}: an SAE of this format and kind has no such tensor")
    sizes: dict[str, tuple[int, str]] = {}
    for name, axes in layout.items():
        _check(name, tensors[name], axes, sizes, path)
    dtypes = sorted({str(tensors[name].dtype).removeprefix("torch.") for name in layout})
    if dtypes != ["float32"]:
        logger.info("%s holds %s; it is read as float32", path, ", ".join(dtypes))
    # Copies, for a tensor of a mapped file is lost when somebody writes over the file.
    taken = {name: tensors[name].detach().to(torch.float32, copy=True).contiguous() for name in layout}
    bad = [name for name, tensor in taken.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise ValueError(f"{path}: {', '.join(bad)} holds NaN or infinity; the file is not usable, so get it again")
    return taken


def _check(name: str, tensor: Any, axes: tuple[str, ...], sizes: dict[str, tuple[int, str]], path: Path) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"{path}: {name} holds {what}, not a tensor of real numbers")
    for axis, length in zip(axes, tensor.shape, strict=False):
        sizes.setdefault(axis, (length, name))
    wanted = [sizes[axis][0] if axis in sizes else axis for axis in axes]
    if list(tensor.shape) != wanted:
        known = {f"{axis} = {sizes[axis][0]} from {sizes[axis][1]}" for axis in axes if axis in sizes}
        raise ValueError(
            f"{path}: {name} has the shape {list(tensor.shape)}, wanted [{' '.join(axes)}]"
            + (f" with {', '.join(sorted(known))}" if known else "")
        )


def dtype_name(tensors: Mapping[str, Any]) -> str:
    """The dtype of a file's matrices, as the SAE's card tells it."""
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors.values() if isinstance(t, Tensor) and t.ndim == 2}
    return ", ".join(sorted(dtypes))
