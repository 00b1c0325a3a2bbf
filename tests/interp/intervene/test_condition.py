"""Conditional steering: each row decides for itself, once for its prompt, and alike by every way through the model."""

import json
from dataclasses import replace

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from interp.intervene.condition import Condition
from interp.intervene.steer import SiteEdit, Steer
from interp.intervene.targets import Target
from interp.model import HookedTransformer
from interp.model.inputs import left_padded
from interp.probe import fit_probe
from interp.tokens import Tokens

READ, WRITE = "blocks.0.hook_resid_post", "blocks.1.hook_resid_pre"
PROMPTS = ["the cat", "hello there", "12:30", "no no no"]


def unit(d: int = 32, seed: int = 0) -> Tensor:
    drawn = torch.randn(d, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm()


READ_ALONG = Target(READ, unit(seed=5), 1.0, 10.0)
PUSH = Target(WRITE, unit(seed=1), 1.0, 10.0)


class Sigmoid:
    """A probe of the least that a condition asks for."""

    threshold, kind, head = 0.5, "logistic", None

    def __init__(self, bias: float = 0.0, site: str | None = READ, head: int | None = None) -> None:
        self.bias, self.site, self.head = bias, site, head

    def score(self, X: Tensor) -> Tensor:
        return X @ unit(X.shape[-1], 5) + self.bias

    def __call__(self, X: Tensor) -> Tensor:
        return torch.sigmoid(self.score(X))


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model()


def ordinary_mean(model: HookedTransformer, prompt: str) -> Tensor:
    """By hand: all tokens of a prompt but the first; none of these is special."""
    return model.run_with_cache(prompt, sites=READ)[1][READ][0, 1:].double().mean(0)


def cosines(model: HookedTransformer) -> Tensor:
    means = torch.stack([ordinary_mean(model, prompt) for prompt in PROMPTS])
    return torch.nn.functional.cosine_similarity(means, unit(seed=5).double()[None], dim=-1)


def between(model: HookedTransformer) -> float:
    """A threshold that two of the four prompts pass."""
    second, third = cosines(model).sort().values[1:3].tolist()
    return (second + third) / 2


def moved(model: HookedTransformer, when: Condition, x: object, **options: object) -> Tensor:
    """Which tokens are steered, [batch pos]."""
    _, clean = model.run_with_cache(x, sites=WRITE, **options)
    with model.intervene(Steer(PUSH, 0.5, when=when)):
        _, steered = model.run_with_cache(x, sites=WRITE, **options)
    return (steered[WRITE] != clean[WRITE]).any(-1)


# ----------------------------------------------------------------------------------------------------------- deciding


def test_rows_decide_independently_in_any_batch_and_padding(model: HookedTransformer) -> None:
    threshold = between(model)
    expected = cosines(model) > threshold
    assert expected.sum() == 2
    batch = model.tokenize(PROMPTS)
    for tokens in (batch, left_padded(batch)):
        for when, holds in (
            (Condition(READ_ALONG, above=threshold), expected),
            (Condition(READ_ALONG, below=threshold), ~expected),
            (Condition(READ_ALONG, above=-1.5, below=threshold), ~expected),
        ):
            assert torch.equal(moved(model, when, tokens), holds[:, None] & tokens.mask)
    alone = [bool(moved(model, Condition(READ_ALONG, above=threshold), prompt).any()) for prompt in PROMPTS]
    assert alone == expected.tolist()


def test_a_probe_is_compared_by_its_probability(model: HookedTransformer) -> None:
    means = torch.stack([ordinary_mean(model, prompt) for prompt in PROMPTS]).float()
    bias = -float((means @ unit(seed=5)).median()) - 1e-3
    expected = Sigmoid(bias)(means) > 0.5
    assert 0 < expected.sum() < 4
    tokens = model.tokenize(PROMPTS)
    for when in (Condition(Sigmoid(bias)), Condition(Sigmoid(bias), above=0.5)):
        assert torch.equal(moved(model, when, tokens), expected[:, None] & tokens.mask)
    assert torch.equal(moved(model, Condition(Sigmoid(bias), below=0.5), tokens), ~expected[:, None] & tokens.mask)


def test_last_and_token_read_single_tokens(model: HookedTransformer) -> None:
    tokens = model.tokenize(PROMPTS)
    _, cache = model.run_with_cache(tokens, sites=READ)
    each = torch.nn.functional.cosine_similarity(cache[READ].double(), unit(seed=5).double(), dim=-1)
    when = Condition(READ_ALONG, above=0.05, over="token")
    assert torch.equal(moved(model, when, tokens), (each > 0.05) & tokens.mask)
    last = each[torch.arange(4), tokens.lengths - 1]
    threshold = float(last.sort().values[1:3].mean())
    assert torch.equal(
        moved(model, Condition(READ_ALONG, above=threshold, over="last"), left_padded(tokens)),
        (last > threshold)[:, None] & left_padded(tokens).mask,
    )


def test_only_the_prompt_decides_where_the_call_names_it(model: HookedTransformer) -> None:
    text, threshold = PROMPTS[0] + " and what follows", between(model)
    by_prompt = bool(cosines(model)[0] > threshold)
    when = Condition(READ_ALONG, above=threshold)
    assert bool(moved(model, when, text, prompt_len=len(PROMPTS[0])).all()) is by_prompt
    whole = torch.nn.functional.cosine_similarity(ordinary_mean(model, text), unit(seed=5).double(), dim=0)
    assert bool(moved(model, when, text).all()) is bool(whole > threshold)


def test_special_tokens_are_left_out_of_the_mean(model: HookedTransformer) -> None:
    ids = [*model.tokenizer.encode("the cat"), 256, *model.tokenizer.encode("sat")]  # type: ignore[union-attr]
    _, cache = model.run_with_cache(ids, sites=READ)
    kept = [index for index in range(1, len(ids)) if ids[index] != 256]
    value = cache[READ][0].double()
    figure, wrong = (
        float(torch.nn.functional.cosine_similarity(value[rows].mean(0), unit(seed=5).double(), dim=0))
        for rows in (kept, list(range(1, len(ids))))
    )
    assert abs(figure - wrong) > 1e-3
    threshold = (figure + wrong) / 2
    assert bool(moved(model, Condition(READ_ALONG, above=threshold), ids).all()) is (figure > threshold)


def test_a_head_is_read_by_its_part_of_z(model: HookedTransformer) -> None:
    z = "blocks.0.attn.hook_z"
    _, cache = model.run_with_cache(PROMPTS[0], sites=z)
    mean = cache[z][0, 1:, 2].double().mean(0)
    figure = float(torch.nn.functional.cosine_similarity(mean, unit(8, 5).double(), dim=0))
    along = Target(z, unit(8, 5), 1.0, 1.0, head=2)
    assert bool(moved(model, Condition(along, above=figure - 0.01), PROMPTS[0]).all())
    assert not bool(moved(model, Condition(along, above=figure + 0.01), PROMPTS[0]).any())
    probability = float(Sigmoid()(mean.float()))
    assert bool(moved(model, Condition(Sigmoid(site=z, head=2), above=probability - 0.01), PROMPTS[0]).all())


# ------------------------------------------------------------------------------------ the same by every way through


@pytest.mark.parametrize("over", ["prompt", "last", "token"])
@pytest.mark.parametrize("where", ["all", "generated"])
def test_generated_equals_teacher_forced(model: HookedTransformer, over: str, where: str) -> None:
    steer = Steer(PUSH, 1.5, where=where, when=Condition(READ_ALONG, above=between(model), over=over))
    with model.intervene(steer):
        out = model.generate(PROMPTS, 3, stop_at_eos=False)
        width = max(len(row.all_tokens) for row in out.rows)
        ids = torch.tensor([row.all_tokens + [0] * (width - len(row.all_tokens)) for row in out.rows])
        lengths = [len(row.prompt_tokens) for row in out.rows]
        real = torch.arange(width) < torch.tensor(lengths)[:, None] + 3
        whole = model(Tokens(ids, real), prompt_len=lengths).log_softmax(-1)
    for row, continuation in enumerate(out.rows):
        n = lengths[row]
        forced = whole[row, n - 1 : n + 2].gather(1, torch.tensor(continuation.tokens)[:, None])[:, 0]
        torch.testing.assert_close(forced, torch.tensor(continuation.logprobs), atol=2e-4, rtol=1e-4)


def test_decisions_are_remembered_for_each_continuation_and_made_anew(model: HookedTransformer) -> None:
    threshold = between(model)
    expected = (cosines(model) > threshold).tolist()
    steer = Steer(PUSH, 2.0, when=Condition(READ_ALONG, above=threshold))
    plain, always = [], []
    for kept, also in ((plain, []), (always, [Steer(PUSH, 2.0)])):
        with model.intervene(*also):
            for prompt in PROMPTS:
                kept.append(model.generate(prompt, 3, stop_at_eos=False, n_samples=2, temperature=1.0).logprobs)
    assert all(a != b for a, b in zip(plain, always))
    with model.intervene(steer):
        together = model.generate(PROMPTS, 3, stop_at_eos=False, n_samples=2, temperature=1.0).logprobs
        single = model.generate(PROMPTS[0], 3, stop_at_eos=False, n_samples=2, temperature=1.0).logprobs
    wanted = [yes if holds else no for holds, yes, no in zip(expected, always, plain)]
    for found, right in zip([*together, single], [*wanted, wanted[0]]):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(right), atol=2e-4, rtol=1e-4)


