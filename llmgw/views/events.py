"""The events: what the log holds, one row a record, and what of it the fold would not take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any

from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.events import EVENTS, CatalogApplied, ReplicaAssigned
from llmgw.core.fold import apply
from llmgw.core.records import NewerVersion, Record, UnknownType, Unreadable
from llmgw.core.values import Origin
from llmgw.views.shared import Row, as_time
from llmgw.views.summaries import summary

UNREADABLE = "unreadable"
"""The type of a record that cannot be read, as rows have it."""

TYPES = (*sorted({*EVENTS, SetAssignments.wire}), UNREADABLE)
"""Every type that rows of this version have, but for those of newer versions in a log."""

_REJECTED = frozenset({"unreadable", "unknown type", "newer version", "void", "gap"})


class EventRow(Row, frozen=True, kw_only=True):
    """One record. `node` wrote it, or is the one commanded; `data` is all that it carries."""

    sequence: int
    time: str | None = None
    origin: Origin
    node: str | None = None
    type: str
    summary: str
    data: Any


class RejectedRow(Row, frozen=True, kw_only=True):
    """A record that changed nothing. `kind` is why in a word, `detail` in a sentence.

    A `gap` did change something, and events that its node wrote before it are missing.
    """

    sequence: int
    time: str | None = None
    origin: Origin
    node: str | None = None
    type: str
    kind: str
    detail: str


def events(records: Iterable[Record]) -> list[EventRow]:
    """Return one row for each record, readable or not."""
    return [
        EventRow(
            sequence=record.sequence,
            time=as_time(record.time_ns),
            origin=record.origin,
            node=record.node or None,
            type=_type(record),
            summary=summary(record.body),
            data=record.body,
        )
        for record in records
    ]


def rejected(records: Iterable[Record], state: Cluster | None = None) -> list[RejectedRow]:
    """Return what changed nothing (unreadable, unknown, too new, void, seen before), and gaps.

    `records` begin where the log does, or go on after `state`, which is folded on: whether a
    decision is void depends on all before it.
    """
    state = state if state is not None else Cluster()
    rows = []
    for record in records:
        for kind, detail in _refusals(state, record):
            rows.append(
                RejectedRow(
                    sequence=record.sequence,
                    time=as_time(record.time_ns),
                    origin=record.origin,
                    node=record.node or None,
                    type=_type(record),
                    kind=kind,
                    detail=detail,
                )
            )
    return rows


def concerns(
    record: Record, *, wire: str | None = None, node: str | None = None, replica: str | None = None
) -> bool:
    """Return whether the record is of the type `wire` and speaks of that node and that replica.

    A type that ends in `*` means all that begin so.
    """
    return (
        (wire is None or is_of(wire, _type(record)))
        and (node is None or node in _nodes(record))
        and (replica is None or replica in _replicas(record))
    )


class ModelsOfReplicas:
    """Which records speak of a model: by its name, or by a replica that was assigned for it.

    Learns from the records that it is given, which must be those that assign before others.
    """

    def __init__(self) -> None:
        self._models: dict[str, str] = {}

    def know(self, state: Cluster) -> None:
        """Take note of the replicas that there are."""
        self._models |= {replica.name: replica.model for replica in state.replicas.values()}

    def learn(self, record: Record) -> None:
        """Take note of what the record says of replicas."""
        if isinstance(record.body, ReplicaAssigned):
            self._models[record.body.replica] = record.body.model

    def of(self, record: Record) -> set[str]:
        """Return the models that the record speaks of."""
        body = record.body
        named = {getattr(body, "model", "")} - {""}
        if isinstance(body, CatalogApplied):
            named |= {entry.name for entry in body.catalog.models}
        elif isinstance(body, SetAssignments):
            named |= {assignment.entry.name for assignment in body.assignments}
        return named | {self._models[name] for name in _replicas(record) & self._models.keys()}


def is_of(wanted: str, wire: str) -> bool:
    """Return whether a type is the one that is wanted; `replica.*` means all that begin so."""
    return wire.startswith(wanted[:-1]) if wanted.endswith("*") else wire == wanted


def _refusals(state: Cluster, record: Record) -> Iterator[tuple[str, str]]:
    """Fold one record and yield the kind and detail of what was wrong with it."""
    duplicates = state.duplicates
    apply(state, record)
    if state.duplicates > duplicates:
        number = f"number {record.number} of session {record.session}"
        yield "duplicate", f"{number} was in the log before"
    for incident in takewhile(lambda i: i.sequence == record.sequence, reversed(state.incidents)):
        if incident.kind in _REJECTED:
            yield incident.kind, incident.detail


def _type(record: Record) -> str:
    if isinstance(record.body, Unreadable):
        return UNREADABLE
    return record.body.wire


def _nodes(record: Record) -> set[str]:
    body = record.body
    if isinstance(body, ReplicaAssigned):
        return {part.node for part in body.parts}
    return {record.node, getattr(body, "node", "")} - {""}


def _replicas(record: Record) -> set[str]:
    body = record.body
    if isinstance(body, Unreadable | UnknownType | NewerVersion):
        return set()
    listed = {assignment.replica for assignment in getattr(body, "assignments", ())}
    return listed | {getattr(body, "replica", "")}
