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
from llmgw.hardware.assemble import ECC_UNCORRECTED_LIMIT, assemble
from llmgw.hardware.cpu import processor
from llmgw.hardware.host import boot_id, host_memory
from llmgw.hardware.nvml import Nvml, read_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_session import NvmlSession
from llmgw.hardware.reports import Report
from llmgw.hardware.smi import Smi
from llmgw.hardware.topology import Topology
from llmgw.hardware.types import Inventory

BackendName = Literal["auto", "nvml", "nvidia-smi", "cpu"]


class HardwareSettings(msgspec.Struct, frozen=True):
    """How to look at the hardware.

    `nvidia_smi` is the program to run and `nvml_library` the library to load (`None`: the
    system's); `cpu_device` adds the processor beside the cards; `capture_from` reads a captured
    folder in place of both; `timeout_seconds` bounds each run of the tool and each look by NVML.
    More than `worn_errors` uncorrectable errors since the driver was loaded keep a card out.
    """

    node: str
    backend: BackendName = "auto"
    nvidia_smi: str = "nvidia-smi"
    cpu_device: bool = False
    capture_from: Path | None = None
    timeout_seconds: float = 30
    nvml_library: str | None = None
    worn_errors: int = ECC_UNCORRECTED_LIMIT


class Earlier:
    """What looks at a machine leave to those after it: NVML kept open, and how cards are linked.

    Asking nvidia-smi for the links costs more than all else, and can fail alone. They are asked
    for when a look is `afresh`; else, and where that fails, those of the same cards hold on.
    """

    def __init__(self, session: NvmlSession) -> None:
        self.session = session
        self.afresh = True
        self._cards: tuple[tuple[int, str], ...] | None = None
        self._topology: Topology | None = None
        self._said: tuple[str, ...] = ()

    async def topology(self, smi: Smi, report: Report) -> tuple[Topology | None, tuple[str, ...]]:
        """How the cards of a report are linked, and what is to be warned of."""
        cards = tuple((entry.card.index, entry.card.uuid) for entry in report.cards)
        if cards != self._cards:
            self._cards, self._topology, self._said, self.afresh = cards, None, (), True
        if self.afresh:
            known = self._topology
            found, said = await _topology(smi)
            if found is None and known is not None:
                self._said = (*said, "the NVLink topology is that of an earlier look")
            else:
                self._topology, self._said = found, said
            self.afresh = False
        return self._topology, self._said


async def discover(settings: HardwareSettings, earlier: Earlier | None = None) -> Inventory:
    """What the node has, by the backend that the settings name.

    `earlier` is what looks at the same machine left, if it is looked at again and again.

    `auto` asks NVML, and nvidia-smi where NVML fails, with the reason in `fallback_from`. Only
    where neither is there at all, and the processor was asked for, does it fall back to the
    processor. A backend that exists and fails, or was named, raises `BackendUnavailable`: a quiet
    downgrade would hide a broken driver. A folder that holds no capture raises `UsageError`.
    """
    return await _BACKENDS[settings.backend](settings, earlier)


async def capture(settings: HardwareSettings, folder: Path) -> captures.Capture:
    """Write the raw outputs of both backends, scrubbed, into a folder; see `captures`."""
    return await captures.write_capture(_smi(settings), library_of(settings), folder)


async def _auto(settings: HardwareSettings, earlier: Earlier | None) -> Inventory:
    found = await _ask_nvml(settings, earlier)
    if isinstance(found, Inventory):
        return await _with_processor(settings, found)
    reason = f"nvml: {found.reason}" if found is not None else None
    if settings.capture_from is None and settings.cpu_device and found and found.absent:
        missing = await to_thread.run_sync(_missing, settings.nvidia_smi)
        if missing:
            tool = f"nvidia-smi: the program {settings.nvidia_smi!r} was not found"
            return _fallen_back(await _cpu(settings, earlier), f"{reason}; {tool}")
    try:
        return replace(await _nvidia_smi(settings, earlier), fallback_from=reason)
    except BackendUnavailable as error:
        if found is None:
            raise
        raise BackendUnavailable(f"{found}. nvidia-smi: {error}") from error


