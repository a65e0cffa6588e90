"""A pretended NVML: a library that answers the real binding for a machine that you describe.

For tests of llmgw and of what is built on it. `fake_nvml.c` is compiled in a fraction of a second,
with the symbols that the machine's driver had; the answers are a text beside the library. Write it
again over the old one to change the machine. As with the true library, whoever has NVML
initialised sees values move, and goes on seeing the MIG instances that there were.

    library = write_fake_nvml(tmp_path, FakeMachine((FakeCard(name="NVIDIA L40S",
                              memory_total_mib=46068),)))
    settings = HardwareSettings(node="n1", backend="nvml", nvml_library=str(library))
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from llmgw.testing.machines import (
    MEBIBYTE,
    NO_CLUSTER,
    SAID,
    FakeCard,
    FakeInstance,
    FakeMachine,
    FakeProcess,
    card_pci,
    card_uuid,
    instance_index,
    instance_uuid,
    memory_bytes,
)

SONAME = "libnvidia-ml.so.1"
NOT_AVAILABLE = 2**64 - 1
ANY_INSTANCE = 2**32 - 1

Answers = dict[str, str]
"""Answers by subject and call, as `fake_nvml.c` reads them: `=value`, `!code`, `*` hangs, `^`
crashes, `~800 =value` takes 800 ms."""

_SOURCE = Path(__file__).with_name("fake_nvml.c")
_ARCHITECTURES = {"Pascal": 4, "Volta": 5, "Turing": 6, "Ampere": 7, "Hopper": 9, "Blackwell": 10}
_MEASURES_INSTANCES = ("Hopper", "Blackwell")
_RECOVERY = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
_COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_FABRIC_STATES = ("Not Supported", "Not Started", "In Progress", "Completed")
_CLOCK_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}
_READINGS = (
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"),
    *("nvmlDeviceGetTemperature(0)", "nvmlDeviceGetMarginTemperature"),
)

# The driver that brought each symbol, where it is not as old as any driver here.
_SINCE = {
    "nvmlDeviceGetMigMode": 450,
    "nvmlDeviceGetMaxMigDeviceCount": 450,
    "nvmlDeviceGetMigDeviceHandleByIndex": 450,
    "nvmlDeviceGetGpuInstanceId": 450,
    "nvmlDeviceGetComputeInstanceId": 450,
    "nvmlDeviceGetGpuInstanceProfileInfo": 450,
    "nvmlDeviceGetGpuInstances": 450,
    "nvmlGpuInstanceGetInfo": 450,
    "nvmlDeviceGetAttributes_v2": 450,
    "nvmlDeviceGetRemappedRows": 450,
    "nvmlDeviceGetArchitecture": 450,
    "nvmlDeviceGetMemoryAffinity": 450,
    "nvmlDeviceGetComputeRunningProcesses_v2": 450,
    "nvmlDeviceGetGraphicsRunningProcesses_v2": 450,
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": 450,
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlGpmQueryDeviceSupport": 520,
    "nvmlGpmSampleAlloc": 520,
    "nvmlGpmSampleFree": 520,
    "nvmlGpmMigSampleGet": 525,
    "nvmlGpmMetricsGet": 520,
    "nvmlDeviceGetComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": 510,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetNvLinkRemoteDeviceType": 510,
    "nvmlDeviceGetGpuFabricInfo": 525,
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetGpuFabricInfoV": 550,
    "nvmlDeviceGetMarginTemperature": 555,
    "nvmlDeviceGetTemperatureV": 565,
    "nvmlDeviceGetAddressingMode": 570,
}


def can_compile() -> bool:
    """Whether there is a compiler to make the library with."""
    return shutil.which("gcc") is not None


def write_fake_nvml(
    folder: Path,
    machine: FakeMachine,
    *,
    changed: Mapping[str, str] | None = None,
    hidden: frozenset[str] = frozenset(),
    root: bool = False,
    wide_processes: bool = False,
) -> Path:
    """Write the library and its answers into a folder; returns the library's path.

    `changed` are answers in place of the machine's, or beside them; `hidden` symbols the driver
    lacks besides those that its version does. `root` may see GPU instances, and `wide_processes`
    fills the structure that drivers 535.43 to 535.98 had. The changes are atomic, each for itself.
    Raises `subprocess.CalledProcessError` if the library cannot be compiled.
    """
    found = answers_for(machine, root=root)
    if wide_processes:
        found["- wide"] = "=1"
    found |= changed or {}
    lines = sorted(
        f"{key}\t{value}\n".encode("utf-8", "surrogateescape") for key, value in found.items()
    )
    library = folder / SONAME
    _replace(library.with_name(SONAME + ".answers"), b"".join(lines))
    missing = {symbol for symbol, since in _SINCE.items() if since > machine.major}
    _replace(library, _compiled(frozenset(missing | hidden)))
    return library


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)


@cache
def _compiled(missing: frozenset[str]) -> bytes:
    """The library without these symbols."""
    local = "".join(f"{name};" for name in sorted(missing)) or "none;"
    with TemporaryDirectory() as folder:
        script, library = Path(folder, "symbols.map"), Path(folder, SONAME)
        script.write_text(f"{{ global: nvml*; local: {local} }};\n", encoding="ascii")
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
        command += [f"-Wl,--version-script={script}", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        return library.read_bytes()


def answers_for(machine: FakeMachine, *, root: bool = False) -> Answers:
    """What NVML answers on a machine, by subject and call."""
    answers = {
        "- nvmlSystemGetDriverVersion": f"={machine.driver}",
        "- nvmlSystemGetNVMLVersion": f"={machine.cuda.split('.')[0]}.{machine.driver}",
        "- nvmlSystemGetCudaDriverVersion": f"={_cuda_number(machine.cuda)}",
        "- nvmlDeviceGetCount": f"={len(machine.cards)}",
    }
    answers |= {f"- nvmlErrorString({code})": f"={said}" for code, said in SAID.items()}
    for number, card in enumerate(machine.cards):
        if card.handle_error is not None:
            answers[f"{number} nvmlDeviceGetHandleByIndex"] = f"!{card.handle_error}"
            continue
        answers |= _on(f"{number}", _card(machine, number) | _links(machine, number))
        if card.mig == "Enabled":
            answers |= _mig(number, card, root=root)
    return answers


def _on(subject: str, calls: Answers) -> Answers:
    return {f"{subject} {call}": value for call, value in calls.items()}


def _cuda_number(version: str) -> int:
    major, minor = version.split(".")
    return int(major) * 1000 + int(minor) * 10


def _card(machine: FakeMachine, number: int) -> Answers:
    card = machine.cards[number]
    found = {
        "nvmlDeviceGetHandleByIndex": "=1",
        "nvmlDeviceGetName": f"={card.name}",
        "nvmlDeviceGetUUID": f"={card_uuid(machine, number)}",
        "nvmlDeviceGetPciInfo": f"={card_pci(machine, number)}",
        "nvmlDeviceGetArchitecture": f"={_architecture(card)}",
        "nvmlDeviceGetAddressingMode": "=2" if card.addressing == "ATS" else "=0",
        "nvmlDeviceGetComputeMode": f"={_COMPUTE_MODES.index(card.compute_mode)}",
        "nvmlDeviceGetMemoryAffinity": _number(card.memory_node),
        "nvmlDeviceGetCpuAffinity": _mask(card.processors),
        "nvmlDeviceGetPcieReplayCounter": _number(card.pcie_replays),
        "nvmlGpmQueryDeviceSupport": f"={card.architecture in _MEASURES_INSTANCES:d}",
        "nvmlDeviceGetMemoryInfo": _memory(card),
        **_heat(card, machine.major),
        **_wear(card),
    }
    if card.mig != "N/A":
        modes = [int(mode == "Enabled") for mode in (card.mig, card.mig_pending or card.mig)]
        found["nvmlDeviceGetMigMode"] = f"={modes[0]} {modes[1]}"
    if card.mig != "Enabled" or not card.instances:
        found |= _processes(card, card.processes)
    if card.recovery in _RECOVERY:
        action = _RECOVERY.index(card.recovery)
        if machine.major >= 565:
            found["nvmlDeviceGetFieldValues(230,0)"] = f"=1 {action}"
        elif machine.major >= 535:
            found["nvmlDeviceGetFieldValues(226,0)"] = f"=1 {int(action == 1)}"
    if card.fabric is not None:
        found["nvmlDeviceGetGpuFabricInfo"] = _fabric(card, card.fabric)
    return found | (dict.fromkeys(_READINGS, "!15") if card.lost else {})


def _mask(processors: str) -> str:
    """Processors, as in `0-15,32-47`, as the words of a mask."""
    bits = 0
    for run in processors.split(",") if processors else ():
        first, _, last = run.partition("-")
        for number in range(int(first), int(last or first) + 1):
            bits |= 1 << number
    words = [bits >> 64 * n & (2**64 - 1) for n in range(bits.bit_length() // 64 + 1)]
    return "=" + " ".join(str(word) for word in words)


def _architecture(card: FakeCard) -> int:
    return _ARCHITECTURES.get(card.architecture, 8)


def _number(value: float | None, scale: int = 1) -> str:
    return "!3" if value is None else f"={round(value * scale)}"


def _memory(card: FakeCard) -> str:
    if card.memory_error is not None:
        return f"!{card.memory_error}"
    parts = memory_bytes(card, 510)
    if parts["total"] is None:
        return "!3"
    return "=" + " ".join(str(amount or 0) for amount in parts.values())


def _heat(card: FakeCard, major: int) -> Answers:
    reasons = card.throttled_by or ("gpu_idle",)
    bits = sum(_CLOCK_REASONS[name] for name in reasons)
    found = {
        "nvmlDeviceGetTemperature(0)": _number(card.temperature_celsius),
        "nvmlDeviceGetMarginTemperature": _number(card.margin_celsius),
        "nvmlDeviceGetTemperatureThreshold(0)": _number(card.shutdown_celsius),
        "nvmlDeviceGetTemperatureThreshold(1)": _number(card.slowdown_celsius),
        "nvmlDeviceGetClockInfo(0)": _number(card.clock_graphics_mhz),
        "nvmlDeviceGetClockInfo(2)": _number(card.clock_memory_mhz),
        "nvmlDeviceGetPowerUsage": _number(card.power_watts, 1000),
        "nvmlDeviceGetEnforcedPowerLimit": _number(card.power_limit_watts, 1000),
        "nvmlDeviceGetUtilizationRates": _number(card.utilization_percent),
        "nvmlDeviceGetFanSpeed": _number(card.fan_percent),
        "nvmlDeviceGetCurrentClocksEventReasons": f"={bits}",
        "nvmlDeviceGetCurrentClocksThrottleReasons": f"={bits}",
    }
    if card.margin_celsius is not None and major >= 535:
        found["nvmlDeviceGetFieldValues(193,0)"] = f"=5 {card.shutdown_margin_celsius}"
        found["nvmlDeviceGetFieldValues(194,0)"] = f"=5 {card.slowdown_margin_celsius}"
    if card.power_watts is not None and not card.lost and major >= 535:
        found["nvmlDeviceGetFieldValues(186,0)"] = f"=1 {round(card.power_watts * 1000)}"
    return found


def _wear(card: FakeCard) -> Answers:
    pages = _number(card.retired_pages)
    pending = "!3" if card.retired_pages is None else f"={card.retired_pending:d}"
    rows = f"=0 {card.remapped_rows} {card.remap_pending:d} {card.remap_failed:d}"
    return {
        "nvmlDeviceGetTotalEccErrors(0,1)": _number(card.ecc_corrected),
        "nvmlDeviceGetTotalEccErrors(1,1)": _number(card.ecc_uncorrected),
        "nvmlDeviceGetTotalEccErrors(0,0)": _number(card.ecc_volatile_corrected),
        "nvmlDeviceGetTotalEccErrors(1,0)": _number(card.ecc_volatile_uncorrected),
        "nvmlDeviceGetRetiredPages(0)": pages,
        "nvmlDeviceGetRetiredPages(1)": pages,
        "nvmlDeviceGetRetiredPagesPendingStatus": pending,
        "nvmlDeviceGetRemappedRows": "!3" if card.remapped_rows is None else rows,
    }


def _fabric(card: FakeCard, fabric: tuple[str, str, int]) -> str:
    state, cluster, clique = fabric
    digits = cluster.replace("-", "") if state == "Completed" else NO_CLUSTER.replace("-", "")
    return f"={digits} {clique} {_FABRIC_STATES.index(state)} {card.fabric_code}"


def _processes(card: FakeCard, found: tuple[FakeProcess, ...]) -> Answers:
    """The lists of processes. One that draws too is in both lists of the driver."""
    name = "nvmlDeviceGet{}RunningProcesses"
    if card.process_error is not None:
        return {name.format(kind): f"!{card.process_error}" for kind in ("Compute", "Graphics")}
    listed = " ".join(
        f"{one.pid} {NOT_AVAILABLE if one.memory_mib is None else one.memory_mib * MEBIBYTE}"
        f" {ANY_INSTANCE if one.gpu_instance is None else one.gpu_instance}"
        f" {ANY_INSTANCE if one.compute_instance is None else one.compute_instance}"
        for one in found
    )
    return {name.format("Compute"): f"={listed}", name.format("Graphics"): f"={listed}"}


def _links(machine: FakeMachine, number: int) -> Answers:
    """The links of a card, to cards, then to the switch, then those that are down."""
    card = machine.cards[number]
    if card.mig == "Enabled":
        return {}
    peers = [b if a == number else a for a, b in machine.links if number in (a, b)]
    ends = [(1, 0, card_pci(machine, peer)) for peer in peers]
    if number in machine.switched:
        address = "00000000:C0:00.0" if number % 2 else "FFFFFFFF:FF:FF.0"
        ends.append((1, 2, address) if machine.switch_visible else (1, 255, ""))
    ends += [(0, 255, "") for pair in machine.down if number in pair]
    found: Answers = {}
    for link, (active, kind, address) in enumerate(ends):
        found[f"nvmlDeviceGetNvLinkState({link})"] = f"={active}"
        if active:
            found[f"nvmlDeviceGetNvLinkRemoteDeviceType({link})"] = f"={kind}"
            found[f"nvmlDeviceGetNvLinkRemotePciInfo({link})"] = f"={address}" if address else "!3"
    found |= _link_errors(card, [link for link, (active, *_) in enumerate(ends) if active])
    if ends:
        found[f"nvmlDeviceGetNvLinkState({len(ends)})"] = "!2"
    for other in range(len(machine.cards)):
        linked = number in machine.switched and other in machine.switched
        found[f"nvmlDeviceGetP2PStatus({other},2)"] = "=0" if linked else "=5"
    return found


def _link_errors(card: FakeCard, links: list[int]) -> Answers:
    """The errors of links, in the counters of the card's generation; each counts some of them."""
    if not links:
        return {}
    if card.architecture not in _MEASURES_INSTANCES:
        counters = [(field, 0) for field in (38, 45, 59)] + [(52, 0)] * len(links)
    else:
        fields = (161, 162, 163) if card.architecture == "Hopper" else (208, 211, 215)
        counters = [(field, link) for field in fields for link in links]
    found: Answers = {}
    for field, link in counters:
        errors = card.link_errors if field in (161, 208) else 0
        errors = card.link_errors * len(links) if field == 52 else errors
        found[f"nvmlDeviceGetFieldValues({field},{link})"] = f"=3 {errors}"
    return found


