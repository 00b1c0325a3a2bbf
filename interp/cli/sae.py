"""`interp sae`: train sparse dictionaries, measure them, look at their latents, read and write other formats."""

import click

from interp.cli import sae_files, sae_latents, sae_measure
from interp.cli.sae_train import train


class _InOrder(click.Group):
    """Commands in the order of the work."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)


@click.group(cls=_InOrder)
def sae() -> None:
    """Sparse autoencoders, transcoders and crosscoders: train, measure, look at latents, import and export."""


for command in (train, *sae_measure.COMMANDS, *sae_latents.COMMANDS, *sae_files.COMMANDS):
    sae.add_command(command)

COMMANDS = (sae,)
