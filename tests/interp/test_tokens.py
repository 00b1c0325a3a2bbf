"""Tokenizer, Tokens and TokenView, against transformers and against the text itself."""

import itertools
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from interp.tokens import Tokenizer, Tokens

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It isn't 12,345.67 km!",
    "日本語のテキスト と 中文文本, 한국어 텍스트; Привет, мир",
    "مرحبا بالعالم שלום עולם हिन्दी ไทย",
    "🙂👩‍👩‍👧👍🏽🇫🇷 e\u0301 a\u0308\u0323 \u200b\u202e\ufeff ½²٣ ﷽",
    "  two\t\ttabs \n\n\nlines\r\n  end   ",
    "def f(x):\n    return x**2  # code\n",
]

TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(" \n\t\r\x00\x1b\u0301\u0308\u200b\u200d\u202e\ufe0f🙂👩👍🏽🇫🇷日本مرحبا½1"),
    ),
    min_size=1,
    max_size=40,
)


def byte_level(bos: bool = False, digits: bool = False) -> Tokenizer:
    """Byte-level BPE with some merges."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|start|>", "<|end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend, bos_id=0, eos_id=1, special_ids=[0, 1], add_bos=bos, name="bytes")


def sentencepiece(bos: bool = True) -> Tokenizer:
    """BPE as Llama 2 has it: ▁ for spaces, one put before the text, bytes for what is not in the vocabulary."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    backend.train_from_iterator([*CORPUS[:1], CORPUS[4], CORPUS[5]], trainer)
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = spec["added_tokens"][:3]
    for token in spec["added_tokens"]:
        token["normalized"] = False
    backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    return Tokenizer(backend, bos_id=1, eos_id=2, special_ids=[0, 1, 2], add_bos=bos, name="pieces")


BYTES, BYTES_BOS, PIECES = byte_level(), byte_level(bos=True), sentencepiece()
CASES = {"bytes": BYTES, "bytes with BOS": BYTES_BOS, "pieces": PIECES, "no merges": byte_tokenizer()}
each = pytest.mark.parametrize("tokenizer", CASES.values(), ids=CASES.keys())


# ---------------------------------------------------------------------------------------------------- TokenView


