"""The snippets of the README run, in order and in one session, as a reader would type them."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.S)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 29


@pytest.mark.slow
def test_every_snippet_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, snippet in enumerate(SNIPPETS, 1):
        exec(compile(snippet, f"README snippet {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "Paris" in printed
    assert "AUROC" in printed
    assert "the second copy costs" in printed
    assert "balanced accuracy" in printed
    assert (tmp_path / "scan.html").stat().st_size > 10_000


def test_links_lead_to_files() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README.read_text("utf-8")):
        assert (README.parent / link).is_file(), link
