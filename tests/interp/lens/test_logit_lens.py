"""The logit lens against the definition written out, and on the real model."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from tiny import tiny_model

import interp
from interp import artifact
from interp import sites as site_names
from interp.lens import load_lens, logit_lens
from interp.model import HookedTransformer
from interp.tokens import Tokens

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


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_transformer_lens_reads_the_same(family: str) -> None:
    lens_twin = pytest.importorskip("lens_twin")
    ours, theirs = lens_twin.pair(family)
    result = logit_lens(ours, TEXT, sites="all", k=4)
    _, cache = theirs.run_with_cache(theirs.to_tokens(TEXT, prepend_bos=False))
    names = ["blocks.0.hook_resid_pre" if site == "hook_embed" else site for site in result.sites]
    logp = torch.stack([theirs.unembed(theirs.ln_final(cache[name]))[0] for name in names]).log_softmax(-1)
    torch.testing.assert_close(result.top_probs, logp.topk(4).values.exp(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(result.kl, (logp[-1].exp() * (logp[-1] - logp)).sum(-1), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "neox", "gemma2", "olmo2", "mixtral", "deepseek", "bert"])
def test_all_is_the_embedding_the_middles_and_the_ends(family: str) -> None:
    model = tiny_model(family)
    result = logit_lens(model, TEXT, sites="all")
    kinds = [site_names.kind_of(site).kind for site in result.sites]
    end = "normalized_resid_post" if family == "bert" else "resid_post"
    middles = [] if family in ("neox", "bert") else ["resid_mid"]
    assert kinds == ["embed", *[*middles, end] * 2]
    logits = model(TEXT)[0]
    assert torch.equal(result.top_ids[-1, :, 0], logits.argmax(-1))


def test_the_middles_of_blocks_do_not_move_the_settle_layer() -> None:
    model = tiny_model(n_layers=4)
    ends, every = logit_lens(model, TEXT), logit_lens(model, TEXT, sites="all")
    assert torch.equal(every.settle_layer, ends.settle_layer)
    starts = logit_lens(model, TEXT, sites=["embed", "resid_pre:1-3"])  # resid_pre:1 is the end of block 0
    assert torch.equal(starts.settle_layer, ends.settle_layer)
    middles = logit_lens(model, TEXT, sites="resid_mid:*")
    assert (middles.settle_layer <= 3).all()
    # A chart that can be clicked gets another name each time.
    drawn = [re.sub(r"view_[0-9a-f]+", "view", result.plot().to_json()) for result in (every, ends)]
    assert drawn[0] == drawn[1]


def test_settle_layers_of_a_hand_made_result() -> None:
    result = logit_lens(tiny_model(n_layers=3), "abcd", k=1)
    top = torch.tensor([[7, 1, 7, 2], [1, 1, 7, 2], [7, 1, 5, 2], [7, 9, 7, 2]])  # embed, 0, 1, 2 by token
    made = dataclasses.replace(result, top_ids=top[..., None])
    assert made.settle_layer.tolist() == [1, 2, 2, -1]


def test_packed_documents_do_not_predict_each_other(tiny: HookedTransformer) -> None:
    ids = torch.tensor([tiny.tokenizer.encode("hello" + "there")])
    tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool), documents=torch.tensor([[0] * 5 + [1] * 5]))
    result = logit_lens(tiny, tokens)
    assert result.loss[0].isnan().nonzero()[:, 0].tolist() == [4, 9]
    parts = logit_lens(tiny, ["hello", "there"])
    torch.testing.assert_close(result.loss, parts.loss, equal_nan=True, atol=1e-4, rtol=1e-4)
    tree = Tokens(ids, torch.ones_like(ids, dtype=torch.bool), parents=torch.arange(-1, 9)[None])
    with pytest.raises(ValueError, match="tree of texts"):
        logit_lens(tiny, tree)


def test_long_inputs_are_run_in_parts(tiny: HookedTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["hi", "hello there", "x", "a longer one"]
    whole = logit_lens(tiny, texts)
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(tiny.tokenizer.encode(text)) for text in texts], batch_first=True, padding_side="left"
    )
    monkeypatch.setattr("interp.lens.source.STREAM_BYTES", 1)
    monkeypatch.setattr("interp.lens.read.LOGITS", 1)
    for x in (texts, Tokens(ids, ids != 0)):
        parts = logit_lens(tiny, x)
        for name in ("text", "pos", "token_ids", "target_ids"):
            assert torch.equal(getattr(parts, name), getattr(whole, name))
        torch.testing.assert_close(parts.kl, whole.kl, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(parts.loss, whole.loss, equal_nan=True, atol=1e-4, rtol=1e-4)
    seen = []
    with tiny.hooks({"resid_post:0": lambda value, ctx: seen.append(len(value))}):
        logit_lens(tiny, texts)
    assert seen == [4]  # a hook may count the texts


def test_several_answers_are_followed(tiny: HookedTransformer) -> None:
    result = logit_lens(tiny, TEXT, answer=["z", 7, "e"])
    ids = [tiny.tokenizer.to_single_token("z"), 7, tiny.tokenizer.to_single_token("e")]
    assert result.answer_ids.tolist() == ids
    assert (result.target_ids == ids[0]).all()
    logits = tiny(TEXT)[0]
    torch.testing.assert_close(result.answer_probs[-1], logits.softmax(-1)[:, ids])
    assert torch.equal(result.answer_rank[-1], (logits[:, :, None] > logits[:, None, ids]).sum(1))
    frame = result.followed()
    assert len(frame) == 3 * 11 * 3
    line = frame[(frame.site == "resid_post:1") & (frame.pos == 4) & (frame.answer_id == 7)].iloc[0]
    assert line.probability == pytest.approx(float(logits[4].softmax(-1)[7]))
    assert line.token == result.labels[4]
    own = logit_lens(tiny, TEXT)
    assert own.answer_probs.shape == (3, 11, 0)
    assert own.followed()["rank"].tolist() == own.to_frame()["rank"].tolist()
    assert own.followed().answer.tolist() == own.to_frame().target.tolist()


def test_summary_is_the_mean_over_rows(tiny: HookedTransformer) -> None:
    texts = [TEXT, "abc", "the cat sat"]
    result = logit_lens(tiny, texts)
    table = result.summary()
    torch.testing.assert_close(torch.tensor(table.kl), result.kl.double().mean(1))
    torch.testing.assert_close(torch.tensor(table.loss), result.loss.double().nanmean(1))
    assert (table.kl_low[:-1] < table.kl[:-1]).all()
    assert (table.kl[:-1] < table.kl_high[:-1]).all()
    assert table.agrees.iloc[-1] == 1
    assert table.kl.iloc[-1] == 0
    assert (table.n == 25).all()
    assert (table.n_texts == 3).all()
    assert table.lens.unique().tolist() == ["logit"]
    assert logit_lens(tiny, TEXT).summary().kl_low.isna().all()  # one text has no interval
    means = [float(logit_lens(tiny, text).kl[0].double().mean()) for text in texts]
    spread = max(means) - min(means)  # three texts: Student's interval is wider than what they span
    assert min(means) - 2 * spread < table.kl_low[0] < table.kl_high[0] < max(means) + 2 * spread


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
    assert again.followed().equals(result.followed())
    named = logit_lens(tiny, TEXT, answer=["a", "b"])
    assert load_lens(named.save(tmp_path / "named.safetensors")).followed().equals(named.followed())
    tensors, card = artifact.load_artifact(tmp_path / "lens.safetensors", "lens")
    older = {name: value for name, value in tensors.items() if not name.startswith("answer")}
    card.pop("lens")
    old = load_lens(artifact.save_artifact(tmp_path / "old.safetensors", "lens", older, card))
    assert old.followed().equals(result.followed())
    with pytest.raises(ValueError, match=r"no position 11 in text 0; it has 0 to 10"):
        result.top("embed", 11)
    with pytest.raises(ValueError, match=r"no text 1; there are 0"):
        result.top("embed", 0, text=1)
    with pytest.raises(ValueError, match="was not read"):
        result.top("resid_mid:0", 0)
    assert result.top("resid_post:1", 3)["token"][0] == frame.query("layer == 1 and pos == 3").top1.item()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": "attn_out:*"}, "not the residual stream"),
        ({"sites": "resid_pots:*"}, "resid_post"),
        ({"sites": "mlp_out:0"}, "direct logit attribution"),
        ({"k": 0}, "k must lie"),
        ({"k": 2.0}, "whole number"),
        ({"answer": "two tokens"}, "token"),
        ({"answer": 9999}, "vocabulary"),
        ({"answer": ["a", "two tokens"]}, "token"),
        ({"answer": [True]}, "whole number"),
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
