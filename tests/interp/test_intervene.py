"""Interventions: what is changed, where, and that cached and teacher-forced passes see the same."""

import pytest
import torch
from torch import Tensor

from interp.intervene import Ablate, Patch, Steer
from interp.model import HookedTransformer
from interp.steering import SteeringVector

TEXT = "hello there"


@pytest.fixture
def vector() -> SteeringVector:
    direction = torch.randn(32, generator=torch.Generator().manual_seed(0))
    return SteeringVector(direction / direction.norm(), "blocks.0.hook_resid_post", typical_norm=10.0, raw_norm=3.0)


def test_strength_zero_and_leaving_are_bit_identical(tiny: HookedTransformer, vector: SteeringVector) -> None:
    plain = tiny(TEXT)
    with tiny.intervene(Steer(vector, 0.0)):
        assert torch.equal(tiny(TEXT), plain)
    with tiny.intervene(Steer(vector, 0.5)):
        assert not torch.equal(tiny(TEXT), plain)
    assert torch.equal(tiny(TEXT), plain)


def test_steer_adds_strength_times_length_times_typical_norm(tiny: HookedTransformer, vector: SteeringVector) -> None:
    _, clean = tiny.run_with_cache(TEXT, sites="resid_post:0")
    for steer, size in (
        (Steer(vector, 0.3), 3.0),
        (Steer(0.5 * vector, 0.3), 1.5),
        (Steer(vector, 2, raw=True), 6.0),
        (Steer(-vector, 0.3), -3.0),
    ):
        with tiny.intervene(steer):
            _, steered = tiny.run_with_cache(TEXT, sites="resid_post:0")
        torch.testing.assert_close(
            steered["resid_post", 0] - clean["resid_post", 0],
            (size * vector.direction).expand(1, 11, 32),
            atol=1e-4,
            rtol=1e-4,
        )


def test_pads_are_not_steered(tiny: HookedTransformer, vector: SteeringVector) -> None:
    batch = tiny.tokenizer.tokenize(["hi", TEXT])
    _, clean = tiny.run_with_cache(batch, sites="resid_post:0")
    with tiny.intervene(Steer(vector, 0.3)):
        _, steered = tiny.run_with_cache(batch, sites="resid_post:0")
    moved = (steered["resid_post", 0] - clean["resid_post", 0]).norm(dim=-1) > 1
    assert torch.equal(moved, batch.mask)


@pytest.mark.parametrize("where", ["all", "prompt", "generated"])
def test_steered_generation_equals_the_teacher_forced_pass(
    tiny: HookedTransformer, vector: SteeringVector, where: str
) -> None:
    prompt = tiny.tokenizer.encode(TEXT)
    plain = tiny.generate(prompt, 6, stop_at_eos=False)
    with tiny.intervene(Steer(vector, 3.0, where=where)):
        out = tiny.generate(prompt, 6, stop_at_eos=False)
        logits = tiny(prompt + out.tokens, prompt_len=len(prompt))
    chosen = logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    assert out.tokens == chosen
    assert out.tokens != plain.tokens


def test_the_first_new_token_is_steered(tiny: HookedTransformer, vector: SteeringVector) -> None:
    prompt = tiny.tokenizer.encode(TEXT)
    for where, first, moved in (("generated", True, [10]), ("prompt", True, list(range(11)))):
        seen: list[Tensor] = []
        with (
            tiny.intervene(Steer(vector, 3.0, where=where)),
            tiny.hooks({"resid_pre:1": lambda value, ctx, seen=seen: seen.append(value)}),
        ):
            steered = tiny(prompt, prompt_len=11)
        _, clean = tiny.run_with_cache(prompt, sites="resid_pre:1")
        assert (seen[0] - clean["resid_pre", 1]).norm(dim=-1)[0].gt(1).nonzero()[:, 0].tolist() == moved
        assert torch.equal(steered[0, -1], tiny(prompt)[0, -1]) is not first


def test_where_without_a_prompt_is_an_error(tiny: HookedTransformer, vector: SteeringVector) -> None:
    with pytest.raises(ValueError, match="prompt_len"), tiny.intervene(Steer(vector, 1.0, where="generated")):
        tiny(TEXT)


def test_positions_and_phase(tiny: HookedTransformer, vector: SteeringVector) -> None:
    _, clean = tiny.run_with_cache(TEXT, sites="resid_post:0")
    with tiny.intervene(Steer(vector, 1.0, positions=[2, 5])):
        _, steered = tiny.run_with_cache(TEXT, sites="resid_post:0")
    moved = (steered["resid_post", 0] - clean["resid_post", 0]).norm(dim=-1)[0] > 1
    assert moved.nonzero()[:, 0].tolist() == [2, 5]
    with tiny.intervene(Steer(vector, 1.0, phase="decode")):
        assert torch.equal(
            tiny(TEXT)[0, -1].argmax()[None], torch.tensor(tiny.generate(TEXT, 2, stop_at_eos=False).tokens[:1])
        )
    with pytest.raises(ValueError, match="found no token"), tiny.intervene(Steer(vector, 1.0, phase="decode")):
        tiny(TEXT)
    with pytest.raises(ValueError, match="phase"):
        Steer(vector, 1.0, phase="decoding")
    with pytest.raises(ValueError, match="where"):
        Steer(vector, 1.0, where="answer")
    with pytest.raises(ValueError, match="whole numbers"):
        Steer(vector, 1.0, positions=[True])


