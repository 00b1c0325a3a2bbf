"""Help: the tour goes where it says, the glossary names functions that exist, and every command parses."""

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from page_words import words
from streamlit.testing.v1 import AppTest

import interp
from interp.cli.group import commands
from ui import glossary, pages

Open = Callable[..., AppTest]
VIEW = Path(__file__).parents[2] / "app" / "views" / "help.py"


def constant(name: str) -> tuple[tuple[str, ...], ...]:
    """A table of the page, without drawing it."""
    names = {"FACT": "The Eiffel Tower is located in the city of"}
    for node in ast.parse(VIEW.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return tuple(
                tuple(names[each.id] if isinstance(each, ast.Name) else each.value for each in row.elts)
                for row in node.value.elts
            )
    raise AssertionError(name)


def test_every_part_opens_without_a_model_or_a_run(open_page: Open) -> None:
    for part, hint in (
        ("Tour", "1. "),
        ("Glossary", "induction score"),
        ("Keyboard", ""),
        ("Commands and limits", "interp demo"),
    ):
        page = open_page("help", run=None, query={"help_show": part})
        assert not page.exception
        assert "this should not happen" not in words(page)
        assert hint in words(page)


def test_the_tour_has_five_steps_to_pages_of_the_menu() -> None:
    known = {name for listed in pages.PAGES.values() for name, *_ in listed}
    tour = constant("TOUR")
    assert len(tour) == 5
    assert {page for page, *_ in tour} <= known


def test_a_step_of_the_tour_sets_the_prompt_and_goes_there(open_page: Open) -> None:
    page = open_page("help", prompt="something else", query={"layer": "3", "head": "1"})
    page.button(key="help_go_2").click().run()
    assert not page.exception
    assert page.title[0].value == "Logit lens"
    assert page.text_area(key="prompt").value == "The Eiffel Tower is located in the city of"


@pytest.mark.parametrize("term", glossary.TERMS, ids=lambda term: term.name)
def test_a_term_names_a_function_of_the_library(term: glossary.Term) -> None:
    assert callable(getattr(interp, term.function))
    assert term.words.endswith(".")
    assert term.formula.count("{") == term.formula.count("}")
    assert len(re.findall(r"\\left(?!arrow)", term.formula)) == len(re.findall(r"\\right(?!arrow)", term.formula))


def test_names_of_terms_are_unique() -> None:
    names = [term.name for term in glossary.TERMS]
    assert len(set(names)) == len(names)


def test_the_glossary_is_searched(open_page: Open) -> None:
    assert [term.name for term in glossary.matching("semantic ENTROPY")] == ["semantic entropy"]
    assert glossary.matching("") == list(glossary.TERMS)
    page = open_page("help", query={"help_show": "Glossary", "help_search": "<script>"})
    assert not page.exception
    assert "Nothing of that name" in words(page)
    page = open_page("help", query={"help_show": "Glossary", "help_search": "evaluate_sae"})
    assert len(page.get("latex")) + len([m for m in page.markdown if "FVU" in m.value]) > 0


def test_every_command_parses() -> None:
    for _, line in constant("COMMANDS"):
        found = [word for word in shlex.split(line) if not word.startswith("INTERP_")]
        assert found.pop(0) == "interp"
        command, verb = commands, []
        while hasattr(command, "commands"):
            verb.append(found.pop(0))
            command = command.commands[verb[-1]]
        command.make_context(" ".join(verb), found, resilient_parsing=True)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.split("=")[0] for word in found if word.startswith("--")} <= known, line
