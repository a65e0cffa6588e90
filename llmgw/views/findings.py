"""What doctor finds in a machine's hardware: an inventory and a few facts in, findings out.

Pure; `llmgw.doctor` gathers the facts and calls it. Each finding says what was looked at, how it
is, and what to do, as the command to run wherever there is one. A fault is what keeps something
from running: a card, a device, the whole machine. `surroundings` judges what is not hardware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from llmgw.core.conditions import at_a_glance
from llmgw.core.limits import Limits
from llmgw.core.meanings import what_to_do
from llmgw.hardware.types import Card, Device, Excluded, Inventory, device_label

State = Literal["ok", "warning", "fault", "unknown"]

GIB = 2**30
FIRST_DRIVER = 100
"""Every driver's major version is above this, and every CUDA's below."""
MOST_DIGITS = 10


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of doctor. `do` is what to do, and absent where there is nothing to do."""

    check: str
    state: State
    detail: str
    do: str | None = None


class HardwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an inventory does not hold.

    The versions are of the driver in the kernel, of NVML and of nvidia-smi, each as it says
    itself, absent where it could not be asked. `bare_gpu_instances` are, by card, the GPU
    instances without a compute instance; a card is missing where the driver does not tell. `limits`
    say when a card is hot or worn.
    """

    kernel_version: str | None = None
    library_version: str | None = None
    tool_version: str | None = None
    bare_gpu_instances: Mapping[int, tuple[int, ...]] = {}
    captured: bool = False
    limits: Limits = Limits()


def hardware_findings(inventory: Inventory, facts: HardwareFacts) -> list[Finding]:
    """Return what there is to say about a machine whose hardware could be read."""
    return [
        backend_finding(inventory),
        versions_finding(inventory, facts),
        *_card_findings(inventory),
        *_bare_findings(inventory, facts),
        *_warning_findings(inventory, facts),
        *_link_findings(inventory),
        *_moment_findings(inventory, facts),
        *_wear_findings(inventory, facts),
        *_memory_findings(inventory),
    ]


def backend_finding(inventory: Inventory) -> Finding:
    """Return which backend is in force, and why it is not the first choice."""
    found = f"{inventory.backend}, {_count(len(inventory.cards), 'card')}"
    if inventory.backend == "cpu":
        detail = "the processor is the only device of this machine"
        return Finding("hardware", "ok", f"{detail} ({inventory.fallback_from or 'as it is set'})")
    if inventory.fallback_from is None:
        return Finding("hardware", "ok", f"read by {found}")
    do = "pip install 'llmgw[nvml]'" if "extra" in inventory.fallback_from else None
    return Finding(
        "hardware",
        "warning",
        f"read by {found}, instead of {inventory.fallback_from}",
        do or "llmgw agent inventory --backend nvml, which says what to mend",
    )


def no_gpu_finding(reason: str | None) -> Finding:
    """Return what a machine without a GPU and without the processor as a device means."""
    return Finding(
        "hardware",
        "warning",
        f"there is no NVIDIA GPU that can be asked ({reason}), and the processor is not offered:"
        " this machine can run the controller, and no model",
        "LLMGW_CPU_DEVICE=true offers the processor as a device of class cpu",
    )


_REMEDIES = (
    (r"version mismatch|different versions", "reboot, or unload and load the nvidia modules"),
    (r"module is not loaded|driver is not loaded", "modprobe nvidia"),
    (r"did not (end|answer) within|hangs in", "dmesg | grep -i xid, then reboot the machine"),
    (r"is lost|fallen off", "dmesg | grep -i xid, then nvidia-smi --gpu-reset, or reboot"),
    (r"container lost its access", "restart the container"),
    (r"permission|may not read", "ls -l /dev/nvidia*: let this user read them"),
    (r"finds no card|reports no card|No devices", "lspci -d 10de: shows the cards on the bus"),
)


def unreadable_finding(reason: str, *, captured: bool = False) -> Finding:
    """Return what it means that the hardware is there, or was asked for, and cannot be read."""
    found = (do for pattern, do in _REMEDIES if re.search(pattern, reason, re.IGNORECASE))
    do = next(found, "nvidia-smi -q, by hand, shows what it says")
    what = "the captured machine" if captured else "the hardware"
    return Finding("hardware", "fault", f"{what} cannot be read: {reason}", do)


def driverless_finding(cards: int) -> Finding:
    """Return what cards on the bus mean whose driver is not there."""
    return Finding(
        "driver",
        "fault",
        f"{_count(cards, 'NVIDIA card')} on the PCI bus, and no driver is loaded for it",
        "modprobe nvidia; without the module install the driver for the running kernel",
    )


def versions_finding(inventory: Inventory, facts: HardwareFacts) -> Finding:
    """Return whether kernel driver, library and tool are of one version."""
    told = {
        "driver": facts.kernel_version or inventory.driver_version,
        "NVML": facts.library_version,
        "nvidia-smi": facts.tool_version,
    }
    known = {name: version for name, version in told.items() if version is not None}
    cuda = f", CUDA {inventory.cuda_version}" if inventory.cuda_version else ""
    detail = ", ".join(f"{name} {version}" for name, version in known.items()) + cuda
    if inventory.backend == "cpu":
        return Finding("versions", "ok", "no driver is needed")
    if not _same([release(version) for version in known.values()]):
        do = "reboot, or unload and load the nvidia modules; in a container match the host's driver"
        return Finding("versions", "fault", f"they do not match: {detail}", do)
    if len(known) < 2:
        where = "the capture" if facts.captured else "the machine"
        return Finding("versions", "unknown", f"{where} tells only: {detail or 'none'}")
    return Finding("versions", "ok", detail)


def release(version: str) -> tuple[int, ...]:
    """Return a driver's version as numbers: of `535.54.03`, and of NVML's `12.535.54.03`."""
    parts = (part for part in version.split(".") if part.isdecimal() and len(part) < MOST_DIGITS)
    numbers = tuple(map(int, parts))
    cuda_first = len(numbers) > 2 and numbers[0] < FIRST_DRIVER <= numbers[1]
    return numbers[1:] if cuda_first else numbers


def _same(releases: list[tuple[int, ...]]) -> bool:
    """Whether all are one release; some are told without their last number."""
    least = min((len(numbers) for numbers in releases), default=0)
    return len({numbers[:least] for numbers in releases}) <= 1


# --- cards and their instances -------------------------------------------------------------------


def _card_findings(inventory: Inventory) -> Iterator[Finding]:
    out = {x.card: x for x in inventory.excluded if x.device is None}
    cards = {card.index: card for card in inventory.cards}
    for index in sorted({*cards, *(n for n in out if n is not None)}):
        card = cards.get(index)
        devices = [device for device in inventory.devices if device.card == index]
        yield _card_finding(index, card, devices, out.get(index))
    for excluded in inventory.excluded:
        if excluded.device is not None:
            check = f"device {device_label(excluded.device)}"
            detail = f"{excluded.reason}: {excluded.detail}"
            yield Finding(check, "fault", detail, advice(excluded, None))


def _card_finding(
    index: int, card: Card | None, devices: list[Device], out: Excluded | None
) -> Finding:
    what = _described(card, devices) if card is not None else ""
    if out is None:
        return Finding(f"card {index}", "ok", what)
    detail = f"{out.reason}: {out.detail}"
    return Finding(
        f"card {index}", "fault", f"{what}; {detail}" if what else detail, advice(out, card)
    )


def _described(card: Card, devices: list[Device]) -> str:
    """A card's name, mode and instances: `NVIDIA A100 80GB, MIG enabled: 0/mig0 1g.10gb`."""
    if card.mig_mode is None:
        return card.name
    instances = [f"{d.label} {d.profile or 'of unknown profile'}" for d in devices if d.profile]
    carved = f": {', '.join(instances)}" if instances else ""
    return f"{card.name}, MIG {card.mig_mode}{carved}"