@each
@given(text=TEXT)
@example(text="👩‍👩‍👧 x\u0301<|end|>\n\n\tا\u202eب  ")
@example(text=" leading")
@example(text="</s> a</s>a")
@settings(max_examples=150, deadline=None)
def test_joined_views_are_the_prompt(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.tokenize(text)
    views = tokenizer.views(tokens.ids[0], bos_added=tokens.bos_added)
    data = text.encode()
    assert "".join(view.text for view in views) == text
    assert b"".join(bytes.fromhex(view.bytes) for view in views) == data
    assert [view.start for view in views] == [0, *(view.end for view in views[:-1])]
    assert all(data[view.start : view.end].hex() == view.bytes for view in views)
    assert [view.pos for view in views] == list(range(len(views)))
    assert all(view.display for view in views)
    steps = [b.group - a.group for a, b in itertools.pairwise(views)]
    assert set(steps) <= {0, 1}, "groups are runs"


@each
@given(ids=st.lists(st.integers(0, 257), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_views_of_any_ids_are_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    views = tokenizer.views(ids)
    data = b"".join(bytes.fromhex(view.bytes) for view in views)
    assert "".join(view.text for view in views) == data.decode("utf-8", "replace")
    if tokenizer is not PIECES:  # whose decoder writes one sign for each broken byte
        assert "".join(view.text for view in views) == tokenizer.decode(ids)


def test_a_character_in_three_tokens() -> None:
    views = byte_tokenizer().views(byte_tokenizer().encode("a✓b"))
    assert [(view.text, view.kind, view.group) for view in views] == [
        ("a", "text", 0),
        ("✓", "partial_utf8", 1),
        ("", "partial_utf8", 1),
        ("", "partial_utf8", 1),
        ("b", "text", 2),
    ]
    assert [view.display for view in views] == ["a", "⟨E2⟩", "⟨9C⟩", "⟨93⟩", "b"]


def test_glyphs_of_several_characters_share_a_group() -> None:
    tokenizer = byte_tokenizer()
    for text in ("e\u0301", "👍🏽", "👩\u200d👧", "❤\ufe0f"):
        groups = {view.group for view in tokenizer.views(tokenizer.encode(text))}
        assert groups == {0}, text
    assert {view.group for view in tokenizer.views(tokenizer.encode("ee"))} == {0, 1}


def test_kinds_and_displays() -> None:
    ids = BYTES.encode("<|start|> Paris\n\t\u200bThe lazy")
    shown = {view.text: (view.kind, view.display) for view in BYTES.views(ids)}
    assert shown["<|start|>"] == ("special", "<|start|>")
    assert shown["\n"] == ("newline", "↵")
    assert shown["\t"] == ("space", "⇥")
    tiny = byte_tokenizer()
    assert [view.display for view in tiny.views(tiny.encode(" \x1b"))] == ["·", "⟨U+001B⟩"]


def test_display_of_spaces() -> None:
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={"ĠParis": 0, "aĠb": 1, "ĠĠ": 2, "aĠĠb": 3, "Ì": 4, "ģ": 5, "ÌģĊ": 6}, merges=[])
    )
    backend.decoder = decoders.ByteLevel()
    views = Tokenizer(backend).views([0, 1, 2, 3, 6])
    assert [view.display for view in views] == ["·Paris", "a b", "··", "a··b", "\u25cc\u0301↵"]


def test_an_id_beyond_the_vocabulary_is_shown_not_hidden() -> None:
    view = byte_tokenizer().views([65, 9999])[1]
    assert (view.text, view.kind, view.display) == ("", "special", "⟨id 9999⟩")
    with pytest.raises(ValueError, match="0 or more, got -1"):
        byte_tokenizer().views([-1])


def test_an_unknown_spelling_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.CTC()
    with pytest.raises(ValueError, match="neither byte-level nor SentencePiece nor WordPiece"):
        Tokenizer(backend, name="speech").views([1])


# ----------------------------------------------------------------------------------- WordPiece and closing tokens

PLAIN_WORDS = "the cat sat on walk ##ing ##ed ##s cafe paris is , . ! ' don t 日 本 and"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PLAIN_WORDS.split()]
SENTENCES = ["The cat sat.", "  Walking, walked  cats! ", "Café [MASK] is", "don't 日本 🙂 zzz", "\tParis\n", ""]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, BertTokenizerFast]:
    folder = tmp_path_factory.mktemp("bert")
    theirs = BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)})
    theirs.save_pretrained(folder)
    return Tokenizer.from_folder(folder), theirs


def test_bert_encodes_as_transformers_does(bert: tuple[Tokenizer, BertTokenizerFast], tmp_path: Path) -> None:
    ours, theirs = bert
    assert (ours.bos_id, ours.closing_id, ours.eos_id, ours.pad_id) == (2, 3, None, 0)
    ours.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.hash == ours.hash
    assert again.closing_id == 3
    for text in SENTENCES:
        expected = theirs(text)["input_ids"]
        assert ours.encode(text) == again.encode(text) == expected, text
        tokens = ours.tokenize(text)
        assert tokens.ids[0].tolist() == expected
        assert tokens.bos_added
        bare = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, bos=False) == [*bare, 3], "bos governs the beginning alone"
        assert ours.encode(text, close=False) == [2, *bare]
        assert ours.encode(text, bos=False, close=False) == bare


def test_old_bert_files_say_it_with_another_processor(
    bert: tuple[Tokenizer, BertTokenizerFast], tmp_path: Path
) -> None:
    backend = tokenizers.Tokenizer.from_str(bert[0].backend.to_str())
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    loaded = Tokenizer.from_folder(write(tmp_path, backend, cls_token="[CLS]"))
    assert (loaded.bos_id, loaded.closing_id) == (2, 3)
    assert loaded.encode(SENTENCES[1]) == bert[0].encode(SENTENCES[1])


