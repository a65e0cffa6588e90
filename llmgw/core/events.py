"""Everything that can be written to the log as a fact, in one file.

An event is named subject and past tense here, and by its short type on the wire
(`NodeLost`, `node.lost`). Constraints are checked on decode, so whoever holds an event that came
from the log holds a valid one and need not check again. `EVENTS` maps wire types to classes;
`llmgw.wire` is the only reader of it that turns bytes into these.

Adding a field needs a default. Changing the meaning of one needs a new `version` and an upcast
in `llmgw.wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from llmgw.catalog.entries import Catalog
from llmgw.core.values import Text, Token, Whole
from llmgw.hardware.types import Exact, Inventory


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Base of all events. `wire` is the type on the wire, `origin` who may write it."""

    wire: ClassVar[str] = ""
    origin: ClassVar[Literal["node", "controller", "operator"]] = "node"
    version: ClassVar[int] = 1


# --- facts that an agent observed ---------------------------------------------------------


class NodeStarted(Event, frozen=True, kw_only=True):
    """An agent came up. `boot_id` changes when the machine itself restarted.

    `labels` are what the operator says of the node: placement may ask for them.
    """

    wire = "node.started"

    boot_id: Text
    agent_version: Text
    address: Text = "127.0.0.1"
    simulated: bool = False
    labels: dict[str, Text] = {}


class NodeStopped(Event, frozen=True, kw_only=True):
    """An agent is leaving in good order. `engines` says what it did with what it ran."""

    wire = "node.stopped"

    engines: Literal["stopped", "left running"]


class NodeInventoryTaken(Event, frozen=True, kw_only=True):
    """What the node has, without readings: those are telemetry."""

    wire = "node.inventory"

    inventory: Inventory


class NodeHardwareUnreadable(Event, frozen=True, kw_only=True):
    """No backend can tell what the node has.

    What was known before still holds; an inventory that comes later says that it can be read.
    """

    wire = "node.hardware_unreadable"

    reason: Text


class Condition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A lasting fact that placement must know, with its hysteresis behind it.

    About a device, or about the whole node where `device` is absent. The names are those of
    `llmgw.core.conditions`; a reader may meet names that it does not know.
    """

    device: Whole | None = None
    name: Token
    detail: Text


class NodeConditionsChanged(Event, frozen=True, kw_only=True):
    """All conditions of the node that hold from now on; what is not listed is over."""

    wire = "node.conditions"

    conditions: tuple[Condition, ...]


class PartEvent(Event, frozen=True, kw_only=True):
    """Base of what happens to one part of a replica. `attempt` counts starts of a generation."""

    replica: Token
    part: Whole = 0
    generation: Whole
    attempt: Whole = 1


class ReplicaStarting(PartEvent, frozen=True, kw_only=True):
    """The agent is about to start the engine: written before the process exists.

    `meeting_port` is where the parts of a replica over several nodes meet; part 0 alone gives it.
    """

    wire = "replica.starting"

    port: Whole
    devices: tuple[Whole, ...]
    meeting_port: Whole | None = None


class ReplicaBecameReady(PartEvent, frozen=True, kw_only=True):
    """The engine's health endpoint answered. `seconds` is the time since the start.

    `memory_bytes` is what each of the part's devices truly lost to it, in the order of its
    devices; empty where the hardware did not tell.
    """

    wire = "replica.ready"

    address: Text
    port: Whole
    pid: Whole
    seconds: float
    memory_bytes: tuple[Whole, ...] = ()


class ReplicaAdopted(PartEvent, frozen=True, kw_only=True):
    """The agent came back and found the engine still running."""

    wire = "replica.adopted"

    pid: Whole
    port: Whole


class ReplicaFailed(PartEvent, frozen=True, kw_only=True):
    """The engine ended or never became ready.

    `reason` is one line. `meaning` and `advice` are there when the last output is a known
    failure. `output` is the last lines, secrets masked. `retry_seconds` is the pause before
    the next attempt.
    """

    wire = "replica.failed"

    reason: Text
    exit_code: Exact | None = None
    signal: Whole | None = None
    meaning: Text | None = None
    advice: Text | None = None
    output: Text = ""
    retry_seconds: float


class ReplicaStopped(PartEvent, frozen=True, kw_only=True):
    """The engine and its whole process group are gone, as was wanted.

    `revision` is that of the list that the agent followed: one that leaves may start the part
    again when it comes back, unless its list had ended it.
    """

    wire = "replica.stopped"

    reason: Text
    revision: Whole = 0


class StrayEngineStopped(Event, frozen=True, kw_only=True):
    """An engine under this agent's marker that nobody wants was found and stopped."""

    wire = "node.stray_stopped"

    pid: Whole
    marker: Text


class CommandCompleted(Event, frozen=True, kw_only=True):
    """Everything the command lists has been started and everything else stopped."""

    wire = "command.done"

    revision: Whole
    term: Whole