async def _nvml(settings: HardwareSettings, earlier: Earlier | None) -> Inventory:
    found = await _ask_nvml(settings, earlier)
    if found is None:
        raise captures.lacks(settings.capture_from, captures.RECORD_FILE)
    if isinstance(found, Failure):
        raise found.error()
    return await _with_processor(settings, found)


async def _ask_nvml(
    settings: HardwareSettings, earlier: Earlier | None
) -> Inventory | Failure | None:
    """What NVML tells, or why it does not; `None` for a capture without its answers."""
    if settings.capture_from is not None:
        return await to_thread.run_sync(
            captures.read_nvml_capture, settings.node, settings.capture_from
        )
    if earlier is not None:
        return await earlier.session.sample()
    record = await library_of(settings).record()
    host = await to_thread.run_sync(host_memory)
    found = read_record(
        settings.node,
        record,
        library=settings.nvml_library,
        host=host,
        worn_errors=settings.worn_errors,
    )
    if isinstance(found, Failure):
        return found
    return replace(found, boot_id=await to_thread.run_sync(boot_id))


async def _nvidia_smi(settings: HardwareSettings, earlier: Earlier | None) -> Inventory:
    if settings.capture_from is not None:
        found = await to_thread.run_sync(
            captures.read_capture, settings.node, settings.capture_from
        )
    else:
        found = await _read_cards(settings, earlier)
    return await _with_processor(settings, found)


async def _with_processor(settings: HardwareSettings, found: Inventory) -> Inventory:
    if not settings.cpu_device or settings.capture_from is not None:
        return found  # this machine's processor is no part of a captured machine
    device = await to_thread.run_sync(processor, settings.node)
    devices = sorted((*found.devices, device), key=lambda entry: entry.id)
    return replace(found, devices=tuple(devices))


async def _read_cards(settings: HardwareSettings, earlier: Earlier | None) -> Inventory:
    smi = _smi(settings)
    report, lost = await smi.report()
    listing = await smi.listing()
    if any(entry.instances for entry in report.cards) and not listing.cards:
        raise BackendUnavailable(
            "nvidia-smi -L lists no card while nvidia-smi -q -x reports MIG instances, which have"
            " their UUIDs from -L alone: run nvidia-smi -L by hand to see why"
        )
    told = _topology(smi) if earlier is None else earlier.topology(smi, report)
    topology, warnings = await told
    host = await to_thread.run_sync(host_memory)
    found = assemble(
        settings.node,
        report,
        listing,
        topology=topology,
        host=host,
        unreachable=lost,
        ecc_uncorrected_limit=settings.worn_errors,
    )
    boot = await to_thread.run_sync(boot_id)
    return replace(found, boot_id=boot, warnings=(*found.warnings, *warnings))


async def _topology(smi: Smi) -> tuple[Topology | None, tuple[str, ...]]:
    """The topology, without which cards can still be placed on: its failure is a warning."""
    try:
        return await smi.topology(), ()
    except BackendUnavailable as error:
        return None, (f"the NVLink topology is not known: {error}",)


async def _cpu(settings: HardwareSettings, _: Earlier | None) -> Inventory:
    device = await to_thread.run_sync(processor, settings.node)
    boot = await to_thread.run_sync(boot_id)
    return Inventory(node=settings.node, boot_id=boot, backend="cpu", devices=(device,))


def _fallen_back(inventory: Inventory, reason: str) -> Inventory:
    warning = f"no GPU tool was found ({reason}): the processor is the only device of this node"
    return replace(inventory, fallback_from=reason, warnings=(warning, *inventory.warnings))


def _smi(settings: HardwareSettings) -> Smi:
    return Smi(program=settings.nvidia_smi, timeout_seconds=settings.timeout_seconds)


def library_of(settings: HardwareSettings) -> Nvml:
    """The library that the settings name."""
    return Nvml(
        library=settings.nvml_library,
        timeout_seconds=settings.timeout_seconds,
        worn_errors=settings.worn_errors,
    )


def _missing(program: str) -> bool:
    return shutil.which(program) is None and not Path(program).exists()


_BACKENDS: dict[str, Callable[[HardwareSettings, Earlier | None], Awaitable[Inventory]]] = {
    "auto": _auto,
    "cpu": _cpu,
    "nvidia-smi": _nvidia_smi,
    "nvml": _nvml,
}
