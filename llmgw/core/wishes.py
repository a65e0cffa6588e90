"""What a person asked for, and what it does to the state: the fold's table of wishes.

Pure; called by the fold alone. A wish that cannot be granted returns why, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from llmgw.catalog.entries import Catalog
from llmgw.catalog.rules import MOST_REPLICAS
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Replica
from llmgw.core.index import touch


def _catalog_applied(state: Cluster, body: e.CatalogApplied) -> str | None:
    state.pending = body.catalog
    state.pending_sequence = state.sequence
    return None


def _model_scaled(state: Cluster, body: e.ModelScaled) -> str | None:
    model = state.models.get(body.model)
    if model is None:
        return f"{body.model} cannot be scaled: it is not in the catalog in force"
    if body.replicas > MOST_REPLICAS:
        return f"{body.model} cannot be scaled to {body.replicas}: {MOST_REPLICAS} at most"
    model.entry = replace(model.entry, replicas=body.replicas)
    entries = (model.entry if x.name == body.model else x for x in state.catalog.models)
    state.catalog = Catalog(models=tuple(entries))
    return None


def _model_deleted(state: Cluster, body: e.ModelDeleted) -> str | None:
    if state.models.pop(body.model, None) is None:
        return f"{body.model} cannot be deleted: it is not in the catalog in force"
    entries = (entry for entry in state.catalog.models if entry.name != body.model)
    state.catalog = Catalog(models=tuple(entries))
    return None


def _node_cordoned(state: Cluster, body: e.NodeCordoned) -> str | None:
    return _keep_out(state, body.node, cordoned=True, draining=False)


def _node_uncordoned(state: Cluster, body: e.NodeUncordoned) -> str | None:
    return _keep_out(state, body.node, cordoned=False, draining=False)


def _node_drained(state: Cluster, body: e.NodeDrained) -> str | None:
    return _keep_out(state, body.node, cordoned=True, draining=True)


def _keep_out(state: Cluster, name: str, *, cordoned: bool, draining: bool) -> str | None:
    node = state.nodes.get(name)
    if node is None:
        return f"no node {name} is known"
    node.cordoned, node.draining = cordoned, draining
    touch(state, node)
    return None


def _restart_asked(state: Cluster, body: e.ReplicaRestartAsked) -> str | None:
    """A new generation in the same place: the command names it, and the agent ends the old one."""
    replica = state.replicas.get(body.replica)
    if replica is None or replica.retired is not None:
        return f"{body.replica} cannot be restarted: there is no such replica, or it is retired"
    new_generation(state, replica)
    return None


def new_generation(state: Cluster, replica: Replica) -> None:
    """Have all parts of a replica end and start afresh where they are."""
    replica.generation += 1
    for part in replica.parts:
        state.nodes[part.node].revision += 1
        part.phase, part.since_ns = "assigned", state.time_ns
        part.attempt, part.pid, part.meeting_port = 0, None, None


WISHES: dict[type[Any], Callable[[Cluster, Any], str | None]] = {
    e.CatalogApplied: _catalog_applied,
    e.ModelScaled: _model_scaled,
    e.ModelDeleted: _model_deleted,
    e.NodeCordoned: _node_cordoned,
    e.NodeUncordoned: _node_uncordoned,
    e.NodeDrained: _node_drained,
    e.ReplicaRestartAsked: _restart_asked,
}
"""What each wish of a person does to the state, or why it cannot."""
