"""The record of one look through NVML: every call with what it returned.

Pure. `nvml_probe` makes it, `nvml_report` reads it, a capture keeps it. A call is named with its
arguments, `nvmlDeviceGetTemperatureThreshold(1)`; memory in bytes, power in milliwatts, as NVML has
them. What is not a value of the expected kind is `None` here, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from llmgw.hardware.types import MIG_CARD_STRIDE, PROCESSOR_DEVICE_ID

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 2, 3, 4, 13
GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 15, 16, 999
VERSION_MISMATCH = 25

# All-ones in 32 bits is how NVML says "not available" in a counter or an id.
_SENTINEL = 2**32 - 1


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one call returned, or the NVML code that it failed with and what that code says."""

    value: Any = None
    error: int | None = None
    said: str = ""


Calls = dict[str, Answer]


class InstanceRecord(msgspec.Struct, frozen=True):
    """The calls on one MIG instance; the handle's own call alone if it could not be had."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MIG_CARD_STRIDE)]
    calls: Calls = {}


class CardRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The calls on one card, and on the instances that it is carved into."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=PROCESSOR_DEVICE_ID)]
    calls: Calls = {}
    instances: tuple[InstanceRecord, ...] = ()


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why NVML could not be asked at all.

    `what` is `binding-missing`, `binding-stale`, `library`, `init` (with NVML's `code`) or, in a
    capture of one that hung or crashed, `no-answer`.
    """

    what: str
    said: str = ""
    code: int | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One look at a machine. `pairs` are the calls on two cards."""

    system: Calls = {}
    cards: tuple[CardRecord, ...] = ()
    pairs: Calls = {}
    failure: Refusal | None = None


def code(calls: Mapping[str, Answer], name: str) -> int | None:
    """The code that a call failed with."""
    answer = calls.get(name)
    return None if answer is None else answer.error


def whole(calls: Mapping[str, Answer], *names: str) -> int | None:
    """The first whole number that one of the calls gave; no sentinel, and not negative."""
    return next(
        (found for name in names if (found := as_whole(_value(calls, name))) is not None), None
    )


def as_whole(value: object) -> int | None:
    """A whole number that is neither negative nor a sentinel."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _SENTINEL else None


def number(
    calls: Mapping[str, Answer], name: str, bounds: tuple[float, float], scale: float = 1
) -> float | None:
    """A measured number within bounds, divided by the scale of NVML's unit."""
    return as_number(_value(calls, name), bounds, scale)


def as_number(value: object, bounds: tuple[float, float], scale: float = 1) -> float | None:
    """A number within bounds after it was divided by a scale."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    measured = value / scale
    return measured if bounds[0] <= measured <= bounds[1] else None


def text(calls: Mapping[str, Answer], name: str) -> str | None:
    """A text that is not empty."""
    value = _value(calls, name)
    return value.strip() or None if isinstance(value, str) else None


def members(calls: Mapping[str, Answer], name: str) -> dict[str, Any] | None:
    """The fields of a structure."""
    value = _value(calls, name)
    return value if isinstance(value, dict) else None


def items(calls: Mapping[str, Answer], name: str) -> list[Any] | None:
    """The entries of a list."""
    value = _value(calls, name)
    return value if isinstance(value, list) else None


def _value(calls: Mapping[str, Answer], name: str) -> object:
    answer = calls.get(name)
    return None if answer is None or answer.error is not None else answer.value
