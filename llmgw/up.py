"""`llmgw up`: everything on one machine, in one process tree, until Ctrl-C.

It runs an embedded nats-server (unless one is named), a controller and an agent as children, has
the catalog applied, and tells what happens by following the log like any other reader. Stopped
cleanly it ends the engines first; started again on the same data it goes on where it was.
Simulated nodes on captured folders run beside the real one when asked for, all in one process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec
import structlog

from llmgw import outputs
from llmgw.catalog.entries import Catalog
from llmgw.catalog.load import load
from llmgw.children import Child
from llmgw.errors import LlmgwError, UsageError
from llmgw.fleet.names import simulated_nodes
from llmgw.folder import held, unusable
from llmgw.log.embedded import EmbeddedServer, embedded_server
from llmgw.log.jetstream import connect
from llmgw.settings import ENDPOINT_FILE, NAMES, Settings, require_patience
from llmgw.stopping import STOP_SIGNALS
from llmgw.telling import say, tell

AGENT_GRACE_SECONDS = 60.0
CONTROLLER_GRACE_SECONDS = 10.0
SERVER_PAUSE_SECONDS = 2.0
SERVER_LOOK_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 300.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

log = structlog.get_logger()


class Asked(NamedTuple):
    """What a person asked for: a catalog, from which file, and which nodes beside this machine."""

    catalog: Catalog | None
    file: Path | None
    captures: Sequence[Path]
    copies: int
    nodes: frozenset[str]


async def run_up(
    settings: Settings,
    catalog: Path | None,
    captures: Sequence[Path] = (),
    copies: int = 1,
) -> None:
    """Run a whole cluster on this machine until SIGINT or SIGTERM.

    `captures` are folders to simulate nodes from, each so many times. Raises `CatalogError` and
    `UsageError` before anything is started, and `DataFolderError` when the data folder cannot be
    used or another `llmgw up` uses it.
    """
    require_patience(settings)
    simulated = await simulated_nodes(captures, copies)
    if settings.node in simulated:
        raise UsageError(f"--node {settings.node} is the name of a simulated node: choose another")
    wanted = load(catalog).catalog if catalog is not None else None
    asked = Asked(wanted, catalog, captures, copies, frozenset((settings.node, *simulated)))
    with held(settings.data, "llmgw up"):
        async with _server(settings) as (url, server):
            try:
                await _run(settings, url, server, asked)
            finally:
                (settings.data / ENDPOINT_FILE).unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def _server(settings: Settings) -> AsyncIterator[tuple[str, EmbeddedServer | None]]:
    if settings.nats_url is not None:
        yield settings.nats_url, None
        return
    host, port = _listen(settings.listen)
    async with embedded_server(settings.data, port, host) as server:
        yield server.url, server


def _listen(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in LOOPBACK:
        raise UsageError(
            f"--listen {address}: the embedded server has no passwords, so it listens on "
            "loopback only (127.0.0.1). To serve other machines, run a nats-server with "
            "accounts and name it with LLMGW_NATS_URL"
        )
    return host.strip("[]"), int(port)


def _write_endpoint(data: Path, url: str) -> None:
    """Let `llmgw ctl` on the same data find the server. Replaced whole, never half written."""
    path = data / ENDPOINT_FILE
    part = path.with_suffix(".new")
    try:
        part.write_bytes(msgspec.json.encode({"nats_url": url, "pid": os.getpid()}))
        part.chmod(0o600)
        part.replace(path)
    except OSError as error:
        raise unusable(data, error) from error


async def _run(settings: Settings, url: str, server: EmbeddedServer | None, asked: Asked) -> None:
    found = await connect(url, settings.cluster, name="llmgw up")
    _write_endpoint(settings.data, url)
    controller, agents = _children(settings, url, asked)
    say(f"log: {found.url}, data: {settings.data}")
    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(controller.keep)
                for agent in agents:
                    tasks.start_soon(agent.keep)
                tasks.start_soon(_keep_logs_small, controller.log_file.parent)
                if server is not None:
                    tasks.start_soon(_keep_server, server)
                tasks.start_soon(tell, settings, found, asked.catalog, asked.file, asked.nodes)
                await anext(signals)
                say(
                    f"stopping: engines first, for up to {AGENT_GRACE_SECONDS:.0f} s;"
                    " Ctrl-C again ends at once"
                )
                await _finish(agents, signals)
                await controller.stop(CONTROLLER_GRACE_SECONDS)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _finish(agents, signals)
                await controller.stop(CONTROLLER_GRACE_SECONDS)
                await found.close()
    say("stopped")


async def _finish(agents: Sequence[Child], signals: AsyncIterator[signal.Signals]) -> None:
    """End agents with their engines, all at once, and say which did not end in good order.

    A signal meanwhile ends the waiting: engines that still run are left as they are.
    """
    left = [agent for agent in agents if not agent.is_finished]
    if not left:
        return

    async def finish(agent: Child) -> None:
        if not await agent.finish(AGENT_GRACE_SECONDS) and not agent.is_finished:
            say(f"{agent.name} did not end in good order, engines may run on: {agent.log_file}")

    async def finish_all() -> None:
        async with anyio.create_task_group() as ending:
            for agent in left:
                ending.start_soon(finish, agent)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish_all)
        await anext(signals)
        say(
            "ending at once: engines that still run are left to the next `llmgw up` on the same"
            " data, which adopts or stops them"
        )
        for agent in left:
            agent.abandon()


def _children(settings: Settings, url: str, asked: Asked) -> tuple[Child, list[Child]]:
    """Return controller and agents, with every setting in force handed to them.

    The simulated nodes have ports of their own: two agents that are told to start engines at the
    same moment would both find the first port free.
    """
    ranges = _port_ranges(settings, 2 if asked.captures else 1)
    folder = settings.data / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(settings.data, error) from error
    environment = _environment(settings, url)
    own = environment | {"LLMGW_PORT_RANGE": ranges[0]}
    agents = [Child("agent", ["agent", "run", "--stop-engines"], own, folder)]
    if asked.captures:
        named = ",".join(str(capture.absolute()) for capture in asked.captures)
        words = ["agent", "fleet", "--stop-engines", "--from", named, "--copies"]
        own = environment | {"LLMGW_PORT_RANGE": ranges[1]}
        agents.append(Child("simulated", [*words, str(asked.copies)], own, folder))
    return Child("controller", ["controller", "run"], environment, folder), agents


def _environment(settings: Settings, url: str) -> dict[str, str]:
    values = {name: getattr(settings, name) for name in NAMES} | {"nats_url": url}
    return {
        f"LLMGW_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _port_ranges(settings: Settings, number: int) -> list[str]:
    """Return the ports that engines may have, as so many ranges. Raises `UsageError`."""
    ports = settings.ports
    each = len(ports) // number
    if each == 0:
        raise UsageError(
            f"the port range {settings.port_range} is too small to be shared with simulated nodes:"
            " widen it with LLMGW_PORT_RANGE"
        )
    starts = [ports[place * each] for place in range(number)]
    return [f"{start}-{start + each - 1}" for start in starts]


async def _keep_logs_small(folder: Path) -> None:
    while True:
        await anyio.to_thread.run_sync(outputs.limit_folder, folder, set)
        await anyio.sleep(outputs.LOOK_SECONDS)


async def _keep_server(server: EmbeddedServer) -> None:
    """Start the log again when it ended, and when it runs but stores no more."""
    pause_seconds = SERVER_LOOK_SECONDS
    while True:
        code: int | None = None
        with anyio.move_on_after(pause_seconds):
            code = await server.wait()
        if code is not None:
            log.warning("log_server_ended", exit_code=code)
        elif reason := await server.ailment():
            log.warning("log_server_started_again", reason=reason)
            # Where that does not help it is not done for ever at this pace.
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        else:
            pause_seconds = SERVER_LOOK_SECONDS
            continue
        await _restart(server)


async def _restart(server: EmbeddedServer) -> None:
    """Start the log again. Engines serve on without it: that it cannot start is no end of all."""
    while True:
        try:
            await server.restart()
        except LlmgwError as error:
            log.warning("log_server_does_not_start", reason=str(error))
            await anyio.sleep(SERVER_PAUSE_SECONDS)
        else:
            return
