"""The app in Chromium: a server in its own process, and a page in a context of its own that notes what goes wrong."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "build" / "screens"
KNOWN = re.compile(r"/_stcore/(health|host-config)")
"""Streamlit's own two 404s on a deep link."""


def serve(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "tests" / "app" / "serve.py"), str(folder), str(port)]
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


class Visit:
    """A page in a context of its own, with everything that went wrong on it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 1000}, color_scheme="light")
        self.page = self.context.new_page()
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
