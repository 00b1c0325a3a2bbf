"""Conversations to text by a model's own chat template, byte for byte as transformers renders them.

A template is a Jinja program that came with the weights, so it is not trusted: it runs in Jinja's sandbox and sees plain
values only. What it may use is what templates are written for: `messages`, `tools`, `documents`, `add_generation_prompt`,
the special tokens by name (only those that the tokenizer has), `raise_exception`, `strftime_now`, the filter `tojson`,
`break` and `continue` in loops, and `{% generation %}` blocks.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message may carry its reasoning; templates read the first, or the second."""
REFUSALS = (TemplateError, TypeError, KeyError, ValueError, AttributeError, IndexError)


class Chatting:
    """The part of Tokenizer that writes conversations."""

    name: str
    chat_template: str | None
    named_tokens: dict[str, str]

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation by the model's own template, byte for byte as transformers renders it.

        Args:
            messages: `{"role": "user" | "assistant" | "system", "content": text}`, in order.
            add_generation_prompt: end with the opening of the assistant's turn.
            tools: JSON schemas of functions that the model may call.
            documents: `{"title": ..., "text": ...}` to answer from.
            now: the time for a template that writes today's date; None for the clock. Give it where one conversation
                must be one text on every day.
            variables: what else the template reads, for example `enable_thinking=False`.

        The text may begin with the BOS, which `tokenize` does not double.

        Raises:
            ValueError: the model has no template, or the template refuses the messages.
        """
        if self.chat_template is None:
            raise ValueError(f"{self.name} has no chat template: pass plain text instead")
        try:
            return render_chat(
                self.chat_template,
                messages,
                special_tokens=self.named_tokens,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                documents=documents,
                now=now,
                variables=variables,
            )
        except ValueError as error:
            raise ValueError(f"the chat template of {self.name} does not take these messages: {error}") from None

    def chat_spans(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False, **options: Any
    ) -> tuple[str, list[tuple[str, int, int]]]:
        """(text, turns): who speaks from which to which character, for masks by role.

        A turn is what its message adds to the text: the header, the content, the end sign. The first turn holds what the
        template puts before it (BOS, a system prompt of its own). The turns join to the text. An opened turn of the
        assistant is the last, with the role "assistant". Arguments as in `apply_chat`.

        Raises:
            ValueError: as in `apply_chat`, or a template that changes earlier turns when later ones come.
        """
        options = {"now": datetime.now(), **options}
        text = self.apply_chat(messages, add_generation_prompt, **options)
        turns: list[tuple[str, int, int]] = []
        end, before = 0, ""
        for n in range(1, len(messages) + 1):
            part = self.apply_chat(messages[:n], False, **options)
            if not part.startswith(before) or not text.startswith(part):
                raise ValueError(
                    f"the chat template of {self.name} writes message {n - 1} otherwise when more follow it, so its turns have "
                    "no places of their own: find them in the text of apply_chat"
                )
            turns.append((str(messages[n - 1]["role"]), end, len(part)))
            end, before = len(part), part
        if add_generation_prompt and end < len(text):
            turns.append(("assistant", end, len(text)))
        return text, turns


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    special_tokens: Mapping[str, str],
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    now: datetime | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The text of a conversation.

    Args:
        template: Jinja source.
        messages: `{"role": ..., "content": ...}` in order; keys whose value is None count as absent.
        special_tokens: `bos_token` and so on, as the template sees them.
        add_generation_prompt: end with the opening of the assistant's turn.
        tools: JSON schemas of functions that the model may call.
        documents: `{"title": ..., "text": ...}` to answer from.
        now: the time that `strftime_now` shows; None for the clock.
        variables: what else the template reads, such as `enable_thinking`.

    Raises:
        ValueError: no message, or the template refuses what it was given.
    """
    if not messages:
        raise ValueError("there are none")
    try:
        return _compiled(template).render(
            {
                **special_tokens,
                **_plain(variables or {}),
                "messages": [_message(message) for message in messages],
                "tools": _plain(tools),
                "documents": _plain(documents),
                "add_generation_prompt": add_generation_prompt,
                "strftime_now": lambda form: (now or datetime.now()).strftime(form),
            }
        )
    except REFUSALS as error:
        raise ValueError(str(error)) from None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"a message must be a dictionary with role and content, got {message!r}")
    plain = {key: value for key, value in _plain(message).items() if value is not None}
    reasoning = next((plain[key] for key in REASONING if key in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """The value in fresh dictionaries, lists, strings and numbers, so that a template meets no object with methods."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise TypeError(f"a chat template takes text, numbers, lists and dictionaries, got {type(value).__name__}")


# --------------------------------------------------------------------------------------------------- the environment


class _GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's own text for trainers; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which a model was not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)
