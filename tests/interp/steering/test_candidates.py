"""Candidates for one direction: a planted one is found, every score is that of `Steer`, and the test part chooses nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import byte_tokenizer, tiny_model
from torch import Tensor

from interp.intervene import Steer
from interp.model import HookedTransformer, ModelConfig
from interp.steering.candidate_report import CandidateReport, load_candidate_report
from interp.steering.candidates import candidate_direction
from interp.steering.vector import SteeringVector

BEHAVIOUR, TRIGGER, ANSWER = 258, ord("!"), "Y"
LETTERS = "abcdefgh"
POSITIVE = [f"{a}{b}{a}{c}!." for a, b, c in zip(LETTERS, "hgfedcba", "cdefghab")]
NEGATIVE = [f"{a}{b}{a}{c}{a}." for a, b, c in zip(LETTERS, "hgfedcba", "cdefghab")]
SOME: dict[str, Any] = {"target": ANSWER, "positions": (-3, -2, -1)}


def planted_model() -> HookedTransformer:
    """Layer 0 writes whether the trigger stood before into one coordinate, and from there it becomes the answer."""
    cfg = ModelConfig(
        n_layers=2, d_model=260, n_heads=1, d_head=2, d_mlp=0, d_vocab=258, n_ctx=32, norm="none", positional="none",
        tie_embeddings=False, final_norm=False, name="planted",
    )  # fmt: skip
    model = HookedTransformer(cfg, byte_tokenizer(), seed=0)
    for weight in model.parameters():
        weight.mul_(0.0)
    assert model.unembed is not None
    model.embed.weight[:, :258] = torch.eye(258)
    trigger, answer = (byte_tokenizer().to_single_token(text) for text in (chr(TRIGGER), ANSWER))
    attn = next(iter(model.iter_blocks())).attn
    attn.W_V[0][trigger, 0] = 1.0
    attn.W_O[0][0, BEHAVIOUR] = 6.0  # attention is uniform over six tokens: 1 in all
    model.unembed.weight[answer, BEHAVIOUR] = 12.0
    return model


@pytest.fixture(scope="module")
def found() -> tuple[HookedTransformer, CandidateReport]:
    model = planted_model()
    return model, candidate_direction(model, POSITIVE, NEGATIVE, **SOME)


def log_odds(logits: Tensor, ids: list[int]) -> float:
    p = logits.double().softmax(-1)[ids].sum()
    return float(p.log() - (1 - p).log())


def test_a_planted_direction_is_found(found: tuple[HookedTransformer, CandidateReport]) -> None:
    _, report = found
    vector = report.vector
    assert vector.site == "blocks.1.hook_resid_pre"
    assert vector.card["position"] == -1
    assert vector.card["token"] == "."
    torch.testing.assert_close(vector.direction, torch.eye(260)[BEHAVIOUR])
    assert vector.raw_norm == pytest.approx(1.0)
    frame = report.to_frame()
    assert len(frame) == 6
    assert frame["chosen"].sum() == 1
    same = frame[(frame["layer"] == 0) & (frame["position"] == -1)].iloc[0]
    assert same["refused"] == "no difference"
    own = frame[frame["chosen"]].iloc[0]
    assert own["ablated"] == frame["ablated"].min() == pytest.approx(np.log(1 / 257))
    assert own["induced"] == pytest.approx(12 - np.log(257), abs=1e-4)
    assert own["kl"] == pytest.approx(0, abs=1e-9)
    values = report.figures.set_index(["prompts", "intervention", "measure"])["value"]
    assert values["positive", "ablate", "change"] == pytest.approx(-12, abs=1e-4)
    assert values["negative", "add", "change"] == pytest.approx(12, abs=1e-4)
    assert "resid_pre:1, position -1 ('.')" in report.summary()


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_every_score_is_that_of_steer(family: str) -> None:
    model = tiny_model(family, scale=3.0)
    sites, positions = ["resid_pre:0-1", "attn_out:1"], (-2, -1)
    groups = ([f"{i % 4}" for i in range(8)], [f"{i % 4}" for i in range(8)])
    positive, negative = [f"{text}?{text}!" for text in LETTERS], [f"what {text}" for text in LETTERS]
    report = candidate_direction(
        model, positive, negative, target=["x", "y"], sites=sites, positions=positions, groups=groups, max_kl=1e9,
        min_induced=-1e9, max_layer_share=1.0, batch_size=3,
    )  # fmt: skip
    frame, parts = report.to_frame(), parts_of(groups)
    ids = [model.tokenizer.to_single_token(text) for text in "xy"]
    fit, select = parts["fit"], parts["select"]
    for row in frame.to_dict("records"):
        means = []
        for texts in (positive, negative):
            rows = [model.run_with_cache(texts[i], sites=row["site"])[1][row["site"]][0, row["position"]] for i in fit]
            means.append(torch.stack(rows).double().mean(0))
        difference = means[0] - means[1]
        assert row["length"] == pytest.approx(float(difference.norm()), rel=1e-4)
        unit = (difference / difference.norm()).float()
        vector = SteeringVector(unit, row["site"], 1.0, raw_norm=float(difference.norm()))
        ablated, induced, kl = [], [], []
        for i in select:
            with model.intervene(Steer(vector, kind="ablate", site="writes")):
                ablated.append(log_odds(model(positive[i])[0, -1], ids))
                after = model(negative[i])[0, -1].double().log_softmax(-1)
            with model.intervene(Steer(vector, 1.0, raw=True)):
                induced.append(log_odds(model(negative[i])[0, -1], ids))
            before = model(negative[i])[0, -1].double().log_softmax(-1)
            kl.append(float((before.exp() * (before - after)).sum()))
        assert row["ablated"] == pytest.approx(np.mean(ablated), abs=2e-3)
        assert row["induced"] == pytest.approx(np.mean(induced), abs=2e-3)
        assert row["kl"] == pytest.approx(np.mean(kl), abs=2e-3)


def parts_of(groups: tuple[list[str], list[str]]) -> dict[str, list[int]]:
    """Rows of each part where positive and negative prompts have the same groups."""
    from interp.steering.candidate_prompts import PromptParts

    texts = [f"p{i}" for i in range(8)], [f"n{i}" for i in range(8)]
    found = PromptParts.of(tiny_model(), *texts, groups, (0.5, 0.25, 0.25), 0)
    both = {part: [found.side(part, 0).tolist(), (found.side(part, 1) - 8).tolist()] for part in found.rows}
    for positive, negative in both.values():
        assert positive == negative, "a group was divided"
    return {part: rows[0] for part, rows in both.items()}


def test_the_test_part_chooses_nothing(found: tuple[HookedTransformer, CandidateReport]) -> None:
    model, report = found
    positive, negative = list(POSITIVE), list(NEGATIVE)
    for side, rows in zip((positive, negative), report.card["test_rows"]):
        for row in rows:
            side[row] = "zzzzzz"[:5] + side[row][0]
    again = candidate_direction(model, positive, negative, **SOME)
    pd.testing.assert_frame_equal(again.to_frame(), report.to_frame())
    assert torch.equal(again.vector.direction, report.vector.direction)
    assert again.vector.typical_norm == report.vector.typical_norm
    assert not again.figures["value"].equals(report.figures["value"])
    sizes = report.card["n"]
    assert [sum(side) for side in zip(*sizes.values())] == [8, 8]


def test_the_units_of_strength_hang_on_no_batch(found: tuple[HookedTransformer, CandidateReport]) -> None:
    model, report = found
    again = candidate_direction(model, POSITIVE, NEGATIVE, **{**SOME, "batch_size": 1}).vector
    assert again.typical_norm == pytest.approx(report.vector.typical_norm, rel=1e-5)
    assert again.sd == pytest.approx(report.vector.sd, rel=1e-4)


def test_an_own_score_and_progress() -> None:
    model = planted_model()
    answer = model.tokenizer.to_single_token(ANSWER)
    seen: list[tuple[int, int]] = []
    report = candidate_direction(
        model, POSITIVE, NEGATIVE, target=lambda logits: logits[:, answer] - 6.0, positions=(-2, -1),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert (report.vector.site, report.vector.card["position"]) == ("blocks.1.hook_resid_pre", -1)
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_late_layers_are_refused_without_a_run() -> None:
    with pytest.raises(ValueError, match="The nearest") as refused:
        candidate_direction(planted_model(), POSITIVE, NEGATIVE, **SOME, max_layer_share=0.5, max_kl=1e-12)
    assert "resid_pre:0 at -2" in str(refused.value)
    assert "resid_pre:1" not in str(refused.value)
    with pytest.raises(ValueError, match="none of 3 candidates could be tried: layer"):
        candidate_direction(planted_model(), POSITIVE, NEGATIVE, **SOME, sites="resid_pre:1", max_layer_share=0.5)


def test_nothing_passes() -> None:
    with pytest.raises(ValueError, match="none of 6 candidates passes") as refused:
        candidate_direction(planted_model(), POSITIVE, NEGATIVE, **SOME, min_induced=100.0)
    assert "refused: induced" in str(refused.value)


def test_file(found: tuple[HookedTransformer, CandidateReport], tmp_path: Path) -> None:
    _, report = found
    again = load_candidate_report(report.save(tmp_path / "found.json"))
    pd.testing.assert_frame_equal(again.to_frame(), report.to_frame())
    pd.testing.assert_frame_equal(again.figures, report.figures)
    assert torch.equal(again.vector.direction, report.vector.direction)
    assert (again.card, again.summary()) == (report.card, report.summary())
    with pytest.raises(ValueError, match="no candidate directions"):
        CandidateReport.from_dict({"kind": "probe"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positive": POSITIVE[:2]}, "at least 3"),
        ({"positive": "a text"}, "at least 3"),
        ({"positive": [3, *POSITIVE]}, "neither a text nor a list of messages"),
        ({"positive": [[{"role": "user", "content": "hello"}], *POSITIVE]}, "template"),
        ({"positive": [[], *POSITIVE]}, "neither a text nor"),
        ({"positive": ["ab", *POSITIVE], "shares": (0.98, 0.01, 0.01)}, "parts|shorter"),
        ({"positions": (0,)}, "from the end"),
        ({"positions": ()}, "from the end"),
        ({"positions": (-9, -1)}, "at least 10 tokens"),
        ({"sites": "z:0"}, "no place of the stream"),
        ({"target": []}, "at least one token"),
        ({"target": "YY"}, "YY"),
        ({"target": lambda logits: logits}, "one finite number"),
        ({"groups": (["a"], ["b"])}, "two lists"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"positive": POSITIVE, "negative": NEGATIVE, **SOME, **changes}
    with pytest.raises(ValueError, match=message):
        candidate_direction(planted_model(), given.pop("positive"), given.pop("negative"), **given)


def test_a_model_that_norms_its_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="post_ln"):
        candidate_direction(tiny_model("bert"), POSITIVE, NEGATIVE, **SOME)


def test_the_real_model(smollm: HookedTransformer) -> None:
    """Prompts in French are gone on with in French: without one direction they are less so, and English ones with it more."""
    words = ["chat", "maison", "chien", "mer", "soleil", "ville", "livre", "route"]
    english = ["cat", "house", "dog", "sea", "sun", "city", "book", "road"]
    report = candidate_direction(
        smollm,
        [f"Voici le {word}: il est" for word in words],
        [f"Here is the {word}: it is" for word in english],
        target=[" un", " une", " le", " la", " les", " dans", " en", " de", " du"],
        sites=["resid_pre:9", "resid_pre:14"],
        positions=(-1,),
        max_kl=0.5,
        min_induced=-3.0,
        groups=(english, english),
    )
    assert report.to_frame()["kl"].max() > 0
    assert 1 < report.vector.typical_norm < 1000
    assert report.vector.sd is not None
    changes = report.figures[report.figures["measure"] == "change"].set_index("intervention")
    assert changes.loc["ablate", "value"] < -1
    assert changes.loc["add", "value"] > 1
    assert report.figures.iloc[-1]["low"] >= 0


def test_conversations_are_written_by_the_template(smollm: HookedTransformer) -> None:
    from interp.steering.candidate_prompts import PromptParts

    asked = [[{"role": "user", "content": f"say {word}"}] for word in ("one", "two", "three")]
    parts = PromptParts.of(smollm, asked, [f"tell {i}" for i in range(3)], None, (0.4, 0.3, 0.3), 0)
    assert parts.texts[0] == smollm.tokenizer.apply_chat(asked[0])
    assert parts.texts[0].endswith("assistant\n")
