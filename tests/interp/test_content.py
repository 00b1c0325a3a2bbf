"""The folders beside the package are found, and a wheel's copy wins over a stranger's folder of the same name."""

from pathlib import Path

import pytest

from interp import content


@pytest.mark.parametrize("name", ["app", "probes", "data"])
def test_folders_of_a_checkout(name: str) -> None:
    assert content.content_folder(name) == Path(__file__).parents[2] / name


def test_unknown_name_lists_the_folders() -> None:
    with pytest.raises(ValueError, match=r"no content folder 'dta'; there are app, probes, data"):
        content.content_folder("dta")


def test_wheel_copy_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "interp"
    (package / "_content" / "data").mkdir(parents=True)
    (package.parent / "data").mkdir()  # somebody else's package
    monkeypatch.setattr(content, "_PACKAGE", package)
    assert content.content_folder("data") == package / "_content" / "data"
    with pytest.raises(FileNotFoundError, match="'app' is missing"):
        content.content_folder("app")
