"""Which backend answers: NVML first, then nvidia-smi, and never a quiet downgrade."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable, UsageError
from llmgw.hardware import running
from llmgw.hardware.discover import HardwareSettings, capture, discover
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.fake_smi import FakeAnswer, write_fake_smi
from llmgw.testing.machines import FakeMachine

from ..support.wait import until
from .described import MACHINES, STATES
from .support import L40S, needs_nvml, written
from .test_backends_agree import comparable

MACHINE = FakeMachine((L40S, L40S))


async def settings_for(
    folder: Path, *, tool: FakeMachine | None = None, library: FakeMachine | None = None
) -> HardwareSettings:
    """Settings for a machine with or without a working tool and library."""
    if tool is not None:
        await written(folder, tool)
    if library is not None:
        await to_thread.run_sync(write_fake_nvml, folder, library)
    return HardwareSettings(
        node="n1",
        nvidia_smi=str(folder / "nvidia-smi"),
        nvml_library=str(folder / "libnvidia-ml.so.1"),
        timeout_seconds=10,
    )


@needs_nvml
async def test_auto_takes_nvml_where_both_work(tmp_path: Path) -> None:
    found = await discover(await settings_for(tmp_path, tool=MACHINE, library=MACHINE))
    assert (found.backend, found.fallback_from, len(found.devices)) == ("nvml", None, 2)


@needs_nvml
async def test_auto_needs_no_tool_where_nvml_works(tmp_path: Path) -> None:
    settings = await settings_for(tmp_path, library=MACHINE)
    assert (await discover(settings)).backend == "nvml"
    beside = await discover(replace(settings, cpu_device=True))
    assert [device.label for device in beside.devices] == ["0", "1", "cpu"]


@needs_nvml
async def test_auto_says_why_it_fell_back(tmp_path: Path) -> None:
    settings = await settings_for(tmp_path, tool=MACHINE)
    found = await discover(settings)
    assert found.backend == "nvidia-smi"
    assert found.fallback_from == f"nvml: {tmp_path / 'libnvidia-ml.so.1'} not found"
    await to_thread.run_sync(
        lambda: write_fake_nvml(tmp_path, MACHINE, changed={"- nvmlInit": "!18"})
    )
    found = await discover(settings)
    assert found.fallback_from == "nvml: driver/library version mismatch (NVML error 18)"


@needs_nvml
async def test_auto_falls_back_from_a_library_that_hangs(tmp_path: Path) -> None:
    settings = await settings_for(tmp_path, tool=MACHINE)
    await to_thread.run_sync(
        lambda: write_fake_nvml(tmp_path, MACHINE, changed={"0 nvmlDeviceGetName": "*"})
    )
    found = await discover(replace(settings, timeout_seconds=2))
    assert (found.backend, len(found.devices)) == ("nvidia-smi", 2)
    assert found.fallback_from == "nvml: it did not answer within 2 seconds and was stopped"


async def test_without_the_extra_the_tool_answers_and_the_way_to_nvml_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    settings = await settings_for(tmp_path, tool=MACHINE)
    found = await discover(settings)
    assert found.fallback_from == "nvml: the nvml extra is not installed"
    with pytest.raises(BackendUnavailable, match=r"pip install llmgw\[nvml\]"):
        await discover(replace(settings, backend="nvml"))


async def test_when_both_fail_both_reasons_are_told(tmp_path: Path) -> None:
    settings = await settings_for(tmp_path)
    with pytest.raises(BackendUnavailable) as failure:
        await discover(settings)
    assert "nvml: " in str(failure.value)
    assert "nvidia-smi: the program" in str(failure.value)


@needs_nvml
async def test_a_broken_driver_is_not_downgraded_to_the_processor(tmp_path: Path) -> None:
    await to_thread.run_sync(
        lambda: write_fake_nvml(tmp_path, MACHINE, changed={"- nvmlInit": "!9"})
    )
    settings = replace(await settings_for(tmp_path), cpu_device=True)
    with pytest.raises(BackendUnavailable, match="modprobe nvidia"):
        await discover(settings)


@needs_nvml
async def test_nvml_asked_for_by_name_fails_instead(tmp_path: Path) -> None:
    settings = replace(await settings_for(tmp_path, tool=MACHINE), backend="nvml")
    with pytest.raises(BackendUnavailable, match="not found"):
        await discover(settings)


@needs_nvml
@pytest.mark.parametrize("name", ["a100-mixed-mig", "h100-sxm", "h200-shared-gpu-instance", "gb10"])
async def test_a_capture_reads_alike_on_either_backend(tmp_path: Path, name: str) -> None:
    settings = await settings_for(tmp_path, tool=MACHINES[name], library=MACHINES[name])
    files = (await capture(settings, tmp_path / "capture")).files
    assert "nvml.json" in {path.name for path in files}
    kept = HardwareSettings(node="n1", capture_from=tmp_path / "capture")
    by_nvml = await discover(kept)
    by_tool = await discover(replace(kept, backend="nvidia-smi"))
    assert by_nvml.backend == "nvml"
    assert by_tool.backend == "nvidia-smi"
    assert comparable(by_nvml) == comparable(by_tool)


@needs_nvml
async def test_a_capture_keeps_why_nvml_failed(tmp_path: Path) -> None:
    settings = await settings_for(tmp_path, tool=MACHINE)
    await to_thread.run_sync(
        lambda: write_fake_nvml(tmp_path, MACHINE, changed={"- nvmlInit": "!9"})
    )
    await capture(settings, tmp_path / "capture")
    kept = HardwareSettings(node="n1", capture_from=tmp_path / "capture")
    found = await discover(kept)
    assert found.backend == "nvidia-smi"
    assert found.fallback_from == "nvml: the driver is not loaded (NVML error 9)"
    with pytest.raises(BackendUnavailable, match="modprobe"):
        await discover(replace(kept, backend="nvml"))


@needs_nvml
async def test_a_machine_without_the_tool_can_be_captured(tmp_path: Path) -> None:
    files = (
        await capture(await settings_for(tmp_path, library=MACHINE), tmp_path / "capture")
    ).files
    assert {path.name for path in files} >= {"nvml.json"}
    kept = HardwareSettings(node="n1", capture_from=tmp_path / "capture")
    assert len((await discover(kept)).devices) == 2


async def test_a_capture_without_nvmls_answers_is_read_by_the_tools(tmp_path: Path) -> None:
    await written(tmp_path, MACHINE)
    settings = await settings_for(tmp_path, tool=MACHINE)
    files = (await capture(settings, tmp_path / "capture")).files
    next(path for path in files if path.name == "nvml.json").unlink()
    kept = HardwareSettings(node="n1", capture_from=tmp_path / "capture")
    assert (await discover(kept)).fallback_from is None
    with pytest.raises(UsageError, match=r"holds no nvml\.json"):
        await discover(replace(kept, backend="nvml"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cards": [7]}', '{"cards": [{"index": "x"}]}'])
async def test_answers_that_are_no_record_are_unavailable(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvml.json").write_text(text)
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        await discover(HardwareSettings(node="n1", backend="nvml", capture_from=tmp_path))


async def test_a_run_that_cannot_be_ended_is_not_joined_by_another(tmp_path: Path) -> None:
    program = await to_thread.run_sync(
        write_fake_smi, tmp_path / "nvidia-smi", {"-L": FakeAnswer("here", end="hang")}
    )
    settings = await settings_for(tmp_path)
    held = await anyio.open_process([str(program), "-L"], start_new_session=True)
    assert held.stdout is not None
    assert await held.stdout.receive() == b"here"
    await to_thread.run_sync(running.leave_behind, str(program), held.pid)
    await to_thread.run_sync(write_fake_smi, program, MACHINE)
    named = replace(settings, backend="nvidia-smi")
    with pytest.raises(BackendUnavailable, match="no other is started"):
        await discover(named)
    held.kill()
    await held.aclose()

    async def gone() -> bool:
        return not await to_thread.run_sync(running.still_running, str(program))

    ended: bool = await until(gone, what="the held run is gone")
    assert ended
    assert len((await discover(named)).devices) == 2


async def test_how_many_errors_wear_a_card_out_can_be_set(tmp_path: Path) -> None:
    program = await written(tmp_path, STATES["errors-above-the-limit"])
    for limit, reasons in ((10, ["worn"]), (10_000, [])):
        settings = HardwareSettings(
            node="n1", backend="nvidia-smi", nvidia_smi=str(program), worn_errors=limit
        )
        assert [out.reason for out in (await discover(settings)).excluded] == reasons
