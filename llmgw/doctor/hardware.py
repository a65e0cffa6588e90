"""Asks the hardware, or a capture of it, for what doctor has to judge. `checks` calls it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from anyio import to_thread
from msgspec.structs import replace

from llmgw.doctor.host import cards_on_the_bus, kernel_version
from llmgw.errors import BackendUnavailable
from llmgw.files import read_regular
from llmgw.hardware.captures import RECORD_FILE
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.nvml import Nvml, parse_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_record import Record, items, text
from llmgw.hardware.nvml_report import report_of
from llmgw.hardware.smi import Smi
from llmgw.hardware.types import Inventory
from llmgw.sample import hardware_settings, simulated_hardware
from llmgw.settings import Settings
from llmgw.views import findings as judge
from llmgw.views.carving import carving_findings
from llmgw.views.findings import Finding, HardwareFacts

TOOL_SECONDS = 10.0
# `--version` came with later drivers; the table's first line has always had it.
_TOOL_VERSION = re.compile(r"NVIDIA-SMI(?: version\s*:)?\s+([0-9]+(?:\.[0-9]+)+)")


async def look(settings: Settings, see: Callable[[Inventory], None]) -> list[Finding]:
    """Return the findings on this machine's hardware; `see` gets the inventory if there is one."""
    asked = hardware_settings(settings)
    # With the processor offered, `auto` tells a machine without a GPU from one that fails.
    probing = replace(asked, cpu_device=True) if asked.backend == "auto" else asked
    cards = await to_thread.run_sync(cards_on_the_bus)
    driver = await to_thread.run_sync(kernel_version)
    driverless = [judge.driverless_finding(cards)] if cards and driver is None else []
    try:
        found = await discover(probing)
    except BackendUnavailable as error:
        return [*driverless, judge.unreadable_finding(str(error))]
    if found.backend == "cpu" and asked.backend == "auto":
        if driverless or not asked.cpu_device:
            return driverless or [judge.no_gpu_finding(found.fallback_from)]
    elif not asked.cpu_device:
        found = replace(found, devices=tuple(d for d in found.devices if d.card is not None))
    see(found)
    facts = replace(await _facts(asked, found, driver), limits=settings.limits)
    return [*judge.hardware_findings(found, facts), *carving_findings(found)]


async def captured(node: str, folder: Path) -> list[Finding]:
    """Return the findings on a captured machine. Raises `UsageError` if it is no capture."""
    try:
        found = await discover(simulated_hardware(node, folder))
    except BackendUnavailable as error:
        return [judge.unreadable_finding(str(error), captured=True)]
    record = await to_thread.run_sync(_captured_record, folder / RECORD_FILE)
    facts = replace(_told(record), captured=True)
    return [*judge.hardware_findings(found, facts), *carving_findings(found)]


def _captured_record(path: Path) -> Record | Failure:
    try:
        return parse_record(read_regular(path).decode("utf-8", "replace"))
    except OSError:
        return Record()


async def _facts(asked: HardwareSettings, found: Inventory, driver: str | None) -> HardwareFacts:
    if found.backend == "cpu":
        return HardwareFacts()
    facts = HardwareFacts()
    if found.backend == "nvml":
        nvml = Nvml(library=asked.nvml_library, timeout_seconds=asked.timeout_seconds)
        facts = _told(await nvml.record())
    return replace(facts, kernel_version=driver, tool_version=await _tool(asked.nvidia_smi))


def _told(record: Record | Failure) -> HardwareFacts:
    """What one look through NVML tells beyond an inventory."""
    if isinstance(record, Failure):
        return HardwareFacts()
    asked = {
        card.index
        for card in record.cards
        if items(card.calls, "nvmlDeviceGetGpuInstances") is not None
    }
    bare = {
        one.card.index: one.bare_gpu_instances
        for one in report_of(record).cards
        if one.card.index in asked
    }
    version = text(record.system, "nvmlSystemGetNVMLVersion")
    return HardwareFacts(library_version=version, bare_gpu_instances=bare)


async def _tool(program: str) -> str | None:
    """The version that nvidia-smi says it has; absent where there is none, or it does not say."""
    smi = Smi(program=program, timeout_seconds=TOOL_SECONDS)
    for arguments in (("--version",), ()):
        try:
            output = await smi.run(*arguments)
        except BackendUnavailable:
            return None
        if match := _TOOL_VERSION.search(output.stdout):
            return match[1]
    return None
