"""An inventory in two halves: its shape, which is logged, and its readings, which are sampled.

Pure. The agent compares shapes to know whether there is a new fact to log, and publishes readings
as telemetry. It measures nothing; the backends do.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.hardware.types import (
    Card,
    CardReading,
    Device,
    DeviceReading,
    Inventory,
    Readings,
    Wear,
)


def shape(inventory: Inventory) -> Inventory:
    """The inventory without what it measured: two looks at an unchanged machine are equal.

    The power limit goes too: the limit in force may move by itself on some boards. So do counters
    of errors: what they mean for placement stays, as an exclusion.
    """
    return replace(
        inventory,
        cards=tuple(_card_shape(card) for card in inventory.cards),
        devices=tuple(_device_shape(device) for device in inventory.devices),
    )


def readings(inventory: Inventory) -> Readings:
    """What the cards and devices of an inventory measured, without what they are."""
    return Readings(
        cards=tuple(_card_reading(card) for card in inventory.cards),
        devices=tuple(_device_reading(device) for device in inventory.devices),
    )


def _card_shape(card: Card) -> Card:
    return replace(
        card,
        memory_used_bytes=None,
        memory_free_bytes=None,
        temperature_celsius=None,
        temperature_margin_celsius=None,
        power_watts=None,
        power_limit_watts=None,
        utilization_percent=None,
        fan_percent=None,
        clock_graphics_mhz=None,
        clock_memory_mhz=None,
        throttled_by=None,
        pcie_replays=None,
        nvlink_errors=None,
        wear=Wear(),
    )


def _device_shape(device: Device) -> Device:
    return replace(
        device,
        memory_used_bytes=None,
        memory_free_bytes=None,
        utilization_percent=None,
        processes=None,
    )


def _card_reading(card: Card) -> CardReading:
    return CardReading(
        index=card.index,
        uuid=card.uuid,
        temperature_celsius=card.temperature_celsius,
        temperature_margin_celsius=card.temperature_margin_celsius,
        power_watts=card.power_watts,
        power_limit_watts=card.power_limit_watts,
        utilization_percent=card.utilization_percent,
        fan_percent=card.fan_percent,
        clock_graphics_mhz=card.clock_graphics_mhz,
        clock_memory_mhz=card.clock_memory_mhz,
        throttled_by=card.throttled_by,
        pcie_replays=card.pcie_replays,
        nvlink_errors=card.nvlink_errors,
        wear=card.wear,
    )


def _device_reading(device: Device) -> DeviceReading:
    return DeviceReading(
        id=device.id,
        uuid=device.uuid,
        memory_used_bytes=device.memory_used_bytes,
        memory_free_bytes=device.memory_free_bytes,
        utilization_percent=device.utilization_percent,
        processes=device.processes,
    )