_HALVES = {
    "a100-40g": "3g.20gb,3g.20gb",
    "a100-80g": "3g.40gb,3g.40gb",
    "a30-24g": "2g.12gb,2g.12gb",
    "h100-80g": "3g.40gb,3g.40gb",
    "h100-96g": "3g.48gb,3g.48gb",
    "h100-nvl-94g": "3g.47gb,3g.47gb",
    "h200-141g": "3g.71gb,3g.71gb",
    "b200-180g": "3g.90gb,3g.90gb",
}
"""Two equal parts of a card, by its class: what an example can carve without knowing the use."""


def advice(out: Excluded, card: Card | None) -> str:
    """Return what brings an excluded card or device back, as commands."""
    if out.reason == "needs-reset" and "reboot" in out.detail:
        return "reboot the machine"
    if out.reason == "mig-empty":
        return _carve("N" if out.card is None else str(out.card), out, card)
    return what_to_do(out.reason, out.card) or what_to_do("unreadable", out.card) or ""


def _carve(number: str, out: Excluded, card: Card | None) -> str:
    if "no compute instance" in out.detail:
        return out.detail.rpartition(": ")[2]
    profiles = _HALVES.get(card.card_class) if card is not None else None
    off = f"or turn MIG off: nvidia-smi -i {number} -mig 0"
    if profiles is None:
        listed = f"nvidia-smi mig -i {number} -lgip lists the profiles"
        return f"nvidia-smi mig -i {number} -cgi PROFILE -C ({listed}), {off}"
    return f"nvidia-smi mig -i {number} -cgi {profiles} -C, {off}"


