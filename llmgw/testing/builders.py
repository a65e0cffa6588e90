"""Small builders of hardware, entries and histories, and words for what comes back.

For tests: `Story` keeps a state and a log and reads `given(...)`, `when(...)`, `then(...)`;
everything passes through `llmgw.wire` on its way in, as it would on the log, and the invariants
are checked after every record. `tell` says an event, a decision or an effect in a few words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from llmgw import __version__, wire
from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import Intention, decide
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.hardware.types import (
    PROCESSOR_DEVICE_ID,
    Card,
    Device,
    Excluded,
    Inventory,
    device_label,
    instance_id,
)
from llmgw.testing.invariants import check

CLUSTER = "c"
TIME = "2026-01-01T00:00:00Z"
GIB = 1 << 30
SECOND_NS = 1_000_000_000


# --- hardware -------------------------------------------------------------------------------------


def card(
    index: int,
    *,
    gib: float = 48,
    of_class: str = "l40s-48g",
    domain: str | None = None,
    uuid: str = "",
    mig: bool = False,
) -> Card:
    """A card; `uuid` follows from the index unless given."""
    return Card(
        index=index,
        uuid=uuid or f"GPU-{index}",
        name=of_class,
        card_class=of_class,
        memory_total_bytes=int(gib * GIB),
        nvlink_domain=domain,
        mig_mode="enabled" if mig else None,
    )


def whole(of: Card) -> Device:
    """The device that is a whole card."""
    return Device(
        id=of.index,
        label=device_label(of.index),
        card=of.index,
        uuid=of.uuid,
        device_class=of.card_class,
        memory_total_bytes=of.memory_total_bytes,
    )


def instance(
    of: Card, number: int, *, gib: float = 20, profile: str = "1g.20gb", pool: str | None = None
) -> Device:
    """A MIG instance of a card."""
    device = instance_id(of.index, number)
    return Device(
        id=device,
        label=device_label(device),
        card=of.index,
        uuid=f"MIG-{of.uuid}-{number}",
        device_class=f"{of.card_class}-mig-{profile}",
        profile=profile,
        memory_pool=pool,
        memory_total_bytes=int(gib * GIB),
    )


def processor(gib: float = 16) -> Device:
    """The node's processor, which several replicas share."""
    return Device(
        id=PROCESSOR_DEVICE_ID,
        label=device_label(PROCESSOR_DEVICE_ID),
        uuid="CPU-0",
        device_class="cpu",
        memory_total_bytes=int(gib * GIB),
    )


def inventory(
    node: str,
    *devices: Card | Device,
    excluded: Iterable[Excluded] = (),
) -> Inventory:
    """What a node has. A card that is not in MIG mode brings its device with it."""
    cards = tuple(d for d in devices if isinstance(d, Card))
    listed = [d for d in devices if isinstance(d, Device)]
    listed += [whole(c) for c in cards if c.mig_mode is None]
    return Inventory(
        node=node, backend="nvml", cards=cards, devices=tuple(listed), excluded=tuple(excluded)
    )


def entry(name: str = "m", *classes: str, gib: float = 10, **fields: object) -> Entry:
    """A catalog entry that llama.cpp serves, by default on `l40s-48g`."""
    values = {"engine": "llama.cpp", "source": f"/models/{name}.gguf"} | fields
    return Entry(
        name=name,
        classes=classes or ("l40s-48g",),
        memory_bytes=int(gib * GIB),
        **values,  # type: ignore[arg-type]
    )


# --- words ----------------------------------------------------------------------------------------


def tell(what: e.Event | SetAssignments | s.Effect) -> str:
    """Return `what` in a few words, without terms and sequences."""
    match what:
        case e.CatalogAccepted():
            return f"accept catalog {what.request}"
        case e.CatalogRejected():
            return f"reject catalog {what.request}: {'; '.join(what.reasons)}"
        case e.ReplicaAssigned():
            return f"assign {what.replica} of {what.model} to {_places(what)}"
        case e.ModelLeftUnplaced():
            return f"{what.model} lacks {what.missing}: {_counts(what.refusals)}"
        case e.ReplicaRetired():
            return f"retire {what.replica}: {what.reason}"
        case SetAssignments():
            listed = [f"{a.replica}/{a.part} on {_labels(a.devices)}" for a in what.assignments]
            return f"command {what.node} revision {what.revision}: {', '.join(listed) or 'nothing'}"
        case e.Event():
            return _tell_event(what)
        case s.Publish():
            return f"publish {tell(what.event)}"
        case s.SpawnEngine():
            return f"spawn {_start(what.start)} on port {what.port}"
        case s.ProbeEngine():
            return f"probe {_start(what.start)} on port {what.port}"
        case s.AskForToken():
            return f"ask {_start(what.start)} for one token"
        case s.CountRequests():
            return f"count {_start(what.start)}"
        case s.StopEngine():
            return f"{what.signal} {_start(what.start)}"
        case s.MeasureDevices():
            return "measure"
    return "leave"


