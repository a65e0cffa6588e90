"""`llmgw`, the program: its groups of commands."""

from __future__ import annotations

import typer

from llmgw import __version__
from llmgw.cli import agent, catalog, config, controller, ctl, schemas
from llmgw.cli.doctor import doctor
from llmgw.cli.plan import plan
from llmgw.cli.up import up
from llmgw.cli.words import run_in_words

app = typer.Typer(
    name="llmgw",
    help="Serve language models on a fleet of GPU machines, and explain every decision.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(doctor)
app.command()(plan)
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
    run_in_words(app)
