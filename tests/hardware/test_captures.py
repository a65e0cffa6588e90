"""Captures: what a machine printed, kept for later, without what is private."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable, UsageError
from llmgw.hardware.discover import HardwareSettings, capture, discover
from llmgw.hardware.types import Inventory
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.fake_smi import (
    FakeAnswer,
    FakeCard,
    FakeMachine,
    FakeProcess,
    render_report,
)

from .described import MACHINES, STATES
from .support import A100, L40S, SLICE, discover_from, needs_nvml, written

PRIVATE = "secret-job --token=abc"
MACHINE = FakeMachine(
    (
        replace(L40S, processes=(FakeProcess(pid=11, memory_mib=5, name=PRIVATE),)),
        L40S,
        replace(A100, mig="Enabled", instances=(SLICE,)),
    ),
    links=((0, 1),),
)


async def captured(folder: Path, answers: FakeMachine | dict[str, FakeAnswer]) -> Path:
    program = await written(folder, answers)
    settings = HardwareSettings(
        node="n1", nvidia_smi=str(program), nvml_library=str(folder / "none.so")
    )
    made = await capture(settings, folder / "capture")
    assert all(path.exists() for path in made.files)
    return folder / "capture"


async def read(folder: Path) -> Inventory:
    return await discover(HardwareSettings(node="n1", backend="nvidia-smi", capture_from=folder))


async def test_a_capture_reads_as_the_machine_it_was_taken_from(tmp_path: Path) -> None:
    folder = await captured(tmp_path, MACHINE)
    live = await discover_from(tmp_path, MACHINE)
    assert await read(folder) == replace(live, boot_id=None)


@needs_nvml
@pytest.mark.parametrize(
    "name", ["a100-mixed-mig", "h100-sxm", "gb200-fabric", "two-memory-nodes", "lost", "gb10"]
)
async def test_a_capture_of_nvml_reads_as_the_machine_it_was_taken_from(
    name: str, tmp_path: Path
) -> None:
    machine = (MACHINES | STATES)[name]
    library = await to_thread.run_sync(write_fake_nvml, tmp_path, machine)
    program = await written(tmp_path, machine)
    settings = HardwareSettings(
        node="n1", nvidia_smi=str(program), nvml_library=str(library), backend="nvml"
    )
    await capture(settings, tmp_path / "capture")
    live = await discover(settings)
    found = await discover(replace(settings, capture_from=tmp_path / "capture"))
    if any(card.unified for card in live.cards):  # memory that is the system's moves
        assert [card.uuid for card in found.cards] == [card.uuid for card in live.cards]
    else:
        assert found == replace(live, boot_id=None)
    by_tool = replace(settings, backend="nvidia-smi", capture_from=tmp_path / "capture")
    assert [d.id for d in (await discover(by_tool)).devices] == [d.id for d in found.devices]


async def test_a_capture_holds_neither_serial_numbers_nor_command_lines(tmp_path: Path) -> None:
    folder = await captured(tmp_path, MACHINE)
    text = "".join(path.read_text() for path in folder.iterdir())
    assert PRIVATE not in text
    assert "132000000" not in text
    assert "GPU-00000001" in text


async def test_unified_memory_is_captured_with_the_systems_size(tmp_path: Path) -> None:
    spark = FakeCard(name="NVIDIA GB10", memory_total_mib=None, memory_used_mib=None)
    folder = await captured(tmp_path, FakeMachine((spark,)))
    (device,) = (await read(folder)).devices
    assert device.unified
    assert (device.memory_total_bytes or 0) > 0


async def test_a_failing_tool_is_captured_with_what_it_said(tmp_path: Path) -> None:
    text = "Failed to initialize NVML: Unknown Error\n"
    answers = dict.fromkeys(("-L", "-q -x", "topo -m"), FakeAnswer(text, 255))
    folder = await captured(tmp_path, answers)
    with pytest.raises(BackendUnavailable, match="Restart the container"):
        await read(folder)


async def test_a_capture_without_listing_still_reads(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi-q-x.xml").write_text(render_report(FakeMachine((L40S,))))
    assert [device.label for device in (await read(tmp_path)).devices] == ["0"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
async def test_a_capture_made_by_hand_is_read_in_whatever_its_shell_wrote(
    encoding: str, tmp_path: Path
) -> None:
    folder = await captured(tmp_path, MACHINE)
    before = await read(folder)
    for path in folder.iterdir():
        path.write_bytes(path.read_text().replace("\n", "\r\n").encode(encoding))
    assert await read(folder) == before


async def test_a_folder_that_holds_no_capture_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no nvidia-smi-q-x\.xml"):
        await read(tmp_path)
    with pytest.raises(UsageError, match=r"there is no folder .*/missing: make a capture"):
        await read(tmp_path / "missing")


@pytest.mark.parametrize("name", ["nvidia-smi-q-x.xml", "nvidia-smi-L.txt", "nvml.json"])
async def test_what_is_no_file_in_a_capture_is_named_and_not_waited_for(
    tmp_path: Path, name: str
) -> None:
    folder = await captured(tmp_path, MACHINE)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(UsageError, match=f"{name} is no regular file"):
        await discover(HardwareSettings(node="n1", capture_from=folder))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>404</html>",
        "<nvidia_smi_log></nvidia_smi_log>",
        "<nvidia_smi_log><gpu></nvidia_smi_log>",
        "<nvidia_smi_log><gpu>",
    ],
)
async def test_a_capture_that_is_no_report_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvidia-smi-q-x.xml").write_text(text)
    with pytest.raises(BackendUnavailable, match=r"nvidia-smi-q-x\.xml"):
        await read(tmp_path)


async def test_a_capture_that_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "capture").write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        await captured(tmp_path, MACHINE)
