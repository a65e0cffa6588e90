"""Placement: which devices a replica gets, or why none.

A pure function of the state. It refuses before it would overcommit, keeps a group of cards inside
one NVLink domain where there is one, says so where there is none, and counts for each refusal how
many devices failed which test. `refuses` asks `why_not` again when a decision is folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from llmgw.catalog.entries import Entry
from llmgw.core.cluster import Cluster, Node, is_shared, pool_of
from llmgw.core.events import PartPlacement
from llmgw.hardware.types import Device

GIB = 1 << 30
MOST_REPLICAS_ON_A_NODE = 64


class Placed(msgspec.Struct, frozen=True):
    """Devices for every part of a replica, and why these."""

    parts: tuple[PartPlacement, ...]
    reasons: tuple[str, ...]
    refusals: Mapping[str, int]


class Refused(msgspec.Struct, frozen=True):
    """Nothing fits. `refusals` maps a failed test to the number of devices that failed it."""

    refusals: Mapping[str, int]


class Answer(msgspec.Struct, frozen=True):
    """What one node offers an entry: a group with its rank (the lowest wins), or none."""

    rank: tuple[object, ...] | None
    group: list[Device]
    refusals: Mapping[str, int]


class Held:
    """Memory in use: what the state says, and what earlier placements of one decision took.

    It also remembers what nodes answered, until something is taken or released there: of many
    replicas of one entry only the first asks every device.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], dict[str, int]] = {}
        self._released: set[str] = set()
        self._answers: dict[tuple[str, str], dict[str, Answer]] = {}

    def answers(self, entry: Entry, pattern: str) -> dict[str, Answer]:
        """Return what nodes answered to an entry's class so far, by node; the caller adds to it."""
        return self._answers.setdefault((entry.name, pattern), {})

    def holders(self, node: Node, pool: str) -> Mapping[str, int]:
        """Return which replica holds how many bytes of the pool."""
        held: Mapping[str, int] = node.held.get(pool, {})
        if self._released:
            held = {name: size for name, size in held.items() if name not in self._released}
        taken = self._taken.get((node.name, pool))
        return {**held, **taken} if taken else held

    def release(self, replica: str) -> None:
        """Look at the cluster as if the replica were gone."""
        self._released.add(replica)
        self._answers.clear()

    def take(self, state: Cluster, replica: str, parts: Iterable[PartPlacement]) -> None:
        """Count a placement that is not in the state yet."""
        for part in parts:
            node = state.nodes[part.node]
            for number in part.devices:
                pool = pool_of(node.devices[number])
                taken = self._taken.setdefault((part.node, pool), {})
                taken[replica] = taken.get(replica, 0) + part.memory_bytes
            for answers in self._answers.values():
                answers.pop(part.node, None)

    def replicas_on(self, node: Node) -> int:
        """Return how many replicas the node has, for spreading them."""
        names = {name for holders in node.held.values() for name in holders}
        for (where, _), holders in self._taken.items():
            if where == node.name:
                names |= holders.keys()
        return len(names)


def why_not(node: Node, device: Device, entry: Entry, held: Held) -> str | None:
    """Return which test keeps the replica off the device, or `None` when it fits there."""
    if device.id in node.excluded:
        return node.excluded[device.id]
    for condition in node.conditions:
        if condition.device == device.id:
            return condition.name
    if node.strays and any(device.id in devices for devices in node.strays.values()):
        return "occupied by an engine that is being stopped"
    if device.memory_total_bytes is None:
        return "memory unknown"
    holders = held.holders(node, pool_of(device))
    if holders and not is_shared(device):
        return "in use"
    short = entry.memory_bytes + sum(holders.values()) - device.memory_total_bytes
    if short > 0:
        return f"too small by {max(short / GIB, 0.1):.1f} GiB"
    return None


def node_refuses(node: Node) -> str | None:
    """Return why nothing can be placed on the node at all, or `None`."""
    if node.lost:
        return "node lost"
    if not node.started:
        return "node stopped"
    if node.rivals:
        return "node name used by two agents"
    if node.inventory is None:
        return (
            "node without inventory" if node.unreadable is None else "node of unreadable hardware"
        )
    return None


def full(node: Node, held: Held) -> str | None:
    """Return why no further replica can be placed on the node, or `None`.

    A command lists all that runs on a node in one message, which must not grow without end.
    """
    if held.replicas_on(node) >= MOST_REPLICAS_ON_A_NODE:
        return f"on a node with {MOST_REPLICAS_ON_A_NODE} replicas"
    return None


