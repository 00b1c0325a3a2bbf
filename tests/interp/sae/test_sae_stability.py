"""Matched dictionaries against a search over all assignments, planted copies, and chance."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.sae import SAE
from interp.sae.stability import load_dictionary_match, matched_cosine, seed_stability


def directions(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)), dim=1)


def an_sae(W_dec: Tensor) -> SAE:
    n, d = W_dec.shape
    return SAE(W_dec.T.contiguous(), torch.zeros(n), W_dec, torch.zeros(d), k=1)


def test_a_shuffled_and_scaled_copy_is_found_whole() -> None:
    a, order = directions(40, 16), torch.randperm(40, generator=torch.Generator().manual_seed(1))
    match = matched_cosine(an_sae(a), 3.0 * a[order])
    assert match.mean_matched == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(order[match.latent_b], match.latent_a)
    assert match.share_above(0.9) == 1.0
    assert match.null_matched.item() < 0.6


def test_the_assignment_is_the_best_of_all() -> None:
    a, b = directions(6, 4, 0), directions(5, 4, 1)
    cosines = (a @ b.T).double().numpy()
    best = max(cosines[list(rows), range(5)].mean() for rows in itertools.permutations(range(6), 5))
    match = matched_cosine(a, b)
    assert match.mean_matched == pytest.approx(best, abs=1e-6)
    assert match.mean_max_a == pytest.approx(cosines.max(1).mean(), abs=1e-6)
    assert match.mean_max_b == pytest.approx(cosines.max(0).mean(), abs=1e-6)
    assert len(match.cosine) == 5
    other = matched_cosine(b, a)
    assert other.mean_matched == pytest.approx(match.mean_matched, abs=1e-6)


def test_the_sign_counts_and_doubles_count_once() -> None:
    a = torch.eye(6)
    assert matched_cosine(a, -a).mean_matched == pytest.approx(0.0, abs=1e-6)
    doubled = torch.cat([a[:3], a[:3]])
    match = matched_cosine(a, doubled)
    assert match.mean_max_b == pytest.approx(1.0)
    assert match.mean_max_a == pytest.approx(0.5)
    assert match.mean_matched == pytest.approx(0.5)


def test_strangers_are_as_near_as_the_null() -> None:
    """Two random dictionaries are one that was turned: the null is their own distribution."""
    match = matched_cosine(directions(200, 12, 0), directions(200, 12, 1), n_null=5)
    spread = match.null_matched.std().item()
    assert abs(match.mean_matched - match.null_matched.mean().item()) < 5 * spread + 0.01
    assert abs(match.mean_max_a - match.null_max.mean().item()) < 0.02
    assert match.mean_matched > 0.6  # in 12 dimensions chance alone does this


def test_dead_latents_can_be_left_out() -> None:
    a, b = directions(20, 8, 0), directions(20, 8, 1)
    b[:10] = a[:10]
    by_mask = matched_cosine(a, b, alive_a=torch.arange(20) < 10, alive_b=list(range(10)))
    assert by_mask.mean_matched == pytest.approx(1.0, abs=1e-6)
    assert by_mask.to_frame()["latent_a"].tolist() == list(range(10))
    late = matched_cosine(a, a, alive_a=range(5, 15), alive_b=range(5, 15)).to_frame()
    assert late["latent_b"].tolist() == list(range(5, 15))
    assert np.allclose(late[["cosine", "max_a", "max_b"]], 1.0, atol=1e-6)


def test_several_seeds_make_a_frame() -> None:
    base = directions(12, 6)
    frame = seed_stability([an_sae(base), an_sae(base.flip(0)), an_sae(directions(12, 6, 5))])
    assert frame[["a", "b"]].to_numpy().tolist() == [[0, 1], [0, 2], [1, 2]]
    assert frame["mean_matched"].iloc[0] == pytest.approx(1.0, abs=1e-6)
    assert (frame["mean_matched"].iloc[1:] < 0.9).all()
    assert (frame["n_pairs"] == 12).all()


def test_seeds_are_all_that_may_differ() -> None:
    def seeded(seed: int, site: str = "blocks.1.hook_resid_post", n_rows: int = 100, **config: Any) -> SAE:
        card = {"site": site, "n_rows": n_rows, "config": {"kind": "topk", "seed": seed, "lr": 1e-3, **config}}
        W = directions(12, 6, seed)
        return SAE(W.T.contiguous(), torch.zeros(12), W, torch.zeros(6), k=2, card=card)

    assert len(seed_stability([seeded(0), seeded(1, log_every=7)])) == 1
    for other, message in (
        (seeded(1, lr=2e-3), r"SAEs 0 and 2 differ in more than their seed: lr 0\.001 and 0\.002"),
        (seeded(1, kind="batchtopk"), "kind 'topk' and 'batchtopk'"),
        (seeded(1, site="blocks.2.hook_resid_post"), "sites .*blocks.1.*blocks.2"),
        (seeded(1, n_rows=99), "n_rows 100 and 99"),
        (an_sae(directions(12, 6, 1)), "k 2 and 1"),
        (an_sae(directions(20, 6, 1)), "n_latents 12 and 20"),
        (seeded(0), "SAEs 0 and 2 are the same one"),
    ):
        with pytest.raises(ValueError, match=message):
            seed_stability([seeded(0), seeded(5), other])
    one = seeded(0)
    with pytest.raises(ValueError, match="SAEs 0 and 1 are the same one"):
        seed_stability([one, one])
    with pytest.raises(ValueError, match="at least two SAEs, got 1"):
        seed_stability(one)


def test_masks_may_be_arrays_that_must_not_be_written_to() -> None:
    a, mask = directions(20, 8, 0), np.arange(20) < 10
    mask.setflags(write=False)
    assert len(matched_cosine(a, a, alive_a=mask, alive_b=mask).cosine) == 10  # warnings are errors


def test_a_match_is_a_file(tmp_path: Path) -> None:
    match = matched_cosine(directions(9, 4, 0), directions(7, 4, 1), n_null=2, seed=3)
    back = load_dictionary_match(match.save(tmp_path / "match.safetensors"))
    assert back.summary().equals(match.summary())
    assert back.to_frame().equals(match.to_frame())
    assert back.card["provenance"]["seed"] == 3
    again = matched_cosine(directions(9, 4, 0), directions(7, 4, 1), n_null=2, seed=3)
    assert torch.equal(again.null_matched, match.null_matched)


def test_what_is_no_dictionary_is_refused() -> None:
    a = directions(5, 4)
    zero, bad = a.clone(), a.clone()
    zero[3] = 0.0
    bad[1, 0] = float("nan")
    for call, message in (
        (lambda: matched_cosine(a, directions(5, 3)), "width 4 and 3"),
        (lambda: matched_cosine(zero, a), r"1 directions of a are zero.*first is 3.*alive_a="),
        (lambda: matched_cosine(a, bad), "first is 1"),
        (lambda: matched_cosine(a, "b"), "float tensor"),
        (lambda: matched_cosine(a, a, alive_b=torch.zeros(5, dtype=torch.bool)), "no direction of b"),
        (lambda: matched_cosine(a, a, alive_a=torch.ones(4, dtype=torch.bool)), r"shape \[4\] for 5 directions"),
        (lambda: matched_cosine(a, a, n_null=0), "at least one rotation"),
        (lambda: seed_stability([an_sae(a)]), "at least two SAEs"),
        (lambda: seed_stability([an_sae(a)] * 2, alive=[None]), "1 masks"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
