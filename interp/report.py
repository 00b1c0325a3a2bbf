"""One HTML file that says what was found: text, figures, tables and the code behind them.

It can be mailed, printed and opened in ten years: figures are inline SVG, the style sheet is inside, nothing is loaded
from anywhere and there is no script. Light or dark follows the reader's system.

Nothing in it is ever read as markup. Jinja escapes every text; characters without a glyph (NUL, direction overrides) are
written as ⟨U+202E⟩; and a figure is parsed and kept only as plain shapes and text, so an SVG that carries a script, an
event handler or a link outside is refused.
"""

import math
import numbers
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2
import pandas as pd
from markupsafe import Markup

from interp import artifact

TEMPLATE = Path(__file__).with_name("report.html.jinja")
STYLES = ("", "quiet", "marked")
"""Styles of a piece of text in `Spans`."""
ROWS = 200
"""Most rows of a table that are printed; the rest is counted."""

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_SHAPES = {"svg", "g", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan", "title"}
_SHAPES |= {"desc", "defs", "clipPath", "linearGradient", "radialGradient", "stop"}
_VISIBLE_FORMATS = "\n\t\u200c\u200d"
"""Control characters that stay: line breaks, and the joiners that Persian words and emoji families are made of."""


@dataclass(frozen=True)
class Figure:
    """A picture and what it shows."""

    svg: str
    """SVG text, for example `plot.to_svg(chart, ink="currentColor")`, which follows light and dark."""
    caption: str = ""
    """What is seen, with n and the unit; also read to those who do not see it."""


@dataclass(frozen=True)
class Spans:
    """A text in a cell of a table, some pieces of it quiet or marked."""

    parts: Sequence[tuple[str, str]]
    """(text, style) in reading order; the style is "", "quiet" or "marked". The text is escaped like any other."""

    def __post_init__(self) -> None:
        strange = [style for _, style in self.parts if style not in STYLES]
        if strange:
            raise ValueError(f"the style of a piece is one of {', '.join(map(repr, STYLES))}, got {strange[0]!r}")


@dataclass(frozen=True)
class Table:
    """Rows and what they are."""

    frame: pd.DataFrame
    """Numbers are set flush right with three decimals, `Spans` keep their styles; the index is left out."""
    caption: str = ""
    """What the rows are, with n."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Column -> format specification, for example `{"auroc": ".2f"}`."""


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, in this order."""

    title: str
    """Heading."""
    text: str = ""
    """Plain paragraphs, parted by blank lines."""
    figures: Sequence[Figure | str] = ()
    """Figures, or SVG texts without a caption."""
    tables: Sequence[Table | pd.DataFrame] = ()
    """Tables, or frames without a caption."""
    code: str = ""
    """Python that reproduces the section."""


def write_report(
    path: str | os.PathLike[str],
    title: str,
    sections: Sequence[Section],
    card: Mapping[str, Any] | None = None,
    *,
    summary: str = "",
) -> Path:
    """Write the report, whole or not at all.

    Args:
        path: the file, by custom `report.html`.
        title: of the page.
        sections: in reading order; they are numbered, and so are figures and tables, through the whole report.
        card: what made the results (model, versions, seed ...), printed at the end.
        summary: plain paragraphs before the first section.

    Returns:
        The path.

    Raises:
        ValueError: no sections, an unsafe or damaged SVG, or a format that does not fit its column.
    """
    return artifact.atomic_write(path, render_report(title, sections, card, summary=summary))


def render_report(
    title: str, sections: Sequence[Section], card: Mapping[str, Any] | None = None, *, summary: str = ""
) -> str:
    """The text of `write_report`'s file."""
    if not sections:
        raise ValueError("a report needs at least one section")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    figures, tables = 0, 0
    shown = []
    for number, section in enumerate(sections, start=1):
        drawn = [f if isinstance(f, Figure) else Figure(f) for f in section.figures]
        listed = [t if isinstance(t, Table) else Table(t) for t in section.tables]
        shown.append(
            {
                "number": number,
                "title": section.title,
                "paragraphs": _paragraphs(section.text),
                "figures": [_figure(f, figures + i) for i, f in enumerate(drawn, start=1)],
                "tables": [_table(t, tables + i) for i, t in enumerate(listed, start=1)],
                "code": section.code.strip("\n"),
            }
        )
        figures, tables = figures + len(drawn), tables + len(listed)
    facts = [(str(key).replace("_", " "), _fact(value)) for key, value in (card or {}).items()]
    return template.render(title=title, summary=_paragraphs(summary), sections=shown, card=facts) + "\n"


def printable(text: str) -> str:
    """The text with every character that has no glyph written as its code point, ⟨U+202E⟩."""
    return "".join(
        c if c.isprintable() or c in _VISIBLE_FORMATS or unicodedata.category(c) == "Zs" else f"⟨U+{ord(c):04X}⟩"
        for c in text
    )


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{str(key).replace('_', ' ')} {_fact(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_fact, value))
    return _number(value) if isinstance(value, numbers.Real) else str(value)


# ------------------------------------------------------------------------------------------------------------ tables


def _table(table: Table, number: int) -> dict[str, Any]:
    frame = table.frame.head(ROWS)
    unknown = [column for column in table.formats if column not in frame]
    if unknown:
        raise ValueError(f"the table has no column {unknown[0]!r} to format; it has {', '.join(map(str, frame))}")
    numeric = [pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype) for dtype in frame.dtypes]
    specs = [table.formats.get(str(column), "") for column in frame]
    return {
        "number": number,
        "caption": table.caption,
        "head": [(str(column).replace("_", " "), right) for column, right in zip(frame, numeric)],
        "rows": [
            [(_cell(value, spec), right) for value, spec, right in zip(row, specs, numeric)]
            for row in frame.itertuples(index=False, name=None)
        ],
        "left_out": len(table.frame) - len(frame),
    }


