"""Confidence at several temperatures: that of the report at its own, one answer at all of them, and what is refused."""

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.uncertainty import next_token_calibration
from interp.uncertainty.temperatures import temperature_rows

TEXTS = ["abc abd", "cab bac abc", "a b c d", "dd cc bb aa"]


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model(n_layers=2, n_heads=2, n_ctx=64)


def test_rows_are_the_softmax_of_the_logits(model: HookedTransformer) -> None:
    found = temperature_rows(model, TEXTS, [2.0, 0.5, 1.0, 1.0])
    assert found.temperatures == (0.5, 1.0, 2.0)
    ids = list(model.tokenize(TEXTS[0]).row(0))
    with torch.inference_mode():
        logits = model(ids)[0].double()
    special = set(model.tokenizer.special_ids)
    places = [
        i for i in range(len(ids) - 1) if ids[i + 1] not in special and any(t not in special for t in ids[: i + 1])
    ]
    for t in found.temperatures:
        p = (logits / t).softmax(-1)[places].amax(-1).numpy()
        assert found.p_at(t)[: len(places)] == pytest.approx(p, rel=1e-4)
    right = logits[places].argmax(-1).numpy() == np.array(ids)[np.array(places) + 1]
    assert found.right[: len(places)].tolist() == right.tolist()


def test_a_higher_temperature_is_less_sure_and_no_less_right(model: HookedTransformer) -> None:
    frame = temperature_rows(model, TEXTS, [0.5, 1.0, 2.0]).to_frame()
    assert (np.diff(frame["confidence"]) < 0).all()
    assert frame["accuracy"].nunique() == 1


def test_at_one_it_is_the_calibration_of_all_documents(model: HookedTransformer) -> None:
    found = temperature_rows(model, TEXTS, [1.0])
    whole = next_token_calibration(model, TEXTS, n_boot=0, n_null=0)
    assert len(found.right) == whole.card["tokens"]
    report = found.report(1.0, n_boot=0, n_null=0)
    assert report.n == len(found.right)
    assert report.mean_p == pytest.approx(found.p_at(1.0).mean())
    assert set(found.groups) == {"0", "1", "2", "3"}
    assert found.card["provenance"]["fingerprint"] == model.fingerprint


def test_what_is_refused(model: HookedTransformer) -> None:
    for wrong in ([], [0.0], [-1.0], [float("inf")]):
        with pytest.raises(ValueError, match="temperatures are numbers above 0"):
            temperature_rows(model, TEXTS, wrong)
    with pytest.raises(ValueError, match="was not read"):
        temperature_rows(model, TEXTS, [1.0]).p_at(1.5)
