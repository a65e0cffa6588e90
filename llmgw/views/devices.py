"""The devices: what each could hold, what holds it, and why nothing may be placed on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from llmgw.core.cluster import Cluster, Node, pool_of
from llmgw.core.meanings import AVOIDED, MEANINGS, what_to_do
from llmgw.core.placement import node_refuses
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.types import CardReading, Device, DeviceReading, Excluded, device_label
from llmgw.views.conditions import card_of
from llmgw.views.shared import Row

DeviceState = Literal["free", "held", "excluded"]

_OF_STRAYS = "an engine that nobody wants is being stopped"


class DeviceRow(Row, frozen=True, kw_only=True):
    """One device, or a card that offers none (then without memory).

    `held`: replicas have been given it, whatever else is the matter. `excluded`: nothing may be
    placed on it, and `reason` says why. `avoided`: it is placed on after all others. `conditions`
    are all that hold; `detail`, `meaning` and `advice` are of the reason, or else of the first of
    them. `memory_held_bytes` is what replicas were given of the
    memory that it draws on; `memory_used_bytes`, `memory_free_bytes` and the readings are
    measured, and there only with a sample.
    """

    node: str
    id: int
    label: str
    device_class: str | None = msgspec.field(default=None, name="class")
    profile: str | None = None
    uuid: str | None = None
    state: DeviceState
    reason: str | None = None
    detail: str | None = None
    meaning: str | None = None
    advice: str | None = None
    avoided: bool = False
    conditions: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    memory_total_bytes: int | None = None
    memory_held_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttled_by: tuple[str, ...] | None = None


def devices(state: Cluster, samples: Mapping[str, NodeSample] | None = None) -> list[DeviceRow]:
    """Return every device by node and number; `samples` maps nodes to their newest sample."""
    rows: list[DeviceRow] = []
    for name in sorted(state.nodes):
        node = state.nodes[name]
        sample = (samples or {}).get(name)
        found = [*(_row(node, device, sample) for device in node.devices.values())]
        found += _without_devices(node)
        rows += sorted(found, key=lambda row: row.id)
    return rows


def _row(node: Node, device: Device, sample: NodeSample | None) -> DeviceRow:
    held = node.held.get(pool_of(device), {})
    found = _conditions(node, device)
    reason = next((name for name in found if name not in AVOIDED), None)
    reason = reason or _why_excluded(node, device)
    told = reason or next(iter(found), "")
    meaning, advice = _explained(told, device.id)
    reading, card = _readings(device, sample)
    return DeviceRow(
        node=node.name,
        id=device.id,
        label=device_label(device.id),
        device_class=device.device_class,
        profile=device.profile,
        uuid=device.uuid,
        state="held" if held else "excluded" if reason else "free",
        reason=reason,
        detail=found.get(told) or (_OF_STRAYS if told == "stray" else None),
        meaning=meaning,
        advice=advice,
        avoided=bool(found) and reason is None,
        conditions=tuple(found),
        replicas=tuple(held),
        memory_total_bytes=device.memory_total_bytes,
        memory_held_bytes=sum(held.values()),
        memory_used_bytes=reading.memory_used_bytes if reading else None,
        memory_free_bytes=reading.memory_free_bytes if reading else None,
        utilization_percent=reading.utilization_percent if reading else None,
        temperature_celsius=card.temperature_celsius if card else None,
        power_watts=card.power_watts if card else None,
        throttled_by=card.throttled_by or None if card else None,
    )


def _conditions(node: Node, device: Device) -> dict[str, str]:
    """Return what holds for the device, with the details: what its inventory says comes first."""
    found = {}
    if device.id in node.excluded:
        found[node.excluded[device.id]] = _excluded_because(node, device)
    for condition in node.conditions:
        if condition.device == device.id:
            found.setdefault(condition.name, condition.detail)
    return found


def _why_excluded(node: Node, device: Device) -> str | None:
    """Return why nothing may be placed on a device that has no condition that says so."""
    if any(device.id in taken for taken in node.strays.values()):
        return "stray"
    return node_refuses(node) or ("memory unknown" if device.memory_total_bytes is None else None)


def _explained(name: str, device: int) -> tuple[str | None, str | None]:
    meaning, _ = MEANINGS.get(name, (None, None))
    return meaning, what_to_do(name, card_of(device))


def _excluded_because(node: Node, device: Device) -> str:
    for out in node.inventory.excluded if node.inventory else ():
        if out.device == device.id or (out.device is None and out.card == device.card):
            return out.detail
    return ""


def _readings(
    device: Device, sample: NodeSample | None
) -> tuple[DeviceReading | None, CardReading | None]:
    """Return what was measured on the device and its card. By UUID: an index may have changed."""
    readings = sample.readings if sample else None
    if readings is None:
        return None, None
    reading = next((r for r in readings.devices if r.uuid == device.uuid), None)
    card = next((r for r in readings.cards if r.index == device.card), None)
    return reading, card if reading else None


def _without_devices(node: Node) -> Iterator[DeviceRow]:
    """Yield what is excluded and has no device: a lost card, MIG on with nothing carved."""
    if node.inventory is None:
        return
    cards = {card.index: card for card in node.inventory.cards}
    with_devices = {device.card for device in node.devices.values()}
    for out in node.inventory.excluded:
        number = _number(out)
        if number is None or number in node.devices:
            continue
        if out.device is None and out.card in with_devices:
            continue  # its devices carry the reason
        card = cards.get(out.card) if out.card is not None else None
        whole = card if out.device is None else None
        meaning, advice = _explained(out.reason, number)
        yield DeviceRow(
            node=node.name,
            id=number,
            label=device_label(number),
            device_class=whole.card_class if whole else None,
            uuid=whole.uuid if whole else None,
            state="excluded",
            reason=out.reason,
            detail=out.detail,
            meaning=meaning,
            advice=advice,
            conditions=(out.reason,),
        )


def _number(out: Excluded) -> int | None:
    return out.card if out.device is None else out.device
