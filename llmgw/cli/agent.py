"""`llmgw agent`: the agent as a service, and a look at this machine's hardware without it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.context import note, resolved, service_settings
from llmgw.cli.options import (
    ClusterName,
    Config,
    Data,
    Format,
    NatsUrl,
    NodeName,
    Output,
    RunsByDefault,
    group,
)
from llmgw.errors import UsageError

app = group("Run engines on this machine. Without a command: run.", RunsByDefault)


class Backend(StrEnum):
    """The ways to ask for hardware, as the settings name them."""

    AUTO = "auto"
    NVML = "nvml"
    NVIDIA_SMI = "nvidia-smi"
    CPU = "cpu"


@app.command()
def run(
    stop_engines: Annotated[
        bool, typer.Option("--stop-engines", help="Stop the engines when the agent ends.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Simulate the machine of a captured folder, as the node that --node names.",
            show_default=False,
        ),
    ] = None,
    node: NodeName = None,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Run what the controller assigns to this machine, and report on it.

    Engines go on serving when the agent ends, and are adopted when it comes back. SIGHUP has the
    hardware looked at again at once.
    """
    import asyncio

    from llmgw.agent import run_agent

    if source is not None and node is None:
        raise UsageError("a simulated node is not this machine: name it with --node NAME")
    settings = service_settings(config, node=node, nats_url=nats_url, cluster=cluster, data=data)
    asyncio.run(run_agent(settings, stop_engines=stop_engines, capture=source))


@app.command()
def inventory(
    backend: Annotated[
        Backend | None, typer.Option(help="How to ask the hardware.", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Discover from a captured folder.", show_default=False),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(help="Also write what the tool prints to a folder.", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
    node: NodeName = None,
    config: Config = None,
) -> None:
    """Show what this machine has, or what a captured one had. Needs no NATS."""
    import asyncio

    from msgspec.structs import replace

    from llmgw.cli.inventory import as_contract, inventory_lines
    from llmgw.cli.output import emit
    from llmgw.hardware import discover
    from llmgw.sample import hardware_settings

    if capture is not None and source is not None:
        raise UsageError("--capture writes what this machine says, and --from does not ask it")
    settings = resolved(config, backend=backend and backend.value, node=node).settings
    look = replace(hardware_settings(settings), capture_from=source)
    if capture is not None:
        for path in asyncio.run(discover.capture(look, capture)):
            note(f"wrote {path}")
    found = asyncio.run(discover.discover(look))
    emit(as_contract(found), output, lambda _, wide: inventory_lines(found, wide))
