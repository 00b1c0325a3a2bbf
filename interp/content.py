"""Where the folders beside the package lie: the dashboard (`app`), the probe jobs (`probes`) and the data (`data`).

In a checkout they stand beside `interp/`; a wheel carries them inside it, under `interp/_content/`.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_NAMES = ("app", "probes", "data")


def content_folder(name: str) -> Path:
    """The folder `app`, `probes` or `data`, in a checkout or in an installed wheel.

    Raises:
        ValueError: another name.
        FileNotFoundError: the installation lacks the folder.
    """
    if name not in _NAMES:
        raise ValueError(f"no content folder {name!r}; there are {', '.join(_NAMES)}")
    # The wheel's copy first: beside an installed package lie other people's packages, and one may be called `data`.
    for folder in (_PACKAGE / "_content" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder {name!r} is missing from this installation of interp: install it again")
