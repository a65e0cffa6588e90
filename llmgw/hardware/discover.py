"""What this machine has: the one way in to the hardware backends.

The agent and `llmgw agent inventory` call `discover`. A backend is a function from settings to an
inventory, registered by name here; one that cannot answer raises, and is never taken for a machine
that has nothing. Nothing else in llmgw chooses between backends.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware import captures
from llmgw.hardware.assemble import assemble
from llmgw.hardware.cpu import processor
from llmgw.hardware.host import boot_id, host_memory
from llmgw.hardware.nvml import Nvml, read_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.smi import Smi
from llmgw.hardware.topology import Topology
from llmgw.hardware.types import Inventory

BackendName = Literal["auto", "nvml", "nvidia-smi", "cpu"]


class HardwareSettings(msgspec.Struct, frozen=True):
    """How to look at the hardware.

    `nvidia_smi` is the program to run and `nvml_library` the library to load (`None`: the
    system's); `cpu_device` adds the processor beside the cards; `capture_from` reads a captured
    folder in place of both; `timeout_seconds` bounds each run of the tool and each look by NVML.
    """

    node: str
    backend: BackendName = "auto"
    nvidia_smi: str = "nvidia-smi"
    cpu_device: bool = False
    capture_from: Path | None = None
    timeout_seconds: float = 30
    nvml_library: str | None = None


async def discover(settings: HardwareSettings) -> Inventory:
    """What the node has, by the backend that the settings name.

    `auto` asks NVML, and nvidia-smi where NVML fails, with the reason in `fallback_from`. Only
    where neither is there at all, and the processor was asked for, does it fall back to the
    processor. A backend that exists and fails, or was named, raises `BackendUnavailable`: a quiet
    downgrade would hide a broken driver. A folder that holds no capture raises `UsageError`.
    """
    return await _BACKENDS[settings.backend](settings)


async def capture(settings: HardwareSettings, folder: Path) -> tuple[Path, ...]:
    """Write the raw outputs of both backends, scrubbed, into a folder; see `captures`."""
    return await captures.write_capture(_smi(settings), _library(settings), folder)


async def _auto(settings: HardwareSettings) -> Inventory:
    found = await _ask_nvml(settings)
    if isinstance(found, Inventory):
        return await _with_processor(settings, found)
    reason = f"nvml: {found.reason}" if found is not None else None
    if settings.capture_from is None and settings.cpu_device and found and found.absent:
        missing = await to_thread.run_sync(_missing, settings.nvidia_smi)
        if missing:
            tool = f"nvidia-smi: the program {settings.nvidia_smi!r} was not found"
            return _fallen_back(await _cpu(settings), f"{reason}; {tool}")
    try:
        return replace(await _nvidia_smi(settings), fallback_from=reason)
    except BackendUnavailable as error:
        if found is None:
            raise
        raise BackendUnavailable(f"{found}. nvidia-smi: {error}") from error


async def _nvml(settings: HardwareSettings) -> Inventory:
    found = await _ask_nvml(settings)
    if found is None:
        raise captures.lacks(settings.capture_from, captures.RECORD_FILE)
    if isinstance(found, Failure):
        raise found.error()
    return await _with_processor(settings, found)


async def _ask_nvml(settings: HardwareSettings) -> Inventory | Failure | None:
    """What NVML tells, or why it does not; `None` for a capture without its answers."""
    if settings.capture_from is not None:
        return await to_thread.run_sync(
            captures.read_nvml_capture, settings.node, settings.capture_from
        )
    record = await _library(settings).record()
    host = await to_thread.run_sync(host_memory)
    found = read_record(settings.node, record, library=settings.nvml_library, host=host)
    if isinstance(found, Failure):
        return found
    return replace(found, boot_id=await to_thread.run_sync(boot_id))


async def _nvidia_smi(settings: HardwareSettings) -> Inventory:
    if settings.capture_from is not None:
        found = await to_thread.run_sync(
            captures.read_capture, settings.node, settings.capture_from
        )
    else:
        found = await _read_cards(settings)
    return await _with_processor(settings, found)


async def _with_processor(settings: HardwareSettings, found: Inventory) -> Inventory:
    if not settings.cpu_device or settings.capture_from is not None:
        return found  # this machine's processor is no part of a captured machine
    device = await to_thread.run_sync(processor, settings.node)
    devices = sorted((*found.devices, device), key=lambda entry: entry.id)
    return replace(found, devices=tuple(devices))


async def _read_cards(settings: HardwareSettings) -> Inventory:
    smi = _smi(settings)
    report, lost = await smi.report()
    listing = await smi.listing()
    if any(entry.instances for entry in report.cards) and not listing.cards:
        raise BackendUnavailable(
            "nvidia-smi -L lists no card while nvidia-smi -q -x reports MIG instances, which have"
            " their UUIDs from -L alone: run nvidia-smi -L by hand to see why"
        )
    topology, warnings = await _topology(smi)
    host = await to_thread.run_sync(host_memory)
    found = assemble(settings.node, report, listing, topology=topology, host=host, unreachable=lost)
    boot = await to_thread.run_sync(boot_id)
    return replace(found, boot_id=boot, warnings=(*found.warnings, *warnings))


async def _topology(smi: Smi) -> tuple[Topology | None, tuple[str, ...]]:
    """The topology, without which cards can still be placed on: its failure is a warning."""
    try:
        return await smi.topology(), ()
    except BackendUnavailable as error:
        return None, (f"the NVLink topology is not known: {error}",)


async def _cpu(settings: HardwareSettings) -> Inventory:
    device = await to_thread.run_sync(processor, settings.node)
    boot = await to_thread.run_sync(boot_id)
    return Inventory(node=settings.node, boot_id=boot, backend="cpu", devices=(device,))


def _fallen_back(inventory: Inventory, reason: str) -> Inventory:
    warning = f"no GPU tool was found ({reason}): the processor is the only device of this node"
    return replace(inventory, fallback_from=reason, warnings=(warning, *inventory.warnings))


def _smi(settings: HardwareSettings) -> Smi:
    return Smi(program=settings.nvidia_smi, timeout_seconds=settings.timeout_seconds)


def _library(settings: HardwareSettings) -> Nvml:
    return Nvml(library=settings.nvml_library, timeout_seconds=settings.timeout_seconds)


def _missing(program: str) -> bool:
    return shutil.which(program) is None and not Path(program).exists()


_BACKENDS: dict[str, Callable[[HardwareSettings], Awaitable[Inventory]]] = {
    "auto": _auto,
    "cpu": _cpu,
    "nvidia-smi": _nvidia_smi,
    "nvml": _nvml,
}
