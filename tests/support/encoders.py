"""Tiny random encoders as folders: one of sentences, and a classifier of pairs, with a tokenizer of whole words."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

WORDS = [
    "paris",
    "rome",
    "berlin",
    "is",
    "the",
    "capital",
    "of",
    "france",
    "italy",
    "not",
    "a",
    "city",
    "big",
    "small",
    "it",
]
WORDS += ["in", "and", "one", "two", "three"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}


def word_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece over WORDS, padding and truncation switched on, as sentence encoders' files have it."""
    backend = tokenizers.Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]", max_input_chars_per_word=50)
    )
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    backend.add_special_tokens(VOCABULARY[:5])
    backend.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    backend.enable_truncation(16)
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=40, **named)


def write_sentence_encoder(
    folder: Path,
    pooling: str = "mean_tokens",
    modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    **sentence: Any,
) -> BertModel:
    """A random BERT in the layout of sentence-transformers; `sentence` goes to sentence_bert_config.json."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES)).eval()
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    # The switches that transformers leaves out of the file when it saves.
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["truncation"] = {"max_length": 16, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    saved["padding"] = {
        "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": places.get(name, f"{i}_{name}"),
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    found = {f"pooling_mode_{mode}": mode in pooling.split("+") for mode in modes}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **found}))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 24, "do_lower_case": False, **sentence})
    )
    return model


def write_nli(
    folder: Path, labels: tuple[str, ...] = ("contradiction", "ENTAILMENT", "Neutral"), seed: int = 0
) -> BertForSequenceClassification:
    """A random classifier of pairs with these labels."""
    torch.manual_seed(seed)
    names = dict(enumerate(labels))
    config = BertConfig(**SIZES, id2label=names, label2id={label: i for i, label in names.items()})
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(8)  # so that the classes of different pairs differ
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return model
