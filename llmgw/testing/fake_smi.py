"""A pretended nvidia-smi: a program that answers for a machine that you describe.

For tests of llmgw and of what is built on it. It describes cards and prints them in the layout of
a driver between 418 and 595; it is no model of the hardware and nothing in it changes by itself.
Write it again over the old one to change the machine under a running agent.

    program = write_fake_smi(tmp_path / "nvidia-smi", FakeMachine((FakeCard(name="NVIDIA L40S",
                             memory_total_mib=46068),)))
    settings = HardwareSettings(node="n1", nvidia_smi=str(program))
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import msgspec

End = Literal["exit", "hang", "ignore-term", "killed"]

NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


class FakeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory, on an instance if it has ids."""

    pid: int
    memory_mib: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    name: str = "python3"


class FakeInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance. Its index is its place in the card's list, unless given."""

    profile: str
    memory_total_mib: int
    gpu_instance: int
    compute_instance: int = 0
    multiprocessors: int = 14
    memory_used_mib: int = 0
    index: int | None = None
    uuid: str | None = None


class FakeCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card. `None` prints as `N/A`; `lost` prints what a card says that fell off the bus.

    A card with `margin_celsius` prints distances to slowdown, as Ada and later cards do; one with
    `slowdown_celsius` absolute limits. `fabric` is (state, cluster UUID, clique).
    """

    name: str
    memory_total_mib: int | None
    memory_reserved_mib: int | None = 0
    memory_used_mib: int | None = 0
    uuid: str | None = None
    pci: str | None = None
    architecture: str = "Ampere"
    temperature_celsius: int | None = 30
    margin_celsius: int | None = None
    slowdown_celsius: int | None = None
    power_watts: float | None = 50.0
    power_limit_watts: float | None = 300.0
    utilization_percent: int | None = 0
    fan_percent: int | None = None
    throttled_by: tuple[str, ...] = ()
    mig: Literal["N/A", "Enabled", "Disabled"] = "N/A"
    mig_pending: Literal["Enabled", "Disabled"] | None = None
    instances: tuple[FakeInstance, ...] = ()
    processes: tuple[FakeProcess, ...] = ()
    compute_mode: str = "Default"
    recovery: str = "None"
    addressing: str = "None"
    fabric: tuple[str, str, int] | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None
    lost: bool = False


class FakeMachine(msgspec.Struct, frozen=True):
    """Cards under one driver. `links` are the pairs of cards with NVLink between them."""

    cards: tuple[FakeCard, ...]
    driver: str = "580.65.06"
    cuda: str = "13.0"
    attached: int | None = None
    links: tuple[tuple[int, int], ...] = ()


class FakeAnswer(msgspec.Struct, frozen=True):
    """What one command line prints, and how it ends.

    `hang` never ends; `ignore-term` neither, and only a SIGKILL stops it; `killed` prints and
    then dies of a SIGKILL.
    """

    text: str
    code: int = 0
    end: End = "exit"
    stderr: str = ""


_PROGRAM = """#!{python} -IS
import json, os, signal, sys, time

with open(__file__ + ".json", encoding="utf-8") as file:
    answers = json.load(file)
unknown = {{"text": "Invalid combination of input arguments.\\n", "code": 2, "end": "exit"}}
answer = answers.get(" ".join(sys.argv[1:]), unknown)
end = answer.get("end", "exit")
if end == "ignore-term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write(answer["text"])
sys.stdout.flush()
sys.stderr.write(answer.get("stderr", ""))
sys.stderr.flush()
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
while end != "exit":
    time.sleep(3600)
