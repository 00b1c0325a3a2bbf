"""The command group, and what becomes of errors."""

import logging
import os
import sys
from collections.abc import Sequence

import click

import interp
from interp.cli import (
    analyse,
    app,
    behave,
    circuits,
    compare,
    doctor,
    heads,
    jobs,
    lenses,
    probe,
    run,
    sae,
    steer,
    stores,
    train,
)


class Group(click.Group):
    """Commands in the order of the work, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(self.commands)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: interp lens smollm2-135m 'The Eiffel Tower is located in the city of' --answer ' Paris'",
)
@click.version_option(interp.__version__, prog_name="interp")
@click.option("-v", "--verbose", is_flag=True, help="Show what is done on the way.")
def commands(verbose: bool) -> None:
    """Record a model's activations, analyse the store, act on the model, show the results."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")


MODULES = (run, app, stores, lenses, heads, circuits, compare, probe, analyse, behave, sae, steer, jobs, doctor, train)
for command in (command for module in MODULES for command in module.COMMANDS):
    commands.add_command(command)


def status(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 the work failed, 2 the call was wrong."""
    try:
        code = commands.main(arguments, prog_name="interp", standalone_mode=False)
    except click.exceptions.Abort:
        return _say("stopped; what was finished is kept", 130)
    except KeyboardInterrupt:
        return _say("stopped; what was finished is kept", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        return _say(error.format_message() + hint, 2)
    except click.ClickException as error:
        return _say(error.format_message(), 1)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if os.environ.get("INTERP_DEBUG"):
            raise
        text = str(error) or type(error).__name__
        if isinstance(error, ValueError | FileNotFoundError):
            return _say(text, 2)
        if isinstance(error, OSError):
            return _say(text, 1)
        return _say(f"{type(error).__name__}: {text} (INTERP_DEBUG=1 shows where)", 1)
    # Without standalone mode click hands an Exit's status back as the result.
    return code if isinstance(code, int) else 0


def _say(text: str, code: int) -> int:
    """One line; a table that a message ends with (behind a colon and a line break) keeps its lines."""
    line, _, table = text.partition(":\n")
    click.echo("interp: " + " ".join(line.split()) + (":" if table else ""), err=True)
    if table:
        click.echo(table, err=True)
    return code
