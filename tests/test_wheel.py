"""A wheel carries the dashboard, the jobs and the data, and works without the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import pathlib, interp
home = pathlib.Path(interp.__file__).parent
assert home.parent.name == "installed", home
for name in ("app", "probes", "data"):
    assert interp.content_folder(name) == home / "_content" / name
assert (interp.content_folder("app") / "main.py").is_file()
assert (interp.content_folder("app") / ".streamlit" / "config.toml").is_file()
assert len(interp.load_dataset("cities")) == 1200
assert interp.load_demo_spec().model == "smollm2-135m"
assert len(interp.load_questions("questions")) > 500
from interp.report import Section, write_report
write_report("page.html", "Title", [Section("One", "Text.")])
"""


@pytest.mark.slow
def test_the_wheel_is_whole(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    names = {path.name for path in (tmp_path / "installed").iterdir()}
    assert names == {"interp", wheel.name.split("-py3")[0] + ".dist-info"}
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
