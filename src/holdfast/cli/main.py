"""`holdfast`: the group of commands, and what happens when one fails.

Invariants:
    * Exit status 0 is success, 1 is failure, 2 is wrong use; 130 is Ctrl-C.
    * A command's module, and what it needs, is imported when the command is used: `--help` is quick.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click
import msgspec

from holdfast import __version__
from holdfast.errors import HoldfastError

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130

_COMMANDS = {
    "run": ("holdfast.cli.run", "Run a pipeline's script, and start it again when it dies."),
    "explain": ("holdfast.cli.explain", "Draw a program's pipeline and what it promises; nothing is started."),
    "status": ("holdfast.cli.status", "Show what a store's pipelines are doing."),
    "cluster": ("holdfast.cli.cluster", "Start a small Spark cluster on this machine, to try things."),
    "doctor": ("holdfast.cli.doctor", "Check this machine, a store and a Spark session, and say what to change."),
    "demo": ("holdfast.cli.demo", "Run a pipeline that kills itself, and compare what comes out."),
    "log": ("holdfast.cli.log", "Look into the log of a pipeline, verify it, repair it."),
    "consume": ("holdfast.cli.consume", "Print the rows of a stream."),
}


class _Lazy(click.Group):
    """Commands by name; a module is imported when its command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --json and --debug, and --help with an example.",
)
@click.version_option(__version__, prog_name="holdfast")
def commands() -> None:
    """Fault tolerance for stateful streams on Spark, by dials.

    \b
    Example:
      holdfast demo
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; the entry point of `holdfast`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = commands.main(given, prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing must be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        _show(error, given)
        return EXIT_FAILURE


def _show(error: Exception, given: Sequence[str]) -> None:
    """Print an error as one message."""
    if "--debug" in given:
        traceback.print_exc()
    name = type(error).__name__
    ours = isinstance(error, HoldfastError)
    if "--json" in given:
        click.echo(msgspec.json.encode({"error": name, "message": str(error)}).decode(), err=True)
    elif ours:
        click.echo(f"holdfast: {name}: {error}", err=True)
    else:
        hint = "" if "--debug" in given else " (--debug shows where)"
        click.echo(f"holdfast: unexpected {name}: {error}{hint}", err=True)


if __name__ == "__main__":
    sys.exit(main())
