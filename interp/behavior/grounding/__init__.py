"""What evidence from documents changes, and one answer that rests on it.

`prompts` writes what is asked, `work` asks, `measures` says how far an answer rests on its evidence, `figures` makes the tables,
`run` puts them in order, `answer` is the single question, `page` says what was found.
"""

from interp.behavior.grounding.answer import GroundedAnswer, grounded_answer
from interp.behavior.grounding.run import GroundingReport, grounding_report

__all__ = [
    "GroundedAnswer",
    "GroundingReport",
    "grounded_answer",
    "grounding_report",
]
