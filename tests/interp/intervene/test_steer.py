"""Steer: every kind against its formula, units, places, heads, and that all ways through the model see the same."""

import itertools
import json

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.hooks import HookContext
from interp.intervene.ablate import Ablate
from interp.intervene.place import Where
from interp.intervene.steer import OtherModelWarning, SiteEdit, Steer
from interp.intervene.targets import Target, targets_of
from interp.intervene.writes import write_sites
from interp.model import HookedTransformer
from interp.model.inputs import left_padded
from interp.steering import SteeringVector
from interp.tokens import Tokens

TEXT = "hello there"
SITE = "blocks.0.hook_resid_post"
KINDS = ("add", "rotate", "piecewise", "clamp", "ablate")


@pytest.fixture(scope="module")
def llama() -> HookedTransformer:
    return tiny_model()


def unit(d: int = 32, seed: int = 0) -> Tensor:
    drawn = torch.randn(d, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm()


def target(site: str = SITE, **fields: object) -> Target:
    d = unit(8 if fields.get("head") is not None else 32, int(fields.pop("seed", 0)))  # type: ignore[call-overload]
    return Target(**{"site": site, "direction": d, "length": 1.0, "norm": 10.0, "sd": 2.0, "raw": 3.0, **fields})  # type: ignore[arg-type]


class Several:
    """Directions at several places, as vectors of several layers and of heads are."""

    def __init__(self, *targets: Target, unit: str | None = None) -> None:
        self._targets = targets
        if unit is not None:
            self.unit = unit

    def targets(self) -> list[Target]:
        return list(self._targets)


def values(model: HookedTransformer, steer: Steer | None, site: str, x: object = TEXT) -> Tensor:
    """What stands at a site, with an intervention or without."""
    with model.intervene(*[steer] if steer else []):
        return model.run_with_cache(x, sites=site)[1][site]


def by_formula(kind: str, h: Tensor, d: Tensor, a: float) -> Tensor:
    """The formulas, one token at a time."""
    new = []
    for row in h.double().reshape(-1, h.shape[-1]):
        along = float(row @ d.double())
        if kind == "rotate":
            moved = row + a * d.double()
            new.append(moved * row.norm() / moved.norm())
            continue
        sign = (along > 0) - (along < 0)
        size = {"add": a, "piecewise": sign * a, "clamp": a - along, "ablate": -a * along}[kind]
        new.append(row + size * d.double())
    return torch.stack(new).view(h.shape).to(h.dtype)


# ---------------------------------------------------------------------------------------------------- kinds and units


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_does_what_its_formula_says(tiny: HookedTransformer, kind: str) -> None:
    clean, vector = values(tiny, None, SITE), target()
    strength = 0.7 if kind == "ablate" else -0.4
    found = values(tiny, Steer(vector, strength, kind=kind), SITE)
    torch.testing.assert_close(found, by_formula(kind, clean, vector.direction, strength if kind == "ablate" else -4.0))
    assert not torch.allclose(found, clean)


def test_what_each_kind_leaves(tiny: HookedTransformer) -> None:
    clean, vector = values(tiny, None, SITE), target()
    d = vector.direction.double()
    rotated = values(tiny, Steer(vector, 0.5, kind="rotate"), SITE)
    torch.testing.assert_close(rotated.norm(dim=-1), clean.norm(dim=-1))
    ablated = values(tiny, Steer(vector, kind="ablate"), SITE)
    assert float((ablated.double() @ d).abs().max()) < 1e-6 * float(clean.norm(dim=-1).max())
    clamped = values(tiny, Steer(vector, 0.3, kind="clamp"), SITE).double()
    torch.testing.assert_close(clamped @ d, torch.full((1, 11), 3.0).double(), atol=1e-5, rtol=0)
    across = torch.eye(32).double() - d[:, None] * d
    torch.testing.assert_close(clamped @ across, clean.double() @ across, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "deepseek"])
