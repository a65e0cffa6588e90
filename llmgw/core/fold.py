"""The fold: one record changes the state, and nothing else does.

`apply` is total and deterministic: no clock, no randomness, no I/O; the only time it knows is the
record's own. A duplicate changes nothing, an unreadable or unknown record is counted, a decision
that has become impossible is void and says so. Called by the controller, by every view and by
replay; it owns the state and updates it in place, because copying it costs more than folding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llmgw.core import events as e
from llmgw.core.cluster import (
    KEPT_INCIDENTS,
    KEPT_OPERATOR_EVENTS,
    KEPT_SESSIONS,
    Cluster,
    Incident,
    Model,
    Node,
    Part,
    Replica,
    pool_of,
    unit,
)
from llmgw.core.commands import SetAssignments
from llmgw.core.records import NewerVersion, Record, UnknownType, Unreadable
from llmgw.core.refusals import refuses
from llmgw.core.values import NEXT_PHASES, Phase
from llmgw.engines.base import Grant
from llmgw.hardware.types import Inventory


def apply(state: Cluster, record: Record) -> None:
    """Fold one record into `state`. Records come in stream order."""
    state.sequence = record.sequence
    state.time_ns = record.time_ns
    body = record.body
    handler = _HANDLERS.get(type(body))
    if handler is None:
        _note_unread(state, record)
        return
    if record.origin == "node":
        node = state.nodes.get(record.node)
        if node is None:
            node = state.nodes[record.node] = Node(record.node)
        sessions, session, number = node.sessions, record.session, record.number
        last = sessions.get(session)
        if last is None:
            _open_session(sessions, session)
        elif number <= last:
            state.duplicates += 1
            return
        sessions[session] = number
        node.heard_ns = record.time_ns
        handler(state, node, body, record)
    elif record.origin == "controller":
        state.last_controller_sequence = record.sequence
        why = refuses(state, cast("e.ControllerEvent", body))
        if why is None:
            handler(state, body, record)
        else:
            state.void += 1
            _note(state, record, "void", why)
    else:
        handler(state, body, record)


def _open_session(sessions: dict[str, int], session: str) -> None:
    while len(sessions) >= KEPT_SESSIONS:
        del sessions[next(iter(sessions))]
    sessions[session] = 0


# --- what changes nothing, and is counted ------------------------------------------------------


def _note(state: Cluster, record: Record, kind: str, detail: str) -> None:
    state.incidents.append(Incident(record.sequence, kind, detail))
    if len(state.incidents) > KEPT_INCIDENTS:
        del state.incidents[0]


def _note_unread(state: Cluster, record: Record) -> None:
    body = record.body
    if record.origin == "controller":
        state.last_controller_sequence = record.sequence
    if isinstance(body, Unreadable):
        state.unreadable += 1
        _note(state, record, "unreadable", f"{body.subject}: {body.reason}")
    elif isinstance(body, NewerVersion):
        state.needs_upgrade = f"{body.wire} version {body.version}"
        _note(state, record, "newer version", state.needs_upgrade)
    elif isinstance(body, UnknownType):
        state.unknown += 1
        _note(state, record, "unknown type", body.wire)


# --- facts of a node ---------------------------------------------------------------------------


def _node_started(state: Cluster, node: Node, body: e.NodeStarted, record: Record) -> None:
    rebooted = bool(node.boot_id) and node.boot_id != body.boot_id
    node.boot_id = body.boot_id
    node.agent_version = body.agent_version
    node.address = body.address
    node.simulated = body.simulated
    node.started = True
    if rebooted:  # the agent starts nothing of before until it is told again
        node.revision += 1
        node.strays = {}
        for part in _parts_on(state, node):
            if part.phase in ("starting", "ready", "stopping"):
                _move(state, part, "lost", record)
                part.reason = "the machine restarted"


def _node_stopped(state: Cluster, node: Node, body: e.NodeStopped, record: Record) -> None:
    node.started = False


def _node_inventory(state: Cluster, node: Node, body: e.NodeInventoryTaken, record: Record) -> None:
    inventory = body.inventory
    node.inventory = inventory
    node.devices = {device.id: device for device in inventory.devices}
    node.excluded = _excluded(inventory) if inventory.excluded else {}
    if node.held:
        numbers = {device.uuid: device.id for device in inventory.devices}
        for part in _parts_on(state, node):
            was = zip(part.grants, part.devices, strict=True)
            part.devices = tuple(numbers.get(grant.uuid, number) for grant, number in was)


def _excluded(inventory: Inventory) -> dict[int, str]:
    """Return why devices are kept out: by what is said of their card, then of themselves."""
    cards = {
        x.card: x.reason for x in inventory.excluded if x.device is None and x.card is not None
    }
    by_card = {d.id: cards[d.card] for d in inventory.devices if d.card in cards}
    return by_card | {x.device: x.reason for x in inventory.excluded if x.device is not None}


def _node_conditions(
    state: Cluster, node: Node, body: e.NodeConditionsChanged, record: Record
) -> None:
    node.conditions = body.conditions


def _part(state: Cluster, node: Node, body: e.PartEvent) -> Part | None:
    """Return the part that the event speaks of, if it is this node's and of this generation."""
    replica = state.replicas.get(body.replica)
    if replica is None or replica.generation != body.generation:
        return None
    part = replica.parts[body.part] if body.part < len(replica.parts) else None
    return part if part is not None and part.node == node.name else None


