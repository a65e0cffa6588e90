"""What an agent holds against its devices: replicas that keep failing there, and what they leave.

Kept in the brain's memory, so that it outlives the agent and the replica, and told as conditions
(`notes`). Pure; `core.node` calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from llmgw.core import condemning
from llmgw.core.memory import EnginePart, Failing, Memory, Policy
from llmgw.core.stimuli import Key
from llmgw.core.weighing import Seen, accelerators, is_unused, leaks, still_held
from llmgw.engines.base import KnownFailure

_UNUSED_SECONDS = 30.0
"""How long an engine may be ready without being seen on its devices."""


class Note(NamedTuple):
    """A condition that the brain itself knows to hold, of a device by its UUID."""

    uuid: str
    name: str
    detail: str


def blame(
    memory: Memory,
    policy: Policy,
    key: Key,
    part: EnginePart,
    reason: str,
    known: KnownFailure | None,
    now: float,
) -> None:
    """Note the devices of a part that failed too often in a row, if they may be why."""
    if part.failures < policy.failing_after or (known is not None and known.everywhere):
        return
    detail = f"{key.replica} failed {part.failures} times in a row: {reason}"
    memory.failing |= dict.fromkeys(_devices(part), Failing(detail, now))


def forgive(memory: Memory, part: EnginePart) -> None:
    """Hold nothing against the devices of a part that has served on them for long."""
    for uuid in _devices(part):
        memory.failing.pop(uuid, None)


def forget(memory: Memory, policy: Policy, now: float) -> None:
    """Give devices another chance on which nothing has failed for long."""
    kept = {u: x for u, x in memory.failing.items() if now - x.since < policy.failing_seconds}
    memory.failing = kept


def note_leaks(memory: Memory, policy: Policy, seen: Seen, name: str, part: EnginePart) -> None:
    """Note the devices that did not become free of a part that has ended."""
    memory.leaks |= dict(leaks(seen, name, part, policy.limits.vacant_bytes))


def look_at_leaks(memory: Memory, policy: Policy, seen: Seen) -> None:
    """Drop what was noted of devices that have become free meanwhile."""
    for uuid, leak in list(memory.leaks.items()):
        reading = seen.get(uuid)
        if reading and still_held(reading, leak, policy.limits.vacant_bytes) is None:
            del memory.leaks[uuid]


def notes(memory: Memory, policy: Policy, seen: Seen) -> Iterator[Note]:
    """Yield what is held against devices: `failing`, `occupied`, and what `condemning` tells."""
    yield from (Note(*told) for told in condemning.notes(memory))
    for name, part in memory.parts.items():
        if part.stuck:
            said = f"{name} does not end: its process {part.pid} cannot be killed"
            yield from (Note(uuid, "occupied", said) for uuid in _devices(part))
    for uuid, failing in memory.failing.items():
        yield Note(uuid, "failing", failing.detail)
    for uuid, leak in memory.leaks.items():
        held = still_held(seen.get(uuid), leak, policy.limits.vacant_bytes)
        yield Note(uuid, "occupied", held or f"{leak.part} has ended and was not seen to be gone")


def unused(policy: Policy, seen: Seen, key: Key, part: EnginePart, now: float) -> dict[str, str]:
    """Return the devices that an engine serves without, as one that was built without them does."""
    if part.assignment is None or part.assignment.entry.engine == "command":
        return {}
    ready = part.ready_at is not None and now - part.ready_at >= _UNUSED_SECONDS
    if not ready or not is_unused(seen, part, policy.limits.vacant_bytes):
        return {}
    said = f"{key.replica} serves, and none of its processes is on the device"
    return dict.fromkeys(accelerators(part), said)


def _devices(part: EnginePart) -> list[str]:
    return [grant.uuid for grant in part.assignment.grants] if part.assignment else []
