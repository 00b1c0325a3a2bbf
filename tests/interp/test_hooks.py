"""The hook lifecycle: who is called, what is restored, and what is refused."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import interp
from interp.hooks import HookContext, HookPoint
from interp.model import HookedTransformer

TEXT = "the cat sat"


def test_identity_hooks_on_every_site_leave_the_logits_bit_identical(tiny: HookedTransformer) -> None:
    plain = tiny(TEXT)
    for answer in (lambda value, ctx: value, lambda value, ctx: value.clone(), lambda value, ctx: None):
        with tiny.hooks(dict.fromkeys(tiny.site_names, answer)):
            assert torch.equal(tiny(TEXT), plain)


def test_every_site_fires_once_with_its_shape(tiny: HookedTransformer) -> None:
    table = tiny.sites().set_index("site")
    seen: list[str] = []

    def look(value: Tensor, ctx: HookContext) -> None:
        seen.append(ctx.name)
        axes = table.loc[ctx.name, "size"].split()
        sizes = {"batch": 1, "pos": 11, "query": 11, "key": 11}
        assert tuple(value.shape) == tuple(sizes.get(axis) or int(axis) for axis in axes), ctx.name

    with tiny.hooks(dict.fromkeys(tiny.site_names, look)):
        tiny("hello there")
    assert sorted(seen) == sorted(tiny.site_names)


@pytest.mark.parametrize(
    "site",
    ["resid_post:0", "pattern:0", "attn_scores:1", "z:0", "result:1", "ln1.scale:0", "k_input:1", "mlp_in:0", "q:0"],
)
def test_an_edit_reaches_the_logits_and_leaving_restores_them(tiny: HookedTransformer, site: str) -> None:
    plain = tiny(TEXT)
    with tiny.hooks({site: lambda value, ctx: value + 0.5 * value.roll(1, -1)}):
        assert not torch.allclose(tiny(TEXT), plain, atol=1e-4)
    assert torch.equal(tiny(TEXT), plain)


def test_editing_in_place_counts_and_does_not_reach_what_was_recorded_before(tiny: HookedTransformer) -> None:
    plain, clean = tiny.run_with_cache(TEXT)

    def zero(value: Tensor, ctx: HookContext) -> None:
        value.zero_()

    with tiny.hooks({"resid_pre:1": zero}):
        changed, cache = tiny.run_with_cache(TEXT)
    assert not torch.equal(changed, plain)
    assert torch.equal(cache["resid_post", 0], clean["resid_post", 0])


def test_an_explicit_attention_path_equals_the_fused_one(tiny: HookedTransformer) -> None:
    plain = tiny(TEXT)
    with tiny.hooks({"pattern:*": lambda value, ctx: value * (1 + 1e-7)}):
        explicit = tiny(TEXT)
    assert not torch.equal(explicit, plain)
    torch.testing.assert_close(explicit.as_subclass(Tensor), plain.as_subclass(Tensor), atol=1e-4, rtol=1e-5)


def test_nested_scopes_and_the_users_own_hooks_survive(tiny: HookedTransformer) -> None:
    outer = lambda value, ctx: value + 1  # noqa: E731
    with tiny.hooks({"resid_post:0": outer}):
        once = tiny(TEXT)
        with tiny.hooks({"resid_post:0": outer}):
            twice = tiny(TEXT)
        tiny.run_with_cache(TEXT, sites="resid_post:0")
        assert torch.equal(tiny(TEXT), once)
    assert not torch.equal(once, twice)
    assert all(not point.handles for point in tiny.hook_dict.values())


def test_an_exception_restores_the_model(tiny: HookedTransformer) -> None:
    with pytest.raises(RuntimeError, match="mine"), tiny.hooks({"z:0": lambda value, ctx: value}):
        raise RuntimeError("mine")
    assert all(not point.handles for point in tiny.hook_dict.values())


def test_a_hook_that_never_fires_is_an_error(tiny: HookedTransformer) -> None:
    with (
        pytest.raises(ValueError, match=r"never fired \(the pass stopped at layer 1\): blocks.1.hook_resid_post"),
        tiny.hooks({"resid_post:1": lambda value, ctx: value}),
    ):
        tiny(TEXT, stop_at_layer=1)


def test_unknown_sites_and_wrong_shapes_are_refused(tiny: HookedTransformer) -> None:
    with (
        pytest.raises(ValueError, match="did you mean resid_post:0"),
        tiny.hooks({"resid_pst:0": lambda value, ctx: value}),
    ):
        pass
    with (
        pytest.raises(ValueError, match="it must return"),
        tiny.hooks({"resid_post:0": lambda value, ctx: value[:, :1]}),
    ):
        tiny(TEXT)
    with pytest.raises(ValueError, match="selects no site"):
        tiny.run_with_hooks(TEXT, fwd_hooks=[(lambda name: name == "nope", lambda value, hook: value)])
    with pytest.raises(ValueError, match="beyond stop_at_layer"):
        tiny.run_with_cache(TEXT, sites="resid_post:1", stop_at_layer=1)


def test_transformerlens_style_functions(tiny: HookedTransformer) -> None:
    seen = []

    def fn(value: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> Tensor:
        hook.ctx["norm"] = float(value.norm())
        seen.append((hook.name, hook.layer()))
        value[:, -1] = 0
        return value

    changed = tiny.run_with_hooks(TEXT, fwd_hooks=[("blocks.1.hook_resid_post", fn)])
    assert seen == [("blocks.1.hook_resid_post", 1)]
    assert tiny.hook_dict["blocks.1.hook_resid_post"].ctx["norm"] > 0
    assert not torch.equal(changed, tiny(TEXT))
    with tiny.hooks(fwd_hooks=[(lambda name: name.endswith("hook_z"), lambda value, hook: None)]):
        assert torch.equal(tiny(TEXT), tiny(TEXT))


def test_context_has_absolute_positions_and_phases(tiny: HookedTransformer) -> None:
    seen = []
    with tiny.hooks(
        {
            "resid_post:0": lambda value, ctx: seen.append(
                (ctx.phase, ctx.step, ctx.positions.tolist(), ctx.prompt_len.tolist())
            )
        }
    ):
        tiny.generate(["ab", "abcd"], 3, stop_at_eos=False)
    assert seen[0] == ("prefill", 0, [[0, 0, 0, 1], [0, 1, 2, 3]], [2, 4])
    assert seen[1] == ("decode", 1, [[2], [4]], [2, 4])
    assert seen[2] == ("decode", 2, [[3], [5]], [2, 4])


def test_a_nan_in_the_stream_is_refused_wherever_a_figure_is_made(tiny: HookedTransformer) -> None:
    def poison(value: Tensor, ctx: HookContext) -> Tensor:
        return value.masked_fill((ctx.positions == 2)[..., None], torch.nan)

    pairs = [("so good", "so bad"), ("all well", "all ill")]
    for figure in (
        lambda: tiny(TEXT),
        lambda: tiny.generate(TEXT, 2),
        lambda: interp.logit_lens(tiny, TEXT),
        lambda: interp.token_uncertainty(tiny, TEXT),
        lambda: interp.head_scores(tiny, period=8),
        lambda: interp.steering_vector(pairs, model=tiny, site="resid_post:1", tokens="response_mean"),
    ):
        with pytest.raises(ValueError, match="NaN or infinite"), tiny.hooks({"resid_post:0": poison}):
            figure()


def test_gradients_of_any_site(tiny: HookedTransformer) -> None:
    def track(value: Tensor, ctx: HookContext) -> Tensor:
        return value.requires_grad_()

    with tiny.hooks({"embed": track}):
        logits, cache = tiny.run_with_cache(TEXT, sites=["resid_post:0", "pattern:1"])
    gradient = torch.autograd.grad(logits[0, -1, 5], cache["resid_post:0"])[0]
    h = 1e-3
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0))
    with tiny.hooks({"resid_post:0": lambda value, ctx: value + h * direction}):
        up = tiny(TEXT)[0, -1, 5]
    with tiny.hooks({"resid_post:0": lambda value, ctx: value - h * direction}):
        down = tiny(TEXT)[0, -1, 5]
    torch.testing.assert_close((gradient * direction).sum(), (up - down) / (2 * h), rtol=5e-2, atol=5e-3)


def test_what_cannot_be_called_is_refused_before_the_pass(tiny: HookedTransformer) -> None:
    for hooks, message in (
        ({"z:0": 3}, "must be a function, got int"),
        ({"z:0": lambda value: value}, r"callable as fn\(value, ctx\)"),
    ):
        with pytest.raises(ValueError, match=message), tiny.hooks(hooks):
            pass
    with pytest.raises(ValueError, match=r"callable as fn\(value, hook\)"):
        tiny.run_with_hooks(TEXT, fwd_hooks=[("z:0", lambda value: value)])
    with pytest.raises(ValueError, match="list of pairs"):
        tiny.run_with_hooks(TEXT, fwd_hooks=("z:0", lambda value, hook: value))
    with pytest.raises(ValueError, match="names_filter="):
        tiny.run_with_cache(TEXT, lambda name: True)
    with pytest.raises(ValueError, match="layers 0 to 1"):
        tiny.run_with_cache(TEXT, "blocks.9.attn.hook_z")
