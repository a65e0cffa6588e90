"""Names for everything that a view shows: `status.models.llama.ready`, `replicas.r1.phase`.

Pure. A list of rows is a collection of names (a node's, a device's `n1/0`, a replica's `r1`, a
later part of one `r2/1`), a row a collection of its fields, `*` every name. Used by predicates and
by the difference of two states. What a path names is computed from no more of the state than
it needs, so that it can be asked after every event of a long log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from llmgw.core.cluster import Cluster, Node, Replica
from llmgw.views import VIEWS
from llmgw.views.devices import DeviceRow
from llmgw.views.replicas import ReplicaRow
from llmgw.views.shared import Row

EVERY = "*"
_OF_THE_LOG = {
    *("sequence", "time", "term", "leader", "records", "needs_upgrade"),
    *("cluster", "catalog", "pending_catalog", "rejected_catalog"),
}
"""What the status says that is of no node, replica or model."""

_PLAIN = re.compile(r"[A-Za-z0-9_/:+-]+")


def key_of(row: Row) -> str:
    """Return the name of a row among its like."""
    if isinstance(row, DeviceRow):
        return f"{row.node}/{row.label}"
    if isinstance(row, ReplicaRow):
        return f"{row.replica}/{row.part}" if row.part else row.replica
    return str(getattr(row, row.__struct_fields__[0]) or "unknown")


def joined(segments: Sequence[str]) -> str:
    """Return segments as one path, each quoted that could not be read otherwise."""
    return ".".join(s if s == EVERY or _PLAIN.fullmatch(s) else f'"{s}"' for s in segments)


def plain(value: object) -> Any:  # noqa: ANN401 -- JSON of any shape
    """Return a view as dicts of names and fields; what is not known is `None`."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, attribute)) for name, attribute in fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], Row):
            return {key_of(row): plain(row) for row in value}
        return [plain(inner) for inner in value]
    return value


def values(state: Cluster, segments: Sequence[str]) -> Iterator[Any]:
    """Yield what a path names in a state: nothing, one value, or with `*` several."""
    view = VIEWS[segments[0]](_needed(state, segments))
    yield from walk(view, segments[1:])


def seen(state: Cluster, segments: Sequence[str]) -> dict[str, Any]:
    """Return what the view of a path shows of that path's thing, by name and field."""
    view = plain(VIEWS[segments[0]](_needed(state, segments)))
    for name in segments[1:-1]:
        view = view.get(name, {}) if isinstance(view, dict) else {}
    return view if isinstance(view, dict) else {}


def walk(value: object, segments: Sequence[str]) -> Iterator[Any]:
    """Yield what a value holds under the names of a path."""
    if not segments:
        if value is not None:
            yield value
        return
    first, rest = segments[0], segments[1:]
    for inner in _named(value, first):
        yield from walk(inner, rest)


def _named(value: object, name: str) -> Iterator[object]:
    """Yield what a value holds under a name."""
    if isinstance(value, msgspec.Struct):
        known = dict(fields(type(value)))
        chosen = known.values() if name == EVERY else [known[name]] if name in known else ()
        yield from (getattr(value, attribute) for attribute in chosen)
    elif isinstance(value, Mapping):
        yield from (inner for key, inner in value.items() if name in (EVERY, str(key)))
    elif isinstance(value, list | tuple):
        if value and isinstance(value[0], Row):
            yield from (row for row in value if name == EVERY or key_of(row) == name)
        elif name == EVERY:
            yield from value


@cache
def fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return what programs call the fields of a row, and what Python does."""
    return tuple((field.encode_name, field.name) for field in msgspec.structs.fields(kind))


# --- no more of the state than needed ------------------------------------------------------------


def _needed(state: Cluster, segments: Sequence[str]) -> Cluster:
    """Return a state that shows the same under this path, with less in it."""
    view = segments[0]
    name = segments[1] if len(segments) > 1 else EVERY
    if name == EVERY:
        return state
    if view == "status":
        return _status_only(state, name, segments[2] if len(segments) > 2 else EVERY)
    if view == "replicas":
        replica = state.replicas.get(name.partition("/")[0])
        return only_replicas(state, [replica] if replica is not None else [])
    if view in ("nodes", "devices"):
        return only_node(state, name.partition("/")[0])
    return state


def _status_only(state: Cluster, field: str, model: str) -> Cluster:
    if field == "models" and model != EVERY:
        return _model_only(state, model)
    if field in _OF_THE_LOG:
        return replace(state, nodes={}, replicas={}, models={})
    if field not in ("models", "nodes"):
        return state
    bare = {name: _without_devices(node) for name, node in state.nodes.items()}
    if field == "nodes":
        return replace(state, nodes=bare, replicas={}, models={})
    return replace(state, nodes=bare)


def _model_only(state: Cluster, name: str) -> Cluster:
    model = state.models.get(name)
    found = only_replicas(state, [r for r in state.replicas.values() if r.model == name])
    bare = {node.name: _without_devices(node) for node in found.nodes.values()}
    return replace(found, nodes=bare, models={name: model} if model is not None else {})


def _without_devices(node: Node) -> Node:
    """Return a node as the models see it: whether it is there."""
    return replace(node, inventory=None, devices={}, excluded={}, held={}, conditions=())


def only_node(state: Cluster, name: str) -> Cluster:
    """Return a state that shows the same of one node and its devices."""
    node = state.nodes.get(name)
    if node is None:
        return replace(state, nodes={}, replicas={}, models={})
    held = {holder for holders in node.held.values() for holder in holders}
    there = {replica: state.replicas[replica] for replica in held if replica in state.replicas}
    ordered = dict(sorted(there.items(), key=lambda item: (len(item[0]), item[0])))
    return replace(state, nodes={name: node}, replicas=ordered, models={})


def only_replicas(state: Cluster, replicas: Sequence[Replica]) -> Cluster:
    """Return a state that shows the same of some replicas."""
    nodes = {part.node for replica in replicas for part in replica.parts}
    return replace(
        state,
        replicas={replica.name: replica for replica in replicas},
        nodes={name: node for name in nodes if (node := state.nodes.get(name)) is not None},
        models={},
    )
