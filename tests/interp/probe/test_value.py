"""A probe as a value: its file, its operating point, its direction as a steering vector."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import SITE, planted
from tiny import tiny_model

import interp
from interp import artifact
from interp.model import HookedTransformer
from interp.probe.fit import Probe, fit_probe, load_probe
from interp.steering import steering_vector

X, Y, GROUPS = planted(240, 12)


def linear(**changes: Any) -> Probe:
    """A probe with a known direction."""
    direction = changes.get("direction")
    d = 4 if direction is None else len(direction)
    fields = {
        "direction": torch.ones(d),
        "bias": 0.0,
        "kind": "logistic",
        "mean": torch.zeros(d),
        "scale": torch.ones(d),
    }
    return Probe(**{**fields, **changes})


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("kind", ["logistic", "mass_mean", "mlp", "attention"])
def test_a_probe_survives_its_file_bit_by_bit(kind: str, tmp_path: Path) -> None:
    texts = list(torch.tensor(X).float().view(80, 3, 12)) if kind == "attention" else X
    labels, groups = (Y[::3], np.arange(80) // 4) if kind == "attention" else (Y, GROUPS)
    probe = fit_probe(texts, labels, kind, groups, site="blocks.1.attn.hook_z", head=2)
    again = load_probe(probe.save(tmp_path / "probe.safetensors"))
    for field in dataclasses.fields(probe):
        before, after = getattr(probe, field.name), getattr(again, field.name)
        if field.name == "tensors":
            assert list(before) == list(after)
            assert all(torch.equal(before[name], after[name]) for name in before)
        else:
            assert torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after, field.name
    assert torch.equal(probe(texts), again(texts))
    assert again.place == "blocks.1.attn.hook_z.2"
    assert probe.save(tmp_path / "b.safetensors").read_bytes() == again.save(tmp_path / "a.safetensors").read_bytes()


def test_files_of_the_first_version_still_load(tmp_path: Path) -> None:
    tensors = {"direction": torch.ones(3), "mean": torch.zeros(3), "scale": torch.ones(3)}
    fields = {"bias": 0.5, "slope": 2.0, "intercept": 1.0, "threshold": 0.4, "site": None, "kind": "mass_mean"}
    path = artifact.save_artifact(tmp_path / "old.safetensors", "probe", tensors, {"n": 7, "probe": fields})
    probe = load_probe(path)
    assert (probe.kind, probe.threshold, probe.head, probe.tensors, probe.card["n"]) == ("mass_mean", 0.4, None, {}, 7)
    assert probe.score(np.ones(3)).item() == pytest.approx(3.5)


def test_a_file_that_is_no_whole_probe_is_refused(tmp_path: Path) -> None:
    whole = {"direction": torch.ones(3), "mean": torch.zeros(3), "scale": torch.ones(3)}
    fields = {"bias": 0.0, "kind": "logistic"}
    cases = [
        ({"direction": torch.ones(3)}, {"probe": fields}),
        (whole, {}),
        (whole, {"probe": {**fields, "kind": "mlp"}}),
        ({"mean": torch.zeros(3), "scale": torch.ones(3)}, {"probe": fields}),
        (whole, {"probe": {**fields, "shape": "round"}}),
    ]
    for number, (tensors, card) in enumerate(cases):
        path = artifact.save_artifact(tmp_path / f"{number}.safetensors", "probe", tensors, card)
        with pytest.raises(ValueError, match=r"not a whole probe|does not know"):
            load_probe(path)


def test_repr_says_what_it_is() -> None:
    probe = fit_probe(X, Y, C=0.1, site="blocks.5.attn.hook_z", head=3)
    assert repr(probe) == "Probe(logistic at z:5.3, n = 240, C = 0.1, width 12, threshold 0.5)"
    assert repr(linear(site="my.site")) == "Probe(logistic at my.site, width 4, threshold 0.5)"


# -------------------------------------------------------------------------------------------------- operating point


def test_at_fpr_is_the_lowest_threshold_that_keeps_the_rate() -> None:
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(2000, 4)), rng.integers(0, 2, 2000)
    rows[y == 1] += 0.5
    probe = linear()
    for fpr in (0.01, 0.05, 0.5):
        new = probe.at_fpr(rows, y, fpr)
        called, point = new.predict(rows).numpy(), new.card["operating_point"]
        assert called[y == 0].mean() <= fpr
        assert point["fpr_reached"] == called[y == 0].mean()
        assert point["recall"] == called[y == 1].mean()
        assert point["fpr_interval"][0] < point["fpr_reached"] < point["fpr_interval"][1]
        assert point["negatives"] + point["positives"] == 2000
        # One negative more would be too many.
        p = np.sort(probe(rows).numpy()[y == 0])[::-1]
        lower = p[p < new.threshold].max()
        assert (p > lower).mean() > fpr
    assert probe.threshold == 0.5
    assert "operating_point" not in probe.card


def test_at_fpr_with_ties_calls_none_of_them() -> None:
    rows = np.r_[np.zeros(90), np.ones(110)][:, None]
    y = np.r_[np.zeros(80), np.ones(10), np.zeros(20), np.ones(90)].astype(int)
    new = linear(direction=torch.ones(1)).at_fpr(rows, y, 0.1)
    assert new.card["operating_point"]["fpr_reached"] == 0.0  # 20 of 100 negatives share the highest score
    assert new.card["operating_point"]["recall"] == 0.0


def test_with_threshold() -> None:
    probe = linear().with_threshold(0.9)
    assert probe.threshold == 0.9
    assert probe.predict(torch.tensor([[0.6, 0, 0, 0], [3.0, 0, 0, 0]])).tolist() == [False, True]


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: linear(direction=None), "finite direction"),
        (lambda: linear(direction=torch.zeros(4)), "other than zero"),
        (lambda: linear(kind="mlp"), "no direction"),
        (lambda: linear(kind="attention", direction=None), "query"),
        (lambda: linear().with_threshold(1.5), "from 0 to 1"),
        (lambda: linear().with_threshold("high"), "got 'high'"),
        (lambda: linear().with_threshold(None), "got None"),
        (lambda: linear().at_fpr(np.ones((9, 4)), [0, 1] * 4 + [0], 0.0), "between 0 and 1"),
        (lambda: linear().at_fpr(np.ones((9, 4)), [0, 1] * 4 + [0], "1 %"), "between 0 and 1"),
        (lambda: linear().at_fpr(np.ones((9, 4)), [0, 1] * 4 + [0]), "at least 100"),
        (lambda: linear().at_fpr(np.ones((9, 4)), [0] * 9), "both labels"),
        (lambda: linear().at_fpr(np.ones((9, 4)), [0, 1]), "2 labels for 9 rows"),
        (lambda: linear().attention(np.ones((9, 4))), "only 'attention'"),
        (lambda: linear().score(torch.tensor(1.0)), "width 4"),
        (lambda: linear().score(torch.full((2, 4), torch.nan)), "NaN or infinity in the activations of 2 rows"),
        (lambda: fit_probe(X, Y, "attention", C=1.0), "whole texts"),
        (lambda: fit_probe(list(X), Y, "mlp", C=1.0), r"array \[row d\]"),
        (lambda: fit_probe(X, Y, C=1.0, starts=[0, 240]), "leave starts out"),
        (lambda: fit_probe(X, Y, "ttpd"), "polarity"),
        (lambda: fit_probe(X, Y, "ccs", polarity=np.where(Y, 1, -1)), "pair"),
        (lambda: fit_probe(X, Y, "ttpd", polarity=["odd"] * 240), "affirmative"),
        (lambda: fit_probe(X, Y, "ttpd", polarity=[1] * 3), "3 values for 240 rows"),
        (lambda: fit_probe(X, Y, "mlp"), "groups='rows'"),
        (lambda: fit_probe(X, Y, "lda", C=1.0), "no strength"),
    ],
)
def test_bad_input_is_refused_with_the_mend(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


# --------------------------------------------------------------------------------------------------------- steering


def test_a_probe_is_a_steering_vector_in_one_line(tiny: HookedTransformer) -> None:
    rows, y, _ = planted(60, tiny.cfg.d_model)
    probe = fit_probe(rows, y, "mass_mean", site=SITE.format(1))
    vector = steering_vector(probe, model=tiny)
    assert vector.site == SITE.format(1)
    assert vector.raw_norm is not None
    torch.testing.assert_close(vector.direction * vector.raw_norm, probe.direction)
    assert vector.typical_norm == pytest.approx(np.median(np.linalg.norm(rows, axis=1)), rel=1e-5)
    assert vector.card["method"] == "probe: mass_mean"
    assert torch.equal((0.5 * -vector).direction, -vector.direction)
    by_short_name = steering_vector(fit_probe(rows, y, "mass_mean", site="resid_post:1"), model=tiny)
    assert by_short_name.site == SITE.format(1)
    # A logistic regression's weights are no length in the stream.
    assert steering_vector(fit_probe(rows, y, C=0.1, site=SITE.format(1)), model=tiny).raw_norm is None


def test_the_reference_gives_the_typical_norm(tiny: HookedTransformer, tmp_path: Path) -> None:
    rows, y, _ = planted(60, tiny.cfg.d_model)
    probe = fit_probe(rows, y, "mass_mean", site=SITE.format(1))
    texts = ["all is well here", "and so it goes on", "what else is there"]
    from_texts = steering_vector(probe, model=tiny, reference=texts).typical_norm
    store = interp.record(tiny, texts, sites=["resid_post:1"], tokens="all", path=tmp_path / "store")
    found = steering_vector(probe, model=tiny, reference=store).typical_norm
    assert found == pytest.approx(store.stats(SITE.format(1)).typical_norm)
    assert from_texts == pytest.approx(found, rel=0.01)  # a store keeps its quantiles in bins
    with pytest.raises(ValueError, match="no resid_post:0"):
        steering_vector(fit_probe(rows, y, "mass_mean", site=SITE.format(0)), model=tiny, reference=store)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "falcon", "deepseek"])
def test_the_direction_of_a_head_is_what_its_push_adds_to_the_stream(family: str) -> None:
    """Also where query heads share keys and values (llama, falcon), and where values have a width of their own (deepseek)."""
    model = tiny_model(family)
    site = "blocks.1.attn.hook_z"
    _, cache = model.run_with_cache("some text", sites=[site, "attn_out:1"])
    width, head = cache[site].shape[-1], 2
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0))
    probe = linear(direction=direction, mean=torch.zeros(width), scale=torch.ones(width), site=site, head=head)

    def push(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value = value.clone()
        value[:, :, head] += direction
        return value

    with model.hooks(fwd_hooks=[(site, push)]):
        _, pushed = model.run_with_cache("some text", sites="attn_out:1")
    difference = (pushed["attn_out", 1] - cache["attn_out", 1])[0]
    torch.testing.assert_close(difference, probe.stream_direction(model).expand_as(difference), atol=1e-4, rtol=1e-3)
    vector = steering_vector(probe, model=model, reference=["one text", "and another one"])
    assert vector.site == "blocks.1.hook_attn_out"
    torch.testing.assert_close(vector.direction, torch.nn.functional.normalize(probe.stream_direction(model), dim=0))


def test_what_cannot_steer_is_refused(tiny: HookedTransformer) -> None:
    width = tiny.cfg.d_model
    rows, y, _ = planted(60, width)
    z = {"direction": torch.ones(8), "mean": torch.zeros(8), "scale": torch.ones(8)}
    stranger = {"provenance": {"model": "another", "fingerprint": "0"}}
    cases: list[tuple[Probe, dict[str, Any], str]] = [
        (fit_probe(rows, y, "mlp", C=0.1, site=SITE.format(0)), {}, "fit a linear kind"),
        (fit_probe(rows, y, C=0.1), {}, "give site="),
        (fit_probe(rows, y, C=0.1, site=SITE.format(0)), {"site": "resid_post:1"}, "means nothing elsewhere"),
        (linear(site=SITE.format(0)), {}, "width of the stream"),
        (linear(direction=torch.ones(width), site=SITE.format(0)), {}, "give reference="),
        (linear(direction=torch.ones(width), site=SITE.format(0)), {"reference": "one text"}, "a list of texts"),
        (linear(**z, site="blocks.0.attn.hook_z", head=0), {}, "give reference="),
        (linear(direction=torch.ones(width), site=SITE.format(0), card=stranger), {}, "fitted on another"),
    ]
    for probe, options, words in cases:
        with pytest.raises(ValueError, match=words):
            steering_vector(probe, model=tiny, **options)
    with pytest.raises(ValueError, match="bring their own"):
        steering_vector([("a", "b")] * 3, model=tiny, reference=["a"])
    with pytest.raises(ValueError, match="no W_O belongs"):
        linear(site=SITE.format(0)).stream_direction(tiny)
    sandwich = tiny_model("gemma2")
    with pytest.raises(ValueError, match="norms what its heads write"):
        steering_vector(linear(**z, site="blocks.0.attn.hook_z", head=0), model=sandwich)
