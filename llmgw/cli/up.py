"""`llmgw up`: everything on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.context import note, service_settings
from llmgw.cli.fleet import Copies, folders
from llmgw.cli.options import ClusterName, Config, Data, NodeName
from llmgw.errors import UsageError


def up(
    catalog: Annotated[
        Path | None, typer.Option(help="The catalog to apply at the start.", show_default=False)
    ] = None,
    data: Data = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of the NATS server that is started; port 0 takes a free one.",
            show_default=False,
        ),
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            help="DIR[,DIR…]: captured folders, each a simulated node beside this machine's.",
            show_default=False,
        ),
    ] = None,
    copies: Copies = 1,
    node: NodeName = None,
    cluster: ClusterName = None,
    config: Config = None,
) -> None:
    """Run NATS, a controller and an agent on this machine until Ctrl-C."""
    import asyncio

    captures = folders(simulate)
    if copies > 1 and not captures:
        raise UsageError("--copies goes with --simulate: it says how many nodes of each folder")
    settings = service_settings(config, data=data, listen=listen, node=node, cluster=cluster)
    if catalog is not None:
        from llmgw.catalog.load import load

        for warning in load(catalog).warnings:
            note(warning)
    from llmgw.up import run_up

    asyncio.run(run_up(settings, catalog, captures, copies))
