"""What the widgets share: JSON that is safe inside a page, the page itself, and the frame of a notebook."""

import html
import json
from pathlib import Path
from typing import Any, ClassVar

_FILES = Path(__file__).parent
_CSP = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def source(name: str) -> str:
    """Text of a script or style sheet of this package, such as `strip.js`."""
    return (_FILES / name).read_text("utf-8")


def script_json(data: Any) -> str:
    """JSON for a script element: ASCII only, no `<`, `>` or `&`. ValueError for NaN and infinity."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class Widget:
    """A view with a script: `<asset>.js` and `<asset>.css` beside this file."""

    asset: ClassVar[str]
    pixels: ClassVar[int] = 420
    """Height of the frame in a notebook."""

    def data(self) -> dict[str, Any]:
        """What the script draws, ready for JSON."""
        raise NotImplementedError

    def page_data(self) -> dict[str, Any]:
        """`data`, and whatever a page without a server needs besides."""
        return self.data()

    def to_html(self) -> str:
        """A whole page that loads nothing from anywhere."""
        # An inline module cannot be imported, so its function gets a name.
        script = source(f"{self.asset}.js").replace("export default function", "const mount = function", 1)
        style = source("page.css") + source(f"{self.asset}.css")
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">\n'
            f'<meta name="viewport" content="width=device-width"><title>{self.asset}</title>\n<style>{style}</style></head>\n'
            f'<body><main id="widget"><div class="{self.asset}"></div></main>\n'
            f'<script type="application/json" id="data">{script_json(self.page_data())}</script>\n'
            f'<script type="module">{script}\n'
            'mount({ parentElement: document.getElementById("widget"),\n'
            '  data: JSON.parse(document.getElementById("data").textContent),\n'
            "  setTriggerValue: () => {}, setStateValue: () => {} });\n</script></body></html>\n"
        )

    def save(self, path: str | Path) -> Path:
        """Write `to_html()` to a file."""
        path = Path(path)
        path.write_text(self.to_html(), "utf-8")
        return path

    def _repr_html_(self) -> str:
        page = html.escape(self.to_html(), quote=True)
        style = f"width:100%;height:{self.pixels}px;border:0"
        return f'<iframe sandbox="allow-scripts" title="{self.asset}" style="{style}" srcdoc="{page}"></iframe>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002, the names are the notebook's
        return {
            "text/html": self._repr_html_(),
            "text/plain": f"{type(self).__name__}: display it in a notebook, or save()",
        }