sys.exit(answer.get("code", 0))
"""


def write_fake_smi(program: Path, answers: FakeMachine | dict[str, FakeAnswer]) -> Path:
    """Write the program, or change what one already written answers; returns its path.

    The change is atomic: a run sees the old machine or the new one.
    """
    found = answers_for(answers) if isinstance(answers, FakeMachine) else answers
    fresh = program.with_name(program.name + ".new")
    fresh.write_bytes(msgspec.json.encode(found))
    fresh.replace(program.with_name(program.name + ".json"))
    if not program.exists():
        program.write_text(_PROGRAM.format(python=sys.executable), encoding="utf-8")
        program.chmod(0o755)
    return program


def answers_for(machine: FakeMachine) -> dict[str, FakeAnswer]:
    """What the tool answers on a machine, by command line."""
    return {
        "-L": FakeAnswer(render_listing(machine)),
        "-q -x": FakeAnswer(render_report(machine)),
        "topo -m": FakeAnswer(render_topology(machine)),
    }


def card_uuid(machine: FakeMachine, index: int) -> str:
    """The UUID that a card has, given or made."""
    return machine.cards[index].uuid or f"GPU-{index + 1:08x}-0000-4000-8000-000000000000"


def instance_uuid(card: int, instance: FakeInstance, position: int) -> str:
    """The UUID that an instance has, given or made."""
    return instance.uuid or f"MIG-{card + 1:08x}-0000-5000-8000-{position:012x}"


def render_listing(machine: FakeMachine) -> str:
    """The text of `nvidia-smi -L`."""
    lines = []
    for number, card in enumerate(machine.cards):
        lines.append(f"GPU {number}: {card.name} (UUID: {card_uuid(machine, number)})")
        for position, instance in enumerate(card.instances):
            index = position if instance.index is None else instance.index
            uuid = instance_uuid(number, instance, position)
            lines.append(f"  MIG {instance.profile:<12}Device {index:>2}: (UUID: {uuid})")
    return "\n".join(lines) + "\n"


def render_topology(machine: FakeMachine) -> str:
    """The text of `nvidia-smi topo -m`, with the escapes that recent drivers print."""
    count = range(len(machine.cards))
    linked = {*machine.links, *((b, a) for a, b in machine.links)}
    heads = [f"GPU{n}" for n in count]
    header = "\t".join(["", *heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = ["\x1b[4m" + header + "\x1b[0m"]
    for row in count:
        cells = [" X " if row == n else "NV4" if (row, n) in linked else "SYS" for n in count]
        lines.append("\t".join([f"GPU{row}", *cells, "0-15", "0", "", "N/A"]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


def render_report(machine: FakeMachine) -> str:
    """The text of `nvidia-smi -q -x`, in the layout of the machine's driver."""
    major = int(machine.driver.split(".")[0])
    version = 13 if major >= 580 else 12 if major >= 525 else 11
    doctype = f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{version}.dtd">\n'
    cards = "".join(
        _tag("gpu", *_card(machine, n, major), attributes=f' id="{_pci(machine, n)}"')
        for n in range(len(machine.cards))
    )
    attached = len(machine.cards) if machine.attached is None else machine.attached
    return (
        '<?xml version="1.0" ?>\n'
        + (doctype if major >= 450 else "")
        + _tag(
            "nvidia_smi_log",
            _tag("driver_version", machine.driver),
            _tag("cuda_version", machine.cuda),
            _tag("attached_gpus", str(attached)),
            cards,
        )
    )


def _card(machine: FakeMachine, number: int, major: int) -> list[str]:
    card = machine.cards[number]
    return [
        _tag("product_name", card.name),
        _tag("product_architecture", card.architecture) if major >= 510 else "",
        _tag("addressing_mode", card.addressing) if major >= 535 else "",
        _mig(card) if major >= 450 else "",
        _tag("serial", f"13200000000{number}"),
        _tag("uuid", card_uuid(machine, number)),
        _recovery(card, major),
        _tag("pci", _tag("pci_bus_id", _pci(machine, number))),
        _tag("fan_speed", _value(card.fan_percent, "%")),
        _throttling(card, major),
        _memory(card, major),
        _tag("bar1_memory_usage", _tag("total", "256 MiB"), _tag("used", "2 MiB")),
        _tag("compute_mode", card.compute_mode),
        _tag("utilization", _tag("gpu_util", _reading(card, card.utilization_percent, "%"))),
        _wear(card, major),
        _temperature(card, major),
        _power(card, major),
        _fabric(card, major),
        _processes(card, major),
    ]


def _pci(machine: FakeMachine, number: int) -> str:
    return machine.cards[number].pci or f"00000000:{number + 1:02X}:00.0"


def _tag(name: str, *content: str, attributes: str = "") -> str:
    return f"<{name}{attributes}>{''.join(content)}</{name}>\n"


def _value(value: float | None, unit: str = "") -> str:
    if value is None:
        return "N/A"
    number = f"{value:.2f}" if unit == "W" else str(value)
    return f"{number} {unit}".strip()


def _reading(card: FakeCard, value: float | None, unit: str) -> str:
    return "GPU is lost" if card.lost else _value(value, unit)


def _mig(card: FakeCard) -> str:
    modes = _tag(
        "mig_mode",
        _tag("current_mig", card.mig),
        _tag("pending_mig", card.mig_pending or card.mig),
    )
    devices = [_instance(position, one) for position, one in enumerate(card.instances)]
    return modes + _tag("mig_devices", *(devices or ["\n  None\n"]))


def _instance(position: int, one: FakeInstance) -> str:
    return _tag(
        "mig_device",
        _tag("index", str(position if one.index is None else one.index)),
        _tag("gpu_instance_id", str(one.gpu_instance)),
        _tag("compute_instance_id", str(one.compute_instance)),
        _tag(
            "device_attributes",
            _tag("shared", _tag("multiprocessor_count", str(one.multiprocessors))),
        ),
        _tag(
            "fb_memory_usage",
            _tag("total", _value(one.memory_total_mib, "MiB")),
            _tag("reserved", "0 MiB"),
            _tag("used", _value(one.memory_used_mib, "MiB")),
            _tag("free", _value(one.memory_total_mib - one.memory_used_mib, "MiB")),
        ),
    )


def _recovery(card: FakeCard, major: int) -> str:
    if major >= 570:
        return _tag("gpu_recovery_action", card.recovery)
    required = "Yes" if card.recovery == "Reset" else "No"
    return _tag("gpu_reset_status", _tag("reset_required", required)) if major >= 535 else ""


