"""What an agent's brain remembers, and the numbers that an operator may set for it.

Plain data, encoded to JSON by the shell and read back by the next agent: what is added here needs
a default. Used by `core.node`, which is the only one that changes it.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from llmgw.core.commands import Assignment
from llmgw.core.stimuli import Key
from llmgw.core.values import Phase
from llmgw.hardware.types import Inventory


class Policy(msgspec.Struct, frozen=True):
    """Numbers that an operator may set for an agent."""

    first_port: int = 18100
    last_port: int = 18999
    address: str = "127.0.0.1"
    probe_seconds: float = 0.25
    liveness_seconds: float = 5.0
    liveness_failures: int = 6
    backoff_first_seconds: float = 1.0
    backoff_cap_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0
    port_quarantine_seconds: float = 30.0
    port_tries: int = 3


class EnginePart(msgspec.Struct):
    """One part that this agent runs, or is about to.

    `assignment` is absent for an engine that was found running and that no command has named
    yet. `digest` tells whether two assignments of the same name and generation are the same
    (after a log was replaced they need not be).
    """

    assignment: Assignment | None
    generation: int
    digest: int = 0
    attempt: int = 1
    phase: Phase = "starting"
    port: int = 0
    pid: int | None = None
    started_at: float = 0.0
    ready_at: float | None = None
    next_probe_at: float = 0.0
    misses: int = 0
    failures: int = 0
    port_failures: int = 0
    retry_at: float = 0.0
    kill_at: float | None = None
    stop_reason: str = ""
    fail_reason: str | None = None


class Memory(msgspec.Struct):
    """What must survive the agent: what it was told and what it started.

    `wanted` is `None` until a command was received: then nothing is stopped yet. `untold`: the
    log was replaced, and no command of the new one has been received. `conditioned`: the log says,
    or may say, that some condition holds here.
    """

    term: int = 0
    revision: int = 0
    command_sequence: int = 0
    open_term: int | None = None
    untold: bool = False
    conditioned: bool = True
    wanted: list[Assignment] | None = None
    parts: dict[str, EnginePart] = {}
    inventory: Inventory | None = None


def digest(assignment: Assignment) -> int:
    """Return a number that differs when what the assignment runs, or where, differs."""
    uuids = tuple(grant.uuid for grant in assignment.grants)
    what = (assignment.entry, uuids, assignment.generation)
    return crc32(msgspec.json.encode(what, order="deterministic"))


def is_same(part: EnginePart, assignment: Assignment) -> bool:
    """Return whether the part runs what the assignment says."""
    return part.generation == assignment.generation and part.digest == digest(assignment)


def name_of(key: Key) -> str:
    """Return a part's name in `Memory.parts`: `r7/0`."""
    return f"{key.replica}/{key.part}"


def key_of(name: str) -> Key:
    """Return the part that a name in `Memory.parts` means."""
    replica, part = name.rsplit("/", 1)
    return Key(replica, int(part))
