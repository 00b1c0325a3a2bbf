"""What must hold in every arrangement of blocks, positions, masks and caches that the configuration can describe."""

import pytest
import torch
from tiny import FAMILIES, shaken_model
from torch import Tensor

from interp.model import HookedTransformer
from interp.model.cache import KVCache
from interp.tokens import Tokens

TEXTS = ["a", "hello there, you", "four words stand here"]
STEP = 1e-6
DECODERS = [name for name, fields in FAMILIES.items() if fields.get("causal", True)]


def close(a: Tensor, b: Tensor, rtol: float = 1e-5) -> bool:
    """Each row within rtol of its own norm."""
    return bool(((a - b).norm(dim=-1) <= rtol * b.norm(dim=-1) + 1e-6).all())


@pytest.fixture(params=FAMILIES)
def any_model(request: pytest.FixtureRequest) -> HookedTransformer:
    return shaken_model(request.param)


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> HookedTransformer:
    return shaken_model(request.param)


def test_every_site_fires_once_with_the_shape_of_the_table(any_model: HookedTransformer) -> None:
    fired: list[str] = []
    with any_model.hooks({site: lambda value, ctx: fired.append(ctx.name) for site in any_model.site_names}):
        any_model(TEXTS[1])
    assert fired.count(fired[0]) == 1
    assert sorted(fired) == sorted(any_model.site_names)
    _, cache = any_model.run_with_cache(TEXTS[1], any_model.site_names)
    n = len(TEXTS[1])
    for row in any_model.sites().itertuples():
        axes = [{"batch": 1, "pos": n, "query": n, "key": n}.get(axis) or int(axis) for axis in row.size.split()]
        assert list(cache[row.site].shape) == axes, row.site


def test_hooks_that_only_look_leave_the_logits_bit_identical(any_model: HookedTransformer) -> None:
    plain = any_model(TEXTS)
    same = {site: lambda value, ctx: value.clone() for site in any_model.site_names}
    with any_model.hooks(same):
        assert torch.equal(any_model(TEXTS), plain)


def test_every_editing_hook_moves_the_logits(any_model: HookedTransformer) -> None:
    """A site whose value the pass does not read would make every experiment on it an effect of zero."""
    plain = any_model(TEXTS[1])
    for site in any_model.site_names:
        if "expert_indices" in site:
            continue
        with any_model.hooks({site: lambda value, ctx: value * 0.5 + 0.1}):
            if site.endswith("hook_attn_in") and any_model.cfg.kv_heads != any_model.cfg.n_heads:
                with pytest.raises(ValueError, match="shares keys and values"):
                    any_model(TEXTS[1])
            else:
                assert not torch.equal(any_model(TEXTS[1]), plain), site


def test_single_left_and_right_padded_texts_agree(any_model: HookedTransformer) -> None:
    for pad in ("right", "left"):
        batch = any_model.tokenizer.tokenize(TEXTS, pad=pad)
        logits, cache = any_model.run_with_cache(batch, ["resid_post:*", "pattern:*"])
        for row, text in enumerate(TEXTS):
            alone, single = any_model.run_with_cache(text, "resid_post:*")
            real = batch.mask[row]
            assert close(logits[row, real], alone[0], 1e-4)
            for layer in range(any_model.cfg.n_layers):
                assert close(cache["resid_post", layer][row, real], single["resid_post", layer][0])
                pattern = cache["pattern", layer][row]
                assert torch.allclose(pattern[:, real].sum(-1), torch.ones(()), atol=1e-6)
                assert not pattern[:, ~real].any()
                assert not pattern[:, :, ~real].any()
        assert not torch.isnan(logits).any()


def test_no_token_sees_a_later_one(decoder: HookedTransformer) -> None:
    ids = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    before, after = decoder(ids), decoder(changed)
    assert torch.allclose(before[0, :7], after[0, :7], atol=1e-6)
    assert (before[0, 7] != after[0, 7]).any()


def test_packed_documents_are_as_if_alone(any_model: HookedTransformer) -> None:
    ids = [any_model.tokenizer.encode(text) for text in TEXTS]
    documents = torch.tensor([[number for number, row in enumerate(ids) for _ in row] + [9, 9]])
    packed = torch.tensor([[token for row in ids for token in row] + [0, 0]])
    mask = documents < 9
    tokens = Tokens(packed, mask, documents=documents)
    assert tokens.positions[0].tolist()[: len(ids[0]) + 3] == [*range(len(ids[0])), 0, 1, 2]
    if any_model.rope is not None and any_model.rope.by_length:
        with pytest.raises(ValueError, match="length of their text"):
            any_model(tokens)
        return
    _, cache = any_model.run_with_cache(tokens, "resid_post:*")
    for number, text in enumerate(TEXTS):
        _, alone = any_model.run_with_cache(text, "resid_post:*")
        for layer in range(any_model.cfg.n_layers):
            assert close(cache["resid_post", layer][documents == number], alone["resid_post", layer][0])
    if not any_model.cfg.causal:
        return
    one, each = (
        any_model.loss(tokens, per_token=True).sum(),
        [any_model.loss(text, per_token=True).sum() for text in TEXTS],
    )
    torch.testing.assert_close(one, torch.stack(each).sum(), rtol=1e-4, atol=1e-4)


