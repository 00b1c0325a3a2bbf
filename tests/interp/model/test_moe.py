"""Experts against a loop over tokens, transformers' balancing loss, and the balancing without a loss."""

import pytest
import torch
from tiny import shaken_model, tiny_model

from interp.model import Experts
from interp.model.moe import MixtureOfExperts, balance_loss, expert_load, update_balance_bias

TEXTS = ["hello there", "experts are chosen by token", "x"]


@pytest.mark.parametrize("family", ["mixtral", "deepseek"])
def test_the_output_is_the_sum_over_each_tokens_experts(family: str) -> None:
    model = shaken_model(family).double()
    layer = model.blocks[1].mlp
    assert isinstance(layer, MixtureOfExperts)
    x = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options, out = model.cfg.experts, layer(x)
    for row in range(2):
        for pos in range(5):
            token = x[row, pos]
            logits = layer.router.weight @ token
            scores = logits.softmax(0) if options.score == "softmax" else logits.sigmoid()
            choice = scores if layer.router.bias is None else scores + layer.router.bias
            if options.n_groups > 1:
                size = options.n_experts // options.n_groups
                best = [choice[g * size : (g + 1) * size].topk(2).values.sum() for g in range(options.n_groups)]
                open_groups = torch.stack(best).topk(options.top_groups).indices.tolist()
                choice = torch.stack([c if i // size in open_groups else c - 1e9 for i, c in enumerate(choice)])
            chosen = choice.topk(options.top_k).indices.tolist()
            total = sum(scores[e] for e in chosen)
            expected = sum(scores[e] / total * options.scale * layer.experts[e](token) for e in chosen)
            expected = expected + (layer.shared(token) if layer.shared is not None else 0)
            torch.testing.assert_close(out[row, pos], expected, rtol=1e-10, atol=1e-12)


def test_the_balancing_loss_is_transformers() -> None:
    mixtral = pytest.importorskip(
        "transformers.models.mixtral.modeling_mixtral", reason="needs transformers (extra hf)"
    )
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(12, 4, generator=generator) for _ in range(2)]
    theirs = mixtral.load_balancing_loss_func(tuple(logits), 4, 2)
    stacked = torch.cat(logits)
    ours = balance_loss(stacked.softmax(-1), stacked.topk(2, -1).indices)
    torch.testing.assert_close(ours, theirs)
    mask = torch.ones(2, 6)
    mask[1, 4:] = 0
    theirs = mixtral.load_balancing_loss_func((logits[0],), 4, 2, attention_mask=mask)
    scores = logits[0].softmax(-1).view(2, 6, 4)
    torch.testing.assert_close(balance_loss(scores, scores.topk(2, -1).indices, mask.bool()), theirs)


def test_an_even_load_has_the_smallest_balancing_loss() -> None:
    even = torch.eye(4).repeat(3, 1)
    assert float(balance_loss(even, even.topk(1, -1).indices)) == pytest.approx(1.0)
    one = torch.eye(4)[:1].repeat(12, 1)
    assert float(balance_loss(one, one.topk(1, -1).indices)) == pytest.approx(4.0)


def test_the_loss_with_balance_adds_the_mean_over_layers_and_has_gradients() -> None:
    model = tiny_model("mixtral").requires_grad_(True)
    plain, both = model.loss(TEXTS), model.loss(TEXTS, balance=0.5)
    _, cache = model.run_with_cache(TEXTS, ["*.hook_expert_weights", "*.hook_expert_indices"])
    losses = [balance_loss(cache["expert_weights", i], cache["expert_indices", i], cache.tokens.mask) for i in range(2)]
    torch.testing.assert_close(both - plain, 0.5 * torch.stack(losses).mean())
    (both - plain).backward()
    assert float(model.blocks[0].mlp.router.weight.grad.abs().max()) > 0
    with pytest.raises(ValueError, match="has no experts"):
        tiny_model().loss(TEXTS, balance=0.5)


def test_loads_count_real_tokens_and_the_bias_evens_them() -> None:
    model = tiny_model("deepseek", experts=Experts(n_experts=8, top_k=2, d_expert=8, bias=True), scale=30.0)
    loads = expert_load(model, TEXTS)
    assert loads.groupby("layer")["tokens"].sum().tolist() == [2 * sum(map(len, TEXTS))] * 2
    assert loads.groupby("layer")["share"].sum().tolist() == pytest.approx([1.0, 1.0])

    def unevenness() -> float:
        return float(expert_load(model, TEXTS).groupby("layer")["share"].std().mean())

    before = unevenness()
    for _ in range(40):
        update_balance_bias(model, expert_load(model, TEXTS), 0.01)
    assert unevenness() < 0.6 * before
    with pytest.raises(ValueError, match="no bias"):
        update_balance_bias(tiny_model("mixtral"), expert_load(tiny_model("mixtral"), TEXTS), 0.01)
    with pytest.raises(ValueError, match="has no experts"):
        expert_load(tiny_model(), TEXTS)


def test_a_hook_that_chooses_the_experts_is_obeyed() -> None:
    model = tiny_model("mixtral")
    with model.hooks({"expert_indices:0": lambda value, ctx: torch.zeros_like(value) + torch.tensor([3, 1])}):
        _, cache = model.run_with_cache(TEXTS[0], ["mlp_out:0", "mlp_in:0", "expert_weights:0"])
    mlp, x = model.blocks[0].mlp, model.blocks[0].ln2.silent(cache["mlp_in", 0])
    scores = cache["expert_weights", 0][..., [3, 1]]
    scores = scores / scores.sum(-1, keepdim=True)
    expected = scores[..., :1] * mlp.experts[3](x) + scores[..., 1:] * mlp.experts[1](x)
    torch.testing.assert_close(cache["mlp_out", 0], expected)
