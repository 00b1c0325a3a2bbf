"""Work in pieces is done once, survives an end at any place, and a report's folder belongs to one job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from tiny import tiny_model

from interp.behavior.pieces import BehaviorFolder, Piece, divided, in_folder, run_pieces
from interp.behavior.report import BehaviorReport
from interp.model import HookedTransformer
from interp.plot import Chart
from interp.report import Section

DONE: list[Any] = []
"""Inputs of the pieces that this process worked on."""


class Counted(BehaviorReport):
    """Sums of the pieces."""

    KIND = "counted report"
    TABLES: ClassVar[Mapping[str, tuple[str, ...]]] = {"sums": ("sum", "word")}
    WORDS: ClassVar[frozenset[str]] = frozenset({"word"})

    def summary(self) -> str:
        return f"{len(self.tables['sums'])} sums."

    def title(self) -> str:
        return "Sums"

    def sections(self) -> list[Section]:
        return [Section("Sums", tables=[self.tables["sums"]])]

    def plot(self, name: str | None = None) -> Chart:
        raise ValueError("no chart")


def work(model: HookedTransformer, settings: Mapping[str, Any], inputs: Any) -> tuple[dict[str, np.ndarray], Any]:
    DONE.append(inputs)
    numbers = np.array(inputs, dtype=np.float64) * settings["factor"]
    return {"numbers": numbers}, {"layers": model.cfg.n_layers, "sum": float(numbers.sum())}


def stop_after(n: int) -> Any:
    def tell(done: int, total: int) -> None:
        if done == n:
            raise KeyboardInterrupt

    return tell


def test_items_keep_their_order_in_pieces() -> None:
    pieces = divided("numbers", [1, 2, 3, 4, 5], 2)
    assert [piece.inputs for piece in pieces] == [[1, 2], [3, 4], [5]]
    assert len({piece.name for piece in pieces}) == 3


def test_a_stopped_run_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    model, pieces = tiny_model(), divided("numbers", list(range(10)), 3)
    options: dict[str, Any] = {"decides": {"factor": 2}}
    whole = run_pieces(model, work, {"factor": 2}, pieces, **options)
    folder = BehaviorFolder(tmp_path / "job")
    DONE.clear()
    with folder.held(resume=True), pytest.raises(KeyboardInterrupt):
        run_pieces(model, work, {"factor": 2}, pieces, folder=folder, progress=stop_after(2), **options)
    assert [inputs[0] for inputs in DONE] == [0, 3]
    with folder.held(resume=True):
        again = run_pieces(model, work, {"factor": 2}, pieces, folder=folder, **options)
    assert [inputs[0] for inputs in DONE] == [0, 3, 6, 9]
    for (arrays, values), (others, theirs) in zip(whole, again, strict=True):
        np.testing.assert_array_equal(arrays["numbers"], others["numbers"])
        assert values == theirs


def test_what_decides_a_result_names_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, pieces, folder = tiny_model(), [Piece("one", [1, 2])], BehaviorFolder(tmp_path / "job")
    with folder.held(resume=True):
        run_pieces(model, work, {"factor": 2}, pieces, decides={"factor": 2}, folder=folder)
        DONE.clear()
        (arrays, _), *_ = run_pieces(model, work, {"factor": 3}, pieces, decides={"factor": 3}, folder=folder)
        run_pieces(tiny_model("gpt2"), work, {"factor": 3}, pieces, decides={"factor": 3}, folder=folder)
        assert len(DONE) == 2
        assert arrays["numbers"].tolist() == [3, 6]
        damaged = next((folder.path / "tasks").glob("one.*"))
        damaged.write_bytes(damaged.read_bytes()[:-4])
        for factor in (2, 3):
            (arrays, _), *_ = run_pieces(
                model, work, {"factor": factor}, pieces, decides={"factor": factor}, folder=folder
            )
            assert arrays["numbers"].tolist() == [factor, 2 * factor]
    assert "damaged" in caplog.text


def counted(out: Path | None, factor: int, *, numbers: tuple[int, ...] = (1, 2, 3), **options: Any) -> Counted:
    model = tiny_model()

    def make(folder: Any) -> Counted:
        found = run_pieces(
            model,
            work,
            {"factor": factor},
            divided("n", list(numbers), 1),
            decides={"factor": factor},
            folder=folder,
            **options,
        )
        rows = [{"sum": values["sum"], "word": "a"} for _, values in found]
        return Counted({"sums": pd.DataFrame(rows)}, {"factor": factor}, {"model": "tiny"}, ("Mind this.",))

    return in_folder(out, Counted, {"factor": factor}, list(numbers), model, make)


def test_a_folder_is_one_jobs(tmp_path: Path) -> None:
    out = tmp_path / "job"
    first = counted(out, 2)
    DONE.clear()
    again = counted(out, 2)
    assert DONE == []
    pd.testing.assert_frame_equal(first.to_frame(), again.to_frame())
    assert again.notes == ("Mind this.",)
    assert again.card["job"]["factor"] == 2
    assert "Mind this." in (out / "report.html").read_text()
    with pytest.raises(ValueError, match="factor: 2 -> 3"):
        counted(out, 3)
    with pytest.raises(ValueError, match="what it is measured on"):
        counted(out, 2, numbers=(1, 2))
    assert Counted.load(out / "report.json").values == {"factor": 2}


def test_a_stopped_report_has_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    counted(tmp_path / "whole", 2)
    with pytest.raises(KeyboardInterrupt):
        counted(tmp_path / "stopped", 2, progress=stop_after(2))
    counted(tmp_path / "stopped", 2)
    for name in ("report.json", "report.html"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_report_is_checked_and_read_back(tmp_path: Path) -> None:
    report = counted(None, 2)
    assert Counted.load(report.save(tmp_path / "r.json")).to_dict() == report.to_dict()
    for damage in (
        '{"kind": "counted report", "format": 9}',
        '{"kind": "counted report", "format": 1}',
        '{"kind": "other"}',
    ):
        (tmp_path / "r.json").write_text(damage)
        with pytest.raises(ValueError, match=r"update interp|damaged|holds no"):
            Counted.load(tmp_path / "r.json")
    with pytest.raises(ValueError, match="lacks the column 'word'"):
        Counted({"sums": pd.DataFrame({"sum": [1.0]})}, {}, {})
    with pytest.raises(ValueError, match="missing or unknown"):
        Counted({}, {}, {})


def test_hooks_are_refused_where_something_is_kept(tmp_path: Path) -> None:
    model = tiny_model()
    with model.hooks({"blocks.0.hook_resid_post": lambda value, ctx: value * 2}):
        with pytest.raises(ValueError, match=r"hooks at blocks\.0\.hook_resid_post"):
            in_folder(tmp_path / "job", Counted, {}, [], model, lambda folder: counted(None, 2))
        with pytest.raises(ValueError, match="do not travel"):
            run_pieces(model, work, {"factor": 2}, [Piece("one", [1])], decides=2, engine="ray")
    assert not (tmp_path / "job").exists()


def test_a_damaged_report_is_made_again_from_its_pieces(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, file = counted(tmp_path / "job", 2), tmp_path / "job" / "report.json"
    whole = file.read_bytes()
    for damage in (b"{}", whole[:-20]):
        file.write_bytes(damage)
        DONE.clear()
        assert counted(tmp_path / "job", 2).to_dict() == first.to_dict()
        assert DONE == []
        assert file.read_bytes() == whole
    assert "damaged" in caplog.text