def _running(
    state: Cluster, node: Node, body: e.PartEvent, devices: tuple[int, ...]
) -> Part | None:
    """Return the part that the node says it runs; one that nobody wants becomes a stray.

    A stray asks for a new command, which will not list it: what runs is seen, wanted or not.
    """
    part = _part(state, node, body)
    if part is None:
        node.strays.setdefault(f"{body.replica}/{body.part}", devices)
        if node.commanded == node.revision:
            node.revision += 1
    else:
        node.strays.pop(f"{body.replica}/{body.part}", None)
    return part


def _move(state: Cluster, part: Part, phase: Phase, record: Record) -> None:
    if part.phase == "stopping" and phase in ("starting", "ready"):
        return  # the agent wrote this before it heard that the replica is retired
    if phase not in NEXT_PHASES[part.phase]:
        state.unexpected += 1
        _note(state, record, "unexpected", f"{part.phase} to {phase} on {part.node}")
    part.phase = phase
    part.since_ns = record.time_ns


def _replica_starting(state: Cluster, node: Node, body: e.ReplicaStarting, record: Record) -> None:
    part = _running(state, node, body, body.devices)
    if part is not None:
        _move(state, part, "starting", record)
        part.attempt = body.attempt
        part.port = body.port
        part.pid = None


def _replica_ready(state: Cluster, node: Node, body: e.ReplicaBecameReady, record: Record) -> None:
    part = _running(state, node, body, ())
    if part is not None:
        _move(state, part, "ready", record)
        part.address = body.address
        part.port = body.port
        part.pid = body.pid
        if part.reason is not None:
            part.reason = part.meaning = part.advice = part.output = None


def _replica_adopted(state: Cluster, node: Node, body: e.ReplicaAdopted, record: Record) -> None:
    part = _running(state, node, body, ())
    if part is not None:
        part.pid = body.pid
        part.port = body.port
        if part.phase in ("lost", "assigned"):
            _move(state, part, "starting", record)


def _replica_failed(state: Cluster, node: Node, body: e.ReplicaFailed, record: Record) -> None:
    if node.strays:
        node.strays.pop(f"{body.replica}/{body.part}", None)
    part = _part(state, node, body)
    if part is not None:
        _move(state, part, "failed", record)
        part.attempt = body.attempt
        part.failures += 1
        part.pid = None
        part.reason = body.reason
        part.meaning = body.meaning
        part.advice = body.advice
        part.output = body.output


