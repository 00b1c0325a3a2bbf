"""What a person sees of each token: `TokenView`, cut from the bytes of the text.

Tokens are bytes, not characters: one emoji may be three tokens, and one token may end inside a character. So the views
are made from byte offsets:

1. `Spelling` turns each vocabulary piece into the bytes that it stands for.
2. The bytes of all tokens are joined and decoded; every character belongs to the token in which its first byte lies.
3. A token whose edge falls inside a character is `partial_utf8`, and shares its `group` with the tokens that hold the
   rest. A combining mark joins the group of the glyph that it changes.

The joined texts are therefore the decoded prompt, whatever the tokens are. WordPiece (BERT) spells characters, not bytes,
and keeps neither spaces nor, in most vocabularies, case: its tokens are shown by their piece, and their bytes are those of
the decoded text, or of the prompt itself where the tokenizer is given it.
"""

import bisect
import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TokenView:
    """One token as a person sees it."""

    pos: int
    """Index in the sequence."""
    id: int
    """Token id."""
    piece: str
    """The vocabulary's own spelling, for example `ĠParis`."""
    text: str
    """The characters that begin in this token; joined over the tokens they are the prompt."""
    start: int
    """First byte of the token in the UTF-8 of the prompt."""
    end: int
    """One past its last byte."""
    kind: str
    """text, space, newline, special, or partial_utf8 (begins or ends inside a character)."""
    group: int
    """Tokens that make one glyph together (a split character, a combining mark) share this number."""
    bytes: str
    """The bytes as hexadecimal digits."""
    spelled: bool = False
    """The piece is the label: WordPiece's `##ing` says that it continues a word, which its text does not."""

    @property
    def display(self) -> str:
        """A readable label, never empty: ↵ newline, ⇥ tab, · a space at an edge or in a run, ⟨U+200B⟩ for what has no
        glyph, ⟨E2 9C⟩ for the bytes of an incomplete character, the piece itself for a special token."""
        if self.kind == "special" or self.spelled or not self.bytes:
            return self.piece
        data = bytes.fromhex(self.bytes)
        found = _characters(data)
        ends = [start for start, _ in found[1:]] + [len(data)]
        shown = [f"⟨{data[a:b].hex(' ').upper()}⟩" if c is None else _glyph(c) for (a, c), b in zip(found, ends)]
        lone_mark = unicodedata.category(found[0][1] or " ").startswith("M")
        label = re.sub(r"^ +| +$| {2,}", lambda run: "·" * len(run[0]), "".join(shown))
        return "\u25cc" + label if lone_mark else label


