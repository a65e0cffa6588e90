"""Groups of values of one card as NVML tells them, in the terms of nvidia-smi.

Pure. `nvml_report` reads a card with these; each is the twin of a function in `smi_fields`. NVML
counts memory in bytes and the tool prints whole MiB: here too they are whole, rounded as the tool
of the same driver rounds, so that a fallback from one to the other changes no inventory.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from llmgw.hardware import nvml_record as read
from llmgw.hardware.nvml_record import Answer
from llmgw.hardware.readings import (
    CELSIUS_RANGE,
    FAN_RANGE,
    MARGIN_RANGE,
    MEBIBYTE,
    MEBIBYTES_LIMIT,
    MEGAHERTZ_RANGE,
    PERCENT_RANGE,
    WATTS_RANGE,
    Memory,
    believed,
    total,
)
from llmgw.hardware.smi_fields import Clocks, Heat
from llmgw.hardware.types import Fabric, Wear

MEMORY_V2 = f"nvmlDeviceGetMemoryInfo({0x02000028})"
MEMORY_V1 = "nvmlDeviceGetMemoryInfo"

# The tool of drivers before 545 cuts a fraction of a MiB off; later ones round to the nearest.
_ROUNDING_DRIVER = 545

# Bit by bit, in the tool's order and words. Idle clocks and settings are no throttling.
_THROTTLING = (
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
)
_RECOVERY = (
    *("none", "reset", "reboot", "drain-p2p", "drain-and-reset"),
    *("recover-imex-domain", "bus-reset", "system-reboot"),
)
_FABRIC_STATES = (None, "Not Started", "In Progress", "Completed")
_INSTANT_POWER, _RECOVERY_ACTION, _RESET_STATUS = "186", "230", "226"
_SHUTDOWN_MARGIN, _SLOWDOWN_MARGIN = "193", "194"
_FIELDS = "nvmlDeviceGetFieldValues"


def bytes_as_printed(amount: object, driver: int) -> int | None:
    """An amount of memory in whole MiB, as the tool of a driver rounds it, in bytes."""
    measured = read.as_number(amount, (0, MEBIBYTES_LIMIT - 1), MEBIBYTE)
    if measured is None:
        return None
    return int(measured + (0.5 if driver >= _ROUNDING_DRIVER else 0)) * MEBIBYTE


def memory(calls: Mapping[str, Answer], driver: int) -> Memory:
    """Total, reserved, used and free memory in bytes, of a card or an instance.

    The second version of the call (510) tells reserved, used and free, which make up the total; in
    the first, all that drivers before have, there is no `reserved` and it is part of `used`.
    """
    found = read.members(calls, MEMORY_V2) or read.members(calls, MEMORY_V1) or {}
    whole, reserved, used, free = (
        bytes_as_printed(found.get(part), driver) for part in ("total", "reserved", "used", "free")
    )
    return believed((whole or None, reserved, used, free))


def memory_absent(calls: Mapping[str, Answer]) -> bool:
    """Whether the driver says that the card has no memory of its own, or a total of zero."""
    found = read.members(calls, MEMORY_V2) or read.members(calls, MEMORY_V1)
    if found is not None:
        return found.get("total") == 0
    codes = {read.code(calls, MEMORY_V2), read.code(calls, MEMORY_V1)} - {None}
    other = {read.FUNCTION_NOT_FOUND, read.VERSION_MISMATCH}
    return read.NOT_SUPPORTED in codes and codes <= {read.NOT_SUPPORTED, *other}


def field(calls: Mapping[str, Answer], number: str, asked: str = _FIELDS) -> Any:  # noqa: ANN401 - any number
    """A field value by its id; each has a return code of its own."""
    return _field_value((read.members(calls, asked) or {}).get(number))


def _field_value(entry: object) -> Any:  # noqa: ANN401 - any number
    return entry.get("value") if isinstance(entry, dict) and "error" not in entry else None


def fan_and_heat(calls: Mapping[str, Answer]) -> Heat:
    """Heat, power and fan of a card; power to a hundredth of a watt, as it is printed."""
    heat = (
        read.number(calls, name, CELSIUS_RANGE)
        for name in ("nvmlDeviceGetTemperatureV(0)", "nvmlDeviceGetTemperature(0)")
    )
    power = (
        read.as_number(field(calls, _INSTANT_POWER), WATTS_RANGE, 1000),
        read.number(calls, "nvmlDeviceGetPowerUsage", WATTS_RANGE, 1000),
    )
    limit = (
        read.number(calls, name, WATTS_RANGE, 1000)
        for name in ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit")
    )
    shutdown, slowdown = (
        read.number(calls, f"nvmlDeviceGetTemperatureThreshold({kind})", CELSIUS_RANGE)
        for kind in (0, 1)
    )
    shutdown_margin, slowdown_margin = (
        read.as_number(field(calls, number, f"{_FIELDS}(limits)"), MARGIN_RANGE)
        for number in (_SHUTDOWN_MARGIN, _SLOWDOWN_MARGIN)
    )
    return Heat(
        temperature_celsius=next((value for value in heat if value is not None), None),
        temperature_margin_celsius=read.number(
            calls, "nvmlDeviceGetMarginTemperature", MARGIN_RANGE
        ),
        temperature_slowdown_celsius=slowdown or None,
        temperature_shutdown_celsius=shutdown or None,
        temperature_slowdown_margin_celsius=slowdown_margin,
        temperature_shutdown_margin_celsius=shutdown_margin,
        power_watts=_hundredths(next((value for value in power if value is not None), None)),
        power_limit_watts=_hundredths(next((value for value in limit if value is not None), None)),
        fan_percent=read.number(calls, "nvmlDeviceGetFanSpeed", FAN_RANGE),
    )


def _hundredths(watts: float | None) -> float | None:
    return None if watts is None else round(watts, 2)


def utilization_percent(calls: Mapping[str, Answer]) -> float | None:
    """How busy a whole card is; absent on a card in MIG mode."""
    found = read.members(calls, "nvmlDeviceGetUtilizationRates") or {}
    return read.as_number(found.get("gpu"), PERCENT_RANGE)


def instance_utilization_percent(calls: Mapping[str, Answer]) -> float | None:
    """How busy the multiprocessors of an instance were between two samples of a session (GPM)."""
    return read.number(calls, "nvmlGpmMetricsGet(2)", PERCENT_RANGE)


def clocks(calls: Mapping[str, Answer]) -> Clocks:
    """The clocks that the card runs at now."""
    graphics, memory_clock = (
        read.number(calls, f"nvmlDeviceGetClockInfo({kind})", MEGAHERTZ_RANGE) for kind in (0, 2)
    )
    return Clocks(clock_graphics_mhz=graphics, clock_memory_mhz=memory_clock)


def nvlink_errors(calls: Mapping[str, Answer]) -> int | None:
    """Errors of all links together, whichever counters the card's generation has."""
    found = (read.members(calls, f"{_FIELDS}(links)") or {}).values()
    return total(*(read.as_whole(_field_value(entry)) for entry in found))


