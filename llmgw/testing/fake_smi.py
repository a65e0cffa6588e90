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
    linked_pairs,
    memory_bytes,
)

__all__ = [
    "NO_CLUSTER",
    "End",
    "FakeAnswer",
    "FakeCard",
    "FakeInstance",
    "FakeMachine",
    "FakeProcess",
    "answers_for",
    "card_uuid",
    "instance_uuid",
    "render_listing",
    "render_report",
    "render_topology",
    "write_fake_smi",
]

End = Literal["exit", "hang", "ignore-term", "killed"]


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
    answers = {
        "-L": FakeAnswer(render_listing(machine)),
        "-q -x": FakeAnswer(render_report(machine)),
        "topo -m": FakeAnswer(render_topology(machine)),
    }
    unopened = [n for n, card in enumerate(machine.cards) if card.handle_error is not None]
    if unopened:
        answers["-q -x"] = FakeAnswer(_unopened(machine, unopened[0]), 15)
        answers[f"-q -x -i {len(machine.cards)}"] = FakeAnswer("No devices were found\n", 6)
        for n in range(len(machine.cards)):
            one = render_report(machine, only=n)
            if n in unopened:
                answers[f"-q -x -i {n}"] = FakeAnswer(_unopened(machine, n), 15)
            else:
                answers[f"-q -x -i {n}"] = FakeAnswer(one)
    return answers


def _unopened(machine: FakeMachine, number: int) -> str:
    said = SAID.get(machine.cards[number].handle_error or 0, "Unknown Error")
    address = card_pci(machine, number)[4:]
    return f"Unable to determine the device handle for GPU{address}: {said}\n"


def render_listing(machine: FakeMachine) -> str:
    """The text of `nvidia-smi -L`."""
    lines = []
    for number, card in enumerate(machine.cards):
        if card.handle_error is not None:
            lines.append(_unopened(machine, number).strip())
            continue
        lines.append(f"GPU {number}: {card.name} (UUID: {card_uuid(machine, number)})")
        for position, instance in enumerate(card.instances):
            index = instance_index(instance, position)
            uuid = instance_uuid(number, instance, position)
            lines.append(f"  MIG {instance.profile:<12}Device {index:>2}: (UUID: {uuid})")
    return "\n".join(lines) + "\n"


