"""The built-in explainer: a label by counting, which is also a rule that can be tested on any passage.

1. Every token of the page's passages is one case: it fires, with a weight (its activation), or it does not.
2. Candidates are tests of one token: it is one of a few tokens, a spelling of one word, of a kind of characters, begins
   or ends in certain letters, stands behind or before a certain token, or near the start of the text.
3. Of a candidate the recall is the share of the activation that falls on tokens which pass. Its precision follows from
   that, from the share of silent tokens which pass, and from how often the latent fires at all: passages of a page are
   chosen ones, so counting in them would flatter. The best harmonic mean (F1) wins, at a price for each condition.
4. A second condition (the token before, the token after, the position, the kind) is added where it is worth its price.
5. Where nothing reaches a recall of one half, the label says that there is no single token, and names the commonest.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from interp.sae.labels.page import ExplainerPage
from interp.sae.labels.passages import Passage

MIN_RECALL = 0.5
"""A rule that covers less of the activation is no regularity."""
PRICE = 0.03
"""F1 that each condition, and each further token of a list, has to bring."""
_SEEN = 2
"""Firings after or before which a token must stand to be named: one is no regularity."""
_AFFIX = range(2, 6)
"""Lengths of beginnings and endings that are tried."""
_AFFIXES = 8
"""How many of them, those with most of the activation."""


def _is_word(token: str) -> bool:
    return token.strip().isalpha()


KINDS: Mapping[str, Callable[[str, str], bool]] = {
    "a line break": lambda token, _: "\n" in token,
    "white space": lambda token, _: token.isspace(),
    "a number": lambda token, _: token.strip().isdigit(),
    "the start of a number": lambda token, before: token.strip().isdigit() and not before[-1:].isdigit(),
    "the middle or end of a number": lambda token, before: token[:1].isdigit() and before[-1:].isdigit(),
    "punctuation": lambda token, _: bool(token.strip()) and not any(map(str.isalnum, token)),
    "a capitalised word": lambda token, _: _is_word(token) and token.strip().istitle(),
    "capital letters": lambda token, _: _is_word(token) and len(token.strip()) > 1 and token.strip().isupper(),
    "a word in small letters": lambda token, _: _is_word(token) and token[:1].isspace() and token.strip().islower(),
    "the middle or end of a word": lambda token, before: token[:1].isalpha() and before[-1:].isalpha(),
    "letters outside ASCII": lambda token, _: _is_word(token) and not token.isascii(),
}
"""What a token can be, by its characters and those of the token before."""

CONDITIONS = ("tokens", "word", "kind", "prefix", "suffix", "behind", "ahead", "position")
"""The fields of a rule that are conditions."""


@dataclass(frozen=True)
class Rule:
    """A test of single tokens in their passage. All conditions that are given must hold; str() is the label."""

    tokens: tuple[str, ...] = ()
    """The token is one of these."""
    word: str | None = None
    """The token is this word, in any case and with or without white space around it."""
    kind: str | None = None
    """The token is of this kind, one of KINDS."""
    prefix: str | None = None
    """The token begins with this, white space aside."""
    suffix: str | None = None
    """The token ends in this, white space aside."""
    behind: tuple[str, ...] = ()
    """The token before is one of these."""
    ahead: tuple[str, ...] = ()
    """The token after is one of these."""
    position: int | None = None
    """The token stands at this position of its text or an earlier one."""
    recall: float = 0.0
    """Share of the activation on the page that falls on tokens which pass."""
    precision: float = 0.0
    """Share of the tokens which pass that are expected to fire the latent."""
    n: int = 0
    """Tokens of the page on which the latent fires."""

    @property
    def f1(self) -> float:
        """Harmonic mean of recall and precision."""
        total = self.recall + self.precision
        return 2 * self.recall * self.precision / total if total else 0.0

    @property
    def n_conditions(self) -> int:
        """What one has to remember: conditions, and further tokens in a list."""
        single = (self.word, self.kind, self.prefix, self.suffix, self.position)
        return len(self.tokens) + len(self.behind) + len(self.ahead) + sum(each is not None for each in single)

    def fits(self, passage: Passage) -> Bool[np.ndarray, " token"]:
        """Which tokens of a passage pass."""
        return self.fits_in(_Tokens.of([passage]))

    def fits_in(self, tokens: "_Tokens") -> Bool[np.ndarray, " token"]:
        """Which of many tokens pass; none, where there is no condition."""
        found = [
            tokens.passing(name, getattr(self, name)) for name in CONDITIONS if getattr(self, name) not in (None, ())
        ]
        return np.logical_and.reduce(found) if found else np.zeros(len(tokens.here), dtype=bool)

    def holds(self, passage: Passage) -> bool:
        """Whether any token of a passage passes: whether the latent is expected to fire in it."""
        return bool(self.fits(passage).any())

    def __str__(self) -> str:
        """The label, with the share of the activation that it covers."""
        share = f"({self.recall:.0%} of its activation)"
        if self.recall < MIN_RECALL:
            return (
                f"no single token: most often {_listed(self.tokens)} {share}" if self.tokens else "no regularity found"
            )
        what = [f"token {_listed(self.tokens)}"] if self.tokens else []
        what += [f"the word {self.word!r} in any spelling"] if self.word is not None else []
        what += [self.kind] if self.kind is not None else []
        what += [f"a token that begins with {self.prefix!r}"] if self.prefix is not None else []
        what += [f"a token that ends in {self.suffix!r}"] if self.suffix is not None else []
        where = [f"after {_listed(self.behind)}"] if self.behind else []
        where += [f"before {_listed(self.ahead)}"] if self.ahead else []
        if self.position is not None:
            where += [
                f"among the first {self.position + 1} tokens of a text" if self.position else "at the start of a text"
            ]
        return f"{', '.join(what) or 'any token'} {' '.join(where)}".rstrip() + f" {share}"

    def as_json(self) -> dict[str, Any]:
        """JSON-ready; `rule_from_json` reads it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


