"""`llmgw schemas`: what the log holds, described for programs in any language."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.context import note
from llmgw.cli.options import group

SAID_NO = 4

app = group("Describe what the log holds, as JSON Schema and AsyncAPI.")


@app.command()
def export(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Write one file for each type into DIR, and remove those of types that are gone."""
    from llmgw.schemas import export as write

    for name in write(folder):
        note(f"wrote {folder / name}")


@app.command()
def check(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Compare DIR with the types of this version. Exits with 1 if they differ."""
    from llmgw.cli.output import write_lines
    from llmgw.schemas import check as compare

    drift = compare(folder)
    if drift:
        write_lines(drift)
        note(f"{folder} is not what this version says: run `make schemas`")
        raise typer.Exit(1)


@app.command()
def compare(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Say what this version breaks for programs written for the schemas in DIR.

    DIR is what an older version exported. Exits with 4 if something breaks.
    """
    from llmgw.cli.output import write_lines
    from llmgw.schemas import compare as found

    broken = found(folder)
    if broken:
        write_lines(broken)
        note("programs written for these schemas need a change before this version is used")
        raise typer.Exit(SAID_NO)
