"""`interp steer`: make a direction, apply it, learn what it does and what it breaks."""

import click

from interp.cli.steer_apply import apply
from interp.cli.steer_files import convert, show_steering
from interp.cli.steer_make import make, strength_map
from interp.cli.steer_sweep import rerun, sweep


class _InOrder(click.Group):
    """Commands in the order of the work."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)


@click.group(cls=_InOrder)
def steer() -> None:
    """Steering vectors: make one, apply it, measure its effect and its damage."""


for command in (strength_map, make, apply, sweep, rerun, show_steering, convert):
    steer.add_command(command)

COMMANDS = (steer,)
