"""`recording_plan` against what `record` then does."""

import re

import pytest
from tiny import tiny_model

from interp.recording import plan as plan_module
from interp.recording import record, recording_plan

TEXTS = [f"the city of {name} is away" for name in ("Rome", "Oslo", "Bern", "Lima", "Roma") * 9]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.mark.parametrize("options", [{}, {"tokens": "last", "signals": True}, {"generate": 3}])
def test_it_counts_what_recording_does(model, tmp_path, options, monkeypatch):
    monkeypatch.setattr(plan_module, "SHARD_ROWS", 300)
    plan = recording_plan(model, TEXTS, path=tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()
    seen = []
    before = model.run.forwards
    store = record(model, TEXTS, path=tmp_path / "a", progress=lambda *status: seen.append(status), **options)
    assert (plan.examples, plan.texts, plan.shards) == (45, store.n_texts, store.card["shards"])
    assert plan.rows == store.n_rows or options.get("generate")
    assert plan.rows >= store.n_rows
    assert plan.tokens == store.card["texts"]["tokens"]
    written = sum(file.stat().st_size for file in (tmp_path / "a").rglob("*") if file.is_file())
    assert written <= plan.bytes
    assert plan.free_bytes is not None
    assert plan.fits
    assert plan.seconds > 0
    assert set(plan.to_frame()["quantity"]) >= {"texts", "tokens", "forwards", "bytes", "memory_bytes", "seconds"}
    if "generate" not in options:
        assert plan.forwards == model.run.forwards - before == len(seen)
        assert plan.computed == seen[-1][2] < plan.tokens


def test_a_sample_of_shards_stands_for_all(model, monkeypatch):
    monkeypatch.setattr(plan_module, "SHARD_ROWS", 30)
    plan = recording_plan(model, ["abcdefghij" + str(i) for i in range(10, 80)], "embed")
    assert plan.shards > 16
    assert plan.forwards == plan.shards
    assert plan.free_bytes is None
    with pytest.raises(ValueError, match="dtype"):
        recording_plan(model, TEXTS, dtype="int4")


def test_a_path_where_record_would_not_write_is_refused(model, tmp_path):
    call = {"sites": "embed", "tokens": "last", "progress": False}
    record(model, TEXTS[:3], path=tmp_path / "there", **call)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    del call["progress"]
    assert recording_plan(model, TEXTS[:3], path=tmp_path / "there", **call).fits
    before = sorted(tmp_path.rglob("*"))
    for name, message in (
        ("there", r"was recorded from other inputs: texts \("),
        ("file", "is a file; a store is a folder"),
        ("full", "is not a store and not empty"),
    ):
        with pytest.raises(ValueError, match=message):
            recording_plan(model, TEXTS[:4], path=tmp_path / name, **call)
    with pytest.raises(ValueError, match=re.escape("would lie in")):
        recording_plan(model, tmp_path / "full", path=tmp_path / "full/store", **call)
    assert sorted(tmp_path.rglob("*")) == before
