"""What an agent's brain remembers, and the numbers that an operator may set for it.

Plain data, encoded to JSON by the shell and read back by the next agent: what is added here needs
a default. Used by `core.node`, which is the only one that changes it.
"""

from __future__ import annotations

from typing import Literal
from zlib import crc32

import msgspec

from llmgw.core.commands import Assignment
from llmgw.core.limits import Limits
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
    """The pause between two questions for the health of an engine that is ready."""
    liveness_failures: int = 6
    """So many without a good answer in a row restart it, unless its entry says for how long."""
    hung_seconds: float = 300.0
    """How long it may have requests and get on with none of them, unless its entry says how long.

    As long as vLLM waits for its own workers, and SGLang for its scheduler, before they give up."""
    backoff_first_seconds: float = 1.0
    backoff_cap_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0
    port_quarantine_seconds: float = 30.0
    port_tries: int = 3
    weigh_seconds: float = 5.0
    """How long an engine that answers may wait for the sample that shows what it takes."""
    freed_seconds: float = 15.0
    """How long devices may hold memory of an engine that ended, before that is a fault."""
    unkillable_seconds: float = 30.0
    """How long after its first SIGKILL a process may still be there, before that is a fault."""
    failing_after: int = 5
    """So many failures in a row on a device: the replica is better tried on another one."""
    failing_seconds: float = 3600.0
    """How long that is said of the device."""
    idle_counts: int = 2
    """So often in a row an engine that shall stop must have no request."""
    limits: Limits = Limits()


class EnginePart(msgspec.Struct):
    """One part that this agent runs, or is about to.

    `assignment` is absent for an engine that was found running and that no command has named
    yet. `digest` tells whether two assignments of the same name and generation are the same
    (after a log was replaced they need not be).

    Moments, on the brain's clock: `answered_at`, that its health was good and a sample is waited
    for that shows what it takes; `missing_since`, that the first of `misses` questions in a row
    got no good answer; `drain_until`, that it is stopped whatever requests it has; `gone_at`, that
    its process ended, and its devices were not seen to be free of it yet. `empty_bytes` is what
    was in use of each device before the start, where nobody was on it; `pids` are its processes
    that were seen on devices; `sightings` how often in a row one was where it should not be.
    `killed_at` is the moment of the first SIGKILL; a part that is `stuck` was not ended by it, and
    has its `pid` in whichever phase it is. `look_at`, `hung_since`, `hung_looks` and `last_call`
    are of `core.liveness`. `starved`: its last start ran out of the device's memory. `doomed` says
    for which trouble of its card it must end, whatever it answers.
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
    meeting_port: int = 0
    missing_since: float | None = None
    answered_at: float | None = None
    empty_bytes: dict[str, int] = {}
    pids: tuple[int, ...] = ()
    sightings: int = 0
    drain_until: float | None = None
    idle: int = 0
    gone_at: float | None = None
    killed_at: float | None = None
    look_at: float = 0.0
    hung_since: float | None = None
    hung_looks: int = 0
    last_call: Literal["made", "refused"] | None = None
    stuck: bool = False
    starved: bool = False
    doomed: str = ""


class Failing(msgspec.Struct):
    """Of a device: what failed there so often in a row, in words, and when it last did."""

    detail: str
    since: float


class Leak(msgspec.Struct):
    """Of a device: what a part that has ended there did not give back.

    `empty_bytes` was in use before it started, if that is known; `pids` were its processes.
    """

    part: str
    empty_bytes: int | None
    pids: tuple[int, ...] = ()


class Memory(msgspec.Struct):
    """What must survive the agent: what it was told and what it started.

    `wanted` is `None` until a command was received: then nothing is stopped yet. `untold`: the
    log was replaced, and no command of the new one has been received. `conditioned`: the log says,
    or may say, that some condition holds here. `unread_sequence` is the last command that was
    refused because it could not be read: not dealt with for good, a newer agent may be able to.
    `failing` and `leaks` are of devices, by their UUID; `errors` and `lost` what the driver told of
    cards, by theirs (`core.condemning`), and `unreadable` why the hardware cannot be read.
    """

    term: int = 0
    revision: int = 0
    command_sequence: int = 0
    unread_sequence: int = 0
    open_term: int | None = None
    untold: bool = False
    conditioned: bool = True
    wanted: list[Assignment] | None = None
    parts: dict[str, EnginePart] = {}
    failing: dict[str, Failing] = {}
    leaks: dict[str, Leak] = {}
    errors: dict[str, tuple[int, ...]] = {}
    lost: tuple[str, ...] = ()
    unreadable: str | None = None
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
