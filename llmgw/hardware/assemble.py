"""One inventory from what a backend read: report, listing and topology joined.

Pure; `discover` and the captures call it. Here it is decided what is a device, what is kept out
of placement and why, and what the operator is warned of. Cards are joined by UUID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware.classes import card_class, is_generic, is_unified
from llmgw.hardware.mig import bare_profile, instance_devices
from llmgw.hardware.nvlink import with_domains
from llmgw.hardware.reports import BareInstance, Report, ReportedCard
from llmgw.hardware.smi_list import Listing, UnreadableCard
from llmgw.hardware.topology import Topology
from llmgw.hardware.types import Card, Device, Excluded, Inventory, device_label

ECC_UNCORRECTED_LIMIT = 10
"""How many uncorrectable errors since the driver was loaded a card may have and still be used.

One is contained: it ends the process that met it, and the row is remapped or the page retired at
the next reset, which sets the counter back. A card that goes on beyond some has not been helped by
that. What it counted over its life says little, since it includes all that was mended.
"""


class HostMemory(msgspec.Struct, frozen=True):
    """The system's memory, which cards without memory of their own draw on."""

    total_bytes: int
    available_bytes: int | None = None


def assemble(
    node: str,
    report: Report,
    listing: Listing,
    *,
    topology: Topology | None = None,
    host: HostMemory | None = None,
    unreachable: Sequence[Excluded] = (),
    backend: str = "nvidia-smi",
    ecc_uncorrected_limit: int = ECC_UNCORRECTED_LIMIT,
) -> Inventory:
    """The inventory of a node. `unreachable` are cards that could not even be reported.

    NVML needs no listing: its report has what the tool's listing tells. A card with more
    uncorrectable errors than the limit is kept out of placement.

    Raises `BackendUnavailable` where the outputs contradict each other about which card is which.
    """
    reported = [
        _without_false_zero(_with_host_memory(entry, host))
        for entry in _identified(report.cards, listing)
    ]
    reported.sort(key=lambda entry: entry.card.index)
    _refuse_both({entry.card.index for entry in reported}, unreachable)
    cards, warnings = with_domains(node, reported, topology)
    devices: list[Device] = []
    excluded: list[Excluded] = list(unreachable)
    warnings = [*_report_warnings(report, () if unreachable else listing.unreadable), *warnings]
    for entry, card in zip(reported, cards, strict=True):
        out = _exclusion(entry, card, ecc_uncorrected_limit)
        if out is not None:
            excluded.append(out)
        if out is None or out.reason in _STILL_LISTED:
            found, broken, said = _devices(entry, card, listing)
            devices += found
            excluded += broken
            warnings += said
        warnings += _card_warnings(entry, card)
    devices, alike = _told_apart(devices)
    excluded += alike
    return Inventory(
        node=node,
        backend=backend,
        driver_version=report.driver_version,
        cuda_version=report.cuda_version,
        cards=tuple(cards),
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        excluded=tuple(sorted(excluded, key=_by_number)),
        warnings=tuple(warnings),
    )


def _refuse_both(readable: set[int], unreachable: Sequence[Excluded]) -> None:
    for out in unreachable:
        if out.card in readable:
            raise BackendUnavailable(
                f"card {out.card} is told both as one that answers and as one that does not: what"
                " was read does not belong together; take it again"
            )


def _told_apart(devices: Sequence[Device]) -> tuple[list[Device], list[Excluded]]:
    """The devices whose UUIDs no other has, and those that would be one device sold twice."""
    times = Counter(device.uuid for device in devices)
    alike = [
        Excluded(
            card=device.card,
            device=device.id,
            reason="mig-mismatch",
            detail=f"another device was told with the same UUID {device.uuid}",
        )
        for device in devices
        if times[device.uuid] > 1
    ]
    return [device for device in devices if times[device.uuid] == 1], alike


_RESETS = frozenset({"reset", "reboot", "bus-reset", "system-reboot"})

# Where something may still run, the device is listed beside its exclusion.
_STILL_LISTED = frozenset({"mig-pending", "compute-mode", "needs-reset", "worn", "fabric"})


