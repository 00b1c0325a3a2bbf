"""The causal check: effects known in closed form, every direction against `Steer` pair by pair, and the real model."""

import json
import math
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
import torch
from tiny import byte_tokenizer, shaken_model, tiny_model

from interp.dataset import load_dataset
from interp.hooks import HookContext
from interp.intervene import Steer
from interp.model import HookedTransformer
from interp.probe import Probe, fit_probe
from interp.probe.causal import probe_effect
from interp.probe.completions import CompletionPair, completion_pairs, encoded
from interp.probe.directions import Spot, bundle
from interp.probe.effect import ProbeEffect, load_probe_effect
from interp.probe.judging import Judgement, judged_statements
from interp.steering import SteeringVector

FIGURE = {"auroc": 0.9, "low": 0.85, "high": 0.95}
PAIRS = [CompletionPair(f"number {i} is", f" good{i}", " bad", group=str(i // 2)) for i in range(12)]


def byte(letter: str) -> int:
    """The token of a letter."""
    return byte_tokenizer().encode(letter)[0]


def a_probe(direction: torch.Tensor, site: str, **changes: Any) -> Probe:
    """A probe of any direction."""
    zeros = torch.zeros_like(direction)
    made = Probe(direction=direction, bias=0.0, kind="mass_mean", mean=zeros, scale=zeros + 1, site=site)
    return replace(made, card={"figure": FIGURE}, **changes)


def random_probe(d: int, site: str, seed: int = 0) -> Probe:
    return a_probe(torch.randn(d, generator=torch.Generator().manual_seed(seed)), site)


def planted() -> tuple[HookedTransformer, list[CompletionPair], torch.Tensor, float]:
    """A model without norms; pairs that end in the bytes it likes most and least; the direction between these, and how
    much a unit of it at the last layer adds to their log-odds."""
    model = tiny_model("bare")
    prompts = [f"the {i} is " for i in range(10, 22)]
    assert model.tokenizer is not None
    with torch.inference_mode():
        logits = torch.stack([model(model.tokenizer.encode(prompt))[0, -1] for prompt in prompts]).mean(0)
    liked = sorted(ascii_lowercase, key=lambda letter: float(logits[byte(letter)]))
    pairs = [CompletionPair(prompt, liked[-1], liked[0], group=prompt) for prompt in prompts]
    difference = (model.W_U[:, byte(liked[-1])] - model.W_U[:, byte(liked[0])]).detach().clone()
    return model, pairs, difference, float(difference.norm())


def test_a_direction_of_the_unembedding_moves_the_log_odds_as_computed() -> None:
    model, pairs, direction, slope = planted()
    found = probe_effect(model, a_probe(direction, "blocks.1.hook_resid_post"), pairs, judgement=None)
    unit = found.card["typical_norm"]
    band = found.band.set_index("strength")
    for strength in (-0.1, 0.1):
        assert band.loc[strength, "effect"] == pytest.approx(strength * unit * slope, rel=1e-4)
        assert band.loc[strength, "wrong_way"] == 0
        # What is orthogonal to the difference of two unembeddings leaves the difference of their logits as it is.
        assert max(abs(band.loc[strength, "random_low"]), band.loc[strength, "random_high"]) < 1e-3
        assert band.loc[strength, "p"] == pytest.approx(1 / 21)
    (row,) = found.slope_band.to_dict("records")
    assert row["slope"] == pytest.approx(unit * slope, rel=1e-4)
    assert row["low"] <= row["slope"] <= row["high"]
    assert found.preference.informative
    assert found.verdict == "decodable and used"
    assert "Decodable: held-out AUROC 0.900 (95 % 0.850 to 0.950)." in found.summary()


def test_the_other_sign_moves_the_wrong_way_and_a_random_one_not_at_all() -> None:
    model, pairs, direction, _ = planted()
    other = probe_effect(model, a_probe(-direction, "blocks.1.hook_resid_post"), pairs, judgement=None)
    assert "wrong way" in other.verdict
    assert (other.band["wrong_way"] == 1).all()
    aside = torch.randn(len(direction), generator=torch.Generator().manual_seed(0))
    aside -= (aside @ direction) / (direction @ direction) * direction
    none = probe_effect(model, a_probe(aside, "blocks.1.hook_resid_post"), pairs, judgement=None)
    assert abs(none.slope_band["slope"][0]) < 1e-2
    # The model prefers the false ends when the two are exchanged: then nothing can be said about use.
    exchanged = [replace(pair, true=pair.false, false=pair.true) for pair in pairs]
    silent = probe_effect(model, a_probe(direction, "blocks.1.hook_resid_post"), exchanged, judgement=None)
    assert silent.used is None
    assert "no conclusion about use" in silent.verdict
    chance = replace(silent, figure={"auroc": 0.52, "low": 0.47, "high": 0.57})
    assert chance.verdict.startswith("not decodable")
    assert "decodability unknown" in replace(silent, figure=None).verdict


def by_hand(model: HookedTransformer, pair: CompletionPair, steer: Steer | None) -> tuple[float, tuple[float, int]]:
    """Log-odds of a pair, and the summed loss of its prompt with the number of tokens, each text run alone."""
    assert model.tokenizer is not None
    sequences, start = encoded(model.tokenizer, pair.prompt, (pair.true, pair.false))
    sums = []
    for ids, first in [*((ids, start) for ids in sequences), (sequences[0][:start], 1)]:
        with torch.inference_mode(), model.intervene(*([] if steer is None else [steer])):
            logp = model(ids, prompt_len=first)[0].double().log_softmax(-1)
        sums.append(sum(float(logp[t - 1, ids[t]]) for t in range(first, len(ids))))
    return sums[0] - sums[1], (-sums[2], start - 1)


@pytest.mark.parametrize(
    ("family", "where"),
    [
        ("llama", "all"),
        ("llama", "prompt"),
        ("llama", "generated"),
        ("gpt2", "all"),
        ("gemma2", "all"),
        ("dynamic", "all"),
    ],
)
def test_every_pair_alone_with_steer_gives_the_same(family: str, where: str) -> None:
    model = shaken_model(family)
    probe = random_probe(32, "blocks.0.hook_resid_post")
    found = probe_effect(model, probe, PAIRS, where=where, strengths=(0.3,), judgement=None)
    unit = probe.direction / probe.direction.norm()
    steer = Steer(SteeringVector(unit, "blocks.0.hook_resid_post", found.card["typical_norm"]), 0.3, where=where)
    plain, steered = ([by_hand(model, pair, each) for pair in PAIRS] for each in (None, steer))
    change = np.array([after[0] - before[0] for before, after in zip(plain, steered)])
    row = found.band.iloc[0]
    assert row["effect"] == pytest.approx(change.mean(), abs=2e-4)
    assert row["wrong_way"] == (change < 0).mean()
    # A prompt is a text of its own for the loss: all its tokens are steered.
    whole = [by_hand(model, pair, replace(steer, where="all")) for pair in PAIRS]
    rise = sum(after[1][0] - before[1][0] for before, after in zip(plain, whole)) / sum(each[1][1] for each in plain)
    assert row["loss_rise"] == pytest.approx(rise, abs=2e-4)
    assert found.preference.log_odds == pytest.approx(np.mean([each[0] for each in plain]), abs=2e-4)


def test_a_probe_of_one_head_acts_on_that_head() -> None:
    model = shaken_model("llama")
    probe = random_probe(8, "blocks.0.attn.hook_z")
    with pytest.raises(ValueError, match="8 dimensions"):
        probe_effect(model, probe, PAIRS, judgement=None)
    found = probe_effect(model, replace(probe, head=2), PAIRS, strengths=(0.5,), judgement=None)
    assert "mass_mean probe at z:0.2" in found.summary()
    assert probe.direction is not None
    added = 0.5 * found.card["typical_norm"] * probe.direction / probe.direction.norm()

    def add(value: torch.Tensor, ctx: HookContext) -> None:
        value[:, :, 2] += added

    changes = []
    for pair in PAIRS:
        plain = by_hand(model, pair, None)[0]
        with model.hooks({"blocks.0.attn.hook_z": add}):
            changes.append(by_hand(model, pair, None)[0] - plain)
    assert found.band["effect"][0] == pytest.approx(np.mean(changes), abs=2e-4)


def test_a_spot_is_a_slice_of_its_site() -> None:
    spot = Spot("blocks.0.attn.hook_z", 0, 2)
    assert spot.inside((4, 8)) == slice(16, 24)
    with pytest.raises(ValueError, match="no head 4"):
        Spot("blocks.0.attn.hook_z", 0, 4).inside((4, 8))
    added = torch.stack([torch.zeros(8), torch.arange(8.0)])
    value = torch.randn(2 * 3, 5, 4, 8, generator=torch.Generator().manual_seed(0))
    acted = torch.ones(3, 5, dtype=torch.bool)
    acted[1, 2:] = False
    expected = value.clone()
    expected[3:, :, 2] += torch.arange(8.0) * acted[..., None]
    mask, places = torch.ones(6, 5, dtype=torch.bool), torch.arange(5).expand(6, 5)
    ctx = HookContext(spot.name, 0, "forward", 0, places, mask, None)
    assert torch.equal(spot.adding(added, acted)(value.clone(), ctx), expected)


def test_strength_0_is_exactly_nothing() -> None:
    model = shaken_model("llama")
    found = probe_effect(
        model, random_probe(32, "blocks.1.hook_resid_pre"), PAIRS, strengths=(0, 0.1, -0.2), judgement=None
    )
    frame = found.to_frame()
    still = frame[frame["strength"] == 0]
    assert len(still) == 1
    assert (still[["effect", "low", "high", "wrong_way", "loss_rise"]] == 0).all(axis=None)
    assert sorted(set(frame["strength"])) == [-0.2, 0.0, 0.1]
    assert len(frame) == 1 + 2 * 21
    assert (frame["low"] <= frame["effect"]).all()
    assert (frame["high"] >= frame["effect"]).all()
    assert set(frame["n"]) == {12}
    assert set(frame["n_groups"]) == {6}
    # Pairs of a group are drawn together: told apart, the same pairs give another interval.
    apart = [replace(pair, group=None) for pair in PAIRS]
    other = probe_effect(
        model, random_probe(32, "blocks.1.hook_resid_pre"), apart, strengths=(0.1, -0.2), judgement=None
    )
    np.testing.assert_allclose(other.band["effect"], found.band["effect"], atol=1e-4)
    assert not np.allclose(other.band["low"], found.band["low"])


def test_random_directions_are_orthogonal_and_half_of_them_lie_where_activations_do() -> None:
    model = shaken_model("llama")
    spot = Spot("blocks.1.hook_resid_pre", 1, None)
    direction = torch.randn(32, generator=torch.Generator().manual_seed(3)).double()
    direction /= direction.norm()
    found = bundle(model, spot, direction, ["ab", "abc"], None, 20, 0)
    torch.testing.assert_close(found.unit.norm(dim=-1), torch.ones(21, dtype=torch.float64))
    assert float((found.unit[1:] @ direction).abs().max()) < 1e-12
    assert found.kinds[1:].count("isotropic") == found.kinds[1:].count("covariance") == 10
    assert found.n_rows == 3  # "b", "b" and "c": the first token of a text is not typical
    # Those with the covariance of three rows lie in the plane of their differences, and the probe's direction.
    _, cache = model.run_with_cache("abc", sites=spot.name)
    rows = cache[spot.name][0, 1:].double().detach()
    space = torch.stack([rows[1] - rows[0], direction])
    covariance = found.unit[[i for i, kind in enumerate(found.kinds) if kind == "covariance"]]
    left = covariance - covariance @ torch.linalg.pinv(space) @ space
    assert float(left.norm(dim=-1).max()) < 1e-5
    again = bundle(model, spot, direction, ["ab", "abc"], None, 20, 0)
    assert torch.equal(again.unit, found.unit)
    assert not torch.equal(bundle(model, spot, direction, ["ab", "abc"], None, 20, 1).unit, found.unit)


def answering() -> tuple[HookedTransformer, list[CompletionPair], Judgement]:
    """A model whose next byte after a true statement's last byte differs from that after a false one's."""
    model, pairs, _, _ = planted()
    assert model.tokenizer is not None
    with torch.inference_mode():
        logits = [
            torch.stack([model(model.tokenizer.encode(pair.statement(truth)))[0, -1] for pair in pairs])
            for truth in (True, False)
        ]
    # The lowest difference after a true statement against the highest after a false one.
    margin = {
        (yes, no): float(
            (logits[0][:, byte(yes)] - logits[0][:, byte(no)]).min()
            - (logits[1][:, byte(yes)] - logits[1][:, byte(no)]).max()
        )
        for yes in ascii_lowercase
        for no in ascii_lowercase
    }
    return model, pairs, Judgement(n_shots=2, question="{statement}", answers=max(margin, key=margin.__getitem__))


def test_an_answer_that_reads_the_statement_is_steered_too() -> None:
    model, pairs, judgement = answering()
    yes, no = (byte(answer) for answer in judgement.answers)
    direction = (model.W_U[:, yes] - model.W_U[:, no]).detach().clone()
    probe = a_probe(direction, "blocks.1.hook_resid_post")
    found = probe_effect(model, probe, pairs, judgement=judgement)
    assert found.answers is not None
    assert found.answers.informative
    assert found.answers.n == 2 * (len(pairs) - 2)  # the two examples' groups are not judged
    band = found.band.set_index(["measure", "strength"])
    expected = 0.1 * found.card["typical_norm"] * float(direction.norm())
    assert band.loc[("answer", 0.1), "effect"] == pytest.approx(expected, rel=1e-4)
    assert band.loc[("answer", 0.1), "p"] == pytest.approx(1 / 21)
    assert math.isnan(band.loc[("answer", 0.1), "loss_rise"])
    assert "the log-odds of TRUE moves by" in found.summary()


def test_examples_are_never_steered() -> None:
    model, pairs, judgement = answering()
    judged = judged_statements(model, pairs, np.arange(len(pairs)), judgement, seed=0)
    assert judged.first == 2 * len("the 10 is x" + "y" + "\n\n")
    probe = random_probe(32, "blocks.0.hook_resid_pre")
    found = probe_effect(model, probe, pairs, strengths=(0.3,), judgement=judgement)
    vector = SteeringVector(
        probe.direction / probe.direction.norm(), "blocks.0.hook_resid_pre", found.card["typical_norm"]
    )
    steer = Steer(vector, 0.3, positions=range(judged.first, 100))
    yes, no = (byte(answer) for answer in judgement.answers)
    changes = []
    for ids in judged.sequences[: len(judged.y)]:
        with torch.inference_mode():
            plain = model(ids[:-1])[0, -1].double()
            with model.intervene(steer):
                moved = model(ids[:-1])[0, -1].double() - plain
        changes.append(float(moved[yes] - moved[no]))
    answer = found.band.set_index("measure").loc["answer"]
    assert answer["effect"] == pytest.approx(np.mean(changes), abs=2e-4)


def test_an_answer_that_covers_chance_gives_no_effect() -> None:
    model = shaken_model("llama")
    found = probe_effect(
        model,
        random_probe(32, "blocks.0.hook_resid_post"),
        PAIRS,
        judgement=Judgement(n_shots=0, question="{statement}"),
    )
    assert found.answers is not None
    constant = replace(found.answers, auroc=0.5, low=0.4, high=0.6)
    assert "this model does not answer the question; no conclusion" in replace(found, answers=constant).summary()
    backwards = replace(found.answers, auroc=0.2, low=0.1, high=0.3)
    assert "answers against the truth; no conclusion" in replace(found, answers=backwards).summary()


def test_file(tmp_path: Path) -> None:
    model, pairs, judgement = answering()
    found = probe_effect(model, random_probe(32, "blocks.0.hook_resid_post"), pairs, judgement=judgement)
    back = load_probe_effect(found.save(tmp_path / "effect.json"))
    assert isinstance(back, ProbeEffect)
    assert back.summary() == found.summary()
    assert back.card == found.card
    assert (back.preference, back.answers, back.figure) == (found.preference, found.answers, found.figure)
    np.testing.assert_allclose(back.slopes["slope"], found.slopes["slope"])
    assert back.effects.dtypes.equals(found.effects.dtypes)
    assert {"model", "fingerprint", "seed"} <= set(found.card["provenance"])
    again = probe_effect(model, random_probe(32, "blocks.0.hook_resid_post"), pairs, judgement=judgement)
    assert again.effects.equals(found.effects)
    (tmp_path / "other.json").write_text(json.dumps({"kind": "probe report"}))
    with pytest.raises(ValueError, match="no probe effect"):
        load_probe_effect(tmp_path / "other.json")


def test_refused() -> None:
    model = tiny_model()
    probe = random_probe(32, "blocks.0.hook_resid_post")
    for changes, message in (
        ({"strengths": (0,)}, "at least one other than 0"),
        ({"strengths": (0.1, math.nan)}, "finite"),
        ({"n_random": 18}, "fewer than 19"),
        ({"where": "everywhere"}, "unknown"),
        ({"judgement": Judgement(n_shots=4)}, "leave fewer than 5 groups"),
        ({"texts": ["x"]}, "no text has a second token"),
    ):
        with pytest.raises(ValueError, match=message):
            probe_effect(model, probe, PAIRS, **{"judgement": None, **changes})
    with pytest.raises(ValueError, match="at least 5"):
        probe_effect(model, probe, PAIRS[:8], judgement=None)
    with pytest.raises(ValueError, match="which site"):
        probe_effect(model, replace(probe, site=None), PAIRS, judgement=None)
    with pytest.raises(ValueError, match="inside the blocks"):
        probe_effect(model, replace(probe, site="hook_embed"), PAIRS, judgement=None)
    with pytest.raises(ValueError, match="16 dimensions"):
        probe_effect(model, random_probe(16, "blocks.0.hook_resid_post"), PAIRS, judgement=None)
    strange = {"provenance": {"model": "another", "fingerprint": "0"}}
    with pytest.raises(ValueError, match="fitted on another"):
        probe_effect(model, replace(probe, card=strange), PAIRS, judgement=None)
    with pytest.raises(ValueError, match="statement"):
        Judgement(question="Is it so?")
    with pytest.raises(ValueError, match="even"):
        Judgement(n_shots=3)


def test_an_error_on_the_way_leaves_the_model_as_it_was() -> None:
    model = tiny_model()
    before = model("number 1 is")

    def stop(done: int, total: int) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        probe_effect(model, random_probe(32, "blocks.0.hook_resid_post"), PAIRS, judgement=None, progress=stop)
    assert not any(point.handles for point in model.hook_dict.values())
    assert torch.equal(model("number 1 is"), before)


@pytest.mark.slow
def test_the_real_model_prefers_true_completions_and_cannot_say_true(smollm: HookedTransformer) -> None:
    data = load_dataset("cities").select(polarity="affirmative").take(range(120))
    with torch.inference_mode():
        _, cache = smollm.run_with_cache(data.texts, sites="resid_post:14", stop_at_layer=15)
    last = cache["resid_post", 14][torch.arange(len(data)), cache.tokens.last].clone()
    probe = fit_probe(last, data.labels, "mass_mean", data.groups, site="blocks.14.hook_resid_post")
    pairs = completion_pairs(data)
    found = probe_effect(smollm, probe, pairs, strengths=(0.1,))
    assert len(pairs) == 60
    assert found.preference.share > 0.75
    assert found.preference.informative
    assert found.answers is not None
    assert not found.answers.informative
    assert set(found.effects["measure"]) == {"completion"}
    assert "this model does not answer the question; no conclusion" in found.summary()
    assert found.band["effect"][0] > 0
