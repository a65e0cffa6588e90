"""The fleet: one connection, one reader of commands, one clock and one file for all its nodes.

A shell, as the agent is: facts go to each node's brain, what the brains publish goes to the log.
A node of it costs a few kilobytes and no system call of its own but for its sign of life.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import structlog
from msgspec.structs import replace

from llmgw import outputs, wire
from llmgw.agent import SIMULATED_FOLDER, stored_memory
from llmgw.core import stimuli as s
from llmgw.core.records import Record
from llmgw.errors import LlmgwError
from llmgw.fleet.names import PREFIX, simulated_nodes
from llmgw.fleet.node import FleetNode, Ports, memory_key
from llmgw.fleet.store import Store
from llmgw.folder import held
from llmgw.hardware.discover import discover
from llmgw.hardware.host import boot_id
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.types import Inventory, Readings
from llmgw.log.jetstream import JetStreamLog
from llmgw.loglink import LogLink, commands, waiting_commands
from llmgw.outbox import Outbox, open_outbox
from llmgw.sample import simulated_hardware
from llmgw.settings import Settings
from llmgw.stopping import hearing_hangups, hearing_signals

TICK_SECONDS = 0.1
LAST_WORDS_SECONDS = 20.0
PORTS_EACH = 8

log = structlog.get_logger()


class Machine(NamedTuple):
    """What a captured folder holds: a shape and readings, or why it cannot be read."""

    shape: Inventory | None
    readings: Readings | None
    error: str | None


class Fleet:
    """Simulated nodes that run together. Made and run by `run_fleet`."""

    def __init__(
        self, settings: Settings, nodes: Mapping[str, FleetNode], outbox: Outbox, store: Store
    ) -> None:
        self._settings = settings
        self._nodes = nodes
        self._store = store
        self._machines: dict[Path, Machine] = {}
        self._link = LogLink(settings, "llmgw fleet", outbox, self._start_over)

    async def run(
        self,
        identity: str,
        rebooted: bool,
        signals: AsyncIterator[signal.Signals],
        hangups: AsyncIterator[signal.Signals],
        stop_engines: bool,
    ) -> None:
        """Run until every node has left."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._store.write)
            await self._begin(identity, rebooted, tasks)
            for loop in (
                self._link.connect,
                self._send_events,
                self._follow,
                self._tick,
                self._beat,
                self._say_alive,
                self._keep_outputs_small,
            ):
                tasks.start_soon(loop)
            tasks.start_soon(self._hear_hangups, hangups)
            await self._leave(signals, stop_engines)
            tasks.cancel_scope.cancel()
        for node in self._nodes.values():
            await node.close()
        await self._link.close()

    async def _begin(self, identity: str, rebooted: bool, tasks: anyio.abc.TaskGroup) -> None:
        await self._look()
        ports = Ports()
        for name, node in self._nodes.items():
            node.employ(f"{identity}-{name}", ports, tasks)
            machine = self._machines[node.capture]
            await node.begin(rebooted, _named(machine.shape, name), machine.error)
            tasks.start_soon(node.think)
        log.info("fleet_started", nodes=len(self._nodes), captures=len(self._machines))

    async def _look(self) -> None:
        """Read each captured folder once, for all the nodes that have its hardware."""
        for folder in {node.capture for node in self._nodes.values()}:
            try:
                found = await discover(simulated_hardware(PREFIX, folder))
            except LlmgwError as error:
                log.warning("capture_unreadable", folder=str(folder), reason=str(error))
                self._machines[folder] = Machine(None, None, str(error))
            else:
                self._machines[folder] = Machine(shape(found), readings(found), None)

    # --- time --------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(TICK_SECONDS)
            for node in self._nodes.values():
                node.tick()

    async def _beat(self) -> None:
        """Send each node's sample at its time, the nodes spread over the pause evenly."""
        found = await self._link.reached()
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        pause = self._settings.sample_seconds / len(self._nodes)
        while True:
            for node in self._nodes.values():
                machine = self._machines[node.capture]
                message = node.sample(machine.readings, machine.error)
                await found.publish_sample(message.subject, message.payload)
                sent += 1
                if began + sent * pause - loop.time() > TICK_SECONDS:
                    await anyio.sleep(TICK_SECONDS)

    async def _say_alive(self) -> None:
        await self._link.say_alive({name: node.session for name, node in self._nodes.items()})

    async def _keep_outputs_small(self) -> None:
        while True:
            for node in self._nodes.values():
                if node.has_engines:
                    await node.limit_outputs()
            await anyio.sleep(outputs.LOOK_SECONDS)

    async def _hear_hangups(self, hangups: AsyncIterator[signal.Signals]) -> None:
        async for number in hangups:
            log.info("captures_read_again", signal=number.name)
            await self._look()
            for name, node in self._nodes.items():
                machine = self._machines[node.capture]
                if (inventory := _named(machine.shape, name)) is not None:
                    node.tell(s.InventoryTaken(inventory))
                else:
                    node.tell(s.HardwareUnreadable(machine.error or "no reason was given"))

    async def _leave(self, signals: AsyncIterator[signal.Signals], stop_engines: bool) -> None:
        """Wait for the signal to leave, and until every node has left and said so."""
        async for number in signals:
            log.info("fleet_leaving", signal=number.name, stop_engines=stop_engines)
            for node in self._nodes.values():
                node.tell(s.ShutdownRequested(stop_engines))
            break
        for node in self._nodes.values():
            await node.until_left()
        await self._link.say_last_words(LAST_WORDS_SECONDS)

    # --- the log -----------------------------------------------------------------------------

    async def _start_over(self) -> None:
        for node in self._nodes.values():
            await node.forget_log()

    async def _send_events(self) -> None:
        await self._link.send_events(await self._link.reached(), lambda: self._store.queued)

    async def _follow(self) -> None:
        await self._link.follow(await self._link.reached(), self._take_commands)

    async def _take_commands(self, found: JetStreamLog) -> None:
        """Hand commands out: those that waited, then each as it comes."""
        subject = wire.command_subject(self._settings.cluster, "*")
        seen = min(node.command_sequence for node in self._nodes.values())
        waiting, start = await waiting_commands(found, subject, seen)
        for node, some in self._by_node(waiting):
            node.take_waiting(some, first_time=node.command_sequence == 0)
        async for together in commands(found, subject, start):
            for node, some in self._by_node(together):
                node.take_waiting(some)

    def _by_node(self, records: Sequence[Record]) -> Iterator[tuple[FleetNode, list[Record]]]:
        """Yield the nodes that are commanded, each with its commands in order."""
        found: dict[str, list[Record]] = {}
        for record in records:
            found.setdefault(record.node, []).append(record)
        for name, some in found.items():
            if (node := self._nodes.get(name)) is not None:
                yield node, some


