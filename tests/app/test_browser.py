"""The app in Chromium: what is clickable works, jobs outlive a reload, and nothing hostile runs."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
from browsing import CHROMIUM, SCREENS, Visit

from interp import plot
from interp.report import Figure, Section, Table, write_report
from ui.pages import PAGES as GROUPS

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
PAGES = [name for group in GROUPS.values() for name, _, _ in group]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]


# ------------------------------------------------------------------------------------------------------------ pages


def test_a_click_on_a_head_opens_its_page_and_the_url_restores_it(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/heads").settle()
    seen.page.locator(".mark-rect path").nth(9 * 18 + 6).hover()
    seen.page.wait_for_selector("#vg-tooltip-element.visible")
    assert "0.909 [0.889, 0.929] (1 of 270)" in seen.page.inner_text("#vg-tooltip-element")
    seen.page.locator(".mark-rect path").nth(9 * 15 + 3).click()
    seen.page.wait_for_url("**/head?*")
    seen.settle()
    assert dict(parse_qsl(urlsplit(seen.page.url).query)) == {"layer": "15", "head": "3"}
    assert seen.page.get_by_role("heading", name="Layer 15, head 3").first.is_visible()
    again = visit(seen.page.url).settle()
    assert again.page.get_by_role("heading", name="Layer 15, head 3").first.is_visible()
    assert again.page.url == seen.page.url
    again.page.locator("h1").click()
    again.page.keyboard.press("j")
    again.page.get_by_role("heading", name="Layer 15, head 4").first.wait_for()
    seen.clean()
    again.clean()


def test_a_row_of_the_ranking_opens_its_head(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/heads").settle()
    table = seen.page.locator("[data-testid=stDataFrame]").first
    table.scroll_into_view_if_needed()
    box = table.bounding_box()
    seen.page.mouse.click(box["x"] + 18, box["y"] + 35 * 2.5)  # the box of the second row
    seen.page.get_by_role("heading", name="Layer 17, head 3").first.wait_for()
    seen.clean()


def test_the_attention_canvas_tells_values_and_changes_the_head(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/attention?layer=3&head=1&prompt=abcabcab").settle()
    canvas = seen.page.locator(".matrix canvas")
    canvas.wait_for()
    box = canvas.bounding_box()
    n, gap = seen.page.locator(".text .chip").count(), 78
    cell = (box["width"] - gap) / n
    seen.page.mouse.move(box["x"] + gap + 0.5 * cell, box["y"] + gap + 0.5 * cell)
    assert seen.page.inner_text(".status").endswith("looks at 0: a: 1")
    seen.page.mouse.move(box["x"] + gap + (n - 0.5) * cell, box["y"] + gap + 0.5 * cell)
    assert seen.page.inner_text(".status").endswith("masked")
    seen.page.locator("button.head").nth(4).click()
    seen.page.wait_for_url("**head=4*")
    seen.settle()
    seen.page.get_by_role("heading", name="Attention of layer 3, head 4").wait_for()
    seen.clean()


def test_a_job_outlives_a_reload_and_its_result_is_found(
    app: str, visit: Callable[[str], Visit], catalogue_folder: Path, run_folder: Path
) -> None:
    """It runs the real model, whose weights are there."""
    assert catalogue_folder.is_dir()
    seen = visit(f"{app}/runs?runs_show=Start").settle()
    seen.page.get_by_label("Most texts").fill("12")
    seen.page.keyboard.press("Enter")
    seen.settle()
    seen.page.get_by_label("Name", exact=True).fill("from-the-browser")
    seen.page.keyboard.press("Enter")
    seen.settle()
    seen.page.get_by_role("button", name="Record", exact=True).click()
    seen.page.get_by_text("Record animals").first.wait_for()
    again = visit(f"{app}/runs?runs_show=Jobs").settle()
    again.page.locator("[class*=st-key-job_]").first.get_by_text("done", exact=False).wait_for(timeout=120_000)
    assert (run_folder.parent / "from-the-browser" / "store.json").is_file()
    again.page.reload()
    again.settle()
    assert again.page.locator("[class*=st-key-job_]").first.get_by_text("Record animals").is_visible()
    found = visit(f"{app}/stores").settle()
    found.page.get_by_text("from-the-browser").first.wait_for(state="attached")  # cells are drawn on a canvas
    for each in (seen, again, found):
        each.clean()


def test_a_prompt_is_forked_at_a_token_and_compared(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/compare?prompt=abcab").settle()
    seen.page.get_by_role("button", name="Pin A").click()
    seen.settle()
    seen.page.locator(".chip").nth(2).click()
    seen.settle()
    seen.page.get_by_role("button", name="Next and fork").click()
    seen.page.get_by_label("Or go on with your own words").fill("zz")
    seen.page.get_by_role("button", name="Fork", exact=True).click()
    seen.settle()
    assert "".join(seen.page.locator(".chip").all_inner_texts()[:5]) == "abczz"
    assert "prompt=abczz" in seen.page.url
    assert "a=" in seen.page.url
    seen.clean()


def test_everything_on_the_way_to_the_tokens_is_reached_by_tab(app: str, visit: Callable[[str], Visit]) -> None:
    seen = visit(f"{app}/lens").settle()
    reached: list[str] = []
    for _ in range(60):
        seen.page.keyboard.press("Tab")
        reached.append(
            seen.page.evaluate(
                """() => { let e = document.activeElement; while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement;
                return (e.getAttribute("aria-label") ?? e.innerText ?? "").replaceAll("\\n", " "); }"""
            )
        )
    said = "\n".join(reached)
    for part in ("Prompt", "Analyse", "Heads", "surprisal", "token 10", "Pin A", "Export"):
        assert part in said, (part, reached)
    seen.clean()


def test_the_strip_works_with_mouse_and_keyboard_and_follows_to_other_pages(
    app: str, visit: Callable[[str], Visit]
) -> None:
    seen = visit(f"{app}/").settle()
    chips = seen.page.locator(".chip")
    chips.first.wait_for()  # the strip draws itself after the page has settled
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
    seen.page.locator(".chip").first.hover()
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
    assert seen.page.locator(".st-key-card_lens_trajectory").get_by_text("4: ·Tower").count() >= 1
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


def test_four_sessions_at_once_get_their_own_answers(app: str, visit: Callable[[str], Visit]) -> None:
    prompts = ["first", "second one", "a third", "fourth"]
    seen = [visit(f"{app}/lens?prompt={prompt.replace(' ', '+')}") for prompt in prompts]
    for each, prompt in zip(seen, prompts):
        each.settle()
        each.page.locator(".chip").first.wait_for()  # the strip draws itself after the page has settled
        assert "".join(each.page.locator(".chip").all_inner_texts()) == prompt.replace(" ", "·")
        each.clean()


# ----------------------------------------------------------------------------------------------------------- attack


@pytest.mark.parametrize("name", PAGES)
def test_nothing_hostile_runs(hostile_app: str, visit: Callable[[str], Visit], name: str) -> None:
    seen = visit(f"{hostile_app}/{'' if name == 'overview' else name}").settle()
    for chip in seen.page.locator(".chip").all()[:3]:
        chip.hover()
    seen.full(SCREENS / "hostile" / f"{name}.png")
    assert seen.page.locator("img[src=x]").count() == 0
    if name == "overview":  # a table of findings, whose cells are Markdown
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
