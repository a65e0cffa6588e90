"""What an agent says of its parts: the facts of one start, as effects that publish them.

Pure; `core.node` decides what happened and calls these to say it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import SetAssignments
from llmgw.core.memory import EnginePart, Memory, is_same, name_of
from llmgw.core.stimuli import Key, Publish, Start
from llmgw.engines.base import KnownFailure


class _PartId(TypedDict):
    replica: str
    part: int
    generation: int
    attempt: int


def start_of(key: Key, part: EnginePart) -> Start:
    """Return the start that the part is in."""
    return Start(key, part.generation, part.attempt)


def _id(key: Key, part: EnginePart) -> _PartId:
    return _PartId(
        replica=key.replica, part=key.part, generation=part.generation, attempt=part.attempt
    )


def starting(key: Key, part: EnginePart, devices: tuple[int, ...]) -> Publish:
    """Say that the engine is about to be started."""
    meeting_port = part.meeting_port or None
    return Publish(
        e.ReplicaStarting(
            **_id(key, part), port=part.port, devices=devices, meeting_port=meeting_port
        )
    )


def why_gone(part: EnginePart, rebooted: bool) -> str:
    """Return why a remembered engine does not run any more, as far as the next agent knows."""
    if rebooted:
        return "the machine restarted"
    if part.pid is None:
        return "the agent ended while it started the engine, which does not run"
    return "the engine was not running when the agent came up"


def adopted(key: Key, part: EnginePart) -> Publish:
    """Say that the engine was found running."""
    return Publish(e.ReplicaAdopted(**_id(key, part), pid=part.pid or 0, port=part.port))


def ready(
    key: Key, part: EnginePart, address: str, seconds: float, memory_bytes: tuple[int, ...] = ()
) -> Publish:
    """Say that the engine serves, where, after how long, and what it takes of its devices."""
    return Publish(
        e.ReplicaBecameReady(
            **_id(key, part),
            address=address,
            port=part.port,
            pid=part.pid or 0,
            seconds=round(seconds, 3),
            memory_bytes=memory_bytes,
        )
    )


def told_again(memory: Memory, command: SetAssignments, address: str) -> Iterator[Publish]:
    """Tell a log that was replaced what of its command runs already."""
    for assignment in command.assignments:
        key = Key(assignment.replica, assignment.part)
        part = memory.parts.get(name_of(key))
        if part is not None and part.pid is not None and is_same(part, assignment):
            yield adopted(key, part)
            if part.phase == "ready" and part.ready_at is not None:
                yield ready(key, part, address, part.ready_at - part.started_at)


def failed(
    key: Key,
    part: EnginePart,
    reason: str,
    retry_seconds: float,
    ended: s.EngineExited | None,
    known: KnownFailure | None,
) -> Publish:
    """Say that a start came to nothing, why, and what it printed last."""
    return Publish(
        e.ReplicaFailed(
            **_id(key, part),
            reason=reason,
            exit_code=ended.exit_code if ended else None,
            signal=ended.signal if ended else None,
            meaning=known.meaning if known else None,
            advice=known.advice if known else None,
            output=ended.output if ended else "",
            retry_seconds=round(retry_seconds, 3),
        )
    )


def stopped(key: Key, part: EnginePart, revision: int) -> Publish:
    """Say that the engine is gone, as was wanted by the list of this revision."""
    return Publish(e.ReplicaStopped(**_id(key, part), reason=part.stop_reason, revision=revision))