def rule_from_json(fields: Mapping[str, Any]) -> Rule:
    """The rule that `Rule.as_json` described. ValueError for a field or a kind that no rule has."""
    unknown = set(fields) - set(Rule.__dataclass_fields__)
    if unknown:
        raise ValueError(f"a rule has no field {', '.join(sorted(unknown))}: it was saved by another version")
    if (kind := fields.get("kind")) is not None and kind not in KINDS:
        raise ValueError(f"there is no kind of token {kind!r}: the rule was saved by another version")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Rule(**given)


def statistics_explainer(page: ExplainerPage) -> Rule:
    """The rule that describes best on which tokens a latent fires; str() of it is the label. Deterministic.

    Raises:
        ValueError: a page without examples.
    """
    cases = _Cases(page)
    firing = cases.weighed(cases.tokens.here)
    contexts = [
        *(Rule(behind=names) for names in _shortlists(cases.weighed(cases.tokens.before, _SEEN), 3)),
        *(Rule(ahead=names) for names in _shortlists(cases.weighed(cases.tokens.after, _SEEN), 3)),
        *(Rule(position=at) for at in range(4)),
    ]
    best = _best([cases.scored(rule) for rule in (*_about_the_token(firing), *contexts)])
    more = (*contexts, *(Rule(kind=kind) for kind in KINDS))
    best = _best([best, *(cases.scored(_joined(best, rule)) for rule in more)])
    if best.recall >= MIN_RECALL:
        return best
    return cases.scored(Rule(tokens=tuple(firing)[:3]))


@dataclass(frozen=True)
class _Tokens:
    """The tokens of passages, one after the other, with their neighbours."""

    here: tuple[str, ...]
    before: tuple[str, ...]
    """The token before each, "" at the start of a passage."""
    after: tuple[str, ...]
    position: Int[np.ndarray, " token"]
    """Of each in its text."""
    known: dict[tuple[str, Any], Bool[np.ndarray, " token"]]
    """What single conditions gave: rules share them."""

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> "_Tokens":
        here = tuple(token for passage in passages for token in passage.tokens)
        before = tuple(token for passage in passages for token in ("", *passage.tokens)[:-1])
        after = tuple(token for passage in passages for token in (*passage.tokens, "")[1:])
        places = [np.arange(passage.start, passage.start + len(passage.tokens)) for passage in passages]
        return cls(here, before, after, np.concatenate([np.empty(0, np.int64), *places]), {})

    def passing(self, condition: str, value: Any) -> Bool[np.ndarray, " token"]:
        """Which tokens fulfil one condition of a rule."""
        if (condition, value) not in self.known:
            self.known[condition, value] = np.array(self._tested(condition, value), dtype=bool)
        return self.known[condition, value]

    def _tested(self, condition: str, value: Any) -> Iterable[bool]:
        match condition:
            case "tokens":
                return [token in value for token in self.here]
            case "word":
                return [token.strip().casefold() == value for token in self.here]
            case "kind":
                return [KINDS[value](*pair) for pair in zip(self.here, self.before, strict=True)]
            case "prefix":
                return [token.strip().startswith(value) for token in self.here]
            case "suffix":
                return [token.strip().endswith(value) for token in self.here]
            case "behind":
                return [token in value for token in self.before]
            case "ahead":
                return [token in value for token in self.after]
            case "position":
                return (self.position <= value).tolist()
        raise AssertionError(f"{condition} is no condition of a rule")


