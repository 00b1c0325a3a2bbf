"""What is measured on each prompt, against the formula on whole passes; and every path sees the vector."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.dataset import ContrastPair
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.probe import fit_probe
from interp.steering import SteeringVector
from interp.steering.measures import (
    Framing,
    OwnMeasure,
    PairPreference,
    PhraseRate,
    ProbeScore,
    Setup,
    TargetTokens,
    TextScore,
    measure_of,
    measures_of,
)

PROMPTS = ("the first prompt", "another", "a third one here")
PAIRS = tuple(ContrastPair(prompt, " good", " quite bad", group=str(i)) for i, prompt in enumerate(PROMPTS))


@pytest.fixture(scope="module")
def vector() -> SteeringVector:
    direction = torch.randn(32, generator=torch.Generator().manual_seed(0))
    return SteeringVector(direction / direction.norm(), "blocks.0.hook_resid_post", typical_norm=5.0)


def setup_of(model: HookedTransformer, **options: Any) -> Setup:
    return Setup(model, 0, PROMPTS, **options)


def log_probs(model: HookedTransformer, text: str, steer: list[Steer]) -> torch.Tensor:
    with model.intervene(*steer), torch.no_grad():
        return model(text)[0, -1].as_subclass(torch.Tensor).double().log_softmax(-1)


@pytest.mark.parametrize("kind", ["logit", "log_odds", "log_probability", "probability"])
@pytest.mark.parametrize("against", [(), (" ",)])
def test_target_tokens(tiny: HookedTransformer, vector: SteeringVector, kind: str, against: tuple[str, ...]) -> None:
    if against and kind in ("log_probability", "probability"):
        with pytest.raises(ValueError, match="of the tokens alone"):
            TargetTokens(["a", "b"], against, kind)
        return
    measure, steer = TargetTokens(["a", "b"], against, kind), [Steer(vector, 0.7)]
    found = measure.prepare(setup_of(tiny, batch_size=2)).read(steer, ())
    own, other = ([tiny.to_single_token(each) for each in side] for side in (["a", "b"], against))
    for value, prompt in zip(found, PROMPTS, strict=True):
        logp = log_probs(tiny, prompt, steer)
        p, q = float(logp[own].exp().sum()), float(logp[other].exp().sum()) if other else None
        with tiny.intervene(*steer):
            logits = tiny(prompt)[0, -1].double()
        expected = {
            "logit": float(logits[own].mean() - (logits[other].mean() if other else logits.mean())),
            "log_odds": np.log(p / (q if q is not None else 1 - p)),
            "log_probability": np.log(p),
            "probability": p,
        }[kind]
        assert value == pytest.approx(expected, abs=1e-4)


def test_a_preference_is_the_difference_of_two_log_probabilities(
    tiny: HookedTransformer, vector: SteeringVector
) -> None:
    steer = [Steer(vector, 0.7)]
    found = PairPreference(PAIRS).prepare(setup_of(tiny)).read(steer, ())
    for value, pair in zip(found, PAIRS, strict=True):
        sides = []
        for response in (pair.positive, pair.negative):
            before, ids = tiny.tokenizer.encode(pair.prompt), tiny.tokenizer.encode(pair.prompt + response)
            with tiny.intervene(*steer):
                logp = tiny(ids)[0].double().log_softmax(-1)
            sides.append(sum(float(logp[place - 1, ids[place]]) for place in range(len(before), len(ids))))
        assert value == pytest.approx(sides[0] - sides[1], abs=1e-4)


def test_a_probe_reads_the_last_token_of_each_prompt(vector: SteeringVector) -> None:
    model = tiny_model()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 32)), np.arange(40) % 2
    probe = fit_probe(X + y[:, None], y, kind="mass_mean", groups="rows", site="blocks.1.hook_resid_post")
    steer = [Steer(vector, 0.7, where="generated")]
    found = ProbeScore(probe).prepare(setup_of(model, batch_size=2)).read(steer, ())
    for value, prompt in zip(found, PROMPTS, strict=True):
        n = len(model.tokenizer.encode(prompt))
        with model.intervene(*steer):
            _, cache = model.run_with_cache(prompt, "resid_post:1", prompt_len=n)
        assert value == pytest.approx(float(probe.score(cache["resid_post", 1][0, -1])), abs=1e-4)
    early = fit_probe(X + y[:, None], y, kind="mass_mean", groups="rows", site="blocks.0.hook_resid_post")
    with pytest.raises(ValueError, match="cannot see it"):
        ProbeScore(early).prepare(Setup(model, 1, PROMPTS))


def test_written_text_and_own_functions(tiny: HookedTransformer) -> None:
    texts = ["What a FINE day", "nothing", "finest"]
    assert PhraseRate(["fine"]).prepare(setup_of(tiny)).read([], texts).tolist() == [1, 0, 1]
    assert TextScore(len, "length").prepare(setup_of(tiny)).read([], texts).tolist() == [15, 7, 6]
    own = OwnMeasure(lambda model, prompts: [float(model(prompt)[0, -1, 5]) for prompt in prompts])
    assert own.prepare(setup_of(tiny)).read([], ()).shape == (3,)
    for wrong in (lambda model, prompts: [1.0], lambda model, prompts: [float("nan")] * 3, lambda model, prompts: "x"):
        with pytest.raises(ValueError, match="must give"):
            OwnMeasure(wrong, "mine").prepare(setup_of(tiny)).read([], ())


def test_every_path_sees_the_vector(tiny: HookedTransformer, vector: SteeringVector) -> None:
    own = OwnMeasure(lambda model, prompts: [float(model(prompt)[0, -1, 5]) for prompt in prompts])
    for measure in (PairPreference(PAIRS), TargetTokens("a"), own):
        reader = measure.prepare(setup_of(tiny))
        assert (reader.read([Steer(vector, 0.3)], ()) != reader.read([], ())).all()
        assert np.array_equal(reader.read([Steer(vector, 0.0)], ()), reader.read([], ()))


def test_certain_tokens_have_finite_log_odds(tiny: HookedTransformer) -> None:
    reader = TargetTokens("a", kind="log_odds").prepare(setup_of(tiny))
    logits = torch.zeros(3, tiny.cfg.d_vocab)
    logits[:, tiny.to_single_token("a")] = torch.tensor([10.0, 40.0, 90.0])  # p is 1 in fp32 from 25 on
    found = reader._values(logits.log_softmax(-1).double())
    expected = torch.tensor([10.0, 40.0, 90.0]) - np.log(tiny.cfg.d_vocab - 1)
    torch.testing.assert_close(found.float(), expected, atol=1e-3, rtol=1e-4)


def test_a_probe_is_told_from_another_of_its_kind() -> None:
    rng = np.random.default_rng(0)
    probes = [
        fit_probe(
            rng.normal(size=(20, 8)),
            np.arange(20) % 2,
            kind="mass_mean",
            groups="rows",
            site="blocks.1.hook_resid_post",
        )
        for _ in range(2)
    ]
    one, other = (ProbeScore(probe).describe() for probe in probes)
    assert one["hash"] != other["hash"]
    assert one == ProbeScore(probes[0]).describe()


def test_measures_are_written_down_and_made_again() -> None:
    for measure in (PairPreference(PAIRS, "mine"), TargetTokens(["a"], ["b"], "logit", PROMPTS), PhraseRate(["x"])):
        again = measure_of(measure.describe())
        assert again.describe() == measure.describe()
    with pytest.raises(ValueError, match="give it again"):
        measure_of(TextScore(len, "mine").describe())


def test_what_is_no_measure() -> None:
    assert [each.name for each in measures_of(None, PAIRS)] == ["preference"]
    assert [each.name for each in measures_of({"a": len, "b": len}, ())] == ["a", "b"]
    for wrong, message in ((["text"], "is no measure"), ([TargetTokens("a"), TargetTokens("b")], "two measures")):
        with pytest.raises(ValueError, match=message):
            measures_of(wrong, ())
    for make, message in (
        (lambda: TargetTokens("a", kind="odds"), "unknown"),
        (lambda: TargetTokens([]), "at least one token"),
        (lambda: TargetTokens(["a", "a"]), "named twice"),
        (lambda: TargetTokens(["a"], ["a"]), "both sides"),
        (lambda: PairPreference(["x"]), "contrast pairs"),
        (lambda: PhraseRate([" "]), "phrases"),
        (lambda: TextScore("x"), "function"),
        (lambda: ProbeScore("x"), "takes a probe"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_an_instruction_stands_before_the_prompt(tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    framing = Framing(tiny, "Be kind.")
    assert framing("Hello") == "Be kind.\n\nHello"
    assert framing.without("Hello") == "Hello"

    class Chat:
        chat_template = "x"

        def apply_chat(self, messages: list[dict[str, str]], now: object) -> str:
            return "".join(f"<{each['role']}>{each['content']}" for each in messages)

    monkeypatch.setattr(tiny, "tokenizer", Chat())
    chatting = Framing(tiny, "Be kind.", "Write.")
    assert chatting("Hello") == "<system>Be kind.<user>Write.Hello"
    assert chatting.without("Hello") == "<user>Write.Hello"
    with pytest.raises(ValueError, match="what the model is to do"):
        Framing(tiny, " ")