def test_clamp_holds_where_norms_stand_behind_the_writes(family: str) -> None:
    model = tiny_model(family)
    steer = Steer(target(), 0.3, kind="clamp", site=["resid_post:0", "attn_out:1", "mlp_out:1"])
    for site in ("resid_post:0", "attn_out:1", "mlp_out:1"):
        held = values(model, steer, site).double() @ unit().double()
        torch.testing.assert_close(held, torch.full_like(held, 3.0), atol=1e-4, rtol=0)


def test_units_of_strength(tiny: HookedTransformer) -> None:
    clean, vector = values(tiny, None, SITE), target(length=0.5)
    for steer, size in (
        (Steer(vector), 0.5),
        (Steer(vector, 2, unit="norm"), 10.0),
        (Steer(vector, 2, unit="sd"), 2.0),
        (Steer(vector, -2, unit="raw"), -3.0),
        (Steer(vector, 2, raw=True), 3.0),
        (Steer(Several(vector, unit="sd"), 2), 2.0),
        (Steer(Several(vector, unit="sd"), 2, unit="norm"), 10.0),
    ):
        moved = values(tiny, steer, SITE) - clean
        torch.testing.assert_close(moved, (size * unit()).expand(1, 11, 32), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["add", "rotate", "piecewise", "ablate"])
def test_strength_zero_and_leaving_are_bit_identical(tiny: HookedTransformer, kind: str) -> None:
    plain = tiny(TEXT)
    with tiny.intervene(Steer(target(), 0.0, kind=kind, site="resid_post:*")):
        assert torch.equal(tiny(TEXT), plain)
    with tiny.intervene(Steer(target(length=0.0), 1.0, kind="add" if kind == "ablate" else kind)):
        assert torch.equal(tiny(TEXT), plain)
    with tiny.intervene(Steer(target(), 1.0, kind=kind)):
        assert not torch.equal(tiny(TEXT), plain)
    assert torch.equal(tiny(TEXT), plain)


def test_a_push_that_cancels_a_row_leaves_it_when_norms_are_kept() -> None:
    """There is no direction left that could be scaled."""
    model = tiny_model()
    row = torch.zeros(1, 2, 32)
    row[:, :, 3] = 5.0
    d = torch.zeros(32)
    d[3] = 1.0
    steer = Steer(Target("blocks.1.hook_resid_pre", d, 1.0, 5.0), -1.0, kind="rotate")
    with model.intervene(steer):
        _, cache = model.run_with_cache(row, sites="resid_pre:1", start_at_layer=1)
    assert torch.equal(cache["resid_pre", 1], row)


def test_half_precision_is_rounded_once() -> None:
    model = tiny_model(scale=1.0).to(torch.bfloat16)
    clean = values(model, None, SITE)
    for kind in KINDS[1:]:
        found = values(model, Steer(target(), 0.4, kind=kind), SITE)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, by_formula(kind, clean, unit(), 0.4 if kind == "ablate" else 4.0))


# ------------------------------------------------------------------------------------------------------------- places


def test_a_range_of_layers_and_a_list_of_sites(llama: HookedTransformer) -> None:
    for site in ("resid_post:0-1", "resid_post:*", ["resid_post:0", "resid_post:1"]):
        moved = {}
        for layer in (0, 1):
            plain = Steer(target(), 0.5, site="resid_post:0") if layer else None
            before = values(llama, plain, f"resid_post:{layer}")
            moved[layer] = values(llama, Steer(target(), 0.5, site=site), f"resid_post:{layer}") - before
        for layer in (0, 1):
            torch.testing.assert_close(moved[layer], (5.0 * unit()).expand(1, 11, 32), atol=1e-4, rtol=1e-4)


