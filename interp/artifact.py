"""Values on disk: atomic files and folders, one-file artefacts, hashes and provenance.

A reader never sees half a file. Everything is written under a temporary name in the target's own folder, flushed to the
disk, and renamed: the rename happens or it does not. An *artefact* (probe, steering vector, lens, SAE ...) is one
safetensors file whose only metadata key, `card`, is JSON with sorted keys; several keys would come in another order in
every process, and equal values would not be equal bytes. For the same reason a card holds no clock time and no host
name.
"""

import contextlib
import glob
import hashlib
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from interp import __version__

FORMAT = 1
"""Version of the artefact format. A reader refuses a newer one, and reads every older one."""


def home() -> Path:
    """The folder for downloaded models and other things made once: $INTERP_HOME, else ~/.cache/interp."""
    chosen = os.environ.get("INTERP_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "interp"


# ------------------------------------------------------------------------------------------------- atomic writing


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Write a file whole or not at all, replacing one that is there; text is UTF-8. Missing folders are made."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder that appears whole or not at all.

    Yields a temporary folder beside `path`; on a clean exit its files are flushed and it is renamed to `path`, on an
    exception it is removed.

    Raises:
        ValueError: `path` exists already (an empty folder is replaced).
    """
    path = Path(path)
    _refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(p for p in temporary.rglob("*") if p.is_file()):
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        _refuse_existing(path)
        os.replace(temporary, path)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def sweep_temporary(path: str | os.PathLike[str]) -> list[Path]:
    """Remove what killed writers of `path` left behind, and return it. Only for the holder of a lock on `path`."""
    path = Path(path)
    leftovers = sorted(path.parent.glob(f".{glob.escape(path.name)}.*.part"))
    for leftover in leftovers:
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    return leftovers


def _temporary(path: Path) -> Path:
    # The same folder, so that the rename stays on one file system; hidden, so that no reader lists it.
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")


def _refuse_existing(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} exists already: remove it, or choose another place")


# ------------------------------------------------------------------------------------------------------------ JSON


def write_json(path: str | os.PathLike[str], obj: Any) -> Path:
    """Write JSON atomically, keys sorted, so that equal values are equal bytes.

    Raises:
        ValueError: NaN or infinity (JSON has neither), or a value that JSON cannot hold.
    """
    return atomic_write(path, _dump(obj, where=str(path), indent=1) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. ValueError where it is not there, is a folder or is not JSON."""
    path = Path(path)
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (IsADirectoryError, NotADirectoryError):
        raise ValueError(f"{path} is a folder, or lies in what is none; give the file itself") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): it is damaged, or it is another kind of file") from None


def _dump(obj: Any, *, where: str, indent: int | None = None) -> str:
    try:
        return json.dumps(obj, sort_keys=True, allow_nan=False, ensure_ascii=False, indent=indent)
    except ValueError as error:
        raise ValueError(
            f"{where}: NaN and infinity have no JSON form ({error}); use None for a missing value"
        ) from None
    except TypeError as error:
        raise ValueError(f"{where}: not a JSON value ({error}); convert numpy and torch numbers with .item()") from None


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows of a data frame for JSON, where what was not measured (NaN) is null."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


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
    return atomic_write(path, save(owned, metadata={"card": _dump(full, where=f"card of {path}")}))


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


def sha256_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file as 64 hex digits, for what comes from outside."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(obj: Any) -> str:
    """128-bit xxh3 of a JSON value as 32 hex digits; the order of keys does not matter. Not for security."""
    return xxhash.xxh3_128_hexdigest(_dump(obj, where="hash_json").encode("utf-8", "surrogatepass"))


def hash_texts(texts: Iterable[str]) -> str:
    """128-bit xxh3 of a list of texts as 32 hex digits: order and boundaries count."""
    state = xxhash.xxh3_128()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()
