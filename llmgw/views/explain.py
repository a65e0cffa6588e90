"""Why a replica, a model or a node is as it is: the records that led there, with their reasons.

Pure. `Explanations` takes a log from its first record on and picks what concerns one name, as a
chain: the facts that a decision was made on, the decision with the reasons and refusals that it
recorded, the command that told a node, and what came of it. What was written in vain is shown
with the reason why it is void.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.views.shared import Row, as_time, labels, node_state, part_phase
from llmgw.views.summaries import counted, summary

Kind = Literal["event", "decision", "command", "outcome"]
Thing = Literal["replica", "model", "node"]

KEPT_RECORDS = 4_096
"""How far back the fact is looked for that a decision names as the last before it."""

_ENDS = e.CommandCompleted | e.CommandRefused | e.CommandSuperseded
_COMINGS = e.NodeStarted | e.NodeStopped


class Step(Row, frozen=True, kw_only=True):
    """One record of the chain.

    `because` are the sequences that it names as its ground. `reasons` and `refusals` are those
    that it recorded. `void` is why it changed nothing.
    """

    sequence: int
    time: str | None = None
    kind: Kind
    node: str | None = None
    type: str
    summary: str
    because: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    refusals: dict[str, int] = {}
    void: str | None = None
    data: Any


class Explanation(Row, frozen=True, kw_only=True):
    """How something stands, in a sentence, and the steps that led there, oldest first."""

    name: str
    kind: Thing
    now: str
    steps: tuple[Step, ...]


class _Replica:
    """Picks what concerns one replica."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: set[str] = set()
        self._listed: dict[str, bool] = {}
        self._asked: dict[str, tuple[int, int]] = {}

    def wants(self, record: Record) -> bool:
        """Return whether the record is part of the chain."""
        body = record.body
        if isinstance(body, e.ReplicaAssigned):
            if body.replica != self._name:
                return False
            self._nodes |= {part.node for part in body.parts}
            return True
        if isinstance(body, SetAssignments):
            return self._is_told(body)
        if isinstance(body, _ENDS):
            return self._asked.get(record.node) == (body.term, body.revision)
        if isinstance(body, e.NodeLost | e.NodeReturned):
            return body.node in self._nodes
        if isinstance(body, _COMINGS):
            return record.node in self._nodes
        return getattr(body, "replica", None) == self._name

    def _is_told(self, command: SetAssignments) -> bool:
        """Return whether a command begins or ceases to list the replica: the others repeat it."""
        listed = any(assignment.replica == self._name for assignment in command.assignments)
        if command.node not in self._nodes or listed == self._listed.get(command.node, False):
            return False
        self._listed[command.node] = listed
        self._asked[command.node] = (command.term, command.revision)
        return True


class _Model:
    """Picks what concerns one model, and its replicas."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._entry: Entry | None = None
        self._requests: set[int] = set()
        self._replicas: dict[str, _Replica] = {}

    def wants(self, record: Record) -> bool:
        """Return whether the record is part of the chain."""
        body = record.body
        if isinstance(body, e.CatalogApplied):
            found = next((x for x in body.catalog.models if x.name == self._name), None)
            changed, self._entry = found != self._entry, found
            if changed:
                self._requests = {record.sequence}
            return changed
        if isinstance(body, e.CatalogAccepted | e.CatalogRejected):
            return body.request in self._requests
        if isinstance(body, e.ReplicaAssigned) and body.model == self._name:
            self._replicas.setdefault(body.replica, _Replica(body.replica))
        told = [replica.wants(record) for replica in self._replicas.values()]
        return any(told) or (isinstance(body, e.ModelLeftUnplaced) and body.model == self._name)


class _Node:
    """Picks what concerns one node."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._placed: set[str] = set()

    def wants(self, record: Record) -> bool:
        """Return whether the record is part of the chain."""
        body = record.body
        if isinstance(body, e.ReplicaAssigned):
            here = any(part.node == self._name for part in body.parts)
            self._placed |= {body.replica} if here else set()
            return here
        if isinstance(body, e.ReplicaRetired):
            return body.replica in self._placed
        return self._name in (record.node, getattr(body, "node", None))


