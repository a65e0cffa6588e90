"""Groups of values inside one card's report, over the layouts of drivers 418 to 595.

Pure. `smi_xml` reads a card with these. Each function knows where every driver puts one kind of
thing: memory, heat and power, throttling, wear, the fabric.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TypedDict

from llmgw.hardware import readings as read
from llmgw.hardware.types import Fabric, Wear

# Reasons that clocks are below their maximum which are no throttling: nothing to do, or a setting.
_NOT_THROTTLING = frozenset({"gpu_idle", "applications_clocks_setting", "display_clocks_setting"})

# Where errors are counted; a card has the parts of its own generation.
_CORRECTED = ("single_bit/total", "sram_correctable", "dram_correctable")
_UNCORRECTED = (
    "double_bit/total",
    "sram_uncorrectable",
    "sram_uncorrectable_parity",  # 570, Ampere and later: in place of the one above
    "sram_uncorrectable_secded",
    "dram_uncorrectable",
)


class Heat(TypedDict):
    """The fields of `Card` for heat, power and fan."""

    temperature_celsius: float | None
    temperature_margin_celsius: float | None
    temperature_slowdown_celsius: float | None
    temperature_shutdown_celsius: float | None
    temperature_slowdown_margin_celsius: float | None
    temperature_shutdown_margin_celsius: float | None
    power_watts: float | None
    power_limit_watts: float | None
    fan_percent: float | None


class Clocks(TypedDict):
    """The fields of `Card` for clocks."""

    clock_graphics_mhz: float | None
    clock_memory_mhz: float | None


def memory(element: ET.Element) -> read.Memory:
    """Total, reserved, used and free memory in bytes, of a card or an instance.

    As the driver means them: from 510 on total is reserved, used and free together; before, there
    is no `reserved`, and what the driver keeps for itself is in `used`. A total of zero is a
    driver's way to say that there is no memory of its own.
    """
    total, reserved, used, free = (
        read.mebibytes(element.findtext(f"fb_memory_usage/{part}"))
        for part in ("total", "reserved", "used", "free")
    )
    return read.believed((total or None, reserved, used, free))


def fan_and_heat(gpu: ET.Element) -> Heat:
    """Heat, power and fan of a card.

    The margin is degrees left, never a temperature; recent cards give it, and margins as limits,
    instead of absolute limits. Power is the card's, never the module's around it.
    """

    def heat(tag: str) -> str | None:
        return gpu.findtext(f"temperature/gpu_temp{tag}")

    return Heat(
        temperature_celsius=read.celsius(heat("")),
        temperature_margin_celsius=read.margin_celsius(heat("_tlimit")),
        temperature_slowdown_celsius=read.celsius(heat("_slow_threshold")),
        temperature_shutdown_celsius=read.celsius(heat("_max_threshold")),
        temperature_slowdown_margin_celsius=read.margin_celsius(heat("_slow_tlimit_threshold")),
        temperature_shutdown_margin_celsius=read.margin_celsius(heat("_max_tlimit_threshold")),
        power_watts=_first_watts(
            gpu,
            "gpu_power_readings/instant_power_draw",  # 570
            "gpu_power_readings/power_draw",  # 535
            "gpu_power_readings/average_power_draw",
            "power_readings/power_draw",  # up to 525
        ),
        power_limit_watts=_first_watts(
            gpu,
            "gpu_power_readings/current_power_limit",  # 535
            "gpu_power_readings/requested_power_limit",
            "power_readings/enforced_power_limit",  # up to 525
            "power_readings/power_limit",
        ),
        fan_percent=read.fan_percent(gpu.findtext("fan_speed")),
    )


def clocks(gpu: ET.Element) -> Clocks:
    """The clocks that the card runs at now, not those that it might or was set to."""
    return Clocks(
        clock_graphics_mhz=read.megahertz(gpu.findtext("clocks/graphics_clock")),
        clock_memory_mhz=read.megahertz(gpu.findtext("clocks/mem_clock")),
    )


def throttled_by(gpu: ET.Element) -> tuple[str, ...] | None:
    """What holds the clocks down; empty where measured and nothing does."""
    section = gpu.find("clocks_event_reasons")  # 535
    if section is None:
        section = gpu.find("clocks_throttle_reasons")
    if section is None:
        return None
    states: dict[str, str] = {}
    for element in section:
        name = element.tag.removeprefix("clocks_event_reason_")
        states[name.removeprefix("clocks_throttle_reason_")] = read.bare(element.text)
    if not {"active", "not active"} & set(states.values()):
        return None
    return tuple(
        name for name, state in states.items() if state == "active" and name not in _NOT_THROTTLING
    )


def wear(gpu: ET.Element) -> Wear:
    """What the card's memory has suffered, over its life and since the driver was loaded.

    Counters of a kind are summed over where they occur; one that no part keeps is absent.
    """
    pending = [
        read.yes_no(gpu.findtext(f"retired_pages/{tag}"))
        for tag in ("pending_retirement", "pending_blacklist")
    ]
    known = [answer for answer in pending if answer is not None]
    return Wear(
        ecc_corrected=_ecc(gpu, "aggregate", _CORRECTED),
        ecc_uncorrected=_ecc(gpu, "aggregate", _UNCORRECTED),
        ecc_volatile_corrected=_ecc(gpu, "volatile", _CORRECTED),
        ecc_volatile_uncorrected=_ecc(gpu, "volatile", _UNCORRECTED),
        retired_pages=_sum(
            gpu,
            "retired_pages/multiple_single_bit_retirement/retired_count",
            "retired_pages/double_bit_retirement/retired_count",
        ),
        retired_pending=any(known) if known else None,
        remapped_rows=_sum(
            gpu, "remapped_rows/remapped_row_corr", "remapped_rows/remapped_row_unc"
        ),
        remap_pending=read.yes_no(gpu.findtext("remapped_rows/remapped_row_pending")),
        remap_failed=read.yes_no(gpu.findtext("remapped_rows/remapped_row_failure")),
    )


def fabric(gpu: ET.Element) -> Fabric | None:
    """The card's place in a multi-node NVLink fabric; `None` on a card that has none."""
    state = read.word(gpu.findtext("fabric/state"))
    if state is None:
        return None
    return Fabric(
        state=state,
        cluster_uuid=read.word(gpu.findtext("fabric/clusterUuid")),
        clique=read.counter(gpu.findtext("fabric/cliqueId")),
    )


def _first_watts(gpu: ET.Element, *paths: str) -> float | None:
    measured = (read.watts(gpu.findtext(path)) for path in paths)
    return next((value for value in measured if value is not None), None)


def _ecc(gpu: ET.Element, since: str, parts: tuple[str, ...]) -> int | None:
    return _sum(gpu, *(f"ecc_errors/{since}/{part}" for part in parts))


def _sum(gpu: ET.Element, *paths: str) -> int | None:
    return read.total(*(read.counter(gpu.findtext(path)) for path in paths))
