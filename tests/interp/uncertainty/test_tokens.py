"""Token uncertainty against the definitions written out on whole logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_model

from interp.model import HookedTransformer
from interp.uncertainty import forward, load_token_uncertainty, token_uncertainty

TEXTS = ["hello there", "a", "The city of Paris"]


def test_every_number_equals_its_definition(tiny: HookedTransformer) -> None:
    frame = token_uncertainty(tiny, TEXTS).to_frame()
    assert tiny.tokenizer is not None
    for index, text in enumerate(TEXTS):
        ids = tiny.tokenizer.encode(text)
        logp = tiny(text)[0].detach().double().log_softmax(-1).numpy()
        p = np.exp(logp)
        rows = frame[frame["text"] == index].reset_index(drop=True)
        assert rows["pos"].tolist() == list(range(len(ids)))
        assert rows["token_id"].tolist() == ids
        entropy = -(p * logp).sum(1)
        close: Any = {"atol": 2e-5, "rtol": 2e-5}
        np.testing.assert_allclose(rows["entropy"], entropy, **close)
        np.testing.assert_allclose(
            rows["varentropy"], (p * (logp + entropy[:, None]) ** 2).sum(1), atol=1e-4, rtol=1e-4
        )
        ordered = np.sort(p, axis=1)
        np.testing.assert_allclose(rows["margin"], ordered[:, -1] - ordered[:, -2], **close)
        np.testing.assert_allclose(rows["p_top1"], ordered[:, -1], **close)
        assert rows["top1"].tolist() == [tiny.tokenizer.views([i])[0].display for i in p.argmax(1).tolist()]
        follows = [logp[t - 1, ids[t]] for t in range(1, len(ids))]
        np.testing.assert_allclose(rows["logprob"][1:].astype(float), follows, **close)
        assert rows["rank"][: len(ids) - 1].tolist() == [
            int((logp[t] > logp[t, ids[t + 1]]).sum()) for t in range(len(ids) - 1)
        ]


def test_what_nothing_predicts_is_missing_and_not_a_number(tiny: HookedTransformer) -> None:
    frame = token_uncertainty(tiny, TEXTS).to_frame()
    first, last = frame["pos"] == 0, frame["pos"] == frame.groupby("text")["pos"].transform("max")
    assert frame["logprob"].isna().equals(first)
    assert frame["rank"].isna().equals(last)
    assert frame.drop(columns=["logprob", "rank"]).notna().all(axis=None)


def test_padding_and_order_change_nothing(tiny: HookedTransformer) -> None:
    together = token_uncertainty(tiny, TEXTS).to_frame()
    alone = [token_uncertainty(tiny, text).to_frame().assign(text=index) for index, text in enumerate(TEXTS)]
    left = token_uncertainty(tiny, tiny.tokenize(TEXTS, pad="left")).to_frame()
    for column in ("entropy", "margin", "logprob", "rank"):
        expected = np.concatenate([each[column].to_numpy(dtype=float, na_value=np.nan) for each in alone])
        for frame in (together, left):
            np.testing.assert_allclose(frame[column].to_numpy(dtype=float, na_value=np.nan), expected, atol=2e-5)


def test_a_model_that_knows_nothing() -> None:
    model = tiny_model(scale=0.0)
    frame = token_uncertainty(model, "abc").to_frame()
    np.testing.assert_allclose(frame["entropy"], np.log(258), rtol=1e-6)
    np.testing.assert_allclose(frame["varentropy"], 0.0, atol=1e-9)
    np.testing.assert_allclose(frame["margin"], 0.0)
    np.testing.assert_allclose(frame["logprob"][1:].astype(float), -np.log(258), rtol=1e-6)
    assert frame["rank"][:2].tolist() == [0, 0]


def test_logits_are_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    whole = token_uncertainty(model, TEXTS).to_frame()
    sizes: list[int] = []
    unembed = model.unembed_logits

    def spy(resid: torch.Tensor) -> torch.Tensor:
        logits = unembed(resid)
        sizes.append(logits.numel())
        return logits

    monkeypatch.setattr(forward, "CHUNK_LOGITS", 3 * 258)
    monkeypatch.setattr(model, "unembed_logits", spy)
    chunked = token_uncertainty(model, TEXTS).to_frame()
    assert max(sizes) <= 3 * 258
    assert len(sizes) > 5
    np.testing.assert_allclose(chunked["entropy"], whole["entropy"], atol=1e-5)
    assert chunked["rank"].equals(whole["rank"])


def test_interventions_count_and_leave_no_trace() -> None:
    model = tiny_model()
    plain = token_uncertainty(model, "hello").to_frame()
    with model.hooks({"resid_post:0": lambda value, ctx: torch.zeros_like(value)}):
        cut = token_uncertainty(model, "hello").to_frame()
    assert not np.allclose(cut["entropy"], plain["entropy"])
    assert token_uncertainty(model, "hello").to_frame().equals(plain)
    with (
        pytest.raises(ValueError, match="never fired"),
        model.hooks({"ln_final.hook_normalized": lambda value, ctx: None}),
    ):
        token_uncertainty(model, "hello")


def test_ids_without_a_tokenizer() -> None:
    model = tiny_model()
    model.tokenizer = None
    frame = token_uncertainty(model, [1, 2, 3]).to_frame()
    assert frame["token"].tolist() == ["1", "2", "3"]


def test_save_and_load(tmp_path: Path) -> None:
    result = token_uncertainty(tiny_model(), TEXTS)
    again = load_token_uncertainty(result.save(tmp_path / "u.safetensors"))
    assert again.to_frame().equals(result.to_frame())
    assert again.card["provenance"]["fingerprint"] == result.card["provenance"]["fingerprint"]
    with pytest.raises(ValueError, match="no file"):
        load_token_uncertainty(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    ("x", "message"), [("", "empty"), ([], "empty"), ("x" * 200, "200 tokens"), ([999], "258|257")]
)
def test_bad_input_is_refused(x: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_uncertainty(tiny_model(), x)


@pytest.mark.slow
def test_the_real_model_is_sure_of_paris(smollm: HookedTransformer) -> None:
    frame = token_uncertainty(smollm, "The Eiffel Tower is located in the city of").to_frame()
    last = frame.iloc[-1]
    assert last["top1"].strip("·") == "Paris"
    assert last["p_top1"] == pytest.approx(0.702, abs=0.005)
    assert frame["rank"].iloc[-2] == 0  # of after city