def throttled_by(calls: Mapping[str, Answer]) -> tuple[str, ...] | None:
    """What holds the clocks down; empty where measured and nothing does."""
    bits = read.whole(
        calls,
        "nvmlDeviceGetCurrentClocksEventReasons",  # 535
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    )
    return None if bits is None else tuple(name for bit, name in _THROTTLING if bits & bit)


def recovery_action(calls: Mapping[str, Answer]) -> str | None:
    """What it takes to bring the card back; before 565 only whether that is a reset."""
    action = read.as_whole(field(calls, _RECOVERY_ACTION))
    if action is not None:
        return _RECOVERY[action] if action < len(_RECOVERY) else None
    return "reset" if field(calls, _RESET_STATUS) == 1 else None


def wear(calls: Mapping[str, Answer]) -> Wear:
    """What the card's memory has suffered, over its life and since the driver was loaded."""
    retired = [
        None if pages is None else len(pages)
        for pages in (read.items(calls, f"nvmlDeviceGetRetiredPages({cause})") for cause in (0, 1))
    ]
    rows = (read.items(calls, "nvmlDeviceGetRemappedRows") or [])[:4]
    corrected, uncorrected, pending, failed = (*map(read.as_whole, rows), *[None] * 4)[:4]
    return Wear(
        ecc_corrected=read.whole(calls, "nvmlDeviceGetTotalEccErrors(0,1)"),
        ecc_uncorrected=read.whole(calls, "nvmlDeviceGetTotalEccErrors(1,1)"),
        ecc_volatile_corrected=read.whole(calls, "nvmlDeviceGetTotalEccErrors(0,0)"),
        ecc_volatile_uncorrected=read.whole(calls, "nvmlDeviceGetTotalEccErrors(1,0)"),
        retired_pages=total(*retired),
        retired_pending=_flag(read.whole(calls, "nvmlDeviceGetRetiredPagesPendingStatus")),
        remapped_rows=total(corrected, uncorrected),
        remap_pending=_flag(pending),
        remap_failed=_flag(failed),
    )


def _flag(value: int | None) -> bool | None:
    return None if value is None else value != 0


def fabric(calls: Mapping[str, Answer]) -> Fabric | None:
    """The card's place in a multi-node NVLink fabric; `None` on a card that has none.

    Until the fabric is completed cluster and clique mean nothing.
    """
    found = _fabric(calls)
    state = read.as_whole(found.get("state"))
    name = _FABRIC_STATES[state] if state is not None and state < len(_FABRIC_STATES) else None
    if name is None:
        return None
    if name != "Completed":
        return Fabric(state=name)
    return Fabric(
        state=name,
        cluster_uuid=_uuid(found.get("clusterUuid")),
        clique=read.as_whole(found.get("cliqueId")),
    )


def fabric_status(calls: Mapping[str, Answer]) -> str | None:
    """The fabric's own verdict: `Success`, or what it ended with in NVML's words."""
    found = _fabric(calls)
    status = read.as_whole(found.get("status"))
    if status is None:
        return None
    said = found.get("said")
    return "Success" if status == 0 else said if isinstance(said, str) else f"error {status}"


def _fabric(calls: Mapping[str, Answer]) -> dict[str, Any]:
    newest = read.members(calls, "nvmlDeviceGetGpuFabricInfoV")
    return newest or read.members(calls, "nvmlDeviceGetGpuFabricInfo") or {}


def _uuid(parts: object) -> str | None:
    """A UUID of sixteen bytes, as it is printed."""
    if not isinstance(parts, list) or len(parts) != 16:
        return None
    if not all(isinstance(part, int) and 0 <= part < 256 for part in parts):
        return None
    digits = bytes(parts).hex()
    ends = (0, 8, 12, 16, 20, 32)
    return "-".join(digits[start:end] for start, end in pairwise(ends))
