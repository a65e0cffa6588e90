"""The devices: what each could hold, what holds it, and why nothing may be placed on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from llmgw.core.cluster import Cluster, Node, pool_of
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.types import CardReading, Device, DeviceReading, Excluded, device_label
from llmgw.views.shared import Row, node_state

DeviceState = Literal["free", "held", "excluded"]


class DeviceRow(Row, frozen=True, kw_only=True):
    """One device, or a card that offers none (then without memory).

    `held`: replicas have been given it, whatever else is the matter. `excluded`: nothing may be
    placed on it, and `reason` says why. `memory_held_bytes` is what replicas were given of the
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
    conditions = tuple(c.name for c in node.conditions if c.device == device.id)
    reason, detail = _why_excluded(node, device, conditions)
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
        detail=detail,
        conditions=conditions,
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


def _why_excluded(
    node: Node, device: Device, conditions: tuple[str, ...]
) -> tuple[str | None, str | None]:
    """Return why nothing may be placed on the device, with the detail, if so."""
    if device.id in node.excluded:
        return node.excluded[device.id], _detail(node, device)
    for condition in node.conditions:
        if condition.device == device.id:
            return conditions[0], condition.detail
    if any(device.id in taken for taken in node.strays.values()):
        return "stray", "an engine that nobody wants is being stopped"
    if node_state(node) != "up":
        return f"node {node_state(node)}", None
    if device.memory_total_bytes is None:
        return "memory unknown", None
    return None, None


def _detail(node: Node, device: Device) -> str | None:
    for out in node.inventory.excluded if node.inventory else ():
        if out.device == device.id or (out.device is None and out.card == device.card):
            return out.detail
    return None


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
        yield DeviceRow(
            node=node.name,
            id=number,
            label=device_label(number),
            device_class=whole.card_class if whole else None,
            uuid=whole.uuid if whole else None,
            state="excluded",
            reason=out.reason,
            detail=out.detail,
        )


def _number(out: Excluded) -> int | None:
    return out.card if out.device is None else out.device
