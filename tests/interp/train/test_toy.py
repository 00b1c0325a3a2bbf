"""The toys: induction heads form at once and the loss falls with them; one batch is learnt by heart."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import Int
from tiny import tiny_model
from torch import Tensor

from interp.heads import pattern_scores
from interp.model import HookedTransformer
from interp.train import InductionToy, TrainConfig, TrainResult, load_checkpoint, train_induction_toy
from interp.train.toy import copy_losses


def score(model: HookedTransformer, ids: Int[Tensor, "row pos"]) -> dict[str, float]:
    with torch.no_grad():
        _, cache = model.run_with_cache(ids, "pattern:*")
    found = [pattern_scores(cache["pattern", layer], ids.shape[1] // 2) for layer in range(2)]
    induction = torch.cat([scores["induction"].mean(-1) for scores, _ in found])
    best = int(induction.argmax())
    return {
        "induction": float(induction[best]),
        "null": float(torch.cat([null for _, null in found])[best]),
        "previous_token": float(found[0][0]["previous_token"].mean(-1).max()),
    }


def toy_of(values: list[float], steps: list[int]) -> InductionToy:
    frame = pd.DataFrame({"step": steps, "induction": values})
    return InductionToy(frame, TrainResult((), TrainConfig(), None))


def test_steepest_and_rise_of_a_curve_that_is_known(tmp_path: Path) -> None:
    toy = toy_of([0.0, 0.05, 0.02, 0.1, 0.6, 0.95, 0.9, 1.0], [0, 10, 20, 30, 40, 50, 60, 70])
    assert toy.steepest() == 40
    assert toy.rise() == (30, 50)
    assert toy.rise(low=0.05, high=0.5) == (20, 40)
    falling = toy_of([5.0, 5.0, 4.9, 1.0, 0.5], [0, 10, 20, 30, 90])
    assert (falling.steepest(), falling.rise()) == (30, (20, 90))
    with pytest.raises(ValueError, match="there is no rise"):
        toy_of([0.5, 0.7, 0.5], [0, 1, 2]).rise()
    saved = json.loads(toy.save(tmp_path / "toy.json").read_text())
    assert (saved["steepest"], saved["rise"]) == (40, [30, 50])
    assert saved["checkpoints"][4] == {"step": 40, "induction": 0.6}


def test_a_short_run_makes_a_row_for_each_checkpoint_and_is_the_same_again(tmp_path: Path) -> None:
    runs = [
        train_induction_toy(tmp_path / name, score=score, n_steps=4, checkpoint_every=2, batch_size=4) for name in "ab"
    ]
    frame = runs[0].to_frame()
    assert frame["step"].tolist() == [0, 2, 4]
    assert frame["tokens"].tolist() == [0, 512, 1024]
    assert frame.equals(runs[1].to_frame())
    assert frame["loss_first_copy"].iloc[0] == pytest.approx(np.log(128), abs=0.05)
    assert frame["loss_second_copy"].iloc[0] == pytest.approx(np.log(128), abs=0.05)
    again = train_induction_toy(tmp_path / "a", score=score, n_steps=4, checkpoint_every=2, batch_size=4)
    assert again.to_frame().equals(frame)
    other = train_induction_toy(tmp_path / "c", seed=1, n_steps=4, checkpoint_every=2, batch_size=4).to_frame()
    assert other["loss_first_copy"].iloc[0] != frame["loss_first_copy"].iloc[0]


def test_losses_of_the_copies_leave_out_what_nothing_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    # The loss at place i is i; place 4 predicts the first token of the second copy.
    monkeypatch.setattr(model, "loss", lambda ids, per_token: torch.arange(9.0).repeat(len(ids), 1))
    found = copy_losses(model, torch.zeros(2, 10, dtype=torch.long), 5)
    assert found == {"loss_first_copy": 1.5, "loss_second_copy": 6.5}


@pytest.mark.slow
def test_induction_appears_at_once_and_the_loss_falls_with_it(tmp_path: Path) -> None:
    toy = train_induction_toy(tmp_path, score=score, n_steps=450, checkpoint_every=25)  # shorter than the command
    frame = toy.to_frame()
    first, last = frame.iloc[0], frame.iloc[-1]
    assert first["induction"] < 0.05
    assert last["induction"] > 0.6
    assert last["induction"] > 5 * last["null"]
    assert last["previous_token"] > 0.3
    assert last["loss_second_copy"] < 1.3
    assert last["loss_first_copy"] > 4.5  # random tokens cannot be predicted: ln 128 = 4.85
    begin, end = toy.rise()
    assert end - begin <= 200
    # Before it nothing happens, and the loss falls in the same steps.
    assert frame.loc[frame["step"] <= begin, "loss_second_copy"].min() > 4
    assert frame.loc[frame["step"] >= end, "loss_second_copy"].max() < 1.5
    assert abs(toy.steepest() - toy.steepest("loss_second_copy")) <= 100
    model = load_checkpoint(tmp_path)
    ids = torch.randint(0, 128, (16, 24), generator=torch.Generator().manual_seed(5))
    predicted = model(torch.cat([ids, ids], 1))[:, 24:-1].argmax(-1)
    assert float((predicted == ids[:, 1:]).float().mean()) > 0.8
