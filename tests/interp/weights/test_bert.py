"""BERT against transformers, with and without its head, and what its configuration may say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from parity import IDS, assert_equal, check_parity, left_padded, our_layers, run_reference, shaken
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, BertTokenizerFast

from interp import doctor, logit_lens, record
from interp.cli.group import commands
from interp.weights.bert import configure
from interp.weights.load import load

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "untied": {"tie_word_embeddings": False, "type_vocab_size": 3},
    "another activation and epsilon": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
}


def reference(kind: type = BertForMaskedLM, **changes: Any) -> Any:
    torch.manual_seed(0)
    return shaken(kind(BertConfig(**{**SIZES, **changes})), matrices=0.15)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_parity(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = check_parity(reference(**changes), tmp_path, casts=False, encoder=True)
    assert not ours.cfg.causal
    assert ours.cfg.mlm_head


def test_the_bare_encoder(tmp_path: Path) -> None:
    theirs = reference(BertModel)
    theirs.save_pretrained(tmp_path)
    ours, tokens = load(tmp_path), left_padded()
    assert not ours.cfg.mlm_head
    positions = (tokens.mask.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = theirs(IDS, attention_mask=tokens.mask.long(), position_ids=positions, output_hidden_states=True)
    for layer, found in enumerate(our_layers(ours, tokens)[1]):
        torch.testing.assert_close(
            found[tokens.mask], expected.hidden_states[layer + 1][tokens.mask], atol=1e-5, rtol=0
        )


def test_a_checkpoint_of_the_pre_training_has_a_second_head(tmp_path: Path) -> None:
    theirs = reference(BertForPreTraining)
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(IDS).prediction_logits
    torch.testing.assert_close(load(tmp_path)(IDS).as_subclass(Tensor), expected, atol=1e-5, rtol=0)


def test_names_of_old_files(tmp_path: Path) -> None:
    """bert-base-uncased: gamma and beta, position ids, a pooler, and the tied matrix and bias under a second name."""
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    old = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): w for name, w in state.items()}
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    old |= {"bert.pooler.dense.weight": torch.ones(32, 32), "cls.seq_relationship.bias": torch.ones(2)}
    old["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = state["cls.predictions.bias"].clone()
    save_file(old, path)
    assert_equal(our_layers(load(tmp_path), IDS), run_reference(theirs, IDS), 1e-5)
    old["cls.predictions.decoder.weight"] += 1
    save_file(old, path)
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        load(tmp_path)


def test_both_sides_are_seen(tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path)
    ours, changed = load(tmp_path), IDS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 120
    assert float((ours(IDS)[:, 0] - ours(changed)[:, 0]).abs().max()) > 1e-3


def test_a_folder_with_its_tokenizer_is_loaded_shown_recorded_and_examined(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s", ".", ","]
    theirs = reference(vocab_size=len(words))
    spelled = BertTokenizerFast(vocab={word: i for i, word in enumerate(words)})
    theirs.save_pretrained(tmp_path)
    spelled.save_pretrained(tmp_path)
    ours, texts = load(tmp_path), ["The cats sat on the [MASK].", "On the mat, the cat"]
    assert ours.tokenizer is not None
    with torch.no_grad():
        expected = theirs(**spelled(texts, padding=True, return_tensors="pt")).logits
    tokens = ours.tokenize(texts)
    found = ours(texts).as_subclass(Tensor)
    torch.testing.assert_close(found[tokens.mask], expected[tokens.mask], atol=1e-5, rtol=0)
    assert ours.to_str_tokens(texts[0])[:4] == ["[CLS]", "the", "cat", "##s"]
    labels = logit_lens(ours, texts[0], k=2).to_frame()["token"]
    assert set(labels) <= set(words)
    store = record(ours, texts, sites=["resid_post:1"], path=tmp_path / "store")
    assert store.n_rows == int(tokens.mask.sum())
    report = doctor(ours, folder=tmp_path, only=["tokenizer*", "one BOS", "parity*", "bidirectional reach"])
    assert report.ok, str(report)
    assert report["tokenizer round trip"].verdict == "info"
    assert report["parity: tokenizer"].verdict == "ok"
    for command in (["sites", str(tmp_path)], ["lens", str(tmp_path), texts[0]]):
        shown = CliRunner().invoke(commands, command)
        assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
        ({"intermediate_size": None}, "lacks 'intermediate_size'"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        configure({**BertConfig(**SIZES).to_dict(), **changes}, "tiny")
