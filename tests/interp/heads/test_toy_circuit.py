"""The textbook induction circuit, written down by hand and trained: found, named, and destroyed by either ablation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from circuit import INDUCTION, N_TOKENS, PREVIOUS, copies, induction_circuit

from interp.heads.effects import head_effects
from interp.heads.report import head_report
from interp.heads.sets import ablate_heads
from interp.model import HookedTransformer
from interp.train import load_checkpoint, train_induction_toy


def unravel(model: HookedTransformer) -> tuple[tuple[int, int], tuple[int, int]]:
    """The pair of heads of largest K-composition."""
    scores = model.all_composition_scores("K")
    at = np.unravel_index(int(scores.argmax()), tuple(scores.shape))
    return (int(at[0]), int(at[1])), (int(at[2]), int(at[3]))


@pytest.mark.parametrize("kind", ["zero", "resample"])
def test_the_hand_made_circuit_is_named(kind: str) -> None:
    model = induction_circuit(noise=0.01)
    report = head_report(model, copies(), bos=0, kind=kind)
    frame = report.to_frame().set_index(["layer", "head"])
    assert frame.loc[INDUCTION, ["verdict", "role"]].tolist() == ["induction", "induction"]
    assert frame.loc[PREVIOUS, ["verdict", "role"]].tolist() == ["upstream", "previous_token"]
    assert (frame.drop([INDUCTION, PREVIOUS])["verdict"] == "none").all()
    assert frame.loc[INDUCTION, "induction"] > 0.99
    assert frame.loc[PREVIOUS, "previous_token"] > 0.99
    assert unravel(model) == (PREVIOUS, INDUCTION)
    assert report.losses["second_copy"] < 0.05
    said = report.summary()
    assert "L1H2" in said
    assert "L0H1" in said
    assert "(previous token)" in said


@pytest.mark.parametrize("head", [PREVIOUS, INDUCTION])
def test_either_ablation_destroys_the_gain(head: tuple[int, int]) -> None:
    found = head_effects(induction_circuit(), copies(), bos=0, kind="zero", heads=[head])
    assert float(found.base.mean()) < 0.05
    assert float(found.losses.mean()) > np.log(N_TOKENS)  # as bad as any guess


def test_heads_that_do_nothing_have_no_effect_at_all() -> None:
    idle = [(layer, head) for layer in range(2) for head in range(3) if (layer, head) not in (PREVIOUS, INDUCTION)]
    found = head_effects(induction_circuit(), copies(), bos=0, kind="zero", heads=idle)
    torch.testing.assert_close(found.losses, found.base.expand_as(found.losses))


def test_two_heads_that_stand_in_for_each_other_are_redundant() -> None:
    """A second induction head beside the first: either suffices, so neither has an effect alone."""
    model = induction_circuit()
    attn = model.blocks[1].attn
    for weights in (attn.W_Q, attn.W_K, attn.W_V, attn.W_O):
        weights[0].copy_(weights[INDUCTION[1]])
    report = head_report(model, copies(), bos=0, kind="zero", top=2)
    frame = report.to_frame().set_index(["layer", "head"])
    for head in ((1, 0), INDUCTION):
        assert frame.loc[head, "verdict"] == "redundant"
        assert frame.loc[head, "in_set"] > 2
        assert abs(frame.loc[head, "effect"]) < 0.02
    both = ablate_heads(model, [(1, 0), INDUCTION], copies(), bos=0, kind="zero")
    assert both.effect > 2.5
    assert both.random.shape[0] == 0  # one other head is left in the layer, two would be needed
    assert "too few other heads" in both.summary()


@pytest.mark.slow
def test_the_trained_toy_has_the_circuit(tmp_path: Path) -> None:
    train_induction_toy(tmp_path, n_steps=450, checkpoint_every=450)
    model = load_checkpoint(tmp_path)
    ids = torch.randint(0, 128, (8, 32), generator=torch.Generator().manual_seed(3))
    report = head_report(model, ids, bos=False, kind="resample", rows=8)
    frame = report.to_frame()
    # All four heads of the second layer learn induction: each has a score, and the others stand in for it.
    found = frame.loc[frame["verdict"].isin(["induction", "redundant"])]
    assert (found["layer"] == 1).all()
    assert len(found) >= 3
    previous = report.of("upstream")
    assert (previous["layer"] == 0).all()
    assert (previous["role"] == "previous_token").all()
    earlier, later = unravel(model)
    assert earlier in set(zip(previous["layer"], previous["head"], strict=True))
    assert later in set(zip(found["layer"], found["head"], strict=True))
    gain = report.losses["first_copy"] - report.losses["second_copy"]
    assert previous["effect"].iloc[0] > 0.5 * gain
    assert report.set_effect is not None
    assert report.set_effect["effect"] > 0.7 * gain
