"""Whether, where and on which port an agent can start a part: questions to its memory.

Pure and without effects; `core.node` asks before each start.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from llmgw.core.commands import Assignment
from llmgw.core.memory import EnginePart, Memory, Policy
from llmgw.core.values import Phase
from llmgw.engines.registry import ENGINES

AT_REST: tuple[Phase, ...] = ("failed", "stopped")
"""Phases of a part that has no process."""


def is_free(memory: Memory, name: str, part: EnginePart) -> bool:
    """Return whether no other part still holds a device of this one, or all may share it."""
    if part.assignment is None:
        return False
    entry = part.assignment.entry
    if any(p.assignment is None and p.phase not in AT_REST for p in memory.parts.values()):
        return False  # nobody knows what that engine holds; it is wanted or stopped soon
    uuids = {g.uuid for g in part.assignment.grants if g.device_class != "cpu"}
    if any(leak.pids for uuid, leak in memory.leaks.items() if uuid in uuids):
        return False  # what ended there is not gone, and cannot be killed
    return not any(
        uuids & {g.uuid for g in other.assignment.grants}
        for key, other in memory.parts.items()
        if key != name
        and other.assignment is not None
        and (other.phase not in AT_REST or other.gone_at is not None)
        and not (entry.share and other.assignment.entry.share)
    )


def cannot_start(memory: Memory, assignment: Assignment) -> str | None:
    """Return why this machine cannot run the assignment at all, or `None`."""
    name = assignment.entry.engine
    if name not in ENGINES:
        return f"this agent does not know the engine {name}: upgrade llmgw on this node"
    inventory = memory.inventory
    there = {d.uuid for d in inventory.devices} if inventory is not None else set()
    gone = [g.uuid for g in assignment.grants if g.uuid not in there]
    if gone or not assignment.grants:
        return f"this machine has no device {', '.join(gone) or 'for it'} any more"
    return None


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
    busy = [p for p in memory.parts.values() if p.phase not in AT_REST]
    taken = {p.port for p in busy} | {p.meeting_port for p in busy}
    ports = range(policy.first_port, policy.last_port + 1)
    free = [port for port in ports if port not in taken]
    if not free:
        return None
    rested = (port for port in free if quarantine.get(port, now) <= now)
    return next(rested, free[0])  # all in quarantine: the bind probe has the last word
