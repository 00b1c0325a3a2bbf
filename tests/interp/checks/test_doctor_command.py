"""`interp doctor`: what it prints, and its status."""

import json
from pathlib import Path

import pytest
from checkpoints import byte_backend, random_llama
from click.testing import CliRunner

from interp.cli.doctor import doctor
from interp.tokens import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tiny")
    random_llama().save_pretrained(place)
    Tokenizer(byte_backend(), bos_id=0, eos_id=1, special_ids=[0, 1, 2], add_bos=True).save(place)
    return place


def test_it_prints_every_check_with_figure_and_bound(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "report.json"
    found = CliRunner().invoke(doctor, [str(folder), "--only", "recomputed", "--only", "parity*", "--save", str(saved)])
    assert found.exit_code == 0, found.output
    assert "ok       recomputed: attention" in found.output
    assert "(at most 2.00e-05)" in found.output
    assert "ok       parity: logits" in found.output
    assert json.loads(saved.read_text())["ok"] is True


def test_json_is_one_value_and_nothing_else(folder: Path) -> None:
    found = CliRunner().invoke(doctor, [str(folder), "--only", "shapes", "--json"])
    report = json.loads(found.output)
    assert report["ok"] is True
    assert report["checks"][0]["name"] == "shapes"
    assert report["checks"][0]["verdict"] == "ok"


def test_status_one_when_a_check_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_bos(self: Tokenizer, ids: list[int], bos: bool | None) -> list[int]:
        return [0, *ids] if (self.add_bos if bos is None else bos) else ids

    monkeypatch.setattr(Tokenizer, "_with_bos", with_bos)
    found = CliRunner().invoke(doctor, [str(folder), "--only", "one BOS"])
    assert found.exit_code == 1
    assert "failed: one BOS" in found.output


def test_a_line_of_the_report_names_its_check(folder: Path) -> None:
    found = CliRunner().invoke(doctor, [str(folder), "--only", "causal leaks"])
    assert found.exit_code == 0, found.output
    assert "ok       causal leaks" in found.output


def test_a_report_that_could_not_be_written_is_refused_before_the_checks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, words in ((tmp_path / "file" / "report.json", "no folder"), (tmp_path, "is a folder")):
        found = CliRunner().invoke(doctor, [str(folder), "--only", "shapes", "--save", str(path)])
        assert found.exit_code == 2
        assert words in found.output
        assert "shapes" not in found.output
    deep = tmp_path / "new" / "folder" / "report.json"
    assert CliRunner().invoke(doctor, [str(folder), "--only", "shapes", "--save", str(deep)]).exit_code == 0
    assert deep.is_file()


def test_transformers_can_be_left_out(folder: Path) -> None:
    found = CliRunner().invoke(doctor, [str(folder), "--only", "parity*", "--no-transformers"])
    assert found.exit_code == 0
    assert "left out by the caller" in found.output
