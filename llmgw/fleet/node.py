"""One node of a fleet: an agent whose surroundings are the fleet's.

It is the agent of a real node in what it thinks, remembers and says; its fleet connects, samples,
ticks and sends for it. Like any simulated node it starts only engines that bring a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import structlog

from llmgw import __version__, wire
from llmgw.agent import Agent, CommandsAlone, policy_of, simulated_folder, started_pids
from llmgw.clock import now
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.memory import Memory
from llmgw.core.node import NodeMachine
from llmgw.core.records import Record
from llmgw.core.telemetry import NodeSample
from llmgw.errors import DataFolderError
from llmgw.fleet.store import Store
from llmgw.hardware.types import Inventory, Readings
from llmgw.outbox import Outbox
from llmgw.sample import simulated_hardware
from llmgw.settings import Settings

RETRY_SECONDS = 1.0

log = structlog.get_logger()


class Ports:
    """The ports that engines of a fleet have: two nodes that start at once never race for one."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[str, s.Start]] = {}

    def take(self, port: int, node: str, start: s.Start) -> bool:
        """Take a port for a start on a node; return whether it was free."""
        return self._holders.setdefault(port, (node, start)) == (node, start)

    def give_back(self, node: str, start: s.Start) -> None:
        """Free the port of a start that has ended."""
        held = [port for port, holder in self._holders.items() if holder == (node, start)]
        for port in held:
            del self._holders[port]


class FleetEngines(CommandsAlone):
    """The engines of one node of a fleet, on ports that no other node of it has."""

    def __init__(
        self,
        agent: str,
        folder: Path,
        settings: Settings,
        tasks: anyio.abc.TaskGroup,
        report: Callable[[s.Input], None],
        ports: Ports,
    ) -> None:
        super().__init__(agent, folder, settings.host, settings, tasks, self._tell)
        self._node = settings.node
        self._ports = ports
        self._outer = report

    async def carry_out(self, effect: s.Effect) -> None:
        """Carry out one effect, a start only on a port that no other node has taken."""
        if isinstance(effect, s.SpawnEngine) and not self._take(effect.port, effect.start):
            reason = f"port {effect.port} is another simulated node's"
            self._outer(s.SpawnFailed(effect.start, reason, port_taken=True))
            return
        await super().carry_out(effect)

    async def find(self, started: Mapping[s.Start, int]) -> tuple[s.EngineFound, ...]:
        """Return the engines of before, which keep their ports."""
        found = await super().find(started)
        for engine in found:
            self._take(engine.port, engine.start)
        return found

    def _take(self, port: int, start: s.Start) -> bool:
        return self._ports.take(port, self._node, start)

    def _tell(self, fact: s.Input) -> None:
        if isinstance(fact, s.EngineExited | s.SpawnFailed):
            self._ports.give_back(self._node, fact.start)
        self._outer(fact)


class FleetNode(Agent):
    """One simulated node. Made and run by its fleet."""

    def __init__(
        self,
        settings: Settings,
        capture: Path,
        outbox: Outbox,
        store: Store,
        memory: Memory,
        boot: str,
    ) -> None:
        started = e.NodeStarted(
            boot_id=boot,
            agent_version=__version__,
            address=settings.host,
            simulated=True,
            labels=settings.node_labels,
        )
        super().__init__(
            settings,
            simulated_folder(settings),
            simulated_hardware(settings.node, capture),
            outbox,
            NodeMachine(memory, policy_of(settings), started),
            boot,
        )
        self.capture = capture
        self._store = store
        self._stored = b""
        self._samples = 0

    @property
    def name(self) -> str:
        """The node's name."""
        return self._settings.node

    @property
    def session(self) -> str:
        """What tells this life of the node's agent from others."""
        return self._session

    @property
    def command_sequence(self) -> int:
        """The place in the log of the last command that this node has taken."""
        return self._machine.memory.command_sequence

    @property
    def has_engines(self) -> bool:
        """Whether there is an engine that time means something to, or may be one."""
        return bool(self._machine.memory.parts)

    def employ(self, identity: str, ports: Ports, tasks: anyio.abc.TaskGroup) -> None:
        """Get ready to run engines as `identity`."""
        folder, report = self._folder / "engines", self._inputs.put_nowait
        self._supervisor = FleetEngines(identity, folder, self._settings, tasks, report, ports)

    async def begin(self, rebooted: bool, inventory: Inventory | None, error: str | None) -> None:
        """Find the engines of before, if there can be any, and tell the brain that it woke up."""
        remembered = started_pids(self._machine.memory)
        found = await self._supervisor.find(remembered) if self.has_engines else ()
        self.tell(s.AgentStarted(found, rebooted, inventory))
        if error is not None:
            self.tell(s.HardwareUnreadable(error))

    def tell(self, fact: s.Input) -> None:
        """Have the brain think about a fact."""
        self._inputs.put_nowait(fact)

    def tick(self) -> None:
        """Say that time went on, where the brain waits for it and has nothing else to think of."""
        if self.has_engines and self._inputs.empty():
            self.tell(s.ClockTicked())

    async def until_left(self) -> None:
        """Wait until nothing is left for this node to do."""
        await self._left.wait()

    async def think(self) -> None:
        """Think for ever."""
        await self._think()

    async def forget_log(self) -> None:
        """Have the brain forget what the old log said; return when it has."""
        self.tell(s.LogReplaced())
        await self._inputs.join()

    def take_waiting(self, waiting: list[Record], first_time: bool = False) -> None:
        """Take commands that came together, `first_time` those that the log held at the start."""
        last = self.command_sequence
        self._take_waiting([r for r in waiting if r.sequence > last], first_time)

    def sample(self, readings: Readings | None, error: str | None) -> wire.Outgoing:
        """Think about what was measured, and return it as a sign of life.

        No process of a captured machine is one of ours, though it may have the number of one.
        """
        self._samples += 1
        if readings is not None:
            self.tell(s.SampleTaken(readings, {}))
        sample = NodeSample(
            node=self.name,
            session=self._session,
            number=self._samples,
            readings=readings,
            error=error,
        )
        return wire.encode_sample(self._settings.cluster, sample, time=now())

    async def limit_outputs(self) -> None:
        """Cut what has grown too large of the engines' output."""
        await self._supervisor.limit_outputs()

    async def close(self) -> None:
        """Let go of the engines; they go on."""
        await self._supervisor.close()

    async def _remember(self, events: list[e.Event]) -> None:
        """Store memory and events in the fleet's store; not at all where neither is new."""
        memory = msgspec.json.encode(self._machine.memory)
        messages = [self._encode(event) for event in events]
        while messages or memory != self._stored:
            try:
                await self._store.commit({memory_key(self.name): memory}, messages)
            except DataFolderError as error:
                log.warning("agent_cannot_remember", node=self.name, reason=str(error))
                await anyio.sleep(RETRY_SECONDS)
            else:
                self._stored = memory
                return


def memory_key(node: str) -> str:
    """Return the name under which a node's memory is stored."""
    return f"memory of {node}"
