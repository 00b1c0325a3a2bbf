"""What the app must never do, looked for in its sources, its configuration and its library."""

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from interp import artifact
from ui import export, library
from ui.services import live

Open = Callable[..., AppTest]
ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "app", ROOT / "interp" / "widgets"]
BANNED = (
    r"unsafe_allow_html|unsafe_allow_javascript|components\.v1|\bst\.html\(",
    r"(?<!\.)\beval\(|(?<!\.)\bexec\(|\bnew Function\b|__import__\(",
    r"\bimport pickle|\bpickle\.|\bjoblib\b|\btorch\.load\(|allow_pickle\s*=\s*True",
    r"trust_remote_code",
    r"shell\s*=\s*True|os\.system\(",
)
IN_SCRIPTS = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
LOADS = r"\bimport\s*\(|\bimport\s.*\bfrom\s|@import|\bfetch\(|XMLHttpRequest"
ADDRESS = r"https?://(?!www\.w3\.org/)"


def sources(*endings: str) -> list[Path]:
    return [file for folder in FOLDERS for file in sorted(folder.rglob("*")) if file.suffix in endings]


def test_no_source_makes_code_or_markup_from_data() -> None:
    files = sources(".py")
    assert len(files) > 20
    for file in files:
        for banned in BANNED:
            assert not re.search(banned, file.read_text("utf-8")), (file, banned)


def test_no_script_makes_markup_or_loads_anything() -> None:
    files = sources(".js", ".mjs", ".css", ".html")
    assert files
    for file in files:
        assert not re.search(IN_SCRIPTS, file.read_text("utf-8")), file
        assert not re.search(ADDRESS, file.read_text("utf-8")), file
        assert not re.search(LOADS, file.read_text("utf-8")), file


def test_the_scan_finds_what_it_looks_for() -> None:
    for bad in ("st.html(x)", "eval(x)", "torch.load(x)", "trust_remote_code=True", "import pickle", "shell=True"):
        assert any(re.search(banned, bad) for banned in BANNED), bad
    assert re.search(IN_SCRIPTS, "a.innerHTML = b")
    assert re.search(ADDRESS, "import 'https://cdn.example/x.js'")


def test_only_one_table_is_uploaded_and_it_never_reaches_the_disk() -> None:
    """Files are chosen by key from the workspace; the one upload is judged in memory, by a reader with limits of its own."""
    pattern = r"file_uploader|chat_input\(.*accept_file|camera_input|audio_input"
    found = {file.name for file in sources(".py") if re.search(pattern, file.read_text("utf-8"))}
    assert found == {"uncertainty_file.py"}
    for name in ("panels", "services"):
        text = (ROOT / "app" / "ui" / name / "uncertainty_file.py").read_text("utf-8")
        assert not re.search(r"open\(|write_|tempfile|\.save\(|to_csv\((?!\))|Path\(", text), name


def test_the_configuration_that_ships_is_safe() -> None:
    found = tomllib.loads((ROOT / "app" / ".streamlit" / "config.toml").read_text("utf-8"))
    server, client = found["server"], found["client"]
    assert server["address"] == "127.0.0.1"
    assert server["allowedHosts"] == ["localhost", "127.0.0.1"]
    assert server["enableXsrfProtection"] is True
    assert server["enableCORS"] is True
    assert server["enableStaticServing"] is False
    assert server["maxUploadSize"] <= 50
    assert client["showErrorDetails"] == "type"
    assert found["browser"]["gatherUsageStats"] is False
    assert found["runner"]["magicEnabled"] is False


def test_the_gate_comes_before_everything_that_draws() -> None:
    main = (ROOT / "app" / "main.py").read_text("utf-8")
    steps = [main.index(step) for step in ("access.gate()", "frame.sidebar()", "page.run()")]
    assert steps == sorted(steps)


# ------------------------------------------------------------------------------------------------------------- library


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with one report inside, one outside, and links that lead out."""
    inside, outside = tmp_path / "space", tmp_path / "outside"
    for folder in (inside / "a", outside):
        folder.mkdir(parents=True)
        artifact.write_json(folder / "scan.json", {"kind": "scan"})
    (inside / "link.json").symlink_to(outside / "scan.json")
    (inside / "linked").symlink_to(outside, target_is_directory=True)
    (inside / "loop").symlink_to(inside, target_is_directory=True)
    monkeypatch.setenv("INTERP_WORKSPACE", str(inside))
    monkeypatch.delenv("INTERP_RUN", raising=False)
    monkeypatch.delenv("INTERP_STORES", raising=False)
    library.forget()
    return inside


def test_the_library_stays_in_its_root(space: Path) -> None:
    assert [each.key for each in library.entries("scan")] == ["a/scan.json"]
    for key in (
        "../outside/scan.json",
        str(space / "a" / "scan.json"),
        str(space.parent / "outside" / "scan.json"),
        "a/../a/scan.json",
        "./a/scan.json",
        "link.json",
        "linked/scan.json",
        "a/scan.json\x00",
        "file:///etc/passwd",
        "",
    ):
        with pytest.raises(ValueError, match="choose another"):
            library.entry(key, "scan")


def test_a_damaged_or_hostile_file_is_no_entry(space: Path) -> None:
    (space / "deep.json").write_text("[" * 100_000)
    (space / "list.json").write_text("[1]")
    (space / "kind.json").write_text('{"kind": ["scan"]}')
    (space / "bad.safetensors").write_bytes(b"\xff" * 64)
    (space / "long.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    (space / "no.json").write_bytes(b"\xff\xfe")
    os.mkfifo(space / "pipe.json")
    library.forget()
    assert [each.key for each in library.entries()] == ["a/scan.json"]


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "https://evil.example/m", "a/b/c", "a b", "..", "a/..", "C:\\m", "-x", ""],
)
def test_a_run_names_a_model_and_no_place(open_page: Open, tmp_path: Path, run_folder: Path, name: str) -> None:
    info = artifact.read_json(run_folder / "demo.json")
    info["model"]["loads_as"] = name
    if not name:
        info["model"]["name"] = name
    (tmp_path / "run").mkdir()
    artifact.write_json(tmp_path / "run" / "demo.json", info)
    os.environ["INTERP_RUN"] = str(tmp_path / "run")
    page = open_page("help", run=tmp_path / "run")
    assert not page.exception
    with pytest.raises(ValueError, match="no model name"):
        live._default_model()


def test_the_url_names_only_what_is_offered(open_page: Open) -> None:
    page = open_page("help", query={"model": "/etc/passwd", "run": "../..", "store": "/etc"})
    assert not page.exception
    assert "/etc/passwd" not in "".join(str(each.value) for each in [*page.text, *page.selectbox])


def test_exported_cells_are_no_formulas() -> None:
    bad = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1"]
    lines = export.csv(pd.DataFrame({"=head": bad, "n": range(len(bad))})).decode()
    assert '"\'=head"' in lines
    for each in bad:
        assert f"\"'{each}" in lines
