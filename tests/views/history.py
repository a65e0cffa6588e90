"""A small log made by hand, for the tests of views and of the command line.

Everything goes through the wire both ways, so a test sees what a real log would give.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from llmgw import wire
from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.hardware.types import Card, Device, Excluded, Inventory

GIB = 1 << 30
NOON_NS = 1_772_366_400 * 10**9
"""2026-03-01T12:00:00Z: the first record is stored one second later, each next one after that."""
SECOND_NS = 10**9
CLUSTER = "test"


class History:
    """Appends records one after another, one second apart; all writers are in one session."""

    def __init__(self, session: str = "s1") -> None:
        self._session = session
        self.messages: list[wire.Outgoing] = []
        self.records: list[Record] = []
        self._numbers: Counter[str] = Counter()

    def write(self, event: e.Event, node: str = "") -> History:
        """Append an event; `node` for those that an agent writes."""
        writer = node or event.origin
        self._numbers[writer] += 1
        time = "2026-03-01T12:00:00Z"
        session, number = self._session, self._numbers[writer]
        message = wire.encode_event(
            CLUSTER, event, node=node, session=session, number=number, time=time
        )
        return self.store(message)

    def command(self, command: SetAssignments) -> History:
        """Append a command."""
        return self.store(wire.encode_command(CLUSTER, command, time="2026-03-01T12:00:00Z"))

    def garbage(self, payload: bytes = b"{", type_: str = "node.started") -> History:
        """Append something that nobody can read, under a node's subject."""
        subject = f"llmgw.v1.{CLUSTER}.event.node.n1.{type_}"
        return self.store(wire.Outgoing(subject, payload, f"garbage-{len(self.records)}"))

    def again(self) -> History:
        """Append the last message once more."""
        return self.store(self.messages[-1])

    def store(self, message: wire.Outgoing) -> History:
        """Append a message as it is."""
        sequence = len(self.records) + 1
        self.messages.append(message)
        self.records.append(
            wire.decode(sequence, NOON_NS + sequence * SECOND_NS, message.subject, message.payload)
        )
        return self

    @property
    def state(self) -> Cluster:
        """The log, folded."""
        state = Cluster()
        for record in self.records:
            apply(state, record)
        return state


def entry(name: str = "tiny", **changes: object) -> Entry:
    """Return an entry that wants 10 GiB on one A100."""
    given = Entry(
        name=name,
        engine="llama.cpp",
        classes=("a100-80g",),
        memory_bytes=10 * GIB,
        source="/m/tiny.gguf",
    )
    return replace(given, **changes)


def inventory(node: str = "n1", cards: int = 2, **changes: object) -> Inventory:
    """Return a node with whole A100 cards."""
    found = [
        Card(index=n, uuid=f"GPU-{node}-{n}", name="NVIDIA A100", card_class="a100-80g")
        for n in range(cards)
    ]
    devices = [
        Device(
            id=card.index,
            label=str(card.index),
            card=card.index,
            uuid=card.uuid,
            device_class="a100-80g",
            memory_total_bytes=80 * GIB,
        )
        for card in found
    ]
    given = Inventory(
        node=node,
        backend="nvidia-smi",
        driver_version="550.1",
        cards=tuple(found),
        devices=tuple(devices),
    )
    return replace(given, **changes)


def mig_empty(card: int) -> Excluded:
    """Return the exclusion of a card with MIG on and nothing carved."""
    return Excluded(card=card, reason="mig-empty", detail="MIG is on and no instance is carved")


def started(history: History, node: str = "n1", cards: int = 2, **changes: object) -> History:
    """Have an agent come up and tell what its node has."""
    up = e.NodeStarted(boot_id="b1", agent_version="0.1.0", address="127.0.0.1")
    history.write(up, node)
    return history.write(e.NodeInventoryTaken(inventory=inventory(node, cards, **changes)), node)


def led(history: History, term: int = 1) -> History:
    """Have a controller take the lead."""
    return history.write(e.ControllerElected(term=term, holder=f"controller n{term}"))


def served(history: History, *entries: Entry) -> History:
    """Have a catalog applied and accepted in term 1."""
    history.write(e.CatalogApplied(catalog=Catalog(models=entries), file="models.yaml"))
    request = len(history.records)
    return history.write(e.CatalogAccepted(term=1, at=request, request=request))


def assigned(history: History, replica: str = "r1", node: str = "n1", device: int = 0) -> History:
    """Have a replica of `tiny` placed on one device."""
    part = e.PartPlacement(node=node, devices=(device,), memory_bytes=10 * GIB)
    catalog = history.state.catalog_sequence
    return history.write(
        e.ReplicaAssigned(
            term=1,
            at=len(history.records),
            replica=replica,
            model="tiny",
            generation=1,
            catalog=catalog,
            parts=(part,),
            reasons=("because",),
        )
    )


def starting(history: History, replica: str = "r1", node: str = "n1") -> History:
    """Have the agent begin to start it."""
    event = e.ReplicaStarting(replica=replica, generation=1, port=18100, devices=(0,))
    return history.write(event, node)


def ready(history: History, replica: str = "r1", node: str = "n1") -> History:
    """Have the engine answer."""
    return history.write(
        e.ReplicaBecameReady(
            replica=replica, generation=1, address="127.0.0.1", port=18100, pid=42, seconds=3.25
        ),
        node,
    )


def failed(history: History, replica: str = "r1", node: str = "n1") -> History:
    """Have the engine end with a failure that is understood."""
    return history.write(
        e.ReplicaFailed(
            replica=replica,
            generation=1,
            reason="exit code 1",
            exit_code=1,
            meaning="the model does not fit",
            advice="give it more memory",
            output="CUDA error: out of memory",
            retry_seconds=2,
        ),
        node,
    )


def serving() -> History:
    """Return a log at whose end one replica of `tiny` is ready on n1."""
    history = led(started(History()))
    return ready(starting(assigned(served(history, entry()))))
