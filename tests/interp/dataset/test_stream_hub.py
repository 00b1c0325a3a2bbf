"""Hugging Face data sets: by address, streamed, and as objects that a caller holds."""

import sys
from pathlib import Path

import pytest

from interp.dataset import Example, iter_examples

EXAMPLES = [Example("a b", 2, "g", meta={"n": 1}), Example("c", 0, "h", meta={"n": 2})]
CSV = "text,label,group,n\na b,2,g,1\nc,0,h,2\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`datasets` takes owner/name for a folder where there is one, and reads it as it reads a repository."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "owner/name"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text(CSV)
    monkeypatch.chdir(tmp_path)
    return folder


def test_addresses(repository: Path):
    assert list(iter_examples("hf:owner/name")) == EXAMPLES
    assert list(iter_examples("hf:owner/name/default?split=train")) == EXAMPLES
    (repository / "test.csv").write_text(CSV)
    with pytest.raises(ValueError, match=r"has the splits train, test: say which, hf:owner/name\?split=train"):
        iter_examples("hf:owner/name")
    assert list(iter_examples("hf:owner/name?split=test")) == EXAMPLES


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf:name", "write hf:owner/name"),
        ("hf:owner/name/config/more", "write hf:owner/name"),
        ("hf:owner/name?part=train", "write hf:owner/name"),
        ("hf:owner/name?split=trian", "cannot read 'hf:owner/name.split=trian': Bad split: trian"),
        ("hf:owner/name/other?split=train", "'other' not found"),
        ("hf:owner/none", "cannot read 'hf:owner/none'"),
    ],
)
def test_bad_addresses_are_refused(repository: Path, address: str, message: str):
    with pytest.raises(ValueError, match=message):
        iter_examples(address)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the package `datasets`: pip install 'interp-workbench\[datasets\]'"):
        iter_examples("hf:owner/name")
    assert list(iter_examples("a text")) == [Example("a text")]


def test_objects(repository: Path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(
        [{"text": e.text, "label": e.label, "group": e.group, **e.meta} for e in EXAMPLES]
    )
    assert list(iter_examples(table)) == EXAMPLES
    assert list(iter_examples(table.with_format("numpy"))) == EXAMPLES
    assert list(iter_examples(table.to_iterable_dataset())) == EXAMPLES
    assert list(iter_examples(table.to_iterable_dataset(), limit=1)) == EXAMPLES[:1]
    for several in (
        datasets.DatasetDict(train=table, test=table),
        datasets.IterableDatasetDict(train=table.to_iterable_dataset(), test=table.to_iterable_dataset()),
    ):
        with pytest.raises(ValueError, match=r"several data sets, train, test: pass one, as in data\['train'\]"):
            iter_examples(several)
    messages = [{"role": "user", "content": "Hi"}]
    chat = datasets.Dataset.from_list([{"messages": messages, "id": 1}])
    assert list(iter_examples(chat)) == [Example("", meta={"id": 1}, messages=tuple(messages))]
