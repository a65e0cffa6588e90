"""Reads `nvidia-smi -L`: the cards, and the names and UUIDs of their MIG instances.

Pure. It is the only output that tells an instance's UUID and profile, and the only one that tells
a card's index when another card is missing. Text that it does not know is skipped.
"""

from __future__ import annotations

import re

import msgspec

_CARD = re.compile(r"GPU ([0-9]{1,3}): (.*) \(UUID: ([^)]+)\)", re.ASCII)
_INSTANCE = re.compile(
    r"\s+MIG\s+([0-9A-Za-z.+,_-]+)\s+Device\s+([0-9]{1,2}):\s+\(UUID:\s+(MIG-[^)]+)\)", re.ASCII
)
_OLD_ID = re.compile(r"MIG-GPU-[0-9A-Fa-f-]+/([0-9]{1,4})/([0-9]{1,4})", re.ASCII)
_LOST = re.compile(
    r"Unable to determine the device handle for gpu ?"
    r"([0-9A-F]+:[0-9A-F]+:[0-9A-F]+\.[0-9A-F]+): *([^.\n]*)",
    re.IGNORECASE | re.ASCII,
)


class ListedInstance(msgspec.Struct, frozen=True):
    """A MIG instance as listed: index inside its card, profile, UUID (old ids as printed)."""

    index: int
    profile: str
    uuid: str

    @property
    def ids(self) -> tuple[int, int] | None:
        """The (GPU instance, compute instance) that an id of a driver before 470 carries."""
        match = _OLD_ID.fullmatch(self.uuid)
        return (int(match[1]), int(match[2])) if match else None


class ListedCard(msgspec.Struct, frozen=True):
    """A card as listed. `instances` is empty for a card that is not in MIG mode."""

    index: int
    name: str
    uuid: str
    instances: tuple[ListedInstance, ...] = ()


class UnreadableCard(msgspec.Struct, frozen=True):
    """A card that the driver could not open, and what it said."""

    pci: str
    text: str


class Listing(msgspec.Struct, frozen=True):
    """What `-L` printed. `unreadable` are cards that it named but could not open."""

    cards: tuple[ListedCard, ...] = ()
    unreadable: tuple[UnreadableCard, ...] = ()


def parse_listing(text: str) -> Listing:
    """The listing in a text; empty where the text holds none."""
    cards: list[ListedCard] = []
    for line in text.splitlines():
        if card := _CARD.fullmatch(line.strip()):
            cards.append(ListedCard(int(card[1]), card[2], card[3]))
        elif cards and (found := _INSTANCE.fullmatch(line.rstrip())):
            instance = ListedInstance(int(found[2]), found[1], found[3])
            instances = (*cards[-1].instances, instance)
            cards[-1] = msgspec.structs.replace(cards[-1], instances=instances)
    return Listing(tuple(cards), unreadable_cards(text))


def unreadable_cards(text: str) -> tuple[UnreadableCard, ...]:
    """The cards of which any output of the tool says that their handle cannot be had."""
    return tuple(UnreadableCard(m[1].upper(), m[2].strip()) for m in _LOST.finditer(text))
