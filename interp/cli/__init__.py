"""`interp VERB`: thin commands over the library's functions.

Exit status 0 done, 1 the work failed, 2 the call was wrong. What a user can mend is one line on the error stream; the
trace of anything else is shown with INTERP_DEBUG=1. Verbs that report take `--json`, which prints one JSON value and
nothing else.
"""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status."""
    # Two torch processes that share cores (the app and a job) otherwise wait for each other in busy loops; this must
    # stand in the environment before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from interp.cli.group import status

        code = status(arguments)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
