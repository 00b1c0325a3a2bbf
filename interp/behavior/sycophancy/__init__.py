"""What a user's stated opinion does beyond a mere mention of the same option.

`wordings` puts it, `scores` asks, `figures` makes the tables, `steering` acts against it, `run` puts them in order, `page` says
what was found.
"""

from interp.behavior.sycophancy.run import SycophancyReport, sycophancy_report
from interp.behavior.sycophancy.steering import sycophancy_vector
from interp.behavior.sycophancy.wordings import WORDINGS, Wording

__all__ = [
    "WORDINGS",
    "SycophancyReport",
    "Wording",
    "sycophancy_report",
    "sycophancy_vector",
]
