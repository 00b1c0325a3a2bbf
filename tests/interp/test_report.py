"""The report: one file, nothing loaded, nothing executed, everything readable."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from interp import plot
from interp.report import ROWS, Figure, Section, Table, printable, render_report, write_report

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "</style><style>*{display:none}</style>",
    "{{ 7*7 }} {% raw %}",
    "\u202eevil",
    "\x00",
    "\ud800",
    "&lt;b&gt; &amp;",
    "javascript:alert(1)",
    "👩‍👩‍👧 مرحبا",
]
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10">{}</svg>'


class Page(HTMLParser):
    """Elements, attributes and texts of a page, as a browser would read them."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def chart_svg(token: str = " Paris") -> str:
    return plot.to_svg(plot.next_token_bars(pd.DataFrame({"token": [token], "prob": [0.7]})), "currentColor")


def test_everything_stands_in_order_and_is_numbered_throughout(tmp_path: Path) -> None:
    table = Table(pd.DataFrame({"head": ["L5H3"], "score": [0.91234]}), "Scores.")
    sections = [
        Section("First", "One.\n\nTwo.", [Figure(chart_svg(), "A figure.")], [table], "import interp"),
        Section("Second", figures=[Figure(chart_svg(), "Another.")], tables=[table]),
        Section("Third"),
    ]
    path = write_report(tmp_path / "deep" / "report.html", "Title", sections, {"seed": 0}, summary="Lede.")
    source = path.read_text("utf-8")
    text = Page(source).text
    wanted = ["Title", "Lede.", "First", "One.", "Two.", "Figure 1.", "A figure.", "Table 1.", "0.912", "import interp"]
    wanted += ["Second", "Figure 2.", "Table 2.", "Third", "seed"]
    found = [text.rindex(word) if word in ("First", "Second", "Third") else text.index(word) for word in wanted]
    # Titles stand in the contents too; their last place is their heading.
    assert found == sorted(found)
    assert re.findall(r'href="#(section-\d)"', source) == ["section-1", "section-2", "section-3"]