class CommandRefused(Event, frozen=True, kw_only=True):
    """The agent will not act on the command."""

    wire = "command.refused"

    revision: Whole
    term: Whole
    reason: Text


class CommandSuperseded(Event, frozen=True, kw_only=True):
    """A newer command arrived before this one was done."""

    wire = "command.superseded"

    revision: Whole
    term: Whole
    by: Whole


# --- what a person asked for ---------------------------------------------------------------


class CatalogApplied(Event, frozen=True, kw_only=True):
    """The operator wants exactly this catalog served."""

    wire = "catalog.applied"
    origin = "operator"

    catalog: Catalog
    file: Text | None = None


class ModelScaled(Event, frozen=True, kw_only=True):
    """The operator wants so many replicas of a model, until the next catalog says otherwise."""

    wire = "model.scaled"
    origin = "operator"

    model: Text
    replicas: Whole


class ModelDeleted(Event, frozen=True, kw_only=True):
    """The operator wants the model served no more, until the next catalog says otherwise."""

    wire = "model.deleted"
    origin = "operator"

    model: Text


class NodeCordoned(Event, frozen=True, kw_only=True):
    """Nothing more shall be placed on the node; what runs there goes on."""

    wire = "node.cordoned"
    origin = "operator"

    node: Token


class NodeUncordoned(Event, frozen=True, kw_only=True):
    """The node may be used again: neither cordoned nor drained."""

    wire = "node.uncordoned"
    origin = "operator"

    node: Token


class NodeDrained(Event, frozen=True, kw_only=True):
    """The node shall be emptied: its replicas are placed elsewhere, then stopped there."""

    wire = "node.drained"
    origin = "operator"

    node: Token


class ReplicaRestartAsked(Event, frozen=True, kw_only=True):
    """The operator wants the replica's engines started afresh, where they are."""

    wire = "replica.restart_asked"
    origin = "operator"

    replica: Token


# --- what the controller decided or noted ---------------------------------------------------


class ControllerEvent(Event, frozen=True, kw_only=True):
    """Base of the controller's events. A term lower than the newest in the log voids them."""

    origin = "controller"

    term: Whole


class ControllerElected(ControllerEvent, frozen=True, kw_only=True):
    """A controller took the lead. What its term decides was decided by this version of llmgw."""

    wire = "controller.elected"

    holder: Text
    llmgw_version: Text = ""


class NodeLost(ControllerEvent, frozen=True, kw_only=True):
    """No sign of life from the node for longer than the deadline."""

    wire = "node.lost"

    node: Token
    silent_seconds: float


class NodeReturned(ControllerEvent, frozen=True, kw_only=True):
    """A node that was lost has been heard again."""

    wire = "node.returned"

    node: Token


class Decision(ControllerEvent, frozen=True, kw_only=True):
    """Base of what `decide` returns. `at` is the sequence of the state it was decided on."""

    at: Whole


class CatalogAccepted(Decision, frozen=True, kw_only=True):
    """The catalog of the operator's event at sequence `request` is in force."""

    wire = "catalog.accepted"

    request: Whole


class CatalogRejected(Decision, frozen=True, kw_only=True):
    """The catalog of the operator's event at sequence `request` is not valid."""

    wire = "catalog.rejected"

    request: Whole
    reasons: tuple[Text, ...]


class PartPlacement(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Where one part of a replica goes. `memory_bytes` is taken on each of its devices."""

    node: Token
    devices: tuple[Whole, ...]
    memory_bytes: Whole


class ReplicaAssigned(Decision, frozen=True, kw_only=True):
    """A replica of a model was given devices.

    `reasons` says why there; `refusals` how many other devices failed which test; `score` by what
    numbers these won over the others that fit, each the lower the better: devices better avoided,
    preferred labels missed, replicas of the model on the node, outside of what is liked (a domain
    for a group, no domain for one device), bytes to spare, free devices left over beside them.
    """

    wire = "replica.assigned"

    replica: Token
    model: Text
    generation: Whole
    catalog: Whole
    parts: tuple[PartPlacement, ...]
    reasons: tuple[Text, ...]
    refusals: dict[str, Whole] = {}
    score: dict[str, Exact] = {}


class ModelLeftUnplaced(Decision, frozen=True, kw_only=True):
    """So many replicas of the model fit nowhere; how many devices failed which test."""

    wire = "model.unplaced"

    model: Text
    missing: Whole
    refusals: dict[str, Whole]


class ReplicaRetired(Decision, frozen=True, kw_only=True):
    """The replica is not wanted any more and shall be stopped."""

    wire = "replica.retired"

    replica: Token
    reason: Text


def _all(base: type[Event]) -> list[type[Event]]:
    found = [base] if base.wire else []
    return found + [e for child in base.__subclasses__() for e in _all(child)]


EVENTS: Mapping[str, type[Event]] = {e.wire: e for e in _all(Event)}
"""Wire type to class, for every event that this version knows."""