def test_vectors_of_several_sites_stand_each_at_its_own(tiny: HookedTransformer) -> None:
    vectors = Several(target(seed=1), target("blocks.1.hook_resid_post", seed=2, norm=20.0))
    with tiny.intervene(Steer(vectors, 0.5)):
        together = tiny(TEXT)
    with tiny.intervene(*(Steer(each, 0.5) for each in vectors.targets())):
        assert torch.equal(tiny(TEXT), together)
    with tiny.intervene(Steer(vectors, 0.5, site="resid_post:1")):
        chosen = tiny(TEXT)
    with tiny.intervene(Steer(vectors.targets()[1], 0.5)):
        assert torch.equal(tiny(TEXT), chosen)
    with (
        pytest.raises(ValueError, match="no direction for mlp_out:0"),
        tiny.intervene(Steer(vectors, site="mlp_out:0")),
    ):
        pass


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_ablation_at_every_write_leaves_nothing_in_the_stream(family: str) -> None:
    model, d = tiny_model(family), unit().double()
    with model.intervene(Steer(target(), kind="ablate", site="writes")):
        _, cache = model.run_with_cache(TEXT, sites=["resid_pre:*", "resid_mid:*", "resid_post:*"])
    for name, value in cache.items():
        assert float((value.double() @ d).abs().max()) < 1e-5 * float(value.norm(dim=-1).max()), name
    steer = Steer(target(), kind="ablate", site="writes")
    assert [name for name, _ in steer.hook_functions(model)] == write_sites(model)


def test_pads_on_either_side_are_not_steered(llama: HookedTransformer) -> None:
    batch = llama.tokenizer.tokenize(["hi", TEXT])
    left = left_padded(batch)
    for tokens, kind in itertools.product((batch, left), KINDS):
        clean = values(llama, None, SITE, tokens)
        steered = values(llama, Steer(target(), 0.9, kind=kind), SITE, tokens)
        moved = (steered != clean).any(-1)
        assert torch.equal(moved, tokens.mask), kind
        alone = values(llama, Steer(target(), 0.9, kind=kind), SITE, "hi")
        torch.testing.assert_close(steered[0][tokens.mask[0]], alone[0], atol=1e-4, rtol=1e-4)


def test_a_direction_over_all_heads_of_z(tiny: HookedTransformer) -> None:
    clean = values(tiny, None, "z:1")
    moved = values(tiny, Steer(target("blocks.1.attn.hook_z"), 0.5), "z:1") - clean
    torch.testing.assert_close(moved.flatten(2), (5.0 * unit()).expand(1, 11, 32), atol=1e-4, rtol=1e-4)


