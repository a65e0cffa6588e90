"""`llmgw agent fleet`: many simulated nodes in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.context import service_settings
from llmgw.cli.options import ClusterName, Config, Data, NatsUrl
from llmgw.errors import UsageError

Captures = Annotated[
    str, typer.Option("--from", help="DIR[,DIR…]: captured folders, each a kind of node.")
]
Copies = Annotated[int, typer.Option(min=1, help="How many nodes to simulate from each folder.")]


def fleet(
    source: Captures,
    copies: Copies = 1,
    stop_engines: Annotated[
        bool, typer.Option("--stop-engines", help="Stop the engines when the fleet ends.")
    ] = False,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Simulate many machines of captured folders at once, as the nodes sim-1, sim-2 and so on.

    A load for scale checks: each node reports, is placed on and runs entries with
    `engine: command`, and all share one process and one connection to the log.
    """
    import asyncio

    from llmgw.fleet.run import run_fleet

    settings = service_settings(config, nats_url=nats_url, cluster=cluster, data=data)
    asyncio.run(run_fleet(settings, folders(source), copies, stop_engines=stop_engines))


def folders(given: str | None) -> list[Path]:
    """Return the folders that are named, separated by commas; none if nothing is given.

    Raises `UsageError` where what is given names none.
    """
    found = [Path(name) for name in (given or "").split(",") if name]
    if given is not None and not found:
        raise UsageError(f"{given!r} names no captured folder: write DIR or DIR,DIR")
    return found
