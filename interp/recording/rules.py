"""Which tokens of a text are recorded: the `tokens=` of `record`.

1. `parse_rules` reads what the user wrote, one rule or a list of them: a word such as "last" or "mean:answer", a list of
   positions, or a function of a `TokenView`.
2. A word is a *pick* (all, last, first, mean) of a *span*: the text, the answer or any other stretch that the examples
   mark, a role of a chat, the prompt or what was generated. `TokenizedText` brings the spans, as ranges of tokens.
3. `rows_of` gives the rows of one text: every token that some rule asks for, once and in text order, then a row for each
   average.

A piece of a long text that overlaps the piece before gives only the tokens that the piece before did not hold, so that
each token of a document is recorded once.
"""

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp.tokens import Tokenizer
from interp.tokenview import TokenView

PICKS = ("all", "last", "first", "mean")
"""What a rule takes of a span."""
ROLES = ("system", "user", "assistant", "tool")
"""Spans that chat messages have by themselves."""
SPANS = ("text", "answer", "prompt", "generated", *ROLES)
"""Spans with a meaning of their own; any other name is looked for in the examples' columns."""
OPEN = -1
"""The end of a range that runs to the end of a text which is not written yet."""

Ranges = Mapping[str, list[tuple[int, int]]]
"""Name of a span -> ranges of tokens, each from its first to one past its last."""


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """One text as the rules see it."""

    ids: Int[np.ndarray, " pos"]
    """Token ids, int32, with what the tokenizer puts around the text."""
    number: int
    """Number of the text, for messages."""
    tokenizer: Tokenizer
    """Who made the ids."""
    text: str
    """The text of these ids."""
    prompt_len: int | None = None
    """Tokens of the prompt, where the text is a prompt and an answer to it."""
    spans: Ranges = field(default_factory=dict)
    """Where the marked spans and the turns of a chat lie, by name. A chat lacks no role: one that does not speak has no
    range."""
    own_from: int = 0
    """First token that the piece before did not hold; 0 where the text is no piece of a longer one."""
    cut: bool = False
    """The ids are a piece of a longer text."""

    @property
    def ordinary(self) -> Bool[np.ndarray, " pos"]:
        """Tokens that are neither special nor the first of the text."""
        found = ~np.isin(self.ids, _as_array(self.tokenizer.special_ids))
        found[0] = False
        return found

    def views(self) -> list[TokenView]:
        """What a person sees of each token, as `Tokenizer.views` gives it; made when first asked for."""
        return self._views

    @functools.cached_property
    def _views(self) -> list[TokenView]:
        bos_id = self.tokenizer.bos_id
        begins = None if bos_id is None else self.tokenizer.backend.id_to_token(bos_id)
        added = begins is not None and int(self.ids[0]) == bos_id and (self.cut or not self.text.startswith(begins))
        return self.tokenizer.views(self.ids.tolist(), bos_added=added, text=None if self.cut else self.text)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one text."""

    positions: Int[np.ndarray, " kept"]
    """Kept tokens, ascending, int32: a row for each."""
    averages: list[Int[np.ndarray, " _"]]
    """For each row that follows: the positions that are averaged, int32."""
    flags: list[Bool[np.ndarray, " row"]]
    """For each rule: which of the rows it asked for."""

    def __len__(self) -> int:
        return len(self.positions) + len(self.averages)


@dataclass(frozen=True)
class Rule:
    """One rule: a pick of a span, positions, or a function of a token."""

    name: str
    """As in the card and in the column `rule:<name>`."""
    pick: str = "all"
    """One of `PICKS`, "positions" or "predicate"."""
    span: str = "text"
    """What it picks from."""
    positions: tuple[int, ...] = ()
    """Of "positions"; negative ones count from the end."""
    predicate: Callable[[TokenView], Any] | None = None
    """Of "predicate"."""

    def picked(self, text: TokenizedText) -> Int[np.ndarray, " kept"]:
        """The positions that this rule takes of a text, ascending, int32."""
        if self.pick == "positions":
            return self._places(text)
        if self.predicate is not None:
            views, predicate = text.views()[text.own_from :], self.predicate
            try:
                return np.array([view.pos for view in views if predicate(view)], dtype=np.int32)
            except Exception as error:
                raise ValueError(
                    f"the function {self.name!r} of tokens= failed on text {text.number} ({text.text[:40]!r}): "
                    f"{type(error).__name__}: {error}"
                ) from error
        found = self._span(text)
        if self.pick == "mean":
            found = found[text.ordinary[found]]
            if len(found) == 0:
                raise ValueError(self._no_mean(text))
        return {"last": found[-1:], "first": found[:1]}.get(self.pick, found)

    def most_rows(self, n_prompt: int, n_new: int, spans: Ranges) -> int:
        """Rows that it takes at most of a prompt that grows by `n_new` tokens."""
        if self.pick in ("last", "first", "mean"):
            return 1
        if self.pick == "positions":
            return len(self.positions)
        if self.span == "text":
            return n_prompt + n_new
        return sum((n_prompt + n_new if end == OPEN else end) - start for start, end in spans[self.span])

    def _span(self, text: TokenizedText) -> Int[np.ndarray, " pos"]:
        if self.span == "text":
            return np.arange(text.own_from, len(text.ids), dtype=np.int32)
        if self.span not in text.spans:
            raise ValueError(missing_span(self.name, self.span, text.number))
        inside = np.zeros(len(text.ids), dtype=bool)
        for start, end in text.spans[self.span]:
            inside[start:end] = True
        inside[: text.own_from] = False
        return np.flatnonzero(inside).astype(np.int32)

    def _places(self, text: TokenizedText) -> Int[np.ndarray, " pos"]:
        n = len(text.ids)
        outside = [place for place in self.positions if not -n <= place < n]
        if outside:
            raise ValueError(
                f"text {text.number} has {n} tokens, so there is no position {outside[0]} in it ({text.text[:40]!r}): "
                "leave the text out, or ask for positions that every text has"
            )
        return np.unique(np.array(self.positions, dtype=np.int32) % n).astype(np.int32)

    def _no_mean(self, text: TokenizedText) -> str:
        mend = "pass bos=True if the model knows a BOS, or leave the text out"
        if text.cut:
            mend = "pass a stride below max_length, so that every piece has tokens before its own, or long='truncate'"
        return (
            f"text {text.number} has no token for tokens={self.name!r} ({text.text[:40]!r}): the mean leaves out special "
            f"tokens and the first token of a text, and nothing is left; {mend}"
        )


@dataclass(frozen=True)
class TokenRules:
    """What `tokens=` asks for, checked."""

    rules: tuple[Rule, ...]
    """In the order given."""

    def __post_init__(self) -> None:
        names = self.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            mend = "give functions names of their own" if twice in self._functions else "leave one out"
            raise ValueError(f"tokens= has two rules that are called {twice!r}: {mend}")

    @property
    def names(self) -> list[str]:
        """Name of each rule: its word, a function's `__name__`, or "positions[0,-1]"."""
        return [rule.name for rule in self.rules]

    @property
    def _functions(self) -> list[str]:
        return [rule.name for rule in self.rules if rule.predicate is not None]

    @property
    def spans(self) -> list[str]:
        """The spans that the rules pick from, without the whole text."""
        return list(dict.fromkeys(rule.span for rule in self.rules if rule.span != "text"))

    @property
    def averages(self) -> bool:
        """Whether some row is an average of tokens."""
        return any(rule.pick == "mean" for rule in self.rules)

    @property
    def needs_generation(self) -> bool:
        """Whether a rule asks for tokens that only a generation makes."""
        return "generated" in self.spans

    @property
    def several(self) -> bool:
        """Whether a row must say which rules it is for."""
        return len(self.rules) > 1

    @property
    def card(self) -> str | list[str]:
        """What the card says: a name, or a list of them."""
        return self.names if self.several else self.names[0]

    def naming(self, span: str) -> str:
        """The name of the first rule that picks from a span."""
        return next(rule.name for rule in self.rules if rule.span == span)

    def most_rows(self, n_prompt: int, n_new: int, spans: Ranges) -> int:
        """Rows of a prompt that grows by `n_new` tokens, at most."""
        counts = [(rule.pick == "mean", rule.most_rows(n_prompt, n_new, spans)) for rule in self.rules]
        kept = sum(count for average, count in counts if not average)
        return min(kept, n_prompt + n_new) + sum(count for average, count in counts if average)