def test_a_closing_token_is_never_added_twice(bert: tuple[Tokenizer, BertTokenizerFast]) -> None:
    tokens = bert[0].tokenize(["[CLS] the [SEP]", "the cat"])
    assert tokens.row(0) == [2, 5, 3]
    assert tokens.row(1) == [2, 5, 6, 3]
    assert not bert[0].tokenize("[CLS] the").bos_added
    with pytest.raises(ValueError, match="text 0 has 4 tokens, more than the 3"):
        bert[0].tokenize("the cat", max_length=3)


def test_a_text_may_be_closed_only_where_the_tokenizer_closes_one() -> None:
    with pytest.raises(ValueError, match="close=True, but the tokenizer of bytes closes no text"):
        BYTES.encode("a", close=True)
    with pytest.raises(ValueError, match="closing_id=9999 is not in the vocabulary"):
        Tokenizer(byte_tokenizer().backend, closing_id=9999)
    closing = Tokenizer(byte_level().backend, bos_id=0, closing_id=1)
    assert closing.hash != Tokenizer(byte_level().backend, bos_id=0).hash
    assert closing.encode("a") == [*BYTES.encode("a"), 1]
    assert "closing_id=1" in repr(closing)


def test_wordpiece_views_join_to_the_text_that_is_given_and_else_to_the_decoded_one(
    bert: tuple[Tokenizer, BertTokenizerFast],
) -> None:
    ours, theirs = bert
    for text in SENTENCES:
        tokens = ours.tokenize(text)
        views = ours.views(tokens.ids[0], bos_added=True, text=text)
        assert "".join(view.text for view in views) == text
        assert all(text.encode()[view.start : view.end].hex() == view.bytes for view in views)
        bare = ours.encode(text, bos=False, close=False)
        assert "".join(view.text for view in ours.views(bare)) == theirs.decode(bare)
    found = ours.views(ours.encode(SENTENCES[1]), bos_added=True, text=SENTENCES[1])
    assert [view.text for view in found] == ["", "  Walk", "ing", ",", " walk", "ed", "  cat", "s", "! ", ""]
    assert [view.display for view in found][:4] == ["[CLS]", "walk", "##ing", ","]
    assert found[0].kind == found[-1].kind == "special"
    written = ours.views([2, 5, 3], text="[CLS] the [SEP]")
    assert [view.text for view in written] == ["[CLS]", " the", " [SEP]"]
    with pytest.raises(ValueError, match="not those of the text 'the cat'"):
        ours.views([2, 5, 3], text="the cat")


def test_wordpiece_labels(bert: tuple[Tokenizer, BertTokenizerFast]) -> None:
    ours, theirs = bert
    text = "Walking [MASK] cats."
    assert ours.to_str_tokens(text) == theirs.convert_ids_to_tokens(ours.encode(text))
    assert ours.to_single_token("Paris") == WORDS.index("paris")
    assert ours.token_bytes(WORDS.index("##ing")) == b"ing"
    assert ours.token_bytes(WORDS.index("cat")) == b" cat"
    assert ours.token_bytes(9999) == b""


# ------------------------------------------------------------------------------------------------------- Tokens


def test_padding_sides_agree() -> None:
    texts = ["a", "longer text", "日本"]
    right, left = BYTES.tokenize(texts), BYTES.tokenize(texts, pad="left")
    for row, text in enumerate(texts):
        alone = BYTES.tokenize(text)
        assert right.row(row) == left.row(row) == alone.row(0)
        assert right.positions[row][right.mask[row]].tolist() == left.positions[row][left.mask[row]].tolist()
        for tokens in (right, left):
            assert tokens.ids[row, tokens.last[row]] == alone.ids[0, -1]
            assert tokens.ids[row, tokens.first[row]] == alone.ids[0, 0]
            assert tokens.lengths[row] == alone.lengths[0]
    assert bool((left.positions >= 0).all())
    assert left.last.tolist() == [left.ids.shape[1] - 1] * 3
    assert right.texts == texts
    assert len(right) == 3


def test_tokens_are_checked() -> None:
    ids = torch.tensor([[1, 2, 3]])
    for mask, words in (
        ([[False, False, False]], "at least one real token"),
        ([[True, False, True]], "contiguous"),
    ):
        with pytest.raises(ValueError, match=words):
            Tokens(ids, torch.tensor(mask))
    with pytest.raises(ValueError, match="empty"):
        Tokens(torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, 0, dtype=torch.bool))


