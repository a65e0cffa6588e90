"""The state of the cluster: plain data that the fold owns and everybody else only reads.

`llmgw.core.fold` changes it, `placement` and `decide` read it, `views` show it. It is what a
snapshot stores, so everything in it encodes to JSON, and everything in it follows from the log.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from llmgw.catalog.entries import Catalog, Entry
from llmgw.core.events import Condition
from llmgw.core.values import Phase
from llmgw.engines.base import Grant
from llmgw.hardware.types import Device, Inventory

CODE_SCHEMA = 2
"""Raised whenever the shape or meaning of the state changes: older snapshots are discarded."""

KEPT_SESSIONS = 8
KEPT_OPERATOR_EVENTS = 1024
KEPT_INCIDENTS = 100
KEPT_LOSSES = 8
FLAPPING_SECONDS = 1800
"""So long after it a loss of a node is remembered: see `llmgw.core.watch`."""


class Node(msgspec.Struct, gc=False):
    """One node as the log tells it.

    `held` says which replica holds how many bytes of which memory pool (see `pool_of`).
    `revision` counts changes of what should run here; `commanded` is the newest revision that
    a command carried and `ended` the newest that came to an outcome. `retiring` are replicas
    that are over once a revision is done; `strays` are parts that run here although nobody
    wants them, with the devices that they occupy. `session` is the newest life of its agent;
    `rivals`: an older one still speaks, so two agents use one name. `cordoned` and `draining` are
    what the operator asked for; `labels` what the agent's settings say of the node. `losses` are
    the times at which it was lost of late.
    """

    name: str
    boot_id: str = ""
    agent_version: str = ""
    address: str = ""
    simulated: bool = False
    started: bool = False
    lost: bool = False
    inventory: Inventory | None = None
    unreadable: str | None = None
    devices: dict[int, Device] = {}
    excluded: dict[int, str] = {}
    conditions: tuple[Condition, ...] = ()
    held: dict[str, dict[str, int]] = {}
    revision: int = 0
    commanded: int = 0
    commanded_term: int = 0
    ended: int = 0
    refused: str | None = None
    retiring: dict[str, int] = {}
    strays: dict[str, tuple[int, ...]] = {}
    session: str = ""
    sessions: dict[str, int] = {}
    rivals: bool = False
    heard_ns: int = 0
    labels: dict[str, str] = {}
    cordoned: bool = False
    draining: bool = False
    losses: tuple[int, ...] = ()


class Part(msgspec.Struct, gc=False):
    """One part of a replica: where it is and what its agent last said of it.

    `grants` are the devices themselves: a number may mean another device after a reboot. `pools`
    is the memory that they draw on. `gone` says which of them its node does not have any more.
    """

    node: str
    devices: tuple[int, ...]
    memory_bytes: int
    grants: tuple[Grant, ...] = ()
    pools: tuple[str, ...] = ()
    phase: Phase = "assigned"
    attempt: int = 0
    address: str | None = None
    port: int | None = None
    pid: int | None = None
    since_ns: int = 0
    failures: int = 0
    reason: str | None = None
    meaning: str | None = None
    advice: str | None = None
    output: str | None = None
    meeting_port: int | None = None
    gone: str | None = None


class Replica(msgspec.Struct, gc=False):
    """One running, or wanted, copy of a model. `entry` is what it was decided with (see `unit`).

    `regroups` counts how often a replica of several parts was started again as a whole.
    """

    name: str
    model: str
    generation: int
    entry: Entry
    parts: list[Part]
    reasons: tuple[str, ...]
    decided_at: int
    retired: str | None = None
    score: dict[str, int] = {}
    regroups: int = 0


class Model(msgspec.Struct, gc=False):
    """One entry of the catalog in force, and why the replicas it lacks are nowhere.

    `one` is what a replica of it is decided with (see `unit`). `measured_bytes` is the most that a
    replica of `one` was seen to take of a device.
    """

    entry: Entry
    one: Entry
    missing: int = 0
    refusals: dict[str, int] = {}
    measured_bytes: int | None = None


class Incident(msgspec.Struct, frozen=True, gc=False):
    """A record that changed nothing, and why: unreadable, void, unknown."""

    sequence: int
    kind: str
    detail: str


class Cluster(msgspec.Struct, dict=True):
    """Everything that the log says, folded up to `sequence`.

    `dict`: the placement index hangs on it, which is no part of the state (see `core.index`).

    `pending` is the operator's catalog that no controller has answered yet. `needs_upgrade` names
    a type whose version is newer than this code: deciding has stopped.
    """

    sequence: int = 0
    time_ns: int = 0
    term: int = 0
    leader: str = ""
    catalog: Catalog = Catalog()
    catalog_sequence: int = 0
    pending: Catalog | None = None
    pending_sequence: int = 0
    rejected_catalog: tuple[str, ...] = ()
    models: dict[str, Model] = {}
    nodes: dict[str, Node] = {}
    replicas: dict[str, Replica] = {}
    next_replica: int = 1
    operator_events: dict[str, int] = {}
    last_controller_sequence: int = 0
    duplicates: int = 0
    unreadable: int = 0
    unknown: int = 0
    void: int = 0
    unexpected: int = 0
    gaps: int = 0
    needs_upgrade: str | None = None
    incidents: list[Incident] = []

    placement_index: ClassVar[Any] = None
    """Where there is none yet. Not an entry of `vars`, which takes three times as long to ask."""


def unit(entry: Entry) -> Entry:
    """Return what a running replica of the entry depends on.

    How many are wanted, how they are spread and what they may displace is not part of it.
    """
    return msgspec.structs.replace(entry, replicas=1, priority=0, policy="spread")


def pool_of(device: Device) -> str:
    """Return the name of the memory that the device draws on: shared by some MIG devices."""
    return device.memory_pool or device.uuid


def is_shared(device: Device) -> bool:
    """Return whether several replicas may run on the device at once. Only the processor."""
    return device.device_class == "cpu"
