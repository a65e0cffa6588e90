"""The cluster at a glance: who leads, what is served and what is not, what is free, what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from llmgw.core.cluster import Cluster, Replica
from llmgw.core.rollout import paused
from llmgw.core.values import Phase
from llmgw.views.conditions import conditions
from llmgw.views.devices import devices
from llmgw.views.shared import Row, as_time, node_state, part_phase

# A replica is as well as its worst part.
_WORST_FIRST: tuple[Phase, ...] = (
    "lost",
    "failed",
    "stopping",
    "stopped",
    "assigned",
    "starting",
    "ready",
)


class ModelRow(Row, frozen=True, kw_only=True):
    """One model: how many replicas are wanted, and in which phase those are that there are.

    `missing` are those that fit nowhere; `refusals` counts, for each reason, the devices that
    it rules out. A model that left the catalog wants none and is listed while it still runs.
    `rollout` says why a changed entry does not replace the replicas of the earlier one.
    """

    model: str
    wanted: int
    ready: int
    starting: int
    failed: int
    lost: int
    stopping: int
    missing: int
    refusals: dict[str, int] = {}
    rollout: str | None = None


class ClassRow(Row, frozen=True, kw_only=True):
    """The devices of one class. `total` is the sum of the others. The class can be unknown."""

    device_class: str = msgspec.field(name="class")
    total: int
    free: int
    held: int
    excluded: int


class NodeCounts(Row, frozen=True, kw_only=True):
    """How many nodes are in which state, and how many the operator keeps new replicas from.

    Those that are to be emptied (`draining`) are not counted among the `cordoned`.
    """

    up: int
    lost: int
    stopped: int
    cordoned: int = 0
    draining: int = 0


class Oddities(Row, frozen=True, kw_only=True):
    """Records that changed nothing, since the log began (`unexpected` ones did).

    `gaps` counts where events of a node are missing: its numbers went on further than by one.
    """

    unreadable: int
    unknown: int
    void: int
    duplicates: int
    unexpected: int
    gaps: int = 0


class Status(Row, frozen=True, kw_only=True):
    """The cluster as of `sequence`.

    `leader` is who was elected last; whether it still lives is not in the log. `needs_upgrade`
    names a type that this version is too old for. `pending_catalog` is the sequence of a catalog
    that no controller has answered yet. `conditions` counts, by name, the devices and nodes for
    which each holds.
    """

    cluster: str | None = None
    sequence: int
    time: str | None = None
    term: int
    leader: str | None = None
    models: tuple[ModelRow, ...]
    devices: tuple[ClassRow, ...]
    nodes: NodeCounts
    conditions: dict[str, int] = {}
    records: Oddities
    needs_upgrade: str | None = None
    catalog: int | None = None
    pending_catalog: int | None = None
    rejected_catalog: tuple[str, ...] = ()


def status(state: Cluster, cluster: str | None = None) -> Status:
    """Return the cluster at a glance. `cluster` is its name, which the state does not hold."""
    return Status(
        cluster=cluster,
        sequence=state.sequence,
        time=as_time(state.time_ns),
        term=state.term,
        leader=state.leader or None,
        models=tuple(_models(state)),
        devices=class_rows(state),
        nodes=node_counts(state),
        conditions=condition_counts(state),
        records=Oddities(
            unreadable=state.unreadable,
            unknown=state.unknown,
            void=state.void,
            duplicates=state.duplicates,
            unexpected=state.unexpected,
            gaps=state.gaps,
        ),
        needs_upgrade=state.needs_upgrade,
        catalog=state.catalog_sequence or None,
        pending_catalog=state.pending_sequence if state.pending is not None else None,
        rejected_catalog=state.rejected_catalog,
    )


def node_counts(state: Cluster) -> NodeCounts:
    """Return how many nodes are in which state."""
    nodes = state.nodes.values()
    states = Counter(node_state(node) for node in nodes)
    return NodeCounts(
        up=states["up"],
        lost=states["lost"],
        stopped=states["stopped"],
        cordoned=sum(node.cordoned and not node.draining for node in nodes),
        draining=sum(node.draining for node in nodes),
    )


def condition_counts(state: Cluster) -> dict[str, int]:
    """Return, by name, for how many devices and nodes each condition holds."""
    found = [row.name for node in state.nodes.values() for row in conditions(node)]
    return dict(sorted(Counter(found).items()))


def _models(state: Cluster) -> list[ModelRow]:
    replicas: dict[str, list[Replica]] = {name: [] for name in state.models}
    for replica in state.replicas.values():
        replicas.setdefault(replica.model, []).append(replica)
    return [model_row(state, name, found) for name, found in replicas.items()]


def model_row(state: Cluster, name: str, replicas: Sequence[Replica]) -> ModelRow:
    """Return the row of one model; `replicas` are all that are of it, oldest first."""
    model = state.models.get(name)
    phases = Counter(_phase(state, replica) for replica in replicas)
    return ModelRow(
        model=name,
        wanted=model.entry.replicas if model else 0,
        ready=phases["ready"],
        starting=phases["assigned"] + phases["starting"],
        failed=phases["failed"],
        lost=phases["lost"],
        stopping=phases["stopping"] + phases["stopped"],
        missing=model.missing if model else 0,
        refusals=dict(model.refusals) if model else {},
        rollout=paused(state, model, replicas) if model else None,
    )


def _phase(state: Cluster, replica: Replica) -> Phase:
    if replica.retired is not None:
        return "stopping"
    return min((part_phase(state, part) for part in replica.parts), key=_WORST_FIRST.index)


def class_rows(state: Cluster) -> tuple[ClassRow, ...]:
    """Return the devices of each class."""
    counts: dict[str, Counter[str]] = {}
    for row in devices(state):
        counts.setdefault(row.device_class or "unknown", Counter())[row.state] += 1
    return tuple(
        ClassRow(
            device_class=name,
            total=count.total(),
            free=count["free"],
            held=count["held"],
            excluded=count["excluded"],
        )
        for name, count in sorted(counts.items())
    )