def test_length_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"text 1 has 5 tokens, more than the 3 that fit: shorten it or split"):
        byte_tokenizer().tokenize(["abc", "abcde"], max_length=3)
    assert byte_tokenizer().tokenize("abc", max_length=3).ids.shape == (1, 3)
    with pytest.raises(ValueError, match="text 1 is empty"):
        BYTES.tokenize(["a", ""])
    with pytest.raises(ValueError, match="the list is empty"):
        BYTES.tokenize([])
    with pytest.raises(ValueError, match="'right' or 'left', got 'middle'"):
        BYTES.tokenize("a", pad="middle")
    with pytest.raises(ValueError, match="lone surrogate"):
        BYTES.tokenize("a\ud800")


# ---------------------------------------------------------------------------------------------------------- BOS


def test_bos_follows_the_tokenizer_unless_told() -> None:
    assert BYTES_BOS.encode("a")[0] == 0
    assert BYTES_BOS.encode("a", bos=False) == BYTES.encode("a")
    assert BYTES.encode("a", bos=True) == BYTES_BOS.encode("a")
    assert BYTES_BOS.tokenize("").ids.tolist() == [[0]], "an empty text has its BOS"
    assert BYTES_BOS.tokenize("a").bos_added
    assert not BYTES.tokenize("a").bos_added


def test_bos_is_never_added_twice() -> None:
    tokens = BYTES_BOS.tokenize("<|start|>a")
    assert tokens.ids[0].tolist().count(0) == 1
    assert not tokens.bos_added


def test_bos_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="has no BOS token"):
        byte_tokenizer().tokenize("a", bos=True)
    with pytest.raises(ValueError, match="needs a bos_id"):
        Tokenizer(byte_tokenizer().backend, add_bos=True)


# ---------------------------------------------------------------------------------------------- one token, labels


def test_single_tokens() -> None:
    lazy = BYTES.encode("lazy", bos=False)
    single = next(piece for piece in (" the", " t", "t") if len(BYTES.encode(piece)) == 1)
    assert [BYTES_BOS.to_single_token(single)] == BYTES.encode(single)
    assert len(lazy) > 1
    with pytest.raises(ValueError, match=rf"'lazy' is {len(lazy)} tokens"):
        BYTES.to_single_token("lazy")
    with pytest.raises(ValueError, match="is 0 tokens"):
        BYTES.to_single_token("")


def test_str_tokens_and_decode() -> None:
    ids = BYTES_BOS.encode("the lazy dog")
    assert "".join(BYTES_BOS.to_str_tokens(ids)) == "<|start|>the lazy dog" == BYTES_BOS.decode(ids)
    assert BYTES_BOS.to_str_tokens("the lazy dog") == BYTES_BOS.to_str_tokens(torch.tensor([ids]))
    assert BYTES_BOS.decode(ids, skip_special=True) == "the lazy dog"
    with pytest.raises(ValueError, match="take one row"):
        BYTES.decode(torch.ones(2, 3, dtype=torch.long))


# ------------------------------------------------------------------------------------------- disk and transformers


@pytest.fixture(params=[byte_level, sentencepiece])
def make(request: pytest.FixtureRequest) -> Callable[..., Tokenizer]:
    return request.param


@pytest.mark.parametrize("bos", [True, False])
def test_saved_tokenizer_is_the_same_here_and_in_transformers(
    make: Callable[..., Tokenizer], bos: bool, tmp_path: Path
) -> None:
    saved = make(bos=bos)
    saved.save(tmp_path)
    loaded, theirs = Tokenizer.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert loaded.hash == saved.hash
    assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (saved.bos_id, saved.eos_id, saved.pad_id)
    assert (loaded.add_bos, loaded.special_ids) == (bos, saved.special_ids)
    for text in [*CORPUS, "<|end|> x</s>y", " a", ""]:
        assert loaded.encode(text) == theirs(text)["input_ids"], text


