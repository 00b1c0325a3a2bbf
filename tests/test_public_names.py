"""The public surface: every name of the stub is there, importing the package is cheap, and no name shadows a module."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import interp

STUB = Path(interp.__file__).with_suffix(".pyi")
NAMES = [
    alias.asname
    for node in ast.parse(STUB.read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
]


def test_every_name_of_the_stub_is_there() -> None:
    for name in NAMES:
        assert getattr(interp, name) is not None
    assert set(NAMES) <= set(dir(interp))


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, interp; print(sorted({'torch', 'pandas', 'sklearn', 'altair'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_no_function_has_the_name_of_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(interp.__path__)}
    assert set(NAMES) & modules <= {"artifact", "plot", "sites"}
