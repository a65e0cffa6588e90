"""Reads again what moved on a card, instead of all that is known of it.

Pure; a session on NVML uses it, since from second to second a card changes its heat, its clocks
and its load, and seldom anything else. Whatever else has changed, be it a value that came as an
error or an error that came as a value, has the whole card read by `nvml_report`.
"""

from __future__ import annotations

from msgspec.structs import replace

from llmgw.hardware import nvml_fields as fields
from llmgw.hardware.nvml_record import CardRecord
from llmgw.hardware.nvml_report import card_report
from llmgw.hardware.reports import ReportedCard

_MOVING = frozenset(
    {
        fields.MEMORY_V2,
        fields.MEMORY_V1,
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperatureV(0)",
        "nvmlDeviceGetTemperature(0)",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetClockInfo(0)",
        "nvmlDeviceGetClockInfo(2)",
        "nvmlDeviceGetFieldValues",
    }
)


class CardReader:
    """Reads cards as `card_report` does, and remembers the last report on each."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[CardRecord, ReportedCard]] = {}

    def __call__(self, record: CardRecord, driver: int) -> ReportedCard:
        """The report on a card, by the calls on it and the driver's major version."""
        before, known = self._last.get(record.index, (None, None))
        if before is record and known is not None:
            return known
        found = None
        if before is not None and known is not None and _only_moved(before, record):
            found = _moved(known, record, driver)
        found = found or card_report(record, driver)
        self._last[record.index] = (record, found)
        return found


def _only_moved(before: CardRecord, record: CardRecord) -> bool:
    if before.instances != record.instances or before.calls.keys() != record.calls.keys():
        return False
    for name, answer in record.calls.items():
        was = before.calls[name]
        if was is not answer and (name not in _MOVING or was.error != answer.error):
            return False
    return True


def _moved(known: ReportedCard, record: CardRecord, driver: int) -> ReportedCard | None:
    calls = record.calls
    total, reserved, used, free = fields.memory(calls, driver)
    before = (known.card.memory_total_bytes, known.card.memory_reserved_bytes)
    if total is None or (total, reserved) != before:
        return None
    card = replace(
        known.card,
        memory_used_bytes=used,
        memory_free_bytes=free,
        utilization_percent=fields.utilization_percent(calls),
        throttled_by=fields.throttled_by(calls),
        recovery_action=fields.recovery_action(calls),
        **fields.fan_and_heat(calls),
        **fields.clocks(calls),
    )
    return replace(known, card=card)