def test_the_hash_tells_rules_apart() -> None:
    assert byte_level().hash == byte_level().hash
    assert len({BYTES.hash, BYTES_BOS.hash, PIECES.hash}) == 3


def write(folder: Path, backend: tokenizers.Tokenizer, **config: object) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def template(before: str, after: str) -> tokenizers.Tokenizer:
    backend = byte_level().backend
    names = [(name, backend.token_to_id(name)) for name in ("<|start|>", "<|end|>")]
    backend.post_processor = processors.TemplateProcessing(single=f"{before} $A {after}".strip(), special_tokens=names)
    return backend


def test_the_template_of_the_file_decides_about_bos_as_in_transformers(tmp_path: Path) -> None:
    for backend, expected in ((template("<|start|>", ""), True), (byte_level().backend, False)):
        for claim in ({}, {"add_bos_token": True}, {"add_bos_token": False}):
            folder = write(tmp_path, backend, bos_token="<|start|>", **claim)
            assert Tokenizer.from_folder(folder).add_bos is expected
            theirs = PreTrainedTokenizerFast.from_pretrained(folder)
            assert Tokenizer.from_folder(folder).encode("a b") == theirs("a b")["input_ids"]
    named = {"content": "<|end|>", "lstrip": False}
    loaded = Tokenizer.from_folder(write(tmp_path, template("<|start|>", ""), eos_token=named))
    assert (loaded.bos_id, loaded.eos_id) == (0, 1), "a BOS that only the template names, a token with its settings"


def test_a_template_may_close_a_text(tmp_path: Path) -> None:
    for before, after in (("<|start|>", "<|end|>"), ("", "<|end|>")):
        loaded = Tokenizer.from_folder(write(tmp_path, template(before, after), bos_token="<|start|>"))
        theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert (loaded.add_bos, loaded.closing_id) == (bool(before), 1)
        assert loaded.encode("a b") == theirs("a b")["input_ids"]


