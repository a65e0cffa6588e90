"""Reads a record of NVML's answers: the report on all cards, and how they are linked.

Pure; `nvml` and the captures call it. It is the twin of `smi_xml`, `smi_list` and `topology`, and
fills the same types: what can be placed on is decided by `assemble` for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from llmgw.hardware import nvml_fields as fields
from llmgw.hardware import nvml_record as read
from llmgw.hardware.classes import card_class, parse_profile
from llmgw.hardware.nvml_record import Calls, CardRecord, InstanceRecord, Record
from llmgw.hardware.readings import MEBIBYTE
from llmgw.hardware.reports import (
    BareInstance,
    Report,
    ReportedCard,
    ReportedInstance,
    ReportedProcess,
    Trouble,
    processes_or_unknown,
)
from llmgw.hardware.types import Card, Excluded, Process, type_of_mode

_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_ADDRESSES_SYSTEM_MEMORY = 2
_INSTANCE_NAME = re.compile(r"(?:^|\s)MIG (\S+)$")
_HANDLE = "nvmlDeviceGetHandleByIndex({})"
_UNOPENED = {
    read.NO_PERMISSION: "no-permission",
    read.GPU_IS_LOST: "lost",
    read.RESET_REQUIRED: "needs-reset",
    read.UNKNOWN: "lost",
}


ReadsCard = Callable[[CardRecord, int], ReportedCard]


def report_of(record: Record, reads: ReadsCard | None = None) -> Report:
    """The report on every card that could be opened. `reads` may know a way to read one faster."""
    reads = reads or card_report
    driver = read.text(record.system, "nvmlSystemGetDriverVersion")
    cuda = read.whole(
        record.system, "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"
    )
    major = int(match[0]) if (match := re.match("[0-9]{1,4}", driver or "")) else 0
    return Report(
        driver_version=driver,
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        cards=tuple(reads(card, major) for card in record.cards if _opened(card)),
    )


def unreachable_of(record: Record) -> tuple[Excluded, ...]:
    """The cards that the driver counts and would not open."""
    found = []
    for card in record.cards:
        if not _opened(card):
            answer = card.calls.get(_HANDLE.format(card.index), read.Answer(error=read.UNKNOWN))
            reason = _UNOPENED.get(answer.error or 0, "unreadable")
            said = answer.said or f"NVML error {answer.error}"
            detail = f"the driver cannot open card {card.index}: {said}"
            found.append(Excluded(card=card.index, reason=reason, detail=detail))
    return tuple(found)


def _opened(card: CardRecord) -> bool:
    answer = card.calls.get(_HANDLE.format(card.index))
    return answer is not None and answer.error is None


def card_report(record: CardRecord, driver: int) -> ReportedCard:
    """The report on one card, by the calls on it and the driver's major version."""
    calls = record.calls
    name = read.text(calls, "nvmlDeviceGetName")
    total, reserved, used, free = fields.memory(calls, driver)
    mode, pending = _mig_modes(calls)
    architecture = read.whole(calls, "nvmlDeviceGetArchitecture")
    addressing = read.whole(calls, "nvmlDeviceGetAddressingMode")
    return ReportedCard(
        card=Card(
            index=record.index,
            uuid=read.text(calls, "nvmlDeviceGetUUID") or "",
            name=name or "unknown",
            card_class=card_class(name, total),
            pci=pci_address(read.members(calls, "nvmlDeviceGetPciInfo")),
            memory_total_bytes=total,
            memory_reserved_bytes=reserved,
            memory_used_bytes=used,
            memory_free_bytes=free,
            mig_mode=mode,
            mig_pending=pending,
            compute_mode=_compute_mode(calls),
            fabric=fields.fabric(calls),
            utilization_percent=fields.utilization_percent(calls),
            throttled_by=fields.throttled_by(calls),
            pcie_replays=read.whole(calls, "nvmlDeviceGetPcieReplayCounter"),
            nvlink_errors=fields.nvlink_errors(calls),
            recovery_action=fields.recovery_action(calls),
            wear=fields.wear(calls),
            **fields.fan_and_heat(calls),
            **fields.clocks(calls),
        ),
        architecture=_ARCHITECTURES.get(architecture or 0),
        instances=tuple(_instance(one, driver) for one in _once(record.instances)),
        bare=_bare(record),
        processes=_processes(record, driver),
        trouble=_trouble(calls),
        memory_absent=fields.memory_absent(calls),
        coherent=addressing == _ADDRESSES_SYSTEM_MEMORY,
        fabric_status=fields.fabric_status(calls),
    )


def pci_address(info: dict[str, object] | None) -> str | None:
    """A card's address as nvidia-smi prints it, `00000000:C1:00.0`."""
    for name in ("busId", "busIdLegacy"):
        found = (info or {}).get(name)
        if isinstance(found, str) and ":" in found:
            domain, _, rest = found.upper().partition(":")
            return f"{domain:0>8}:{rest}"
    return None


def _mig_modes(calls: Calls) -> tuple[type_of_mode | None, type_of_mode | None]:
    names: tuple[type_of_mode, type_of_mode] = ("disabled", "enabled")
    modes = [
        names[mode] if (mode := read.as_whole(one)) is not None and mode < 2 else None
        for one in read.items(calls, "nvmlDeviceGetMigMode") or ()
    ]
    current, pending = (*modes, None, None)[:2]
    return current, pending


