"""One example as one text, and where the spans lie that the rules pick from.

1. `Reader.read` gives the text, and each span as ranges of its characters: the marks in the example's columns, the turns
   of a chat, which its model's template writes out.
2. `Reader.encode` tokenises many texts at once, with the characters of each token where a span needs them.
3. `Reader.ranges` turns characters into tokens: a token belongs to a span if it has one of its characters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.dataset import Example
from interp.recording.rules import OPEN, ROLES, TokenRules, missing_span
from interp.tokens import Tokenizer

CHAT_TIME = datetime(2025, 1, 1)
"""The time that chat templates are told, so that a chat is the same text on every day."""

Stretches = list[tuple[int, int]]
"""Ranges of characters, or of tokens, each from its first to one past its last."""

_STAND_IN = "stand-in for a message"


@dataclass(frozen=True)
class Input:
    """An example as a text."""

    text: str
    """The text, a chat written out."""
    spans: Mapping[str, Stretches]
    """Name -> the characters of the span."""
    prompt_end: int | None = None
    """Characters before the last answer of a chat; all of them where nobody answers."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as tokens."""

    ids: Int[np.ndarray, " pos"]
    """Token ids, int32, with the BOS and the closing token."""
    shift: int
    """1 if a BOS was put before the text, else 0."""
    characters: Stretches | None
    """What each token of the text itself stands for, where a span needs it."""


