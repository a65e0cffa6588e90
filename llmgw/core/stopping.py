"""How an agent ends an engine: its requests first, then SIGTERM, then SIGKILL.

Most engines drop their streams at the signal (vLLM unless told otherwise, llama-server always), so
one that serves is asked how many requests it still has, and is told only when it has none or the
time is up. Whoever sends it requests must have stopped before: the log says `stopping` of the
replica before the agent hears of it. Each function takes what is due for one part and returns the
effects; `core.node` calls them.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.memory import EnginePart, Policy
from llmgw.core.reporting import start_of
from llmgw.core.stimuli import Effect, Key
from llmgw.engines.registry import ENGINES

DRAIN_SHARE = 0.75
"""Of the time for a stop, the part in which requests may end before the engine is told."""
_STOP_SECONDS = 15.0
"""For an engine whose entry is not known."""
_KILL_AGAIN_SECONDS = 1.0
_KILL_STUCK_SECONDS = 30.0


def stop(policy: Policy, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
    """Begin to stop a part that is starting or ready; it is killed when its time is up."""
    was, part.phase = part.phase, "stopping"
    seconds = part.assignment.entry.stop_seconds if part.assignment else _STOP_SECONDS
    part.kill_at = now + seconds
    if part.pid is None:
        return  # it is just being spawned, and is told when it is there
    if was == "ready" and _tells_requests(part):
        part.idle, part.drain_until = 0, now + DRAIN_SHARE * seconds
        part.next_probe_at = now
        yield from _ask(policy, key, part, now)
    else:
        yield s.StopEngine(start_of(key, part), part.pid, "TERM")


def reason_to_end(part: EnginePart, wanted: Assignment | None) -> str:
    """Return why a part ends that runs something else than what is wanted in its place."""
    if wanted is None:
        return "not wanted any more"
    if wanted.generation == part.generation:
        return "something else is wanted in its place"
    regrouped = part.assignment is not None and wanted.failures > part.assignment.failures
    return "its group starts again" if regrouped else "a restart was asked for"


def kill(key: Key, part: EnginePart, now: float, reason: str) -> Iterator[Effect]:
    """End a broken engine; its exit will be reported as a failure with this reason."""
    if part.pid is not None and part.fail_reason is None:
        part.fail_reason, part.answered_at = reason, None
        yield from _kill(key, part, part.pid, now)


def go_on(policy: Policy, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
    """Go on with an end that is under way, as far as time demands, or begin one that must be."""
    if part.pid is None:
        return
    if part.doomed and part.phase in ("starting", "ready"):
        yield from kill(key, part, now, part.doomed)
    if part.kill_at is not None and now >= part.kill_at:
        part.drain_until = None
        yield from _kill(key, part, part.pid, now)
    elif part.drain_until is not None and now >= part.drain_until:
        yield from _tell(key, part)
    elif part.drain_until is not None and now >= part.next_probe_at:
        yield from _ask(policy, key, part, now)


def counted(policy: Policy, key: Key, part: EnginePart, requests: int | None) -> Iterator[Effect]:
    """Tell an engine to end that was found idle often enough, or does not say how many it has."""
    if part.drain_until is None:
        return
    part.idle = 0 if requests else part.idle + 1
    if requests is None or part.idle >= policy.idle_counts:
        yield from _tell(key, part)


def is_stuck(policy: Policy, part: EnginePart, now: float) -> bool:
    """Return whether a process that was killed is still there after so long."""
    return part.killed_at is not None and now - part.killed_at >= policy.unkillable_seconds


def _kill(key: Key, part: EnginePart, pid: int, now: float) -> Iterator[Effect]:
    part.killed_at = now if part.killed_at is None else part.killed_at
    part.kill_at = now + (_KILL_STUCK_SECONDS if part.stuck else _KILL_AGAIN_SECONDS)
    yield s.StopEngine(start_of(key, part), pid, "KILL")


def _ask(policy: Policy, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
    part.next_probe_at = now + policy.probe_seconds
    if part.assignment is not None:
        yield s.CountRequests(start_of(key, part), part.assignment, part.port)


def _tell(key: Key, part: EnginePart) -> Iterator[Effect]:
    part.drain_until = None
    if part.pid is not None:
        yield s.StopEngine(start_of(key, part), part.pid, "TERM")


def _tells_requests(part: EnginePart) -> bool:
    chosen = ENGINES.get(part.assignment.entry.engine) if part.assignment is not None else None
    return chosen is not None and chosen.request_counts is not None