class _Cases:
    """The tokens of a page's passages: which fire the latent, how strongly, and which do not."""

    def __init__(self, page: ExplainerPage) -> None:
        passages = (*page.examples, *page.quantiles, *page.others)
        self.tokens = _Tokens.of(passages)
        self.weight = np.array([value for context in passages for value in context.values])
        self.fires = self.weight > 0
        self.density = page.density
        if not self.fires.any():
            raise ValueError(f"the page of latent {page.latent} shows no token on which it fires: nothing to explain")

    def weighed(self, tokens: Sequence[str], seen: int = 1) -> dict[str, float]:
        """Summed activation by token, the largest first; of those that belong to at least `seen` firings."""
        found: dict[str, list[float]] = defaultdict(list)
        for at in np.flatnonzero(self.fires).tolist():
            found[tokens[at]].append(float(self.weight[at]))
        found.pop("", None)
        return _ranked({token: sum(weights) for token, weights in found.items() if len(weights) >= seen})

    def scored(self, rule: Rule) -> Rule:
        """The rule with its figures on this page."""
        passed = rule.fits_in(self.tokens)
        recall = min(float(self.weight[passed].sum() / self.weight.sum()), 1.0)
        # Half a case more: that none of a few hundred silent tokens passed does not mean that none ever would.
        rate = (int((passed & ~self.fires).sum()) + 0.5) / (int((~self.fires).sum()) + 1)
        right, wrong = recall * self.density, rate * (1 - self.density)
        precision = right / (right + wrong) if right else 0.0
        return replace(rule, recall=recall, precision=precision, n=int(self.fires.sum()))


def _about_the_token(firing: Mapping[str, float]) -> list[Rule]:
    """Tests of the token itself."""
    spellings: dict[str, list[float]] = defaultdict(list)
    prefixes: dict[str, float] = defaultdict(float)
    suffixes: dict[str, float] = defaultdict(float)
    for token, weight in firing.items():
        bare = token.strip()
        spellings[bare.casefold()].append(weight)
        for length in _AFFIX:
            if len(bare) > length:
                prefixes[bare[:length]] += weight
                suffixes[bare[-length:]] += weight
    rules = [Rule(tokens=names) for names in _shortlists(firing, 5)]
    words = {word: sum(weights) for word, weights in spellings.items() if word.isalpha() and len(weights) > 1}
    rules += [Rule(word=word) for word in list(_ranked(words))[:1]]
    rules += [Rule(kind=kind) for kind in KINDS]
    rules += [Rule(prefix=text) for text in list(_ranked(prefixes))[:_AFFIXES]]
    rules += [Rule(suffix=text) for text in list(_ranked(suffixes))[:_AFFIXES]]
    return rules


def _ranked(weights: Mapping[str, float]) -> dict[str, float]:
    """By weight, the largest first; equal ones by their text, so that the order does not hang on that of passages."""
    return dict(sorted(weights.items(), key=lambda pair: (-pair[1], pair[0])))


def _shortlists(weights: Mapping[str, float], longest: int) -> list[tuple[str, ...]]:
    """The first one, the first two ... of what was weighed."""
    names = tuple(weights)[:longest]
    return [names[:length] for length in range(1, len(names) + 1)]


def _joined(rule: Rule, other: Rule) -> Rule:
    """Both conditions together; the other's count where both have one."""
    given: dict[str, Any] = {name: getattr(other, name) for name in CONDITIONS}
    return replace(rule, **{name: value for name, value in given.items() if value not in (None, ())})


def _best(rules: Iterable[Rule]) -> Rule:
    """The one with the best F1, where each condition has its price; the first of equals."""
    return max(rules, key=lambda rule: rule.f1 - PRICE * rule.n_conditions)


def _listed(tokens: Sequence[str]) -> str:
    """Quoted, so that spaces and line breaks can be seen."""
    quoted = [repr(token) for token in tokens]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