def test_two_streams_that_take_turns_keep_their_own_decisions(model: HookedTransformer) -> None:
    steer = Steer(PUSH, 2.0, when=Condition(READ_ALONG, above=between(model)))
    pair = PROMPTS[: 2 if len(set((cosines(model)[:2] > between(model)).tolist())) == 2 else 4]
    with model.intervene(steer):
        apart = [model.generate(prompt, 3, stop_at_eos=False).logprobs for prompt in pair]
        streams = [model.generate_stream(prompt, 3, stop_at_eos=False) for prompt in pair]
        for _ in range(3):
            for stream in streams:
                next(stream, None)
                model("a pass between")
        assert [stream.finish().logprobs for stream in streams] == apart


def test_the_function_tells_what_was_decided(model: HookedTransformer) -> None:
    threshold = between(model)
    steer = Steer(PUSH, 0.5, site=["resid_pre:1", "resid_post:1"], when=Condition(READ_ALONG, above=threshold))
    functions = steer.hook_functions(model)
    assert [name for name, _ in functions] == [READ, WRITE, "blocks.1.hook_resid_post"]
    with model.hooks(dict(functions)):
        model(PROMPTS)
    decided = (cosines(model) > threshold)[:, None].expand(4, 11)
    for _, function in functions[1:]:
        assert isinstance(function, SiteEdit)
        assert function.last_condition is not None
        assert torch.equal(function.last_condition, decided)