def _replica_stopped(state: Cluster, node: Node, body: e.ReplicaStopped, record: Record) -> None:
    if node.strays:
        node.strays.pop(f"{body.replica}/{body.part}", None)
    part = _part(state, node, body)
    if part is not None:
        _move(state, part, "stopped", record)
        part.pid = None
        part.reason = body.reason
        last = node.retiring.get(body.replica)
        if last is not None and body.revision >= last:
            replica = state.replicas[body.replica]
            if all(p.phase == "stopped" for p in replica.parts if p.node == node.name):
                _end_on(state, node, replica)


def _end_on(state: Cluster, node: Node, replica: Replica) -> None:
    """The node will not run the retired replica again; it is forgotten once no node will."""
    del node.retiring[replica.name]
    nodes = [state.nodes[part.node] for part in replica.parts]
    if any(replica.name in other.retiring for other in nodes):
        return
    for other in nodes:
        _release(other, replica.name)
    del state.replicas[replica.name]


def _release(node: Node, replica: str) -> None:
    for pool in [pool for pool, holders in node.held.items() if replica in holders]:
        del node.held[pool][replica]
        if not node.held[pool]:
            del node.held[pool]


def _stray_stopped(state: Cluster, node: Node, body: e.StrayEngineStopped, record: Record) -> None:
    _note(state, record, "stray engine", f"{node.name}: pid {body.pid} ({body.marker})")


def _command_completed(
    state: Cluster, node: Node, body: e.CommandCompleted, record: Record
) -> None:
    """Everything that the command did not list is stopped, also what was never started."""
    node.ended = max(node.ended, body.revision)
    node.refused = None
    if node.strays and body.revision >= node.revision:
        node.strays = {}  # written after the last stray was seen, so it is gone
    for name in [n for n, revision in node.retiring.items() if revision <= body.revision]:
        replica = state.replicas[name]
        for part in replica.parts:
            if part.node == node.name and part.phase != "stopped":
                part.phase = "stopped"
                part.since_ns = record.time_ns
        _end_on(state, node, replica)


def _command_superseded(
    state: Cluster, node: Node, body: e.CommandSuperseded, record: Record
) -> None:
    node.ended = max(node.ended, body.revision)


def _command_refused(state: Cluster, node: Node, body: e.CommandRefused, record: Record) -> None:
    if body.term < node.commanded_term:
        return  # as it should be: that command is void
    node.ended = max(node.ended, body.revision)
    node.refused = body.reason


# --- what a person asked for -------------------------------------------------------------------


def _catalog_applied(state: Cluster, body: e.CatalogApplied, record: Record) -> None:
    key = f"{record.session}/{record.number}"
    if key in state.operator_events:
        state.duplicates += 1
        return
    state.operator_events[key] = record.sequence
    if len(state.operator_events) > KEPT_OPERATOR_EVENTS:
        del state.operator_events[next(iter(state.operator_events))]
    state.pending = body.catalog
    state.pending_sequence = record.sequence


# --- what the controller decided or noted --------------------------------------------------------


def _elected(state: Cluster, body: e.ControllerElected, record: Record) -> None:
    state.term = body.term
    state.leader = body.holder


def _node_lost(state: Cluster, body: e.NodeLost, record: Record) -> None:
    state.nodes[body.node].lost = True


def _node_returned(state: Cluster, body: e.NodeReturned, record: Record) -> None:
    state.nodes[body.node].lost = False


def _catalog_accepted(state: Cluster, body: e.CatalogAccepted, record: Record) -> None:
    catalog = state.pending
    if catalog is None:  # refuses() made sure that it is there
        return
    state.catalog = catalog
    state.catalog_sequence = body.request
    state.models = {
        entry.name: Model(entry, *_kept(state.models.get(entry.name))) for entry in catalog.models
    }
    state.pending = None
    state.rejected_catalog = ()


def _kept(model: Model | None) -> tuple[int, dict[str, int]]:
    return (model.missing, model.refusals) if model else (0, {})


