"""How a model behaves, and whether it knows when it is wrong: reports over everything that the other parts measure.

`report` is what every report shares, `pieces` how long work is kept and gone on with; a kind of report is a module of its own.
"""

from interp.behavior.report import BehaviorReport

__all__ = ["BehaviorReport"]
