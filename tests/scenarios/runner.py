"""Runs a scenario: a whole cluster in one thread, whose engines do only what the text says.

A scenario is a text file of three kinds of lines: `given DO` and `when DO`, where DO is one of
the words in `World`, and `then`, followed by what came of the last `when`, indented. What the
controller decides and what the agents do runs on until nothing more happens.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from llmgw import wire
from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.memory import Memory, Policy, digest
from llmgw.core.node import NodeMachine
from llmgw.core.records import Record
from llmgw.hardware.types import (
    Card,
    CardError,
    CardReading,
    Device,
    DeviceReading,
    Inventory,
    Process,
    Readings,
)
from llmgw.testing.builders import (
    CLUSTER,
    TIME,
    From,
    Story,
    applied,
    card,
    entry,
    instance,
    inventory,
    processor,
    tell,
)

MOST_ROUNDS = 100


class Node:
    """One machine: the brain of its agent, and the engines that run there."""

    def __init__(self, name: str, has: Inventory) -> None:
        self.name, self.has = name, has
        self.machine = self._brain(Memory(), "b1")
        self.boots = 1
        self.taken = 0
        self.pids = 0
        self.engines: dict[s.Start, s.EngineFound] = {}

    def _brain(self, memory: Memory, boot: str) -> NodeMachine:
        return NodeMachine(memory, Policy(), e.NodeStarted(boot_id=boot, agent_version="1"))

    def restart(self, memory: Memory | None = None) -> s.AgentStarted:
        """The agent comes back with what it stored."""
        stored = msgspec.json.encode(memory or self.machine.memory)
        kept = msgspec.json.decode(stored, type=Memory)
        self.machine = self._brain(kept, f"b{self.boots}")
        return s.AgentStarted(tuple(self.engines.values()), rebooted=False, inventory=self.has)


class World:
    """The words of a scenario, each a method; `said` collects what came of them."""

    def __init__(self) -> None:
        self.story = Story()
        self.nodes: dict[str, Node] = {}
        self.said: list[str] = []
        self.now = 0.0

    def do(self, line: str) -> None:
        """Do what a line says, and let everything that follows from it happen."""
        word, *arguments = shlex.split(line)
        getattr(self, f"_{word.replace('-', '_')}")(*arguments)
        for _ in range(MOST_ROUNDS):
            if not self._went_on():
                return
        raise AssertionError(f"{line!r}: this never comes to rest: {self.said[-6:]}")

    def _went_on(self) -> bool:
        decisions = decide(self.story.state)
        for decision in decisions:
            self.said.append(f"controller: {tell(decision)}")
            self.story.given(decision)
        return bool([*map(self._take_command, self._unread())] or decisions)

    def _unread(self) -> Iterator[Record]:
        for record in list(self.story.records):
            node = self.nodes.get(record.node)
            if record.origin == "command" and node and record.sequence > node.taken:
                yield record

    def _take_command(self, record: Record) -> None:
        self.nodes[record.node].taken = record.sequence
        assert isinstance(record.body, SetAssignments)
        self._feed(self.nodes[record.node], s.CommandReceived(record.sequence, record.body))

    def _feed(self, node: Node, fact: s.Input) -> None:
        for effect in node.machine.handle(fact, self.now):
            if isinstance(effect, s.CountRequests):  # these engines do not tell
                self._feed(node, s.EngineCounted(effect.start, None))
            elif not isinstance(effect, s.ProbeEngine):
                self.said.append(f"{node.name}: {tell(effect)}")
            if isinstance(effect, s.Publish):
                self.story.given(From(node.name, effect.event))
            elif isinstance(effect, s.SpawnEngine):
                self._spawn(node, effect)

    def _spawn(self, node: Node, effect: s.SpawnEngine) -> None:
        node.pids += 1
        made = digest(effect.assignment)
        node.engines[effect.start] = s.EngineFound(effect.start, node.pids, effect.port, made)
        self._feed(node, s.EngineSpawned(effect.start, node.pids))

    # --- the words ---------------------------------------------------------------------------

    def _node(self, name: str, *devices: str) -> None:
        """`node n1 l40s-48g l40s-48g@nvlink cpu a100-80g/2`: a machine joins."""
        has = inventory(name, *_devices(devices))
        node = self.nodes[name] = Node(name, has)
        self._feed(node, s.AgentStarted((), rebooted=False, inventory=has))

    def _elect(self, holder: str) -> None:
        self.story.given(e.ControllerElected(term=self.story.state.term + 1, holder=holder))

    def _catalog(self, *entries: str) -> None:
        """`catalog "m class=l40s-48g,cpu gib=20 replicas=2"`: the operator wants just this."""
        self.story.given(applied(*map(_entry, entries)))

    def _answer(self, engine: str, status: str) -> None:
        node, start = self._engine(engine)
        self._feed(node, s.EngineAnswered(start, int(status)))

    def _exit(self, engine: str, code: str, output: str = "") -> None:
        node, start = self._engine(engine)
        del node.engines[start]
        self._feed(node, s.EngineExited(start, int(code), None, output))

    def _wait(self, seconds: str) -> None:
        self.now += float(seconds)
        for node in self.nodes.values():
            self._feed(node, s.ClockTicked())

    def _silent(self, name: str) -> None:
        lost = e.NodeLost(term=self.story.state.term, node=name, silent_seconds=15)
        self.story.given(lost)

    def _heard(self, name: str) -> None:
        self.story.given(e.NodeReturned(term=self.story.state.term, node=name))

    def _restart_agent(self, name: str) -> None:
        self._feed(self.nodes[name], self.nodes[name].restart())

    def _wipe_agent(self, name: str) -> None:
        """The agent comes back without its folder, and reads its newest command again."""
        node = self.nodes[name]
        self._feed(node, node.restart(Memory()))
        commands = [r for r in self.story.records if r.origin == "command" and r.node == name]
        node.taken = commands[-1].sequence - 1 if commands else 0

    def _reboot(self, name: str) -> None:
        node = self.nodes[name]
        node.engines.clear()
        node.boots += 1
        self._feed(node, msgspec.structs.replace(node.restart(), rebooted=True))

    def _carve_anew(self, name: str) -> None:
        """The MIG instances of a machine are destroyed and made again: they have other UUIDs."""
        node = self.nodes[name]
        replace = msgspec.structs.replace
        devices = tuple(
            replace(one, uuid=f"{one.uuid}-anew") if one.profile else one
            for one in node.has.devices
        )
        node.has = msgspec.structs.replace(node.has, devices=devices)
        self._feed(node, s.InventoryTaken(node.has))

    def _xid(self, name: str, index: str, number: str, instance: str = "") -> None:
        """`xid n1 0 94 3`: the driver tells of a critical error of a card, and where on it."""
        node = self.nodes[name]
        cards = {str(one.index): one.uuid for one in node.has.cards}
        where = int(instance) if instance else None
        error = CardError(card=cards[index], number=int(number), gpu_instance=where)
        self._measured(node, (error,))

    def _sample(self, name: str) -> None:
        """The devices are measured: everybody who runs is on his own, and nobody else is there."""
        self._measured(self.nodes[name], ())

    def _cards_reset(self, name: str) -> None:
        """A person had NVML released, has reset the cards, and it is taken up again."""
        self._feed(self.nodes[name], s.NvmlReleased())
        self._measured(self.nodes[name], ())

    def _measured(self, node: Node, errors: tuple[CardError, ...]) -> None:
        told = {error.card: (error.number,) for error in errors}
        cards = tuple(
            CardReading(
                index=card.index,
                uuid=card.uuid,
                temperature_celsius=50,
                xids=told.get(card.uuid, ()),
            )
            for card in node.has.cards
        )
        on = {start: found.pid for start, found in node.engines.items()}
        parts = {start: node.machine.memory.parts[f"{start.key.replica}/0"] for start in on}
        devices = tuple(
            DeviceReading(
                id=device.id,
                uuid=device.uuid,
                processes=tuple(
                    Process(pid=on[start])
                    for start, part in parts.items()
                    if part.assignment and device.id in part.assignment.devices
                ),
            )
            for device in node.has.devices
        )
        own = {pid: start for start, pid in on.items()}
        readings = Readings(cards=cards, devices=devices)
        self._feed(node, s.SampleTaken(readings, own, errors=errors))

    def _stale_command(self, name: str) -> None:
        """A controller that lost the lead without knowing sends what it had decided."""
        told = [r.body for r in self.story.records if r.origin == "command" and r.node == name]
        old = [c for c in told if isinstance(c, SetAssignments) and c.term < self.story.state.term]
        self.story.append(wire.encode_command(CLUSTER, old[-1], time=TIME))

    def _engine(self, name: str) -> tuple[Node, s.Start]:
        replica, part = name.split("/")
        for node in self.nodes.values():
            for start in node.engines:
                if start.key == s.Key(replica, int(part)):
                    return node, start
        raise AssertionError(f"no engine of {name} runs")


def _devices(words: tuple[str, ...]) -> Iterator[Card | Device]:
    for index, word in enumerate(words):
        if word.startswith("cpu"):
            yield processor(float(word.partition(":")[2] or 16))
            continue
        of_class, _, instances = word.partition("/")
        of_class, _, domain = of_class.partition("@")
        gib = float(of_class.rpartition("-")[2].removesuffix("g"))
        found = card(index, of_class=of_class, gib=gib, domain=domain or None, mig=bool(instances))
        yield found
        for number in range(int(instances or 0)):
            yield msgspec.structs.replace(instance(found, number), gpu_instance=number)


def _entry(text: str) -> Entry:
    name, *words = text.split()
    given = dict(word.split("=", 1) for word in words)
    classes = given.pop("class").split(",")
    gib = float(given.pop("gib"))
    return entry(name, *classes, gib=gib, **{key: int(value) for key, value in given.items()})


# --- files ---------------------------------------------------------------------------------


def played(text: str) -> str:
    """Return the scenario with what comes of it now under each `then`."""
    world = World()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue  # what came of it then
        word, _, rest = line.partition(" ")
        if word in ("given", "when"):
            world.said.clear()
            world.do(rest)
        lines.append(line)
        if word == "then":
            lines += [f"  {said}" for said in world.said] or ["  nothing"]
    return "\n".join(lines) + "\n"


def scenarios() -> list[Path]:
    """Return the files of all scenarios."""
    return sorted(Path(__file__).parent.glob("*.txt"))
