"""`llmgw catalog`: what can be said about a catalog without any cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.context import note
from llmgw.cli.options import group

app = group("Validate catalogs.")


@app.command()
def check(file: Annotated[Path, typer.Argument(help="A catalog in YAML.")]) -> None:
    """Print FILE:LINE: field: message for every mistake. Exits with 2 if there is one."""
    from llmgw.catalog.load import check_file
    from llmgw.cli.output import write_lines

    checked = check_file(file)
    for warning in checked.warnings:
        note(f"warning: {warning}")
    if checked.problems:
        write_lines(map(str, checked.problems))
        raise typer.Exit(2)
    count = len(checked.catalog.models)
    note(f"{file}: {count} {'model' if count == 1 else 'models'}, no mistakes")
