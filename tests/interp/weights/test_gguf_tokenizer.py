"""Tokenizers from GGUF metadata: the ids of the tokenizer that the metadata was written from."""

import io
import json
from pathlib import Path

import gguf
import pytest
import sentencepiece
import tokenizers
from checkpoints import add_tokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from interp.tokens import Tokenizer
from interp.weights.gguf import _value
from interp.weights.gguf_tokenizer import LLAMA3, QWEN2, TEKKEN, build_tokenizer

CORPUS = [
    "The quick brown fox, 12345 jumps; it isn't I'LL they'RE 3.14 2024-01-02 over the lazy dog's 99 tails.",
    "naïve café Ünïcödé  STRASSE straße e\u0301\u0323 ﬁ Å ½ ² ٣٤ Ⅷ 一二三",
    "日本語のテキスト 中文文本 한국어 Привет мир مرحبا بالعالم שלום हिन्दी",
    "🙂👩‍👩‍👧👍🏽 \u200b\u202e\ufeff \x00\x1b",
    "  two  7 \t\ttabs  \n\n\nlines\r\n \r\n  9  \n  end   ",
    "def f(x):\n    return x**2  # 100 %\n\n\nclass A:\n\tpass",
    "<|start|>user\nhi<|end|><|start|>  7<think> ok</think>",
]
GPT2_RULE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def split(regex: str) -> list[pre_tokenizers.PreTokenizer]:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [pre_tokenizers.Split(Regex(regex), "isolated"), plain]


def trained(steps: list[pre_tokenizers.PreTokenizer], nfc: bool = False) -> tokenizers.Tokenizer:
    """A byte-level BPE whose merges were learned under a word rule."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    if nfc:
        backend.normalizer = normalizers.NFC()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|start|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    spec = json.loads(backend.to_str())
    size = len(spec["model"]["vocab"])
    spec["model"]["vocab"] |= {"<think>": size, "</think>": size + 1}
    backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    backend.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    return backend


def written(path: Path, backend: tokenizers.Tokenizer, pre: str, kind: str = "gpt2", **flags: bool) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, backend, pre=pre, kind=kind)
    for key, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def rebuilt(path: Path) -> Tokenizer:
    return build_tokenizer({key: _value(field) for key, field in gguf.GGUFReader(path).fields.items()}, "tiny")


RULES = {
    "gpt-2": ([GPT2_RULE], False),
    "smollm": ([pre_tokenizers.Digits(individual_digits=True), GPT2_RULE], False),
    "llama-bpe": (split(LLAMA3), False),
    "qwen2": (split(QWEN2), True),
    "tekken": (split(TEKKEN), False),
}


@pytest.mark.parametrize("pre", RULES)
def test_byte_level_ids_are_the_originals(pre: str, tmp_path: Path) -> None:
    original = trained(*RULES[pre])
    ours = rebuilt(written(tmp_path / "t.gguf", original, pre))
    for text in CORPUS:
        assert ours.encode(text, bos=False) == original.encode(text).ids, text
        assert "".join(view.text for view in ours.views(ours.encode(text, bos=False))) == ours.decode(
            ours.encode(text, bos=False)
        )


def test_each_rule_is_another() -> None:
    """So that the equality above would see a wrong rule."""
    one = trained([GPT2_RULE])
    ids = set()
    for steps, nfc in RULES.values():
        one.pre_tokenizer = pre_tokenizers.Sequence(steps)
        spec = json.loads(one.to_str())
        spec["normalizer"] = {"type": "NFC"} if nfc else None
        ids.add(json.dumps([tokenizers.Tokenizer.from_str(json.dumps(spec)).encode(text).ids for text in CORPUS]))
    assert len(ids) == len(RULES)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_byte_level_ids_are_transformers(pre: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.gguf", trained(*RULES[pre]), pre, add_bos_token=True)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name), rebuilt(path)
    for text in CORPUS:
        assert ours.encode(text, bos=False) == theirs(text, add_special_tokens=False)["input_ids"], text
        if not text.startswith("<|start|>"):  # which transformers doubles
            assert ours.encode(text) == theirs(text)["input_ids"], text


def test_special_and_added_tokens(tmp_path: Path) -> None:
    ours = rebuilt(written(tmp_path / "t.gguf", trained([GPT2_RULE]), "gpt-2"))
    assert (ours.bos_id, ours.eos_id, ours.pad_id, ours.special_ids) == (0, 1, 1, {0, 1})
    assert ours.decode([ours.to_single_token("<think>")]) == "<think>"
    assert not ours.add_bos


def test_bos_where_the_file_does_not_say(tmp_path: Path) -> None:
    for pre, expected in (("llama-bpe", True), ("smollm", False)):
        assert rebuilt(written(tmp_path / "t.gguf", trained(*RULES[pre]), pre)).add_bos is expected
    path = written(tmp_path / "t.gguf", trained(*RULES["llama-bpe"]), "llama-bpe", add_bos_token=False)
    assert not rebuilt(path).add_bos


def pieces() -> tokenizers.Tokenizer:
    """A SentencePiece BPE as Llama 2's tokenizer.json writes it."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    backend.train_from_iterator([CORPUS[0], *CORPUS[4:6]], trainer)
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = [{**token, "normalized": False} for token in spec["added_tokens"][:3]]
    backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def test_sentencepiece_ids_are_the_originals(tmp_path: Path) -> None:
    original = pieces()
    path = written(tmp_path / "t.gguf", original, "default", kind="llama")
    ours = rebuilt(path)
    assert (ours.bos_id, ours.eos_id, ours.add_bos) == (1, 2, True)
    for text in [*CORPUS, "", " ", "  a", "a</s> b"]:
        assert ours.encode(text, bos=False) == original.encode(text).ids, text
        ids = ours.encode(text)
        assert "".join(view.text for view in ours.views(ids, bos_added=True)) == text
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in (text for text in CORPUS if text[0] not in " <"):  # it takes a leading space for the prefix
        assert ours.encode(text) == theirs(text)["input_ids"], text


