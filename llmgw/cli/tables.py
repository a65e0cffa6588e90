"""How each view looks as a table: the columns, the units for people, the words around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llmgw.cli.output import Column, table_lines
from llmgw.settings import Shown
from llmgw.views import (
    DeviceRow,
    EventRow,
    NodeRow,
    Place,
    RejectedRow,
    ReplicaRow,
    Status,
    Step,
)
from llmgw.views.replicas import how_far
from llmgw.views.status import ClassRow, ModelRow
from llmgw.views.summaries import counted

_GIB = 1 << 30
_MIB = 1 << 20


def as_size(size_bytes: int | None) -> str | None:
    """Return bytes as people read them: `79.2 GiB`, `512 MiB`."""
    if size_bytes is None:
        return None
    if size_bytes == 0:
        return "0"
    if size_bytes < _GIB:
        return f"{size_bytes / _MIB:.0f} MiB"
    return f"{size_bytes / _GIB:.1f} GiB"


def _per_class(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{count} {name}" for name, count in counts.items())


def _measured(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


def _second(time: str | None) -> str | None:
    return time and f"{time[:19]}Z"


def _replica(step: Step) -> str:
    if step.action == "cannot":
        return f"{step.count} more"
    return f"{step.replica} for {step.instead_of}" if step.instead_of else step.replica or ""


def _places(places: Sequence[Place]) -> tuple[str, ...]:
    return tuple(f"{place.node} {'+'.join(place.devices)}" for place in places)


def _state(node: NodeRow) -> str:
    marks = {
        "simulated": node.simulated,
        "draining": node.draining,
        "cordoned": node.cordoned and not node.draining,
    }
    said = ", ".join(mark for mark, holds in marks.items() if holds)
    return f"{node.state} ({said})" if said else node.state


def _failure(replica: ReplicaRow) -> str | None:
    far = how_far(replica.progress, replica.loaded_bytes, replica.weights_bytes)
    if far and not replica.retired:
        return far
    if replica.retired or not (replica.reason and replica.meaning):
        return replica.retired or replica.reason
    return f"{replica.reason}: {replica.meaning}"


NODES = (
    Column("NODE", lambda r: r.name),
    Column("STATE", _state),
    Column("ADDRESS", lambda r: r.address, wide=True),
    Column("BACKEND", lambda r: r.backend),
    Column("DRIVER", lambda r: r.driver_version, wide=True),
    Column("AGENT", lambda r: r.agent_version, wide=True),
    Column("CARDS", lambda r: _per_class(r.cards), wide=True),
    Column("DEVICES", lambda r: _per_class(r.devices)),
    Column("EXCLUDED", lambda r: r.excluded, right=True),
    Column("REPLICAS", lambda r: r.replicas),
    Column("COMMAND", lambda r: r.command),
    Column("CONDITIONS", lambda r: r.conditions),
    Column("LABELS", lambda r: tuple(f"{k}={v}" for k, v in r.labels.items()), wide=True),
    Column("WARNINGS", lambda r: r.warnings, wide=True),
    Column("HEARD", lambda r: _second(r.heard), wide=True),
)

DEVICES = (
    Column("NODE", lambda r: r.node),
    Column("DEVICE", lambda r: r.label),
    Column("CLASS", lambda r: r.device_class),
    Column("STATE", lambda r: r.state),
    Column("TOTAL", lambda r: as_size(r.memory_total_bytes), right=True),
    Column("HELD", lambda r: as_size(r.memory_held_bytes), right=True),
    Column("USED", lambda r: as_size(r.memory_used_bytes), right=True),
    Column("FREE", lambda r: as_size(r.memory_free_bytes), right=True, wide=True),
    Column("LOAD", lambda r: _measured(r.utilization_percent, "%"), right=True, wide=True),
    Column("HEAT", lambda r: _measured(r.temperature_celsius, "°C"), right=True, wide=True),
    Column("POWER", lambda r: _measured(r.power_watts, "W"), right=True, wide=True),
    Column("REPLICAS", lambda r: r.replicas),
    Column("REASON", lambda r: r.reason or r.conditions),
    Column("DETAIL", lambda r: r.detail, wide=True),
    Column("MEANING", lambda r: r.meaning, wide=True),
    Column("ADVICE", lambda r: r.advice, wide=True),
    Column("UUID", lambda r: r.uuid, wide=True),
)

REPLICAS = (
    Column("REPLICA", lambda r: f"{r.replica}/{r.part}" if r.part else r.replica),
    Column("MODEL", lambda r: r.model),
    Column("NODE", lambda r: r.node),
    Column("DEVICES", lambda r: r.devices),
    Column("MEMORY", lambda r: as_size(r.memory_bytes), right=True, wide=True),
    Column("PHASE", lambda r: r.phase),
    Column("ADDRESS", lambda r: r.address),
    Column("PID", lambda r: r.pid, right=True, wide=True),
    Column("ATTEMPTS", lambda r: r.attempts, right=True),
    Column("FAILURES", lambda r: r.failures, right=True, wide=True),
    Column("SINCE", lambda r: _second(r.since)),
    Column("REASON", _failure),
    Column("ADVICE", lambda r: r.advice, wide=True),
)

EVENTS = (
    Column("SEQUENCE", lambda r: r.sequence, right=True),
    Column("TIME", lambda r: r.time),
    Column("FROM", lambda r: f"to {r.node}" if r.origin == "command" else r.node or r.origin),
    Column("TYPE", lambda r: r.type),
    Column("WHAT", lambda r: r.summary),
)

REJECTED = (
    *EVENTS[:-1],
    Column("KIND", lambda r: r.kind),
    Column("DETAIL", lambda r: r.detail),
)

STEPS = (
    Column("MODEL", lambda r: r.model),
    Column("ACTION", lambda r: r.action),
    Column("REPLICA", _replica),
    Column("FROM", lambda r: _places(r.before)),
    Column("TO", lambda r: _places(r.after)),
    Column("WHY", lambda r: r.reasons, whole=True),
)

SETTINGS = (
    Column("SETTING", lambda r: r.name),
    Column("VALUE", lambda r: r.value),
    Column("FROM", lambda r: r.origin),
)

MODELS = (
    Column("MODEL", lambda r: r.model),
    Column("WANTED", lambda r: r.wanted, right=True),
    Column("READY", lambda r: r.ready, right=True),
    Column("STARTING", lambda r: r.starting, right=True),
    Column("FAILED", lambda r: r.failed, right=True),
    Column("LOST", lambda r: r.lost, right=True),
    Column("STOPPING", lambda r: r.stopping, right=True),
    Column("MISSING", lambda r: r.missing, right=True),
    Column("WHY MISSING", lambda r: counted(r.refusals)),
)

CLASSES = (
    Column("CLASS", lambda r: r.device_class),
    Column("DEVICES", lambda r: r.total, right=True),
    Column("FREE", lambda r: r.free, right=True),
    Column("HELD", lambda r: r.held, right=True),
    Column("EXCLUDED", lambda r: r.excluded, right=True),
)

_COLUMNS: Mapping[type, Sequence[Column]] = {
    NodeRow: NODES,
    DeviceRow: DEVICES,
    ReplicaRow: REPLICAS,
    EventRow: EVENTS,
    RejectedRow: REJECTED,
    Step: STEPS,
    ModelRow: MODELS,
    ClassRow: CLASSES,
    Shown: SETTINGS,
}


def view_lines(view: object, wide: bool) -> Iterator[str]:
    """Yield the lines of any view: a list of rows of one kind, or the status."""
    if isinstance(view, Status):
        yield from _status_lines(view, wide)
    elif isinstance(view, Sequence) and view:
        yield from table_lines(view, _COLUMNS[type(view[0])], wide)
        yield from _advice(view)
        if wide:
            yield from _explanations(view)


def _explanations(rows: Sequence[object]) -> Iterator[str]:
    """Yield what the conditions of nodes mean, and what to do: too long for a column."""
    found = ((r.name, c) for r in rows if isinstance(r, NodeRow) for c in r.conditions_explained)
    for node, condition in found:
        if condition.meaning:
            where = f"{node}, {condition.device}" if condition.device else node
            yield ""
            yield f"{where}: {condition.name}: {condition.meaning}"
            yield f"  what to do: {condition.advice}"


def _advice(rows: Sequence[object]) -> Iterator[str]:
    """Yield what is known about engines that keep failing: too long for a column."""
    for row in rows:
        if isinstance(row, ReplicaRow) and row.phase == "failed" and row.meaning:
            yield ""
            yield f"{row.replica} on {row.node}: {row.meaning}"
            if row.advice:
                yield f"  what to do: {row.advice}"


def _status_lines(status: Status, wide: bool) -> Iterator[str]:
    name = f"cluster {status.cluster}" if status.cluster else "cluster"
    when = f", {status.time}" if status.time else ""
    yield f"{name} as of sequence {status.sequence}{when}"
    leads = f"{status.leader} (term {status.term})" if status.leader else "none yet"
    yield f"controller: {leads}"
    nodes = status.nodes
    kept = {"cordoned": nodes.cordoned, "draining": nodes.draining}
    also = "".join(f", {count} {what}" for what, count in kept.items() if count)
    yield f"nodes: {nodes.up} up, {nodes.lost} lost, {nodes.stopped} stopped{also}"
    if status.conditions:
        yield f"conditions: {counted(status.conditions)} (see llmgw ctl devices and nodes)"
    yield from _remarks(status)
    if status.models:
        yield ""
        stopping = any(model.stopping for model in status.models)
        columns = (c for c in MODELS if stopping or wide or c.header != "STOPPING")
        yield from table_lines(status.models, tuple(columns), wide)
        yield from (f"{model.model}: {model.rollout}" for model in status.models if model.rollout)
    if status.devices:
        yield ""
        yield from table_lines(status.devices, CLASSES, wide)


def _remarks(status: Status) -> Iterator[str]:
    if status.needs_upgrade:
        yield f"deciding has stopped: the log holds {status.needs_upgrade}; upgrade the controller"
    if status.pending_catalog:
        yield f"the catalog of sequence {status.pending_catalog} waits for a controller"
    if status.rejected_catalog:
        yield f"the last catalog was rejected: {'; '.join(status.rejected_catalog)}"
    records = status.records
    odd = {
        "unreadable": records.unreadable,
        "of unknown type": records.unknown,
        "void": records.void,
        "duplicate": records.duplicates,
        "unexpected": records.unexpected,
    }
    said = ", ".join(f"{count} {name}" for name, count in odd.items() if count)
    if said:
        yield f"records set apart: {said} (see llmgw ctl events --rejected)"
    if records.gaps:
        times = "once" if records.gaps == 1 else f"{records.gaps} times"
        yield f"events of nodes are missing, {times} (see llmgw ctl events --rejected)"
