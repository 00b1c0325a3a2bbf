"""Sparse probing on planted concepts, on noise, on a leak between groups, and on statements that a model read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from interp.dataset import Example, load_dataset
from interp.model import HookedTransformer
from interp.recording import record
from interp.sae import SAE
from interp.sae.probing import _of_store, load_sparse_probing, sparse_probing
from interp.store import Store

SITE = "blocks.1.hook_resid_post"


def dictionary(W_dec: Tensor, **card: object) -> SAE:
    n, d = W_dec.shape
    return SAE(W_dec.T.contiguous(), torch.full((n,), -0.5), W_dec, torch.zeros(d), card=card)


def planted(n: int = 240) -> tuple[SAE, Tensor, Int[np.ndarray, " n"], list[int]]:
    """Latent 7 is the concept, a direction across all dimensions; every other latent and the noise know nothing."""
    generator = torch.Generator().manual_seed(0)
    W_dec = functional.normalize(torch.randn(40, 24, generator=generator), dim=1)
    y = torch.arange(n) % 2
    x = 0.4 * torch.randn(n, 24, generator=generator)
    x += (3.0 * y)[:, None] * W_dec[7] - (x @ W_dec[7])[:, None] * W_dec[7]
    return dictionary(W_dec), x, y.numpy(), [row // 4 for row in range(n)]


def test_a_planted_latent_is_named_and_beats_the_best_dimension() -> None:
    sae, x, y, groups = planted()
    found = sparse_probing(sae, x, y, groups, ks=(1, 2), n_boot=200)
    frame = found.to_frame().set_index(["reads", "k"])
    assert found.latents[1] == (7,)
    assert frame.loc[("latents", 1), "chosen"] == [7]
    assert found.chosen["latents", 1] == {7: 5}
    assert frame.loc[("latents", 1), "auroc"] == 1.0
    assert frame.loc[("latents", 1), "accuracy"] == 1.0
    assert frame.loc[("dimensions", 1), "high"] < 1.0
    assert frame.loc[("activation", 24), "auroc"] == 1.0
    assert (frame["n"] == 240).all()
    assert (frame["n_groups"] == 60).all()
    assert "latents AUROC 1.000" in found.summary()


def test_labels_without_meaning_stay_at_chance() -> None:
    """Of 400 latents some fit any labels: chosen with the test part in sight, they would be far above 1/2."""
    generator = torch.Generator().manual_seed(1)
    sae = dictionary(functional.normalize(torch.randn(400, 16, generator=generator), dim=1))
    x = torch.randn(120, 16, generator=generator)
    y = np.random.default_rng(0).permutation(np.arange(120) % 2)
    frame = sparse_probing(sae, x, y, "rows", ks=(1, 5), n_boot=200).to_frame()
    assert (frame["auroc"] < 0.66).all()


def test_no_group_stands_on_both_sides() -> None:
    """Each group has a direction of its own and one label: rows tell nothing about groups that were not seen."""
    generator = torch.Generator().manual_seed(2)
    own = functional.normalize(torch.randn(30, 64, generator=generator), dim=1)
    group = torch.arange(240) % 30
    x = own[group] + 0.01 * torch.randn(240, 64, generator=generator)
    y = np.random.default_rng(1).permutation(np.arange(30) % 2)[group]
    sae = dictionary(own)
    apart = sparse_probing(sae, x, y, group.tolist(), ks=(1,), n_boot=200)
    leaking = sparse_probing(sae, x, y, "rows", ks=(1,), n_boot=200)
    assert apart.figures["activation", 64].auroc < 0.75
    assert leaking.figures["activation", 64].auroc > 0.99


def test_a_store_is_read_by_its_last_or_its_typical_tokens(tiny_llama: HookedTransformer, texts: list[str]) -> None:
    examples = [Example(text, label=i % 2, group=f"{i // 2}") for i, text in enumerate(texts)]
    store = record(tiny_llama, examples, sites=SITE, dtype="float32", progress=False)
    generator = torch.Generator().manual_seed(0)
    W_dec = functional.normalize(torch.randn(50, 32, generator=generator), dim=1)
    sae = SAE(W_dec.T.contiguous(), torch.zeros(50), W_dec, torch.zeros(32), k=6, card={"site": SITE})
    labels, groups = [e.label for e in examples], [e.group for e in examples]

    last = sparse_probing(sae, store, ks=(1,), n_boot=100)
    by_hand = sparse_probing(sae, store.pooled(SITE, "last")[0], labels, groups, ks=(1,), n_boot=100)
    assert last.figures == by_hand.figures
    assert last.card["tokens"] == "last"

    mean = sparse_probing(sae, store, ks=(1,), tokens="mean", n_boot=100)
    latents = torch.stack([_typical_latents(sae, store, text).mean(0) for text in range(store.n_texts)])
    difference = latents[1::2].mean(0) - latents[::2].mean(0)
    assert mean.latents[1] == (int(difference.abs().argmax()),)
    with pytest.raises(ValueError, match="'last' or 'mean', got 'first'"):
        sparse_probing(sae, store, tokens="first")
    unlabelled = record(tiny_llama, texts[:20], sites=SITE, progress=False)
    with pytest.raises(ValueError, match="20 of 20 rows have no label"):
        sparse_probing(sae, unlabelled)
    with pytest.raises(ValueError, match="does not say its sites"):
        sparse_probing(dictionary(W_dec), store)


def test_means_of_several_sites_are_over_tokens_that_are_typical_at_all_of_them(
    tiny_llama: HookedTransformer, texts: list[str]
) -> None:
    """Of a transcoder, also at what it writes; activations and latents are of the same tokens."""
    below, d = "blocks.0.hook_mlp_out", 32
    store = record(tiny_llama, texts, sites=[below, SITE], dtype="float32", progress=False)
    both = store.typical(below) & store.typical(SITE)
    assert both.sum() < store.typical(below).sum()  # `#` is no outlier behind a norm
    labels = [number % 2 for number in range(len(texts))]
    text = store.tokens["text"].to_numpy()
    widths = {below: d, SITE: d}
    W_dec = functional.normalize(torch.randn(50, 2 * d, generator=torch.Generator().manual_seed(0)), dim=1)
    for sae in (
        dictionary(W_dec, sites=[below, SITE], targets=[below, SITE], widths=widths),
        dictionary(W_dec[:, :d].contiguous(), sites=[below], targets=[SITE], widths=widths),
    ):
        every = torch.cat([store.rows(site, slice(None)) for site in sae.sites], dim=1)
        rows = [torch.from_numpy(np.flatnonzero(both & (text == number))) for number in range(store.n_texts)]
        x, latents, _, _ = _of_store(sae, store, "mean", labels, "rows")
        torch.testing.assert_close(
            x, torch.stack([every[some].double().mean(0) for some in rows]), rtol=1e-5, atol=1e-5
        )
        expected = torch.stack([sae.encode(every[some]).double().mean(0) for some in rows])
        torch.testing.assert_close(latents, expected, rtol=1e-5, atol=1e-5)


def _typical_latents(sae: SAE, store: Store, text: int) -> Tensor:
    rows = (store.tokens["text"] == text).to_numpy() & store.typical(SITE)
    return sae.encode(store.rows(SITE, rows))


def test_a_result_is_a_file(tmp_path: Path) -> None:
    sae, x, y, groups = planted(80)
    found = sparse_probing(sae, x, y, groups, ks=(2,), n_boot=100, seed=4)
    back = load_sparse_probing(found.save(tmp_path / "probing.json"))
    assert back.to_frame().equals(found.to_frame())
    assert (back.latents, back.chosen, back.card) == (found.latents, found.chosen, found.card)
    assert sparse_probing(sae, x, y, groups, ks=(2,), n_boot=100, seed=4).figures == found.figures


def test_what_cannot_be_probed_is_refused() -> None:
    sae, x, y, groups = planted(40)
    for call, message in (
        (lambda: sparse_probing(sae, x, y, groups, ks=(0,)), r"between 1 and 24.*got \(0,\)"),
        (lambda: sparse_probing(sae, x, y, groups, ks=(25,)), "between 1 and"),
        (lambda: sparse_probing(dictionary(sae.W_dec[:3]), x, y, groups, ks=(5,)), "1 and 3, for there are 3 latents"),
        (lambda: sparse_probing(sae, x, y), "labels and groups are needed"),
        (lambda: sparse_probing(sae, x, y[:9], groups), "9 labels for 40 rows"),
        (lambda: sparse_probing(sae, x[:, :5], y, groups), "width 24"),
        (lambda: sparse_probing(sae, x, y, [0] * 40), "1 groups are too few"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
def test_truth_of_statements_is_in_a_few_latents(smollm: HookedTransformer) -> None:
    """Directions of the texts' own rows as a dictionary: crude, but enough to tell true from false above chance."""
    site = "blocks.15.hook_resid_post"
    data = load_dataset("cities").take(range(0, 1200, 3))
    store = record(smollm, data, sites=site, tokens="last", progress=False)
    x = store.pooled(site, "last")[0]
    centre = x.mean(0)
    W_dec = functional.normalize(x[::2] - centre, dim=1)
    sae = SAE(W_dec.T.contiguous(), torch.zeros(len(W_dec)), W_dec, centre, k=16, card={"site": site})
    frame = sparse_probing(sae, store, ks=(1, 5), n_boot=200).to_frame().set_index(["reads", "k"])
    assert frame.loc[("activation", 576), "low"] > 0.6
    assert frame.loc[("latents", 5), "low"] > 0.5
    assert frame.loc[("activation", 576), "auroc"] >= frame.loc[("latents", 1), "auroc"]