def place(state: Cluster, entry: Entry, held: Held) -> Placed | Refused:
    """Return devices for one more replica of `entry`, or why there are none.

    Classes are tried in the entry's order of preference; among nodes the one with the fewest
    replicas wins, then the fullest devices that still fit, then the lower name and number.
    """
    if entry.nodes > 1:
        return Refused({"replicas over several nodes are not placed by this version": 1})
    refusals: Counter[str] = Counter()
    for pattern in entry.classes:
        found = _best_group(state, entry, pattern, held, refusals)
        if found is not None:
            return _placed(entry, pattern, *found, refusals)
    if not refusals:
        wanted = ", ".join(entry.classes)
        refusals[f"no device of class {wanted}"] = 1
    return Refused(dict(refusals))


def _best_group(
    state: Cluster, entry: Entry, pattern: str, held: Held, refusals: Counter[str]
) -> tuple[Node, list[Device]] | None:
    answers = held.answers(entry, pattern)
    best: tuple[tuple[object, ...], Node, list[Device]] | None = None
    for name, node in state.nodes.items():
        answer = answers.get(name)
        if answer is None:
            answer = answers[name] = _ask(node, entry, pattern, held)
        for reason, count in answer.refusals.items():
            refusals[reason] += count
        if answer.rank is not None and (best is None or answer.rank < best[0]):
            best = (answer.rank, node, answer.group)
    return None if best is None else (best[1], best[2])


def _ask(node: Node, entry: Entry, pattern: str, held: Held) -> Answer:
    """Return what a node offers: a group of the devices that pass every test, if there is one."""
    refusals: Counter[str] = Counter()
    fitting = _fitting(node, entry, pattern, held, refusals)
    group = _group(node, fitting, entry.gpus) if fitting else None
    if group is None:
        if fitting:
            refusals[f"fewer than {entry.gpus} free together"] += len(fitting)
        return Answer(None, [], refusals)
    room = sum((d.memory_total_bytes or 0) for d in group)
    linked = _domain(node, group) is not None
    misplaced = linked if entry.gpus == 1 else not linked  # domains are for groups
    return Answer((misplaced, held.replicas_on(node), room, node.name), group, refusals)


def _fitting(
    node: Node, entry: Entry, pattern: str, held: Held, refusals: Counter[str]
) -> list[Device]:
    devices = [d for d in node.devices.values() if fnmatchcase(d.device_class, pattern)]
    out = node_refuses(node) or (full(node, held) if devices else None)
    if out is not None:
        if devices or node.inventory is None:
            refusals[out] += len(devices) or 1
        return []
    fitting = []
    for device in devices:
        reason = why_not(node, device, entry, held)
        if reason is None and entry.gpus > 1 and device.profile is not None:
            reason = "a MIG instance cannot be part of a group"
        if reason is None:
            fitting.append(device)
        else:
            refusals[reason] += 1
    return fitting


def _domain(node: Node, group: list[Device]) -> str | None:
    """Return the NVLink domain that all devices of the group are in, if there is one."""
    if node.inventory is None:
        return None
    indexes = {d.card for d in group}
    found = {c.nvlink_domain for c in node.inventory.cards if c.index in indexes}
    return found.pop() if len(found) == 1 and None not in indexes else None


def _group(node: Node, fitting: list[Device], size: int) -> list[Device] | None:
    """Choose `size` devices of one class: of the smallest NVLink domain that has so many, else any.

    A single device is rather taken from outside of domains, to keep these whole.
    """

    def order(device: Device) -> tuple[bool, int, int]:
        in_domain = _domain(node, [device]) is not None
        return (size == 1 and in_domain, device.memory_total_bytes or 0, device.id)

    fitting = sorted(fitting, key=order)
    if size == 1:
        return fitting[:1]
    domains: dict[tuple[str, str], list[Device]] = {}
    classes: dict[str, list[Device]] = {}
    for device in fitting:
        classes.setdefault(device.device_class, []).append(device)
        domain = _domain(node, [device])
        if domain is not None:
            domains.setdefault((device.device_class, domain), []).append(device)
    linked = [members for members in domains.values() if len(members) >= size]
    if linked:
        return min(linked, key=len)[:size]
    return next((members[:size] for members in classes.values() if len(members) >= size), None)


def _placed(
    entry: Entry, pattern: str, node: Node, group: list[Device], refusals: Counter[str]
) -> Placed:
    labels = ", ".join(d.label for d in group)
    reasons = [f"{node.name}: {labels} of class {group[0].device_class} (asked: {pattern})"]
    if len(group) > 1:
        domain = _domain(node, group)
        reasons.append(
            f"one NVLink domain: {domain}"
            if domain is not None
            else "no NVLink domain has so many free cards: the group speaks over PCIe"
        )
    part = PartPlacement(
        node=node.name, devices=tuple(d.id for d in group), memory_bytes=entry.memory_bytes
    )
    return Placed((part,), tuple(reasons), dict(refusals))
