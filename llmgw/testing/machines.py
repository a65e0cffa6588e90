"""Machines with cards that you describe, for the pretended nvidia-smi and the pretended NVML.

The same description drives both (`fake_smi`, `fake_nvml`), so that what one backend finds can be
compared with what the other does. It is no model of the hardware: nothing in it changes by itself,
and what it does not mention the card does not have.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MEBIBYTE, KIBIBYTE = 2**20, 2**10

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"

SAID = {
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires reset",
    18: "Driver/library version mismatch",
    23: "Insufficient Resources",
    25: "Argument version mismatch",
    999: "Unknown Error",
}
"""What NVML's error codes are called, by the library and by the tool alike."""


class FakeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory, on an instance if it has ids."""

    pid: int
    memory_mib: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    name: str = "python3"


class FakeInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance. Its index is its place in the card's list, unless given.

    `busy_percent` is what its multiprocessors do, where the card measures that (Hopper and later).
    """

    profile: str
    memory_total_mib: int
    gpu_instance: int
    compute_instance: int = 0
    multiprocessors: int = 14
    memory_used_mib: int = 0
    busy_percent: float | None = None
    index: int | None = None
    uuid: str | None = None


class FakeCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card. `None` is not supported; `lost` reads as a card does that fell off the bus.

    A card with `margin_celsius` tells distances and limits as distances, as Ada and later cards do;
    one with `slowdown_celsius` absolute limits. `fabric` is (state, cluster UUID, clique), and
    `fabric_code` what it ended with. `bare_gpu_instances` hold no compute instance; each has the
    slices and MiB of `bare_profile`. `link_errors` are those of each of its NVLinks that is up.
    `memory_excess_kib` is what memory in use has beyond whole MiB. The errors are NVML's codes:
    `handle_error` of opening the card, `memory_error` of asking for its memory, `process_error` of
    asking for processes.
    """

    name: str
    memory_total_mib: int | None
    memory_reserved_mib: int | None = 0
    memory_used_mib: int | None = 0
    memory_excess_kib: int = 0
    uuid: str | None = None
    pci: str | None = None
    architecture: str = "Ampere"
    temperature_celsius: int | None = 30
    margin_celsius: int | None = None
    slowdown_celsius: int | None = None
    shutdown_celsius: int | None = None
    slowdown_margin_celsius: int = -2
    shutdown_margin_celsius: int = -8
    power_watts: float | None = 50.0
    power_limit_watts: float | None = 300.0
    utilization_percent: int | None = 0
    fan_percent: int | None = None
    throttled_by: tuple[str, ...] = ()
    clock_graphics_mhz: int | None = 1410
    clock_memory_mhz: int | None = 1593
    pcie_replays: int | None = 0
    link_errors: int = 0
    mig: Literal["N/A", "Enabled", "Disabled"] = "N/A"
    mig_pending: Literal["Enabled", "Disabled"] | None = None
    instances: tuple[FakeInstance, ...] = ()
    bare_gpu_instances: tuple[int, ...] = ()
    bare_profile: tuple[int, int] = (1, 9728)
    processes: tuple[FakeProcess, ...] = ()
    compute_mode: str = "Default"
    recovery: str = "None"
    addressing: str = "None"
    fabric: tuple[str, str, int] | None = None
    fabric_code: int = 0
    memory_node: int | None = 0
    processors: str = "0-15"
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_volatile_corrected: int | None = None
    ecc_volatile_uncorrected: int | None = None
    retired_pages: int | None = None
    retired_pending: bool = False
    remapped_rows: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    lost: bool = False
    handle_error: int | None = None
    memory_error: int | None = None
    process_error: int | None = None


class FakeMachine(msgspec.Struct, frozen=True):
    """Cards under one driver. `links` are the pairs of cards with NVLink between them.

    `down` are pairs with a link that is not up. `switched` cards hang on an NVSwitch, which a
    virtual machine does not see (`switch_visible`).
    """

    cards: tuple[FakeCard, ...]
    driver: str = "580.65.06"
    cuda: str = "13.0"
    attached: int | None = None
    links: tuple[tuple[int, int], ...] = ()
    down: tuple[tuple[int, int], ...] = ()
    switched: tuple[int, ...] = ()
    switch_visible: bool = True

    @property
    def major(self) -> int:
        """The driver's major version, which decides what can be asked and how it is printed."""
        return int(self.driver.split(".")[0])


def card_uuid(machine: FakeMachine, index: int) -> str:
    """The UUID that a card has, given or made."""
    return machine.cards[index].uuid or f"GPU-{index + 1:08x}-0000-4000-8000-000000000000"


def card_pci(machine: FakeMachine, index: int) -> str:
    """The PCI address that a card has, given or made."""
    return machine.cards[index].pci or f"00000000:{index + 1:02X}:00.0"


def instance_uuid(card: int, instance: FakeInstance, position: int) -> str:
    """The UUID that an instance has, given or made."""
    return instance.uuid or f"MIG-{card + 1:08x}-0000-5000-8000-{position:012x}"


def instance_index(instance: FakeInstance, position: int) -> int:
    """The index that an instance has, given or its place."""
    return position if instance.index is None else instance.index


def linked_pairs(machine: FakeMachine) -> set[tuple[int, int]]:
    """The pairs of cards that reach each other over NVLink, each in both orders."""
    pairs = {(a, b) for a in machine.switched for b in machine.switched if a != b}
    return pairs | {*machine.links, *((b, a) for a, b in machine.links)}


def memory_bytes(card: FakeCard, major: int) -> dict[str, int | None]:
    """Total, reserved, used and free memory. Before 510 what is reserved counts as used."""
    if card.memory_total_mib is None or card.memory_used_mib is None:
        return dict.fromkeys(("total", "reserved", "used", "free"))
    excess = card.memory_excess_kib * KIBIBYTE
    total = card.memory_total_mib * MEBIBYTE
    used = card.memory_used_mib * MEBIBYTE + excess
    hidden = (card.memory_reserved_mib or 0) * MEBIBYTE + excess
    free = total - used - hidden
    if major < 510:
        return {"total": total, "reserved": None, "used": used + hidden, "free": free}
    reserved = None if card.memory_reserved_mib is None else hidden
    return {"total": total, "reserved": reserved, "used": used, "free": free}
