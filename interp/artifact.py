"""Values on disk: atomic files and folders, one-file artefacts, hashes and provenance.

Files are written whole or not at all (`interp.files`). An *artefact* (probe, steering vector, lens, SAE ...) is one
safetensors file whose only metadata key, `card`, is JSON with sorted keys; several keys would come in another order in
every process, and equal values would not be equal bytes. For the same reason a card holds no clock time and no host
name.
"""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from interp import __version__
from interp.files import (
    atomic_folder,
    atomic_write,
    dump,
    read_json,
    records,
    sha256_file,
    sweep_temporary,
    write_json,
)

__all__ = [
    "FORMAT",
    "atomic_folder",
    "atomic_write",
    "hash_json",
    "hash_texts",
    "home",
    "load_artifact",
    "provenance",
    "read_json",
    "records",
    "save_artifact",
    "sha256_file",
    "sweep_temporary",
    "write_json",
]

FORMAT = 1
"""Version of the artefact format. A reader refuses a newer one, and reads every older one."""


def home() -> Path:
    """The folder for downloaded models and other things made once: $INTERP_HOME, else ~/.cache/interp."""
    chosen = os.environ.get("INTERP_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "interp"


# -------------------------------------------------------------------------------------------------------- artefacts


def save_artifact(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], card: Mapping[str, Any]
) -> Path:
    """Save tensors and a card as one safetensors file, atomically.

    Args:
        path: the file; `.safetensors` is the usual ending.
        kind: what it is, for example "probe"; `load_artifact` asks for the same word.
        tensors: name -> tensor of any shape and dtype; copied to the CPU.
        card: a JSON-ready description. `kind`, `format` and `provenance` are added; a provenance that is there already
            is kept and completed with the versions.

    Raises:
        ValueError: NaN in a tensor, a card that JSON cannot hold, or a card of another kind.
    """
    if card.get("kind", kind) != kind:
        raise ValueError(f"the card says kind {card['kind']!r} but the artefact is saved as {kind!r}")
    _refuse_nan(tensors, where=str(path))
    full = {**card, "kind": kind, "format": FORMAT, "provenance": {**provenance(), **card.get("provenance", {})}}
    # Clones, since safetensors refuses tensors that share storage, and views are what callers hold.
    owned = {
        name: tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    return atomic_write(path, save(owned, metadata={"card": dump(full, where=f"card of {path}")}))


def load_artifact(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_artifact` wrote: tensors on the CPU, and the card.

    Raises:
        ValueError: no such file, not an artefact, damaged, of another kind, of a newer format, or NaN in a tensor.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}): make it again") from None
    if "card" not in metadata:
        raise ValueError(f"{path} has no card: it is a safetensors file, but not one that this library saved")
    try:
        card = json.loads(metadata["card"])
    except json.JSONDecodeError as error:
        raise ValueError(f"the card of {path} is not valid JSON ({error}): make the file again") from None
    if card.get("kind") != kind:
        raise ValueError(f"{path} holds a {card.get('kind')!r}, not a {kind!r}: load it with the function for its kind")
    if not isinstance(card.get("format"), int) or card["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {card.get('format')!r}, newer than the {FORMAT} of interp {__version__}: update interp"
        )
    _refuse_nan(tensors, where=str(path))
    return tensors, card


def _refuse_nan(tensors: Mapping[str, Tensor], *, where: str) -> None:
    bad = [name for name, tensor in tensors.items() if tensor.is_floating_point() and bool(tensor.isnan().any())]
    if bad:
        raise ValueError(f"{where}: NaN in {', '.join(sorted(bad))}; a value with NaN is not usable, so make it again")


def provenance(**extra: Any) -> dict[str, Any]:
    """What made a value: versions of interp, torch and Python, and `extra` (fingerprint, data hash, seed ...)."""
    versions = {"interp": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return {**versions, **extra}


# ------------------------------------------------------------------------------------------------------------ hashes


def hash_json(obj: Any) -> str:
    """128-bit xxh3 of a JSON value as 32 hex digits; the order of keys does not matter. Not for security."""
    return xxhash.xxh3_128_hexdigest(dump(obj, where="hash_json").encode("utf-8", "surrogatepass"))


def hash_texts(texts: Iterable[str]) -> str:
    """128-bit xxh3 of a list of texts as 32 hex digits: order and boundaries count."""
    state = xxhash.xxh3_128()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()
