"""A text corpus from Python's own documentation: docstrings of the standard library and the topics of `help()`.

1. Docstrings are read from the source files, without importing them, in the order of the source.
2. Paragraphs are kept that read as prose: sentences, mostly letters. Code, tables, addresses and paths are left out.
3. A paragraph that was seen before is left out.
4. What is left of one module or topic is packed into documents of about 300 words. The group is the module or topic.
"""

import ast
import re
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Tests, bundled copies of other projects, and parts that some systems package apart from Python.
_LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "turtle.py",
    "distutils",
    "ensurepip",
    "venv",
}
_LEFT_OUT |= {"pydoc_data", "site-packages", "dist-packages", "__pycache__", "_bundled", "antigravity.py", "this.py"}
_UNWANTED = re.compile(
    r">>>|\.\.\. |https?:|www\.|\w@\w|0x[0-9a-fA-F]{4}|(^|[\s\"'`(])[~/][\w.]+/|[A-Z]:\\|::=|gencodec|\+--|\|"
)
_MIN_PARAGRAPH, _MIN_DOCUMENT, _DOCUMENT = 40, 200, 1800
_LETTERS = 0.85
"""Least share of letters and spaces in prose."""


def corpus() -> list[Row]:
    """Documents: text, group (module or topic) and id."""
    seen: set[str] = set()
    rows = []
    for group, entries in groupby(_paragraphs(), key=lambda entry: entry[0]):
        fresh = []
        for _, paragraph in entries:
            if paragraph.casefold() not in seen and _is_prose(paragraph):
                seen.add(paragraph.casefold())
                fresh.append(paragraph)
        for number, text in enumerate(_packed(fresh)):
            rows.append({"text": text, "group": group, "id": f"{group}-{number:03d}"})
    return rows


def licence() -> str:
    """Python's licence, which must accompany its text."""
    return (_library() / "LICENSE.txt").read_text(encoding="utf-8")


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _paragraphs() -> Iterator[tuple[str, str]]:
    """Group and paragraph, white space made even; entries of one group follow one another."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    sources = [(f"topic {name}", text) for name, text in sorted(topics.items())]
    for path in sorted(_library().rglob("*.py")):
        parts = path.relative_to(_library()).parts
        if not _LEFT_OUT & set(parts) and not parts[0].startswith(("config-", "_sysconfigdata")):
            sources += [(f"module {parts[0].removesuffix('.py')}", text) for text in _docstrings(path)]
    for group, text in sources:
        for paragraph in re.split(r"\n\s*\n", text):
            yield group, " ".join(paragraph.split())


def _docstrings(path: Path) -> Iterator[str]:
    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(path.read_bytes()))


def _is_prose(paragraph: str) -> bool:
    letters = sum(char.isalpha() or char == " " for char in paragraph) / max(1, len(paragraph))
    ends = paragraph.endswith((".", "!", "?", ":"))
    return len(paragraph) >= _MIN_PARAGRAPH and letters >= _LETTERS and ends and not _UNWANTED.search(paragraph)


def _packed(paragraphs: list[str]) -> Iterator[str]:
    """Paragraphs joined into documents of up to about _DOCUMENT characters; a short last one joins the one before."""
    documents: list[str] = []
    for paragraph in paragraphs:
        if documents and len(documents[-1]) + len(paragraph) <= _DOCUMENT:
            documents[-1] += f"\n\n{paragraph}"
        else:
            documents.append(paragraph)
    if len(documents) > 1 and len(documents[-1]) < _MIN_DOCUMENT:
        last = documents.pop()
        documents[-1] += f"\n\n{last}"
    return (document for document in documents if len(document) >= _MIN_DOCUMENT)