def _cell(value: Any, spec: str) -> str:
    if isinstance(value, Spans):
        # Markup.format escapes what it is given: only the tags are ours.
        wrapped = [Markup('<span class="{}">{}</span>').format(style, printable(text)) for text, style in value.parts]
        return Markup("").join(wrapped)
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if spec:
        try:
            return format(value, spec)
        except (TypeError, ValueError):
            raise ValueError(f"the format {spec!r} does not fit the value {value!r}") from None
    return _number(value) if isinstance(value, numbers.Real) else str(value)


def _number(value: numbers.Real) -> str:
    """Whole numbers whole, fractions with three decimals, very small and very large ones with three digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    size = abs(float(value))
    return f"{float(value):.3g}" if 0 < size < 0.001 or size >= 1e6 else f"{float(value):,.3f}"


# ----------------------------------------------------------------------------------------------------------- figures


def _figure(figure: Figure, number: int) -> dict[str, Any]:
    return {"number": number, "caption": figure.caption, "svg": _inline(figure.svg, f"f{number}-", figure.caption)}


def _inline(svg: str, prefix: str, label: str) -> Markup:
    """An SVG fit for this page: shapes and text only, ids of its own, one label for those who do not see it."""
    if re.search(r"<!(?:DOCTYPE|ENTITY)", svg, re.IGNORECASE):
        raise ValueError("an SVG with a document type is refused: it can define entities")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"the figure is not well-formed SVG ({error})") from None
    if root.tag != f"{_SVG}svg":
        raise ValueError(f"the figure is a <{root.tag}>, not an SVG")
    for element in root.iter():
        _keep_plain(element, prefix)
    root.set("role", "img")
    root.set("aria-label", printable(label or "figure"))
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # parsed and checked above


def _keep_plain(element: ElementTree.Element, prefix: str) -> None:
    name = str(element.tag).removeprefix(_SVG)
    if name not in _SHAPES:
        raise ValueError(f"an SVG with a <{name}> element is refused: figures are shapes and text")
    element.tag = name
    for key, value in list(element.attrib.items()):
        short = key.removeprefix(_XLINK)
        del element.attrib[key]
        if short.lower().startswith("on"):
            raise ValueError(f"an SVG with the event handler {short} is refused")
        if short == "id":
            value = prefix + value  # two figures may both have a gradient_0
        elif short == "href":
            if not value.startswith("#"):
                raise ValueError(f"an SVG that points outside the page is refused: {short}={value[:60]!r}")
            value = "#" + prefix + value[1:]
        elif "url(" in value.lower() or "{" in short:
            if not re.fullmatch(r"url\(['\"]?#[\w-]+['\"]?\)", value):
                raise ValueError(f"an SVG that points outside the page is refused: {short}={value[:60]!r}")
            value = value.replace("#", "#" + prefix)
        element.set(short, value)