def _by_number(out: Excluded) -> tuple[int, int]:
    return (-1 if out.card is None else out.card, -1 if out.device is None else out.device)


def _identified(reported: Sequence[ReportedCard], listing: Listing) -> list[ReportedCard]:
    """The cards under their true indexes and UUIDs.

    A card's position in the report is its index only while no card before it is missing, so the
    listing's index counts, if the listing knows all of them. A card without UUID is known by its
    PCI address, which is as stable as the slot.
    """
    index_of = {listed.uuid: listed.index for listed in listing.cards}
    uuid_of = {listed.index: listed.uuid for listed in listing.cards}
    complete = all(entry.card.uuid in index_of for entry in reported if entry.card.uuid)
    found = []
    for entry in reported:
        card = entry.card
        index = index_of.get(card.uuid, card.index) if complete else card.index
        uuid = card.uuid or uuid_of.get(card.index) or f"PCI-{card.pci or card.index}"
        found.append(replace(entry, card=replace(card, index=index, uuid=uuid)))
    for what, names in (
        ("UUID", [entry.card.uuid for entry in found]),
        ("index", [entry.card.index for entry in found]),
    ):
        if len(set(names)) < len(names):
            raise BackendUnavailable(
                f"two cards of the report have the same {what} ({names}): what was read does not"
                " belong together; take it again"
            )
    return found


def _with_host_memory(reported: ReportedCard, host: HostMemory | None) -> ReportedCard:
    """A card that draws on the system's memory, with that memory; others unchanged.

    Only where the driver says that the card has none of its own, never where it failed to tell.
    """
    card = reported.card
    if not reported.memory_absent or not (reported.coherent or is_unified(card.name)):
        return reported
    total = host.total_bytes if host else None
    free = host.available_bytes if host else None
    unified = replace(
        card,
        card_class=card_class(card.name, total),
        memory_total_bytes=total,
        memory_free_bytes=free,
        memory_used_bytes=None if total is None or free is None else total - free,
        unified=True,
    )
    return replace(reported, card=unified)


def _without_false_zero(reported: ReportedCard) -> ReportedCard:
    """A card in MIG mode without utilisation: a driver that tells one tells what is none."""
    if reported.card.mig_mode != "enabled":
        return reported
    return replace(reported, card=replace(reported.card, utilization_percent=None))


def _exclusion(reported: ReportedCard, card: Card, ecc_limit: int) -> Excluded | None:
    """Why nothing may be placed on a card, the gravest reason first."""

    def out(reason: str, detail: str) -> Excluded:
        return Excluded(card=card.index, reason=reason, detail=detail)

    if reported.trouble == "lost":
        return out("lost", "the driver has lost the card: reset it, or reboot the machine")
    if reported.trouble == "needs-reset" or card.recovery_action in _RESETS:
        action = card.recovery_action if card.recovery_action in _RESETS else "reset"
        return out("needs-reset", f"the driver asks for a {action} before the card works again")
    if card.wear.remap_failed:
        return out("worn", "the card has failed to remap a row of its memory: replace it")
    if (card.wear.ecc_volatile_uncorrected or 0) > ecc_limit:
        # Without the number itself: each further error would be another inventory.
        detail = f"more than {ecc_limit} uncorrectable memory errors since the driver was loaded"
        return out("worn", f"{detail}: reset the card, and replace it if they come back")
    if card.mig_mode and card.mig_pending and card.mig_mode != card.mig_pending:
        change = f"MIG is {card.mig_mode} and will be {card.mig_pending} after a reset of the card"
        return out("mig-pending", change)
    if card.mig_mode == "enabled":
        if not reported.instances:
            return out("mig-empty", _nothing_carved(reported))
    elif reported.trouble == "no-permission":
        return out("no-permission", "the driver does not let this user read the card")
    elif card.memory_total_bytes is None:
        return out("unreadable", "the card's memory is not readable")
    mode = _refusing_mode(reported, card)
    if mode is not None:
        return out("compute-mode", f"{mode}: set it with nvidia-smi -i {card.index} -c DEFAULT")
    if card.fabric and card.fabric.state and card.fabric.state.lower() in _FABRIC_NOT_READY:
        state = f"the NVLink fabric is {card.fabric.state}: check that the fabric manager runs"
        return out("fabric", state)
    return None


