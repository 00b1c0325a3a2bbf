"""The experiment: its zero row, its controls, its tables against brute force, what it refuses, and that it can be run again."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny_model

from interp.dataset import ContrastPair, Example, Question
from interp.intervene import Condition, Steer, Target, Where
from interp.model import HookedTransformer
from interp.steering import SteeringVector, SteeringVectors, load_steering_report
from interp.steering.experiment import steering_experiment, steering_experiment_again
from interp.steering.fit import steering_vector, steering_vectors
from interp.steering.measures import OwnMeasure, PairPreference, PhraseRate, TargetTokens
from interp.steering.plan import Setting, SettingResult, experiment_plan, run_setting
from interp.steering.randoms import random_directions, typical_at
from interp.steering.seen import SharedGroupsWarning

PAIRS = [ContrastPair(f"number {i} is", f" good{i}", f" bad{i}", group=str(i)) for i in range(8)]
TEXTS = ["some other text", "and one more of them"]
QUESTIONS = [Question("one and one is", (" two", " three"), 0), Question("the sky is", (" red", " blue", " so"), 1)]
QUICK: dict[str, Any] = {"pairs": PAIRS[5:], "texts": TEXTS, "n_random": 3, "max_new_tokens": 5}


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    return tiny_model()


@pytest.fixture(scope="module")
def vector(model: HookedTransformer) -> SteeringVector:
    return steering_vector(PAIRS[:5], model=model, site="resid_post:0")


def mean_loss(model: HookedTransformer, steer: list[Steer]) -> float:
    with model.intervene(*steer), torch.no_grad():
        return float(model.loss(TEXTS))


def test_the_tables_are_those_of_whole_passes(model: HookedTransformer, vector: SteeringVector) -> None:
    report = steering_experiment(model, vector, ["hello", "the cat"], strengths=[0.5, 2], choices=QUESTIONS, **QUICK)
    own = report.effects[report.effects["direction"] == "vector"].set_index("strength")
    assert list(own.index) == [0.0, 0.5, 2.0]
    zero = own.loc[0.0, ["effect", "low", "high", "loss_rise", "kl_last", "kl_mean"]].astype(float)
    assert (zero == 0).all()
    for strength in (0.5, 2.0):
        steer = [Steer(vector, strength)]
        assert own.loc[strength, "loss_rise"] == pytest.approx(mean_loss(model, steer) - mean_loss(model, []), abs=1e-5)
        kls = []
        for text in TEXTS:
            with torch.no_grad():
                plain = model(text)[0].double().log_softmax(-1)
                with model.intervene(*steer):
                    steered = model(text)[0].double().log_softmax(-1)
            kls.append((plain.exp() * (plain - steered)).sum(-1))
        assert own.loc[strength, "kl_mean"] == pytest.approx(float(torch.cat(kls).mean()), abs=1e-5)
        assert own.loc[strength, "kl_last"] == pytest.approx(
            float(torch.stack([kl[-1] for kl in kls]).mean()), abs=1e-5
        )
        assert own.loc[strength, "kl_mean"] > 0
        values = report.values.query("direction == 'vector'").pivot(index="item", columns="strength", values="value")
        assert own.loc[strength, "effect"] == pytest.approx(float((values[strength] - values[0.0]).mean()))
    damage = report.damage.set_index(["direction", "strength"])
    for strength in (0.0, 2.0):
        steer = [Steer(vector, strength)]
        right = []
        for question in QUESTIONS:
            scores = []
            for option in question.options:
                before, ids = model.tokenizer.encode(question.prompt), model.tokenizer.encode(question.prompt + option)
                with model.intervene(*steer), torch.no_grad():
                    logp = model(ids)[0].double().log_softmax(-1)
                scores.append(sum(float(logp[p - 1, ids[p]]) for p in range(len(before), len(ids))))
            right.append(int(np.argmax(scores)) == question.answer)
        assert damage.loc[("vector", strength), "accuracy"] == np.mean(right)


def test_controls_stand_at_every_strength(model: HookedTransformer, vector: SteeringVector) -> None:
    report = steering_experiment(model, vector, strengths=[-0.5, 0.5], **QUICK)
    randoms = report.effects[report.effects["kind"].isin(["isotropic", "covariance"])]
    assert sorted(randoms.groupby("strength").size().items()) == [(-0.5, 3), (0.5, 3)]
    assert set(report.band["strength"]) == {-0.5, 0.5}
    assert (report.band["n"] == 3).all()
    few = steering_experiment(model, vector, strengths=[-0.5, 0.5], random_strengths="largest", **QUICK)
    assert set(few.band["strength"]) == {0.5}
    pd.testing.assert_frame_equal(
        few.effects.query("strength == 0.5").reset_index(drop=True),
        report.effects.query("strength == 0.5").reset_index(drop=True),
    )


def test_random_directions(model: HookedTransformer, vector: SteeringVector) -> None:
    both = steering_vectors(PAIRS, model=model, sites="resid_post:*")
    for each in (vector, both):
        found = random_directions(model, each, [pair.prompt + pair.positive for pair in PAIRS], 6, seed=0)
        assert [kind for kind, _ in found] == ["isotropic", "covariance"] * 3
        for _, direction in found:
            for own, random in zip(each.targets(), direction.targets(), strict=True):
                assert abs(float(own.direction @ random.direction)) < 1e-5
                assert (random.norm, random.length, random.site) == (own.norm, own.length, own.site)
                assert float(random.direction.norm()) == pytest.approx(1, abs=1e-5)


def test_pushes_at_several_layers_add_up_as_the_vectors_do() -> None:
    """A control of several layers that forgot itself at each would push half as far."""
    model = tiny_model(n_layers=6)
    one = torch.randn(32, generator=torch.Generator().manual_seed(1))
    one /= one.norm()
    both = SteeringVectors(tuple(SteeringVector(one, f"blocks.{layer}.hook_resid_post", 1.0) for layer in range(6)))
    texts = [pair.prompt + pair.positive for pair in PAIRS]

    def shift(direction: Any) -> float:
        with model.intervene(Steer(direction, 50.0)):
            _, moved = model.run_with_cache(TEXTS, "resid_post:5")
        _, plain = model.run_with_cache(TEXTS, "resid_post:5")
        return float((moved["resid_post", 5] - plain["resid_post", 5])[plain.tokens.mask].norm(dim=-1).mean())

    own = shift(both)
    for _, direction in random_directions(model, both, texts, 6, seed=0):
        assert shift(direction) == pytest.approx(own, rel=0.2)


def test_pairs_without_prompts_have_controls(model: HookedTransformer, vector: SteeringVector) -> None:
    bare = [ContrastPair("", f"all good{i}", f"all bad{i}") for i in range(3)]
    report = steering_experiment(model, vector, pairs=bare, strengths=[0.5], n_random=4)
    assert report.band["n"].iloc[0] == 4
    with pytest.raises(ValueError, match="have none"):
        steering_experiment(model, vector, pairs=bare, strengths=[0.5], n_random=0, instruction="Go.")


def test_text_without_a_marker_is_steered_whole(model: HookedTransformer, vector: SteeringVector) -> None:
    pairs = [ContrastPair(f"say {i}: >", f" good{i}", f" bad{i}") for i in range(3)]
    options = {"pairs": pairs, "texts": TEXTS, "choices": QUESTIONS, "strengths": [1.0], "n_random": 0}
    report = steering_experiment(model, vector, **options, where=Where(after=">"))
    whole = steering_experiment(model, vector, **options)
    damage = [each.damage.drop(columns=["direction", "kind"]) for each in (report, whole)]
    pd.testing.assert_frame_equal(*damage)
    assert damage[0]["kl_mean"].iloc[-1] > 0
    with pytest.raises(ValueError, match="sorted into batches"):
        steering_experiment(model, vector, **options, where=Where(rows=[0]))


def test_directions_that_are_no_steering_vector_are_kept_and_told_apart(
    model: HookedTransformer, vector: SteeringVector, tmp_path: Path
) -> None:
    here, there = (Target(f"blocks.{layer}.hook_resid_post", vector.direction, 1.0, 2.0) for layer in (0, 1))
    options = {"pairs": PAIRS[5:], "strengths": [0.5], "n_random": 2}
    plans = [experiment_plan(model, each, **options) for each in (here, there, [here, there])]
    assert len({plan.key(plan.settings[1]) for plan in plans}) == 3
    report = steering_experiment(model, [here, there], **options)
    again = steering_experiment_again(report.save(tmp_path / "r.json"), model)
    pd.testing.assert_frame_equal(again.effects, report.effects)


@pytest.mark.parametrize("where", [Where(positions=[-1]), Where("generated", positions=[-1])])
def test_damage_of_a_place_at_the_prompts_end_is_that_after_it(
    model: HookedTransformer, vector: SteeringVector, where: Where
) -> None:
    """The last token of a text predicts nothing: the first half stands for the prompt."""
    report = steering_experiment(model, vector, pairs=PAIRS[5:], texts=TEXTS, strengths=[2.0], where=where, n_random=0)
    rises, kls = [], []
    for text in TEXTS:
        ids = model.tokenizer.encode(text)
        half = len(ids) // 2
        with torch.no_grad():
            plain = model(ids, prompt_len=half)[0].double().log_softmax(-1)
            with model.intervene(Steer(vector, 2.0, where=where)):
                steered = model(ids, prompt_len=half)[0].double().log_softmax(-1)
        targets = torch.tensor(ids[half:])[:, None]
        rises.append((plain[half - 1 : -1].gather(1, targets) - steered[half - 1 : -1].gather(1, targets))[:, 0])
        kls.append((plain.exp() * (plain - steered)).sum(-1)[half - 1 :])
    own = report.of_vector("preference").iloc[-1]
    assert own["loss_rise"] == pytest.approx(float(torch.cat(rises).mean()), abs=1e-5)
    assert own["kl_mean"] == pytest.approx(float(torch.cat(kls).mean()), abs=1e-5)


def test_what_a_reader_must_know_stands_in_the_summary(model: HookedTransformer, vector: SteeringVector) -> None:
    never = Condition(vector, above=0.999, over="token")
    report = steering_experiment(model, vector, ["hello"], strengths=[1.0], texts=TEXTS, when=never, n_random=0)
    assert "held on none of the damage texts" in report.summary()
    with pytest.raises(ValueError, match="another one"):
        steering_experiment_again(report, model, when=Condition(-vector, above=0.999, over="token"))


def test_the_same_prompt_twice_is_not_twice_the_evidence(model: HookedTransformer, vector: SteeringVector) -> None:
    thrice = steering_experiment(
        model,
        vector,
        ["hello"] * 3,
        strengths=[1.0],
        measure=TargetTokens("a"),
        texts=TEXTS,
        n_random=2,
        max_new_tokens=0,
    )
    assert np.isnan(thrice.of_vector("target tokens")["low"].iloc[-1])


def test_too_few_tokens_have_no_covariance(model: HookedTransformer, vector: SteeringVector) -> None:
    with pytest.raises(ValueError, match="give texts"):
        steering_experiment(model, vector, ["abc"], strengths=[1.0], measure=TargetTokens("a"), max_new_tokens=0)


def test_what_was_fitted_on_is_known_by_other_ways_too(model: HookedTransformer, vector: SteeringVector) -> None:
    seen = PairPreference(tuple(PAIRS[:2]), "mine")
    with pytest.raises(ValueError, match="was used to fit"):
        steering_experiment(model, vector, measure=seen, n_random=0)
    texts = [
        Example(pair.prompt + side, label) for pair in PAIRS for side, label in ((pair.positive, 1), (pair.negative, 0))
    ]
    labelled = steering_vector(texts, model=model, site="resid_post:0", groups="rows")
    with pytest.raises(ValueError, match="was used to fit"):
        steering_experiment(model, labelled, pairs=PAIRS[5:], n_random=0)


def test_ablation_goes_the_other_way(model: HookedTransformer, vector: SteeringVector) -> None:
    report = steering_experiment(model, vector, pairs=PAIRS[5:], kind="ablate", site="writes", n_random=0)
    own = report.of_vector("preference").iloc[-1]
    values = report.values.pivot(index="item", columns="strength", values="value")
    assert own["strength"] == 1.0
    assert own["wrong_way"] == pytest.approx(float((values[1.0] > values[0.0]).mean()))
    assert report.card["unit"] == "share"


def test_generation_keeps_to_the_batch_size(model: HookedTransformer, vector: SteeringVector) -> None:
    prompts = ["one", "two", "one", "three", "four"]
    options = {"strengths": [0.5], "max_new_tokens": 4, "temperature": 1.0, "seed": 2}
    seen: list[int] = []
    with model.hooks({"resid_post:0": lambda value, ctx: seen.append(len(value))}):
        small = steering_experiment(model, vector, prompts, **options, batch_size=2)
    assert max(seen) == 2
    pd.testing.assert_frame_equal(small.generations, steering_experiment(model, vector, prompts, **options).generations)


def test_a_measure_of_the_same_kind_as_the_pairs_comes_back(model: HookedTransformer, vector: SteeringVector) -> None:
    other = PairPreference(tuple(PAIRS[5:6]), "other")
    report = steering_experiment(model, vector, pairs=PAIRS[6:], measure=other, strengths=[0.5], n_random=0)
    assert steering_experiment_again(report, model).measures == report.measures == ["preference", "other"]


def test_covariance_directions_lie_where_activations_vary(model: HookedTransformer, vector: SteeringVector) -> None:
    texts = [pair.prompt + side for pair in PAIRS for side in (pair.positive, pair.negative)]
    rows = typical_at(model, vector.targets(), texts)[0]
    spread: dict[str, list[float]] = {"isotropic": [], "covariance": []}
    for kind, direction in random_directions(model, vector, texts, 40, seed=0):
        spread[kind].append(float((rows @ direction.targets()[0].direction.double()).std()))
    assert np.mean(spread["covariance"]) > 1.2 * np.mean(spread["isotropic"])


def test_text_stands_side_by_side(model: HookedTransformer, vector: SteeringVector) -> None:
    prompts = ["hello", "the cat"]
    report = steering_experiment(model, vector, prompts, strengths=[3.0], max_new_tokens=6, instruction="Be kind.")
    plain = report.generations.query("direction == 'vector' and strength == 0")
    assert list(plain["text"]) == [model.generate(prompt, 6).text for prompt in prompts]
    assert plain["first_difference"].isna().all()
    with model.intervene(Steer(vector, 3.0)):
        steered = [model.generate(prompt, 6) for prompt in prompts]
    now = report.generations.query("direction == 'vector' and strength == 3")
    assert list(now["text"]) == [out.text for out in steered]
    for row, before, out in zip(now.to_dict("records"), prompts, steered, strict=True):
        tokens = model.generate(before, 6).tokens
        differs = [i for i, (a, b) in enumerate(zip(tokens, out.tokens)) if a != b]
        assert row["first_difference"] == differs[0]
        assert row["same"] + row["differs"] == row["text"]
    told = report.generations.query("direction == 'instruction'")
    assert list(told["text"]) == [model.generate(f"Be kind.\n\n{prompt}", 6).text for prompt in prompts]


def test_the_same_random_numbers_at_every_strength(model: HookedTransformer, vector: SteeringVector) -> None:
    options = {"temperature": 1.0, "max_new_tokens": 8, "seed": 3}
    report = steering_experiment(model, vector, ["hello"], strengths=[1e-4], **options)
    plain, steered = report.generations["text"]
    assert plain == steered == model.generate("hello", 8, temperature=1.0, seed=3).text


def test_an_instruction_stands_in_the_vectors_place(model: HookedTransformer, vector: SteeringVector) -> None:
    report = steering_experiment(model, vector, strengths=[0.5], instruction="Be kind.", **QUICK)
    row = report.of_instruction("preference").iloc[0]
    assert np.isnan(row["loss_rise"])
    told = [ContrastPair(f"Be kind.\n\n{pair.prompt}", pair.positive, pair.negative) for pair in PAIRS[5:]]
    values = [
        steering_experiment(model, vector, pairs=pairs, strengths=[1.0], n_random=0)
        .values.query("strength == 0")["value"]
        .mean()
        for pairs in (told, [ContrastPair(p.prompt, p.positive, p.negative) for p in PAIRS[5:]])
    ]
    assert row["effect"] == pytest.approx(values[0] - values[1], abs=1e-5)


@pytest.mark.parametrize("where", ["prompt", "generated", Where(positions=[-1])])
def test_places_mean_the_same_on_every_path(model: HookedTransformer, vector: SteeringVector, where: Any) -> None:
    report = steering_experiment(
        model, vector, ["hello there"], strengths=[2.0], where=where, measure=TargetTokens("a"), **QUICK
    )
    assert (report.effects.query("direction == 'vector' and strength == 2")["effect"] != 0).all()
    assert (report.effects.query("direction == 'vector' and strength == 2")["kl_mean"] > 0).all()


def test_what_does_not_see_the_vector_is_refused(model: HookedTransformer, vector: SteeringVector) -> None:
    blind = OwnMeasure(lambda model, prompts: [1.0] * len(prompts), "blind")
    with pytest.raises(ValueError, match="'blind' does not see the vector"):
        steering_experiment(model, vector, ["hello"], strengths=[1.0], measure=blind, max_new_tokens=0)
    late = Where(phase="decode")
    with pytest.raises(ValueError, match="no token"):
        steering_experiment(model, vector, ["hello"], strengths=[1.0], where=late, pairs=PAIRS[5:], n_random=0)


def test_seen_pairs_are_refused_and_seen_groups_warned_of(model: HookedTransformer, vector: SteeringVector) -> None:
    with pytest.raises(ValueError, match="was used to fit"):
        steering_experiment(model, vector, pairs=PAIRS[4:], n_random=0)
    near = [ContrastPair("another prompt", " good0", " bad0", group="0")]
    with pytest.warns(SharedGroupsWarning, match="1 of 1 measured groups"):
        steering_experiment(model, vector, pairs=near, n_random=0)


def test_a_report_runs_again_from_its_file(model: HookedTransformer, vector: SteeringVector, tmp_path: Path) -> None:
    both = steering_vectors(PAIRS[:5], model=model, sites="resid_post:*")
    for each, where in ((vector, "all"), (both, Where(part="generated"))):
        measures = [TargetTokens("a", "b"), PhraseRate("e")]
        report = steering_experiment(
            model,
            each,
            ["hello"],
            strengths=[0.5],
            measure=measures,
            where=where,
            instruction="Go.",
            choices=QUESTIONS,
            **QUICK,
        )
        path = report.save(tmp_path / "report.json")
        again = steering_experiment_again(path, model)
        for name in ("effects", "damage", "values", "generations"):
            pd.testing.assert_frame_equal(getattr(again, name), getattr(report, name))
        assert load_steering_report(path).inputs == again.inputs
    with pytest.raises(ValueError, match="another model"):
        steering_experiment_again(path, tiny_model(seed=5))
    mine = OwnMeasure(lambda model, prompts: [float(model(prompt)[0, -1, 3]) for prompt in prompts], "mine")
    own = steering_experiment(model, vector, ["hello"], strengths=[1.0], measure=mine, n_random=0)
    with pytest.raises(ValueError, match=r"'mine' \(own\) is a function"):
        steering_experiment_again(own, model)
    pd.testing.assert_frame_equal(steering_experiment_again(own, model, measure=mine).effects, own.effects)


def test_settings_are_kept_and_read_back(model: HookedTransformer, vector: SteeringVector) -> None:
    options = {"strengths": [0.5], "choices": QUESTIONS, "instruction": "Go.", **QUICK}

    class Memory:
        def __init__(self) -> None:
            self.held: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {}

        def get(self, setting: Setting) -> SettingResult | None:
            found = self.held.get(plan.key(setting))
            return None if found is None else SettingResult.from_arrays(*found)

        def put(self, setting: Setting, result: SettingResult) -> None:
            self.held[plan.key(setting)] = result.to_arrays()

    plan, memory = experiment_plan(model, vector, ["hello"], **options), Memory()
    for setting in reversed(plan.settings[2:]):  # in any order
        memory.put(setting, run_setting(plan, setting))
    assert len(memory.held) == len(plan.settings) - 2
    kept = steering_experiment(model, vector, ["hello"], **options, kept=memory)
    plain = steering_experiment(model, vector, ["hello"], **options)
    for name in ("effects", "damage", "values", "generations"):
        pd.testing.assert_frame_equal(getattr(kept, name), getattr(plain, name))
    assert len(memory.held) == len(plan.settings)


def test_keys_know_what_decides_a_result(model: HookedTransformer, vector: SteeringVector) -> None:
    options = {"pairs": PAIRS[5:], "strengths": [0.5]}
    one = experiment_plan(model, vector, **options)
    setting = one.settings[0]
    wider = experiment_plan(model, vector, **{**options, "strengths": [0.25, 0.5], "n_random": 5})
    assert wider.key(setting) == one.key(setting)
    for change in ({"pairs": PAIRS[6:]}, {"seed": 1}, {"where": "generated"}, {"texts": TEXTS}, {"kind": "rotate"}):
        assert experiment_plan(model, vector, **{**options, **change}).key(setting) != one.key(setting)
    assert experiment_plan(model, 2 * vector, **options).key(setting) != one.key(setting)
    assert experiment_plan(model, vector, **options).key(one.settings[1]) != one.key(setting)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_random": -1}, "n_random"),
        ({"strengths": [float("nan")]}, "finite"),
        ({"strengths": ["x"]}, "finite"),
        ({"prompts": [""]}, "with something in them"),
        ({"prompts": ()}, "nothing is measured"),
        ({"max_new_tokens": 0}, "nothing is measured"),
        ({"strengths": [0]}, "not 0"),
        ({"strengths": []}, "not 0"),
        ({"kind": "clamp"}, "strength 0 is no unsteered run"),
        ({"kind": "push"}, "push"),
        ({"unit": "meters"}, "meters"),
        ({"where": "answer"}, "answer"),
        ({"random_strengths": "some"}, "some"),
        ({"measure": PhraseRate("a"), "max_new_tokens": 0}, "reads continuations"),
        ({"texts": ["x"]}, "single token"),
        ({"choices": ["x"]}, "questions"),
        ({"instruction": " "}, "what the model is to do"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_input(model: HookedTransformer, vector: SteeringVector, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        steering_experiment(model, vector, **{"prompts": ["hello"], "n_random": 1, "max_new_tokens": 2, **options})


def test_a_vector_of_another_model_is_refused(vector: SteeringVector) -> None:
    with pytest.raises(ValueError, match="another model"):
        steering_experiment(tiny_model(seed=5), vector, ["hello"])
