"""Parts of a replica over several nodes, as one agent sees its own: they start and end together.

Pure; used by `core.node`. The controller starts the whole group again, as a new generation, when
one part ends; an agent never starts a part again by itself. Part 0 has the endpoint and the address
where the others meet it. Those have no endpoint: they are ready as long as they run, and if they
find no leader they end.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.core.commands import Assignment
from llmgw.core.endings import backoff_seconds
from llmgw.core.memory import EnginePart, Policy
from llmgw.core.stimuli import Key


def waiting(policy: Policy, key: Key, part: EnginePart, now: float) -> EnginePart:
    """Return a part that starts after the pause that its group has earned by its failures."""
    assert part.assignment is not None
    part.phase, part.attempt = "failed", 0
    part.failures = part.assignment.failures
    part.retry_at = now + backoff_seconds(policy, key, part)
    return part


def is_spent(part: EnginePart) -> bool:
    """Return whether the part has had its one start: the next is the controller's to give."""
    assignment = part.assignment
    return assignment is not None and assignment.parts > 1 and part.attempt > 0


def follows(key: Key) -> bool:
    """Return whether the part has no endpoint of its own."""
    return key.part > 0


def led(
    part: EnginePart, assignment: Assignment, policy: Policy, meeting_port: int | None
) -> Assignment:
    """Return the assignment of part 0 with the address where it waits for the others."""
    part.meeting_port = meeting_port or 0
    return replace(assignment, leader=f"{policy.address}:{part.meeting_port}")
