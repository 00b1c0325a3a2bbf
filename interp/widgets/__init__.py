"""Hand-written views for notebooks and the app: the token strip, the attention canvas, the lens grid.

Each is a frozen dataclass: `data()` is a dict for JSON, `to_html()` a whole page that loads nothing, `save(path)` writes it,
and a notebook shows it in a sandboxed frame. The same script draws it everywhere; texts enter only as `textContent`.
"""

from interp.widgets.attention import AttentionView, attention_view
from interp.widgets.lens import LensView, lens_view
from interp.widgets.strip import TokenStrip, Track, token_strip

__all__ = ["AttentionView", "LensView", "TokenStrip", "Track", "attention_view", "lens_view", "token_strip"]
