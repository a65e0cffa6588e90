"""What must hold of every state of the cluster, whatever was folded.

`check` is called by tests and by the simulator after every record; it raises `AssertionError`
with what is wrong, and never changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from llmgw.core.cluster import KEPT_INCIDENTS, KEPT_SESSIONS, Cluster, Node, is_shared, pool_of


def check(state: Cluster) -> None:
    """Raise `AssertionError` naming everything that does not hold in `state`."""
    found = list(violations(state))
    assert not found, f"at sequence {state.sequence}: " + "; ".join(found)


def violations(state: Cluster) -> Iterator[str]:
    """Yield what does not hold, one line each."""
    for node in state.nodes.values():
        yield from _overcommitted(state, node)
        yield from _revisions(node)
        yield from _retiring(state, node)
        if node.session and node.session not in node.sessions:
            yield f"{node.name} forgot its own session"
        if len(node.sessions) > KEPT_SESSIONS:
            yield f"{node.name} remembers {len(node.sessions)} sessions"
    yield from _held_and_placed(state)
    yield from _replicas(state)
    if len(state.incidents) > KEPT_INCIDENTS:
        yield f"{len(state.incidents)} incidents are kept"
    if state.pending_sequence > state.sequence or state.last_controller_sequence > state.sequence:
        yield "the state knows a sequence that has not come yet"


def _overcommitted(state: Cluster, node: Node) -> Iterator[str]:
    """No memory is sold twice, and devices are shared only by replicas that allow it (I3)."""
    for device in node.devices.values():
        holders = node.held.get(pool_of(device), {})
        sharing = is_shared(device) or all(state.replicas[name].entry.share for name in holders)
        if len(holders) > 1 and not sharing:
            yield f"{node.name} device {device.label} is held by {', '.join(holders)}"
        total = device.memory_total_bytes
        if holders and total is not None and sum(holders.values()) > total:
            yield f"{node.name} device {device.label}: {sum(holders.values())} of {total} bytes"
    if any(not holders for holders in node.held.values()):
        yield f"{node.name} has a pool without holders"


def _revisions(node: Node) -> Iterator[str]:
    if node.commanded > node.revision:
        yield f"{node.name} was commanded revision {node.commanded} of {node.revision}"
    if any(revision > node.revision for revision in node.retiring.values()):
        yield f"{node.name} retires something in a revision that is not there yet"


def _retiring(state: Cluster, node: Node) -> Iterator[str]:
    for name in node.retiring:
        replica = state.replicas.get(name)
        if replica is None or replica.retired is None:
            yield f"{node.name} retires {name}, which is {'gone' if not replica else 'wanted'}"


def _held_and_placed(state: Cluster) -> Iterator[str]:
    """Exactly the replicas that are placed on a node hold memory there."""
    for node in state.nodes.values():
        holders = {name for pool in node.held.values() for name in pool}
        placed = {
            r.name for r in state.replicas.values() if any(p.node == node.name for p in r.parts)
        }
        if holders != placed:
            yield f"{node.name}: held by {sorted(holders)}, placed are {sorted(placed)}"


def _replicas(state: Cluster) -> Iterator[str]:
    for replica in state.replicas.values():
        if int(replica.name[1:]) >= state.next_replica:
            yield f"{replica.name} is there before its number was given"
        nodes = {part.node for part in replica.parts}
        if nodes - state.nodes.keys():
            yield f"{replica.name} is on nodes that are not there"
        elif replica.retired is not None and not any(
            replica.name in state.nodes[name].retiring for name in nodes
        ):
            yield f"{replica.name} is retired and nothing will end it"


def snapshot(state: Cluster) -> bytes:
    """Return the state as a snapshot stores it: two states are the same if these are.

    The order of its parts is kept, because decisions follow it.
    """
    return msgspec.json.encode(state)


def restored(stored: bytes) -> Cluster:
    """Return the state of a snapshot."""
    return msgspec.json.decode(stored, type=Cluster)