def decoded(model: HookedTransformer, tokens: Tokens, n_prompt: int) -> Tensor:
    """Logits at each place from the prompt's last on, one token at a time through the cache."""
    n_rows, n = tokens.ids.shape
    kv = KVCache(model.cfg, n_rows, n, model.dtype, model.device)
    assert kv.n_bytes == model.cfg.kv_cache_bytes(n, n_rows, model.dtype)
    lengths = tokens.mask[:, :n_prompt].sum(1)
    found = [model._next(Tokens(tokens.ids[:, :n_prompt], tokens.mask[:, :n_prompt]), kv, "prefill", 0, lengths, None)]
    for step, place in enumerate(range(n_prompt, n)):
        new = Tokens(tokens.ids[:, place : place + 1], torch.ones(n_rows, 1, dtype=torch.bool))
        found.append(model._next(new, kv, "decode", step + 1, lengths, lengths + step))
    return torch.stack(found, 1)


@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hooked"])
def test_cached_decoding_equals_full_recomputation(decoder: HookedTransformer, hooked: bool) -> None:
    """Also with the window's buffer moved several times, left pads, and hooks on what the cache stands for."""
    ids = torch.randint(0, 256, (2, 60), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :4] = False
    sites = ["resid_post:0", "z:1"] if hooked else []
    sites += ["k:1", "v:1"] if hooked else []
    with decoder.hooks({site: lambda value, ctx: value * 0.9 + 0.05 * ctx.positions[..., None, None].cos()
                        if value.ndim == 4 else value + 0.05 for site in sites}):  # fmt: skip
        by_token = decoded(decoder, Tokens(ids, mask), 20)
        if decoder.rope is not None and decoder.rope.by_length:  # then each length has a pass of its own
            whole = torch.stack([decoder(Tokens(ids[:, :n], mask[:, :n]))[:, -1] for n in range(20, 61)], 1)
        else:
            whole = decoder(Tokens(ids, mask))[:, 19:]
    assert close(by_token, whole, 1e-4)


def test_starting_from_a_stream_is_the_rest_of_the_pass(any_model: HookedTransformer) -> None:
    tokens = any_model.tokenizer.tokenize(TEXTS)
    logits, cache = any_model.run_with_cache(tokens, "resid_pre:1")
    again, rest = any_model.run_with_cache(cache["resid_pre", 1], start_at_layer=1, tokens=tokens)
    assert torch.equal(again[tokens.mask], logits[tokens.mask])
    assert "resid_post:1" in rest
    assert "resid_post:0" not in rest
    assert torch.equal(any_model(cache["resid_pre", 1], start_at_layer=-1, tokens=tokens, stop_at_layer=1),
                       cache["resid_pre", 1])  # fmt: skip


def test_gradients_of_every_site_are_those_of_a_small_step(any_model: HookedTransformer) -> None:
    model = any_model.to(torch.float64)
    weights = torch.randn(258, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def metric(logits: Tensor) -> Tensor:
        return (logits[0, -1] * weights).sum()

    wanted = [name for name in model.site_names if "indices" not in name and "hook_attn_in" not in name]
    number, gradients = model.grad(metric, TEXTS[1], wanted)
    torch.testing.assert_close(number, metric(model(TEXTS[1])))
    generator = torch.Generator().manual_seed(1)
    for name in wanted:
        direction = torch.randn(gradients[name].shape, generator=generator, dtype=torch.float64)
        ends = []
        for sign in (1, -1):
            with torch.no_grad(), model.hooks({name: lambda value, ctx, s=sign, d=direction: value + s * STEP * d}):
                ends.append(metric(model(TEXTS[1])))
        expected = float((gradients[name].nan_to_num() * direction).sum())
        assert float(ends[0] - ends[1]) / (2 * STEP) == pytest.approx(expected, rel=1e-3, abs=1e-4), name
    assert not any(weight.requires_grad for weight in model.parameters())


def test_missing_kinds_say_why(any_model: HookedTransformer) -> None:
    table = any_model.sites(missing=True)
    assert table["why"].notna().all()
    for kind, why in zip(table["kind"], table["why"], strict=True):
        if any_model.cfg.experts is None and kind not in ("pos_embed", "token_type_embed", "full_embed"):
            site = kind if kind.startswith("ln_final") else f"{kind}:0"
            assert any_model.missing_site(site) == why
            with pytest.raises(ValueError, match="has no"):
                any_model.run_with_cache(TEXTS[1], site)


def test_not_a_number_in_queries_or_keys_is_loud(any_model: HookedTransformer) -> None:
    """Fused kernels give such rows finite values, which would pass for a result."""
    for site in ("q:1", "k:0"):
        for bad in (torch.nan, torch.inf):
            with (
                any_model.hooks({site: lambda value, ctx, b=bad: value * b}),
                pytest.raises(ValueError, match="NaN or infinite"),
            ):
                any_model(TEXTS[1])
    any_model(TEXTS[1])
    with torch.no_grad():
        weight = next(w for name, w in any_model.named_parameters() if name.startswith("blocks.1.attn.q"))
        weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        any_model(TEXTS[1])


def test_a_stream_that_does_not_fit_is_refused(any_model: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="context holds 128"):
        any_model(torch.zeros(1, 129, 32), start_at_layer=1)
    with pytest.raises(ValueError, match="start_at_layer=5: the model has 2 layers"):
        any_model(torch.zeros(1, 3, 32), start_at_layer=5)
    with pytest.raises(ValueError, match=r"start_at_layer needs a stream \[batch pos 32\]"):
        any_model("text", start_at_layer=1)
    with pytest.raises(ValueError, match="stop_at_layer must be a whole number"):
        any_model("text", stop_at_layer=1.5)
    with pytest.raises(ValueError, match="layers 0 to 1"):
        any_model.missing_site("resid_post:99")
