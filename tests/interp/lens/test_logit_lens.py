"""The logit lens against the definition written out, and on the real model."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_model

import interp
from interp.lens import load_lens, logit_lens
from interp.model import HookedTransformer

TEXT = "hello there"


def test_every_statistic_equals_the_definition(tiny: HookedTransformer) -> None:
    result = logit_lens(tiny, TEXT, sites=["embed", "resid_mid:*", "resid_post:*"], k=3)
    logits, cache = tiny.run_with_cache(TEXT)
    ids = torch.tensor(tiny.tokenizer.encode(TEXT))
    final = logits[0].log_softmax(-1)
    for index, site in enumerate(result.sites):
        stream = cache["resid_pre", 0] if site == "hook_embed" else cache[site]
        x = stream[0]
        if tiny.cfg.norm == "layer":
            x = torch.nn.functional.layer_norm(x, (32,), tiny.ln_final.weight, tiny.ln_final.bias, tiny.cfg.norm_eps)
        else:
            x = x / (x.pow(2).mean(-1, keepdim=True) + tiny.cfg.norm_eps).sqrt() * tiny.ln_final.weight
        logp = (x @ tiny.W_U).log_softmax(-1)
        torch.testing.assert_close(result.top_probs[index], logp.topk(3).values.exp(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(result.entropy[index], -(logp.exp() * logp).sum(-1), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(result.kl[index], (final.exp() * (final - logp)).sum(-1), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(
            result.loss[index, :-1], -logp[:-1].gather(1, ids[1:, None])[:, 0], atol=1e-4, rtol=1e-4
        )
        target = final.argmax(-1)
        expected = (logp > logp.gather(1, target[:, None])).sum(-1)
        assert torch.equal(result.target_rank[index], expected)
    assert result.loss[:, -1].isnan().all()


def test_the_last_layer_is_the_models_own_prediction(tiny: HookedTransformer) -> None:
    result = logit_lens(tiny, TEXT)
    top = tiny(TEXT)[0].softmax(-1).max(-1)
    assert torch.equal(result.top_ids[-1, :, 0], top.indices)
    torch.testing.assert_close(result.top_probs[-1, :, 0], top.values)
    assert (result.kl[-1] < 1e-6).all()
    assert (result.target_rank[-1] == 0).all()


def test_settle_layer_is_the_first_that_stays() -> None:
    result = logit_lens(tiny_model(n_layers=4), TEXT)
    top = result.top_ids[:, :, 0]
    for row, layer in enumerate(result.settle_layer.tolist()):
        index = result.layers.index(layer)
        assert (top[index:, row] == top[-1, row]).all()
        assert index == 0 or top[index - 1, row] != top[-1, row]


def test_a_batch_equals_its_texts(tiny: HookedTransformer) -> None:
    texts = ["hi", "hello there"]
    both = logit_lens(tiny, texts)
    for index, text in enumerate(texts):
        alone = logit_lens(tiny, text)
        rows = both.text == index
        torch.testing.assert_close(both.entropy[:, rows], alone.entropy, atol=1e-4, rtol=1e-4)
        assert torch.equal(both.token_ids[rows], alone.token_ids)
        torch.testing.assert_close(both.loss[:, rows], alone.loss, equal_nan=True, atol=1e-4, rtol=1e-4)


def test_a_named_answer_is_followed(tiny: HookedTransformer) -> None:
    result = logit_lens(tiny, TEXT, answer="z")
    token = tiny.tokenizer.to_single_token("z")
    assert (result.target_ids == token).all()
    torch.testing.assert_close(result.target_probs[-1], tiny(TEXT)[0].softmax(-1)[:, token])


def test_frame_and_file(tiny: HookedTransformer, tmp_path: Path) -> None:
    result = logit_lens(tiny, TEXT)
    frame = result.to_frame()
    assert len(frame) == 3 * 11
    assert "".join(frame[frame.layer == 0].token).replace("·", " ") == TEXT
    again = load_lens(result.save(tmp_path / "lens.safetensors"))
    assert again.to_frame().equals(frame)
    assert result.top("resid_post:1", 3)["token"][0] == frame.query("layer == 1 and pos == 3").top1.item()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": "attn_out:*"}, "not the residual stream"),
        ({"sites": "resid_pots:*"}, "resid_post"),
        ({"k": 0}, "k must lie"),
        ({"answer": "two tokens"}, "token"),
        ({"answer": 9999}, "vocabulary"),
    ],
)
def test_bad_input(tiny: HookedTransformer, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        logit_lens(tiny, TEXT, **options)


def test_the_answer_forms_in_the_real_model(smollm: HookedTransformer) -> None:
    result = logit_lens(smollm, "The Eiffel Tower is located in the city of", answer=" Paris")
    assert float(result.target_probs[-1, -1]) == pytest.approx(0.702, abs=0.005)
    assert int(result.target_rank[-1, -1]) == 0
    assert float(result.target_probs[1, -1]) < 0.01
    assert 10 <= int(result.settle_layer[-1]) <= 29


def test_encoders_read_the_normed_stream_and_predict_no_next_token() -> None:
    model = tiny_model("bert")
    result = interp.logit_lens(model, "some text")
    logits, cache = model.run_with_cache("some text", "normalized_resid_post:*")
    assert result.sites[-1] == "blocks.1.hook_normalized_resid_post"
    expected = model.unembed_logits(cache["normalized_resid_post", 0])[0].softmax(-1).max(-1).values
    torch.testing.assert_close(result.top_probs[1, :, 0], expected)
    assert torch.equal(result.top_ids[-1, :, 0], logits[0].argmax(-1))
    assert result.loss.isnan().all()
    with pytest.raises(ValueError, match="not the residual stream"):
        interp.logit_lens(model, "some text", sites="resid_post:0")
    for call in (
        lambda: model.loss("some text"),
        lambda: interp.head_scores(model),
        lambda: model.generate("some text"),
    ):
        with pytest.raises(ValueError, match="is an encoder"):
            call()
    with pytest.raises(ValueError, match="is an encoder"):
        interp.token_uncertainty(model, "some text")