def _tell_event(event: e.Event) -> str:
    words = [event.wire]
    if isinstance(event, e.PartEvent):
        words.append(f"{event.replica}/{event.part} attempt {event.attempt}")
    match event:
        case e.ReplicaStarting():
            words.append(f"on port {event.port}")
        case e.ReplicaFailed():
            words.append(f"retry in {event.retry_seconds:.2f} s: {event.reason}")
        case e.ReplicaStopped():
            words.append(f": {event.reason}")
        case e.NodeStopped():
            words.append(f"engines {event.engines}")
        case e.NodeConditionsChanged():
            listed = [
                c.name if c.device is None else f"{device_label(c.device)} {c.name}"
                for c in event.conditions
            ]
            words.append(", ".join(listed) or "none")
        case e.CommandCompleted():
            words.append(f"revision {event.revision}")
        case e.CommandRefused():
            words.append(f"revision {event.revision}: {event.reason}")
        case e.CommandSuperseded():
            words.append(f"revision {event.revision} by {event.by}")
    return " ".join(words).replace(" :", ":")


def _places(event: e.ReplicaAssigned) -> str:
    return ", ".join(f"{p.node} {_labels(p.devices)}" for p in event.parts)


def _labels(devices: Iterable[int]) -> str:
    return "+".join(map(device_label, devices))


def _counts(refusals: dict[str, int]) -> str:
    return ", ".join(f"{count} {test}" for test, count in refusals.items()) or "nothing"


def _start(start: s.Start) -> str:
    return f"{start.key.replica}/{start.key.part} attempt {start.attempt}"


# --- histories ------------------------------------------------------------------------------------


class From(NamedTuple):
    """An event of a node, for `Story`: events that name no writer are those of node `n1`."""

    node: str
    event: e.Event


Fact = e.Event | SetAssignments | From


class Story:
    """A log and the state it folds to. Every record is checked against the invariants."""

    def __init__(self, state: Cluster | None = None) -> None:
        self.state = state if state is not None else Cluster()
        self.log: list[wire.Outgoing] = []
        self.records: list[Record] = []
        self._numbers: dict[str, int] = {}

    def given(self, *facts: Fact) -> Self:
        """Append facts and fold them."""
        for fact in facts:
            self.append(self.encode(fact))
        return self

    when = given

    def then(self, *expected: str) -> Self:
        """Assert what `decide` answers, in the words of `tell`."""
        assert [tell(i) for i in self.decisions()] == list(expected)
        return self

    def decided(self, rounds: int = 20) -> Self:
        """Append what `decide` answers, again and again, until it is quiet."""
        for _ in range(rounds):
            decisions = self.decisions()
            if not decisions:
                return self
            self.given(*decisions)
        raise AssertionError(f"not quiet after {rounds} rounds: {self.decisions()}")

    def decisions(self) -> list[Intention]:
        """Return what should be appended now."""
        return decide(self.state)

    def encode(self, fact: Fact) -> wire.Outgoing:
        """Return the next message of the fact's writer."""
        node, event = fact if isinstance(fact, From) else ("n1", fact)
        if isinstance(event, SetAssignments):
            return wire.encode_command(CLUSTER, event, time=TIME)
        writer = node if event.origin == "node" else event.origin
        self._numbers[writer] = self._numbers.get(writer, 0) + 1
        number = self._numbers[writer]
        return wire.encode_event(
            CLUSTER, event, node=node, session=f"{writer}-1", number=number, time=TIME
        )

    def append(self, message: wire.Outgoing) -> Record:
        """Append a message as it is, fold it and check the invariants."""
        self.log.append(message)
        sequence = len(self.log)
        record = wire.decode(sequence, sequence * SECOND_NS, message.subject, message.payload)
        self.records.append(record)
        apply(self.state, record)
        check(self.state)
        return record


def applied(*entries: Entry) -> e.CatalogApplied:
    """The operator's event for a catalog of these entries."""
    return e.CatalogApplied(catalog=Catalog(models=entries))


def elected(term: int = 1, holder: str = "a") -> e.ControllerElected:
    """A controller takes the lead."""
    return e.ControllerElected(term=term, holder=holder, llmgw_version=__version__)


def started(boot: str = "b1") -> e.NodeStarted:
    """An agent comes up."""
    return e.NodeStarted(boot_id=boot, agent_version="1")


def joined(node: str, *devices: Card | Device, boot: str = "b1") -> tuple[From, From]:
    """An agent comes up and tells what its node has."""
    taken = e.NodeInventoryTaken(inventory=inventory(node, *devices))
    return From(node, started(boot)), From(node, taken)


def serving(*entries: Entry, nodes: Iterable[tuple[From, From]]) -> Story:
    """A story in which these nodes joined, a controller leads, and all of it is decided."""
    facts = [fact for node in nodes for fact in node]
    return Story().given(*facts, elected(), applied(*entries)).decided()
