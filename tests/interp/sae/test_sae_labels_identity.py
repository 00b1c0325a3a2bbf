"""Explainers that answer otherwise are told apart, in one process and between two."""

import functools
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import interp
from interp.sae.labels.identity import function_card, require_identified
from interp.sae.labels.statistics import statistics_explainer

PROMPT = "what is it?"


def closed_over(prompt: Any, *, default: str = "") -> Any:
    def explainer(page: Any, more: str = default) -> str:
        return f"{prompt} {page} {more}"

    return explainer


def using_a_global(page: Any) -> str:
    return helper(page)


def helper(page: Any) -> str:
    return "".join(PROMPT for _ in "a") + str(page)


class Asking:
    def __init__(self, prompt: Any) -> None:
        self.prompt = prompt

    def __call__(self, page: Any) -> str:
        return f"{self.prompt} {page}"

    def answer(self, page: Any) -> str:
        return self(page)


def same(one: Any, other: Any) -> bool:
    cards = [function_card(each) for each in (one, other)]
    assert all("code" in card for card in cards), cards
    return cards[0] == cards[1]


def test_closures_are_their_values() -> None:
    assert same(closed_over("a"), closed_over("a"))
    assert not same(closed_over("a"), closed_over("b"))
    assert not same(closed_over("a"), closed_over("a", default="more"))
    assert not same(closed_over(["a", "b"]), closed_over(["a"]))
    assert not same(closed_over({"shots": (1, 2)}), closed_over({"shots": (1, 3)}))
    assert same(closed_over({"x": 1, "y": 2}), closed_over({"y": 2, "x": 1}))


def test_lambdas_of_one_line_and_partials() -> None:
    one, other = (lambda page: f"one {page}"), (lambda page: f"other {page}")
    assert not same(one, other)
    assert same(functools.cache(one), functools.cache(one))
    assert not same(functools.cache(one), functools.cache(other))
    assert not same(functools.partial(closed_over, "a"), functools.partial(closed_over, "b"))


def test_an_edited_prompt_of_the_module_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = function_card(using_a_global)
    assert before == function_card(using_a_global)
    monkeypatch.setitem(globals(), "PROMPT", "what else?")
    assert function_card(using_a_global) != before


def test_objects_are_what_they_hold() -> None:
    assert same(Asking("a"), Asking("a"))
    assert not same(Asking("a"), Asking("b"))
    assert not same(Asking("a").answer, Asking("b").answer)


def test_a_client_makes_it_unidentified() -> None:
    card = function_card(closed_over(object()))
    assert card["unidentified"] == "prompt (builtins.object)"
    with pytest.raises(ValueError, match=r"it uses prompt \(builtins.object\).*Give explainer_id="):
        require_identified(card, "explainer_id")
    assert function_card(closed_over(object()), "mine") == {"id": "mine"}
    require_identified({"id": "mine"}, "explainer_id")
    circle: list[Any] = []
    circle.append(circle)
    assert "contains itself" in function_card(closed_over(circle))["unidentified"]


def test_functions_of_the_library_go_by_name_and_version() -> None:
    name = "interp.sae.labels.statistics.statistics_explainer"
    assert function_card(statistics_explainer) == {"function": name, "version": interp.__version__}


def test_an_own_card_comes_first() -> None:
    explainer = Asking("a")
    explainer.card = {"explainer": "mine"}  # pyright: ignore[reportAttributeAccessIssue]
    assert function_card(explainer) == {"explainer": "mine"}
    assert function_card(explainer, "second") == {"explainer": "mine", "id": "second"}


def test_two_processes_agree(tmp_path: Path) -> None:
    """Sets are ordered otherwise in every process, and code may come from a cache."""
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent("""
        SEEN = {"alpha", "beta", "gamma"}
        def explainer(page, words={"x", "y", "z"}):
            return str([word for word in SEEN if word in {"one", "two", "three"}])
        """)
    )
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec is not None
    assert spec.loader is not None
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    script = "import mine; from interp.sae.labels.identity import function_card; print(function_card(mine.explainer)['code'])"
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.strip() == function_card(mine.explainer)["code"]
