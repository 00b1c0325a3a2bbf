"""The app in Chromium: pages load without an error, what is clickable works, and nothing hostile runs.

Screenshots of every page, light and dark, wide and narrow, are kept in build/screens.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest

from interp import plot
from interp.report import Figure, Section, Table, write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Browser, Page = sync_api.Browser, sync_api.Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "build" / "screens"
PAGES = ("", "lens", "heads", "attribution", "patching", "probes", "sae", "steering", "calibration")
KNOWN = re.compile(r"/_stcore/(health|host-config)")
"""Streamlit's own two 404s on a deep link."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def serve(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("serve.py")), str(folder), str(port)]
    with (folder.parent / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
        try:
            wait_until_healthy(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def wait_until_healthy(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server did not answer within a minute")


@pytest.fixture(scope="module")
def app(run_folder: Path) -> Iterator[str]:
    yield from serve(run_folder)


@pytest.fixture(scope="module")
def hostile_app(hostile_run: Path) -> Iterator[str]:
    yield from serve(hostile_run)


class Visit:
    """A page in a context of its own, with everything that went wrong on it."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 1000}, color_scheme="light")
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda m: m.type == "error" and self._note(f"{m.text} {m.location.get('url', '')}"))
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("dialog", lambda dialog: (self._note(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._outside(request.url))
        self.page.goto(url)

    def _note(self, text: str) -> None:
        if not KNOWN.search(text):
            self.wrong.append(text)

    def _outside(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "file:")):
            self.wrong.append(f"asked {url}")

    def settle(self) -> "Visit":
        """Wait until the script has run and the charts are drawn."""
        self.page.wait_for_selector("[data-testid=stApp]")
        self.page.wait_for_timeout(300)
        self.page.wait_for_function(
            "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'", timeout=60_000
        )
        self.page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=60_000)
        self.page.wait_for_timeout(300)
        return self

    def clean(self) -> None:
        """Nothing went wrong."""
        assert not self.wrong, self.wrong
        assert self.page.locator("[data-testid=stException]").count() == 0
        assert "this should not happen" not in self.page.inner_text("body")

    def full(self, path: Path, width: int = 1280, mode: str = "light") -> None:
        """Screenshot of the whole page, which scrolls inside the window."""
        self.page.emulate_media(color_scheme=mode)
        self.page.set_viewport_size({"width": width, "height": 1000})
        self.page.wait_for_timeout(500)
        height = self.page.evaluate(
            "document.querySelector('[data-testid=stMain]')?.scrollHeight ?? document.body.scrollHeight"
        )
        self.page.set_viewport_size({"width": width, "height": min(int(height) + 20, 6000)})
        self.page.wait_for_timeout(700)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[str], Visit]]:
    made: list[Visit] = []

    def open_page(url: str) -> Visit:
        made.append(Visit(browser, url))
        return made[-1]

    yield open_page
    for each in made:
        each.context.close()


# ------------------------------------------------------------------------------------------------------------ pages


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_console_errors(app: str, visit: Callable[[str], Visit], name: str) -> None:
    seen = visit(f"{app}/{name}").settle()
    for mode in ("light", "dark"):
        for width in (1280, 768):
            seen.full(SCREENS / f"{name or 'overview'}-{mode}-{width}.png", width, mode)
            wide = seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
            assert wide <= width, "the page scrolls sideways"
    seen.clean()


def test_a_click_on_a_head_shows_it_and_the_url_restores_it(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/heads").settle()
    seen.page.locator(".mark-rect path").nth(9 * 15 + 3).click()
    seen.settle()
    assert parse_qsl(urlsplit(seen.page.url).query) == [("layer", "15"), ("head", "3")]
    title = "Attention of layer 15, head 3"
    assert seen.page.get_by_text(title).is_visible()
    again = visit(seen.page.url).settle()
    assert again.page.get_by_text(title).is_visible()
    assert again.page.url == seen.page.url
    again.page.locator(".mark-rect path").nth(9 * 18 + 6).hover()
    again.page.wait_for_selector("#vg-tooltip-element.visible")
    assert "0.909 [0.889, 0.929] (1 of 270)" in again.page.inner_text("#vg-tooltip-element")
    seen.clean()
    again.clean()


def test_a_row_of_the_ranking_chooses_its_head(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/heads").settle()
    table = seen.page.locator("[data-testid=stDataFrame]").first
    table.scroll_into_view_if_needed()
    box = table.bounding_box()
    seen.page.mouse.click(box["x"] + 18, box["y"] + 35 * 2.5)  # the box of the second row
    seen.settle()
    assert seen.page.get_by_text("Attention of layer 17, head 3").is_visible()
    seen.clean()


def test_the_strip_works_with_mouse_and_keyboard_and_follows_to_other_pages(
    app: str, visit: Callable[[str], Visit]
) -> None:
    seen = visit(f"{app}/").settle()
    chips = seen.page.locator(".chip")
    assert chips.count() == 11
    chips.nth(4).hover()
    assert "4: ·Tower" in seen.page.inner_text(".tip")
    assert "nats" in seen.page.inner_text(".tip")
    chips.nth(4).click()
    seen.settle()
    assert "pos=4" in seen.page.url
    seen.page.locator(".chip[tabindex='0']").focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("Enter")
    seen.settle()
    assert "pos=5" in seen.page.url
    assert seen.page.locator(".chip[aria-selected=true]").inner_text() == "·is"
    seen.page.get_by_role("radio", name="entropy after it").click()
    assert "entropy" in seen.page.locator(".chip").first.get_attribute("aria-label")
    seen.page.get_by_role("link", name="Logit lens").click()
    seen.settle()
    assert "pos=5" in seen.page.url
    assert seen.page.locator(".chip[aria-selected=true]").inner_text() == "·is"
    seen.clean()


def test_a_typed_prompt_is_analysed_and_stands_in_the_url(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/lens").settle()
    seen.page.get_by_role("textbox", name="Prompt").fill("A <b>bold</b> try\nnow")
    seen.page.get_by_role("button", name="Analyse").click()
    seen.page.wait_for_function("location.search.includes('prompt=')")
    seen.settle()
    again = visit(seen.page.url).settle()
    for each in (seen, again):
        each.page.locator(".chip").first.wait_for()  # the strip draws itself after the page has settled
        assert "".join(each.page.locator(".chip").all_inner_texts()) == "A·<b>bold</b>·try↵now"
        each.clean()


def test_a_trajectory_is_pinned(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/lens").settle()
    seen.page.get_by_role("combobox", name="Pinned tokens").click()
    seen.page.keyboard.type("Tower")
    seen.page.get_by_role("option").filter(has_text="Tower").click()
    seen.settle()
    assert "pins=" in seen.page.url
    assert seen.page.locator("[data-testid=stVegaLiteChart]").nth(1).get_by_text("4: ·Tower").count() == 1
    seen.clean()


def test_a_figure_is_exported(app: str, visit: Callable[[str], Visit], tmp_path: Path) -> None:
    seen = visit(f"{app}/heads").settle()
    seen.page.get_by_role("button", name="Export").first.click()
    starts = {"CSV": b'"layer","head"', "SVG": b"<svg", "PNG": b"\x89PNG", "HTML": b"<!doctype html>"}
    for kind, start in starts.items():
        with seen.page.expect_download() as download:
            seen.page.get_by_role("button", name=kind, exact=True).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.name == f"heads.{kind.lower()}"
        assert path.read_bytes().startswith(start)
    assert seen.page.get_by_text("interp.head_scores").is_visible()
    seen.clean()


def test_two_sessions_at_once_get_their_own_answers(app: str, visit: Callable[[str], Visit]) -> None:
    prompts = ["first", "second one"]
    seen = [visit(f"{app}/lens?prompt={prompt.replace(' ', '+')}") for prompt in prompts]
    for each, prompt in zip(seen, prompts):
        each.settle()
        assert "".join(each.page.locator(".chip").all_inner_texts()) == prompt.replace(" ", "·")
        each.clean()


# ----------------------------------------------------------------------------------------------------------- attack


@pytest.mark.parametrize("name", PAGES)
def test_nothing_hostile_runs(hostile_app: str, visit: Callable[[str], Visit], name: str) -> None:
    seen = visit(f"{hostile_app}/{name}").settle()
    for chip in seen.page.locator(".chip").all()[:3]:
        chip.hover()
    seen.full(SCREENS / "hostile" / f"{name or 'overview'}.png")
    assert seen.page.locator("img[src=x]").count() == 0
    if name == "":  # a table of findings, whose cells are Markdown
        shown = seen.page.inner_text("[data-testid=stTable]").replace("\u2060", "")
        for text in (":red[boo] :material/home:", "[x](javascript:alert(1))", "$\\frac{1}{0}$", "`**_#"):
            assert text in shown
    seen.clean()


# ---------------------------------------------------------------------------------------------------------- exports


HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "\u202eevil", "{{7*7}}", "👩‍👩‍👧"]


def test_a_report_reads_well_and_runs_nothing(visit: Callable[[str], Visit], tmp_path: Path) -> None:
    tokens = pd.DataFrame({"token": HOSTILE, "prob": [0.5, 0.2, 0.1, 0.1, 0.05]})
    figure = Figure(plot.to_svg(plot.next_token_bars(tokens), "currentColor"), "Next tokens " + HOSTILE[0])
    sections = [
        Section(f"Part {i}", "\n\n".join(HOSTILE), [figure], [Table(tokens, HOSTILE[1])], HOSTILE[1]) for i in range(3)
    ]
    path = write_report(tmp_path / "report.html", "A report " + HOSTILE[1], sections, {"seed": 0}, summary=HOSTILE[0])
    seen = visit(path.as_uri())
    for mode in ("light", "dark"):
        for width in (1280, 420):
            seen.full(SCREENS / f"report-{mode}-{width}.png", width, mode)
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    seen.clean()
    assert seen.page.locator("svg[role=img]").count() == 3


def test_an_exported_chart_opens_without_network(visit: Callable[[str], Visit], tmp_path: Path) -> None:
    chart = plot.next_token_bars(pd.DataFrame({"token": HOSTILE, "prob": [0.5, 0.2, 0.1, 0.1, 0.05]}))
    seen = visit(plot.save_chart(chart, tmp_path / "chart.html").as_uri())
    seen.page.wait_for_selector("svg.marks")
    seen.page.locator("svg.marks .mark-rect path").first.hover()
    seen.page.wait_for_selector("#vg-tooltip-element.visible")
    assert not seen.wrong, seen.wrong