def test_rules_that_are_more_than_one_token_on_a_side_are_refused(tmp_path: Path) -> None:
    for before, after in (("<|start|> <|start|>", ""), ("", "<|end|> <|end|>"), ("<|start|>", "<|end|> <|end|>")):
        with pytest.raises(ValueError, match="more than one token before or after a text"):
            Tokenizer.from_folder(write(tmp_path, template(before, after), bos_token="<|start|>"))
    with pytest.raises(ValueError, match=r"begins a text with '<\|start\|>', which is not its BOS"):
        Tokenizer.from_folder(write(tmp_path, template("<|start|>", ""), bos_token="<|end|>"))


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer.json .*save_pretrained"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ValueError, match=r"'<pad>' of tokenizer_config.json is not in the vocabulary"):
        Tokenizer.from_folder(write(tmp_path, byte_level().backend, pad_token="<pad>"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="not a usable tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_a_named_special_token_is_one_token_in_a_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"<": 0, "e": 1, ">": 2, "<e>": 3}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    assert backend.encode("<e>").ids == [0, 1, 2]
    loaded = Tokenizer.from_folder(write(tmp_path, backend, eos_token="<e>"))
    assert loaded.encode("e<e>") == [1, 3]
    assert loaded.special_ids == {3}


def test_padding_and_truncation_of_the_file_are_not_used(tmp_path: Path) -> None:
    backend = byte_level().backend
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    loaded = Tokenizer.from_folder(write(tmp_path, backend))
    assert loaded.encode("the lazy dog jumps") == BYTES.encode("the lazy dog jumps")


def test_the_tokens_around_a_text_are_read_without_the_padding_of_the_file(tmp_path: Path) -> None:
    # Sentence encoders' files pad and cut: [CLS] a [SEP] [PAD] [PAD] ... is not "more than one token after a text".
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.enable_truncation(4)
    backend.enable_padding(length=10)
    loaded = Tokenizer.from_folder(write(tmp_path, backend, pad_token="[PAD]"))
    assert (loaded.add_bos, loaded.bos_id, loaded.closing_id, loaded.pad_id) == (True, 2, 3, 0)
    assert loaded.encode("a b a b a") == [2, 4, 5, 4, 5, 4, 3]
    loaded.save(tmp_path / "again")
    assert Tokenizer.from_folder(tmp_path / "again").encode("a b a b a") == [2, 4, 5, 4, 5, 4, 3]


# ---------------------------------------------------------------------------------------------------------- chat

CHAT = (
    "{{ bos_token }}{% for m in messages %}\n  {% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('no role ' + m.role) }}{% endif %}\n[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "hi\n  there "},
    {"role": "assistant", "content": "hé 👩‍👧", "tool_calls": None},
    {"role": "user", "content": "bye"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": ["<ü>"]}}}]
FEATURES = {
    "tools and documents are none": "{% if tools is none and documents is none %}N{% endif %}{% if tools %}T{% endif %}",
    "json": "{{ tools | tojson }}{{ messages | tojson(indent=2) }}{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}",
    "absent names are undefined": "{{ pad_token is defined }}{{ unk_token is defined }}{{ x is defined }}",
    "loop controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}{% if loop.index == 3 %}"
    "{% break %}{% endif %}{% endfor %}",
    "white space": "{% for m in messages %}\n    {%- if m.role == 'user' %}\n  u{{ m.content | trim }}\n    {% else %}\n a\n"
    "    {%- endif %}\n{% endfor %}\n",
    "keys that are None are absent": "{% for m in messages %}{{ 'tool_calls' in m }}{{ m.tool_calls is defined }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
    "{{ ns.n }}",
    "generation blocks": "{% set a = 1 %}{% for m in messages %}{% generation %}{% set a = 2 %}{{ m.content }}\n"
    "{% endgeneration %}\n{{ a }}{% endfor %}",
    "macros": "{% macro one(m) %}{{ m.role | upper }}:{{ m['content'] }}{{ eos_token }}{% endmacro %}"
    "{% for m in messages %}{{ one(m) }}{% endfor %}",
    "variables": "{% if enable_thinking is defined and not enable_thinking %}none{% endif %}{{ messages[-1].content }}",
    "a fixed date": "{% if strftime_now is defined %}{{ strftime_now('%d') | length }}{% endif %}",
}


def with_template(source: str | None) -> Tokenizer:
    return Tokenizer(byte_level().backend, bos_id=0, eos_id=1, add_bos=True, chat_template=source, name="chatty")


def twin(ours: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=ours.backend, bos_token="<|start|>", eos_token="<|end|>")


def test_chat_is_transformers_chat() -> None:
    ours, messages = with_template(CHAT), [{"role": "user", "content": "hi <b>"}]
    for prompt in (True, False):
        expected = twin(ours).apply_chat_template(
            messages, chat_template=CHAT, tokenize=False, add_generation_prompt=prompt
        )
        assert ours.apply_chat(messages, add_generation_prompt=prompt) == expected
    assert ours.encode(ours.apply_chat(messages)).count(0) == 1


@pytest.mark.parametrize("source", FEATURES.values(), ids=FEATURES.keys())
def test_what_templates_use_is_there_as_in_transformers(source: str) -> None:
    ours = with_template(source)
    for options in ({}, {"tools": TOOLS, "documents": [{"title": "t", "text": "x"}], "enable_thinking": False}):
        expected = twin(ours).apply_chat_template(TALK, chat_template=source, tokenize=False, **options)
        assert ours.apply_chat(TALK, add_generation_prompt=False, **options) == expected


def test_reasoning_goes_by_all_its_names() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}"
    for key in ("reasoning_content", "thinking", "reasoning"):
        talk = [{"role": "assistant", "content": "4", key: "2 + 2"}]
        expected = twin(with_template(source)).apply_chat_template(talk, chat_template=source, tokenize=False)
        assert with_template(source).apply_chat(talk, False) == expected


def test_the_date_is_the_clocks_or_the_callers() -> None:
    ours = with_template("{{ strftime_now('%Y-%m-%d') }}{{ messages[0].content }}")
    assert ours.apply_chat(TALK[1:2], now=datetime(2024, 7, 26)).startswith("2024-07-26")
    assert ours.apply_chat(TALK[1:2])[:4] >= "2024"


def test_the_models_own_template_is_transformers(catalogue_folder: Path) -> None:
    ours, theirs = Tokenizer.from_folder(catalogue_folder), PreTrainedTokenizerFast.from_pretrained(catalogue_folder)
    for talk in (TALK, TALK[1:], TALK[1:2], TALK[:2]):
        for prompt in (True, False):
            expected = theirs.apply_chat_template(talk, tokenize=False, add_generation_prompt=prompt)
            assert ours.apply_chat(talk, add_generation_prompt=prompt) == expected
            ids = theirs.apply_chat_template(talk, add_generation_prompt=prompt, return_dict=False)
            assert ours.encode(expected) == ids
    text, turns = ours.chat_spans(TALK[1:], add_generation_prompt=True)
    assert [role for role, _, _ in turns] == ["user", "assistant", "user", "assistant"]
    assert text[turns[1][1] : turns[1][2]] == "<|im_start|>assistant\nhé 👩‍👧<|im_end|>\n"


def test_turns_join_to_the_text() -> None:
    ours = with_template(CHAT)
    text, turns = ours.chat_spans(TALK[1:])
    assert text == ours.apply_chat(TALK[1:], add_generation_prompt=False)
    assert "".join(text[start:end] for _, start, end in turns) == text
    assert [(role, text[start:end]) for role, start, end in turns][1:] == [
        ("assistant", "[assistant]hé 👩‍👧<|end|>"),
        ("user", "[user]bye<|end|>"),
    ]
    text, turns = ours.chat_spans(TALK[1:], add_generation_prompt=True)
    assert (turns[-1][0], text[turns[-1][1] :]) == ("assistant", "[assistant]")
    forgetful = with_template(
        "{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}...{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="writes message 0 otherwise when more follow"):
        forgetful.chat_spans(TALK)


def test_chat_errors() -> None:
    with pytest.raises(ValueError, match="chatty has no chat template"):
        with_template(None).apply_chat([])
    with pytest.raises(ValueError, match="no role system"):
        with_template(CHAT).apply_chat([{"role": "system", "content": "x"}])
    with pytest.raises(ValueError, match="does not take these messages: there are none"):
        with_template(CHAT).apply_chat([])
    with pytest.raises(ValueError, match="does not take these messages"):
        with_template("{% if %}").apply_chat(TALK)
    with pytest.raises(ValueError, match="takes text, numbers, lists and dictionaries, got object"):
        with_template(CHAT).apply_chat([{"role": "user", "content": object()}])


def test_chat_templates_run_in_a_sandbox() -> None:
    for attack in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ messages[0].update({'role': 'system'}) }}",
    ):
        with pytest.raises(ValueError, match="does not take these messages"):
            with_template(attack).apply_chat([{"role": "user", "content": "x"}])


def test_named_tokens_outlive_saving(tmp_path: Path) -> None:
    named = {"bos_token": "<|start|>", "eos_token": "<|end|>", "unk_token": "<|end|>"}
    made = Tokenizer(byte_level().backend, bos_id=0, eos_id=1, named_tokens=named, chat_template="{{ unk_token }}")
    made.save(tmp_path)
    loaded, theirs = Tokenizer.from_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert loaded.named_tokens == {**named, "pad_token": "<|end|>"} == theirs.special_tokens_map
    assert loaded.apply_chat(TALK) == theirs.apply_chat_template(TALK, tokenize=False)


def test_templates_from_a_folder(tmp_path: Path) -> None:
    several = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    assert Tokenizer.from_folder(write(tmp_path, byte_level().backend, chat_template=several)).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert Tokenizer.from_folder(tmp_path).chat_template == "J"


def test_added_tokens_that_are_no_special_tokens() -> None:
    backend = byte_level().backend
    backend.add_tokens([AddedToken("héllo wörld", normalized=False)])
    tokenizer = Tokenizer(backend, special_ids=[0, 1])
    views = tokenizer.views(tokenizer.encode("a héllo wörld b"))
    assert "".join(view.text for view in views) == "a héllo wörld b"
    assert ("héllo wörld", "text") in {(view.text, view.kind) for view in views}