@dataclass(frozen=True)
class Reader:
    """Reads examples by the rules of a tokenizer."""

    tokenizer: Tokenizer
    """The model's."""
    rules: TokenRules
    """Which spans must be found."""
    bos: bool
    """Put a BOS before each text."""
    generating: bool
    """The texts are prompts: they are not closed, and a chat ends where the assistant is to speak."""

    def read(self, example: Example, number: int) -> Input:
        """The text of an example, and the characters of each span that the rules pick from.

        A turn of a chat is its content and what the template puts behind it (the end sign), without its header. Where the
        template changes a content so much that its place cannot be told, the turn is taken whole.

        Raises:
            ValueError: an empty text, a span that is not marked or not inside the text, messages that the template
                refuses, or a chat to be continued that ends with the assistant.
        """
        if example.messages is not None:
            return self._read_chat(example, example.messages, number)
        if not example.text:
            raise ValueError(f"text {number} is empty: drop it")
        own = ("prompt", "generated") if self.generating else ()
        spans = {span: [self._marked(example, span, number)] for span in self.rules.spans if span not in own}
        return Input(example.text, spans)

    def encode(self, inputs: Sequence[Input], first: int) -> list[Encoded]:
        """Tokenise texts; `first` is the number of the first one, for messages.

        Raises:
            ValueError: a text that is no text, or has no token.
        """
        texts = [read.text for read in inputs]
        for number, text in enumerate(texts, start=first):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"text {number} cannot be tokenised: it holds a lone surrogate, which is no character ({error})"
                ) from None
        tokenizer, placed = self.tokenizer, any(read.spans or read.prompt_end is not None for read in inputs)
        # Without the characters it is faster.
        batch = tokenizer.backend.encode_batch if placed else tokenizer.backend.encode_batch_fast
        closing = None if self.generating else tokenizer.closing_id
        found = []
        for number, encoding in enumerate(batch(texts, add_special_tokens=False), start=first):
            own = encoding.ids
            head = [tokenizer.bos_id] if self.bos and own[:1] != [tokenizer.bos_id] else []
            tail = [] if closing is None or own[-1:] == [closing] else [closing]
            if not head and not own and not tail:
                raise ValueError(f"text {number} has no token ({texts[number - first][:40]!r}): drop it")
            ids = np.array([*head, *own, *tail], dtype=np.int32)
            found.append(Encoded(ids, len(head), encoding.offsets if placed else None))
        return found

    def ranges(self, read: Input, encoded: Encoded, limit: int, number: int) -> tuple[dict[str, Stretches], int | None]:
        """(spans, prompt_len) of a text of which the first `limit` tokens are kept: each span as ranges of tokens.

        Raises:
            ValueError: a span without a token, or one that the example marks and that has tokens beyond the limit.
        """
        kept = min(len(encoded.ids), limit)
        spans: dict[str, Stretches] = {name: [] for name in read.spans}
        prompt_len = kept if self.generating else None
        if encoded.characters is not None:
            bounds = np.array(encoded.characters, dtype=np.int64).reshape(-1, 2)
            for name, ranges in read.spans.items():
                for start, stop in ranges:
                    inside = np.flatnonzero((bounds[:, 0] < stop) & (bounds[:, 1] > start)) + encoded.shift
                    where = f"{name}, characters {start} to {stop}"
                    spans[name] += _checked(inside, kept, f"text {number}: ", where, read.prompt_end is not None)
            if read.prompt_end is not None and not self.generating:
                before = encoded.shift + int(np.count_nonzero(bounds[:, 0] < read.prompt_end))
                prompt_len = min(before, kept)
        if prompt_len is not None:
            spans.setdefault("prompt", [(0, prompt_len)])
        if self.generating:
            spans["generated"] = [(kept, OPEN)]
            if read.prompt_end is not None and "assistant" in spans:
                spans["assistant"].append((kept, OPEN))
        return spans, prompt_len

    def _read_chat(self, example: Example, messages: Sequence[Mapping[str, Any]], number: int) -> Input:
        if self.generating and messages and messages[-1].get("role") == "assistant":
            raise ValueError(f"text {number} ends with a message of the assistant: leave it out to have it generated")
        try:
            text, turns = self._turns(messages)
        except ValueError as error:
            raise ValueError(f"text {number} cannot be written as a chat: {error}") from None
        found: dict[str, Stretches] = {role: [] for role in ROLES}
        for index, (role, start, end) in enumerate(turns, start=len(messages) - len(turns)):
            found.setdefault(role, []).append((self._content_start(messages, index, text, start, end), end))
        answers = [] if self.generating else found["assistant"]
        own = ("prompt", "generated") if self.generating else ("prompt",)
        wanted = [span for span in self.rules.spans if span not in own]
        spans = {span: found[span] if span in found else [self._marked(example, span, number)] for span in wanted}
        return Input(text, spans, answers[-1][0] if answers else len(text))

    def _turns(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[str, int, int]]]:
        """The text of a chat, and (role, start, end) of each message; only of the last one where a template writes earlier
        ones otherwise when more follow (it drops their reasoning) and no rule asks for a role."""
        text = self.tokenizer.apply_chat(messages, self.generating, now=CHAT_TIME)
        try:
            return text, self.tokenizer.chat_spans(messages, self.generating, now=CHAT_TIME)[1][: len(messages)]
        except ValueError:
            if set(self.rules.spans) - {"prompt", "generated"}:
                raise
            if self.generating:
                return text, []
            prompt = self.tokenizer.apply_chat(messages[:-1], True, now=CHAT_TIME)
            if messages[-1]["role"] != "assistant" or not text.startswith(prompt):
                raise
            return text, [("assistant", len(prompt), len(text))]

    def _content_start(self, messages: Sequence[Mapping[str, Any]], index: int, text: str, start: int, end: int) -> int:
        """Where the content of a turn begins; where the turn begins if that cannot be told."""
        content = messages[index].get("content")
        if not isinstance(content, str) or not content:
            return start
        turn = text[start:end]
        if turn.count(content) == 1:
            return start + turn.index(content)
        # The content is changed, or stands in the header too (a user who says "user"): write another one in its place.
        other = [*messages[:index], {**messages[index], "content": _STAND_IN}]
        try:
            written = self.tokenizer.apply_chat(other, False, now=CHAT_TIME)
        except ValueError:
            return start
        header = written[start : max(written.rfind(_STAND_IN), start)]
        same = written.startswith(text[:start]) and turn.startswith(header)
        return start + len(header) if same else start

    def _marked(self, example: Example, span: str, number: int) -> tuple[int, int]:
        """The characters that an example's columns mark as a span."""
        given, start = example.meta.get(f"{span}_span"), example.meta.get(f"{span}_start")
        if given is None and start is None:
            raise ValueError(missing_span(self.rules.naming(span), span, number))
        if example.messages is not None:
            raise ValueError(
                f"text {number} marks the characters of its {span}, but it is a chat, whose text only the template knows: "
                "pick from a role, or give the text instead of messages"
            )
        marked: Any = (start, len(example.text)) if given is None else given
        try:
            start, stop = map(_whole, marked)
        except (TypeError, ValueError):
            raise ValueError(f"text {number}: the {span} is marked as (start, end), got {marked!r}") from None
        if not 0 <= start < stop <= len(example.text):
            raise ValueError(
                f"text {number}: the {span}, characters {start} to {stop}, is not inside its {len(example.text)} "
                "characters"
            )
        return start, stop


def _whole(value: Any) -> int:
    """A place that an example gives, also as the float or the text that a column with gaps makes of it."""
    found = int(value)
    if not isinstance(value, str) and found != value:
        raise ValueError(f"{value!r} is no whole number")
    return found


def _checked(inside: Int[np.ndarray, " n"], kept: int, prefix: str, where: str, chat: bool) -> Stretches:
    """The range of these tokens; none for a turn of a chat that was cut off or holds no token."""
    inside, before = inside[inside < kept] if chat else inside, inside
    if len(inside) == 0 and len(before) == 0:
        raise ValueError(f"{prefix}no token lies in its {where}")
    if len(inside) and int(inside[-1]) >= kept:
        raise ValueError(
            f"{prefix}its {where} (tokens {inside[0]} to {inside[-1]}) lies beyond the limit of {kept} tokens: shorten "
            "what stands before it"
        )
    return [(int(inside[0]), int(inside[-1]) + 1)] if len(inside) else []
