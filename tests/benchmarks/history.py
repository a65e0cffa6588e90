"""The log of a busy fleet, as long as wanted, for the benchmarks.

Two hundred nodes of eight cards run six hundred replicas of forty models. Engines crash and come
back, replicas are rolled over to new ones, cards run hot, agents restart, nodes fall silent. A
score of such stories runs at any moment, interleaved, each on a node of its own. Everything is
legal: the fold of it finds nothing void, unexpected or unreadable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llmgw import wire
from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core.cluster import unit
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.engines.base import Grant
from llmgw.hardware.types import Card, Device, Inventory
from llmgw.wire import Outgoing

CLUSTER = "bench"
TIME = "2026-12-01T22:14:08.504Z"
GIB = 1 << 30
TERM = 1
RUNNING_STORIES = 20
OUTPUT = (
    "INFO 12-01 22:14:07 [gpu_model_runner.py:2602] Starting to load model ...\n"
    "INFO 12-01 22:14:31 [default_loader.py:267] Loading weights took 21.49 seconds\n"
    "ERROR 12-01 22:14:40 [core.py:708] EngineCore failed to start.\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB.\n"
)

Story = Iterator[e.Event | SetAssignments]


@dataclass
class Running:
    """A replica as the fleet's own bookkeeping knows it."""

    name: str
    entry: Entry
    devices: tuple[int, ...]
    port: int
    attempt: int = 1


@dataclass
class Machine:
    """A node: what it has, what runs there, and the numbers that its agent counts."""

    name: str
    boot: str
    inventory: Inventory
    replicas: list[Running] = field(default_factory=list)
    session: str = ""
    number: int = 0
    revision: int = 0
    restarts: int = 0

    def free(self, count: int) -> tuple[int, ...]:
        """Return devices that no replica holds."""
        taken = {number for replica in self.replicas for number in replica.devices}
        return tuple(d.id for d in self.inventory.devices if d.id not in taken)[:count]