def _catalog_rejected(state: Cluster, body: e.CatalogRejected, record: Record) -> None:
    state.pending = None
    state.rejected_catalog = body.reasons


def _replica_assigned(state: Cluster, body: e.ReplicaAssigned, record: Record) -> None:
    entry = unit(state.models[body.model].entry)
    parts = [_placed(state, placed, record) for placed in body.parts]
    state.replicas[body.replica] = Replica(
        body.replica, body.model, body.generation, entry, parts, body.reasons, body.at
    )
    state.next_replica = max(state.next_replica, int(body.replica[1:]) + 1)
    for placed in parts:
        node = state.nodes[placed.node]
        for number in placed.devices:
            holders = node.held.setdefault(pool_of(node.devices[number]), {})
            holders[body.replica] = holders.get(body.replica, 0) + placed.memory_bytes
        node.revision += 1


def _placed(state: Cluster, placed: e.PartPlacement, record: Record) -> Part:
    found = [state.nodes[placed.node].devices[number] for number in placed.devices]
    grants = tuple(Grant(d.uuid, d.device_class, d.card, d.memory_total_bytes) for d in found)
    return Part(placed.node, placed.devices, placed.memory_bytes, grants, since_ns=record.time_ns)


def _model_unplaced(state: Cluster, body: e.ModelLeftUnplaced, record: Record) -> None:
    model = state.models[body.model]
    model.missing = body.missing
    model.refusals = body.refusals


def _replica_retired(state: Cluster, body: e.ReplicaRetired, record: Record) -> None:
    replica = state.replicas[body.replica]
    replica.retired = body.reason
    for part in replica.parts:
        node = state.nodes[part.node]
        node.revision += 1
        node.retiring[replica.name] = node.revision
        if part.phase != "stopped":
            part.phase = "stopping"
            part.since_ns = record.time_ns


def _commanded(state: Cluster, body: SetAssignments, record: Record) -> None:
    node = state.nodes.get(body.node)
    if node is None or body.node != record.node:
        _note(state, record, "void", f"a command for the unknown node {body.node}")
    elif body.term < state.term:
        state.void += 1
        _note(state, record, "void", f"term {body.term} is over; {state.term} leads")
        node.revision += 1  # an agent that has seen no newer term follows it: tell it again
    else:
        node.commanded = body.revision
        node.commanded_term = body.term


def _parts_on(state: Cluster, node: Node) -> list[Part]:
    """Return the parts on a node, by what its memory is held for: looking at all takes long."""
    names = dict.fromkeys(name for holders in node.held.values() for name in holders)
    return [p for name in names for p in state.replicas[name].parts if p.node == node.name]


# One table instead of a chain of tests: the fold's speed is this lookup.
_HANDLERS: dict[type[Any], Callable[..., None]] = {
    e.NodeStarted: _node_started,
    e.NodeStopped: _node_stopped,
    e.NodeInventoryTaken: _node_inventory,
    e.NodeConditionsChanged: _node_conditions,
    e.ReplicaStarting: _replica_starting,
    e.ReplicaBecameReady: _replica_ready,
    e.ReplicaAdopted: _replica_adopted,
    e.ReplicaFailed: _replica_failed,
    e.ReplicaStopped: _replica_stopped,
    e.StrayEngineStopped: _stray_stopped,
    e.CommandCompleted: _command_completed,
    e.CommandRefused: _command_refused,
    e.CommandSuperseded: _command_superseded,
    e.CatalogApplied: _catalog_applied,
    e.ControllerElected: _elected,
    e.NodeLost: _node_lost,
    e.NodeReturned: _node_returned,
    e.CatalogAccepted: _catalog_accepted,
    e.CatalogRejected: _catalog_rejected,
    e.ReplicaAssigned: _replica_assigned,
    e.ModelLeftUnplaced: _model_unplaced,
    e.ReplicaRetired: _replica_retired,
    SetAssignments: _commanded,
}
