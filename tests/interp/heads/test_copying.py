"""Copying scores against dense tables, planted copying heads, and relabelled heads."""

from pathlib import Path

import numpy as np
import pytest
import torch

from interp import plot
from interp.heads import folded
from interp.heads.copying import copying_scores, load_copying_scores
from interp.heads.streams import token_streams
from interp.model import HookedTransformer
from interp.tokens import Tokens
from tests.support.tiny import shaken_model, tiny_model

close = torch.testing.assert_close
TEXTS = ["the cat sat on the mat and the hat", "a dog and the other dog and a cat", "hello there, hello you"]
IDS = list(range(60, 120))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "olmo2", "neox", "mixtral"])
@pytest.mark.parametrize("basis", ["embed", "stream"])
def test_scores_equal_those_of_the_dense_table(family: str, basis: str) -> None:
    """Oracle: [d_vocab d_vocab] logits of one head, their row statistics and all eigenvalues."""
    model = shaken_model(family)
    ids = token_streams(model, TEXTS).ids.tolist() if basis == "stream" else IDS
    scores = copying_scores(model, tokens=ids, basis=basis, texts=TEXTS if basis == "stream" else None, n_vocab=258)
    everything, chosen = torch.arange(258), torch.tensor(ids)
    out = folded.unembedding_rows(model, everything).double()
    for layer, head in ((0, 1), (1, 3)):
        if basis == "embed":
            read = folded.normed_rows(model, folded.embedding_rows(model, everything)).double()
            rows = read[chosen]
        else:
            rows = folded.normed_rows(model, token_streams(model, TEXTS, tokens=ids).means[layer]).double()
        circuits = folded.ov_circuits(model, layer)
        matrix = circuits.A[head].double() @ circuits.B[head].double()
        logits = rows @ matrix @ out.T
        logits = (logits - logits.mean(1, keepdim=True)) / logits.std(1, correction=0, keepdim=True)
        own = logits.gather(1, chosen[:, None])
        close(scores.effect[basis][layer, head].double(), own[:, 0], rtol=1e-3, atol=1e-3)
        close(scores.above[basis][layer, head], ((logits > own).sum(1) / 257).float(), rtol=0, atol=0.004)
        centred = out - out.mean(0)
        table = read @ matrix @ centred.T if basis == "embed" else rows @ matrix @ centred[chosen].T
        values = torch.linalg.eigvals(table)
        share = values.real.sum() / values.abs().sort().values[-8:].sum()
        assert float(scores.eigen[basis][layer, head]) == pytest.approx(float(share), abs=2e-3)


def copier(sign: float = 1.0) -> HookedTransformer:
    """A model without norms whose head 1.2 copies (sign 1) or suppresses what it looks at."""
    model = tiny_model("bare", d_model=64, d_head=64, n_heads=4, n_kv_heads=2, d_vocab=48, tie_embeddings=False)
    with torch.no_grad():
        model.blocks[1].attn.W_V[1].copy_(torch.linalg.pinv(model.W_E)[:, :48] @ torch.eye(48, 64))
        centred = model.W_U - model.W_U.mean(1, keepdim=True)
        model.blocks[1].attn.W_O[2].copy_(sign * torch.eye(64, 48) @ torch.linalg.pinv(centred))
    return model


def test_a_head_built_to_copy_is_the_top_one() -> None:
    scores = copying_scores(copier(), tokens=range(48))
    frame = scores.to_frame()
    best = scores.top(1).iloc[0]
    assert (best["layer"], best["head"], best["top_embed"], best["rank_embed"]) == (1, 2, 1.0, 0.0)
    assert best["eigen_embed"] == pytest.approx(1.0, abs=1e-3)
    assert best["effect_embed"] == pytest.approx(47**0.5, rel=1e-3)  # a one among 47 zeros, in standard deviations
    assert best["effect_embed_low"] <= best["effect_embed"] <= best["effect_embed_high"]
    assert best["effect_embed"] > best["null_high_embed"]
    others = frame[(frame["layer"] != 1) | (frame["head"] != 2)]
    assert others["eigen_embed"].abs().max() < 0.9
    assert others["effect_embed"].max() < 1.5