class Explanations:
    """Takes records from the first of a log on; `found` tells what is known of the name."""

    def __init__(self, name: str) -> None:
        self.state = Cluster()
        self._name = name
        self._pickers: dict[Thing, _Replica | _Model | _Node] = {
            "replica": _Replica(name),
            "model": _Model(name),
            "node": _Node(name),
        }
        self._steps: dict[Thing, dict[int, Step]] = {thing: {} for thing in self._pickers}
        self._recent: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self._catalogs: dict[int, Record] = {}

    def take(self, record: Record) -> None:
        """Take the next record."""
        voided = self.state.void
        apply(self.state, record)
        void = self.state.incidents[-1].detail if self.state.void > voided else None
        self._recent.append(record)
        if isinstance(record.body, e.CatalogApplied):
            kept = (self.state.catalog_sequence, record.sequence)
            self._catalogs = {n: r for n, r in self._catalogs.items() if n in kept}
            self._catalogs[record.sequence] = record
        for thing, picker in self._pickers.items():
            if picker.wants(record):
                steps = self._steps[thing]
                for ground in self._grounds(record):
                    steps.setdefault(ground.sequence, _step(ground, None))
                steps[record.sequence] = _step(record, void)

    def _grounds(self, record: Record) -> Iterator[Record]:
        """Yield the records that a decision names as its ground."""
        if not isinstance(record.body, e.Decision):
            return
        first = self._recent[0].sequence
        for sequence in _because(record):
            if sequence in self._catalogs:
                yield self._catalogs[sequence]
            elif first <= sequence < record.sequence:
                yield self._recent[sequence - first]

    def found(self) -> Explanation | None:
        """Return the explanation, or `None` if the log knows nothing of that name.

        A name that is several things is the replica rather than the model, and that rather than
        the node.
        """
        now = {"replica": self._replica_now, "model": self._model_now, "node": self._node_now}
        for thing, steps in self._steps.items():
            if steps:
                ordered = tuple(steps[sequence] for sequence in sorted(steps))
                return Explanation(name=self._name, kind=thing, now=now[thing](), steps=ordered)
        return None

    def _replica_now(self) -> str:
        replica = self.state.replicas.get(self._name)
        if replica is None:
            return f"replica {self._name} is not there any more"
        parts = [
            f"{part_phase(self.state, part)} on {part.node}, {'+'.join(labels(part.devices))}"
            for part in replica.parts
        ]
        retired = f"; it is to stop: {replica.retired}" if replica.retired else ""
        return f"replica {self._name} of {replica.model} is {'; '.join(parts)}{retired}"

    def _model_now(self) -> str:
        model = self.state.models.get(self._name)
        if model is None:
            return f"model {self._name} is not in the catalog in force"
        there = [r for r in self.state.replicas.values() if r.model == self._name]
        ready = sum(all(part_phase(self.state, p) == "ready" for p in r.parts) for r in there)
        why = f" ({counted(model.refusals)})" if model.refusals else ""
        missing = f"; {model.missing} without a place{why}" if model.missing else ""
        return f"model {self._name}: {ready} of {model.entry.replicas} ready{missing}"

    def _node_now(self) -> str:
        node = self.state.nodes.get(self._name)
        if node is None:
            return f"node {self._name} never reported"
        held = dict.fromkeys(name for holders in node.held.values() for name in holders)
        return f"node {self._name} is {node_state(node)} and holds {', '.join(held) or 'nothing'}"


def explain(records: Iterable[Record], name: str) -> Explanation | None:
    """Return the chain that led to how `name` stands; `records` begin where the log does."""
    explanations = Explanations(name)
    for record in records:
        explanations.take(record)
    return explanations.found()


def _because(record: Record) -> tuple[int, ...]:
    """Return the sequences that a decision or command names as its ground, the oldest first."""
    body = record.body
    named = (getattr(body, "catalog", 0), getattr(body, "request", 0), getattr(body, "at", 0))
    is_decided = isinstance(body, e.Decision | SetAssignments)
    return tuple(sorted({n for n in named if n})) if is_decided else ()


def _step(record: Record, void: str | None) -> Step:
    body: Any = record.body
    decided = isinstance(body, e.Decision)
    return Step(
        sequence=record.sequence,
        time=as_time(record.time_ns),
        kind=_kind(record),
        node=record.node or None,
        type=getattr(body, "wire", "unreadable"),
        summary=summary(body),
        because=_because(record),
        reasons=_reasons(body) if decided else (),
        refusals=getattr(body, "refusals", {}) if decided else {},
        void=void,
        data=body,
    )


def _reasons(decision: e.Decision) -> tuple[str, ...]:
    if isinstance(decision, e.ReplicaRetired):
        return (decision.reason,)
    return tuple(getattr(decision, "reasons", ()))


def _kind(record: Record) -> Kind:
    body = record.body
    if isinstance(body, e.Decision):
        return "decision"
    if isinstance(body, SetAssignments):
        return "command"
    return "outcome" if isinstance(body, _ENDS | e.PartEvent) else "event"
