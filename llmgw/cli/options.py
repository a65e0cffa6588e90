"""What the groups of commands share: how a group is made, and options, each declared once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup


class RunsByDefault(TyperGroup):
    """A group whose command `run` need not be named."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put `run` first where no command is named and no help is asked for."""
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def group(summary: str, kind: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """Return a group of commands; its help is plain text, because colour costs a slow import."""
    made = typer.Typer(cls=kind, help=summary, no_args_is_help=True, rich_markup_mode=None)
    made.callback()(lambda: None)  # without it typer makes a single command the whole group
    return made


class Format(StrEnum):
    """How data is printed. `wide` is a table with more columns and nothing cut off."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
Config = Annotated[
    Path | None, typer.Option(help="The configuration file to read.", show_default=False)
]
Data = Annotated[
    Path | None, typer.Option(help="The data folder of this machine.", show_default=False)
]
NatsUrl = Annotated[
    str | None,
    typer.Option(
        help="The NATS servers. Without it: those of `llmgw up` on the data folder.",
        show_default=False,
    ),
]
ClusterName = Annotated[str | None, typer.Option(help="The cluster's name.", show_default=False)]
NodeName = Annotated[str | None, typer.Option(help="This machine's name.", show_default=False)]
