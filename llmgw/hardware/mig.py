"""MIG instances of one card as devices: what was reported, joined with the listing's names.

Pure; `assemble` calls it. NVML tells an instance's UUID and name by itself. The XML of most drivers
has neither, the listing no ids: they meet at (card, device index). Where no name is given the
profile follows from slices, multiprocessors and memory; without a UUID the id is the one that
drivers before 470 used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from llmgw.hardware.classes import Profile, instance_class, parse_profile
from llmgw.hardware.reports import BareInstance, ReportedCard, ReportedInstance, ReportedProcess
from llmgw.hardware.smi_list import ListedInstance
from llmgw.hardware.types import Card, Device, Excluded, Process, device_label, instance_id

# Multiprocessors in one compute slice, by architecture; cards with four slices instead of seven.
_SLICE_MULTIPROCESSORS = {"ampere": 14, "hopper": 16, "blackwell": 18}
_FOUR_SLICES = {"a30": 14, "rtx-pro-6000-blackwell": 46}
_EIGHTHS_TOLERANCE = 0.05
_PARTIAL = 0.9


def instance_devices(
    reported: ReportedCard, card: Card, listed: tuple[ListedInstance, ...] | None
) -> tuple[list[Device], list[Excluded], list[str]]:
    """The devices of a card in MIG mode, the instances that cannot be used, and warnings.

    `listed` is `None` where there is no listing of the card.

    An instance that only one of the two outputs knows, or whose ids disagree, was being changed
    while the tool ran: which UUID it has is not known, so nothing may be placed on it.
    """
    devices: list[Device] = []
    excluded: list[Excluded] = []
    names = {instance.index: instance for instance in listed or ()}
    for instance in reported.instances:
        name = names.pop(instance.index, None)
        device = _device(reported, card, instance, name)
        trouble = _mismatch(instance, name, listed=listed is not None)
        if instance.trouble is not None:
            excluded.append(_excluded(card, device.id, "unreadable", instance.trouble))
        elif trouble is not None:
            excluded.append(_excluded(card, device.id, "mig-mismatch", trouble))
        elif instance.memory_total_bytes is None:
            excluded.append(_excluded(card, device.id, "unreadable", "its memory is not readable"))
        else:
            devices.append(device)
    for name in names.values():
        detail = f"nvidia-smi -L lists it as {name.uuid}, nvidia-smi -q -x does not know it"
        excluded.append(
            _excluded(card, instance_id(card.index, name.index), "mig-mismatch", detail)
        )
    warnings = []
    if listed is None and any(one.uuid is None and not one.trouble for one in reported.instances):
        warnings.append(
            f"the UUIDs of card {card.index}'s MIG instances were not told: ids of the old form"
            " MIG-GPU-<uuid>/<gi>/<ci> stand for them"
        )
    if not excluded:
        warnings += _partly_carved(card, devices)
    return devices, excluded, warnings


def bare_profile(reported: ReportedCard, bare: BareInstance) -> str | None:
    """The profile of a GPU instance without compute instance, as far as numbers tell it."""
    whole = ReportedInstance(index=0, slices=bare.slices, memory_total_bytes=bare.memory_bytes)
    return derived_profile(reported, reported.card, whole)


def _partly_carved(card: Card, devices: list[Device]) -> Iterator[str]:
    """Warnings of GPU instances whose compute instances leave some of their slices unused."""
    profiles: dict[int, list[Profile]] = {}
    for device in devices:
        profile = parse_profile(device.profile or "")
        if profile is not None and device.gpu_instance is not None:
            profiles.setdefault(device.gpu_instance, []).append(profile)
    for number, found in sorted(profiles.items()):
        used = sum(profile.compute_slices or profile.slices for profile in found)
        if used < found[0].slices:
            yield (
                f"GPU instance {number} of card {card.index} has {found[0].slices} compute slices"
                f" and its compute instances use {used}: what fits beside them shows"
                f" nvidia-smi mig -i {card.index} -gi {number} -lcip"
            )


def _mismatch(
    instance: ReportedInstance, name: ListedInstance | None, *, listed: bool
) -> str | None:
    ids = (instance.gpu_instance, instance.compute_instance)
    if name is None and listed:
        return "nvidia-smi -q -x reports it, nvidia-smi -L does not list it"
    if name is None and instance.uuid is None and ids[0] is None:
        return "neither its UUID nor its GPU instance is known"
    if name and name.ids is not None and None not in ids and name.ids != ids:
        return f"nvidia-smi -L lists {name.uuid}, nvidia-smi -q -x has GPU/compute instance {ids}"
    if name and instance.uuid and name.uuid != instance.uuid:
        return f"nvidia-smi -L lists {name.uuid}, nvidia-smi -q -x reports {instance.uuid}"
    return None


def _excluded(card: Card, device: int, reason: str, detail: str) -> Excluded:
    return Excluded(card=card.index, device=device, reason=reason, detail=detail)


def _device(
    reported: ReportedCard, card: Card, instance: ReportedInstance, name: ListedInstance | None
) -> Device:
    told = name.profile if name else instance.profile
    if told is not None and parse_profile(told) is None:  # no name of a class
        told = None
    profile = told or derived_profile(reported, card, instance)
    number = instance_id(card.index, instance.index)
    gi, ci = instance.gpu_instance, instance.compute_instance
    uuid = name.uuid if name else instance.uuid
    return Device(
        id=number,
        label=device_label(number),
        card=card.index,
        uuid=uuid or f"MIG-{card.uuid}/{gi}/{ci or 0}",
        device_class=instance_class(card.card_class, profile),
        profile=profile,
        gpu_instance=gi,
        compute_instance=ci,
        memory_pool=f"{card.index}/gi{gi}" if gi is not None else device_label(number),
        memory_total_bytes=instance.memory_total_bytes,
        memory_reserved_bytes=instance.memory_reserved_bytes,
        memory_used_bytes=instance.memory_used_bytes,
        memory_free_bytes=instance.memory_free_bytes,
        utilization_percent=None if _shares(reported, instance) else instance.utilization_percent,
        processes=_processes(reported, instance),
    )


def _processes(reported: ReportedCard, instance: ReportedInstance) -> tuple[Process, ...] | None:
    """The processes on an instance; `None` if some process of the card cannot be attributed."""
    found = reported.processes
    if found is None or any(process.gpu_instance is None for process in found):
        return None
    return tuple(process.process for process in found if _runs_on(process, instance))


def _runs_on(process: ReportedProcess, instance: ReportedInstance) -> bool:
    return process.gpu_instance == instance.gpu_instance and (
        instance.compute_instance is None
        or process.compute_instance in (None, instance.compute_instance)
    )


def derived_profile(reported: ReportedCard, card: Card, instance: ReportedInstance) -> str | None:
    """A profile's name from an instance's numbers, as the driver would name it.

    The memory is the fraction of the card in eighths, rounded half up. Eighths leave a choice
    (a quarter is `1g` with double memory or `2g`, a half `3g` or `4g`) that the multiprocessors
    of the whole GPU instance decide. `None` where the numbers do not suffice.
    """
    if not card.memory_total_bytes or not instance.memory_total_bytes:
        return None
    share = instance.memory_total_bytes / card.memory_total_bytes * 8
    eighths = max(1, math.ceil(share - _EIGHTHS_TOLERANCE))
    card_gib = math.ceil(card.memory_total_bytes / 2**30)
    memory_gb = math.floor(eighths / 8 * card_gib + 0.5)
    family = next((f for f in _FOUR_SLICES if card.card_class.startswith(f + "-")), None)
    per_slice = (
        _FOUR_SLICES[family]
        if family
        else _SLICE_MULTIPROCESSORS.get((reported.architecture or "").lower(), 0)
    )
    slices = instance.slices or _slices(
        eighths, _siblings(reported, instance), per_slice, four=family is not None
    )
    if slices is None:
        return None
    return str(Profile(slices, memory_gb, _compute_slices(instance, slices, per_slice)))


def _compute_slices(instance: ReportedInstance, slices: int, per_slice: int) -> int | None:
    """The slices of a compute instance that is a part of its GPU instance, else `None`."""
    if instance.compute_slices:
        return instance.compute_slices if instance.compute_slices < slices else None
    own = instance.multiprocessors
    if own and per_slice and own < slices * per_slice * _PARTIAL:
        return max(1, round(own / per_slice))
    return None


def _shares(reported: ReportedCard, instance: ReportedInstance) -> bool:
    """Whether another compute instance stands on the same GPU instance, which is what is busy."""
    return any(
        one is not instance and one.gpu_instance == instance.gpu_instance
        for one in reported.instances
    )


def _siblings(reported: ReportedCard, instance: ReportedInstance) -> int:
    """The multiprocessors of all compute instances on an instance's GPU instance."""
    return sum(
        sibling.multiprocessors or 0
        for sibling in reported.instances
        if sibling is instance
        or (sibling.gpu_instance is not None and sibling.gpu_instance == instance.gpu_instance)
    )


def _slices(eighths: int, multiprocessors: int, per_slice: int, *, four: bool) -> int | None:
    """Compute slices of a GPU instance with so much memory and so many multiprocessors."""
    if four:
        return {2: 1, 4: 2, 8: 4}.get(eighths)
    if eighths in (1, 8):
        return {1: 1, 8: 7}[eighths]
    if not (multiprocessors and per_slice) or eighths not in (2, 4):
        return None
    wide = eighths
    return wide if multiprocessors > (wide - 0.1) * per_slice else wide - 1
