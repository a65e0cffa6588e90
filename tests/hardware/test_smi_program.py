"""Running nvidia-smi: every way in which it fails has its own message, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.testing.fake_smi import (
    End,
    FakeAnswer,
    FakeMachine,
    answers_for,
    render_report,
)

from ..support.wait import until
from .support import A100, L40S, SLICE, discover_from, written

MACHINE = FakeMachine((L40S, L40S), links=((0, 1),))
LOST = (
    "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system"
    " to recover this GPU\n"
)

FAILURES = {
    "no-driver": (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "modprobe nvidia",
    ),
    "mismatch": (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.1\n",
        "upgraded under a running system",
    ),
    "lost": (15, LOST, "0000:02:00.0"),
    "container": (255, "Failed to initialize NVML: Unknown Error\n", "Restart the container"),
    "no-cards": (6, "No devices were found\n", "finds no card"),
    "no-library": (
        12,
        "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n",
        "libnvidia-ml.so.1 is missing",
    ),
    "no-permission": (4, "Insufficient Permissions\n", "/dev/nvidia"),
    "internal": (255, "", "Xid"),
    "unknown": (77, "Something new\n", "by hand"),
    "garbage": (0, "Segmentation fault, or a coffee machine\n", "not nvidia-smi"),
    "silence": (0, "", "printed nothing"),
}


async def test_cards_instances_and_links_are_found_by_running_the_program(tmp_path: Path) -> None:
    carved = replace(A100, mig="Enabled", instances=(SLICE,))
    machine = FakeMachine((*MACHINE.cards, carved), links=MACHINE.links)
    inventory = await discover_from(tmp_path, machine)
    assert inventory.backend == "nvidia-smi"
    assert inventory.boot_id
    assert [device.label for device in inventory.devices] == ["0", "1", "2/mig0"]
    assert inventory.cards[0].nvlink_domain == "node:n1/0"
    assert inventory.warnings == ()


async def test_a_machine_may_change_between_two_looks(tmp_path: Path) -> None:
    assert len((await discover_from(tmp_path, MACHINE)).devices) == 2
    assert len((await discover_from(tmp_path, FakeMachine((L40S,)))).devices) == 1


@pytest.mark.parametrize(("code", "text", "advice"), FAILURES.values(), ids=FAILURES)
async def test_each_failure_says_what_to_do(
    tmp_path: Path, code: int, text: str, advice: str
) -> None:
    answers = dict.fromkeys(("-q -x", "-q -x -i 0", "-L"), FakeAnswer(text, code))
    with pytest.raises(BackendUnavailable) as failure:
        await discover_from(tmp_path, answers)
    assert advice in str(failure.value)


async def test_the_failures_have_different_messages(tmp_path: Path) -> None:
    messages = set()
    for code, text, _ in FAILURES.values():
        with pytest.raises(BackendUnavailable) as failure:
            await discover_from(tmp_path, {"-q -x": FakeAnswer(text, code)})
        messages.add(str(failure.value).split("It printed")[0])
    assert len(messages) >= len(FAILURES) - 1  # garbage and silence differ in what was printed


async def test_an_exit_code_alone_tells_enough(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="modprobe nvidia"):
        await discover_from(tmp_path, {"-q -x": FakeAnswer("?", 9)})


async def test_a_message_on_the_error_stream_is_read_too(tmp_path: Path) -> None:
    answer = FakeAnswer("", 255, stderr="Failed to initialize NVML: Unknown Error\n")
    with pytest.raises(BackendUnavailable, match="Restart the container"):
        await discover_from(tmp_path, {"-q -x": answer})


async def test_a_missing_program_says_how_to_go_on(tmp_path: Path) -> None:
    settings = HardwareSettings(
        node="n1", backend="nvidia-smi", nvidia_smi=str(tmp_path / "nvidia-smi")
    )
    with pytest.raises(BackendUnavailable, match="not found: install the NVIDIA driver"):
        await discover(settings)


async def test_a_program_that_may_not_be_run_is_not_called_missing(tmp_path: Path) -> None:
    program = await written(tmp_path, MACHINE)
    program.chmod(0o644)
    settings = HardwareSettings(
        node="n1", backend="nvidia-smi", nvidia_smi=str(program), cpu_device=True
    )
    with pytest.raises(BackendUnavailable, match="cannot be run"):
        await discover(settings)


@pytest.mark.parametrize("end", ["hang", "ignore-term"])
async def test_a_program_that_hangs_is_ended(tmp_path: Path, end: End) -> None:
    answer = FakeAnswer(render_report(MACHINE)[:2000], end=end)
    with pytest.raises(BackendUnavailable, match="did not end within"):
        await discover_from(tmp_path, {"-q -x": answer}, timeout_seconds=0.5)
    assert running(tmp_path) == []


async def test_a_discovery_that_is_cancelled_ends_its_program(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(discover_from, tmp_path, {"-q -x": FakeAnswer("", end="ignore-term")})
        await until(lambda: bool(running(tmp_path)), what="the program runs")
        group.cancel_scope.cancel()
    assert running(tmp_path) == []


async def test_a_wrapper_that_ends_early_leaves_no_child_that_holds_its_output(
    tmp_path: Path,
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ntrap "exit 0" TERM\nsh -c \'trap "" TERM; sleep 60\' "$0" & wait\n'
    )
    program.chmod(0o755)
    settings = HardwareSettings(
        node="n1", backend="nvidia-smi", nvidia_smi=str(program), timeout_seconds=0.5
    )
    with pytest.raises(BackendUnavailable, match="did not end"):
        await discover(settings)
    await until(lambda: running(tmp_path) == [], what="the wrapper's child has ended")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
async def test_a_program_killed_midway_gives_no_half_machine(tmp_path: Path, share: float) -> None:
    report = render_report(MACHINE)
    answer = FakeAnswer(report[: int(len(report) * share)], end="killed")
    with pytest.raises(BackendUnavailable, match="killed by signal 9"):
        await discover_from(tmp_path, {"-q -x": answer})


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
async def test_a_report_that_is_cut_off_gives_no_half_machine(tmp_path: Path, share: float) -> None:
    report = render_report(MACHINE)
    answer = FakeAnswer(report[: int(len(report) * share)])
    with pytest.raises(BackendUnavailable, match="cut off"):
        await discover_from(tmp_path, {"-q -x": answer})


async def test_output_without_end_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec yes 'a very long line of nothing at all'\n")
    program.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="more than 64 MiB"):
        await discover(HardwareSettings(node="n1", backend="nvidia-smi", nvidia_smi=str(program)))
    assert running(tmp_path) == []


async def test_a_report_without_cards_is_a_failure_and_no_empty_machine(tmp_path: Path) -> None:
    for attached, said in ((0, "none is attached"), (8, "8 are attached")):
        machine = FakeMachine((), attached=attached)
        with pytest.raises(BackendUnavailable, match=said):
            await discover_from(tmp_path, machine)


async def test_a_warning_about_the_inforom_leaves_the_report_valid(tmp_path: Path) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    answers = answers_for(MACHINE)
    answers["-q -x"] = FakeAnswer(f"{render_report(MACHINE)}\n{warning}\n", 14)
    inventory = await discover_from(tmp_path, answers)
    assert len(inventory.devices) == 2
    assert inventory.warnings == (f"nvidia-smi says: {warning}",)


async def test_a_lost_card_that_silences_the_tool_does_not_hide_the_others(tmp_path: Path) -> None:
    whole = FakeMachine((L40S, L40S, replace(L40S, utilization_percent=7)))
    answers = answers_for(whole) | {
        "-q -x": FakeAnswer(LOST, 15),
        "-q -x -i 0": FakeAnswer(one_card(whole, 0)),
        "-q -x -i 1": FakeAnswer(LOST, 15),
        "-q -x -i 2": FakeAnswer(one_card(whole, 2)),
        "-q -x -i 3": FakeAnswer("No devices were found\n", 6),
    }
    inventory = await discover_from(tmp_path, answers)
    assert [device.id for device in inventory.devices] == [0, 2]
    assert inventory.devices[1].utilization_percent == 7
    (lost,) = inventory.excluded
    assert (lost.card, lost.reason) == (1, "lost")
    assert "0000:02:00.0: GPU is lost" in lost.detail


async def test_a_tool_that_answers_for_no_card_at_all_is_unavailable(tmp_path: Path) -> None:
    answers = {"-q -x": FakeAnswer(LOST, 15), "-q -x -i 0": FakeAnswer(LOST, 15)}
    with pytest.raises(BackendUnavailable, match="reset the card"):
        await discover_from(tmp_path, answers | {"-q -x -i 1": FakeAnswer(LOST, 15)})


async def test_a_topology_that_fails_costs_only_the_domains(tmp_path: Path) -> None:
    answers = answers_for(MACHINE) | {"topo -m": FakeAnswer("", end="killed")}
    inventory = await discover_from(tmp_path, answers)
    assert [device.id for device in inventory.devices] == [0, 1]
    assert inventory.cards[0].nvlink_domain is None
    assert "topology is not known" in inventory.warnings[0]


async def test_a_listing_that_fails_costs_whole_cards_nothing(tmp_path: Path) -> None:
    answers = answers_for(MACHINE) | {"-L": FakeAnswer("Unknown Error\n", 255)}
    assert len((await discover_from(tmp_path, answers)).devices) == 2


async def test_instances_without_a_listing_are_not_given_other_ids_for_a_while(
    tmp_path: Path,
) -> None:
    carved = FakeMachine((replace(A100, mig="Enabled", instances=(SLICE,)),))
    answers = answers_for(carved) | {"-L": FakeAnswer("Unknown Error\n", 255)}
    with pytest.raises(BackendUnavailable, match="nvidia-smi -L"):
        await discover_from(tmp_path, answers)


def one_card(machine: FakeMachine, index: int) -> str:
    """The report on one card, as `-i` gives it."""
    report = render_report(machine)
    cards = report.split("<gpu ")
    kept = "<gpu " + cards[1 + index].split("</gpu>")[0] + "</gpu>\n</nvidia_smi_log>"
    return cards[0] + kept


def running(folder: Path) -> list[int]:
    """The processes that name a folder in their command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append(int(process.name))
    return found
