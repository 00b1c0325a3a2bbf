"""The induction circuit written down by hand: two layers of attention whose every weight is known."""

import torch

from interp.model import HookedTransformer, ModelConfig

PREVIOUS, INDUCTION = (0, 1), (1, 2)
N_TOKENS, N_PLACES = 24, 40


def induction_circuit(noise: float = 0.0, seed: int = 0) -> HookedTransformer:
    """A model that copies what followed the last occurrence of a token, by two heads of six.

    The stream has three parts: the token at hand, its place, and the token before it. Head 0.1 looks one place back and
    writes the token it finds into the third part; head 1.2 looks for the place whose third part is the token at hand, and
    writes the token there into the first part, from which the unembedding reads. All other heads are `noise`.
    """
    d_model, d_head = 2 * N_TOKENS + N_PLACES, N_PLACES
    cfg = ModelConfig(
        n_layers=2, d_model=d_model, n_heads=3, d_head=d_head, d_mlp=0, d_vocab=N_TOKENS, n_ctx=N_PLACES, norm="none",
        positional="learned", tie_embeddings=False, final_norm=False, name="hand-made",
    )  # fmt: skip
    model = HookedTransformer(cfg, seed=seed)
    for weight in model.parameters():
        weight.mul_(0.0)
    generator = torch.Generator().manual_seed(seed)
    for block in model.iter_blocks():
        for linear in (block.attn.q, block.attn.k, block.attn.v, block.attn.o):
            linear.weight.add_(noise * torch.randn(linear.weight.shape, generator=generator))
    token, place, before = slice(0, N_TOKENS), slice(N_TOKENS, N_TOKENS + N_PLACES), slice(N_TOKENS + N_PLACES, None)
    eye = torch.eye(N_PLACES)
    sharp = 30.0 * d_head**0.5
    assert model.pos_embed is not None
    assert model.unembed is not None
    model.embed.weight[:, token] = torch.eye(N_TOKENS)
    model.pos_embed.weight[:, place] = eye
    model.unembed.weight[:, token] = torch.eye(N_TOKENS)
    one, two = (block.attn for block in model.iter_blocks())
    for attn, head in ((one, PREVIOUS[1]), (two, INDUCTION[1])):
        for weights in (attn.W_Q, attn.W_K, attn.W_V, attn.W_O):
            weights[head].zero_()
        attn.W_V[head][token, :N_TOKENS] = torch.eye(N_TOKENS)
    one.W_Q[PREVIOUS[1]][place] = sharp * eye
    one.W_K[PREVIOUS[1]][place] = eye.roll(1, dims=1)  # a key at place p answers to the query at p + 1
    one.W_O[PREVIOUS[1]][:N_TOKENS, before] = torch.eye(N_TOKENS)
    two.W_Q[INDUCTION[1]][token, :N_TOKENS] = sharp * torch.eye(N_TOKENS)
    two.W_K[INDUCTION[1]][before, :N_TOKENS] = torch.eye(N_TOKENS)
    two.W_O[INDUCTION[1]][:N_TOKENS, token] = 20.0 * torch.eye(N_TOKENS)
    return model


def copies(n_rows: int = 8, period: int = 12, seed: int = 0) -> torch.Tensor:
    """One copy for each row: different tokens, none of them 0."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([1 + torch.randperm(N_TOKENS - 1, generator=generator)[:period] for _ in range(n_rows)])
