"""Start the app on a made-up run and a tiny random model: `python tests/app/serve.py FOLDER PORT`.

For the browser tests, which need a server in its own process, and to look at the pages without any weights.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(folder: str, port: str) -> None:
    """Serve until killed."""
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]
    import pandas as pd
    import tiny
    from streamlit.web import cli

    import interp

    catalogue = pd.DataFrame({"name": ["smollm2-135m"], "alias": [""], "cached": [True]})
    vars(interp)["models"] = lambda: catalogue
    vars(interp)["load"] = lambda name: tiny.tiny_model(n_layers=30, n_heads=9, n_kv_heads=3, d_model=72, n_ctx=512)
    os.environ["INTERP_RUN"] = folder
    cli.main(["run", str(ROOT / "app" / "main.py"), "--server.port", port])


if __name__ == "__main__":
    main(*sys.argv[1:])