class Fleet:
    """The fleet and its log so far. The same arguments make the same log."""

    def __init__(
        self, nodes: int = 200, models: int = 40, replicas: int = 600, seed: int = 1
    ) -> None:
        self._random = random.Random(seed)
        self.machines = [machine(number) for number in range(nodes)]
        self.catalog = Catalog(
            models=tuple(entry(number, replicas // models) for number in range(models))
        )
        self._sequence = 0
        self._catalog_sequence = 0
        self._next_replica = 1
        self._numbers = {"controller": 0, "operator": 0}
        self._log = self._history()

    def take(self, count: int) -> list[Outgoing]:
        """Return the next messages of the log."""
        return [next(self._log) for _ in range(count)]

    def founding(self) -> list[Outgoing]:
        """Return the first messages: all up to every replica being ready. Call it first."""
        found: list[Outgoing] = []
        for who, story in self._foundation():
            found += self._told(who, story)
        return found

    def _history(self) -> Iterator[Outgoing]:
        yield from self.founding()
        resting = list(self.machines)
        running: list[tuple[Machine, Story]] = []
        while True:
            if self._random.random() < 0.001:
                yield from self._told(None, self._catalog_change())
            while resting and len(running) < RUNNING_STORIES:
                machine = resting.pop(self._random.randrange(len(resting)))
                (tell,) = self._random.choices([*self._stories], [*self._stories.values()])
                running.append((machine, tell(self, machine)))
            at = self._random.randrange(len(running))
            machine, story = running[at]
            told = self._told_once(machine, story)
            if told is None:
                del running[at]
                resting.append(machine)
            else:
                yield told

    # --- telling -----------------------------------------------------------------------------

    def _told(self, machine: Machine | None, story: Story) -> Iterator[Outgoing]:
        while (told := self._told_once(machine, story)) is not None:
            yield told

    def _told_once(self, machine: Machine | None, story: Story) -> Outgoing | None:
        """Return the story's next message. While it is made, `_sequence` is its own."""
        self._sequence += 1
        said = next(story, None)
        if said is None:
            self._sequence -= 1
            return None
        if isinstance(said, SetAssignments):
            return wire.encode_command(CLUSTER, said, time=TIME)
        if said.origin == "node":
            assert machine is not None
            machine.number += 1
            node, session, number = machine.name, machine.session, machine.number
        else:
            self._numbers[said.origin] += 1
            node, session, number = "", f"{said.origin}-1", self._numbers[said.origin]
        return wire.encode_event(
            CLUSTER, said, node=node, session=session, number=number, time=TIME
        )

    # --- the foundation ----------------------------------------------------------------------

    def _foundation(self) -> Iterator[tuple[Machine | None, Story]]:
        yield None, iter([e.ControllerElected(term=TERM, holder="c1")])
        for machine in self.machines:
            yield machine, self._joined(machine)
        yield None, self._catalog_change()
        wanted = [m for m in self.catalog.models for _ in range(m.replicas)]
        for number, model in enumerate(wanted):
            machine = self.machines[number % len(self.machines)]
            yield machine, self._placed_and_started(machine, model)

    def _joined(self, machine: Machine) -> Story:
        machine.restarts += 1
        machine.number = 0
        machine.session = f"{machine.restarts:08x}"
        yield e.NodeStarted(boot_id=machine.boot, agent_version="0.1.0", address="10.0.0.7")
        yield e.NodeInventoryTaken(inventory=machine.inventory)

    def _catalog_change(self) -> Story:
        request = self._sequence
        yield e.CatalogApplied(catalog=self.catalog, file="catalog.yaml")
        self._catalog_sequence = request
        yield e.CatalogAccepted(term=TERM, at=self._sequence - 1, request=request)

    # --- what happens ------------------------------------------------------------------------

    def _placed_and_started(self, machine: Machine, model: Entry) -> Story:
        yield self._assigned(machine, model)
        yield self._command(machine)
        yield from self._started(machine.replicas[-1])
        yield e.CommandCompleted(revision=machine.revision, term=TERM)

    def _crash(self, machine: Machine) -> Story:
        replica = self._random.choice(machine.replicas)
        yield e.ReplicaFailed(
            replica=replica.name,
            generation=1,
            attempt=replica.attempt,
            reason="the engine exited with code 1",
            exit_code=1,
            meaning="the model does not fit into the card's memory",
            advice="raise the entry's memory, or lower its context",
            output=OUTPUT,
            retry_seconds=2.25,
        )
        replica.attempt += 1
        yield from self._started(replica)

    def _started(self, replica: Running) -> Story:
        named: dict[str, Any] = {
            "replica": replica.name,
            "generation": 1,
            "attempt": replica.attempt,
        }
        yield e.ReplicaStarting(port=replica.port, devices=replica.devices, **named)
        yield e.ReplicaBecameReady(
            address="10.0.0.7", port=replica.port, pid=40_000 + replica.port, seconds=41.5, **named
        )

    def _rollover(self, machine: Machine) -> Story:
        """The old replica goes, then the new one comes, on the same devices."""
        old = self._random.choice(machine.replicas)
        yield self._retired(machine, old)
        yield self._command(machine)
        yield self._stopped(machine, old)
        yield e.CommandCompleted(revision=machine.revision, term=TERM)
        yield from self._placed_and_started(machine, old.entry)

    def _overtaken_rollover(self, machine: Machine) -> Story:
        """The new one comes first, on free devices; its command is overtaken by the next."""
        old = self._random.choice(machine.replicas)
        yield self._assigned(machine, old.entry)
        new = machine.replicas[-1]
        yield self._command(machine)
        yield self._retired(machine, old)
        yield self._command(machine)
        newest = machine.revision
        yield e.CommandSuperseded(revision=newest - 1, term=TERM, by=newest)
        yield self._stopped(machine, old)
        yield from self._started(new)
        yield e.CommandCompleted(revision=newest, term=TERM)

    def _stopped(self, machine: Machine, replica: Running) -> e.ReplicaStopped:
        return e.ReplicaStopped(
            replica=replica.name,
            generation=1,
            attempt=replica.attempt,
            reason="it is not wanted any more",
            revision=machine.revision,
        )

    def _heat(self, machine: Machine) -> Story:
        device = self._random.choice(machine.inventory.devices).id
        hot = e.Condition(device=device, name="hot", detail="91 °C")
        yield e.NodeConditionsChanged(conditions=(hot,))
        yield e.NodeConditionsChanged(conditions=())

    def _agent_restart(self, machine: Machine) -> Story:
        yield e.NodeStopped(engines="left running")
        yield from self._joined(machine)
        yield e.NodeConditionsChanged(conditions=())
        for replica in machine.replicas:
            yield e.ReplicaAdopted(
                replica=replica.name,
                generation=1,
                attempt=replica.attempt,
                pid=40_000 + replica.port,
                port=replica.port,
            )

    def _silence(self, machine: Machine) -> Story:
        yield e.NodeLost(term=TERM, node=machine.name, silent_seconds=46.2)
        yield e.NodeReturned(term=TERM, node=machine.name)

    _stories: dict[Callable[[Fleet, Machine], Story], int] = {
        _crash: 35,
        _rollover: 25,
        _overtaken_rollover: 10,
        _heat: 15,
        _agent_restart: 10,
        _silence: 5,
    }
    """What happens to a node, and how often next to the others."""

    # --- decisions ---------------------------------------------------------------------------

    def _assigned(self, machine: Machine, model: Entry) -> e.ReplicaAssigned:
        number = self._next_replica
        self._next_replica += 1
        devices = machine.free(model.gpus)
        machine.replicas.append(Running(f"r{number}", model, devices, 18_100 + number % 800))
        machine.revision += 1
        placed = e.PartPlacement(
            node=machine.name, devices=devices, memory_bytes=model.memory_bytes
        )
        labels = ", ".join(map(str, devices))
        return e.ReplicaAssigned(
            term=TERM,
            at=self._sequence - 1,
            replica=f"r{number}",
            model=model.name,
            generation=1,
            catalog=self._catalog_sequence,
            parts=(placed,),
            reasons=(f"{machine.name}: {labels} of class h100-80g (asked: h100-*)",),
            refusals={"in use": 1_000 + number % 100},
        )

    def _retired(self, machine: Machine, replica: Running) -> e.ReplicaRetired:
        machine.replicas.remove(replica)
        machine.revision += 1
        return e.ReplicaRetired(
            term=TERM, at=self._sequence - 1, replica=replica.name, reason="its entry changed"
        )

    def _command(self, machine: Machine) -> SetAssignments:
        return SetAssignments(
            node=machine.name,
            revision=machine.revision,
            term=TERM,
            at=self._sequence - 1,
            assignments=tuple(assignment(machine, replica) for replica in machine.replicas),
        )


def assignment(machine: Machine, replica: Running) -> Assignment:
    """Return what a command says of a replica."""
    devices = [machine.inventory.devices[number] for number in replica.devices]
    return Assignment(
        replica=replica.name,
        generation=1,
        entry=unit(replica.entry),
        devices=replica.devices,
        grants=tuple(Grant(d.uuid, d.device_class, d.card, d.memory_total_bytes) for d in devices),
    )


def machine(number: int, cards: int = 8) -> Machine:
    """Return a node of H100 cards in one NVLink domain."""
    name = f"gpu-{number:04d}"
    made = tuple(h100(number, index) for index in range(cards))
    inventory = Inventory(
        node=name,
        boot_id=f"0d8f{number:04x}-8a4c-4f0a-9a11-2f6f3f1c7a10",
        backend="nvidia-smi",
        driver_version="580.65.06",
        cuda_version="13.0",
        cards=made,
        devices=tuple(
            Device(
                id=card.index,
                label=str(card.index),
                card=card.index,
                uuid=card.uuid,
                device_class=card.card_class,
                memory_total_bytes=card.memory_total_bytes,
            )
            for card in made
        ),
    )
    return Machine(name, inventory.boot_id or "", inventory)


def h100(node: int, index: int) -> Card:
    """Return one card, without readings: those are no facts."""
    return Card(
        index=index,
        uuid=f"GPU-{node:08x}-{index:04x}-4b7e-9d0f-5a2c6e8b1d34",
        name="NVIDIA H100 80GB HBM3",
        card_class="h100-80g",
        pci=f"00000000:{0x18 + index:02X}:00.0",
        memory_total_bytes=80 * GIB,
        mig_mode="disabled",
        nvlink_domain="0",
        nvlink_peers=tuple(peer for peer in range(8) if peer != index),
        numa_node=index // 4,
    )


def entry(number: int, replicas: int) -> Entry:
    """Return one model of the catalog; every fourth takes two cards."""
    gpus = 2 if number % 4 == 0 else 1
    return Entry(
        name=f"model-{number:02d}",
        engine="vllm",
        classes=("h100-*",),
        memory_bytes=70 * GIB,
        source=f"organisation/model-{number:02d}-instruct",
        args=("--max-num-seqs", "64"),
        context=16_384,
        replicas=replicas,
        gpus=gpus,
        tp=gpus,
    )
