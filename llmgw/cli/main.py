"""`llmgw`, the program: its groups of commands."""

from __future__ import annotations

import typer

from llmgw import __version__
from llmgw.cli.lazy import LazyGroup
from llmgw.cli.words import run_in_words

app = typer.Typer(
    name="llmgw",
    cls=LazyGroup,
    help="Serve language models on a fleet of GPU machines, and explain every decision.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.callback()(lambda: None)  # without it typer makes a single command the whole program


@app.command()
def version() -> None:
    """Print the version."""
    from llmgw.cli.output import write_lines

    write_lines([__version__])


def run() -> None:
    """Run the program and end the process: the entry point of the package."""
    run_in_words(app)
