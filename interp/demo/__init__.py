"""The main job in one call: a real model's activations recorded and read by every analysis.

`probes/demo.toml` says what is done, `spec` reads it, `steps` does it, `run` keeps the books (what is done, what is
left, how long it takes) and `summary` writes the report. A run that was interrupted goes on where it was.
"""

from interp.demo.run import run_demo
from interp.demo.spec import DemoSpec, load_demo_spec

__all__ = ["DemoSpec", "load_demo_spec", "run_demo"]