def _throttling(card: FakeCard, major: int) -> str:
    word = "event" if major >= 535 else "throttle"
    reasons = ("gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown")
    active = {*card.throttled_by, *(() if card.throttled_by else ("gpu_idle",))}
    return _tag(
        f"clocks_{word}_reasons",
        *(
            _tag(f"clocks_{word}_reason_{name}", "Active" if name in active else "Not Active")
            for name in reasons
        ),
    )


def _memory(card: FakeCard, major: int) -> str:
    total, used, reserved = card.memory_total_mib, card.memory_used_mib, card.memory_reserved_mib
    known = total is not None and used is not None
    hidden = reserved or 0
    if known and major < 510 and used is not None:
        used += hidden  # before 510 what is reserved counted as used
        hidden = 0
    free = total - used - hidden if total is not None and used is not None else None
    return _tag(
        "fb_memory_usage",
        _tag("total", _reading(card, total, "MiB")),
        _tag("reserved", _reading(card, reserved, "MiB")) if major >= 510 else "",
        _tag("used", _reading(card, used, "MiB")),
        _tag("free", _reading(card, free, "MiB")),
    )


def _wear(card: FakeCard, major: int) -> str:
    errors = _value(card.ecc_uncorrected)
    sram = "sram_uncorrectable_secded" if major >= 570 else "sram_uncorrectable"
    counters = _tag("dram_correctable", "N/A"), _tag("dram_uncorrectable", errors)
    ecc = _tag(
        "ecc_errors",
        _tag("volatile", _tag(sram, "N/A"), _tag("dram_uncorrectable", "77")),
        _tag("aggregate", _tag(sram, "N/A"), *counters),
    )
    retired = _value(card.retired_pages)
    pending = "N/A" if card.retired_pages is None else "No"
    pages = _tag(
        "retired_pages",
        _tag("multiple_single_bit_retirement", _tag("retired_count", retired)),
        _tag("double_bit_retirement", _tag("retired_count", retired)),
        _tag("pending_retirement", pending),
    )
    if card.remapped_rows is None:
        return ecc + pages + (_tag("remapped_rows", "N/A") if major >= 450 else "")
    rows = _tag(
        "remapped_rows",
        _tag("remapped_row_corr", "0"),
        _tag("remapped_row_unc", str(card.remapped_rows)),
        _tag("remapped_row_pending", "No"),
        _tag("remapped_row_failure", "No"),
    )
    return ecc + pages + rows


def _temperature(card: FakeCard, major: int) -> str:
    margin = _tag("gpu_temp_tlimit", _reading(card, card.margin_celsius, "C"))
    limit = (
        _tag("gpu_temp_slow_tlimit_threshold", "-2 C")
        if card.margin_celsius is not None
        else _tag("gpu_temp_slow_threshold", _value(card.slowdown_celsius, "C"))
    )
    return _tag(
        "temperature",
        _tag("gpu_temp", _reading(card, card.temperature_celsius, "C")),
        margin if major >= 525 else "",
        limit,
        _tag("memory_temp", "99 C"),
    )


def _power(card: FakeCard, major: int) -> str:
    draw = _reading(card, card.power_watts, "W")
    limit = _value(card.power_limit_watts, "W")
    if major < 535:
        return _tag(
            "power_readings",
            _tag("power_draw", draw),
            _tag("power_limit", limit),
            _tag("enforced_power_limit", limit),
            _tag("max_power_limit", "999.00 W"),
        )
    limits = _tag("current_power_limit", limit), _tag("max_power_limit", "999.00 W")
    whole_module = _tag("power_draw", "1234.00 W"), _tag("current_power_limit", "2345.00 W")
    if major < 570:
        own = _tag("gpu_power_readings", _tag("power_draw", draw), *limits)
        return own + _tag("module_power_readings", *whole_module)
    draws = _tag("average_power_draw", _reading(card, 3.0, "W")), _tag("instant_power_draw", draw)
    memory = _tag("gpu_memory_power_readings", _tag("average_power_draw", "30.00 W"))
    module = _tag("module_power_readings", _tag("instant_power_draw", "1234.00 W"))
    return _tag("gpu_power_readings", *draws, *limits) + memory + module


def _fabric(card: FakeCard, major: int) -> str:
    if major < 525:
        return ""
    state, cluster, clique = card.fabric or ("N/A", "N/A", "N/A")
    status = "Success" if card.fabric else "N/A"
    members = [_tag("cliqueId", str(clique)), _tag("clusterUuid", cluster)] if major >= 570 else []
    return _tag("fabric", _tag("state", state), _tag("status", status), *members)


def _processes(card: FakeCard, major: int) -> str:
    return _tag(
        "processes",
        "\n",
        *(
            _tag(
                "process_info",
                _tag("gpu_instance_id", _value(one.gpu_instance)) if major >= 450 else "",
                _tag("compute_instance_id", _value(one.compute_instance)) if major >= 450 else "",
                _tag("pid", str(one.pid)),
                _tag("type", "C"),
                _tag("process_name", one.name),
                _tag("used_memory", _value(one.memory_mib, "MiB")),
            )
            for one in card.processes
        ),
    )
