"""The conditions of a node in plain words: what its agent logged, and what its inventory says.

Pure. Both are facts that keep placement from devices, or send it elsewhere first; here they are one
list in which nothing is said twice. `nodes`, `devices` and `status` show it.
"""

from __future__ import annotations

from llmgw.core.cluster import Node
from llmgw.core.meanings import AVOIDED, MEANINGS, what_to_do
from llmgw.hardware.types import MIG_CARD_STRIDE, MIG_DEVICE_BASE, Excluded, device_label
from llmgw.views.shared import Row


class ConditionRow(Row, frozen=True, kw_only=True):
    """One condition of one device, or of the whole node where there is no `device`.

    `avoided`: the device may still be used, after all others; else nothing is placed on it.
    """

    device: str | None = None
    name: str
    detail: str
    avoided: bool = False
    meaning: str | None = None
    advice: str | None = None

    def __str__(self) -> str:
        """As one line: `0 hot: 91 °C`."""
        return " ".join(filter(None, (self.device, f"{self.name}: {self.detail}")))


def conditions(node: Node) -> tuple[ConditionRow, ...]:
    """Return what holds for the node and its devices: that of the node first, then by number."""
    found = {
        (out.device if out.device is not None else out.card, out.reason): out.detail
        for out in _excluded(node)
    }
    for logged in node.conditions:
        found.setdefault((logged.device, logged.name), logged.detail)
    ordered = sorted(found.items(), key=lambda item: (item[0][0] or 0, item[0][1]))
    nodes_own = [item for item in ordered if item[0][0] is None]
    of_devices = [item for item in ordered if item[0][0] is not None]
    return tuple(_row(*key, detail) for key, detail in (*nodes_own, *of_devices))


def _excluded(node: Node) -> tuple[Excluded, ...]:
    return node.inventory.excluded if node.inventory is not None else ()


def _row(device: int | None, name: str, detail: str) -> ConditionRow:
    meaning, _ = MEANINGS.get(name, (None, None))
    return ConditionRow(
        device=None if device is None else device_label(device),
        name=name,
        detail=detail,
        avoided=name in AVOIDED,
        meaning=meaning,
        advice=what_to_do(name, card_of(device)),
    )


def card_of(device: int | None) -> int | None:
    """Return the index of the card that a device's number says it is, or is on."""
    if device is None or device < MIG_DEVICE_BASE:
        return device
    return (device - MIG_DEVICE_BASE) // MIG_CARD_STRIDE