def test_no_row_that_holds_is_no_error_and_changes_nothing(model: HookedTransformer) -> None:
    plain = model(PROMPTS)
    with model.intervene(Steer(PUSH, 1.0, when=Condition(READ_ALONG, above=0.999))):
        assert torch.equal(model(PROMPTS), plain)


# ------------------------------------------------------------------------------------------------------------- errors


class Two:
    def targets(self) -> list[Target]:
        return [READ_ALONG, PUSH]


class OfTexts(Sigmoid):
    reads = "tokens"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Condition(READ_ALONG), "needs a threshold"),
        (lambda: Condition(READ_ALONG, above=float("nan")), "finite number"),
        (lambda: Condition(READ_ALONG, above=0.5, below=0.5), "nothing is above"),
        (lambda: Condition(READ_ALONG, above=0.5, over="row"), "prompt, last, token"),
        (lambda: Condition(3, above=0.5), "reads a probe or a steering vector"),
        (lambda: Condition(Two(), above=0.5), "reads one place"),
        (lambda: Condition(Sigmoid(site=None)), "does not know the site"),
        (lambda: Condition(OfTexts()), "whole texts"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_what_cannot_be_read_is_refused(model: HookedTransformer) -> None:
    def applied(when: Condition, x: object = "hello", push: Target = PUSH, **options: object) -> None:
        with model.intervene(Steer(push, 0.5, when=when)):
            model(x, **options)

    early = Target("blocks.0.hook_resid_mid", unit(), 1.0, 10.0)
    with pytest.raises(ValueError, match="computed after blocks"):
        applied(Condition(READ_ALONG, above=0.1), push=early)
    with pytest.raises(ValueError, match="which this pass did not compute"):
        applied(Condition(READ_ALONG, above=0.1), torch.ones(1, 3, 32), start_at_layer=1)
    with pytest.raises(ValueError, match="over='last'"):
        applied(Condition(READ_ALONG, above=0.1), "h")
    with pytest.raises(ValueError, match="8 dimensions"):
        applied(Condition(Target(READ, unit(8), 1.0, 1.0), above=0.1))
    with pytest.raises(ValueError, match="reads head 1"):
        applied(Condition(Sigmoid(head=1)))
    with pytest.raises(ValueError, match="single tokens"):
        applied(Condition(Sigmoid(site="pattern:0")))


def test_describe_is_json() -> None:
    said = Steer(PUSH, 0.5, when=Condition(Sigmoid(), below=0.3, over="last")).describe()
    assert json.loads(json.dumps(said)) == said
    assert said["when"] == {
        "reads": "probability", "kind": "logistic", "site": READ, "head": None, "above": None, "below": 0.3, "over": "last",
        "hash": None,
    }  # fmt: skip
    assert Condition(READ_ALONG, above=0.1).describe()["reads"] == "cosine"


def test_describe_tells_what_is_read() -> None:
    def hash_of(reads: object) -> str | None:
        return Condition(reads, above=0.1).describe()["hash"]

    assert hash_of(READ_ALONG) == hash_of(replace(READ_ALONG, direction=READ_ALONG.direction.clone()))
    assert hash_of(READ_ALONG) != hash_of(replace(READ_ALONG, direction=unit(seed=6)))
    X, y = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)), [0, 1] * 20
    for kind in ("logistic", "mlp"):
        probe = fit_probe(X, y, kind, C=0.1, site=READ)
        assert hash_of(probe) == hash_of(replace(probe, card={}))
        assert (
            len(
                {hash_of(probe), hash_of(replace(probe, bias=probe.bias + 1)), hash_of(replace(probe, slope=2.0)), None}
            )
            == 4
        )
    other = {name: value + 1 for name, value in probe.tensors.items()}
    assert hash_of(probe) != hash_of(replace(probe, tensors=other))