def render_topology(machine: FakeMachine) -> str:
    """The text of `nvidia-smi topo -m`, with the escapes that recent drivers print."""
    count = [n for n, card in enumerate(machine.cards) if card.handle_error is None]
    linked = linked_pairs(machine)
    heads = [f"GPU{n}" for n in count]
    header = "\t".join(["", *heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = ["\x1b[4m" + header + "\x1b[0m"]
    for row in count:
        cells = [" X " if row == n else "NV4" if (row, n) in linked else "SYS" for n in count]
        near, node = machine.cards[row].processors, _value(machine.cards[row].memory_node)
        lines.append("\t".join([f"GPU{row}", *cells, near, node, "", "N/A"]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


def render_report(machine: FakeMachine, only: int | None = None) -> str:
    """The text of `nvidia-smi -q -x`, in the layout of the machine's driver; with `only`, of -i."""
    major = machine.major
    version = 13 if major >= 580 else 12 if major >= 525 else 11
    doctype = f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{version}.dtd">\n'
    cards = "".join(
        _tag("gpu", *_card(machine, n, major), attributes=f' id="{card_pci(machine, n)}"')
        for n in range(len(machine.cards))
        if only in (None, n)
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
        _mig(card, major) if major >= 450 else "",
        _tag("serial", f"13200000000{number}"),
        _tag("uuid", card_uuid(machine, number)),
        _recovery(card, major),
        _tag(
            "pci",
            _tag("pci_bus_id", card_pci(machine, number)),
            _tag("replay_counter", _value(card.pcie_replays)),
            _tag("replay_rollover_counter", "3"),
        ),
        _tag("fan_speed", _value(card.fan_percent, "%")),
        _throttling(card, major),
        _memory(card, major),
        _tag("bar1_memory_usage", _tag("total", "256 MiB"), _tag("used", "2 MiB")),
        _tag("compute_mode", card.compute_mode),
        _tag("utilization", _tag("gpu_util", _reading(card, card.utilization_percent, "%"))),
        _wear(card, major),
        _temperature(card, major),
        _power(card, major),
        _clocks(card),
        _fabric(card, major),
        _processes(card, major),
    ]


def _tag(name: str, *content: str, attributes: str = "") -> str:
    return f"<{name}{attributes}>{''.join(content)}</{name}>\n"


def _value(value: float | None, unit: str = "") -> str:
    if value is None:
        return "N/A"
    number = f"{value:.2f}" if unit == "W" else str(value)
    return f"{number} {unit}".strip()


def _reading(card: FakeCard, value: float | None, unit: str) -> str:
    return "GPU is lost" if card.lost else _value(value, unit)


def _mig(card: FakeCard, major: int) -> str:
    modes = _tag(
        "mig_mode",
        _tag("current_mig", card.mig),
        _tag("pending_mig", card.mig_pending or card.mig),
    )
    devices = [_instance(position, one, major) for position, one in enumerate(card.instances)]
    return modes + _tag("mig_devices", *(devices or ["\n  None\n"]))


def _instance(position: int, one: FakeInstance, major: int) -> str:
    free = one.memory_total_mib - one.memory_used_mib
    return _tag(
        "mig_device",
        _tag("index", str(instance_index(one, position))),
        _tag("gpu_instance_id", str(one.gpu_instance)),
        _tag("compute_instance_id", str(one.compute_instance)),
        _tag(
            "device_attributes",
            _tag("shared", _tag("multiprocessor_count", str(one.multiprocessors))),
        ),
        _tag(
            "fb_memory_usage",
            _tag("total", _value(one.memory_total_mib, "MiB")),
            _tag("reserved", "0 MiB") if major >= 510 else "",
            _tag("used", _value(one.memory_used_mib, "MiB")),
            _tag("free", _value(free, "MiB")),
        ),
    )


def _recovery(card: FakeCard, major: int) -> str:
    if major >= 570:
        return _tag("gpu_recovery_action", card.recovery)
    required = "Yes" if card.recovery == "Reset" else "No"
    return _tag("gpu_reset_status", _tag("reset_required", required)) if major >= 535 else ""


def _throttling(card: FakeCard, major: int) -> str:
    word = "event" if major >= 535 else "throttle"
    reasons = (
        *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown"),
        *("hw_thermal_slowdown", "hw_power_brake_slowdown", "sync_boost", "sw_thermal_slowdown"),
        "display_clocks_setting",
    )
    active = {*card.throttled_by, *(() if card.throttled_by else ("gpu_idle",))}
    return _tag(
        f"clocks_{word}_reasons",
        *(
            _tag(f"clocks_{word}_reason_{name}", "Active" if name in active else "Not Active")
            for name in reasons
        ),
    )


def _memory(card: FakeCard, major: int) -> str:
    return _tag(
        "fb_memory_usage",
        *(
            _tag(part, _memory_part(card, amount, major))
            for part, amount in memory_bytes(card, major).items()
            if part != "reserved" or major >= 510
        ),
    )


def _memory_part(card: FakeCard, amount: int | None, major: int) -> str:
    """An amount in whole MiB: cut off by drivers before 545, rounded by later ones."""
    if card.memory_error is not None:
        return "N/A" if card.memory_error == 3 else SAID[card.memory_error]
    up = MEBIBYTE // 2 if major >= 545 else 0
    return _reading(card, None if amount is None else (amount + up) // MEBIBYTE, "MiB")


def _wear(card: FakeCard, major: int) -> str:
    sram = _tag("sram_uncorrectable_secded" if major >= 570 else "sram_uncorrectable", "N/A")

    def counters(corrected: int | None, uncorrected: int | None) -> str:
        dram = _tag("dram_uncorrectable", _value(uncorrected))
        return sram + _tag("dram_correctable", _value(corrected)) + dram

    ecc = _tag(
        "ecc_errors",
        _tag("volatile", counters(card.ecc_volatile_corrected, card.ecc_volatile_uncorrected)),
        _tag("aggregate", counters(card.ecc_corrected, card.ecc_uncorrected)),
    )
    retired = _value(card.retired_pages)
    pending = "N/A" if card.retired_pages is None else "Yes" if card.retired_pending else "No"
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
        _tag("remapped_row_pending", "Yes" if card.remap_pending else "No"),
        _tag("remapped_row_failure", "Yes" if card.remap_failed else "No"),
    )
    return ecc + pages + rows


def _temperature(card: FakeCard, major: int) -> str:
    margin = _tag("gpu_temp_tlimit", _reading(card, card.margin_celsius, "C"))
    kind, slowdown, shutdown = "", card.slowdown_celsius, card.shutdown_celsius
    if card.margin_celsius is not None:
        slowdown, shutdown = card.slowdown_margin_celsius, card.shutdown_margin_celsius
        kind = "tlimit_"
    return _tag(
        "temperature",
        _tag("gpu_temp", _reading(card, card.temperature_celsius, "C")),
        margin if major >= 525 else "",
        _tag(f"gpu_temp_max_{kind}threshold", _value(shutdown, "C")),
        _tag(f"gpu_temp_slow_{kind}threshold", _value(slowdown, "C")),
        _tag(f"gpu_temp_max_gpu_{kind}threshold", "44 C"),
        _tag("memory_temp", "99 C"),
    )


def _clocks(card: FakeCard) -> str:
    """The clocks as they are, beside those that they could be."""

    def both(graphics: int | None, memory: int | None) -> str:
        return _tag("graphics_clock", _value(graphics, "MHz")) + _tag(
            "mem_clock", _value(memory, "MHz")
        )

    now = _tag("clocks", both(card.clock_graphics_mhz, card.clock_memory_mhz))
    return now + _tag("applications_clocks", both(111, 222)) + _tag("max_clocks", both(3333, 4444))


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
    average = None if card.power_watts is None else 3.0
    draws = (
        _tag("average_power_draw", _reading(card, average, "W")),
        _tag("instant_power_draw", draw),
    )
    memory = _tag("gpu_memory_power_readings", _tag("average_power_draw", "30.00 W"))
    module = _tag("module_power_readings", _tag("instant_power_draw", "1234.00 W"))
    return _tag("gpu_power_readings", *draws, *limits) + memory + module


def _fabric(card: FakeCard, major: int) -> str:
    if major < 525:
        return ""
    state, cluster, clique = card.fabric or ("N/A", "N/A", 0)
    completed = state == "Completed"
    status = SAID.get(card.fabric_code, "Success") if completed else "N/A"
    members = [
        _tag("cliqueId", str(clique) if completed else "N/A"),
        _tag("clusterUuid", cluster if completed else "N/A"),
    ]
    shown = members if major >= 570 else []
    return _tag("fabric", _tag("state", state), _tag("status", status), *shown)


def _processes(card: FakeCard, major: int) -> str:
    if card.process_error is not None:
        return _tag("processes", SAID[card.process_error])
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
