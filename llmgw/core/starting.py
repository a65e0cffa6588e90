"""Whether, where and on which port an agent can start a part: questions to its memory.

Pure and without effects; `core.node` asks before each start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from llmgw.core import condemning, grouping, liveness
from llmgw.core.commands import Assignment
from llmgw.core.memory import EnginePart, Memory, Policy
from llmgw.core.stimuli import Key
from llmgw.core.values import Phase
from llmgw.engines.registry import ENGINES

AT_REST: tuple[Phase, ...] = ("failed", "stopped")
"""Phases of a part that has no process, unless it is one that cannot be killed."""


def rests(part: EnginePart) -> bool:
    """Return whether the part has no process, and is about to have none."""
    return part.phase in AT_REST and part.pid is None


def count_from(part: EnginePart, now: float) -> None:
    """Count the moments of a part from now on: another agent's clock has measured them."""
    part.started_at = part.next_probe_at = part.retry_at = now
    part.kill_at = now if part.kill_at is not None else None
    part.ready_at = now if part.ready_at is not None else None
    part.gone_at = now if part.gone_at is not None else None
    part.answered_at = part.missing_since = part.drain_until = part.killed_at = None
    liveness.begin(part, now)


def wanted_instead(memory: Memory, key: Key, part: EnginePart) -> Assignment | None:
    """Return what is wanted, under the very name of a part that ends, as the next start of it."""
    if grouping.is_spent(part):
        return None
    of_name = (a for a in memory.wanted or () if (a.replica, a.part) == key)
    return next((a for a in of_name if a.generation == part.generation), None)


def begin_anew(part: EnginePart, empty_bytes: dict[str, int], now: float) -> None:
    """Forget what was of the part's start before: the next begins now."""
    part.phase, part.pid, part.fail_reason, part.doomed = "starting", None, None, ""
    part.kill_at, part.killed_at, part.stuck, part.starved = None, None, False, False
    part.port = part.meeting_port = 0
    part.started_at, part.ready_at, part.answered_at = now, None, None
    part.misses, part.missing_since, part.sightings, part.pids = 0, None, 0, ()
    liveness.begin(part, now)
    part.next_probe_at = now
    part.empty_bytes = empty_bytes


def is_blind(memory: Memory, occupied: Collection[str], part: EnginePart) -> bool:
    """Return whether a start would end as the last did.

    Its device has no more memory free; or the start was refused for what still holds.
    """
    refused = part.fail_reason
    if refused is not None and refused == condemning.why_not(memory, part.assignment):
        return True
    if not part.starved or part.assignment is None:
        return False
    return any(g.uuid in occupied or g.uuid in memory.leaks for g in part.assignment.grants)


def is_free(memory: Memory, name: str, part: EnginePart) -> bool:
    """Return whether no other part still holds a device of this one, or all may share it."""
    if part.assignment is None:
        return False
    entry = part.assignment.entry
    if any(p.assignment is None and not rests(p) for p in memory.parts.values()):
        return False  # nobody knows what that engine holds; it is wanted or stopped soon
    uuids = {g.uuid for g in part.assignment.grants if g.device_class != "cpu"}
    if any(leak.pids for uuid, leak in memory.leaks.items() if uuid in uuids):
        return False  # what ended there is not gone, and cannot be killed
    return not any(
        uuids & {g.uuid for g in other.assignment.grants}
        for key, other in memory.parts.items()
        if key != name
        and other.assignment is not None
        and (not rests(other) or other.gone_at is not None)
        and not (entry.share and other.assignment.entry.share)
    )


def cannot_start(memory: Memory, assignment: Assignment) -> str | None:
    """Return why this machine cannot run the assignment, at all or for now, or `None`."""
    name = assignment.entry.engine
    if name not in ENGINES:
        return f"this agent does not know the engine {name}: upgrade llmgw on this node"
    inventory = memory.inventory
    there = {d.uuid for d in inventory.devices} if inventory is not None else set()
    gone = [g.uuid for g in assignment.grants if g.uuid not in there]
    if gone or not assignment.grants:
        return f"this machine has no device {', '.join(gone) or 'for it'} any more"
    return condemning.why_not(memory, assignment)


def as_numbered_here(memory: Memory, assignment: Assignment) -> Assignment:
    """Number the devices as this machine does now: a reboot may have changed that."""
    inventory = memory.inventory
    here = {d.uuid: d for d in inventory.devices} if inventory is not None else {}
    return msgspec.structs.replace(
        assignment,
        devices=tuple(here[g.uuid].id for g in assignment.grants),
        grants=tuple(
            msgspec.structs.replace(g, card_index=here[g.uuid].card) for g in assignment.grants
        ),
    )


def free_port(
    memory: Memory, policy: Policy, quarantine: Mapping[int, float], now: float
) -> int | None:
    """Return a port that no engine of this node has, one that rests only where no other is left."""
    busy = [p for p in memory.parts.values() if not rests(p)]
    taken = {p.port for p in busy} | {p.meeting_port for p in busy}
    ports = range(policy.first_port, policy.last_port + 1)
    free = [port for port in ports if port not in taken]
    if not free:
        return None
    rested = (port for port in free if quarantine.get(port, now) <= now)
    return next(rested, free[0])  # all in quarantine: the bind probe has the last word


def no_port(policy: Policy) -> str:
    """Return the words for a node that has no port left."""
    return (
        f"every port from {policy.first_port} to {policy.last_port} is held by an engine "
        "of this node: widen LLMGW_PORT_RANGE"
    )
