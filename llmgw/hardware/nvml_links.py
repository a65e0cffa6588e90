"""Which cards share NVLink, from NVML's links: the same topology that `topo -m` prints.

Pure; `nvml` and the captures call it. A link between two cards counts if both ends are up. A link
to an NVSwitch carries the switch's address, which is no card's, and reaches every card that has
one too. In a virtual machine the far end is unknown: there the driver's word on the pair counts.
"""

from __future__ import annotations

from llmgw.hardware import nvml_record as read
from llmgw.hardware.nvml_record import CardRecord, Record
from llmgw.hardware.nvml_report import pci_address
from llmgw.hardware.topology import Topology

_MOST_LINKS = 36
_CARD, _SWITCH = 0, 2
_NO_LINKS = frozenset({read.NOT_SUPPORTED, read.INVALID_ARGUMENT, read.FUNCTION_NOT_FOUND})


def topology_of(record: Record) -> Topology:
    """The links of all cards and what they are near. A card that does not tell has no entry."""
    told = [card for card in record.cards if _tells(card)]
    at = {
        address: card.index
        for card in told
        if (address := pci_address(read.members(card.calls, "nvmlDeviceGetPciInfo")))
    }
    ends = {card.index: _ends(card, at) for card in told}
    peers = {
        card: frozenset(
            peer
            for peer, others in ends.items()
            if peer != card and _linked(record, (card, own), (peer, others))
        )
        for card, own in ends.items()
    }
    nodes = {card.index: _memory_node(card) for card in record.cards}
    near = {card.index: _processors(card) for card in record.cards}
    return Topology(
        peers,
        numa={card: node for card, node in nodes.items() if node is not None},
        cpus={card: processors for card, processors in near.items() if processors},
        down={card.index: _down(card) for card in told},
    )


def _tells(card: CardRecord) -> bool:
    """Whether the card's links are known, be it that it has none."""
    answer = card.calls.get("nvmlDeviceGetNvLinkState(0)")
    return answer is not None and (answer.error is None or answer.error in _NO_LINKS)


def _ends(card: CardRecord, at: dict[str, int]) -> frozenset[int | str]:
    """What the card's active links lead to: cards by index, `switch`, `unknown`."""
    found: set[int | str] = set()
    for link in range(_MOST_LINKS):
        if read.whole(card.calls, f"nvmlDeviceGetNvLinkState({link})") != 1:
            continue
        kind = read.whole(card.calls, f"nvmlDeviceGetNvLinkRemoteDeviceType({link})")
        info = read.members(card.calls, f"nvmlDeviceGetNvLinkRemotePciInfo({link})")
        peer = at.get(pci_address(info) or "")
        if kind == _SWITCH:
            found.add("switch")
        elif peer is not None:
            found.add(peer)
        elif kind != _CARD:
            found.add("unknown")
    return frozenset(found)


def _linked(
    record: Record, one: tuple[int, frozenset[int | str]], other: tuple[int, frozenset[int | str]]
) -> bool:
    (first, own), (second, others) = one, other
    if second in own and first in others:
        return True
    if "switch" in own and "switch" in others:
        return True
    if "unknown" in own and "unknown" in others:
        name = f"nvmlDeviceGetP2PStatus({min(first, second)},{max(first, second)})"
        return read.whole(record.pairs, name) == 0
    return False


def _memory_node(card: CardRecord) -> int | None:
    """The one memory node that the card is near; `None` where it is several or none."""
    bits = _bits(card, "nvmlDeviceGetMemoryAffinity(16,0)")
    return bits[0] if len(bits) == 1 else None


def _processors(card: CardRecord) -> str:
    """The processors that the card is near, as the kernel lists them: `0-23,48-71`."""
    runs: list[list[int]] = []
    for bit in _bits(card, "nvmlDeviceGetCpuAffinity(32)"):
        if runs and bit == runs[-1][-1] + 1:
            runs[-1][1:] = [bit]
        else:
            runs.append([bit])
    return ",".join("-".join(map(str, run)) for run in runs)


def _bits(card: CardRecord, name: str) -> list[int]:
    """The numbers of the bits that are set in a mask of words of 64 bits."""
    return [
        64 * position + bit
        for position, word in enumerate(read.items(card.calls, name) or ())
        if isinstance(word, int)
        for bit in range(64)
        if word >> bit & 1
    ]


def _down(card: CardRecord) -> tuple[int, ...]:
    """The links that the card has and that are not active."""
    return tuple(
        link
        for link in range(_MOST_LINKS)
        if read.whole(card.calls, f"nvmlDeviceGetNvLinkState({link})") == 0
    )
