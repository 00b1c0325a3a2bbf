"""The built-in explainer on planted pages: a regularity is named, and where there is none, it says so."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from interp.sae.labels import Context, ExplainerPage, Passage, Rule, rule_from_json, statistics_explainer


def context(text: str, fires: Callable[[str, int], float], number: int = 0) -> Context:
    """A passage whose tokens are characters, words behind their space, or line breaks."""
    tokens = tuple(word for word in text.replace(" ", "| ").replace("\n", "|\n|").split("|") if word)
    values = tuple(float(fires(token, at)) for at, token in enumerate(tokens))
    return Context(tokens, 0, values, int(np.argmax(values)), number)


def page(fires: Callable[[tuple[str, ...], int], bool], texts: list[str], density: float = 0.05) -> ExplainerPage:
    """The page of a latent that fires, with value 1, where a predicate of (tokens, index) says so."""

    def read(text: str) -> Context:
        tokens = context(text, lambda token, at: 0.0).tokens
        return context(text, lambda token, at: float(fires(tokens, at)))

    contexts = [read(text) for text in texts]
    return ExplainerPage(
        latent=7,
        sites=("hook_embed",),
        density=density,
        max=1.0,
        n_rows=1000,
        top_tokens=(),
        top_token_share=0.5,
        up_tokens=(),
        down_tokens=(),
        examples=tuple(each for each in contexts if any(each.values)),
        quantiles=(),
        others=tuple(each for each in contexts if not any(each.values)),
    )


TEXTS = [
    "the king of the hill ate bread",
    "a share of the market and the bank",
    "on the road to Rome in 1984 they sang",
    "one of the dogs was running, then walking",
    "Anna was singing in May 2020\nand it rained",
    "the cat sat near Paris eating fish",
    "out of the blue came 17 birds\nflying",
    "red houses stood along 300 lanes",
    "she gave him bread and a coin",
    "nobody knew where Berlin had gone",
    "out of bread and of fish, some of them went by the sea",
    "the lanes of stone and the fish of May 1984 in the sun",
]


@pytest.mark.parametrize(
    ("fires", "label"),
    [
        (lambda tokens, at: tokens[at] == " bread", "token ' bread' (100% of its activation)"),
        (
            lambda tokens, at: tokens[at] == " the" and at > 0 and tokens[at - 1] == " of",
            "token ' the' after ' of' (100% of its activation)",
        ),
        (lambda tokens, at: tokens[at] in ("the", " the"), "the word 'the' in any spelling (100% of its activation)"),
        (lambda tokens, at: tokens[at].strip().isdigit(), "a number (100% of its activation)"),
        (lambda tokens, at: tokens[at] == "\n", "token '\\n' (100% of its activation)"),
        (lambda tokens, at: tokens[at].strip(",").endswith("ing"), "ing"),
        (lambda tokens, at: tokens[at].strip().istitle(), "a capitalised word"),
        (lambda tokens, at: at > 0 and tokens[at - 1] == " of", "after ' of'"),
        (lambda tokens, at: at == 0, "at the start of a text (100% of its activation)"),
    ],
)
def test_a_planted_regularity_is_named(fires: Callable[[tuple[str, ...], int], bool], label: str) -> None:
    n = sum(fires(c.tokens, at) for c in (context(t, lambda *_: 0.0) for t in TEXTS) for at in range(len(c.tokens)))
    total = sum(len(context(text, lambda *_: 0.0).tokens) for text in TEXTS)
    found = statistics_explainer(page(fires, TEXTS, density=n / total))
    assert label in str(found)
    assert found.recall >= 0.8
    assert statistics_explainer(page(fires, TEXTS, density=n / total)) == found
    assert rule_from_json(json.loads(json.dumps(found.as_json()))) == found


def test_no_regularity_is_admitted() -> None:
    rng = np.random.default_rng(3)
    drawn = iter(rng.permutation(400) < 40)
    scattered = page(lambda tokens, at: bool(next(drawn)), TEXTS)
    found = statistics_explainer(scattered)
    assert str(found).startswith("no single token: most often '"), str(found)
    assert found.recall < 0.5


def test_a_page_without_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="latent 7 shows no token on which it fires"):
        statistics_explainer(page(lambda tokens, at: False, TEXTS))


@pytest.mark.parametrize("fields", [{"colour": 1}, {"kind": "a colour"}])
def test_rules_of_another_version_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="another version"):
        rule_from_json(fields)


def test_a_rule_needs_all_its_conditions() -> None:
    passage = Passage((" of", " the", " cat", " the"), start=4)
    assert Rule(tokens=(" the",)).fits(passage).tolist() == [False, True, False, True]
    assert Rule(tokens=(" the",), behind=(" of",)).fits(passage).tolist() == [False, True, False, False]
    assert Rule(ahead=(" cat",)).fits(passage).tolist() == [False, True, False, False]
    assert Rule(position=5).fits(passage).tolist() == [True, True, False, False]
    assert not Rule().holds(passage)