def test_a_head_built_to_suppress_has_share_minus_one() -> None:
    frame = copying_scores(copier(-1.0), tokens=range(48)).to_frame().set_index(["layer", "head"])
    assert frame.loc[(1, 2), "eigen_embed"] == pytest.approx(-1.0, abs=1e-3)
    assert frame.loc[(1, 2), "effect_embed"] == pytest.approx(-(47**0.5), rel=1e-3)
    assert frame.loc[(1, 2), "rank_embed"] == 1.0


def test_random_heads_stay_within_the_null() -> None:
    frame = copying_scores(shaken_model("llama", tie_embeddings=False), tokens=range(258)).to_frame()
    assert frame["effect_embed"].abs().max() < 0.5
    assert frame["null_high_embed"].between(0, 0.4).all()


def test_permuting_heads_permutes_scores() -> None:
    model, other = shaken_model("gpt2"), shaken_model("gpt2")
    order = [2, 0, 3, 1]
    with torch.no_grad():
        for name in ("W_V", "W_O"):
            getattr(other.blocks[1].attn, name).copy_(getattr(model.blocks[1].attn, name)[order].clone())
    one, two = (copying_scores(each, tokens=IDS) for each in (model, other))
    close(two.effect["embed"][1], one.effect["embed"][1][order])
    close(two.eigen["embed"][1], one.eigen["embed"][1][order], rtol=1e-3, atol=1e-4)
    close(two.effect["embed"][0], one.effect["embed"][0])


def test_both_bases_stand_side_by_side_and_are_saved(tmp_path: Path) -> None:
    model = shaken_model("llama")
    scores = copying_scores(model, texts=TEXTS, n=12)
    assert scores.bases == ("embed", "stream")
    # Layer 0 reads the embedding alone where positions are rotary.
    close(scores.effect["embed"][0], scores.effect["stream"][0], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(scores.effect["embed"][1], scores.effect["stream"][1], atol=0.1)
    again = load_copying_scores(scores.save(tmp_path / "copying.safetensors"))
    assert again.to_frame().equals(scores.to_frame())
    assert again.to_frame()["n"].tolist() == [12] * 8
    assert again.card["places"] >= 24
    for basis in (None, "embed"):
        assert "<svg" in plot.to_svg(scores.plot(basis))
    assert copying_scores(model, texts=TEXTS, n=12).to_frame().equals(scores.to_frame())


def test_padding_does_not_matter_to_the_mean_streams() -> None:
    model = shaken_model("llama")
    right = model.tokenize(TEXTS)
    width = right.ids.shape[1]
    shifts = [width - int(length) for length in right.lengths]
    ids, mask = (torch.stack([row.roll(by) for row, by in zip(value, shifts)]) for value in (right.ids, right.mask))
    left = token_streams(model, Tokens(ids, mask))
    close(left.means, token_streams(model, right).means, rtol=1e-4, atol=1e-4)


def test_a_head_that_writes_nothing_has_no_score() -> None:
    model = shaken_model("llama")
    with torch.no_grad():
        model.blocks[0].attn.W_O[1].zero_()
    frame = copying_scores(model, tokens=IDS).to_frame()
    assert frame.loc[1, ["effect_embed", "eigen_embed", "null_high_embed"]].tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(frame.to_numpy(dtype=float)).all()


def test_what_makes_no_sense_is_refused() -> None:
    model = shaken_model("llama")
    for family, why in (("bert", "encoder"), ("deepseek", "latent attention")):
        with pytest.raises(ValueError, match=why):
            copying_scores(shaken_model(family))
    for options, why in (
        ({"basis": "stream"}, "needs texts"), ({"basis": "mean"}, "'embed', 'stream' or None"), ({"tokens": [3]}, "two tokens"),
        ({"top": 1.5}, "between 0 and 1"), ({"texts": TEXTS, "tokens": [1, 2]}, "behind a first position"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            copying_scores(model, **options)
    with pytest.raises(ValueError, match="was not measured"):
        copying_scores(model, tokens=IDS).top(basis="stream")


@pytest.mark.slow
def test_late_heads_of_the_real_model_copy(smollm: HookedTransformer) -> None:
    best = copying_scores(smollm, n=200).top(5)
    assert (best["eigen_embed"] > 0.95).all()
    assert (best["top_embed"] > 0.7).all()
    assert (best["effect_embed_low"] > best["null_high_embed"] + 2).all()
