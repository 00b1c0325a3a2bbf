"""Directions of heads: a planted head is found, no statistic sees the test part, and steering equals the bias it should be."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from planted import MemoryStore, frame_of, paired
from sklearn.linear_model import LogisticRegression
from tiny import tiny_model
from torch import Tensor

import interp
from interp.cli.steer_files import show_steering
from interp.dataset import Example
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.probe import fit_probe
from interp.probe.labelled import Labelled
from interp.steering.head_value import HeadVectors, load_head_vectors
from interp.steering.heads import head_split, head_vectors

N_LAYERS, N_HEADS, D_HEAD = 2, 4, 8
PLANTED = (1, 2)


class HeadStore(MemoryStore):
    """z of every layer, in memory."""

    @property
    def sites(self) -> list[str]:
        return [f"blocks.{layer}.attn.hook_z" for layer in range(len(self.layers))]


def unit(seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=D_HEAD)
    return drawn / np.linalg.norm(drawn)


def head_store(
    n: int = 240, seed: int = 0, split: list[str] | None = None
) -> tuple[HeadStore, list[np.ndarray], np.ndarray]:
    """Rows of noise, but for two heads that know the label: 1.2 well, 0.1 a little and with the other sign."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    layers = [rng.normal(size=(n, N_HEADS, D_HEAD)) for _ in range(N_LAYERS)]
    layers[1][:, 2] += 3.0 * np.outer(y - 0.5, unit(1)) + 2.0
    layers[0][:, 1] -= 1.5 * np.outer(y - 0.5, unit(2))
    frame = frame_of(y, np.arange(n) // 4)
    if split is not None:
        frame = frame.assign(split=split)
    return HeadStore([layer.reshape(n, -1) for layer in layers], frame), layers, y


def split_of(store: HeadStore, **options: float) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    settings = {"n_folds": 5, "test_share": 0.2, "seed": 0} | options
    found = head_split(Labelled.of(store.frame), **settings)
    return found.fit, found.folds, found.test


def labelled(n: int = 24) -> list[Example]:
    words = ("good", "fine", "nice"), ("bad", "poor", "grim")
    return [
        Example(f"number {i // 2} is {words[i % 2][i // 2 % 3]}", label=1 - i % 2, group=str(i // 2)) for i in range(n)
    ]


@pytest.fixture(scope="module")
def fitted() -> tuple[HookedTransformer, HeadVectors]:
    model = tiny_model("llama")
    return model, head_vectors(labelled(), model=model, top=3)


@pytest.mark.parametrize("method", ["mass_mean", "logistic", "lda"])
def test_a_planted_head_is_ranked_first_and_points_to_the_label(method: str) -> None:
    store, _, _ = head_store()
    vectors = head_vectors(store, model=tiny_model(), top=2, method=method)
    assert vectors.heads == (PLANTED, (0, 1))
    assert float(vectors.directions[0].double() @ torch.tensor(unit(1))) > 0.9
    assert float(vectors.directions[1].double() @ -torch.tensor(unit(2))) > 0.7
    frame = vectors.to_frame()
    assert list(frame["rank"]) == list(range(1, 9))
    assert list(frame["kept"]) == [True] * 2 + [False] * 6
    assert frame["accuracy"].is_monotonic_decreasing
    best = frame.iloc[0]
    assert best["low"] < best["accuracy"] < best["high"]
    assert best["test_low"] < best["test_accuracy"] <= best["test_high"]
    assert (best["accuracy"], best["n"] + best["n_test"]) == (pytest.approx(0.93, abs=0.05), 240)
    noise = frame.iloc[2:]
    assert noise["test_accuracy"].mean() == pytest.approx(0.5, abs=0.1)


def test_theta_sigma_and_norm_by_brute_force() -> None:
    store, layers, y = head_store()
    vectors = head_vectors(store, model=tiny_model(), top=8)
    fit, _, test = split_of(store)
    assert vectors.test_rows == test.tolist()
    for i, (layer, head) in enumerate(vectors.heads):
        rows = layers[layer][fit, head].astype(np.float32).astype(float)
        difference = rows[y[fit] == 1].mean(0) - rows[y[fit] == 0].mean(0)
        theta = difference / np.linalg.norm(difference)
        np.testing.assert_allclose(vectors.directions[i], theta, atol=1e-6)
        assert float(vectors.sd[i]) == pytest.approx(np.std(rows @ theta, ddof=1), rel=1e-5)
        assert float(vectors.kept.norm[i]) == pytest.approx(float(torch.tensor(rows).norm(dim=1).median()), rel=1e-5)
        assert float(vectors.targets()[i].raw or 0) == pytest.approx(float(np.linalg.norm(difference)), rel=1e-5)


def test_the_held_out_accuracy_is_that_of_probes_fitted_without_the_fold() -> None:
    store, layers, y = head_store()
    fit, folds, test = split_of(store)
    rows, labels = layers[1][:, 2].astype(np.float32), y[fit]
    by_mean = head_vectors(store, model=tiny_model(), top=1).to_frame().iloc[0]
    by_line = head_vectors(store, model=tiny_model(), top=1, method="logistic", C=0.05).to_frame().iloc[0]
    spread = (rows[fit] - rows[fit].mean(0)) / rows[fit].std(0)
    right = {"mean": 0, "line": 0}
    for out in folds:
        seen = np.setdiff1d(np.arange(len(fit)), out)
        probe = fit_probe(torch.tensor(rows[fit][seen]), labels[seen], "mass_mean")
        right["mean"] += int((probe.predict(torch.tensor(rows[fit][out])).numpy() == (labels[out] == 1)).sum())
        line = LogisticRegression(C=0.05, tol=1e-8).fit(spread[seen], labels[seen])
        right["line"] += int((line.predict(spread[out]) == labels[out]).sum())
    assert by_mean["accuracy"] == pytest.approx(right["mean"] / len(fit))
    assert by_line["accuracy"] == pytest.approx(right["line"] / len(fit))
    probe = fit_probe(torch.tensor(rows[fit]), labels, "mass_mean")
    assert by_mean["test_accuracy"] == pytest.approx(
        float((probe.predict(torch.tensor(rows[test])).numpy() == (y[test] == 1)).mean())
    )


def test_nothing_but_the_test_accuracy_sees_the_test_part() -> None:
    store, _, _ = head_store()
    _, _, test = split_of(store)
    before = head_vectors(store, model=tiny_model(), top=8)
    for layer in store.layers:
        layer[test] = 100 * np.random.default_rng(7).normal(size=layer[test].shape)
    after = head_vectors(store, model=tiny_model(), top=8)
    assert after.heads == before.heads
    for name in ("directions", "sd", "norm", "raw"):
        assert torch.equal(getattr(after.kept, name), getattr(before.kept, name))
    seen = [name for name in before.to_frame() if not name.startswith("test_")]
    pd.testing.assert_frame_equal(after.to_frame()[seen], before.to_frame()[seen])
    assert not after.to_frame()["test_accuracy"].equals(before.to_frame()["test_accuracy"])


def test_heads_that_know_the_entity_do_not_look_as_if_they_knew_the_label() -> None:
    X, y, groups = paired(n=150, d=2 * N_HEADS * D_HEAD)
    store = HeadStore(list(np.split(X, 2, axis=1)), frame_of(y, groups))
    by_groups = head_vectors(store, model=tiny_model(), top=1, method="logistic")
    assert by_groups.to_frame()["test_accuracy"].mean() == pytest.approx(0.5, abs=0.08)
    fit, folds, test = split_of(store)
    assert not set(groups[fit]) & set(groups[test])
    for out in folds:
        assert not set(groups[fit][out]) & set(np.delete(groups[fit], out))


def test_the_column_split_says_what_the_test_part_is() -> None:
    names = ["test" if group % 5 == 0 else "train" for group in np.arange(240) // 4]
    store, _, _ = head_store(split=names)
    vectors = head_vectors(store, model=tiny_model(), top=1)
    assert vectors.test_rows == [i for i, name in enumerate(names) if name == "test"]
    assert vectors.card["split"]["test_part"] == "column 'split'"
    store, _, _ = head_store(split=["test", *names[1:3], "train", *names[4:]])
    with pytest.raises(ValueError, match="stand in the test part and outside"):
        head_vectors(store, model=tiny_model(), top=1)


def test_the_ranking_may_be_that_of_another_kind_of_probe() -> None:
    store, _, _ = head_store(n=80)
    mixed = head_vectors(store, model=tiny_model(), top=8, ranked_by="logistic")
    line = head_vectors(store, model=tiny_model(), top=8, method="logistic")
    mean = head_vectors(store, model=tiny_model(), top=8)
    assert mixed.heads == line.heads
    for head in mixed.heads:
        torch.testing.assert_close(mixed.directions[mixed.heads.index(head)], mean.directions[mean.heads.index(head)])
    assert line.targets()[0].raw is None


# ------------------------------------------------------------------------------------------------------------ steering


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_steering_every_token_is_a_constant_of_attn_out(family: str) -> None:
    model = tiny_model(family)
    vectors = 0.5 * head_vectors(labelled(), model=model, top=5)
    texts = ["number three is", "a"]
    with model.intervene(Steer(vectors, 6.0)):
        steered, cache = model.run_with_cache(texts, sites="z:*")
    biases = vectors.as_bias(model, 6.0)

    def shift(value: Tensor, ctx: interp.hooks.HookContext) -> Tensor:
        return value + biases[ctx.name]

    with model.hooks(dict.fromkeys(biases, shift)):
        expected = model(texts)
    mask = cache.tokens.mask
    torch.testing.assert_close(
        steered[mask].as_subclass(Tensor), expected[mask].as_subclass(Tensor), atol=2e-4, rtol=1e-4
    )
    assert not torch.allclose(steered[mask], model(texts)[mask], atol=1e-2)


def test_one_strength_is_one_standard_deviation_of_each_head(fitted: tuple[HookedTransformer, HeadVectors]) -> None:
    model, vectors = fitted
    first = min(layer for layer, _ in vectors.heads)
    names = [f"blocks.{first}.attn.hook_z"]
    _, plain = model.run_with_cache("some text", sites=names)
    with model.intervene(Steer(vectors, 2.0, positions=[3])):
        _, steered = model.run_with_cache("some text", sites=names)
    moved = steered[names[0]] - plain[names[0]]
    expected = torch.zeros_like(moved)
    for (layer, head), theta, sd in zip(vectors.heads, vectors.directions, vectors.sd):
        if layer == first:
            expected[0, 3, head] = 2.0 * sd * theta
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=1e-4)


def test_models_that_norm_what_heads_write_have_no_such_constant() -> None:
    model = tiny_model("gemma2")
    vectors = head_vectors(labelled(), model=model, top=2)
    with pytest.raises(ValueError, match="no constant of attn_out"):
        vectors.as_bias(model)
    with pytest.raises(ValueError, match="another model"):
        vectors.as_bias(tiny_model("llama"))


# ------------------------------------------------------------------------------------------------------ value, controls


def test_arithmetic(fitted: tuple[HookedTransformer, HeadVectors]) -> None:
    _, vectors = fitted
    turned = -0.5 * vectors
    assert turned.length == 0.5
    assert torch.equal(turned.directions, -vectors.directions)
    assert [target.head for target in turned.targets()] == [head for _, head in vectors.heads]
    with pytest.raises(ValueError, match="finite"):
        vectors * float("inf")


def test_controls(fitted: tuple[HookedTransformer, HeadVectors]) -> None:
    model, vectors = fitted
    drawn = vectors.random(4, seed=1)
    for each in drawn:
        assert each.heads == vectors.heads
        assert torch.equal(each.sd, vectors.sd)
        assert float((each.directions * vectors.directions).sum(1).abs().max()) < 1e-5
        each.check_model(model)
    assert not torch.equal(drawn[0].directions, drawn[1].directions)
    assert torch.equal(vectors.random(1, seed=1)[0].directions, drawn[0].directions)
    others = vectors.random_heads(3, seed=1)
    assert all(len(each.heads) == 3 and not set(each.heads) & set(vectors.heads) for each in others)
    whole = dict(zip(vectors.with_top(8).heads, vectors.with_top(8).directions))
    for head, direction in zip(others[0].heads, others[0].directions):
        assert torch.equal(direction, whole[head])
    with pytest.raises(ValueError, match="keep fewer"):
        vectors.with_top(5).random_heads()


def test_another_number_of_heads(fitted: tuple[HookedTransformer, HeadVectors]) -> None:
    model, vectors = fitted
    again, more = head_vectors(labelled(), model=model, top=5), vectors.with_top(5)
    assert again.heads == more.heads
    assert torch.equal(again.directions, more.directions)
    pd.testing.assert_frame_equal(again.to_frame(), more.to_frame())
    assert more.with_top(3).heads == vectors.heads
    with pytest.raises(ValueError, match="of 8 fitted heads"):
        vectors.with_top(9)


def test_files(fitted: tuple[HookedTransformer, HeadVectors], tmp_path: Path) -> None:
    _, vectors = fitted
    loaded = load_head_vectors((0.5 * vectors).save(tmp_path / "heads.safetensors"))
    read = HeadVectors.from_dict((0.5 * vectors).to_dict())
    for again in (loaded, read):
        assert (again.heads, again.length, again.card) == (vectors.heads, 0.5, vectors.card)
        assert torch.equal(again.directions, vectors.directions)
        assert torch.equal(again.sd, vectors.sd)
    pd.testing.assert_frame_equal(loaded.to_frame(), vectors.to_frame())
    assert loaded.with_top(6).heads == vectors.with_top(6).heads
    control = load_head_vectors(vectors.random()[0].save(tmp_path / "control.safetensors"))
    assert control.to_frame().empty
    with pytest.raises(ValueError, match="holds no head vectors"):
        HeadVectors.from_dict({"kind": "steering vector"})


def test_the_card_to_read(fitted: tuple[HookedTransformer, HeadVectors], tmp_path: Path) -> None:
    _, vectors = fitted
    path = vectors.save(tmp_path / "heads.safetensors")
    text = load_head_vectors(path).card_text()
    assert text.startswith("HeadVectors(3 heads: ")
    assert "method: mass_mean" in text
    assert "3 of 8 heads, by the accuracy of mass_mean" in text
    table = text.splitlines()[-4:]
    assert table[0].split()[:3] == ["layer", "head", "accuracy"]
    assert [tuple(map(int, line.split()[:2])) for line in table[1:]] == list(vectors.heads)
    control = vectors.random()[0].card_text()
    assert "method: random directions" in control
    assert control.splitlines()[-4].split() == ["layer", "head", "sd"]
    shown = CliRunner().invoke(show_steering, [str(path)])
    assert (shown.exit_code, shown.output) == (0, text + "\n")


def test_the_map_of_heads(fitted: tuple[HookedTransformer, HeadVectors]) -> None:
    _, vectors = fitted
    shown = vectors.plot().to_dict()
    assert shown["layer"][0]["encoding"]["color"]["field"] == "accuracy"
    assert sum(map(len, shown["datasets"].values())) == 8
    with pytest.raises(ValueError, match="no figures"):
        vectors.random()[0].plot()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 9}, "top=9"),
        ({"top": 0}, "top must be"),
        ({"method": "mlp"}, "linear probe"),
        ({"test_share": 1.0}, "test_share"),
        ({"sites": "resid_post:*"}, "heads are read at z"),
        ({"groups": "author"}, "no column 'author'"),
        ({"C": -1.0}, "positive"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    store, _, _ = head_store(n=60)
    with pytest.raises(ValueError, match=message):
        head_vectors(store, model=tiny_model(), **{"top": 1, **options})


def test_a_store_of_other_sites_or_another_model_is_refused() -> None:
    model = tiny_model()
    store = interp.record(model, labelled(), sites="resid_post:*", tokens="last", progress=False)
    with pytest.raises(ValueError, match="no z of these layers"):
        head_vectors(store, model=model, top=1)
    with pytest.raises(ValueError, match="another model"):
        head_vectors(store, model=tiny_model(seed=3), top=1)


def test_the_real_model(smollm: HookedTransformer) -> None:
    """Heads of a middle layer tell the feeling of short sentences apart, and a push along them moves what they say."""
    kinds = ("wonderful", "great", "lovely", "brilliant"), ("terrible", "awful", "dreadful", "horrible")
    things = ("film", "meal", "trip", "song", "game", "book", "show", "room")
    texts = [
        Example(f"The {thing} was {kinds[1 - label][i % 4]}.", label=label, group=thing)
        for i, thing in enumerate(things)
        for label in (0, 1)
    ]
    vectors = head_vectors(texts, model=smollm, top=4, sites="z:10-13", n_folds=4)
    best = vectors.to_frame().iloc[0]
    assert best["accuracy"] > 0.9
    assert best["n_test_groups"] >= 1
    prompt = "I think the weather today is"
    good, bad = (smollm.tokenizer.to_single_token(word) for word in (" beautiful", " terrible"))
    moved = []
    for strength in (-8.0, 0.0, 8.0):
        with smollm.intervene(Steer(vectors, strength)):
            last = smollm(prompt)[0, -1]
        moved.append(float(last[good] - last[bad]))
    assert moved[0] < moved[1] < moved[2]
