"""Question answering: does the model know when it is wrong, and where inside does it show?

`asking` draws the shown questions and grades, `work` measures a few questions at a time, `tables` ranks and fits, `run` puts
them in order, `report` and `page` say what was found.
"""

from interp.behavior.questions.report import QuestionReport
from interp.behavior.questions.run import question_report

__all__ = ["QuestionReport", "question_report"]
