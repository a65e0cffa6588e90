"""The shapes of hardware truth: what a node has, and what its devices measured.

Pure data, shared by the backends that fill it and the core that places on it. A value that the
hardware does not give is `None` here and absent in JSON; a measured zero stays zero. Names and
JSON keys follow `llmgw agent inventory -o json`, which other programs rely on.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Exact = Annotated[int, msgspec.Meta(ge=-(2**53) + 1, le=2**53 - 1)]
"""An integer that every JSON reader keeps as it is, and with which one can reckon safely."""

MISMATCH = "driver/library version mismatch"
"""What every backend says, among other words, where the driver was upgraded and not reloaded."""

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


_LOCAL_DOMAIN = "node:"


def local_domain(node: str, card: int) -> str:
    """The name of an NVLink domain inside a node, by its lowest card."""
    return f"{_LOCAL_DOMAIN}{node}/{card}"


def spans_nodes(domain: str) -> bool:
    """Whether an NVLink domain is a fabric, which reaches over nodes."""
    return not domain.startswith(_LOCAL_DOMAIN)


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Base of the hardware types: immutable, keyword-only, absent where not known."""


class Process(Shape, frozen=True, kw_only=True):
    """A process that holds memory on a device. `name` is there only where settings allow it."""

    pid: Exact
    memory_bytes: Exact | None = None
    name: str | None = None


class Wear(Shape, frozen=True, kw_only=True):
    """What a card's memory has suffered. A counter the card does not keep is absent.

    The ECC counters are over the card's life (the driver's aggregate), those named `volatile` since
    the driver was loaded or the card reset. On a card in MIG mode the driver keeps but some of
    them: what is absent there is not known, and not zero.
    """

    ecc_corrected: Exact | None = None
    ecc_uncorrected: Exact | None = None
    ecc_volatile_corrected: Exact | None = None
    ecc_volatile_uncorrected: Exact | None = None
    retired_pages: Exact | None = None
    retired_pending: bool | None = None
    remapped_rows: Exact | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


class Fabric(Shape, frozen=True, kw_only=True):
    """Multi-node NVLink: cards with the same non-zero cluster UUID and clique are one domain."""

    state: str | None = None
    cluster_uuid: str | None = None
    clique: Exact | None = None


class Card(Shape, frozen=True, kw_only=True):
    """One physical accelerator: identity, and the heat, power and wear that belong to it.

    `temperature_margin_celsius` is the distance to the hottest allowed (smaller is hotter) that
    recent drivers give instead of absolute limits; it is never a temperature. Its two limits are
    the margins at which the card slows down and shuts down, mostly a little below zero.
    `nvlink_links_down` are the numbers of the links that the card has and that are not active: all
    of them, on a card without its bridge. `cpu_affinity` is a list of processors as the kernel
    writes it (`0-31,64-95`). `pcie_replays` and `nvlink_errors` count since the driver was loaded
    (links: replay, recovery and CRC errors of all links together; NVML alone tells them, and which
    links are down). `utilization_percent` is absent on a card in MIG mode.
    """

    index: Exact
    uuid: str
    name: str
    card_class: str = msgspec.field(name="class")
    pci: str | None = None
    memory_total_bytes: Exact | None = None
    memory_reserved_bytes: Exact | None = None
    memory_used_bytes: Exact | None = None
    memory_free_bytes: Exact | None = None
    unified: bool = False
    mig_mode: type_of_mode | None = None
    mig_pending: type_of_mode | None = None
    compute_mode: str | None = None
    nvlink_domain: str | None = None
    nvlink_peers: tuple[Exact, ...] | None = None
    fabric: Fabric | None = None
    nvlink_links_down: tuple[Exact, ...] | None = None
    numa_node: Exact | None = None
    cpu_affinity: str | None = None
    temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    temperature_slowdown_celsius: float | None = None
    temperature_shutdown_celsius: float | None = None
    temperature_slowdown_margin_celsius: float | None = None
    temperature_shutdown_margin_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization_percent: float | None = None
    fan_percent: float | None = None
    clock_graphics_mhz: float | None = None
    clock_memory_mhz: float | None = None
    throttled_by: tuple[str, ...] | None = None
    pcie_replays: Exact | None = None
    nvlink_errors: Exact | None = None
    recovery_action: str | None = None
    wear: Wear = Wear()


class Device(Shape, frozen=True, kw_only=True):
    """What a replica can be placed on: a whole card, a MIG instance, or the processor.

    `memory_total_bytes` is what placement allocates against: everything the device has, with what
    the driver keeps for itself in it. From driver 510 on total is reserved, used and free together;
    before, what is reserved is not told apart and counts as used. Devices with the same
    `memory_pool` draw on the same memory and must not be sold twice. `processes` is `None`
    where the driver does not tell, and empty where it told that there are none.

    `utilization_percent` of a whole card is the share of time in which something ran on it; of a
    MIG instance the share of its multiprocessors that was busy since the sample before (NVML's GPM,
    Hopper and later), absent where compute instances share a GPU instance.
    """

    id: Exact
    label: str
    card: Exact | None = None
    uuid: str
    device_class: str = msgspec.field(name="class")
    profile: str | None = None
    gpu_instance: Exact | None = None
    compute_instance: Exact | None = None
    memory_pool: str | None = None
    memory_total_bytes: Exact | None = None
    memory_reserved_bytes: Exact | None = None
    memory_used_bytes: Exact | None = None
    memory_free_bytes: Exact | None = None
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

    card: Exact | None = None
    device: Exact | None = None
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


class CardError(Shape, frozen=True, kw_only=True):
    """A critical error (Xid) that the driver told of: of which card, by its UUID, and its number.

    `gpu_instance` is where on a card in MIG mode it was, if the driver tells.
    """

    card: str
    number: Exact
    gpu_instance: Exact | None = None


class CardReading(Shape, frozen=True, kw_only=True):
    """What a card measured at one moment; the fields are those of `Card`.

    `xids` are the numbers of the critical errors (Xid) that the driver told of this card, each
    once, oldest first: since the agent came up, or since NVML was released last, whichever is
    later. There are none without NVML. `age_seconds` is for how long the driver has told the same
    values, by its own clock: then nothing else stands here, nor of the card's devices, since what
    they measure now is not known.
    """

    index: Exact
    uuid: str
    age_seconds: float | None = None
    temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization_percent: float | None = None
    fan_percent: float | None = None
    clock_graphics_mhz: float | None = None
    clock_memory_mhz: float | None = None
    throttled_by: tuple[str, ...] | None = None
    pcie_replays: Exact | None = None
    nvlink_errors: Exact | None = None
    wear: Wear = Wear()
    xids: tuple[Exact, ...] = ()


class DeviceReading(Shape, frozen=True, kw_only=True):
    """What a device measured at one moment; the fields are those of `Device`."""

    id: Exact
    uuid: str
    memory_used_bytes: Exact | None = None
    memory_free_bytes: Exact | None = None
    utilization_percent: float | None = None
    processes: tuple[Process, ...] | None = None


class Readings(Shape, frozen=True, kw_only=True):
    """The measured part of an inventory: what telemetry carries."""

    cards: tuple[CardReading, ...] = ()
    devices: tuple[DeviceReading, ...] = ()
