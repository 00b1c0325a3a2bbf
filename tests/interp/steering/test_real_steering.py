"""The real model: two concepts steer beyond any push of their size, and what a truth direction does to true completions."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from interp.dataset import ContrastPair, Example, grouped_split, load_corpus, load_pairs
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.probe import completion_pairs
from interp.recording import record
from interp.steering import TargetTokens, steered_logits, steering_experiment, steering_map, steering_vector

INSTRUCTIONS = {
    "sentiment": "You write enthusiastic praise: everything is wonderful and excellent.",
    "formality": "You write in a formal, polite and elevated style.",
}


def texts() -> list[str]:
    """Books, four pieces of some 150 words."""
    lines = [example.text for example in load_corpus("books").examples[:32]]
    return [" ".join(lines[start : start + 8])[:900] for start in range(0, 32, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(("concept", "strength"), [("sentiment", 0.15), ("formality", 0.1)])
def test_a_concept_steers_beyond_any_push_of_its_size(smollm: Any, concept: str, strength: float) -> None:
    pairs = load_pairs(concept)
    fit, chosen, held = (
        [pairs[i] for i in part] for part in grouped_split([pair.group for pair in pairs], (0.5, 0.2, 0.3))
    )
    words = [{pair.group for pair in part} for part in (fit, chosen, held)]
    assert not words[0] & words[2]
    vector = steering_vector(fit, model=smollm, site="resid_post:16")
    report = steering_experiment(
        smollm, vector, ["The new restaurant in our street is"], strengths=[strength], pairs=held, texts=texts()[:2],
        instruction=INSTRUCTIONS[concept], max_new_tokens=20,
    )  # fmt: skip
    own, band = report.of_vector("preference").iloc[-1], report.band.iloc[0]
    assert band["n"] == 19
    assert own["low"] > 0
    assert band["z"] > 5
    assert band["p"] == 0.05
    assert own["loss_rise"] < 0.06
    assert own["wrong_way"] < 0.1
    assert own["kl_mean"] > 0
    assert report.largest(0.06) == strength
    assert len(report.of_instruction("preference")) == 1
    plain, steered = (
        report.generations.query("direction == 'vector' and strength == @s")["text"].iloc[0] for s in (0, strength)
    )
    assert plain != steered
    assert "standard deviations" in report.summary()


@pytest.mark.slow
def test_the_map_chooses_a_layer_on_other_pairs(smollm: Any) -> None:
    pairs = load_pairs("sentiment")
    fit, chosen, _ = (
        [pairs[i] for i in part] for part in grouped_split([pair.group for pair in pairs], (0.5, 0.2, 0.3))
    )
    found = steering_map(
        smollm, fit[:24], pairs=chosen[:8], sites=["resid_post:2", "resid_post:16"], strengths=[0.1], texts=texts()[:1]
    )
    assert found.best(0.1)["site"] == "resid_post:16"
    assert found.to_frame().groupby("site")["effect"].max()["resid_post:2"] < found.best(0.1)["effect"]


@pytest.mark.slow
def test_a_truth_direction_on_true_against_false_completions(smollm: HookedTransformer, shared_data: Path) -> None:
    """Whatever it does, it is measured beside random directions; here it is told, not wished for."""
    examples: list[Example] = []
    for name, polarity in (("cities", "affirmative"), ("neg_cities", "negated")):
        table = pd.read_csv(shared_data / "truth" / f"{name}.csv")
        rows = zip(table.statement, table.label, table.city, strict=True)
        examples += [Example(text, int(label), city, meta={"polarity": polarity}) for text, label, city in rows]
    cities = sorted({str(example.group) for example in examples})
    rng = np.random.default_rng(0)
    rng.shuffle(cities)
    fit, held = set(cities[:60]), set(cities[60:90])
    store = record(
        smollm, [each for each in examples if each.group in fit], sites="resid_post:16", tokens="last", progress=False
    )
    vector = steering_vector(store, model=smollm, method="mass_mean", site="resid_post:16")
    statements = [each for each in examples if each.group in held]
    pairs = [
        ContrastPair(pair.prompt, pair.true, pair.false, group=pair.group) for pair in completion_pairs(statements)
    ]
    report = steering_experiment(smollm, vector, pairs=pairs, strengths=[-0.1, 0.1], random_strengths="largest")
    own, band = report.of_vector("preference"), report.band.iloc[0]
    assert (own.query("strength == 0")["effect"] == 0).all()
    assert own["n"].min() >= 25
    assert band["n"] == 19
    assert np.isfinite(own[["effect", "low", "high"]].to_numpy(float)).all()
    assert "random directions" in report.summary()


@pytest.mark.slow
def test_a_grid_of_logits_is_that_of_single_passes(smollm: HookedTransformer) -> None:
    prompts = ["The film was", "The capital of France is", "Yesterday"]
    vector = steering_vector(load_pairs("sentiment")[:8], model=smollm, site="resid_post:16")
    found = steered_logits(smollm, vector, prompts, [0.2, 0.0, -0.2], batch_size=2)
    for row, strength in zip(found, [0.2, 0.0, -0.2], strict=True):
        for logits, prompt in zip(row, prompts, strict=True):
            with smollm.intervene(Steer(vector, strength)), torch.no_grad():
                expected = smollm(prompt)[0, -1].as_subclass(torch.Tensor)
            torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)
    report = steering_experiment(
        smollm,
        vector,
        prompts,
        strengths=[0.2],
        measure=TargetTokens(" good", kind="logit"),
        n_random=0,
        max_new_tokens=0,
    )
    good = smollm.to_single_token(" good")
    expected = (found[0, :, good] - found[0].mean(-1)).mean() - (found[1, :, good] - found[1].mean(-1)).mean()
    assert report.of_vector("target tokens")["effect"].iloc[-1] == pytest.approx(float(expected), abs=1e-3)
