"""P(IK): a planted direction is found, labels without meaning give chance, and nothing leaks."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.uncertainty.knowing import knowing_sites, p_ik, prompt_streams

SITES = [f"blocks.{layer}.hook_resid_post" for layer in (3, 7, 11)]


def planted(n: int = 240, d: int = 24, strength: float = 2.0, seed: int = 0) -> tuple[dict[str, Any], Any, Any, Any]:
    """Streams of which only the middle place knows the label; groups of two rows."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    direction = rng.normal(size=d)
    direction /= np.linalg.norm(direction)
    streams = {site: rng.normal(size=(n, d)) for site in SITES}
    streams[SITES[1]] += strength * (2 * y - 1)[:, None] * direction / 2
    return streams, y, np.arange(n) // 2, direction


def test_a_planted_direction_is_found_where_it_is() -> None:
    streams, y, groups, direction = planted()
    report = p_ik(None, None, y, groups, streams=streams)
    assert report.auroc > 0.85
    assert report.interval[0] > 0.5
    assert report.informative
    assert report.p_permuted == pytest.approx(1 / 21)
    chosen = report.sites.set_index("site")["chosen"]
    assert chosen[SITES[1]] == 5
    assert report.sites["layer"].tolist() == [3, 7, 11]
    assert report.probe.site == SITES[1]
    found = report.probe.direction
    assert found is not None
    assert float(found.double() @ torch.tensor(direction)) / float(found.double().norm()) > 0.9
    assert report.wording is None
    assert report.card["n_groups"] == 120
    assert report.to_dict()["informative"] is True
    assert ((report.p > 0.5) == y).mean() > 0.75
    again = p_ik(None, None, y, groups, streams=streams)
    np.testing.assert_array_equal(report.p, again.p)


def test_labels_without_meaning_give_chance_although_the_best_place_is_chosen() -> None:
    found = []
    for seed in range(3):
        streams, y, groups, _ = planted(90, 20, strength=0.0, seed=seed)
        found.append(p_ik(None, None, y, groups, streams=streams, seed=seed, n_permuted=19))
    assert abs(np.mean([each.auroc for each in found]) - 0.5) < 0.1
    assert sum(each.informative for each in found) <= 1
    assert any("cannot be told from chance" in each.verdict for each in found)


def test_the_figure_is_of_groups_that_were_not_seen() -> None:
    # Each group has a vector of its own and one label: a split by row would remember it.
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 4)
    y = rng.integers(0, 2, 40)[groups]
    own = rng.normal(size=(40, 60))
    streams = {SITES[0]: own[groups] + 0.01 * rng.normal(size=(160, 60))}
    grouped = p_ik(None, None, y, groups, streams=streams)
    by_rows = p_ik(None, None, y, "rows", streams=streams)
    assert by_rows.auroc > 0.95
    assert grouped.auroc < 0.75


def test_equal_prompts_are_never_divided() -> None:
    rng = np.random.default_rng(2)
    prompts = [f"question {i // 4}" for i in range(160)]
    y = rng.integers(0, 2, 40)[np.arange(160) // 4]
    streams = {SITES[0]: rng.normal(size=(40, 60))[np.arange(160) // 4]}
    report = p_ik(None, prompts, y, "rows", streams=streams)
    assert report.card["n_groups"] == 40
    assert report.auroc < 0.75
    assert report.wording is not None


def test_the_words_of_the_question_stand_beside_it() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 100)
    prompts = [f"{'easy' if label else 'hard'} question {i}" for i, label in enumerate(y)]
    streams = {SITES[0]: rng.normal(size=(100, 8)) + y[:, None]}
    report = p_ik(None, prompts, y, "rows", streams=streams)
    assert report.wording is not None
    assert report.wording.auroc > 0.95
    assert "how hard questions of this kind are" in report.verdict


def test_streams_are_those_of_the_last_token(tiny: HookedTransformer) -> None:
    prompts = ["The capital of France is", "One", "a b c d e f g"]
    found = prompt_streams(tiny, prompts, "resid_post:*")
    assert list(found) == ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    for index, prompt in enumerate(prompts):
        _, cache = tiny.run_with_cache(prompt, sites="resid_post:*")
        for name, rows in found.items():
            torch.testing.assert_close(rows[index], cache[name][0, -1].detach(), rtol=1e-4, atol=1e-4)
    assert list(prompt_streams(tiny, prompts)) == knowing_sites(tiny)


def test_refusals(tiny: HookedTransformer) -> None:
    streams, y, groups, _ = planted(40)
    with pytest.raises(ValueError, match="all 40 labels are 1"):
        p_ik(None, None, np.ones(40, dtype=int), groups, streams=streams)
    with pytest.raises(ValueError, match="NaN"):
        p_ik(None, None, y, groups, streams={"x": np.full((40, 3), np.nan)})
    with pytest.raises(ValueError, match="different numbers of rows"):
        p_ik(None, None, y, groups, streams={**streams, "x": np.ones((39, 3)) * np.arange(39)[:, None]})
    with pytest.raises(ValueError, match="give a model"):
        p_ik(None, ["a"] * 40, y, groups)
    with pytest.raises(ValueError, match="n_folds"):
        p_ik(None, None, y, groups, streams=streams, n_folds=2)
    with pytest.raises(ValueError, match="axis of heads"):
        prompt_streams(tiny, ["abc"], "z:0")
    with pytest.raises(ValueError, match="prompt 1 has 300 tokens"):
        prompt_streams(tiny, ["a", "a" * 300])
    with pytest.raises(ValueError, match="there are no prompts"):
        prompt_streams(tiny_model(), [])


def test_the_real_model_end_to_end(smollm: HookedTransformer) -> None:
    topics = ["dogs", "cats", "France", "Peru", "iron", "gold", "bread", "music", "rain", "snow", "books", "ships"]
    prompts = [f"Question: Is it so about {topic}?\nAnswer:" for topic in topics]
    prompts += [f"The answer to what {topic} are is" for topic in topics]
    right = [1] * 12 + [0] * 12  # the form of the question tells all
    report = p_ik(smollm, prompts, right, topics * 2, sites=["resid_post:10", "resid_post:20"], n_permuted=19)
    assert report.auroc == 1.0
    assert report.probe.site in ("blocks.10.hook_resid_post", "blocks.20.hook_resid_post")
    report.probe.check_model(smollm)
    assert report.wording is not None
    assert report.wording.auroc == 1.0
