"""`interp behave`: how a model behaves, and whether it knows when it is wrong."""

import click

from interp.cli.behave_answers import gate, ground, questions, sycophancy
from interp.cli.behave_text import show_report, text, trace


class _InOrder(click.Group):
    """Commands in the order of the work."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)


@click.group(cls=_InOrder)
def behave() -> None:
    """Reports on behaviour: calibration, errors and their signs, sycophancy, grounding, abstention."""


for command in (text, questions, trace, sycophancy, ground, gate, show_report):
    behave.add_command(command)

COMMANDS = (behave,)
