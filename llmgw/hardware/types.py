"""The shapes of hardware truth: what a node has, and what its devices measured.

Pure data, shared by the backends that fill it and the core that places on it. A value that the
hardware does not give is `None` here and absent in JSON; a measured zero stays zero. Names and
JSON keys follow `llmgw agent inventory -o json`, which other programs rely on.
"""

from __future__ import annotations

from typing import Literal

import msgspec

type_of_mode = Literal["enabled", "disabled"]

MIG_DEVICE_BASE = 1000
MIG_CARD_STRIDE = 100

PROCESSOR_DEVICE_ID = 900
"""The processor's device number: above every card's index, below every MIG instance's number."""


def instance_id(card: int, instance: int) -> int:
    """The device number of a MIG instance: instance 3 of card 2 is 1203."""
    return MIG_DEVICE_BASE + MIG_CARD_STRIDE * card + instance


def device_label(device_id: int) -> str:
    """How every view shows a device: `2` a card, `2/mig3` an instance, `cpu` the processor."""
    if device_id == PROCESSOR_DEVICE_ID:
        return "cpu"
    if device_id >= MIG_DEVICE_BASE:
        card, instance = divmod(device_id - MIG_DEVICE_BASE, MIG_CARD_STRIDE)
        return f"{card}/mig{instance}"
    return str(device_id)


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of the hardware types: immutable, keyword-only, absent where not known."""


class Process(Shape, frozen=True, kw_only=True):
    """A process that holds memory on a device."""

    pid: int
    memory_bytes: int | None = None


class Wear(Shape, frozen=True, kw_only=True):
    """What a card's memory has suffered. A counter the card does not keep is absent."""

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


class Fabric(Shape, frozen=True, kw_only=True):
    """Multi-node NVLink: cards with the same non-zero cluster UUID and clique are one domain."""

    state: str | None = None
    cluster_uuid: str | None = None
    clique: int | None = None


class Card(Shape, frozen=True, kw_only=True):
    """One physical accelerator: identity, and the heat, power and wear that belong to it.

    `temperature_margin_celsius` is the distance to slowdown (smaller is hotter) that recent
    drivers give instead of absolute limits; it is never a temperature.
    """

    index: int
    uuid: str
    name: str
    card_class: str = msgspec.field(name="class")
    pci: str | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    unified: bool = False
    mig_mode: type_of_mode | None = None
    mig_pending: type_of_mode | None = None
    compute_mode: str | None = None
    nvlink_domain: str | None = None
    nvlink_peers: tuple[int, ...] | None = None
    fabric: Fabric | None = None
    numa_node: int | None = None
    temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    temperature_slowdown_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization_percent: float | None = None
    fan_percent: float | None = None
    throttled_by: tuple[str, ...] | None = None
    recovery_action: str | None = None
    wear: Wear = Wear()


class Device(Shape, frozen=True, kw_only=True):
    """What a replica can be placed on: a whole card, a MIG instance, or the processor.

    `memory_total_bytes` is what placement allocates against. Devices with the same
    `memory_pool` draw on the same memory and must not be sold twice. `processes` is `None`
    where the driver does not tell, and empty where it told that there are none.
    """

    id: int
    label: str
    card: int | None = None
    uuid: str
    device_class: str = msgspec.field(name="class")
    profile: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_pool: str | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    unified: bool = False
    utilization_percent: float | None = None
    processes: tuple[Process, ...] | None = None


class Excluded(Shape, frozen=True, kw_only=True):
    """A card or device that is kept out of placement, with the reason.

    Reasons of the backends: `lost`, `needs-reset`, `worn`, `unreadable`, `no-permission`,
    `mig-empty`, `mig-pending`, `mig-mismatch`, `compute-mode`, `fabric`. Where something may still
    run (`mig-pending`, `compute-mode`, `needs-reset`, `worn`, `fabric`) the device stays in the
    inventory beside its exclusion; otherwise there is no device to list.
    """

    card: int | None = None
    device: int | None = None
    reason: str
    detail: str


class Inventory(Shape, frozen=True, kw_only=True):
    """Everything that one node has, as one backend read it at one moment."""

    node: str
    boot_id: str | None = None
    backend: str
    fallback_from: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    cards: tuple[Card, ...] = msgspec.field(default=())
    devices: tuple[Device, ...] = msgspec.field(default=())
    excluded: tuple[Excluded, ...] = msgspec.field(default=())
    warnings: tuple[str, ...] = msgspec.field(default=())


class CardReading(Shape, frozen=True, kw_only=True):
    """What a card measured at one moment; the fields are those of `Card`."""

    index: int
    uuid: str
    temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization_percent: float | None = None
    fan_percent: float | None = None
    throttled_by: tuple[str, ...] | None = None


class DeviceReading(Shape, frozen=True, kw_only=True):
    """What a device measured at one moment; the fields are those of `Device`."""

    id: int
    uuid: str
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: float | None = None
    processes: tuple[Process, ...] | None = None


class Readings(Shape, frozen=True, kw_only=True):
    """The measured part of an inventory: what telemetry carries."""

    cards: tuple[CardReading, ...] = ()
    devices: tuple[DeviceReading, ...] = ()
