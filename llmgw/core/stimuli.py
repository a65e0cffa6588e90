"""What goes into an agent's brain, and what comes out: inputs and effects, as plain data.

Inputs are facts that the shell observed (past tense). Effects are orders to the shell
(imperative); they never go on the wire. `Key` names a part of a replica on this node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.events import Event
from llmgw.hardware.types import CardError, Inventory, Readings


class Key(NamedTuple):
    """One part of one replica."""

    replica: str
    part: int


class Start(msgspec.Struct, frozen=True):
    """One start of one part: what an engine process is known by, also after the agent died."""

    key: Key
    generation: int
    attempt: int


# --- inputs ------------------------------------------------------------------------------------


class EngineFound(msgspec.Struct, frozen=True):
    """A process under this agent's marker that was running when the agent came up."""

    start: Start
    pid: int
    port: int
    digest: int


class AgentStarted(msgspec.Struct, frozen=True):
    """The agent came up and looked around.

    `rebooted`: the machine started again since. `inventory` is absent when discovery failed, and
    `sample` is what was measured with it. `ended` are remembered engines that are not there any
    more, with their last words; how they ended nobody knows.
    """

    found: tuple[EngineFound, ...]
    rebooted: bool
    inventory: Inventory | None
    sample: SampleTaken | None = None
    ended: tuple[EngineExited, ...] = ()


class LogReplaced(msgspec.Struct, frozen=True):
    """The log was wiped or rewound: it does not hold what this agent wrote to it."""


class CommandReceived(msgspec.Struct, frozen=True):
    """A command for this node, at its place in the log.

    `superseded_by` is the revision of a newer command that is known to be in the log already.
    """

    sequence: int
    command: SetAssignments
    superseded_by: int | None = None


class CommandUnreadable(msgspec.Struct, frozen=True):
    """A command for this node cannot be read, all but what its envelope says, for this reason."""

    sequence: int
    revision: int
    term: int
    reason: str


class InventoryTaken(msgspec.Struct, frozen=True):
    """The node's hardware was discovered, readings left out."""

    inventory: Inventory


Troubles = tuple[tuple[str, str], ...]
"""What ails the node as a whole, as the name and detail of a condition: `tool-hung`."""


class HardwareUnreadable(msgspec.Struct, frozen=True):
    """Discovery failed, for this reason. Nothing is known of the devices, but of the node."""

    reason: str
    troubles: Troubles = ()
    errors: tuple[CardError, ...] = ()


class NvmlReleased(msgspec.Struct, frozen=True):
    """A person had NVML given up, and it is taken up again: cards may have been reset meanwhile."""


class SampleTaken(msgspec.Struct, frozen=True):
    """The node's devices were measured, `age_seconds` ago.

    `own_pids` are those of their processes that belong to engines of this agent, each with the
    start that it is of. Without `same_ids` the driver counts processes otherwise than the agent
    does (in a container), and a number says nothing. `errors` are what the driver told of since the
    sample before.
    """

    readings: Readings
    own_pids: Mapping[int, Start]
    troubles: Troubles = ()
    age_seconds: float = 0.0
    same_ids: bool = True
    errors: tuple[CardError, ...] = ()


class EngineSpawned(msgspec.Struct, frozen=True):
    """The process exists."""

    start: Start
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True):
    """The process could not be started. `port_taken`: try another port at once."""

    start: Start
    reason: str
    port_taken: bool = False


class EngineAnswered(msgspec.Struct, frozen=True):
    """A health probe came back: an HTTP status, or `None` for refused or timed out.

    `stranger` says who listens on the engine's port, where that is somebody else. `hangs`: somebody
    waits for the engine, and it took no step since it was looked at before; `None` where it was not
    looked at, or does not tell.
    """

    start: Start
    status: int | None
    stranger: str | None = None
    hangs: bool | None = None


class TokenAnswered(msgspec.Struct, frozen=True):
    """An engine was asked for one token: an HTTP status, or `None` where no answer came."""

    start: Start
    status: int | None


class EngineCounted(msgspec.Struct, frozen=True):
    """How many requests an engine that shall stop still has; `None` where it does not tell."""

    start: Start
    requests: int | None


class EngineExited(msgspec.Struct, frozen=True):
    """The engine is gone, and its children with it, but for those `left` that cannot be killed.

    Codes are absent for adopted engines.
    """

    start: Start
    exit_code: int | None
    signal: int | None
    output: str
    left: tuple[int, ...] = ()


class NameTaken(msgspec.Struct, frozen=True):
    """Another agent goes by this node's name: `holder`, or nobody any more."""

    holder: str | None


class ClockTicked(msgspec.Struct, frozen=True):
    """Time went on."""


class ShutdownRequested(msgspec.Struct, frozen=True):
    """The agent shall leave; with `stop_engines` its engines go first."""

    stop_engines: bool


Input = (
    AgentStarted
    | LogReplaced
    | CommandReceived
    | CommandUnreadable
    | InventoryTaken
    | HardwareUnreadable
    | NvmlReleased
    | SampleTaken
    | EngineSpawned
    | SpawnFailed
    | EngineAnswered
    | TokenAnswered
    | EngineCounted
    | EngineExited
    | NameTaken
    | ClockTicked
    | ShutdownRequested
)


# --- effects -----------------------------------------------------------------------------------


class SpawnEngine(msgspec.Struct, frozen=True):
    """Start the engine of an assignment on a port."""

    start: Start
    assignment: Assignment
    port: int


class ProbeEngine(msgspec.Struct, frozen=True):
    """Ask the engine's health endpoint, and report the answer; `look` at its work as well."""

    start: Start
    assignment: Assignment
    port: int
    look: bool = False


class AskForToken(msgspec.Struct, frozen=True):
    """Ask an engine for one token, wait at most so long for it, and report the answer."""

    start: Start
    assignment: Assignment
    port: int
    seconds: float


class CountRequests(msgspec.Struct, frozen=True):
    """Ask an engine that shall stop how many requests it still has, and report the answer."""

    start: Start
    assignment: Assignment
    port: int


class StopEngine(msgspec.Struct, frozen=True):
    """Signal the whole process group of the engine."""

    start: Start
    pid: int
    signal: Literal["TERM", "KILL"]


class MeasureDevices(msgspec.Struct, frozen=True):
    """Take a sample at once, and report it."""


class Publish(msgspec.Struct, frozen=True):
    """Write a fact to the log."""

    event: Event


class Leave(msgspec.Struct, frozen=True):
    """Nothing is left to do: the agent may end."""


Effect = (
    SpawnEngine
    | ProbeEngine
    | AskForToken
    | CountRequests
    | StopEngine
    | MeasureDevices
    | Publish
    | Leave
)
