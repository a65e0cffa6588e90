"""When a condition begins and when it ends: the numbers that an operator may set on a node.

Every condition has two limits with a band between them, and a time for which a value must have
been beyond the one or the other, so that a value that swings around a limit changes nothing. Plain
data: `core.judging` applies it, `llmgw.settings` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MIB = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the conditions. A first name of a pair begins one, the second ends it."""

    hot_celsius: float = 88.0
    cool_celsius: float = 80.0
    hot_margin_celsius: float = 2.0
    """Distance to the card's own slowdown: smaller is hotter."""
    cool_margin_celsius: float = 8.0
    hot_seconds: float = 30.0
    cool_seconds: float = 10.0
    throttled_seconds: float = 30.0
    unthrottled_seconds: float = 60.0
    capped_percent: float = 98.0
    """Power drawn, of the limit in force."""
    uncapped_percent: float = 90.0
    capped_seconds: float = 300.0
    uncapped_seconds: float = 60.0
    worn_errors: int = 10
    """More errors than these that ECC could not correct, since the card was reset."""
    worn_rows: int = 256
    """More remapped rows than these: an A100 or H100 has 512 to spare."""
    worn_pages: int = 60
    """More retired pages than these: cards before Ampere can note 64."""
    lost_seconds: float = 30.0
    found_seconds: float = 30.0
    stale_seconds: float = 30.0
    """So old what the driver tells of a card may be, by its own clock."""
    occupied_bytes: int = 512 * MIB
    vacant_bytes: int = 256 * MIB
    occupied_seconds: float = 5.0
    vacant_seconds: float = 5.0
    trouble_seconds: float = 30.0
    """How long a trouble of the node outlives the last word of it."""
    unmeasured_seconds: float = 300.0
    """How long a condition is believed whose value does not come any more."""


BANDS = (
    ("cool_celsius", "hot_celsius"),
    ("hot_margin_celsius", "cool_margin_celsius"),
    ("uncapped_percent", "capped_percent"),
    ("vacant_bytes", "occupied_bytes"),
)
"""The pairs between which a band lies: the first must not be above the second."""


def contradictions(limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield the pairs of limits that leave no band: what one begins the other would end."""
    for low, high in BANDS:
        if getattr(limits, low) > getattr(limits, high):
            yield low, high
