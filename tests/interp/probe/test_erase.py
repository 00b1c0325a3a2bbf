"""Erasers: what cannot be read afterwards, how little is changed, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from negation import unit
from planted import planted
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from interp.intervene.erase import Erase
from interp.model import HookedTransformer
from interp.probe import load_probe
from interp.probe.erase import KINDS, Eraser, fit_eraser, load_eraser
from interp.probe.figures import Resamples


def correlated(n: int = 600, d: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of different size that hang together, a constant one among them, and a label."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.4).astype(int)
    X = (rng.normal(size=(n, d)) + 1.5 * np.outer(y, unit(d, 1))) @ rng.normal(size=(d, d))
    X = X * np.exp(2 * np.random.default_rng(1).normal(size=d)) + 10
    X[:, 3] = 4.2
    return X, y


@pytest.mark.parametrize("kind", ["leace", "mean"])
@pytest.mark.parametrize(("n", "d"), [(600, 8), (40, 60)])
def test_nothing_linear_is_left_in_the_rows_of_the_fit(kind: str, n: int, d: int) -> None:
    X, y = correlated(n, d)
    erased = fit_eraser(X, y, kind)(X).numpy()
    scale = X.std(0).max()
    np.testing.assert_allclose(erased[y == 1].mean(0), erased[y == 0].mean(0), atol=1e-8 * scale)
    np.testing.assert_allclose(erased.mean(0), X.mean(0), rtol=1e-8)
    probe = LogisticRegression(C=100.0, tol=1e-8, max_iter=5000).fit(erased / scale, y)
    p = probe.predict_proba(erased / scale)[:, 1]
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    share = y.mean()
    assert loss == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share), abs=1e-6)


def test_leace_is_the_smallest_change_that_erases() -> None:
    """Against a search over all affine maps x -> x - A (x - mean) with A cov(x, y) = cov(x, y)."""
    X, y = correlated(200, 4)
    X = X[:, [0, 1, 2]]
    Z, target = X - X.mean(0), (X - X.mean(0)).T @ (y - y.mean()) / len(y)
    free = np.linalg.svd(target[None])[2][1:]  # what may be added to a row of A

    def change(parameters: np.ndarray) -> float:
        A = np.outer(target, target) / (target @ target) + parameters.reshape(3, 2) @ free
        return ((Z @ A.T) ** 2).sum(1).mean()

    best = minimize(change, np.zeros(6), method="BFGS", options={"gtol": 1e-10})
    eraser = fit_eraser(X, y)
    found = ((eraser(X).numpy() - X) ** 2).sum(1).mean()
    assert found == pytest.approx(best.fun, rel=1e-6)
    # The same map is the best one under any other measure of change: features may be rescaled before or after.
    stretch = np.array([1e-3, 1.0, 50.0])
    again = fit_eraser(X * stretch, y)(X * stretch).numpy() / stretch
    np.testing.assert_allclose(again, eraser(X).numpy(), atol=1e-8 * np.abs(X).max())
    assert found < ((fit_eraser(X, y, "mean")(X).numpy() - X) ** 2).sum(1).mean()
    assert eraser.to_frame().variance.sum() == pytest.approx(found / (Z**2).sum(1).mean())


def test_classes_columns_and_numbers_are_erased() -> None:
    X, _ = correlated(600, 8)
    rng = np.random.default_rng(0)
    names = np.array(["red", "green", "blue"])[rng.integers(0, 3, 600)]
    X = X + np.outer(names == "red", rng.normal(size=8)) + np.outer(names == "blue", rng.normal(size=8))
    for kind in ("leace", "mean"):
        eraser = fit_eraser(X, names, kind)
        means = [eraser(X)[torch.tensor(names == name)].mean(0) for name in ("red", "green", "blue")]
        torch.testing.assert_close(means[0], means[1])
        torch.testing.assert_close(means[1], means[2])
        assert eraser.rank == 2
        assert eraser.card["classes"] == ["blue", "green", "red"]
        columns = np.column_stack([X[:, 0] + rng.normal(size=600), X[:, 1], np.ones(600)])
        erased = fit_eraser(X, columns, kind)(X).numpy()
        related = (erased - erased.mean(0)).T @ (columns - columns.mean(0)) / 600
        np.testing.assert_allclose(related, 0, atol=1e-8 * X.std(0).max() * columns.std(0).max())
    one_hot = np.eye(3)[np.unique(names, return_inverse=True)[1]]
    torch.testing.assert_close(fit_eraser(X, one_hot)(X), fit_eraser(X, names)(X))


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_truth_cannot_be_read_on_new_rows(kind: str) -> None:
    """Eraser and probe are fitted to the same training rows; groups of four share an entity."""
    X, y, groups = planted(2000, 48, strength=3.0)
    train, test = np.arange(1200), np.arange(1200, 2000)
    eraser = fit_eraser(X[train], y[train], kind, groups=groups[train])
    resamples = Resamples.of(groups[test] - groups[test].min(), 300, seed=0)
    read = {}
    for name, rows in (("raw", X), ("erased", eraser(X).numpy())):
        probe = LogisticRegression(C=0.1).fit(rows[train], y[train])
        logit = probe.decision_function(rows[test])
        read[name] = resamples.figure(logit, y[test], logit > 0)
    assert read["raw"].low > 0.85
    if kind == "inlp":  # stops where little is left, which need not be nothing
        assert read["erased"].high < 0.56
        assert eraser.rank <= 3
    else:
        assert read["erased"].low < 0.5 < read["erased"].high
        assert eraser.rank == 1


def test_values_keep_their_shape_and_type_and_a_file_keeps_the_eraser(tmp_path: Path) -> None:
    X, y = correlated()
    eraser = fit_eraser(
        X, y, "leace", groups=np.arange(600) // 2, seed=4, site="blocks.0.hook_resid_post", model="tiny"
    )
    batch = torch.tensor(X[:12], dtype=torch.float32).view(3, 4, 8)
    assert eraser(batch).dtype == torch.float32
    torch.testing.assert_close(eraser(batch).view(12, 8), eraser(X[:12]).float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(eraser(eraser(X)), eraser(X))  # nothing is left to erase
    again = load_eraser(eraser.save(tmp_path / "truth.safetensors"))
    assert torch.equal(again(X), eraser(X))
    assert (again.kind, again.site, again.rank, again.card) == ("leace", eraser.site, 1, eraser.card)
    assert again.card["n"] == 600
    assert again.card["groups"] == 300
    assert again.card["provenance"]["model"] == "tiny"
    with pytest.raises(ValueError, match="holds a 'eraser'"):
        load_probe(tmp_path / "truth.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "leece"}, "unknown kind of eraser 'leece'"),
        ({"y": np.zeros(600)}, "all 600 labels are the same"),
        ({"y": np.zeros(5)}, "for each of 600 rows"),
        ({"y": [None, *range(599)]}, "labels are missing"),
        ({"y": np.arange(600.0)}, r"y\[:, None\]"),
        ({"kind": "inlp"}, "groups="),
        ({"kind": "inlp", "y": np.arange(600) % 3, "groups": "rows"}, "3 classes"),
        ({"kind": "inlp", "groups": np.arange(600) % 4}, "4 groups are too few"),
        ({"C": 0.0}, "positive number"),
        ({"X": np.full((600, 8), np.nan)}, "NaN"),
        ({"X": np.ones((600, 8))}, "rows are the same"),
    ],
)
def test_what_cannot_be_erased_is_refused(change: dict[str, Any], words: str) -> None:
    X, y = correlated()
    with pytest.raises(ValueError, match=words):
        fit_eraser(**{"X": X, "y": y, **change})


def test_activations_of_another_width_and_nan_are_refused() -> None:
    eraser = fit_eraser(*correlated())
    with pytest.raises(ValueError, match="width 8"):
        eraser(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="NaN or infinity in the activations of 1 rows"):
        eraser(torch.tensor([[1.0] * 8, [float("nan")] * 8]))


# ------------------------------------------------------------------------------------------------ in a running model


def simple(d: int, site: str | None = "blocks.0.hook_resid_post") -> Eraser:
    """Projects one direction away, around the mean 0.5."""
    axis = torch.tensor(unit(d, 0))[:, None]
    return Eraser(torch.full((d,), 0.5, dtype=torch.float64), axis, axis, "mean", site)


def test_a_site_is_erased_at_the_chosen_tokens(tiny: HookedTransformer) -> None:
    eraser = simple(32)
    tokens = tiny.tokenizer.tokenize(["hi", "hello there"])
    plain, clean = tiny.run_with_cache(tokens, sites="resid_post:0")
    for places, chosen in (({}, tokens.mask), ({"positions": [1]}, tokens.mask & (tokens.positions == 1))):
        with tiny.intervene(Erase(eraser, **places)):
            logits, cache = tiny.run_with_cache(tokens, sites="resid_post:0")
        before, after = clean["resid_post", 0], cache["resid_post", 0]
        torch.testing.assert_close(after[chosen], eraser(before[chosen]))
        assert torch.equal(after[~chosen], before[~chosen])
        assert not torch.equal(logits, plain)
    assert torch.equal(tiny(tokens), plain)
    assert Erase(eraser, positions=[1]).describe()["rank"] == 1


def test_cached_decoding_equals_the_teacher_forced_pass(tiny: HookedTransformer) -> None:
    prompt = tiny.tokenizer.encode("hello there")
    with tiny.intervene(Erase(simple(32), where="generated")):
        out = tiny.generate(prompt, 5, stop_at_eos=False)
        logits = tiny(prompt + out.tokens, prompt_len=len(prompt))
    assert out.tokens == logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()


def test_one_head_is_erased_and_no_other(tiny: HookedTransformer) -> None:
    _, clean = tiny.run_with_cache("hello there", sites="z:0")
    width = clean["z", 0].shape[-1]
    with tiny.intervene(Erase(simple(width, None), site="z:0", head=1)):
        _, cache = tiny.run_with_cache("hello there", sites="z:0")
    moved = (cache["z", 0] - clean["z", 0]).abs().amax((0, 1, 3))
    assert moved[1] > 0
    assert moved.sum() == moved[1]


def test_wrong_places_are_refused(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="takes an eraser, got Tensor"):
        Erase(torch.zeros(3))
    with pytest.raises(ValueError, match="does not know its site"):
        Erase(simple(32, None))
    with pytest.raises(ValueError, match="width 16"), tiny.intervene(Erase(simple(16), site="resid_post:0")):
        tiny("hello")
    with pytest.raises(ValueError, match="needs head="), tiny.intervene(Erase(simple(8), site="z:0")):
        tiny("hello")
