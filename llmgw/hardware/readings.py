"""Reads one printed value of nvidia-smi: a number with its unit, a counter, yes or no.

Pure. What is not a value (`N/A`, `[Not Supported]`, `GPU is lost`, an all-ones sentinel, an
unexpected unit) is `None`, never zero; a measured zero stays zero. `smi_xml` is the only caller.
"""

from __future__ import annotations

import re

MEBIBYTE = 1024 * 1024

LOST = frozenset({"gpu is lost", "err!"})
NEEDS_RESET = "gpu requires reset"
NO_PERMISSION = "insufficient permissions"
UNKNOWN_ERROR = "unknown error"

_NON_VALUES = LOST | {
    "",
    "n/a",
    "not supported",
    "not available",
    "not found",
    "requested functionality has been deprecated",
    "function not found",
    NEEDS_RESET,
    NO_PERMISSION,
    UNKNOWN_ERROR,
}
_NUMBER = re.compile(r"(-?[0-9]{1,20}(?:\.[0-9]{1,9})?)(?: ?(%|[A-Za-z]+))?", re.ASCII)
_COUNTER = re.compile(r"[0-9]{1,20}", re.ASCII)

# All-ones in 32, 63 and 64 bits is how the driver's library says "not available".
COUNTER_LIMIT = 2**32 - 1
MEBIBYTES_LIMIT = 2**32 - 1
CELSIUS_RANGE = (0.0, 500.0)  # below zero is a sentinel: -1 is all-ones
MARGIN_RANGE = (-500.0, 500.0)
WATTS_RANGE = (0.0, 100_000.0)
PERCENT_RANGE = (0.0, 100.0)
FAN_RANGE = (0.0, 1000.0)  # a fan may run above its nominal 100 %
MEGAHERTZ_RANGE = (0.0, 100_000.0)
_SLACK = 0.01


def bare(value: str | None) -> str:
    """The printed text in lower case, without the brackets that CSV output puts around it."""
    text = " ".join((value or "").split()).lower()
    return text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text


def word(value: str | None) -> str | None:
    """A printed word as it stands, or `None` for one of the texts that mean "no value".

    `None` as a printed word is kept: where it is a value (a recovery action) it has a meaning.
    """
    return None if value is None or bare(value) in _NON_VALUES else value.strip()


def number(value: str | None, unit: str, bounds: tuple[float, float]) -> float | None:
    """A number in the expected unit and within bounds; without a unit it is taken as it is."""
    match = _NUMBER.fullmatch((value or "").strip())
    if match is None or match[2] not in (None, unit):
        return None
    measured = float(match[1])
    return measured if bounds[0] <= measured <= bounds[1] else None


def celsius(value: str | None) -> float | None:
    """A temperature."""
    return number(value, "C", CELSIUS_RANGE)


def margin_celsius(value: str | None) -> float | None:
    """A distance to a temperature, which is negative beyond it."""
    return number(value, "C", MARGIN_RANGE)


def watts(value: str | None) -> float | None:
    """A power."""
    return number(value, "W", WATTS_RANGE)


def percent(value: str | None) -> float | None:
    """A utilisation, 0 to 100."""
    return number(value, "%", PERCENT_RANGE)


def fan_percent(value: str | None) -> float | None:
    """A fan's speed, which may exceed 100 %."""
    return number(value, "%", FAN_RANGE)


def megahertz(value: str | None) -> float | None:
    """A clock."""
    return number(value, "MHz", MEGAHERTZ_RANGE)


def mebibytes(value: str | None) -> int | None:
    """An amount of memory printed in MiB, in bytes."""
    amount = number(value, "MiB", (0.0, MEBIBYTES_LIMIT - 1.0))
    return None if amount is None else int(amount * MEBIBYTE)


Memory = tuple[int | None, int | None, int | None, int | None]
"""Total, reserved, used and free memory, in bytes."""


def believed(memory: Memory) -> Memory:
    """The amounts of a memory without those that contradict its total.

    A part that is larger than the whole is no part of it; of used and free that are more together
    nobody knows which is wrong. Rounding and what moves between two readings is no contradiction.
    """
    whole, *parts = memory
    if whole is None:
        return memory
    reserved, used, free = (part if part is not None and part <= whole else None for part in parts)
    if (used or 0) + (free or 0) > whole * (1 + _SLACK):
        used = free = None
    return (whole, reserved, used, free)


def counter(value: str | None) -> int | None:
    """A whole number that is not negative and not a sentinel."""
    text = (value or "").strip()
    if not _COUNTER.fullmatch(text):
        return None
    count = int(text)
    return count if count < COUNTER_LIMIT else None


def total(*counts: int | None) -> int | None:
    """The sum of the counters that the card keeps; `None` when it keeps none of them."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def yes_no(value: str | None) -> bool | None:
    """`Yes` and `No`; anything else is not known."""
    return {"yes": True, "no": False}.get(bare(value))
