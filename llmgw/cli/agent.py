"""`llmgw agent`: the agent as a service, and a look at this machine's hardware without it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llmgw.cli.context import note, resolved
from llmgw.cli.fleet import fleet
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
from llmgw.errors import LlmgwError, UsageError

app = group("Run engines on this machine. Without a command: run.", RunsByDefault)
app.command()(fleet)


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
    from llmgw.cli.agent_process import Orders, become

    if source is not None and node is None:
        raise UsageError("a simulated node is not this machine: name it with --node NAME")
    found = resolved(config, node=node, nats_url=nats_url, cluster=cluster, data=data)
    become(Orders(found.settings, stop_engines, source))


@app.command()
def release(
    length: Annotated[str, typer.Option("--for", help="How long: 30s, 10m, 2h.")] = "10m",
    end: Annotated[bool, typer.Option("--end", help="Take NVML up again now.")] = False,
    data: Data = None,
    config: Config = None,
) -> None:
    """Have the agent of this machine give NVML up, to carve instances or reset a card.

    Returns when no session of it is left. It takes NVML up again by itself, and then looks at the
    hardware afresh. Nothing is measured meanwhile; the node's devices stay as they were.
    """
    import time

    from llmgw import releasing
    from llmgw.cli.moments import parse_length
    from llmgw.settings import AGENT_FOLDER

    seconds = 0.0 if end else parse_length(length, "--for")
    folder = resolved(config, data=data).settings.data / AGENT_FOLDER
    until = time.time() + seconds
    answer = releasing.ask(folder, until)
    if end:
        print("NVML is taken up again")
        return
    if answer.trouble is not None:
        raise LlmgwError(f"NVML is not released: {answer.trouble}")
    print(
        f"NVML is released until {time.strftime('%H:%M:%S', time.localtime(until))}: no session of"
        " this agent is left. Engines that run still hold their devices; `llmgw ctl drain` ends"
        " them.\nTake it up again earlier with: llmgw agent release --end"
    )


@app.command()
def drain(
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the engines, those with requests last.")
    ] = False,
    patience: Annotated[
        str, typer.Option("--within", help="How long to wait: 30s, 10m.", show_default="10m")
    ] = "10m",
    data: Data = None,
    config: Config = None,
) -> None:
    """Have the agent of this machine stop its engines in good order, and leave.

    Each engine finishes its requests first, as far as its entry's `stop_seconds` allows. Returns
    when the agent is gone. What is wanted here starts again with the next agent.
    """
    from llmgw import leaving
    from llmgw.cli.moments import parse_length
    from llmgw.settings import AGENT_FOLDER

    if not stop:
        raise UsageError(
            "say --stop to have the agent stop its engines and leave; `llmgw ctl drain NODE` has"
            " its replicas placed elsewhere first"
        )
    folder = resolved(config, data=data).settings.data / AGENT_FOLDER
    pid = leaving.ask(folder, parse_length(patience, "--within"))
    print(f"the agent (pid {pid}) has stopped its engines and left")


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
        written = asyncio.run(discover.capture(look, capture))
        for path in written.files:
            note(f"wrote {path}")
        note(written.said())
    found = asyncio.run(discover.discover(look))
    emit(as_contract(found), output, lambda _, wide: inventory_lines(found, wide))
