"""One line in plain words for everything that can be in the log. Used by the views of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.core.demand import GIB
from llmgw.core.records import Body, NewerVersion, UnknownType, Unreadable
from llmgw.hardware.types import device_label
from llmgw.views.shared import labels


def summary(body: Body) -> str:
    """Return what the record says, on one line."""
    say = _WORDS.get(type(body))
    return " ".join(say(body).split()) if say is not None else ""


def counted(refusals: Mapping[str, int]) -> str:
    """Return refusals in words, the most frequent first: `5 in use, 3 mig-empty`."""
    ordered = sorted(refusals.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered)


def chosen(score: Mapping[str, int]) -> str:
    """Return in words what devices were chosen by, the most important first; "" if by nothing.

    What is zero spoke neither for nor against them, and is left out; what is left over is said.
    """
    said = [say(score[name]) for name, say in _SCORES.items() if name in score]
    said += [f"{value} {name}" for name, value in score.items() if name not in _SCORES]
    return ", ".join(words for words in said if words)


def classes(names: Iterable[str]) -> str:
    """Return classes with their numbers: `4 a100-80g, 1 cpu`."""
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(names).items()))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _devices(numbers: tuple[int, ...]) -> str:
    noun = "device" if len(numbers) == 1 else "devices"
    return f"{noun} {', '.join(labels(numbers))}" if numbers else "no device"


def _node_started(body: e.NodeStarted) -> str:
    kind = "simulated agent" if body.simulated else "agent"
    marks = ", ".join(f"{name}={value}" for name, value in sorted(body.labels.items()))
    labelled = f", labelled {marks}" if marks else ""
    return f"{kind} {body.agent_version} came up at {body.address}{labelled}"


def _inventory(body: e.NodeInventoryTaken) -> str:
    inventory = body.inventory
    has = classes(device.device_class for device in inventory.devices) or "no devices"
    out = f"; {len(inventory.excluded)} excluded" if inventory.excluded else ""
    fallback = f" (fell back from {inventory.fallback_from})" if inventory.fallback_from else ""
    return f"has {has}{out}, read by {inventory.backend}{fallback}"


def _conditions(body: e.NodeConditionsChanged) -> str:
    held = [f"{_whose(c)}{c.name} ({c.detail})" for c in body.conditions]
    return ", ".join(held) or "no condition holds"


def _whose(condition: e.Condition) -> str:
    """Return what comes before a condition's name: nothing for those of the whole node."""
    return "" if condition.device is None else f"{device_label(condition.device)} "


def _part(body: e.PartEvent) -> str:
    return f"{body.replica} part {body.part}" if body.part else body.replica


def _starting(body: e.ReplicaStarting) -> str:
    where = _devices(body.devices)
    return f"{_part(body)} starts on {where}, port {body.port} (attempt {body.attempt})"


def _ready(body: e.ReplicaBecameReady) -> str:
    return (
        f"{_part(body)} answers at {body.address}:{body.port} after {body.seconds:.1f} s "
        f"(pid {body.pid})"
    )


def _failed(body: e.ReplicaFailed) -> str:
    said = f": {body.meaning}" if body.meaning else ""
    again = f"; next attempt in {body.retry_seconds:g} s"
    return f"{_part(body)} failed (attempt {body.attempt}): {body.reason}{said}{again}"


def _stray(body: e.StrayEngineStopped) -> str:
    return f"an engine that nobody wants was stopped (pid {body.pid}, {body.marker})"


def _applied(body: e.CatalogApplied) -> str:
    names = ", ".join(entry.name for entry in body.catalog.models) or "nothing"
    source = f" from {body.file}" if body.file else ""
    return f"catalog{source}: {names}"


def _assigned(body: e.ReplicaAssigned) -> str:
    places = "; ".join(f"{p.node}, {_devices(p.devices)}" for p in body.parts)
    return f"{body.replica} of {body.model} goes to {places}"


def _unplaced(body: e.ModelLeftUnplaced) -> str:
    if not body.missing:
        return f"{body.model}: every replica has a place"
    why = counted(body.refusals) or "no reason recorded"
    return f"{body.model}: {_plural(body.missing, 'replica')} without a place ({why})"


def _command(body: SetAssignments) -> str:
    wanted = ", ".join(a.replica for a in body.assignments) or "nothing"
    return f"revision {body.revision}: run {wanted}"


_SCORES: Mapping[str, Callable[[int], str]] = {
    "avoided": lambda n: "a device that is better avoided" if n else "",
    "labels": lambda n: f"{_plural(n, 'preferred label')} missed" if n else "",
    "same_model": lambda n: f"{n} more of the model there" if n else "",
    "apart": lambda n: "second choice by NVLink" if n else "",
    "spare_bytes": lambda n: f"{n / GIB:.1f} GiB to spare",
    "left_free": lambda n: f"{n} left free beside",
}
"""The parts of a score in words, in the order in which they count."""

_WORDS: Mapping[type[Any], Callable[[Any], str]] = {
    e.NodeStarted: _node_started,
    e.NodeStopped: lambda body: f"agent is leaving; its engines: {body.engines}",
    e.NodeInventoryTaken: _inventory,
    e.NodeHardwareUnreadable: lambda body: f"hardware cannot be read: {body.reason}",
    e.NodeConditionsChanged: _conditions,
    e.ReplicaStarting: _starting,
    e.ReplicaBecameReady: _ready,
    e.ReplicaAdopted: lambda body: f"{_part(body)} found running (pid {body.pid}) and adopted",
    e.ReplicaFailed: _failed,
    e.ReplicaStopped: lambda body: f"{_part(body)} stopped: {body.reason}",
    e.StrayEngineStopped: _stray,
    e.CommandCompleted: lambda body: f"revision {body.revision} is done",
    e.CommandRefused: lambda body: f"revision {body.revision} refused: {body.reason}",
    e.CommandSuperseded: lambda body: f"revision {body.revision} gave way to {body.by}",
    e.CatalogApplied: _applied,
    e.ModelScaled: lambda body: f"{body.model} shall have {_plural(body.replicas, 'replica')}",
    e.ModelDeleted: lambda body: f"{body.model} shall be served no more",
    e.NodeCordoned: lambda body: f"nothing more shall be placed on {body.node}",
    e.NodeUncordoned: lambda body: f"{body.node} may be placed on again",
    e.NodeDrained: lambda body: f"{body.node} shall be emptied",
    e.ReplicaRestartAsked: lambda body: f"{body.replica} shall be started afresh",
    e.ControllerElected: lambda body: f"{body.holder} leads (term {body.term})",
    e.NodeLost: lambda body: f"{body.node} is lost: silent for {body.silent_seconds:.0f} s",
    e.NodeReturned: lambda body: f"{body.node} is back",
    e.CatalogAccepted: lambda body: f"the catalog of {body.request} is in force",
    e.CatalogRejected: lambda body: (
        f"the catalog of {body.request} is not valid: {'; '.join(body.reasons)}"
    ),
    e.ReplicaAssigned: _assigned,
    e.ModelLeftUnplaced: _unplaced,
    e.ReplicaRetired: lambda body: f"{body.replica} is to stop: {body.reason}",
    SetAssignments: _command,
    Unreadable: lambda body: f"unreadable: {body.reason}",
    UnknownType: lambda body: f"this version does not know {body.wire}",
    NewerVersion: lambda body: f"version {body.version} of {body.wire} is newer than this code",
}
