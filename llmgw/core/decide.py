"""`decide`: what should happen now, given the state. Reads and returns; never acts.

The controller appends what comes back, decisions first; the commands follow from the state once
those decisions are folded, so a crash between the two is healed by deciding again. The order of
the answer and every id in it follow from the state alone, so that `--verify` can decide again.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.catalog.entries import Entry
from llmgw.catalog.problems import problems
from llmgw.core.cluster import Cluster, Model, Node, Part, Replica, pool_of
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.events import (
    CatalogAccepted,
    CatalogRejected,
    Decision,
    ModelLeftUnplaced,
    ReplicaAssigned,
    ReplicaRetired,
)
from llmgw.core.held import Held
from llmgw.core.meanings import AVOIDED, EVACUATED
from llmgw.core.placement import Placed, place
from llmgw.core.rollout import is_ready, paused
from llmgw.hardware.types import device_label

Intention = Decision | SetAssignments

IN_THE_WAY = "it stands in the way of the changed entry"

MOST_PLACED_AT_ONCE = 200
"""So that one answer takes a moment, and not longer than the lead lasts."""


def decide(state: Cluster) -> list[Intention]:
    """Return what the leader of `state.term` should append now; empty when all is as wanted."""
    if state.term == 0 or state.needs_upgrade is not None:
        return []
    if state.pending is not None:
        return [_answer_catalog(state)]
    decisions = list(_replica_decisions(state))
    return [*decisions] if decisions else [*_commands(state)]


def _answer_catalog(state: Cluster) -> Decision:
    request = state.pending_sequence
    found = problems(state.pending) if state.pending is not None else ()
    if found:
        return CatalogRejected(
            term=state.term, at=state.sequence, request=request, reasons=tuple(found)
        )
    return CatalogAccepted(term=state.term, at=state.sequence, request=request)


def _replica_decisions(state: Cluster) -> Iterator[Decision]:
    held = Held()
    number = state.next_replica
    by_model: dict[str, list[Replica]] = {}
    for replica in state.replicas.values():
        if replica.retired is None:
            by_model.setdefault(replica.model, []).append(replica)
        else:
            held.ending = True
    for name, replicas in by_model.items():
        if name not in state.models:
            yield from (_retire(state, r, "its model left the catalog") for r in replicas)
    for model in by_priority(state):
        replicas = by_model.get(model.entry.name, [])
        if held.retired:  # a model of higher priority may have taken some
            replicas = [r for r in replicas if r.name not in held.retired]
        for decision in _model_decisions(state, model, replicas, held, number):
            if isinstance(decision, ReplicaAssigned):
                number += 1
            elif isinstance(decision, ReplicaRetired):
                held.retired[decision.replica] = None
            yield decision


def by_priority(state: Cluster) -> list[Model]:
    """Return the models in the order in which they are placed.

    Those first that may displace others; of one priority the larger groups, since what is left
    between large ones still does for small ones; else in the catalog's order.
    """
    return sorted(state.models.values(), key=lambda m: (-m.entry.priority, -m.entry.gpus))


def _model_decisions(
    state: Cluster, model: Model, replicas: list[Replica], held: Held, number: int
) -> Iterator[Decision]:
    entry = model.entry
    current, leaving = _sorted_out(state, model, replicas)
    missing = entry.replicas - len(current)
    refusals: dict[str, int] = {}
    while missing > 0:
        if number - state.next_replica >= MOST_PLACED_AT_ONCE:
            return  # the rest is decided on what these are folded to
        answer = place(state, entry, held)
        if not isinstance(answer, Placed):
            refusals = dict(answer.refusals)
            break
        yield _assign(state, entry, f"r{number}", answer)
        held.take(state, f"r{number}", answer.parts, entry)
        number += 1
        missing -= 1
    if (model.missing, model.refusals) != (max(missing, 0), refusals):
        yield ModelLeftUnplaced(
            term=state.term,
            at=state.sequence,
            model=entry.name,
            missing=max(missing, 0),
            refusals=refusals,
        )
    if missing == 0:
        for replica, why, answer in _moves(state, entry, current, held):
            yield _assign(state, entry, f"r{number}", answer)
            held.take(state, f"r{number}", answer.parts, entry)
            yield _retire(state, replica, why)
            current = [r for r in current if r is not replica]
            number += 1
    yield from _retirements(state, model, current, leaving, missing)
    if missing > 0:
        yield from _make_room(state, entry, missing, held)


def _sorted_out(
    state: Cluster, model: Model, replicas: list[Replica]
) -> tuple[list[Replica], list[Replica]]:
    """Return the replicas as they should be, and those that go once others serve in their place.

    These are outdated, to be drained, or on devices that their node has no more, or on which
    nothing is left. Those on lost nodes are neither: what becomes of them is known when the node
    returns.
    """
    one, nodes = model.one, state.nodes
    current, leaving = [], []
    for replica in replicas:
        lost = displaced = False
        for part in replica.parts:
            node = nodes[part.node]
            lost = lost or node.lost
            displaced = displaced or node.draining or part.gone is not None
            displaced = displaced or _must_leave(node, part) is not None
        if displaced or (replica.entry is not one and replica.entry != one):
            leaving.append(replica)
        elif not lost:
            current.append(replica)
    return current, leaving


def _moves(
    state: Cluster, entry: Entry, current: list[Replica], held: Held
) -> Iterator[tuple[Replica, str, Placed]]:
    """Yield replicas that fail on devices which something speaks against, why, and where to try.

    Only where nothing does: a model that fails everywhere stays where it is, and is tried there
    ever more seldom. What is yielded is to be taken before the next is asked for.
    """
    for replica in current:
        why = _why_elsewhere(state, replica)
        if why is None:
            continue
        answer = place(state, entry, held)
        if not isinstance(answer, Placed) or answer.score["avoided"]:
            return
        yield replica, why, answer


def _why_elsewhere(state: Cluster, replica: Replica) -> str | None:
    """Return what speaks against the devices of a replica that fails there, or `None`."""
    for part in replica.parts:
        regrouped = len(replica.parts) > 1 and part.phase == "assigned"
        if not part.failures or not (part.phase == "failed" or regrouped):
            continue
        node = state.nodes[part.node]
        for number in part.devices:
            against = node.excluded.get(number)
            for condition in node.conditions:
                named = condition.name == "failing" or condition.name not in AVOIDED
                if condition.device == number and named:
                    against = condition.name
            if against is not None:
                where = f"{part.node} {device_label(number)}"
                return f"it failed {part.failures} times, and {where} is {against}"
    return None


def _retirements(
    state: Cluster, model: Model, current: list[Replica], leaving: list[Replica], missing: int
) -> Iterator[Decision]:
    """Retire what is too much.

    A replica that leaves serves until a new one is ready, unless it stands in the way of one.
    Nothing outdated goes while the entry that replaces it fails.
    """
    entry = model.entry
    surplus = len(current) - entry.replicas
    if surplus > 0:
        for replica in sorted(current, key=lambda r: _least_steady(state, r))[:surplus]:
            yield _retire(state, replica, f"more than the {entry.replicas} wanted")
    if not leaving:
        return
    if paused(state, model, [*current, *leaving]) is not None:
        leaving = [r for r in leaving if r.entry == model.one]
    ready = sum(1 for r in current if is_ready(r))
    in_the_way = _in_the_way(state, entry, current, leaving, missing)
    for replica in in_the_way:
        yield _retire(state, replica, _why_leaving(state, replica) or IN_THE_WAY)
    dead = [r for r in leaving if not is_ready(r) and _has_no_device(state, r)]
    useless = [r for r in dead if r not in in_the_way]
    serving = [r for r in leaving if r not in in_the_way and r not in useless]
    serving.sort(key=_least_useful)
    enough = serving[: max(0, len(serving) - max(0, entry.replicas - ready))]
    for replica in useless + enough:
        yield _retire(state, replica, _why_leaving(state, replica) or "its entry changed")


def _why_leaving(state: Cluster, replica: Replica) -> str | None:
    """Return why a replica leaves that is not outdated."""
    gone = next((part.gone for part in replica.parts if part.gone is not None), None)
    if gone is None and _on_draining_node(state, replica):
        return "its node is drained"
    left = (_must_leave(state.nodes[part.node], part) for part in replica.parts)
    return gone or next((why for why in left if why is not None), None)


def _must_leave(node: Node, part: Part) -> str | None:
    """Return what a device of a part suffers from that nothing is left on, or `None`."""
    if not (node.conditions or node.excluded):
        return None
    for number in part.devices:
        named = [c.name for c in node.conditions if c.device == number and c.name in EVACUATED]
        out = node.excluded.get(number)
        against = out if out in EVACUATED else next(iter(named), None)
        if against is not None:
            return f"{node.name} {device_label(number)} is {against}"
    return None


def _in_the_way(
    state: Cluster, entry: Entry, current: list[Replica], leaving: list[Replica], missing: int
) -> list[Replica]:
    """Return those that leave and have to go before what is missing fits.

    Of those that serve one after the other goes: the next once all that replaced them serve.
    """
    idle = [r for r in leaving if not is_ready(r)]
    found = _blocking(state, entry, idle, missing)
    if not found and all(is_ready(r) for r in current):
        found = _blocking(state, entry, leaving, min(missing, 1))
    return found


def _blocking(state: Cluster, entry: Entry, leaving: list[Replica], missing: int) -> list[Replica]:
    """Return those that leave without which the missing ones fit: none if nothing helps.

    What is being retired already counts as gone, so that no more are retired than needed.
    """
    if missing <= 0:
        return []
    held = _without_the_retired(state)
    waiting = iter(sorted(leaving, key=_least_useful))
    released: list[Replica] = []
    needed: list[Replica] = []
    for number in range(missing):
        while not isinstance(answer := place(state, entry, held), Placed):
            candidate = next(waiting, None)
            if candidate is None:
                return needed
            held.release(state, candidate.name)
            released.append(candidate)
        held.take(state, f"missing-{number}", answer.parts, entry)
        here = _holders(released, answer)
        needed += here
        released = [r for r in released if r not in here]
    return needed


def _without_the_retired(state: Cluster) -> Held:
    held = Held()
    for replica in state.replicas.values():
        if replica.retired is not None and not _on_lost_node(state, replica):
            held.release(state, replica.name)
    return held


def _holders(released: list[Replica], answer: Placed) -> list[Replica]:
    """Return those of the released replicas that share a node with the answer."""
    nodes = {part.node for part in answer.parts}
    return [r for r in released if any(part.node in nodes for part in r.parts)]


# --- priority -------------------------------------------------------------------------------------


def _make_room(state: Cluster, entry: Entry, missing: int, held: Held) -> Iterator[Decision]:
    """Keep free what is on its way to be, and retire replicas of lower priority for the rest.

    Room that opens piece by piece must not go to those that come after, or a group would wait for
    ever. Of what may be displaced the lowest priority goes first, and of one priority what is
    least useful. More and more are thought away, twice as many each time, until one fits; only
    those whose memory it takes go.
    """
    displaces = any(m.entry.priority < entry.priority for m in state.models.values())
    if not (displaces or held.ending or held.retired):
        return  # nothing has changed since it was refused
    trial = _with_the_retired_gone(state, held)
    candidates: list[Replica] | None = None
    away: list[Replica] = []
    for number in range(missing):
        step = 1
        while not isinstance(answer := place(state, entry, trial), Placed):
            if candidates is None:
                candidates = _candidates(state, entry, held)
            if not candidates:
                return
            more, candidates = candidates[:step], candidates[step:]
            step *= 2
            for replica in more:
                trial.release(state, replica.name)
            away += more
        trial.take(state, f"missing-{number}", answer.parts, entry)
        held.take(state, f"{entry.name}-{number}", answer.parts, entry)
        taken = _pools(state, answer)
        for replica in [r for r in away if taken & _held_pools(r)]:
            away.remove(replica)
            why = f"{entry.name} of priority {entry.priority} needs its place"
            yield _retire(state, replica, why)


def _with_the_retired_gone(state: Cluster, held: Held) -> Held:
    """Return what `held` holds, as it will be once all that is retired has ended."""
    trial = _without_the_retired(state)
    for name in held.retired:
        trial.release(state, name)
    for name, parts, entry in held.takes:
        trial.take(state, name, parts, entry)
    return trial


def _candidates(state: Cluster, entry: Entry, held: Held) -> list[Replica]:
    """Return what the entry may displace, in the order in which it goes."""
    found = [
        replica
        for replica in state.replicas.values()
        if replica.name not in held.retired and _may_be_displaced(state, replica, entry)
    ]
    found.sort(key=lambda r: (state.models[r.model].entry.priority, *_least_useful(r)))
    return found


def _may_be_displaced(state: Cluster, replica: Replica, entry: Entry) -> bool:
    model = state.models.get(replica.model)
    return (
        replica.retired is None
        and model is not None
        and model.entry.priority < entry.priority
        and not _on_lost_node(state, replica)
    )


def _pools(state: Cluster, answer: Placed) -> set[tuple[str, str]]:
    return {
        (part.node, pool_of(state.nodes[part.node].devices[number]))
        for part in answer.parts
        for number in part.devices
    }


def _held_pools(replica: Replica) -> set[tuple[str, str]]:
    return {(part.node, pool) for part in replica.parts for pool in part.pools}


# --- small questions ------------------------------------------------------------------------------


def _least_useful(replica: Replica) -> tuple[bool, int]:
    """Order replicas so that those come first whose loss hurts least: not ready, then newest."""
    return (is_ready(replica), -int(replica.name[1:]))


def _least_steady(state: Cluster, replica: Replica) -> tuple[bool, int, int]:
    """Order them as `_least_useful` does, but those that serve on flapping nodes go before others.

    One loss of late is no flapping.
    """
    flaps = max(len(state.nodes[part.node].losses) for part in replica.parts) - 1
    ready, newest = _least_useful(replica)
    return (ready, -max(flaps, 0), newest)


def _has_no_device(state: Cluster, replica: Replica) -> bool:
    """Return whether a device of the replica is there no more, or nothing can run on it."""
    return any(
        part.gone is not None or _must_leave(state.nodes[part.node], part) is not None
        for part in replica.parts
    )


def _on_lost_node(state: Cluster, replica: Replica) -> bool:
    return any(state.nodes[part.node].lost for part in replica.parts)


def _on_draining_node(state: Cluster, replica: Replica) -> bool:
    return any(state.nodes[part.node].draining for part in replica.parts)


def _assign(state: Cluster, entry: Entry, name: str, placed: Placed) -> ReplicaAssigned:
    return ReplicaAssigned(
        term=state.term,
        at=state.sequence,
        replica=name,
        model=entry.name,
        generation=1,
        catalog=state.catalog_sequence,
        parts=placed.parts,
        reasons=placed.reasons,
        refusals=dict(placed.refusals),
        score=dict(placed.score),
    )


def _retire(state: Cluster, replica: Replica, reason: str) -> ReplicaRetired:
    return ReplicaRetired(term=state.term, at=state.sequence, replica=replica.name, reason=reason)


def _commands(state: Cluster) -> Iterator[SetAssignments]:
    """Command every node whose list changed since it was last told, or was told too long ago.

    A command of an older term stays valid once it is in the log; nothing is said twice. Before
    the log's first catalog nobody has said what shall run (a log that was replaced begins so, and
    engines outlive it): then nothing is commanded.
    """
    if not state.catalog_sequence:
        return
    for node in state.nodes.values():
        if node.revision > node.commanded and node.started:
            yield SetAssignments(
                node=node.name,
                revision=node.revision,
                term=state.term,
                at=state.sequence,
                assignments=tuple(_assignments(state, node)),
            )


def _assignments(state: Cluster, node: Node) -> Iterator[Assignment]:
    for replica in state.replicas.values():
        if replica.retired is not None:
            continue
        for number, part in enumerate(replica.parts):
            if part.node != node.name:
                continue
            leader = _meeting_place(state, replica) if number else None
            if number and leader is None:
                continue  # part 0 has not said yet where to meet it
            yield Assignment(
                replica=replica.name,
                part=number,
                generation=replica.generation,
                entry=replica.entry,
                devices=part.devices,
                grants=part.grants,
                parts=len(replica.parts),
                leader=leader,
                failures=replica.regroups,
            )


def _meeting_place(state: Cluster, replica: Replica) -> str | None:
    """Return where the parts of a replica meet, as far as its first part has said it."""
    first = replica.parts[0]
    if first.meeting_port is None or first.phase not in ("starting", "ready"):
        return None
    return f"{state.nodes[first.node].address}:{first.meeting_port}"
