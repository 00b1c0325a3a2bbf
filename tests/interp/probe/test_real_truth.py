"""Published statements on the real model: what a probe can read, and what it only seems to read."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from interp.dataset import Example
from interp.probe import fit_eraser, fit_probe, probe_transfer
from interp.probe.figures import Resamples
from interp.probe.folds import held_out
from interp.recording import record
from interp.store import Store


@pytest.fixture(scope="module")
def statements(smollm: Any, shared_data: Path) -> Store:
    """1,496 statements about cities and their negations; row i of the one pairs with row i of the other."""
    examples = []
    for name, polarity in (("cities", "affirmative"), ("neg_cities", "negated")):
        table = pd.read_csv(shared_data / "truth" / f"{name}.csv")
        examples += [
            Example(text, int(label), city, meta={"polarity": polarity, "pair": f"{row}"})
            for row, (text, label, city) in enumerate(zip(table.statement, table.label, table.city, strict=True))
        ]
    return record(smollm, examples, sites=["resid_post:12", "resid_post:16"], tokens="last", progress=False)


@pytest.mark.slow
def test_truth_is_read_on_both_polarities_and_one_polarity_alone_teaches_its_opposite(statements: Store) -> None:
    report = probe_transfer(statements, by="polarity", kinds=("logistic", "ttpd"), n_boot=200)
    auroc = report.selected.set_index(["kind", "train", "test"])["auroc"]
    assert auroc["logistic", "affirmative", "affirmative"] >= 0.92
    assert auroc["logistic", "negated", "negated"] >= 0.92
    for polarity in ("affirmative", "negated"):
        assert auroc["logistic", "all", polarity] >= 0.90
        assert auroc["ttpd", "all", polarity] >= 0.78
    assert auroc["logistic", "affirmative", "negated"] < 0.15  # published: .08
    assert any("negated" in line and "polarity" in line for line in report.explain())
    assert (report.baselines["auroc"] < 0.56).all()


@pytest.mark.slow
def test_what_leace_takes_out_no_linear_probe_finds(statements: Store) -> None:
    X, frame = statements.pooled("resid_post:12")
    y, groups = frame["label"].to_numpy().astype(int), pd.factorize(frame["group"])[0]
    test = held_out(y, groups, 5, seed=0)[0]
    train = [row for row in range(len(y)) if row not in set(test.tolist())]
    eraser = fit_eraser(X[train], y[train])
    seen = fit_probe(X[train], y[train], groups=groups[train], C=0.01)
    gone = fit_probe(eraser(X[train]), y[train], groups=groups[train], C=0.01)
    draws = Resamples.of(pd.factorize(groups[test])[0], 500, seed=0)
    assert draws.interval(seen.score(X[test]).numpy(), y[test])[0] > 0.85
    low, high = draws.interval(gone.score(eraser(X[test])).numpy(), y[test])
    assert low <= 0.5 <= high