def _bare_findings(inventory: Inventory, facts: HardwareFacts) -> Iterator[Finding]:
    """GPU instances without compute instances: nothing can use them, and only root sees them."""
    for card in inventory.cards:
        if card.mig_mode != "enabled":
            continue
        check = f"GPU instances of card {card.index}"
        bare = facts.bare_gpu_instances.get(card.index)
        if bare is None:
            detail = "cannot tell whether some have no compute instance (needs root, and NVML)"
            list_them = f"sudo nvidia-smi mig -i {card.index} -lgi, and -lci to compare"
            do = None if facts.captured else f"sudo llmgw doctor, or {list_them}"
            yield Finding(check, "unknown", detail, do)
        elif bare:
            ids = ",".join(map(str, bare))
            detail = f"{ids} without compute instance: nothing can use that memory"
            yield Finding(
                check, "warning", detail, f"nvidia-smi mig -i {card.index} -gi {ids} -cci"
            )
        else:
            yield Finding(check, "ok", "each has a compute instance")


def _warning_findings(inventory: Inventory, facts: HardwareFacts) -> Iterator[Finding]:
    """What discovery warned of; what has a finding of its own already is not said again."""
    told = any(facts.bare_gpu_instances.values())
    for text in inventory.warnings:
        own = (told and "has no compute instance" in text) or inventory.backend == "cpu"
        if not own:
            do = None if "NVLink" not in text else "nvidia-smi topo -m"
            yield Finding("discovery", "warning", text, do or "nvidia-smi -q shows the cards")


# --- what joins cards, what wears them -----------------------------------------------------------


def _link_findings(inventory: Inventory) -> Iterator[Finding]:
    cards = [card for card in inventory.cards if card.mig_mode != "enabled"]
    if len(cards) < 2:
        return
    if all(card.nvlink_peers is None and card.nvlink_domain is None for card in cards):
        yield Finding("NVLink", "unknown", "the topology was not told", "nvidia-smi topo -m")
        return
    domains: dict[str, list[str]] = {}
    for card in cards:
        if card.nvlink_domain is not None:
            domains.setdefault(card.nvlink_domain, []).append(str(card.index))
    alone = [str(card.index) for card in cards if card.nvlink_domain is None]
    joined = [f"{name}: cards {', '.join(some)}" for name, some in sorted(domains.items())]
    if not joined:
        yield Finding("NVLink", "ok", "no card is linked to another")
    elif alone:
        detail = "; ".join([*joined, f"not linked: {', '.join(alone)}"])
        do = f"nvidia-smi nvlink -s -i {alone[0]} shows links that are down"
        yield Finding("NVLink", "warning", detail, do)
    else:
        yield Finding("NVLink", "ok", "; ".join(joined))
    yield from map(_link_finding, (card for card in cards if _has_lost_links(card)))


