"""What several views share: the base of rows, times as text, and what a node or device is up to.

Pure; only the views use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from llmgw.core.cluster import Cluster, Node, Part
from llmgw.core.values import Phase
from llmgw.hardware.types import device_label

NodeState = Literal["up", "lost", "stopped"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_10000_NS = 253_402_300_800 * 10**9


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of all rows: a field with a default is absent where nothing is known."""


def as_time(time_ns: int) -> str | None:
    """Return nanoseconds since 1970 as RFC 3339 in UTC to the millisecond; `None` for 0."""
    if not 0 < time_ns < _YEAR_10000_NS:
        return None
    moment = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def node_state(node: Node) -> NodeState:
    """Return whether the node can be spoken to. Lost says more than stopped."""
    if node.lost:
        return "lost"
    return "up" if node.started else "stopped"


def part_phase(state: Cluster, part: Part) -> Phase:
    """Return the part's phase as it must be taken: on a lost node nothing newer is known."""
    node = state.nodes.get(part.node)
    if node is not None and node.lost and part.phase != "stopped":
        return "lost"
    return part.phase


def labels(devices: Iterable[int]) -> tuple[str, ...]:
    """Return device numbers as people see them."""
    return tuple(device_label(device) for device in devices)