# -------------------------------------------------------------------------------------------------------------- heads


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_heads_with_sigma_equal_the_closed_form_behind_w_o(family: str) -> None:
    """attn_out moves by the sum of strength x sd x direction @ W_O over the heads of the layer."""
    model = tiny_model(family)
    z = "blocks.1.attn.hook_z"
    heads = Several(target(z, head=3, sd=0.5, seed=1), target(z, head=0, sd=2.0, seed=2), unit="sd")
    clean = values(model, None, "attn_out:1")
    moved = values(model, Steer(heads, 15.0), "attn_out:1") - clean
    W_O = model.blocks[1].attn.W_O.detach()  # type: ignore[index,union-attr]
    expected = sum(15.0 * each.sd * each.direction @ W_O[each.head] for each in heads.targets())  # type: ignore[operator,index]
    torch.testing.assert_close(moved, expected.expand(1, 11, 32), atol=1e-3, rtol=1e-3)  # type: ignore[union-attr]
    assert len(Steer(heads, 15.0).hook_functions(model)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_other_heads_stay_as_they_are(llama: HookedTransformer, kind: str) -> None:
    z = "blocks.0.attn.hook_z"
    heads = Several(target(z, head=3, seed=1), target(z, head=1, seed=2))
    clean = values(llama, None, z)
    found = values(llama, Steer(heads, 0.6, kind=kind, positions=[2, 5]), z)
    for head, seed in ((3, 1), (1, 2)):
        expected = by_formula(kind, clean[:, [2, 5], head], unit(8, seed), 0.6 if kind == "ablate" else 6.0)
        torch.testing.assert_close(found[:, [2, 5], head], expected)
    assert torch.equal(found[:, :, [0, 2]], clean[:, :, [0, 2]])
    assert torch.equal(found[:, [0, 1, 3, 4]], clean[:, [0, 1, 3, 4]])


# -------------------------------------------------------------------------------------------- order, leaving, gradients


def test_two_interventions_compose_in_the_order_given(tiny: HookedTransformer) -> None:
    add, zero = Steer(target(), 0.3), Ablate(sites=SITE, kind="zero")
    clamp, ablate = Steer(target(), 0.2, kind="clamp"), Steer(target(), kind="ablate")
    for first, second, along in ((add, clamp, 2.0), (clamp, ablate, 0.0), (zero, add, 3.0), (ablate, add, 3.0)):
        with tiny.intervene(first), tiny.intervene(second):
            _, nested = tiny.run_with_cache(TEXT, sites=SITE)
        with tiny.intervene(first, second):
            _, listed = tiny.run_with_cache(TEXT, sites=SITE)
        assert torch.equal(nested[SITE], listed[SITE])
        torch.testing.assert_close(listed[SITE] @ unit(), torch.full((1, 11), along), atol=1e-4, rtol=0)


def test_an_exception_inside_the_block_restores_the_model(tiny: HookedTransformer) -> None:
    plain = tiny(TEXT)

    def failing(value: Tensor, ctx: HookContext) -> None:
        raise KeyError(ctx.name)

    with pytest.raises(KeyError), tiny.intervene(Steer(target(), 1.0)), tiny.hooks({"resid_post:1": failing}):
        tiny(TEXT)
    with pytest.raises(ValueError, match="16 dimensions"), tiny.intervene(Steer(target(direction=unit(16)), 1.0)):
        tiny(TEXT)
    assert torch.equal(tiny(TEXT), plain)
    assert not any(point.handles for point in tiny.hook_dict.values())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_run_through_after_a_pass_without_them(llama: HookedTransformer, kind: str) -> None:
    with llama.intervene(Steer(target(), 0.5, kind=kind, site="resid_post:0")):
        with torch.inference_mode():
            llama(TEXT)
        number, cache = llama.grad(lambda logits: logits[0, -1].logsumexp(-1), TEXT, "resid_pre:0")
    assert torch.isfinite(number)
    assert bool(cache["resid_pre", 0].any())


# ------------------------------------------------------------------------------------ the same by every way through


CASES = (
    ("add", {"where": "all"}), ("rotate", {"where": "prompt"}), ("piecewise", {"where": "generated"}),
    ("clamp", {"positions": [1, 6, 14]}), ("ablate", {"where": "all"}), ("add", {"where": Where(positions=[-1])}),
    ("clamp", {"where": Where("generated", rows=[1])}),
)  # fmt: skip
"""Every kind, and every place with one of them: the mask and the edit know nothing of each other."""


PROMPTS = ["the cat", "hello there"]


def assert_same_by_every_way(model: HookedTransformer, steer: Steer) -> list[list[float]]:
    """Cached decoding of a batch padded on the left, and one pass over the whole texts, padded on the right."""
    with model.intervene(steer):
        out = model.generate(PROMPTS, 3, stop_at_eos=False)
        lengths = [len(row.prompt_tokens) for row in out.rows]
        texts = [row.all_tokens for row in out.rows]
        width = max(map(len, texts))
        real = torch.arange(width) < torch.tensor([[len(text)] for text in texts])
        tokens = Tokens(torch.tensor([text + [0] * (width - len(text)) for text in texts]), real)
        whole = model(tokens, prompt_len=lengths).log_softmax(-1)
    for row, (text, length) in enumerate(zip(texts, lengths)):
        new = torch.tensor(text[length:])[:, None]
        forced = whole[row, length - 1 : len(text) - 1].gather(1, new)[:, 0]
        torch.testing.assert_close(forced, torch.tensor(out.logprobs[row]), atol=2e-4, rtol=1e-4)
    return out.logprobs


def test_generated_equals_teacher_forced_for_each_kind_and_place() -> None:
    model = tiny_model()
    plain = model.generate(PROMPTS, 3, stop_at_eos=False).logprobs
    for kind, place in CASES:
        assert assert_same_by_every_way(model, Steer(target(), 1.5, kind=kind, **place)) != plain


@pytest.mark.parametrize("family", ["gemma3", "deepseek"])
def test_generated_equals_teacher_forced_with_windows_and_latents(family: str) -> None:
    model = tiny_model(family)
    heads = target("blocks.1.attn.hook_z", head=2, direction=unit(10 if family == "deepseek" else 8, 3))
    for steer in (Steer(target(), 0.5), Steer(target(), 0.5, kind="rotate", where="generated"), Steer(heads, 2.0)):
        assert_same_by_every_way(model, steer)


@pytest.mark.parametrize("where", ["all", "generated", Where(phase="prefill")], ids=["all", "generated", "prefill"])
def test_a_decode_pass_over_the_whole_text_steers_what_earlier_passes_did(where: str | Where) -> None:
    """Rotations that hang on the length: every new token turns all others anew."""
    model = tiny_model("dynamic")
    prompt = model.tokenizer.encode("hello there")
    with model.intervene(Steer(target(), 0.5, where=where)):
        out = model.generate(prompt, 4, stop_at_eos=False)
    again = "prompt" if isinstance(where, Where) else where
    with model.intervene(Steer(target(), 0.5, where=again)):
        for step, logprob in enumerate(out.logprobs):
            whole = model(prompt + out.tokens[:step], prompt_len=len(prompt))[0, -1].log_softmax(-1)
            assert float(whole[out.tokens[step]]) == pytest.approx(logprob, abs=2e-4)


def test_heads_and_several_sites_in_cached_decoding() -> None:
    tiny = tiny_model("gpt2")
    heads = Several(target("blocks.0.attn.hook_z", head=3, seed=1), target("blocks.1.attn.hook_z", head=1, seed=2))
    assert_same_by_every_way(tiny, Steer(heads, 3.0, unit="sd"))
    assert_same_by_every_way(tiny, Steer(target(), kind="ablate", site="writes"))
    assert_same_by_every_way(tiny, Steer(target(), 0.3, kind="clamp", site="resid_post:0-1", where="generated"))


def test_the_mask_is_left_out_only_where_it_makes_no_difference() -> None:
    """A steered decode step is a plain sum; the same numbers, bit for bit, as the masked one gives."""
    model = tiny_model()
    for where in ("all", "generated"):
        found = []
        for place in (where, Where(where), Where(where, positions=range(64))):
            with model.intervene(Steer(target(), 0.5, where=place)):
                found.append(model.generate(PROMPTS, 3, stop_at_eos=False).logprobs)
        assert found[0] == found[1] == found[2]


def test_a_phase_that_never_comes_is_an_error_also_for_what_needs_no_mask(tiny: HookedTransformer) -> None:
    with tiny.intervene(Steer(target(), 0.5, phase="decode")):
        tiny.generate(TEXT, 3, stop_at_eos=False)
    with pytest.raises(ValueError, match="found no token"), tiny.intervene(Steer(target(), 0.5, phase="decode")):
        tiny(TEXT)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Steer(target(), kind="push"), "add, rotate, piecewise, clamp, ablate"),
        (lambda: Steer(target(), kind="clamp"), "needs strength="),
        (lambda: Steer(target(), float("nan")), "finite number"),
        (lambda: Steer(target(), True), "finite number"),
        (lambda: Steer(target(), "0.1"), "finite number"),
        (lambda: Steer(target(), unit="sigma"), "norm, sd, raw"),
        (lambda: Steer(target(sd=None), unit="sd"), "interp.steering_vector"),
        (lambda: Steer(target(raw=None), raw=True), "fitted length"),
        (lambda: Steer(target(), raw=True, unit="sd"), "something else"),
        (lambda: Steer(target(), where=Where(), positions=[1]), "say positions and phase in it"),
        (lambda: Steer(target(), when="always"), "takes a Condition"),
        (lambda: Steer(torch.ones(32)), "takes a steering vector"),
        (lambda: Steer(3), "takes a steering vector"),
        (lambda: Steer([]), "takes a steering vector"),
        (lambda: Steer(Several()), "no target"),
        (lambda: Steer(Several(target(), target())), "one after the other"),
        (lambda: Steer([target("z", head=1), target("z")]), "one after the other"),
        (lambda: target(direction=torch.ones(32)), "unit vector"),
        (lambda: target(direction=torch.full((32,), float("nan"))), "unit vector"),
        (lambda: target(norm=0.0), "positive"),
        (lambda: target(sd=-1.0), "positive"),
        (lambda: target(length=float("inf")), "finite number"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("steer", "message"),
    [
        (Steer(target("resid_post:7")), "layers 0 to 1"),
        (Steer(target(), site=[]), "names no site"),
        (Steer(target(), site="pattern:1"), "not a value of single tokens"),
        (Steer(target(), site="q:0-9"), "layers 0 to 1"),
        (Steer(target(), site="z:1.2"), "one component"),
        (Steer(target(), site="post:1"), "32 dimensions, blocks.1.mlp.hook_post has 64"),
        (Steer(target(head=1)), "has no heads"),
        (Steer(target("z:1", head=4)), "heads 0 to 3"),
        (Steer(target("z:1", head=1, direction=unit(9))), "9 dimensions, the heads"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_model_is_refused(llama: HookedTransformer, steer: Steer, message: str) -> None:
    with pytest.raises(ValueError, match=message), llama.intervene(steer):
        llama(TEXT)


def test_describe_is_json_and_says_what_was_meant() -> None:
    heads = Several(target("blocks.1.attn.hook_z", head=3), unit="sd")
    said = Steer(heads, 2, where=Where(after="assistant", rows=[0])).describe()
    assert json.loads(json.dumps(said)) == said
    assert (said["kind"], said["strength"], said["unit"], said["when"]) == ("add", 2.0, "sd", None)
    assert said["targets"] == [
        {"site": "blocks.1.attn.hook_z", "head": 3, "length": 1.0, "norm": 10.0, "sd": 2.0, "raw": 3.0}
    ]
    assert said["where"]["after"] == "assistant"
    assert Steer(target(), kind="ablate").describe()["unit"] is None
    assert Steer(target(), kind="ablate").strength == 1.0


def test_targets_of_the_older_protocol() -> None:
    class Old:
        site, direction, length, typical_norm, raw_norm = SITE, unit(), 2.0, 7.0, None

    (found,) = targets_of(Old())
    assert (found.site, found.length, found.norm, found.sd, found.raw) == (SITE, 2.0, 7.0, None, None)
    assert targets_of(found) == (found,)
    assert (found.place, target("blocks.1.attn.hook_z", head=3).place) == ("resid_post:0", "z:1.3")


def test_functions_say_what_they_steer(llama: HookedTransformer) -> None:
    seen: list[HookContext] = []
    with llama.hooks({SITE: lambda value, ctx: seen.append(ctx)}):
        llama(TEXT)
    ((name, edit),) = Steer(target(), 0.5).hook_functions(llama)
    value = torch.randn(1, 11, 32, generator=torch.Generator().manual_seed(0))
    assert isinstance(edit, SiteEdit)
    assert (name, edit.targets[0].place, edit.last_condition) == (SITE, "resid_post:0", None)
    torch.testing.assert_close(edit(value, seen[0]), value + 5.0 * unit())


def test_a_vector_of_another_model_is_warned_of_and_a_huge_one_refused(tiny: HookedTransformer) -> None:
    direction = torch.ones(32) / 32**0.5
    foreign = SteeringVector(direction, "blocks.0.hook_resid_post", 5.0, card={"model": "another"})
    with pytest.warns(OtherModelWarning, match="fitted on another"), tiny.intervene(Steer(foreign, 0.1)):
        tiny("hello")
    with pytest.raises(ValueError, match="beyond"):
        Steer(foreign, 1e30)