def _has_lost_links(card: Card) -> bool:
    """Whether some links are down and others are not: without a bridge all of them are."""
    return bool(card.nvlink_links_down) and (
        bool(card.nvlink_peers) or card.nvlink_domain is not None
    )


def _link_finding(card: Card) -> Finding:
    down = ", ".join(map(str, card.nvlink_links_down or ()))
    do = f"nvidia-smi nvlink -s -i {card.index} shows them, and -e their errors"
    return Finding(f"NVLink of card {card.index}", "warning", f"links are down: {down}", do)


def _moment_findings(inventory: Inventory, facts: HardwareFacts) -> Iterator[Finding]:
    """What the cards suffer from right now; whether for long, only an agent can tell."""
    for index, name, detail in _held(inventory, facts):
        if name in ("hot", "throttled"):
            check, said = f"card {index}, {name}", f"{detail}, at this moment"
            yield Finding(check, "warning", said, what_to_do(name, index))


def _held(inventory: Inventory, facts: HardwareFacts) -> list[tuple[int, str, str]]:
    """The conditions of cards that offer a device: index, name and detail, each once."""
    card_of: dict[int | None, int | None] = {d.id: d.card for d in inventory.devices}
    found = ((card_of.get(c.device), c) for c in at_a_glance(inventory, facts.limits))
    return sorted({(card, c.name, c.detail) for card, c in found if card is not None})


def _wear_findings(inventory: Inventory, facts: HardwareFacts) -> Iterator[Finding]:
    cards = inventory.cards
    beyond = {index for index, name, _ in _held(inventory, facts) if name == "worn"}
    worn = [(card, said) for card in cards if (said := _worn(card))]
    for card, said in worn:
        state: State = "fault" if card.index in beyond else "warning"
        yield Finding(f"wear of card {card.index}", state, said, what_to_do("worn", card.index))
    silent = [card for card in cards if all(v is None for v in msgspec.structs.astuple(card.wear))]
    if cards and len(silent) == len(cards):
        yield Finding("wear", "unknown", "the cards tell nothing of their memory's errors")
    elif cards and not worn:
        # The driver does not count remapped rows of a card that is carved: that is not none.
        partly = [c for c in cards if c.mig_mode == "enabled" and c.wear.remapped_rows is None]
        said = "no error of memory that counts"
        if silent:
            said += f"; not told by cards {_numbers(silent)}"
        if partly:
            said += f"; remapped rows are not told of cards {_numbers(partly)}, in MIG mode"
        yield Finding("wear", "ok", said)


def _numbers(cards: list[Card]) -> str:
    return ", ".join(str(card.index) for card in cards)


def _worn(card: Card) -> str:
    wear = card.wear
    fresh, errors = wear.ecc_volatile_uncorrected, "uncorrected errors"
    said = [
        (fresh, f"{fresh} {errors} since its last reset"),
        (wear.ecc_uncorrected, f"{wear.ecc_uncorrected} {'over its life' if fresh else errors}"),
        (wear.retired_pages, f"{wear.retired_pages} retired pages"),
        (wear.retired_pending, "a page waits for a reboot to be retired"),
        (wear.remapped_rows, f"{wear.remapped_rows} remapped rows"),
        (wear.remap_pending, "a row waits for a reset to be remapped"),
        (wear.remap_failed, "a row could not be remapped"),
    ]
    return ", ".join(text for value, text in said if value)


def _memory_findings(inventory: Inventory) -> Iterator[Finding]:
    for card in inventory.cards:
        if card.unified and card.memory_total_bytes:
            size = f"{card.memory_total_bytes / GIB:.0f} GiB"
            detail = f"card {card.index} draws on the system's memory, {size} with all that runs"
            yield Finding("unified memory", "ok", detail)
        elif card.unified:
            detail = f"card {card.index} draws on the system's memory, whose size is not known"
            yield Finding("unified memory", "unknown", detail)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number or 'no'} {what}s"
