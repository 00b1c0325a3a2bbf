"""Circuits of heads against dense matrices, the model's own pass, TransformerLens, and a planted direction."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from interp import plot
from interp.heads import folded
from interp.heads.circuit import head_circuit, load_head_circuit
from interp.heads.streams import token_streams
from interp.model import HookedTransformer
from tests.support.tiny import FAMILIES, byte_tokenizer, shaken_model, tiny_model

close = torch.testing.assert_close
DECODERS = [name for name in FAMILIES if name not in ("bert", "deepseek")]
A, B, T = (byte_tokenizer().to_single_token(letter) for letter in "abt")
TEXTS = ["the cat sat on the mat", "a dog and the other dog", "hello there"]


def unbiased(family: str, **changes: object) -> HookedTransformer:
    """A model whose circuits hold everything but the scales: its other weights are off 1, its biases 0."""
    model = shaken_model(family, **changes)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.zero_()
    return model


@pytest.mark.parametrize("family", DECODERS)
def test_ov_circuits_reproduce_what_heads_write(family: str) -> None:
    """Oracle: the model's own pass, its pattern times the circuit, scaled as the norm behind attention did."""
    model = unbiased(family)
    _, cache = model.run_with_cache(TEXTS[0])
    for layer in range(2):
        rows = folded.normed_rows(model, cache["resid_pre", layer][0])
        total = torch.zeros_like(rows)
        for head in range(4):
            written = rows @ head_circuit(model, layer, head).matrix
            total += cache["pattern", layer][0, head] @ written.AB
        if model.blocks[layer].ln1_post is not None:
            total = total / cache["scale", layer, "ln1_post"][0]
        close(total, cache["attn_out", layer][0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", [name for name in DECODERS if name not in ("bloom", "falcon", "gemma2")])
@pytest.mark.parametrize("offset", [0, 3])
def test_qk_circuits_reproduce_scores(family: str, offset: int) -> None:
    """Oracle: the scores of the pass along one diagonal, times the scales of QK-norms."""
    if offset and FAMILIES[family]["positional"] != "rope":
        with pytest.raises(ValueError, match="rotary positions"):
            head_circuit(unbiased(family), 0, 0, "QK", offset=offset)
        return
    model = unbiased(family, rope_scaling=None) if family == "dynamic" else unbiased(family)
    _, cache = model.run_with_cache("hello you")
    for layer in range(2):
        rows = folded.normed_rows(model, cache["resid_pre", layer][0])
        attn, ln1 = model.blocks[layer].attn, model.blocks[layer].ln1
        read = cache["resid_pre", layer][0] if ln1 is None else ln1.silent(cache["resid_pre", layer][0])
        for head in range(4):
            dense = ((rows @ head_circuit(model, layer, head, "QK", offset=offset).matrix) @ rows.T).AB
            if attn.q_norm is not None:
                kv = head // (4 // model.cfg.kv_heads)
                dense = dense / scale(attn.q_norm, attn.q(read), head) / scale(attn.k_norm, attn.k(read), kv).T
            expected = cache["attn_scores", layer][0, head].diagonal(-offset)
            close(dense.diagonal(-offset), expected, rtol=1e-3, atol=1e-3)


def scale(norm: object, projected: Tensor, head: int) -> Tensor:
    width = norm.weight.shape[0]
    return norm.scale(projected[..., head * 8 : head * 8 + 8] if width == 8 else projected)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3", "gptj"])
def test_a_circuit_equals_the_processed_models(family: str) -> None:
    model = shaken_model(family, norm_placement="pre") if family == "gemma3" else shaken_model(family)
    plain = model.processed(fold_ln=True, center_writing=False, fold_value_biases=False)
    close(head_circuit(model, 1, 3).matrix.AB, plain.OV(1, 3).AB, rtol=1e-4, atol=1e-4)
    if family != "gemma3":
        expected = (plain.QK(1, 3) * model.cfg.scaling).AB
        close(head_circuit(model, 1, 3, "QK").matrix.AB, expected, rtol=1e-4, atol=1e-4)


def test_singular_values_and_eigenvalues_are_those_of_the_dense_matrix() -> None:
    circuit = head_circuit(shaken_model("llama"), 1, 2)
    dense = circuit.matrix.AB.double()
    u, s, v = circuit.svd(3)
    close(s.double(), torch.linalg.svdvals(dense)[:3], rtol=1e-4, atol=1e-4)
    close(((u * s) @ v.T).shape, dense.shape)
    ours, theirs = circuit.eigenvalues.abs().sort().values, torch.linalg.eigvals(dense).abs().sort().values[-8:]
    close(ours.double(), theirs, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="1 to 8"):
        circuit.svd(9)


def dense_tokens(model: HookedTransformer, matrix: Tensor) -> Tensor:
    """[d_vocab d_vocab]: the logits of all tokens, centred, for each token that is read."""
    ids = torch.arange(model.cfg.d_vocab)
    rows = folded.normed_rows(model, folded.embedding_rows(model, ids))
    logits = rows @ matrix @ folded.unembedding_rows(model, ids).T
    return logits - logits.mean(-1, keepdim=True)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "gemma2"])
