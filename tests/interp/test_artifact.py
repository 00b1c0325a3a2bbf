"""Artefacts: atomic writing, strict reading, hashes that mean what they say."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from interp import artifact


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_home_is_the_environment_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERP_HOME", "~/elsewhere")
    assert artifact.home() == Path.home() / "elsewhere"
    monkeypatch.setenv("INTERP_HOME", "")
    assert artifact.home() == Path.home() / ".cache" / "interp"


def test_atomic_write_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    artifact.atomic_write(path, "one")
    artifact.atomic_write(path, "zwö")
    assert path.read_bytes() == "zwö".encode()
    assert files(tmp_path) == ["deep", "file.txt"]


def test_atomic_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    artifact.atomic_write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        artifact.atomic_write(path, "new \ud800")
    assert path.read_text() == "old"
    assert files(tmp_path) == ["file.txt"]


def test_written_files_have_the_users_permissions(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert artifact.atomic_write(tmp_path / "atomic", "x").stat().st_mode == plain.stat().st_mode


def test_atomic_folder_appears_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with artifact.atomic_folder(target) as new:
        (new / "a").write_text("a")
        assert not target.exists()
    assert files(tmp_path) == ["a", "folder"]


def test_atomic_folder_is_removed_on_failure(tmp_path: Path) -> None:
    def interrupted() -> None:
        with artifact.atomic_folder(tmp_path / "folder") as new:
            (new / "a").write_text("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path) == []


def test_atomic_folder_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="exists already"), artifact.atomic_folder(tmp_path):
        pass
    assert files(tmp_path) == ["file"]


def test_sweep_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    target = tmp_path / "model[1]"  # a name that would be a pattern
    code = (
        "import os, signal, sys; from interp import artifact\n"
        "with artifact.atomic_folder(sys.argv[1]) as new:\n"
        "    (new / 'half').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert killed.returncode == -9
    other = tmp_path / ".model2.abc.part"
    other.mkdir()
    assert not target.exists()
    assert len(artifact.sweep_temporary(target)) == 1
    assert files(tmp_path) == [".model2.abc.part"]


def test_json_round_trip_is_sorted(tmp_path: Path) -> None:
    path = artifact.write_json(tmp_path / "a.json", {"b": 1, "a": ["é", None, 0.1]})
    assert artifact.read_json(path) == {"a": ["é", None, 0.1], "b": 1}
    assert path.read_text("utf-8").index('"a"') < path.read_text("utf-8").index('"b"')


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_json_refuses_nan_and_infinity(tmp_path: Path, bad: float) -> None:
    with pytest.raises(ValueError, match=re.escape("a.json: NaN and infinity")):
        artifact.write_json(tmp_path / "a.json", {"x": [bad]})
    assert files(tmp_path) == []


def test_json_refuses_numpy_numbers_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(".item()")):
        artifact.write_json(tmp_path / "a.json", {"x": np.float32(1.0)})


def test_json_read_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        artifact.read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        artifact.read_json(tmp_path / "bad.json")


def test_artifact_round_trip(tmp_path: Path) -> None:
    matrix = torch.randn(3, 4)
    tensors = {"w": matrix, "view": matrix.T, "half": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)}
    path = artifact.save_artifact(tmp_path / "p.safetensors", "probe", tensors, {"site": "resid_post:6"})
    loaded, card = artifact.load_artifact(path, "probe")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert loaded["half"].dtype == torch.bfloat16
    assert (card["kind"], card["format"], card["site"]) == ("probe", artifact.FORMAT, "resid_post:6")
    assert set(card["provenance"]) == {"interp", "torch", "python"}
    assert torch.equal(load_file(path)["w"], matrix), "any safetensors user can read it"


def test_artifact_keeps_the_callers_provenance(tmp_path: Path) -> None:
    card = {"provenance": artifact.provenance(model="abc", seed=3)}
    _, loaded = artifact.load_artifact(artifact.save_artifact(tmp_path / "a", "x", {}, card), "x")
    assert (loaded["provenance"]["model"], loaded["provenance"]["seed"]) == ("abc", 3)
    assert loaded["provenance"]["torch"] == torch.__version__


def test_equal_artifacts_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys, torch; from interp import artifact\n"
        "card = dict.fromkeys(sys.argv[2], 1)\n"
        "tensors = {k: torch.full((2,), float(ord(k))) for k in sys.argv[2]}\n"
        "artifact.save_artifact(sys.argv[1], 'x', tensors, card)\n"
    )
    for name, order in (("a", "abcdefgh"), ("b", "hgfedcba")):
        seeded = {**os.environ, "PYTHONHASHSEED": str(ord(name))}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name), order], check=True, env=seeded)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_artifact_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="NaN in w"):
        artifact.save_artifact(tmp_path / "a", "x", {"w": torch.tensor([1.0, math.nan])}, {})
    card = json.dumps({"kind": "x", "format": 1, "provenance": {}})
    save_file({"w": torch.tensor([math.nan])}, tmp_path / "b", metadata={"card": card})
    with pytest.raises(ValueError, match="NaN in w"):
        artifact.load_artifact(tmp_path / "b", "x")


def test_artifact_reading_errors(tmp_path: Path) -> None:
    path = artifact.save_artifact(tmp_path / "a", "probe", {"w": torch.ones(100)}, {})
    with pytest.raises(ValueError, match="holds a 'probe', not a 'steering_vector'"):
        artifact.load_artifact(path, "steering_vector")
    with pytest.raises(ValueError, match="there is no file"):
        artifact.load_artifact(tmp_path / "none", "probe")
    with pytest.raises(ValueError, match="saved as 'probe'"):
        artifact.save_artifact(path, "probe", {}, {"kind": "lens"})
    (tmp_path / "cut").write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        artifact.load_artifact(tmp_path / "cut", "probe")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        artifact.load_artifact(tmp_path / "text", "probe")
    save_file({"w": torch.ones(1)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="has no card"):
        artifact.load_artifact(tmp_path / "foreign", "probe")


def test_artifact_refuses_a_newer_format(tmp_path: Path) -> None:
    card = json.dumps({"kind": "probe", "format": artifact.FORMAT + 1})
    save_file({"w": torch.ones(1)}, tmp_path / "new", metadata={"card": card})
    with pytest.raises(ValueError, match="update interp"):
        artifact.load_artifact(tmp_path / "new", "probe")


def test_loaded_artifact_survives_its_replacement(tmp_path: Path) -> None:
    path = artifact.save_artifact(tmp_path / "a", "x", {"w": torch.ones(5000)}, {})
    loaded, _ = artifact.load_artifact(path, "x")
    artifact.save_artifact(path, "x", {"w": torch.zeros(5000)}, {})
    assert bool((loaded["w"] == 1).all())
    loaded["w"].fill_(7.0)
    assert bool((artifact.load_artifact(path, "x")[0]["w"] == 0).all()), "an edit stays in memory"


def test_hashes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert artifact.sha256_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
    assert artifact.hash_json({"a": 1, "b": [2]}) == artifact.hash_json({"b": [2], "a": 1})
    assert artifact.hash_json({"a": 1}) != artifact.hash_json({"a": 2})
    assert artifact.hash_texts(["ab", "c"]) != artifact.hash_texts(["a", "bc"]) != artifact.hash_texts(["abc"])
    assert artifact.hash_texts(["a", "b"]) != artifact.hash_texts(["b", "a"])
    assert len(artifact.hash_texts([])) == 32


def test_rows_of_a_frame_are_json() -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "n": [1, 2], "value": [0.5, np.nan], "kept": [True, False]})
    found = json.loads(json.dumps(artifact.records(frame), allow_nan=False))
    assert found == [
        {"name": "a", "n": 1, "value": 0.5, "kept": True},
        {"name": "b", "n": 2, "value": None, "kept": False},
    ]
