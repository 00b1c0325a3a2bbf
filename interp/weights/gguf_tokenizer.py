"""A tokenizer from GGUF metadata, as the model's own tokenizer.json would be.

A GGUF file holds the vocabulary, merges or scores, and one word (`tokenizer.ggml.pre`) for the rule that cuts a text
into words before the merges. The two kinds that decoders use are built here:

- `gpt2`: byte-level BPE. The word must be known, since a wrong rule gives wrong ids for numbers, spaces and non-Latin
  scripts without any error.
- `llama`: SentencePiece BPE. Merges follow from the scores, a missing character falls back to bytes.

The rules are llama.cpp's (`src/llama-vocab.cpp`) in the terms of the `tokenizers` package. Where transformers' own
reader leaves the word aside (`smollm` splits digits, so a run of spaces before a number is cut otherwise), we follow
the model's tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from interp.tokens import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""`tokenizer.ggml.token_type`, of which the second and third stand for no text."""

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Words:
    """How a text is cut into words before the merges of a byte-level BPE."""

    regex: str | None = None
    """What counts as one word; None is GPT-2's rule."""
    digits: bool = False
    """Each digit is a word of its own, split off first."""
    nfc: bool = False
    """The text is brought to Unicode's NFC form first."""
    whole_words: bool = False
    """A word that is in the vocabulary is one token, whatever the merges say."""
    add_bos: bool = False
    """A BOS begins a text where the file does not say."""


WORDS = {
    "gpt-2": Words(),
    **dict.fromkeys(("smollm", "starcoder", "refact"), Words(digits=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Words(LLAMA3, whole_words=True, add_bos=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Words(QWEN2, nfc=True)),
    "tekken": Words(TEKKEN, whole_words=True, add_bos=True),
}
"""`tokenizer.ggml.pre` -> rule."""


def build_tokenizer(metadata: Mapping[str, Any], name: str) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises:
        ValueError: a kind or a word rule that is not known, or an EOS after every text; each says to put the model's
            tokenizer.json beside the file.
    """
    prefix = "tokenizer.ggml."
    values = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    kind, pre = values.get("model"), values.get("pre", "default")
    tokens = values.get("tokens")
    if kind not in ("gpt2", "llama") or not tokens:
        raise ValueError(_mend(name, f"its tokenizer is of kind {kind!r}"))
    if kind == "gpt2" and pre not in WORDS:
        raise ValueError(_mend(name, f"its tokenizer's word rule {pre!r} is not known"))
    if "merges" not in values and (kind == "gpt2" or "scores" not in values):
        raise ValueError(_mend(name, "it holds no merges"))
    if values.get("add_eos_token"):
        raise ValueError(_mend(name, "its tokenizer puts an EOS after each text, which no supported family does"))
    unk = tokens[values["unknown_token_id"]] if "unknown_token_id" in values else None
    backend = _byte_level(values, WORDS[pre]) if kind == "gpt2" else _sentencepiece(values, unk)
    special = _add_tokens(backend, tokens, values.get("token_type") or [])
    bos = values.get("bos_token_id")
    add_bos = values.get("add_bos_token", bos is not None and (kind == "llama" or WORDS[pre].add_bos))
    return Tokenizer(
        backend,
        bos_id=bos,
        eos_id=values.get("eos_token_id"),
        pad_id=values.get("padding_token_id"),
        special_ids=special,
        add_bos=bool(add_bos),
        chat_template=metadata.get("tokenizer.chat_template"),
        name=name,
    )


def _byte_level(values: Mapping[str, Any], words: Words) -> Backend:
    vocab = {token: i for i, token in enumerate(values["tokens"])}
    merges = [_pair(merge) for merge in values["merges"]]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=words.whole_words))
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    if words.regex is not None:
        steps.append(pre_tokenizers.Split(Regex(words.regex), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words.regex is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    if words.nfc:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece(values: Mapping[str, Any], unk: str | None) -> Backend:
    tokens: list[str] = values["tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [_pair(merge) for merge in values["merges"]] if "merges" in values else _merges(values)
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token=unk, fuse_unk=True, byte_fallback=True))
    space = bool(values.get("add_space_prefix", True))
    prepend = [normalizers.Prepend("\u2581")] if space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if space else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """SentencePiece merges whatever gives the best-scored piece: every split of a piece into two, best pieces first."""
    tokens, scores = values["tokens"], values["scores"]
    kinds = values.get("token_type") or [NORMAL] * len(tokens)
    mergeable = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (NORMAL, USER_DEFINED)}
    found = [
        (-scores[i], i, mergeable[piece[:cut]], mergeable[piece[cut:]], piece[:cut], piece[cut:])
        for piece, i in mergeable.items()
        for cut in range(1, len(piece))
        if piece[:cut] in mergeable and piece[cut:] in mergeable
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _add_tokens(backend: Backend, tokens: Sequence[str], kinds: Sequence[int]) -> list[int]:
    """Declare the tokens that are matched whole in a text; returns the ids of those that stand for no text."""
    special = [i for i, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)]
    backend.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in special])
    user = [token for token, kind in zip(tokens, kinds) if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    return special


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _mend(name: str, what: str) -> str:
    return (
        f"the tokenizer of {name} cannot be built from the GGUF file ({what}): put the model's tokenizer.json beside it"
    )
