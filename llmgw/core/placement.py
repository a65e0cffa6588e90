"""Placement: which devices a replica gets, or why none.

A pure function of the state and its index. It refuses before it would overcommit, keeps a group of
cards inside one NVLink domain where there is one, says so where there is none, keeps large domains
whole, and counts for each refusal how many devices failed which test. `refuses` asks `why_not`
again when a decision is folded.

What wins, from the most important on: the entry's first class that fits; devices without a
condition that is better avoided; the labels that the entry prefers; for `spread` the node with the
fewest replicas of the model; for a group an NVLink domain, for a single device one outside of all
domains; the smallest device that fits; a domain that is in use already; the fewest free devices
left over; the node that joined first, the least worn card, the lowest number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import msgspec

from llmgw.catalog.entries import Entry
from llmgw.core.cluster import Cluster, Node, is_shared, pool_of
from llmgw.core.conditions import AVOIDED
from llmgw.core.demand import taken_bytes, too_small, usable_bytes
from llmgw.core.events import PartPlacement
from llmgw.core.held import Held
from llmgw.core.index import MOST_REPLICAS_ON_A_NODE, OF_NO_KIND, node_refuses
from llmgw.core.search import Choice, Search
from llmgw.hardware.types import Device, device_label

__all__ = [
    "MOST_REPLICAS_ON_A_NODE",
    "Held",
    "Placed",
    "Refused",
    "domain_of",
    "label_refuses",
    "node_refuses",
    "place",
    "why_not",
]


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Devices for every part of a replica, and why these.

    `score` is what the choice was made by, each the lower the better; see `_score`.
    """

    parts: tuple[PartPlacement, ...]
    reasons: tuple[str, ...]
    refusals: Mapping[str, int]
    score: Mapping[str, int]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Nothing fits. `refusals` maps a failed test to the number of devices that failed it."""

    refusals: Mapping[str, int]


# --- asked of one device ------------------------------------------------------------------------


def why_not(
    state: Cluster, node: Node, device: Device, entry: Entry, demand: int, held: Held | None = None
) -> str | None:
    """Return which test keeps the replica off the device, or `None` when it fits there."""
    if device.id in node.excluded:
        return node.excluded[device.id]
    for condition in node.conditions:
        if condition.device == device.id and condition.name not in AVOIDED:
            return condition.name
    if node.strays and any(device.id in devices for devices in node.strays.values()):
        return "occupied by an engine that is being stopped"
    total_bytes = device.memory_total_bytes
    if total_bytes is None:
        return "memory unknown"
    pool = pool_of(device)
    holders = node.held.get(pool) if held is None else held.holders(node, pool)
    free_bytes = usable_bytes(entry, total_bytes)
    if holders:
        if not is_shared(device) and not (
            entry.share
            and entry.gpus == 1
            and all(state.replicas[name].entry.share for name in holders if name in state.replicas)
        ):
            return "in use"
        free_bytes = min(free_bytes, total_bytes - sum(holders.values()))
    return None if demand <= free_bytes else too_small(demand - free_bytes)


def label_refuses(entry: Entry, node: Node) -> str | None:
    """Return which label the node lacks that the entry requires, or `None`."""
    for name, value in entry.labels.require.items():
        own = node.labels.get(name)
        if own is None or not fnmatchcase(own, value):
            return _without_label(name, value)
    return None


def _without_label(name: str, value: str) -> str:
    return f"without the label {name}={value}"


def domain_of(node: Node, devices: Iterable[Device]) -> str | None:
    """Return the NVLink domain that all the devices are in, if there is one."""
    if node.inventory is None:
        return None
    indexes = {device.card for device in devices}
    found = {card.nvlink_domain for card in node.inventory.cards if card.index in indexes}
    return found.pop() if len(found) == 1 and None not in indexes else None


# --- asked of the whole fleet -------------------------------------------------------------------


def place(state: Cluster, entry: Entry, held: Held) -> Placed | Refused:
    """Return devices for one more replica of `entry`, or why there are none.

    Classes are tried in the entry's order of preference; see the module for what wins then.
    """
    search = Search(state, entry, held)
    refusals: dict[str, int] = {}
    search.count_refused(OF_NO_KIND, refusals)
    for pattern in entry.classes:
        kinds = search.index.matching(pattern)
        choices = search.gang(kinds)
        search.count_refusals(kinds, refusals, refused=choices is None)
        if choices is not None:
            return _placed(search, choices, pattern, _most_first(refusals))
    if not refusals:
        wanted = ", ".join(entry.classes)
        refusals[f"no device of class {wanted}"] = 1
    return Refused(_most_first(refusals))


def _most_first(refusals: dict[str, int]) -> dict[str, int]:
    """In an order that says what matters, and that does not follow from how the index grew."""
    return dict(sorted(refusals.items(), key=lambda said: (-said[1], said[0])))


def _placed(
    search: Search, choices: list[Choice], pattern: str, refusals: Mapping[str, int]
) -> Placed:
    entry, index = search.entry, search.index
    kind = index.kinds[choices[0].kind]
    taken = taken_bytes(entry, search.demand, kind.memory_bytes)
    reasons: list[str] = []
    parts = []
    for choice in choices:
        name = index.names[choice.number]
        labels = ", ".join([device_label(number) for number in choice.devices])
        reasons.append(f"{name}: {labels} of class {kind.device_class} (asked: {pattern})")
        if entry.gpus > 1:
            reasons += _linking(entry, choice)
        if choice.avoided:
            reasons.append("all that is better fits nothing: a device that is better avoided")
        if choice.same_model:
            reasons.append(
                f"{choice.same_model} more of {entry.name} on the node: no other has fewer"
            )
        parts.append(PartPlacement(node=name, devices=choice.devices, memory_bytes=taken))
    score = {
        "avoided": max([choice.avoided for choice in choices]),
        "labels": max([choice.tier for choice in choices]),
        "same_model": max([choice.same_model for choice in choices]),
        "apart": max([choice.apart for choice in choices]),
        "spare_bytes": kind.memory_bytes - search.demand,
        "left_free": max([max(choice.free - len(choice.devices), 0) for choice in choices]),
    }
    return Placed(tuple(parts), tuple(reasons), refusals, score)


def _linking(entry: Entry, choice: Choice) -> Iterator[str]:
    """Say over what the cards of a group speak to each other."""
    if choice.domain is not None and entry.tp > len(choice.devices):
        yield f"one NVLink fabric over the nodes: {choice.domain}"
    elif len(choice.devices) == 1:
        return
    elif choice.domain is not None:
        yield f"one NVLink domain: {choice.domain}"
    elif entry.nvlink == "ignore":
        yield "the group speaks over PCIe: the entry ignores NVLink"
    else:
        yield "no NVLink domain has so many free cards: the group speaks over PCIe"