def rows_of(rules: TokenRules, text: TokenizedText) -> Rows:
    """The rows of one text.

    Raises:
        ValueError: a span that the text does not mark, a position outside it, or nothing to average. The message names
            the text.
    """
    picked = [rule.picked(text) for rule in rules.rules]
    if not rules.several and not rules.averages:
        return Rows(picked[0], [], [np.ones(len(picked[0]), dtype=bool)])
    average = [rule.pick == "mean" for rule in rules.rules]
    single = [found for found, mean in zip(picked, average) if not mean]
    averages = [found for found, mean in zip(picked, average) if mean]
    if len(single) == 1:
        positions = single[0]
    else:
        positions = np.unique(np.concatenate(single)) if single else np.empty(0, dtype=np.int32)
    flags, n_averages = [], 0
    for found, mean in zip(picked, average):
        flag = np.zeros(len(positions) + len(averages), dtype=bool)
        flag[len(positions) + n_averages if mean else np.searchsorted(positions, found)] = True
        n_averages += mean
        flags.append(flag)
    return Rows(positions, averages, flags)


# ------------------------------------------------------------------------------------------------------------- parsing


def parse_rules(tokens: Any) -> TokenRules:
    """Read `tokens=`: a rule, or a list of rules.

    A rule is "all", "last", "first", "mean", the name of a span ("answer", "user" ...), a pick of a span ("mean:answer"),
    a list of positions (negative ones from the end), or a function of a `TokenView` that says whether to keep it. "mean"
    is a row per text: the average, in fp32, of the span's tokens that are neither special nor the first of the text.

    A name that is no word of its own may be a span that the examples mark; whether they do is seen at the first text.

    Raises:
        ValueError: what is no rule, an unknown pick with the nearest one, or two rules of one name.
    """
    if isinstance(tokens, TokenRules):
        return tokens
    if isinstance(tokens, str) or callable(tokens) or _is_positions(tokens):
        return TokenRules((_rule(tokens),))
    if isinstance(tokens, Mapping) or not isinstance(tokens, Iterable):
        raise ValueError(f"tokens={tokens!r} is no rule: pass {_known()}, or a list of rules")
    rules = tuple(map(_rule, tokens))
    if not rules:
        raise ValueError(f"tokens= is empty: pass {_known()}")
    return TokenRules(rules)


