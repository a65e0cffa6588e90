"""What doctor says of cards that are carved in part: memory and compute that nothing can use.

Pure; `llmgw.doctor` calls it. An instance that is there is no fault, and neither is a part of a
card that was left out on purpose, so all of this is warned of and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmgw.hardware.classes import Profile, parse_profile
from llmgw.hardware.types import Card, Device, Inventory
from llmgw.views.findings import GIB, Finding

_SLICES = 7
_FOUR_SLICES = ("a30-", "rtx-pro-6000-")
"""Classes of cards with four compute slices and as many of memory, not seven and eight."""
_SMALLEST = 0.85
"""What the smallest instance has, at least, of its part of the card's memory."""


def carving_findings(inventory: Inventory) -> Iterator[Finding]:
    """Yield what is left over of each card in MIG mode, and of each GPU instance."""
    broken = {out.card for out in inventory.excluded}
    for card in inventory.cards:
        devices = [device for device in inventory.devices if device.card == card.index]
        profiles = [parse_profile(device.profile or "") for device in devices]
        if card.mig_mode == "enabled" and devices and card.index not in broken:
            carved = [(d, p) for d, p in zip(devices, profiles, strict=True) if p is not None]
            if len(carved) == len(devices):
                yield from _rest_of_instances(card, carved)
                yield from _rest_of_card(card, carved)


def _rest_of_card(card: Card, carved: Sequence[tuple[Device, Profile]]) -> Iterator[Finding]:
    most = 4 if card.card_class.startswith(_FOUR_SLICES) else _SLICES
    # Compute instances of one GPU instance share its slices and its memory: it counts once.
    owners = {device.memory_pool: (device, profile) for device, profile in carved}
    slices = most - sum(profile.slices for _, profile in owners.values())
    held = [device.memory_total_bytes for device, _ in owners.values()]
    known = [size for size in held if size is not None]
    if card.memory_total_bytes is None or len(known) < len(held) or slices < 1:
        return
    rest_bytes = card.memory_total_bytes - sum(known)
    if rest_bytes < _SMALLEST * card.memory_total_bytes / (4 if most == 4 else 8):
        return
    number = card.index
    yield Finding(
        f"carving of card {number}",
        "warning",
        f"{slices} of {most} slices and {rest_bytes / GIB:.1f} GiB are in no instance that can be"
        " used",
        f"nvidia-smi mig -i {number} -lgip shows what still fits,"
        f" nvidia-smi mig -i {number} -cgi PROFILE -C makes it",
    )


def _rest_of_instances(card: Card, carved: Sequence[tuple[Device, Profile]]) -> Iterator[Finding]:
    by_instance: dict[int, list[Profile]] = {}
    for device, profile in carved:
        if device.gpu_instance is not None:
            by_instance.setdefault(device.gpu_instance, []).append(profile)
    for instance, profiles in sorted(by_instance.items()):
        slices = profiles[0].slices
        rest = slices - sum(profile.compute_slices or profile.slices for profile in profiles)
        if rest > 0:
            where = f"nvidia-smi mig -i {card.index} -gi {instance}"
            yield Finding(
                f"GPU instance {instance} of card {card.index}",
                "warning",
                f"{rest} of its {slices} compute slices are in no compute instance",
                f"{where} -lcip shows what still fits, {where} -cci PROFILE makes it",
            )
