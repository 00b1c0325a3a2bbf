"""Sentence embeddings against transformers, whatever is in the batch; lengths, unknown signs and folders that are refused."""

import json
from pathlib import Path

import pytest
import torch
from encoders import VOCABULARY, write_sentence_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model
from torch import Tensor
from transformers import AutoTokenizer, BertModel

import interp
from interp.meaning import SentenceEncoder, load_sentence_encoder

TEXTS = ["Paris", "It's Paris.", "The dog chased the cat through the garden.", "Wasser gefriert bei 0 °C", "a " * 100]


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    return load_sentence_encoder()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sentence_encoder(tmp_path / "encoder")
    return tmp_path / "encoder"


def reference(folder: Path, texts: list[str], length: int, pooling: str = "mean") -> Tensor:
    """What transformers gives, one text at a time: no pads at all."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=length, padding=False, return_tensors="pt")
        with torch.no_grad():
            stream = model(**ids).last_hidden_state[0]
        pooled = stream.mean(0) if pooling == "mean" else stream[0]
        rows.append(pooled / pooled.norm())
    return torch.stack(rows)


def test_the_real_encoder_is_transformers(minilm: SentenceEncoder) -> None:
    assert (minilm.max_length, minilm.d_model, minilm.pooling) == (256, 384, "mean")
    folder = interp.artifact.home() / "models" / "all-minilm-l6-v2"
    found = minilm(TEXTS)
    torch.testing.assert_close(found, reference(folder, TEXTS, 256), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(TEXTS)))
    long = "word " * 400
    with pytest.raises(ValueError, match=r"text 1 has 402 tokens, and all-minilm-l6-v2 reads 256: split it"):
        minilm(["short", long])
    torch.testing.assert_close(minilm(long, truncate=True), reference(folder, [long], 256), atol=1e-5, rtol=0)


def test_the_real_encoder_does_not_depend_on_the_batch(minilm: SentenceEncoder) -> None:
    alone = torch.cat([minilm(text) for text in TEXTS])
    for size in (1, 2, 32):
        torch.testing.assert_close(minilm(TEXTS, batch_size=size), alone, atol=1e-6, rtol=0)
    torch.testing.assert_close(minilm(TEXTS[::-1]).flip(0), alone, atol=1e-6, rtol=0)


def test_signs_that_the_encoder_does_not_know_are_refused(minilm: SentenceEncoder) -> None:
    # Both become [UNK]: their vectors would be the same.
    assert not minilm.knows("🙂")
    assert minilm.knows("🙂 yes")
    for text in ("🙂", "", "   ", "[SEP]"):
        with pytest.raises(ValueError, match=r"text 1 .* holds no token that all-minilm-l6-v2 knows"):
            minilm(["yes", text])


@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "first")])
def test_a_folder_is_read_as_it_says(tmp_path: Path, mode: str, pooling: str) -> None:
    write_sentence_encoder(tmp_path / "e", pooling=mode)
    encoder = load_sentence_encoder(tmp_path / "e")
    assert (encoder.pooling, encoder.max_length, encoder.name) == (pooling, 24, "e")
    texts = ["paris", "rome is the capital of italy and not of france", "one two three " * 6]
    torch.testing.assert_close(encoder(texts), reference(tmp_path / "e", texts, 24, pooling), atol=1e-5, rtol=0)
    assert encoder.describe()["pooling"] == pooling
    assert "max_length=24" in repr(encoder)


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tmp_path_factory.mktemp("encoder") / "e"
    write_sentence_encoder(folder)
    return load_sentence_encoder(folder)


@given(
    texts=st.lists(
        st.lists(st.sampled_from(VOCABULARY[5:]), min_size=1, max_size=20).map(" ".join), min_size=1, max_size=8
    ),
    size=st.integers(1, 9),
)
@settings(max_examples=10, deadline=None)
def test_a_vector_is_its_texts_alone(tiny_encoder: SentenceEncoder, texts: list[str], size: int) -> None:
    found = tiny_encoder(texts, batch_size=size)
    for row, text in zip(found, texts):
        torch.testing.assert_close(row, tiny_encoder(text)[0], atol=1e-5, rtol=0)


def test_a_text_that_is_cut_keeps_its_closing_token(folder: Path) -> None:
    encoder = load_sentence_encoder(folder)
    (row,) = encoder.token_ids("one " * 30, truncate=True)
    assert len(row) == 24
    assert (row[0], row[-1]) == (2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "max_tokens"}, "pools by .*max_tokens"),
        ({"pooling": "mean_tokens+cls_token"}, "pools by"),
        ({"modules": ("Transformer", "Pooling", "Dense")}, "has the modules Transformer, Pooling, Dense"),
        ({"do_lower_case": True}, "asks for lower case"),
        ({"max_seq_length": -3}, "max_seq_length must be a whole number"),
    ],
)
def test_folders_of_other_encoders_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    write_sentence_encoder(tmp_path / "e", **change)
    with pytest.raises(ValueError, match=message):
        load_sentence_encoder(tmp_path / "e")


def test_what_is_no_sentence_encoder_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a language model, no sentence encoder; there is 'minilm'"):
        load_sentence_encoder("smollm2-135m")
    with pytest.raises(ValueError, match="there is no sentence encoder 'minilmm': pass 'minilm'"):
        load_sentence_encoder("minilmm")
    (folder / "modules.json").write_text(json.dumps({"type": "Transformer"}))
    with pytest.raises(ValueError, match="is no list of modules"):
        load_sentence_encoder(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(ValueError, match=r"has no modules.json"):
        load_sentence_encoder(folder)
    with pytest.raises(ValueError, match=r"wraps a loaded model, got '/nonexistent': load_sentence_encoder"):
        SentenceEncoder("/nonexistent")
    with pytest.raises(ValueError, match="predicts a next token and is no encoder"):
        SentenceEncoder(tiny_model("llama"))
    model = interp.load(folder)
    for options, message in [
        ({"max_length": 41}, "1 .. 40"),
        ({"max_length": True}, "1 .. 40"),
        ({"pooling": "max"}, "'mean'"),
    ]:
        with pytest.raises(ValueError, match=message):
            SentenceEncoder(model, **options)
    model.tokenizer = None
    with pytest.raises(ValueError, match="has no tokenizer"):
        SentenceEncoder(model)


def test_input_that_is_no_texts_is_refused(folder: Path) -> None:
    encoder = load_sentence_encoder(folder)
    with pytest.raises(ValueError, match="the list is empty"):
        encoder([])
    with pytest.raises(ValueError, match="text 1 is a int, not text"):
        encoder(["paris", 3])
    with pytest.raises(ValueError, match="batch_size must be"):
        encoder("paris", batch_size=0)


def test_damaged_weights_give_no_vectors(folder: Path) -> None:
    encoder = load_sentence_encoder(folder)
    with torch.no_grad():
        encoder.model.state_dict()["blocks.0.mlp.up.weight"].fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        encoder("paris")