def test_nothing_is_loaded_or_run() -> None:
    source = render_report("T", [Section("S", figures=[chart_svg()])])
    page = Page(source)
    assert "script" not in page.tags
    assert not {"link", "img", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert not [key for key, _ in page.attributes if key.startswith("on") or key == "src"]
    assert all(value is not None and value.startswith("#") for key, value in page.attributes if key == "href")
    assert "http://" not in source
    assert "https://" not in source
    assert "default-src 'none'" in source
    assert "prefers-color-scheme: dark" in source


def test_hostile_text_stays_text_everywhere() -> None:
    everywhere = "\n\n".join(HOSTILE)
    whole = [text for text in HOSTILE if text != "\ud800"]  # pandas has no lone surrogates
    frame = pd.DataFrame({"\n".join(whole): whole})
    clean = Page(
        render_report(
            "T", [Section("S", "x", [Figure(SVG.format(""), "x")], [pd.DataFrame({"x": ["x"]})], "x")], {"k": "x"}
        )
    )
    section = Section(everywhere, everywhere, [Figure(SVG.format(""), everywhere)], [frame], everywhere)
    source = render_report(everywhere, [section], {everywhere: {"k": everywhere}}, summary=everywhere)
    page = Page(source)
    assert set(page.tags) == set(clean.tags)
    assert {key for key, _ in page.attributes} == {key for key, _ in clean.attributes}
    assert "{{ 7*7 }}" in page.text
    assert "49" not in page.text
    for text in HOSTILE:
        assert printable(text) in page.text
    assert not set(source) & set("\x00\u202e\ud800")
    assert source.encode("utf-8")


def test_hostile_tokens_in_figures_stay_text() -> None:
    for token in HOSTILE:
        if token == "\ud800":
            continue  # pandas has no such text
        page = Page(render_report("T", [Section("S", figures=[chart_svg(token)])]))
        assert "script" not in page.tags
        assert plot.token_label(token, 18) in page.text


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("<script>1</script>", "<script>"),
        ('<rect onload="alert(1)"/>', "event handler onload"),
        ("<foreignObject/>", "<foreignObject>"),
        ('<a href="#x"/>', "<a>"),
        ("<style>*{}</style>", "<style>"),
        ('<image href="x.png"/>', "<image>"),
        ("<animate/>", "<animate>"),
        ('<path fill="url(http://x/y)"/>', "outside the page"),
        ('<path style="fill:URL(//x)"/>', "outside the page"),
        ('<g xmlns:xlink="http://www.w3.org/1999/xlink" xlink:href="http://x"/>', "outside the page"),
        ("<rect>", "not well-formed"),
    ],
)
def test_an_svg_that_is_more_than_a_picture_is_refused(inside: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        render_report("T", [Section("S", figures=[SVG.format(inside)])])


@pytest.mark.parametrize(
    ("svg", "message"),
    [
        ('<!DOCTYPE svg [<!ENTITY a "b">]><svg xmlns="http://www.w3.org/2000/svg">&a;</svg>', "document type"),
        ("<html/>", "not an SVG"),
        ("", "not well-formed"),
    ],
)
def test_what_is_no_svg_is_refused(svg: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_report("T", [Section("S", figures=[svg])])


def test_ids_of_two_figures_do_not_meet() -> None:
    inside = '<defs><linearGradient id="g"/></defs><path fill="url(#g)"/>'
    source = render_report("T", [Section("S", figures=[SVG.format(inside)] * 2)])
    ids = re.findall(r'<linearGradient id="([^"]+)"', source)
    assert len(ids) == len(set(ids)) == 2
    assert re.findall(r'fill="url\(#([^)]+)\)"', source) == ids


def test_figures_have_their_caption_as_label() -> None:
    source = render_report("T", [Section("S", figures=[Figure(SVG.format(""), 'Shows "x" < y')])])
    assert ("role", "img") in Page(source).attributes
    assert ("aria-label", 'Shows "x" < y') in Page(source).attributes


def test_numbers_are_set_as_a_reader_wants_them() -> None:
    frame = pd.DataFrame(
        {
            "whole": [1234567, -3],
            "share": [0.12345, np.nan],
            "tiny": [1e-9, 0.0],
            "large": [12345.678, 3e9],
            "flag": [True, False],
            "text": ["a", None],
            "maybe": pd.array([1, None], dtype="Int64"),
            "fixed": [0.5, 0.25],
        }
    )
    text = Page(render_report("T", [Section("S", tables=[Table(frame, formats={"fixed": ".1%"})])])).texts
    for wanted in (
        "1,234,567",
        "-3",
        "0.123",
        "–",
        "1e-09",
        "0.000",
        "12,345.678",
        "3e+09",
        "yes",
        "no",
        "50.0%",
        "25.0%",
    ):
        assert wanted in text


def test_a_card_reads_as_words() -> None:
    card = {"model": {"name": "tiny", "n_layers": 2}, "sites": ["z:1", "z:2"], "seed": 0}
    texts = Page(render_report("T", [Section("S")], card)).texts
    for wanted in ("name tiny; n layers 2", "z:1, z:2", "0"):
        assert wanted in texts


def test_a_long_table_says_what_it_leaves_out() -> None:
    source = render_report("T", [Section("S", tables=[pd.DataFrame({"n": range(ROWS + 1234)})])])
    assert "1,234 more rows are not printed" in source
    assert source.count("<tr>") == ROWS + 1


def test_a_failed_report_leaves_the_old_one(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", "Old", [Section("S")])
    with pytest.raises(ValueError, match="refused"):
        write_report(path, "New", [Section("S", figures=[SVG.format("<script/>")])])
    assert "Old" in path.read_text("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_errors_say_what_to_mend() -> None:
    with pytest.raises(ValueError, match="at least one section"):
        render_report("T", [])
    frame = pd.DataFrame({"a": ["x"]})
    with pytest.raises(ValueError, match="no column 'b' to format; it has a"):
        render_report("T", [Section("S", tables=[Table(frame, formats={"b": ".2f"})])])
    with pytest.raises(ValueError, match=r"the format '\.2f' does not fit the value 'x'"):
        render_report("T", [Section("S", tables=[Table(frame, formats={"a": ".2f"})])])


def test_equal_contents_are_equal_bytes() -> None:
    sections = [Section("S", figures=[Figure(SVG.format(""), "x")])]
    assert render_report("T", sections, {"b": 1, "a": 2}) == render_report("T", sections, {"b": 1, "a": 2})
