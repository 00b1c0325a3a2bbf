"""The widgets' pages in Chromium: true values under the pointer, keys, hostile tokens, the frame of a notebook."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.widgets import Track, attention_view, lens_view, token_strip

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]
TOKENS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    " a\u202eb",
    "\u200b",
    "👨‍👩‍👧",
    "\n",
    " end",
    "x" * 60,
]


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append("a token ran"), dialog.dismiss()))
        yield page
        chromium.close()
        assert not wrong


def weights() -> np.ndarray:
    raw = np.tril(np.exp(np.random.default_rng(0).normal(size=(3, len(TOKENS), len(TOKENS)))))
    return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)


def test_the_matrix_tells_the_true_value_and_keys_move(page: Any, tmp_path: Path) -> None:
    page.goto(attention_view(weights(), TOKENS, head=1).save(tmp_path / "a.html").as_uri())
    box = page.locator("canvas").bounding_box()
    gap = 78  # room for the names of the tokens
    cell = (box["width"] - gap) / len(TOKENS)
    page.mouse.move(box["x"] + gap + 2.5 * cell, box["y"] + gap + 6.5 * cell)
    assert f"{float(f'{weights()[1, 6, 2]:.3g}'):g}" in page.locator(".status").text_content()
    page.mouse.move(box["x"] + gap + 6.5 * cell, box["y"] + gap + 2.5 * cell)
    assert page.locator(".status").text_content().endswith("masked")
    page.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator('.chip[aria-selected="true"]').get_attribute("data-pos") == "3"
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator('.head[aria-pressed="true"]').text_content() == "head 2"
    page.locator("input").first.check()
    page.mouse.move(box["x"] + gap + 2.5 * cell, box["y"] + gap + 6.6 * cell)
    rest = weights()[2, 6].astype(float)
    assert f"{float(f'{rest[2] / rest[1:].sum():.3g}'):g}" in page.locator(".status").text_content()


def test_the_strip_in_the_frame_of_a_notebook(page: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"pos": range(len(TOKENS)), "token": TOKENS, "x": np.linspace(-1, 1, len(TOKENS))})
    view = token_strip(frame, [Track("x", "X", low=-1, mid=0, high=1)], selected=0)
    (tmp_path / "s.html").write_text(f"<!doctype html><title>t</title>{view._repr_html_()}", "utf-8")
    page.goto((tmp_path / "s.html").as_uri())
    inside = page.frame_locator("iframe")
    inside.locator(".chip").nth(7).hover()
    assert "X1" in inside.locator(".tip").text_content()
    inside.locator(".chip").first.focus()
    page.keyboard.press("End")
    assert inside.locator(".chip:focus").get_attribute("data-index") == "7"
    assert inside.locator(".tip").is_visible()
    assert "X 1" in str(inside.locator(".chip:focus").get_attribute("aria-label"))


def test_the_lens_grid_tells_its_numbers(page: Any, tmp_path: Path) -> None:
    lines = [
        {"site": f"L{s}", "pos": i, "token": token, "top1": token, "p_top1": (s + i) / 20}
        for s in range(4)
        for i, token in enumerate(TOKENS)
    ]
    page.goto(lens_view(pd.DataFrame(lines)).save(tmp_path / "l.html").as_uri())
    page.locator("td").nth(0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator(".status").text_content().endswith("p top1 0.1")