def _refusing_mode(reported: ReportedCard, card: Card) -> str | None:
    """Why the compute mode lets no process in; an exclusive mode lets one, while there is none."""
    mode = card.compute_mode or "Default"
    if mode.lower() == "prohibited":
        return f"the compute mode is {mode}"
    if mode.lower() == "default" or reported.processes == ():
        return None
    held = "holds the card" if reported.processes else "may hold the card, which is not told"
    return f"the compute mode is {mode} and a process {held}"


def _nothing_carved(reported: ReportedCard) -> str:
    if reported.bare_gpu_instances:
        return f"MIG is on and {_bare(reported)}"
    return "MIG is on and no instance is carved"


def _bare(reported: ReportedCard) -> str:
    """What is wrong with the GPU instances that hold nothing, and how to mend it."""
    number = reported.card.index
    ids = ",".join(str(one.id) for one in reported.bare)
    named = ", ".join(_named(reported, one) for one in reported.bare)
    return (
        f"GPU instance {named} of card {number} has no compute instance, so that nothing"
        f" can use it: nvidia-smi mig -i {number} -gi {ids} -cci"
    )


def _named(reported: ReportedCard, one: BareInstance) -> str:
    """A GPU instance with its profile and memory, as far as they are known: `3 (2g.20gb)`."""
    memory = one.memory_bytes and f"{one.memory_bytes // 2**20} MiB"
    about = [text for text in (bare_profile(reported, one), memory) if text]
    return f"{one.id} ({', '.join(about)})" if about else str(one.id)


_FABRIC_NOT_READY = frozenset({"in progress", "not started"})


def _devices(
    reported: ReportedCard, card: Card, listing: Listing
) -> tuple[list[Device], list[Excluded], list[str]]:
    if card.mig_mode == "enabled":
        listed = next((c.instances for c in listing.cards if c.uuid == card.uuid), None)
        return instance_devices(reported, card, listed)
    found = reported.processes
    device = Device(
        id=card.index,
        label=device_label(card.index),
        card=card.index,
        uuid=card.uuid,
        device_class=card.card_class,
        memory_total_bytes=card.memory_total_bytes,
        memory_reserved_bytes=card.memory_reserved_bytes,
        memory_used_bytes=card.memory_used_bytes,
        memory_free_bytes=card.memory_free_bytes,
        unified=card.unified,
        utilization_percent=card.utilization_percent,
        processes=None if found is None else tuple(p.process for p in found),
    )
    return [device], [], []


def _report_warnings(report: Report, unreadable: Sequence[UnreadableCard]) -> list[str]:
    warnings = [f"nvidia-smi says: {line}" for line in report.outside]
    if report.attached is not None and report.attached != len(report.cards):
        warnings.append(
            f"the driver attaches {report.attached} cards and {len(report.cards)} answered"
        )
    warnings += [
        f"the card at {card.pci} cannot be opened: {card.text or 'no reason given'}"
        for card in unreadable
    ]
    return warnings


def _card_warnings(reported: ReportedCard, card: Card) -> list[str]:
    warnings = []
    if reported.bare_gpu_instances and reported.instances:
        warnings.append(_bare(reported))
    if is_generic(card.name):
        warnings.append(
            f"card {card.index} has the generic name {card.name!r}: the driver is older than the"
            f" card, and its class is {card.card_class}"
        )
    if (card.compute_mode or "").lower().startswith("exclusive"):
        warnings.append(
            f"card {card.index} lets in one process at a time (compute mode {card.compute_mode}):"
            f" nvidia-smi -i {card.index} -c DEFAULT lets in several"
        )
    if card.wear.retired_pending:
        warnings.append(
            f"a page of card {card.index}'s memory waits to be retired: reload the driver, or"
            " reboot the machine"
        )
    if card.uuid.startswith("PCI-"):
        warnings.append(f"card {card.index} gives no UUID and is known by its PCI address")
    if (card.recovery_action or "").startswith("drain"):
        warnings.append(f"the driver asks to {card.recovery_action} card {card.index}")
    return warnings
