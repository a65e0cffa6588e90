"""`llmgw`, the program: its groups of commands, and the one place where errors become words.

An error that a person can cause is one message on stderr and an exit code, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import TextIOWrapper

import typer

from llmgw import __version__
from llmgw.cli import agent, catalog, config, controller, ctl, schemas
from llmgw.cli.doctor import doctor
from llmgw.cli.up import up
from llmgw.errors import LlmgwError

app = typer.Typer(
    name="llmgw",
    help="Serve language models on a fleet of GPU machines, and explain every decision.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(doctor)
app.add_typer(agent.app, name="agent")
app.add_typer(controller.app, name="controller")
app.add_typer(ctl.app, name="ctl")
app.add_typer(catalog.app, name="catalog")
app.add_typer(schemas.app, name="schemas")
app.add_typer(config.app, name="config")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def run() -> None:
    """Run the program and end the process: the entry point of the package."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (LlmgwError, BaseExceptionGroup) as error:
        known = [*_known(error)]
        if not known:
            raise
        for one in known:
            print(one, file=sys.stderr)
        sys.exit(known[0].exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _known(error: BaseException) -> Iterator[LlmgwError]:
    """Yield the errors that are meant to be read; none at all if any other is among them."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
    if isinstance(error, BaseExceptionGroup) and error.split(LlmgwError)[1] is not None:
        return
    for one in inner:
        if isinstance(one, LlmgwError):
            yield one
        else:
            yield from _known(one)