def _compute_mode(calls: Calls) -> str | None:
    mode = read.whole(calls, "nvmlDeviceGetComputeMode")
    return _COMPUTE_MODES[mode] if mode is not None and mode < len(_COMPUTE_MODES) else None


def _trouble(calls: Calls) -> Trouble | None:
    """Why nothing can run on the card, as the codes of the calls on it say."""
    codes = {answer.error for answer in calls.values()}
    if read.GPU_IS_LOST in codes:
        return "lost"
    if read.RESET_REQUIRED in codes:
        return "needs-reset"
    memory = {read.code(calls, fields.MEMORY_V2), read.code(calls, fields.MEMORY_V1)}
    if read.UNKNOWN in memory:
        return "lost"
    return "no-permission" if read.NO_PERMISSION in memory else None


def _once(instances: tuple[InstanceRecord, ...]) -> list[InstanceRecord]:
    """Each index once, whatever a record holds."""
    return list({one.index: one for one in instances}.values())


def _instance(record: InstanceRecord, driver: int) -> ReportedInstance:
    calls = record.calls
    handle = calls.get(f"nvmlDeviceGetMigDeviceHandleByIndex({record.index})")
    if handle is None or handle.error is not None:
        said = handle.said if handle else "no answer"
        return ReportedInstance(index=record.index, trouble=f"the driver cannot open it: {said}")
    total, reserved, used, free = fields.memory(calls, driver)
    attributes = read.members(calls, "nvmlDeviceGetAttributes") or {}
    return ReportedInstance(
        index=record.index,
        uuid=read.text(calls, "nvmlDeviceGetUUID"),
        profile=_profile(read.text(calls, "nvmlDeviceGetName")),
        gpu_instance=read.whole(calls, "nvmlDeviceGetGpuInstanceId"),
        compute_instance=read.whole(calls, "nvmlDeviceGetComputeInstanceId"),
        multiprocessors=read.as_whole(attributes.get("multiprocessorCount")),
        slices=read.as_whole(attributes.get("gpuInstanceSliceCount")) or None,
        compute_slices=read.as_whole(attributes.get("computeInstanceSliceCount")) or None,
        memory_total_bytes=total,
        memory_reserved_bytes=reserved,
        memory_used_bytes=used,
        memory_free_bytes=free,
        utilization_percent=fields.instance_utilization_percent(calls),
    )


def _profile(name: str | None) -> str | None:
    """The profile in an instance's name, `NVIDIA A100-SXM4-80GB MIG 1g.10gb`."""
    match = _INSTANCE_NAME.search(name or "")
    return match[1] if match and parse_profile(match[1]) else None


def _bare(record: CardRecord) -> tuple[BareInstance, ...]:
    """The GPU instances that no compute instance stands on, where the driver tells (to root)."""
    told = read.items(record.calls, "nvmlDeviceGetGpuInstances") or ()
    used = {read.whole(one.calls, "nvmlDeviceGetGpuInstanceId") for one in record.instances}
    found: dict[int, BareInstance] = {}
    for entry in told:
        about = entry if isinstance(entry, dict) else {}
        number, memory = read.as_whole(about.get("id")), read.as_whole(about.get("memory_mib"))
        if number is not None and number not in used:
            found[number] = BareInstance(
                id=number,
                slices=read.as_whole(about.get("slices")) or None,
                memory_bytes=memory * MEBIBYTE if memory else None,
            )
    return tuple(found[number] for number in sorted(found))


def _processes(record: CardRecord, driver: int) -> tuple[ReportedProcess, ...] | None:
    """The processes on a card, or on each of its instances; `None` if some list is not told."""
    subjects = [record.calls]
    if record.instances:
        subjects = [one.calls for one in record.instances]
    found: list[ReportedProcess] = []
    for calls in subjects:
        compute = _listed(calls, "Compute")
        if compute is None:
            return None
        kinds = (compute, _listed(calls, "Graphics"), _listed(calls, "MPSCompute"))
        for entry in (one for kind in kinds for one in kind or ()):
            process = _process(entry, calls, driver)
            if process is None:
                return None
            found.append(process)
    return processes_or_unknown(found)


def _listed(calls: Calls, kind: str) -> list[object] | None:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    newest = read.items(calls, name)
    return read.items(calls, f"{name}_v2") if newest is None else newest


def _process(entry: object, calls: Calls, driver: int) -> ReportedProcess | None:
    if not isinstance(entry, dict):
        return None
    gi, ci = (read.as_whole(entry.get(name)) for name in ("gpuInstanceId", "computeInstanceId"))
    return ReportedProcess(
        Process(
            pid=read.as_whole(entry.get("pid")) or 0,
            memory_bytes=fields.bytes_as_printed(entry.get("usedGpuMemory"), driver),
        ),
        read.whole(calls, "nvmlDeviceGetGpuInstanceId") if gi is None else gi,
        read.whole(calls, "nvmlDeviceGetComputeInstanceId") if ci is None else ci,
    )