def token_views(
    ids: Sequence[int],
    pieces: Sequence[str],
    parts: Sequence[bytes],
    special: Sequence[bool],
    *,
    spelled: bool = False,
) -> list[TokenView]:
    """Views of one text from each token's id, vocabulary spelling, bytes, and whether it is a special token."""
    data = b"".join(parts)
    characters = _characters(data)
    edges = [start for start, _ in characters] + [len(data)]
    views: list[TokenView] = []
    group, end, before = -1, 0, ""
    for pos, (i, piece, part, is_special) in enumerate(zip(ids, pieces, parts, special, strict=True)):
        start, end = end, end + len(part)
        low, high = bisect.bisect_left(edges, start), bisect.bisect_left(edges, end)
        own = [character for _, character in characters[low:high]]
        text = "".join("\ufffd" if character is None else character for character in own)
        opens, closes = edges[low] == start, edges[high] == end
        whole = opens and closes and None not in own
        kind = "special" if is_special else _kind(text) if whole else "partial_utf8"
        group += opens and not _extends(before, text)
        before = "" if is_special else text or before
        views.append(TokenView(pos, i, piece, text, start, end, kind, group, part.hex(), spelled))
    return views


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary spells a text: bytes `byte_level` (GPT-2's 256 signs), SentencePiece's ▁ and <0x0A>, or whole `words`
    (WordPiece), whose pieces only the tokenizer's own decoder joins."""

    byte_level: bool
    first_space: bool
    """Encoding puts a space before the first word."""
    every_space: bool
    """It does so again after each added token."""
    words: bool = False
    """Pieces are words and, behind a sign such as ##, parts that continue one."""

    @classmethod
    def of(cls, spec: Mapping[str, Any], name: str) -> "Spelling":
        parts = {
            key: {p["type"]: p for p in _flat(spec.get(key))} for key in ("normalizer", "pre_tokenizer", "decoder")
        }
        before, decoder = parts["pre_tokenizer"], parts["decoder"]
        if "ByteLevel" in decoder:
            space = bool(before.get("ByteLevel", {}).get("add_prefix_space"))
            return cls(byte_level=True, first_space=space, every_space=space)
        if "WordPiece" in decoder:
            return cls(byte_level=False, first_space=True, every_space=False, words=True)
        if "Metaspace" not in decoder and "Replace" not in decoder:
            raise ValueError(
                f"the tokens of {name} cannot be shown: its decoder {sorted(decoder)} is neither byte-level nor "
                "SentencePiece nor WordPiece"
            )
        scheme = before["Metaspace"].get("prepend_scheme", "always") if "Metaspace" in before else "never"
        every = scheme == "always" or "Prepend" in parts["normalizer"]
        return cls(byte_level=False, first_space=every or scheme == "first", every_space=every)

    def in_text(self, parts: Sequence[bytes], added: Sequence[bool], bos_added: bool) -> list[bytes]:
        """Bytes of each token in the text: without a BOS that was put before it, and without the spaces of encoding."""
        begin = 1 if bos_added and parts else 0
        found = [b"" if pos < begin else part for pos, part in enumerate(parts)]
        for pos in range(begin, len(found)):
            spaced = self.first_space if pos == begin else self.every_space and added[pos - 1]
            if spaced and (self.words or not added[pos]):
                found[pos] = found[pos].removeprefix(b" ")
        return found

    def to_bytes(self, piece: str) -> bytes:
        """The bytes that a vocabulary piece stands for."""
        if self.byte_level:
            table = _byte_level_table()
            # A piece with other signs was never made of bytes; the backend's decoder takes it literally as well.
            return bytes(table[c] for c in piece) if all(c in table for c in piece) else piece.encode()
        match = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
        return bytes.fromhex(match[1]) if match else piece.replace("\u2581", " ").encode()


@functools.cache
def _byte_level_table() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


def cut(text: str, ends: Sequence[int]) -> list[bytes]:
    """The bytes of a text cut behind the characters where its tokens end; spaces between words go to the word after them,
    those behind the last word to that."""
    parts, start = [], 0
    for pos, end in enumerate(ends):
        end = len(text) if pos == len(ends) - 1 else max(start, end)
        parts.append(text[start:end].encode())
        start = end
    return parts


def step_types(part: Any) -> set[str]:
    """The kinds of the steps of a normaliser, pre-tokenizer or decoder, as tokenizer.json names them."""
    return {step["type"] for step in _flat(part)}


def _flat(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normaliser, pre-tokenizer or decoder, whether it is none, one or a sequence."""
    if part:
        inner = part.get("normalizers") or part.get("pretokenizers") or part.get("decoders")
        if inner is None:
            yield part
        else:
            for step in inner:
                yield from _flat(step)


def _characters(data: bytes) -> list[tuple[int, str | None]]:
    """(first byte, character) in order; None for a run of bytes that is no UTF-8, cut as `errors="replace"` cuts."""
    found: list[tuple[int, str | None]] = []
    offset = 0
    while offset < len(data):
        try:
            good, bad = data[offset:].decode(), 0
        except UnicodeDecodeError as error:
            good, bad = data[offset : offset + error.start].decode(), error.end - error.start
        for character in good:
            found.append((offset, character))
            offset += len(character.encode())
        if bad:
            found.append((offset, None))
            offset += bad
    return found


def _kind(text: str) -> str:
    if text and text.isspace():
        return "newline" if "\n" in text or "\r" in text else "space"
    return "text"


def _extends(before: str, text: str) -> bool:
    """Whether `text` begins with a sign that belongs to the glyph before it."""
    if not before or not text:
        return False
    mark = (
        unicodedata.category(text[0]).startswith("M") or text[0] == "\u200d" or "\U0001f3fb" <= text[0] <= "\U0001f3ff"
    )
    return mark or before[-1] == "\u200d"


def _glyph(character: str) -> str:
    named = {"\n": "↵", "\t": "⇥"}.get(character)
    if named:
        return named
    if unicodedata.category(character) in ("Cc", "Cf", "Cn", "Co", "Zl", "Zp", "Zs") and character != " ":
        return f"⟨U+{ord(character):04X}⟩"
    return character


def token_label(text: str, width: int = 200) -> str:
    """A token as a reader sees it: `·` for a space at an edge, ↵, ⇥, ⟨U+200B⟩ for what has no glyph.

    Args:
        text: the token's text; a lone surrogate is shown by its bytes.
        width: longest label in characters; a longer one loses its middle to an ellipsis.
    """
    text = _shortened(text, 2 * width)  # before the work, for a text can be a whole file
    data = text.encode("utf-8", "surrogatepass")
    label = TokenView(0, 0, text, text, 0, len(data), "text", 0, data.hex()).display if data else "⟨empty⟩"
    return _shortened(label, width)


def _shortened(text: str, width: int) -> str:
    tail = (width - 1) // 2
    return text if len(text) <= width else text[: width - 1 - tail] + "…" + text[len(text) - tail :]