def _named(inventory: Inventory | None, node: str) -> Inventory | None:
    return None if inventory is None else replace(inventory, node=node)


async def run_fleet(
    settings: Settings, captures: Sequence[Path], copies: int, *, stop_engines: bool = False
) -> None:
    """Run so many simulated nodes from each captured folder until SIGTERM or SIGINT.

    With `stop_engines` their engines end first; else they go on, and the next fleet on the same
    data adopts them. Raises `UsageError` when there are too many or a folder holds no capture, and
    `DataFolderError` when the data folder cannot be used or another fleet uses it.
    """
    captured = await simulated_nodes(captures, copies)
    folder = settings.data / SIMULATED_FOLDER
    with (
        hearing_signals() as signals,
        hearing_hangups() as hangups,
        held(folder, "fleet of simulated nodes"),
    ):
        async with open_outbox(folder) as outbox:
            identity = await outbox.identity()
            boot, before = boot_id() or "unknown", await outbox.kept("boot_id")
            await outbox.commit({"boot_id": boot.encode()})
            store = Store(outbox)
            nodes = {
                node: FleetNode(
                    replace(settings, node=node, port_range=ports),
                    capture,
                    outbox,
                    store,
                    stored_memory(await outbox.kept(memory_key(node))),
                    boot,
                )
                for (node, capture), ports in zip(
                    captured.items(), port_ranges(settings.ports, len(captured)), strict=True
                )
            }
            rebooted = before is not None and before.decode() != boot
            fleet = Fleet(settings, nodes, outbox, store)
            await fleet.run(identity, rebooted, signals, hangups, stop_engines)


def port_ranges(ports: range, nodes: int) -> list[str]:
    """Return the ports that each node tries, as ranges that overlap where there are too few.

    No two engines get one port all the same: the nodes of a fleet take them from each other.
    """
    each = max(len(ports) // nodes, min(PORTS_EACH, len(ports)))
    places = len(ports) - each + 1
    starts = (ports[place * each % places] for place in range(nodes))
    return [f"{start}-{start + each - 1}" for start in starts]