def rules_of_card(named: str | list[str]) -> TokenRules:
    """The rules that `TokenRules.card` named. A function becomes the span of its name, for its name is all there is."""
    found = []
    for name in [named] if isinstance(named, str) else named:
        places = re.fullmatch(r"positions\[(-?\d+(?:,-?\d+)*)\]", name)
        found.append(_rule([*map(int, places[1].split(","))]) if places else _word(name))
    return TokenRules(tuple(found))


def _rule(given: Any) -> Rule:
    if isinstance(given, str):
        return _word(given)
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        if name in (*PICKS, *SPANS):
            raise ValueError(
                f"tokens= has a function called {name!r}, which is the name of a rule: give it another one"
            )
        return Rule(name, "predicate", predicate=given)
    if _is_positions(given):
        places = tuple(dict.fromkeys(map(int, given)))
        return Rule(f"positions[{','.join(map(str, places))}]", "positions", positions=places)
    mend = f"; positions are a list, [{given}]" if isinstance(given, Integral) else ""
    raise ValueError(f"{given!r} is no token rule: pass {_known()}{mend}")


def _word(word: str) -> Rule:
    pick, colon, span = word.partition(":")
    if not colon:
        pick, span = (pick, "text") if pick in PICKS else ("all", pick)
    if pick not in PICKS:
        raise ValueError(f"tokens={word!r}: {pick!r} is unknown, there is {', '.join(map(repr, PICKS))}{_near(pick)}")
    if not span or span in PICKS or ":" in span or span != span.strip():
        raise ValueError(f"tokens={word!r} is no rule: write a pick, a span or 'pick:span', such as 'mean:answer'")
    if span == "text":
        return Rule(pick, pick)
    return Rule(span if pick == "all" else f"{pick}:{span}", pick, span)


def missing_span(rule: str, span: str, number: int) -> str:
    """The message for a text that does not say where a span lies."""
    mark = f"Example(meta={{'{span}_span': (start, end)}}), or {{'{span}_start': start}} where it runs to the end"
    if span not in SPANS:
        return (
            f"tokens={rule!r}: {span!r} is no word of its own (there is {', '.join(map(repr, (*PICKS, *SPANS)))}), and text "
            f"{number} does not mark its characters as {mark}{_near(span)}"
        )
    other = {"prompt": "record while generating, or ", "generated": "record while generating, or "}
    other |= dict.fromkeys(ROLES, "pass examples with messages, or ")
    return (
        f"tokens={rule!r} needs to know the {span} of text {number}: {other.get(span, '')}give its characters as {mark}"
    )


def _near(word: str) -> str:
    near = difflib.get_close_matches(word, (*PICKS, *SPANS), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _known() -> str:
    return f"one of {', '.join(map(repr, (*PICKS, *SPANS)))}, 'pick:span', a list of positions or a function"


def _is_positions(given: Any) -> bool:
    if isinstance(given, np.ndarray):
        return given.ndim == 1 and given.size > 0 and given.dtype.kind in "iu"
    listed = isinstance(given, list | tuple | range) and len(given) > 0
    return listed and all(isinstance(place, Integral) and not isinstance(place, bool) for place in given)


@functools.lru_cache(maxsize=8)
def _as_array(ids: frozenset[int]) -> Int[np.ndarray, " special"]:
    return np.array(sorted(ids), dtype=np.int32)