def test_two_interventions_compose_in_order(tiny: HookedTransformer, vector: SteeringVector) -> None:
    steer, zero = Steer(vector, 1.0), Ablate(sites="resid_post:0", kind="zero")
    with tiny.intervene(zero, steer):
        _, after = tiny.run_with_cache(TEXT, sites="resid_post:0")
    with tiny.intervene(steer, zero):
        _, before = tiny.run_with_cache(TEXT, sites="resid_post:0")
    torch.testing.assert_close(after["resid_post", 0][0, 3], 10 * vector.direction)
    assert not before["resid_post", 0].any()


def test_zero_ablating_a_head_removes_its_result(tiny: HookedTransformer) -> None:
    _, clean = tiny.run_with_cache(TEXT, sites=["result:1", "attn_out:1"])
    with tiny.intervene(Ablate(heads=[(1, 2)], kind="zero")):
        _, cut = tiny.run_with_cache(TEXT, sites="attn_out:1")
    expected = clean["attn_out", 1] - clean["result:1.2"]
    torch.testing.assert_close(cut["attn_out", 1], expected, atol=1e-5, rtol=1e-4)


def test_mean_ablation_by_texts_and_by_mapping(tiny: HookedTransformer) -> None:
    texts = ["some words here", "other text"]
    _, cache = tiny.run_with_cache(texts, sites="z:1")
    rows = torch.cat([cache["z", 1][row, 1 : int(n)] for row, n in enumerate(cache.tokens.lengths)]).flatten(1)
    rows = rows[rows.norm(dim=-1) <= 10 * rows.norm(dim=-1).median()]
    mean = rows.mean(0)
    for reference in (texts, {"blocks.1.attn.hook_z": mean}):
        with tiny.intervene(Ablate(heads=[(1, 2)], reference=reference)):
            _, cut = tiny.run_with_cache(TEXT, sites="z:1")
        torch.testing.assert_close(cut["z:1.2"][0], mean.view(4, 8)[2].expand(11, 8))
        assert not torch.allclose(cut["z:1.1"][0], mean.view(4, 8)[1].expand(11, 8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ablate(heads=[(0, 0)]), "reference"),
        (lambda: Ablate(kind="zero"), "nothing to ablate"),
        (lambda: Ablate(heads=[(0, 0)], kind="median"), "zero, mean"),
    ],
)
def test_incomplete_ablations(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_heads_that_do_not_exist(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="layers 0 to 1"), tiny.intervene(Ablate(heads=[(5, 0)], kind="zero")):
        pass
    with pytest.raises(ValueError, match="components 0 to 3"), tiny.intervene(Ablate(heads=[(0, 9)], kind="zero")):
        tiny(TEXT)


def test_patching_identities(tiny: HookedTransformer) -> None:
    clean, cache = tiny.run_with_cache("hello there")
    corrupted = tiny("hellp there")
    with tiny.intervene(Patch("resid_post:0", cache)):
        assert torch.equal(tiny("hello there"), clean)
        torch.testing.assert_close(tiny("hellp there").as_subclass(Tensor), clean.as_subclass(Tensor))
    with tiny.intervene(Patch("z:0.1", cache), Patch("pattern:1.0", cache)):
        assert torch.equal(tiny("hello there"), clean)
        mixed = tiny("hellp there")
    assert not torch.equal(mixed, corrupted)
    with pytest.raises(ValueError, match="same number of tokens"), tiny.intervene(Patch("resid_post:0", cache)):
        tiny("hi")


def test_interventions_that_reach_no_token_are_errors(tiny: HookedTransformer) -> None:
    """An effect of zero and an intervention that never acted look the same."""
    text = "hello there"
    _, cache = tiny.run_with_cache(text, "resid_post:1")
    for idle in (
        Patch("resid_post:1", cache, positions=[99]),
        Ablate(heads=[(0, 0)], kind="zero", positions=[99]),
        Ablate(heads=[(0, 0)], kind="zero", phase="decode"),
    ):
        with pytest.raises(ValueError, match="found no token to act on"), tiny.intervene(idle):
            tiny(text)
    with tiny.intervene(Ablate(heads=[(0, 0)], kind="zero", phase="decode")):
        tiny.generate(text, 3, stop_at_eos=False)


def test_what_is_no_intervention_is_refused(tiny: HookedTransformer) -> None:
    with pytest.raises(ValueError, match="got int"), tiny.intervene(3):
        pass
    with pytest.raises(ValueError, match="takes a steering vector"):
        Steer(torch.ones(32), site="resid_post:1")
    with pytest.raises(ValueError, match="pairs in a list"):
        Ablate(heads=(0, 1), kind="zero")
