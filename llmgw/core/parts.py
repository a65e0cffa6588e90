"""What agents say of the parts of replicas: the fold's table of their lives.

Pure; called by the fold alone. What a node says of a part that is not its own, or of an earlier
generation, changes nothing of a replica; but what runs there is seen, wanted or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgw.core import events as e
from llmgw.core.cluster import KEPT_INCIDENTS, Cluster, Incident, Node, Part, Replica
from llmgw.core.index import touch
from llmgw.core.values import NEXT_PHASES, Phase
from llmgw.core.wishes import new_generation

Life = Callable[[Cluster, Replica, Part, Any], None]

# A field is only set where it changes: setting one takes five times as long as looking at it.


def _teller(life: Life, *, runs: bool) -> Callable[[Cluster, Node, Any], None]:
    """Return what folds events of a type; `runs`: they say that the part runs on the node."""

    def told(state: Cluster, node: Node, body: Any) -> None:  # noqa: ANN401 -- see LIVES
        replica = state.replicas.get(body.replica)
        if replica is not None and replica.generation == body.generation:
            parts, number = replica.parts, body.part
            if number < len(parts) and parts[number].node == node.name:
                if node.strays:
                    _no_stray(state, node, body)
                life(state, replica, parts[number], body)
                return
        if runs:
            _stray(state, node, body)
        else:
            _no_stray(state, node, body)

    return told


def _stray(state: Cluster, node: Node, body: e.PartEvent) -> None:
    """Note what runs although nobody wants it. A new command, which will not list it, follows."""
    devices = getattr(body, "devices", ())  # only what starts tells them
    node.strays.setdefault(f"{body.replica}/{body.part}", devices)
    touch(state, node)
    if node.commanded == node.revision:
        node.revision += 1


def _no_stray(state: Cluster, node: Node, body: e.PartEvent) -> None:
    """Note that a part is no stray, or none any more."""
    if node.strays.pop(f"{body.replica}/{body.part}", None) is not None:
        touch(state, node)


def note(state: Cluster, kind: str, detail: str) -> None:
    """Keep what was odd about the record that is being folded."""
    state.incidents.append(Incident(state.sequence, kind, detail))
    if len(state.incidents) > KEPT_INCIDENTS:
        del state.incidents[0]


def move(state: Cluster, part: Part, phase: Phase) -> None:
    """Move a part on in its life. A move that should not be is followed all the same."""
    if phase not in NEXT_PHASES[part.phase]:
        if part.phase == "stopping" and phase in ("starting", "ready"):
            return  # the agent wrote this before it heard that the replica is retired
        state.unexpected += 1
        note(state, "unexpected", f"{part.phase} to {phase} on {part.node}")
    part.phase = phase
    part.since_ns = state.time_ns


def _starting(state: Cluster, replica: Replica, part: Part, body: e.ReplicaStarting) -> None:
    move(state, part, "starting")
    if part.attempt != body.attempt:
        part.attempt = body.attempt
    if part.port != body.port:
        part.port = body.port
    if part.pid is not None:
        part.pid = None
    if body.part == 0 and len(replica.parts) > 1:
        part.meeting_port = body.meeting_port
        for other in replica.parts[1:]:  # they are told where to meet it
            state.nodes[other.node].revision += 1


def _ready(state: Cluster, replica: Replica, part: Part, body: e.ReplicaBecameReady) -> None:
    move(state, part, "ready")
    part.pid = body.pid
    if part.port != body.port:
        part.port = body.port
    if part.address != body.address:
        part.address = body.address
    if part.reason is not None:
        part.reason = part.meaning = part.advice = part.output = None
    if body.memory_bytes:
        _measured(state, replica, max(body.memory_bytes))


def _measured(state: Cluster, replica: Replica, taken_bytes: int) -> None:
    model = state.models.get(replica.model)
    if model is not None and model.one == replica.entry:
        model.measured_bytes = max(model.measured_bytes or 0, taken_bytes)


def _adopted(state: Cluster, replica: Replica, part: Part, body: e.ReplicaAdopted) -> None:
    if part.pid != body.pid:
        part.pid = body.pid
    if part.port != body.port:
        part.port = body.port
    if part.phase in ("lost", "assigned"):
        move(state, part, "starting")
    if body.part == 0 and part.meeting_port is None:
        regroup(state, replica)  # the others would never hear where to meet it


def _failed(state: Cluster, replica: Replica, part: Part, body: e.ReplicaFailed) -> None:
    move(state, part, "failed")
    part.failures += 1
    part.reason = body.reason
    part.meaning = body.meaning
    part.advice = body.advice
    part.output = body.output
    if part.attempt != body.attempt:
        part.attempt = body.attempt
    if part.pid is not None:
        part.pid = None
    regroup(state, replica)


def regroup(state: Cluster, replica: Replica) -> None:
    """Start a replica of several parts again as a whole: none of them can go on without another.

    It is a new generation, so whatever the old one still says changes nothing.
    """
    if len(replica.parts) > 1 and replica.retired is None:
        replica.regroups += 1
        new_generation(state, replica)


def _stopped(state: Cluster, replica: Replica, part: Part, body: e.ReplicaStopped) -> None:
    move(state, part, "stopped")
    part.reason = body.reason
    if part.pid is not None:
        part.pid = None
    node = state.nodes[part.node]
    last = node.retiring.get(replica.name)
    if last is None:
        regroup(state, replica)
    elif body.revision >= last:
        for other in replica.parts:
            if other.phase != "stopped" and other.node == node.name:
                return
        end_on(state, node, replica)


def end_on(state: Cluster, node: Node, replica: Replica) -> None:
    """The node will not run the retired replica again; it is forgotten once no node will."""
    name, nodes = replica.name, state.nodes
    del node.retiring[name]
    if len(replica.parts) > 1 and any(name in nodes[p.node].retiring for p in replica.parts):
        return
    for part in replica.parts:
        holder = nodes[part.node]
        held = holder.held
        for pool in part.pools:
            holders = held.get(pool)
            if holders is not None and holders.pop(name, None) is not None and not holders:
                del held[pool]
        touch(state, holder)
    del state.replicas[name]


LIVES: dict[type[Any], Callable[[Cluster, Node, Any], None]] = {
    e.ReplicaStarting: _teller(_starting, runs=True),
    e.ReplicaBecameReady: _teller(_ready, runs=True),
    e.ReplicaAdopted: _teller(_adopted, runs=True),
    e.ReplicaFailed: _teller(_failed, runs=False),
    e.ReplicaStopped: _teller(_stopped, runs=False),
}
"""What becomes of a part of a replica, whether there is such a part or not. Called with the event,
or with anything that has its fields; `replica` may be any string then, if the state has it."""
