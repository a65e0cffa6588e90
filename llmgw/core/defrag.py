"""Defragmentation as a proposal: which moves would make an NVLink domain whole, at what cost.

Pure and only ever read by people: `llmgw plan --defrag` shows it, nothing decides by it. A move
costs a restart of what is moved, so the domain that needs the fewest of them is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from llmgw.core.cluster import Cluster, Node, Replica
from llmgw.core.events import PartPlacement
from llmgw.core.held import Held
from llmgw.core.placement import Placed, node_refuses, place

MOST_DOMAINS_TRIED = 200


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One replica that would be started elsewhere and stopped where it is."""

    replica: str
    model: str
    node: str
    devices: tuple[int, ...]
    to_node: str
    to_devices: tuple[int, ...]
    memory_bytes: int


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Moves after which `devices` of one domain are free together.

    `memory_bytes` is what all moved replicas hold and would load again.
    """

    node: str
    domain: str
    device_class: str
    devices: tuple[int, ...]
    free_now: int
    moves: tuple[Move, ...]
    memory_bytes: int


class _Domain(msgspec.Struct):
    node: Node
    name: str
    device_class: str
    devices: tuple[int, ...]
    free: int
    replicas: list[Replica]


def proposals(state: Cluster, size: int, most: int = 3) -> list[Proposal]:
    """Return up to `most` ways to free `size` devices of one domain, the cheapest first.

    None where a domain is free already, or where what would have to move fits nowhere else.
    """
    domains = list(_domains(state))
    if any(domain.free >= size for domain in domains):
        return []
    wide = [d for d in domains if len(d.devices) >= size and d.replicas]
    wide.sort(key=lambda d: (len(d.replicas), len(d.devices) - d.free, d.node.name, d.name))
    tried = (_freed(state, domain) for domain in wide[:MOST_DOMAINS_TRIED])
    found = [proposal for proposal in tried if proposal is not None]
    found.sort(key=lambda p: (len(p.moves), p.memory_bytes, p.node, p.domain))
    return found[:most]


def is_free(state: Cluster, size: int) -> bool:
    """Return whether so many devices of one domain are free as it is."""
    return any(domain.free >= size for domain in _domains(state))


def _domains(state: Cluster) -> Iterator[_Domain]:
    """Yield the domains that replicas can be moved out of, or that are free."""
    on_node: dict[str, list[Replica]] = {}
    for replica in state.replicas.values():
        for part in replica.parts:
            on_node.setdefault(part.node, []).append(replica)
    for node in state.nodes.values():
        if node_refuses(node) is not None or node.inventory is None:
            continue
        members: dict[tuple[str, str], list[int]] = {}
        for card in node.inventory.cards:
            if card.nvlink_domain is not None and _is_usable(node, card.index):
                members.setdefault((card.nvlink_domain, card.card_class), []).append(card.index)
        for (name, device_class), devices in members.items():
            found = _domain(node, name, device_class, devices, on_node.get(node.name, []))
            if found is not None:
                yield found


def _is_usable(node: Node, device: int) -> bool:
    barred = any(condition.device == device for condition in node.conditions)
    return device in node.devices and device not in node.excluded and not barred


def _domain(
    node: Node, name: str, device_class: str, devices: list[int], replicas: list[Replica]
) -> _Domain | None:
    inside, busy = [], set()
    for replica in replicas:
        held = {d for part in replica.parts if part.node == node.name for d in part.devices}
        if not held & set(devices):
            continue
        movable = len(replica.parts) == 1 and replica.retired is None and held <= set(devices)
        if not movable:
            return None
        inside.append(replica)
        busy |= held
    free = len(devices) - len(busy)
    return _Domain(node, name, device_class, tuple(devices), free, inside)


def _freed(state: Cluster, domain: _Domain) -> Proposal | None:
    """Return the moves that empty a domain, or `None` if one of its replicas fits nowhere else."""
    held, node = Held(), domain.node
    for replica in domain.replicas:
        held.release(state, replica.name)
    itself = PartPlacement(node=node.name, devices=domain.devices, memory_bytes=0)
    held.take(state, "defragmented", [itself])
    moves = []
    for replica in sorted(domain.replicas, key=lambda r: -len(r.parts[0].devices)):
        model = state.models.get(replica.model)
        answer = place(state, model.entry if model is not None else replica.entry, held)
        if not isinstance(answer, Placed):
            return None
        held.take(state, f"moved-{replica.name}", answer.parts, replica.entry)
        (part,), (target,) = replica.parts, answer.parts
        moves.append(
            Move(
                replica=replica.name,
                model=replica.model,
                node=part.node,
                devices=part.devices,
                to_node=target.node,
                to_devices=target.devices,
                memory_bytes=part.memory_bytes * len(part.devices),
            )
        )
    return Proposal(
        node=node.name,
        domain=domain.name,
        device_class=domain.device_class,
        devices=domain.devices,
        free_now=domain.free,
        moves=tuple(moves),
        memory_bytes=sum(move.memory_bytes for move in moves),
    )