def test_sentencepiece_without_prefix_space(tmp_path: Path) -> None:
    ours = rebuilt(written(tmp_path / "t.gguf", pieces(), "default", kind="llama", add_space_prefix=False))
    ids = ours.encode("the dog", bos=False)
    assert ours.decode(ids) == "the dog"
    assert "".join(view.text for view in ours.views(ids)) == "the dog"
    assert ours.encode(" the dog", bos=False) != ids


RUNS = ["▁" * n for n in (2, 3, 4)] + ["\n", "\n\n"]


@pytest.fixture(scope="module")
def gemma() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE of Gemma's kind: no prefix space, bytes to fall back to, runs of spaces and lines whole."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([*CORPUS[:2], *CORPUS[4:6]] * 8), model_writer=model, model_type="bpe", vocab_size=440,
        byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
        bos_piece="<bos>", control_symbols=["<start_of_turn>"], user_defined_symbols=RUNS, add_dummy_prefix=False,
        remove_extra_whitespaces=False, normalization_rule_name="identity", minloglevel=2,
        hard_vocab_limit=False, character_coverage=0.98,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("runs_are", ["user-defined", "normal"])
def test_gemma_ids_are_sentencepieces(
    gemma: sentencepiece.SentencePieceProcessor, runs_are: str, tmp_path: Path
) -> None:
    """llama.cpp writes runs of spaces as user-defined tokens where tokenizer_config.json lists them, else as normal."""
    pieces = [gemma.IdToPiece(i) for i in range(gemma.GetPieceSize())]
    kinds = [
        2 if gemma.IsUnknown(i) else 3 if gemma.IsControl(i) else 6 if gemma.IsByte(i) else 1
        for i in range(len(pieces))
    ]
    if runs_are == "user-defined":
        kinds = [4 if piece in RUNS else kind for piece, kind in zip(pieces, kinds)]
    path = tmp_path / "t.gguf"
    writer = gguf.GGUFWriter(path, "gemma2")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece.replace("▁", " ") if kind == 4 else piece for piece, kind in zip(pieces, kinds)])
    writer.add_token_scores([gemma.GetScore(i) for i in range(len(pieces))])
    writer.add_token_types(kinds)
    for name, value in (("padding", 0), ("eos", 1), ("bos", 2), ("unknown", 3)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    for name, flag in (("add_bos_token", True), ("add_eos_token", False), ("add_space_prefix", False)):
        writer.add_bool(f"tokenizer.ggml.{name}", flag)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    ours = rebuilt(path)
    assert (ours.pad_id, ours.eos_id, ours.bos_id, ours.add_bos) == (0, 1, 2, True)
    code = "def f():\n    if x:\n\n       return   1  \n"
    for text in (*CORPUS[:6], code, " a", "  a", "a ", ""):
        assert ours.encode(text) == [2, *gemma.EncodeAsIds(text)], text
        assert "".join(view.text for view in ours.views(ours.encode(text), bos_added=True)) == text
    assert ours.encode("<start_of_turn>a", bos=False) == [gemma.PieceToId("<start_of_turn>"), *gemma.EncodeAsIds("a")]


@pytest.mark.parametrize(
    ("pre", "flags", "words"),
    [
        ("made-up", {}, "word rule 'made-up' is not known"),
        ("default", {}, "word rule 'default' is not known"),
        ("gpt-2", {"add_eos_token": True}, "puts an EOS after each text"),
    ],
)
def test_what_is_not_known_is_refused(pre: str, flags: dict[str, bool], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.gguf", trained([GPT2_RULE]), pre, **flags)
    with pytest.raises(ValueError, match=rf"{words}.*tokenizer\.json beside it"):
        rebuilt(path)


def test_a_byte_level_vocabulary_without_merges_is_refused() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": ["a"]}
    with pytest.raises(ValueError, match="holds no merges"):
        build_tokenizer(metadata, "tiny")


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="of kind 'bert'"):
        build_tokenizer({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]}, "tiny")