@pytest.mark.slow
def test_conditional_steering_of_the_real_model(smollm: HookedTransformer) -> None:
    """A cosine that tells questions about animals from sums steers the ones and not the others, in one batch."""
    prompts = ["My dog and my cat are animals that", "12 + 30 = 42 and 7 + 8 ="]
    site, later = "blocks.10.hook_resid_post", "blocks.14.hook_resid_post"
    tokens = smollm.tokenize(prompts)
    _, cache = smollm.run_with_cache(tokens, sites=[site, later])
    means = [cache[site][row, 1 : int(n)].double().mean(0) for row, n in enumerate(tokens.lengths)]
    along = (means[0] - means[1]).float()
    when = Condition(Target(site, along / along.norm(), 1.0, 100.0), above=0.0)
    held = when.holds(torch.stack(means))
    push = Target(later, unit(576), 1.0, float(cache[later][0, 1:].norm(dim=-1).median()))
    plain = smollm.generate(prompts, 8, stop_at_eos=False)
    with smollm.intervene(Steer(push, 0.6, when=when)):
        steered = smollm.generate(prompts, 8, stop_at_eos=False)
    for row in range(2):
        assert (steered.logprobs[row] != pytest.approx(plain.logprobs[row], abs=1e-3)) is bool(held[row])
    assert held.tolist() == [True, False]
