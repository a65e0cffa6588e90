"""`refuses`: whether an intention of a controller is possible in a state, and if not, why.

Asked twice: when deciding, and again when the recorded decision is folded. What became impossible
between the two is void, visibly. Pure; reads the state only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Model, Node
from llmgw.core.demand import demand_bytes, taken_bytes
from llmgw.core.held import Held
from llmgw.core.index import full, node_refuses
from llmgw.core.placement import domain_of, label_refuses, why_not
from llmgw.hardware.types import spans_nodes

MOST_TERMS_AT_ONCE = 1_000
"""Elections are fenced, so each follows the last. A mistaken or forged one that is far ahead would
be the last of all: no number is left after the largest."""


def refuses(state: Cluster, intention: e.ControllerEvent) -> str | None:
    """Return why `intention` cannot be, in this state, or `None` when it can."""
    if intention.term == state.term or type(intention) is e.ControllerElected:
        check = CHECKS.get(type(intention))
        return check(state, intention) if check is not None else None
    return f"term {intention.term} does not lead; {state.term} does"


def _elected(state: Cluster, body: e.ControllerElected) -> str | None:
    if state.term < body.term <= state.term + MOST_TERMS_AT_ONCE:
        return None
    return f"term {body.term} does not follow {state.term}"


def _lost(state: Cluster, body: e.NodeLost) -> str | None:
    node = state.nodes.get(body.node)
    if node is None:
        return f"no node {body.node}"
    return f"{body.node} is lost already" if node.lost else None


def _returned(state: Cluster, body: e.NodeReturned) -> str | None:
    node = state.nodes.get(body.node)
    if node is None:
        return f"no node {body.node}"
    return None if node.lost else f"{body.node} is there already"


def _request(state: Cluster, body: e.CatalogAccepted | e.CatalogRejected) -> str | None:
    if state.pending is None or state.pending_sequence != body.request:
        return f"the catalog of {body.request} is not waiting for an answer"
    return None


def _model(state: Cluster, body: e.ModelLeftUnplaced) -> str | None:
    return None if body.model in state.models else f"no model {body.model}"


def _retired(state: Cluster, body: e.ReplicaRetired) -> str | None:
    replica = state.replicas.get(body.replica)
    if replica is None:
        return f"no replica {body.replica}"
    return None if replica.retired is None else f"{body.replica} is retired already"


def _assigned(state: Cluster, body: e.ReplicaAssigned) -> str | None:
    model = state.models.get(body.model)
    if model is None:
        return f"no model {body.model}"
    if body.catalog != state.catalog_sequence:
        return f"the catalog of {body.catalog} is not in force"
    if body.replica != f"r{state.next_replica}":
        return f"the next replica is r{state.next_replica}, not {body.replica}"
    return _parts(state, body, model)


def _parts(state: Cluster, body: e.ReplicaAssigned, model: Model) -> str | None:
    entry = model.entry
    if len(body.parts) != entry.nodes:
        return f"{len(body.parts)} parts are not the {entry.nodes} of {entry.name}"
    demand = demand_bytes(entry, model)
    if len(body.parts) == 1:
        (part,) = body.parts
        why = _part(state, part, entry, demand, None)
        return None if why is None else f"{part.node}{why}"
    held = Held()
    for part in body.parts:
        why = _part(state, part, entry, demand, held)
        if why is not None:
            return f"{part.node}{why}"
        held.take(state, body.replica, [part], entry)
    return _gang(state, body, entry)


def _gang(state: Cluster, body: e.ReplicaAssigned, entry: Entry) -> str | None:
    if len({part.node for part in body.parts}) != len(body.parts):
        return "two parts on one node"
    if entry.tp > entry.gpus // entry.nodes:
        nodes = [state.nodes[part.node] for part in body.parts]
        domains = {
            domain_of(node, [node.devices[number] for number in part.devices])
            for node, part in zip(nodes, body.parts, strict=True)
        }
        if len(domains) != 1 or not all(domain and spans_nodes(domain) for domain in domains):
            return "the nodes are not of one NVLink fabric"
    return None


def _part(
    state: Cluster, part: e.PartPlacement, entry: Entry, demand: int, held: Held | None
) -> str | None:
    node = state.nodes.get(part.node)
    if node is None:
        return ": no such node"
    why = node_refuses(node) or label_refuses(entry, node) or full(node)
    if why is not None:
        return f": {why}"
    if len(part.devices) * entry.nodes != entry.gpus:
        return f": {len(part.devices)} devices are not what {entry.name} needs"
    for number in part.devices:
        device = node.devices.get(number)
        if device is None:
            return f" device {number}: no such device"
        why = why_not(state, node, device, entry, demand, held)
        if why is not None:
            return f" device {number}: {why}"
        if part.memory_bytes < taken_bytes(entry, demand, device.memory_total_bytes or 0):
            return f": {part.memory_bytes} bytes are not what {entry.name} needs"
    return _group(node, part, entry) if len(part.devices) > 1 else None


def _group(node: Node, part: e.PartPlacement, entry: Entry) -> str | None:
    devices = [node.devices[number] for number in part.devices]
    if len(set(part.devices)) != len(part.devices):
        return ": one device twice"
    if any(device.profile is not None for device in devices):
        return ": a MIG instance cannot be part of a group"
    if entry.nvlink == "require" and domain_of(node, devices) is None:
        return ": these are not of one NVLink domain"
    return None


CHECKS: dict[type[Any], Callable[[Cluster, Any], str | None]] = {
    e.ControllerElected: _elected,
    e.NodeLost: _lost,
    e.NodeReturned: _returned,
    e.CatalogAccepted: _request,
    e.CatalogRejected: _request,
    e.ModelLeftUnplaced: _model,
    e.ReplicaAssigned: _assigned,
    e.ReplicaRetired: _retired,
}