def test_top_tokens_are_those_of_the_dense_table(family: str) -> None:
    model = shaken_model(family)
    circuit = head_circuit(model, 1, 1)
    logits = dense_tokens(model, circuit.matrix.AB)[97]
    frame = circuit.top_tokens(model, 97, n=5)
    close(torch.tensor(frame["score"][:5].tolist()), logits.topk(5).values, rtol=1e-4, atol=1e-3)
    assert (frame["id"] == 97).sum() == 1
    own = frame[frame["id"] == 97].iloc[0]
    assert own["rank"] == int((logits > logits[97]).sum())
    assert own["z"] == pytest.approx(float(logits[97] / logits.std()), rel=1e-3, abs=1e-4)
    assert circuit.top_tokens(model, model.tokenizer.decode([64]), n=5).equals(circuit.top_tokens(model, 64, n=5))


def test_queries_and_keys_of_a_token_are_two_sides_of_one_table() -> None:
    model = shaken_model("llama")
    circuit = head_circuit(model, 0, 1, "QK", offset=2)
    rows = folded.normed_rows(model, folded.embedding_rows(model, torch.arange(258)))
    scores = rows @ circuit.matrix.AB @ rows.T
    assert circuit.top_tokens(model, 40, n=3)["id"].tolist()[:3] == scores[40].topk(3).indices.tolist()
    assert circuit.top_tokens(model, 40, n=3, as_key=True)["id"].tolist()[:3] == scores[:, 40].topk(3).indices.tolist()
    with pytest.raises(ValueError, match="OV circuit"):
        head_circuit(model, 0, 1).top_tokens(model, 40, as_key=True)


def test_a_planted_pair_of_tokens_is_the_first_component() -> None:
    """A head that reads `a` and writes `b`: its largest component says so on both sides, with one sign."""
    model = tiny_model("bare", tie_embeddings=False)
    read, write = model.W_E[A], model.unembedding()[B]
    with torch.no_grad():
        model.blocks[1].attn.W_V[1].zero_()
        model.blocks[1].attn.W_O[3].zero_()
        model.blocks[1].attn.W_V[1][:, 0] = read / read.norm()
        model.blocks[1].attn.W_O[3][0] = 50 * write / write.norm()
    circuit = head_circuit(model, 1, 3)
    first = circuit.to_frame().query("component == 0 and rank == 0")
    sign = first[(first["side"] == "reads") & (first["token"] == "a")]["sign"].item()
    assert first[(first["side"] == "writes") & (first["sign"] == sign)]["token"].item() == "b"
    assert circuit.top_tokens(model, "a", n=1)["token"].tolist()[0] == "b"
    assert float(circuit.svd(1)[1]) == pytest.approx(50.0, rel=1e-4)


def test_mean_streams_are_the_means_of_the_pass_without_first_positions() -> None:
    model = shaken_model("llama")
    streams = token_streams(model, TEXTS)
    _, cache = model.run_with_cache(TEXTS)
    tokens = model.tokenize(TEXTS)
    for layer in range(2):
        where = (tokens.ids == T) & tokens.mask & (tokens.positions > 0)
        close(streams.row(layer, T), cache["resid_pre", layer][where].mean(0), rtol=1e-4, atol=1e-4)
        assert int(streams.counts[streams.place(T)]) == int(where.sum())
    pre = streams.row(1, T)
    expected = folded.logit_products(model, (folded.normed_rows(model, pre) @ head_circuit(model, 1, 0).matrix)[None])[
        0
    ]
    shown = head_circuit(model, 1, 0).top_tokens(model, "t", n=4, streams=streams)
    assert shown["id"].tolist()[:4] == expected.topk(4).indices.tolist()
    keys = head_circuit(model, 1, 0, "QK").top_tokens(model, "t", n=3, streams=streams)
    assert set(keys["id"]) <= set(streams.ids.tolist())
    with pytest.raises(ValueError, match="not among"):
        streams.row(0, 1)
    with pytest.raises(ValueError, match="fewer than 1 places"):
        token_streams(model, TEXTS, tokens=[1])


def test_a_circuit_survives_saving_and_draws(tmp_path: Path) -> None:
    model = shaken_model("llama")
    circuit = head_circuit(model, -1, -1, "QK", n_components=3, n_tokens=4)
    again = load_head_circuit(circuit.save(tmp_path / "circuit.safetensors"))
    assert (again.which, again.layer, again.head) == ("QK", 1, 3)
    close(again.matrix.AB, circuit.matrix.AB, rtol=0, atol=0)
    assert again.to_frame().equals(circuit.to_frame())
    assert len(again.table) == 3 * 2 * 2 * 4
    assert again.top_tokens(model, 65).equals(circuit.top_tokens(model, 65))
    assert "<svg" in plot.to_svg(again.plot())
    assert any("rotations" in said for said in again.card["left_out"])


def test_what_makes_no_sense_is_refused() -> None:
    model = shaken_model("llama")
    for family, why in (("bert", "encoder"), ("deepseek", "latent attention")):
        with pytest.raises(ValueError, match=why):
            head_circuit(shaken_model(family), 0, 0)
    for arguments, why in (
        ((2, 0), "layer=2"), ((0, 4), "head=4"), ((0, 0, "VO"), "'OV' or 'QK'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            head_circuit(model, *arguments)
    with pytest.raises(ValueError, match="rotary positions"):
        head_circuit(model, 0, 0, offset=1)
    with pytest.raises(ValueError, match="sees keys 0 to 127"):
        head_circuit(model, 0, 0, "QK", offset=-1)
    with pytest.raises(ValueError, match="other weights"):
        head_circuit(model, 0, 0).top_tokens(shaken_model("llama", seed=1), 3)
    with pytest.raises(ValueError, match=r"id in 0\.\.257"):
        head_circuit(model, 0, 0).top_tokens(model, 258)
