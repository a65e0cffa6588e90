"""The fold: one record changes the state, and nothing else does.

`apply` is total and deterministic: no clock, no randomness, no I/O; the only time it knows is the
record's own. A duplicate changes nothing, an unreadable or unknown record is counted, a decision
that has become impossible is void and says so. Called by the controller, by every view and by
replay; it owns the state and updates it in place, because copying it costs more than folding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.cluster import (
    FLAPPING_SECONDS,
    KEPT_LOSSES,
    KEPT_OPERATOR_EVENTS,
    KEPT_SESSIONS,
    Cluster,
    Model,
    Node,
    Part,
    Replica,
    pool_of,
    unit,
)
from llmgw.core.commands import SetAssignments
from llmgw.core.index import touch
from llmgw.core.parts import LIVES, end_on, move, note, regroup
from llmgw.core.records import Body, NewerVersion, Record, UnknownType, Unreadable
from llmgw.core.refusals import refuses
from llmgw.core.values import MAX_INTEGER
from llmgw.core.wishes import WISHES
from llmgw.engines.base import Grant
from llmgw.hardware.types import Device, Inventory, device_label


def apply(state: Cluster, record: Record) -> None:
    """Fold one record into `state`. Records come in stream order."""
    state.sequence = record.sequence
    state.time_ns = record.time_ns
    body = record.body
    handler = NODE_HANDLERS.get(type(body)) if record.origin == "node" else None
    if handler is not None:
        node = node_for(state, record.node, record.session, record.number)
        if node is not None:
            handler(state, node, body)
    elif isinstance(body, e.ControllerEvent):
        _decided(state, body)
    elif isinstance(body, SetAssignments):
        commanded(state, body, record.node)
    elif type(body) in WISHES:
        asked(state, body, record.session, record.number)
    else:
        _note_unread(state, record)


def node_for(state: Cluster, name: str, session: str, number: int) -> Node | None:
    """Return the node that an event changes, or `None` when the event was folded before."""
    node = state.nodes.get(name)
    if node is not None and node.session == session and node.sessions[session] + 1 == number:
        node.sessions[session] = number
        node.heard_ns = state.time_ns
        return node
    if node is None:
        node = state.nodes[name] = Node(name)
        touch(state, node)
    return node if _is_new(state, node, session, number) else None


def _is_new(state: Cluster, node: Node, session: str, number: int) -> bool:
    """Note how far a session of the node has come, and say what is odd about that."""
    sessions = node.sessions
    last = sessions.get(session)
    if last is None:
        _open_session(sessions, session)
        if node.rivals:
            touch(state, node)
        node.session, node.rivals = session, False
    elif number <= last:
        state.duplicates += 1
        return False
    elif session != node.session and not node.rivals:
        # An agent sends what an earlier life left behind before it says that it started.
        node.rivals = True
        touch(state, node)
        said = f"two agents report as {node.name}: name one of them with LLMGW_NODE"
        note(state, "rivals", said)
    elif number != last + 1 and last:
        state.gaps += 1
        missing = number - last - 1
        note(state, "gap", f"events of {node.name} are missing before this one: {missing}")
    sessions[session] = number
    node.heard_ns = state.time_ns
    return True


def _open_session(sessions: dict[str, int], session: str) -> None:
    while len(sessions) >= KEPT_SESSIONS:
        del sessions[next(iter(sessions))]
    sessions[session] = 0


# --- what changes nothing, and is counted ------------------------------------------------------


def _note_unread(state: Cluster, record: Record) -> None:
    body = record.body
    if record.origin == "controller":
        state.last_controller_sequence = record.sequence
    if isinstance(body, Unreadable):
        state.unreadable += 1
        note(state, "unreadable", f"{body.subject}: {body.reason}")
    elif isinstance(body, NewerVersion):
        state.needs_upgrade = f"{body.wire} version {body.version}"
        note(state, "newer version", state.needs_upgrade)
    elif isinstance(body, UnknownType):
        state.unknown += 1
        note(state, "unknown type", body.wire)


# --- facts of a node ---------------------------------------------------------------------------


def _node_started(state: Cluster, node: Node, body: e.NodeStarted) -> None:
    rebooted = bool(node.boot_id) and node.boot_id != body.boot_id
    node.boot_id = body.boot_id
    node.agent_version = body.agent_version
    node.address = body.address
    node.simulated = body.simulated
    node.labels = body.labels
    node.started = True
    touch(state, node)
    if rebooted:  # the agent starts nothing of before until it is told again
        node.revision += 1
        node.strays = {}  # touched already
        for part in _parts_on(state, node):
            if part.phase in ("starting", "ready", "stopping"):
                move(state, part, "lost")
                part.reason = "the machine restarted"
        for name in _replicas_on(node):
            regroup(state, state.replicas[name])


def _node_stopped(state: Cluster, node: Node, body: e.NodeStopped) -> None:
    node.started = False
    touch(state, node)


def _node_inventory(state: Cluster, node: Node, body: e.NodeInventoryTaken) -> None:
    inventory = body.inventory
    # An equal one may still be written otherwise; and one that gives two devices a number, of which
    # only the last counts, moves what is placed each time that it is told.
    if inventory is node.inventory and len(inventory.devices) == len(node.devices):
        if node.unreadable is not None:
            node.unreadable = None
            touch(state, node)
        return
    before, node.inventory = node.devices, inventory
    node.unreadable = None
    node.devices = {device.id: device for device in inventory.devices}
    node.excluded = _excluded(inventory) if inventory.excluded else {}
    touch(state, node)
    if node.held and _others(before, inventory.devices):
        numbers = {device.uuid: device.id for device in inventory.devices}
        for part in _parts_on(state, node):
            _find_devices(state, part, numbers)


def _hardware_unreadable(state: Cluster, node: Node, body: e.NodeHardwareUnreadable) -> None:
    node.unreadable = body.reason
    touch(state, node)


def _others(before: dict[int, Device], devices: tuple[Device, ...]) -> bool:
    """Return whether a number means another device than before, or none."""
    for device in devices:
        was = before.get(device.id)
        if was is None or was.uuid != device.uuid:
            return True
    return len(before) != len(devices)


def _find_devices(state: Cluster, part: Part, numbers: dict[str, int]) -> None:
    """Follow a part's devices by their UUID: they may have other numbers, or be there no more.

    Whether its engine still runs is for the agent to say.
    """
    gone = [
        device_label(number)
        for grant, number in zip(part.grants, part.devices, strict=True)
        if grant.uuid not in numbers
    ]
    was = zip(part.grants, part.devices, strict=True)
    part.devices = tuple(numbers.get(grant.uuid, number) for grant, number in was)
    part.gone = f"its device {', '.join(gone)} is not there any more" if gone else None
    if gone and part.phase in ("assigned", "failed"):
        move(state, part, "lost")
        part.reason = part.gone


def _excluded(inventory: Inventory) -> dict[int, str]:
    """Return why devices are kept out: by what is said of their card, then of themselves."""
    cards = {
        x.card: x.reason for x in inventory.excluded if x.device is None and x.card is not None
    }
    by_card = {d.id: cards[d.card] for d in inventory.devices if d.card in cards}
    return by_card | {x.device: x.reason for x in inventory.excluded if x.device is not None}


def _node_conditions(state: Cluster, node: Node, body: e.NodeConditionsChanged) -> None:
    node.conditions = body.conditions
    touch(state, node)


def _stray_stopped(state: Cluster, node: Node, body: e.StrayEngineStopped) -> None:
    note(state, "stray engine", f"{node.name}: pid {body.pid} ({body.marker})")


def _command_completed(state: Cluster, node: Node, body: e.CommandCompleted) -> None:
    """Everything that the command did not list is stopped, also what was never started."""
    _ended(node, body.revision)
    if node.refused is not None:
        node.refused = None
    if node.strays and body.revision >= node.revision:
        node.strays = {}  # written after the last stray was seen, so it is gone
        touch(state, node)
    if node.retiring:
        _end_retired(state, node, body.revision)


def _end_retired(state: Cluster, node: Node, done: int) -> None:
    for name in [n for n, revision in node.retiring.items() if revision <= done]:
        replica = state.replicas[name]
        for part in replica.parts:
            if part.node == node.name and part.phase != "stopped":
                part.phase = "stopped"
                part.since_ns = state.time_ns
        end_on(state, node, replica)


def _command_superseded(state: Cluster, node: Node, body: e.CommandSuperseded) -> None:
    _ended(node, body.revision)


def _ended(node: Node, revision: int) -> None:
    """Note the newest command that came to an outcome: none that was not given yet."""
    if revision > node.commanded:
        revision = node.commanded
    if revision > node.ended:
        node.ended = revision


def _command_refused(state: Cluster, node: Node, body: e.CommandRefused) -> None:
    if body.term < node.commanded_term:
        return  # as it should be: that command is void
    _ended(node, body.revision)
    node.refused = body.reason


# --- what a person asked for -------------------------------------------------------------------


def asked(state: Cluster, body: Body, session: str, number: int) -> None:
    """Fold a wish of a person."""
    key = f"{session}/{number}"
    if key in state.operator_events:
        state.duplicates += 1
        return
    state.operator_events[key] = state.sequence
    if len(state.operator_events) > KEPT_OPERATOR_EVENTS:
        del state.operator_events[next(iter(state.operator_events))]
    why = WISHES[type(body)](state, body)
    if why is not None:
        state.void += 1
        note(state, "void", why)


# --- what the controller decided or noted --------------------------------------------------------


def _decided(state: Cluster, body: e.ControllerEvent) -> None:
    """Fold what a controller decided or noted, if it is possible still."""
    state.last_controller_sequence = state.sequence
    why = refuses(state, body)
    if why is None:
        CONTROLLER_HANDLERS[type(body)](state, body)
    else:
        state.void += 1
        note(state, "void", why)


def _elected(state: Cluster, body: e.ControllerElected) -> None:
    state.term = body.term
    state.leader = body.holder


def _node_lost(state: Cluster, body: e.NodeLost) -> None:
    node = state.nodes[body.node]
    node.lost = True
    since_ns = state.time_ns - FLAPPING_SECONDS * 1_000_000_000
    of_late = [at_ns for at_ns in node.losses if at_ns >= since_ns]
    node.losses = (*of_late[1 - KEPT_LOSSES :], state.time_ns)
    touch(state, node)


def _node_returned(state: Cluster, body: e.NodeReturned) -> None:
    node = state.nodes[body.node]
    node.lost = False
    touch(state, node)


def _catalog_accepted(state: Cluster, body: e.CatalogAccepted) -> None:
    catalog = state.pending
    if catalog is None:  # refuses() made sure that it is there
        return
    state.catalog = catalog
    state.catalog_sequence = body.request
    before = state.models
    state.models = {entry.name: _model(entry, before.get(entry.name)) for entry in catalog.models}
    state.pending = None
    state.rejected_catalog = ()


def _model(entry: Entry, before: Model | None) -> Model:
    one = unit(entry)
    if before is None:
        return Model(entry, one)
    measured_bytes = before.measured_bytes if before.one == one else None
    return Model(entry, one, before.missing, before.refusals, measured_bytes)


def _catalog_rejected(state: Cluster, body: e.CatalogRejected) -> None:
    state.pending = None
    state.rejected_catalog = body.reasons


def _replica_assigned(state: Cluster, body: e.ReplicaAssigned) -> None:
    name, entry = body.replica, state.models[body.model].one
    parts: list[Part] = []
    state.replicas[name] = Replica(
        name, entry.name, body.generation, entry, parts, body.reasons, body.at, None, body.score
    )
    state.next_replica += 1  # refuses() made sure that this was it
    for placed in body.parts:
        node, memory_bytes = state.nodes[placed.node], placed.memory_bytes
        devices, held = node.devices, node.held
        grants: tuple[Grant, ...] = ()
        pools: tuple[str, ...] = ()
        for number in placed.devices:
            d = devices[number]
            pool = pool_of(d)
            grants += (Grant(d.uuid, d.device_class, d.card, d.memory_total_bytes),)
            pools += (pool,)
            holders = held.get(pool)
            if holders is None:
                held[pool] = {name: memory_bytes}
            else:
                holders[name] = holders.get(name, 0) + memory_bytes
        part = Part(node.name, placed.devices, memory_bytes, grants, pools)
        part.since_ns = state.time_ns
        parts.append(part)
        node.revision += 1
        touch(state, node)


def _model_unplaced(state: Cluster, body: e.ModelLeftUnplaced) -> None:
    model = state.models[body.model]
    model.missing = body.missing
    model.refusals = body.refusals


def _replica_retired(state: Cluster, body: e.ReplicaRetired) -> None:
    replica = state.replicas[body.replica]
    replica.retired = body.reason
    for part in replica.parts:
        node = state.nodes[part.node]
        node.revision += 1
        node.retiring[replica.name] = node.revision
        touch(state, node)
        if part.phase != "stopped":
            part.phase = "stopping"
            part.since_ns = state.time_ns


def commanded(state: Cluster, body: SetAssignments, addressee: str) -> None:
    """Fold what a controller told a node. What the command lists is not looked at."""
    node = state.nodes.get(body.node)
    if node is None or body.node != addressee:
        note(state, "void", f"a command for the unknown node {body.node}")
    elif body.term < state.term:
        state.void += 1
        note(state, "void", f"term {body.term} is over; {state.term} leads")
        node.revision += 1  # an agent that has seen no newer term follows it: tell it again
    elif body.revision > node.revision:
        state.void += 1
        note(state, "void", f"{node.name} was never to have revision {body.revision}")
        node.revision = min(body.revision, MAX_INTEGER - 1) + 1  # tell it above that one
    else:
        node.commanded = body.revision
        if node.commanded_term != body.term:
            node.commanded_term = body.term


def _parts_on(state: Cluster, node: Node) -> list[Part]:
    """Return the parts on a node, by what its memory is held for: looking at all takes long."""
    names = _replicas_on(node)
    return [p for name in names for p in state.replicas[name].parts if p.node == node.name]


def _replicas_on(node: Node) -> list[str]:
    return [*dict.fromkeys(name for holders in node.held.values() for name in holders)]


# Tables instead of chains of tests: the fold's speed is these lookups.
NODE_HANDLERS: dict[type[Any], Callable[[Cluster, Node, Any], None]] = {
    e.NodeStarted: _node_started,
    e.NodeStopped: _node_stopped,
    e.NodeInventoryTaken: _node_inventory,
    e.NodeHardwareUnreadable: _hardware_unreadable,
    e.NodeConditionsChanged: _node_conditions,
    **LIVES,
    e.StrayEngineStopped: _stray_stopped,
    e.CommandCompleted: _command_completed,
    e.CommandRefused: _command_refused,
    e.CommandSuperseded: _command_superseded,
}
"""What each fact of a node does to the state. Called with the node that `node_for` returned."""

CONTROLLER_HANDLERS: dict[type[Any], Callable[[Cluster, Any], None]] = {
    e.ControllerElected: _elected,
    e.NodeLost: _node_lost,
    e.NodeReturned: _node_returned,
    e.CatalogAccepted: _catalog_accepted,
    e.CatalogRejected: _catalog_rejected,
    e.ReplicaAssigned: _replica_assigned,
    e.ModelLeftUnplaced: _model_unplaced,
    e.ReplicaRetired: _replica_retired,
}