def _mig(number: int, card: FakeCard, *, root: bool) -> Answers:
    def listed(ids: Iterable[int]) -> str:
        return "=" + " ".join(str(one) for one in sorted(set(ids))) if root else "!4"

    slices, memory_mib = card.bare_profile
    parent = {
        "nvmlDeviceGetMaxMigDeviceCount": "=7",
        "nvmlDeviceGetGpuInstanceProfileInfo(0)": "=19 7 0 0",
        "nvmlDeviceGetGpuInstanceProfileInfo(1)": f"=14 3 {slices} {memory_mib}",
        "nvmlDeviceGetGpuInstances(19)": listed(one.gpu_instance for one in card.instances),
        "nvmlDeviceGetGpuInstances(14)": listed(card.bare_gpu_instances),
    }
    answers = _on(f"{number}", parent)
    for one in card.instances:
        if one.busy_percent is not None:
            answers[f"{number}:{one.gpu_instance} nvmlGpmMigSampleGet"] = f"={one.busy_percent}"
    for position, one in enumerate(card.instances):
        index = instance_index(one, position)
        answers[f"{number} nvmlDeviceGetMigDeviceHandleByIndex({index})"] = "=1"
        uuid = instance_uuid(number, one, position)
        answers |= _on(f"{number}.{index}", _instance(card, one, uuid))
    return answers


def _instance(card: FakeCard, one: FakeInstance, uuid: str) -> Answers:
    free = one.memory_total_mib - one.memory_used_mib
    amounts = (one.memory_total_mib, 0, one.memory_used_mib, free)
    match = re.match(r"(?:(\d+)c\.)?(\d+)g", one.profile)
    own, slices = (match[1] or match[2], match[2]) if match else ("0", "0")
    mine = tuple(
        process
        for process in card.processes
        if (process.gpu_instance, process.compute_instance)
        in ((one.gpu_instance, one.compute_instance), (None, None))
    )
    return {
        "nvmlDeviceGetName": f"={card.name} MIG {one.profile}",
        "nvmlDeviceGetUUID": f"={uuid}",
        "nvmlDeviceGetGpuInstanceId": f"={one.gpu_instance}",
        "nvmlDeviceGetComputeInstanceId": f"={one.compute_instance}",
        "nvmlDeviceGetAttributes": f"={one.multiprocessors} {slices} {own} {amounts[0]}",
        "nvmlDeviceGetMemoryInfo": "=" + " ".join(str(mib * MEBIBYTE) for mib in amounts),
        **_processes(card, mine),
    }
