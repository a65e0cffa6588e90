"""The processor as a device, on machines laid out as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.errors import BackendUnavailable
from llmgw.hardware.cpu import processor
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.host import host_memory
from llmgw.hardware.types import PROCESSOR_DEVICE_ID, device_label, instance_id
from llmgw.testing.fake_smi import FakeMachine

from .support import L40S, written

GIB = 2**30
MACHINE_ID = "0123456789abcdef0123456789abcdef"


def machine(root: Path, files: dict[str, str]) -> Path:
    """A machine with 64 GiB, 60 of them available, and these files beside."""
    files = {
        "proc/meminfo": "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   62914560 kB\n",
        "etc/machine-id": MACHINE_ID + "\n",
    } | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_processor_has_the_systems_memory(tmp_path: Path) -> None:
    device = processor("n1", machine(tmp_path, {}))
    assert (device.id, device.label, device.device_class) == (PROCESSOR_DEVICE_ID, "cpu", "cpu")
    assert device.memory_total_bytes == 64 * GIB
    assert (device.memory_free_bytes, device.memory_used_bytes) == (60 * GIB, 4 * GIB)
    assert device.card is None
    assert device.processes is None
    assert device.utilization_percent is None


def test_the_limit_of_a_control_group_counts_where_it_is_lower(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pods/one"
    files = {
        "proc/self/cgroup": "0::/pods/one\n",
        f"{group}/memory.max": "max\n",
        "sys/fs/cgroup/pods/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pods/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/pods/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7\n",
    }
    memory = host_memory(machine(tmp_path, files), limited=True)
    assert memory is not None
    assert (memory.total_bytes, memory.available_bytes) == (8 * GIB, 6 * GIB)
    whole = host_memory(tmp_path)
    assert whole is not None
    assert whole.total_bytes == 64 * GIB


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/of/another/namespace\n0::/\n",
        f"{group}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{group}/memory.usage_in_bytes": f"{GIB}\n",
    }
    memory = host_memory(machine(tmp_path, files), limited=True)
    assert memory is not None
    assert (memory.total_bytes, memory.available_bytes) == (4 * GIB, 3 * GIB)


def test_a_limit_above_the_systems_memory_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert processor("n1", machine(tmp_path, files)).memory_total_bytes == 64 * GIB


def test_a_machine_that_hides_its_memory_offers_no_processor(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="meminfo"):
        processor("n1", machine(tmp_path, {"proc/meminfo": "nothing\n"}))


def test_the_processor_keeps_its_uuid_and_shares_it_with_no_other(tmp_path: Path) -> None:
    here = machine(tmp_path / "a", {})
    other = machine(tmp_path / "b", {"etc/machine-id": MACHINE_ID[::-1]})
    uuid = processor("n1", here).uuid
    assert uuid == processor("n1", here).uuid
    assert len({uuid, processor("n2", here).uuid, processor("n1", other).uuid}) == 3
    assert MACHINE_ID not in uuid
    bare = machine(tmp_path / "c", {"etc/machine-id": ""})
    assert processor("n1", bare).uuid == processor("n1", bare).uuid


def test_device_numbers_have_one_label_each() -> None:
    assert instance_id(0, 0) > PROCESSOR_DEVICE_ID
    assert device_label(instance_id(2, 3)) == "2/mig3"
    assert instance_id(2, 3) == 1203
    assert [device_label(n) for n in (0, 7, PROCESSOR_DEVICE_ID)] == ["0", "7", "cpu"]


async def test_the_processor_alone_is_a_machine() -> None:
    inventory = await discover(HardwareSettings(node="n1", backend="cpu"))
    assert inventory.backend == "cpu"
    assert inventory.fallback_from is None
    assert [device.device_class for device in inventory.devices] == ["cpu"]
    assert inventory.boot_id


async def test_the_processor_stands_beside_the_cards_when_asked_for(tmp_path: Path) -> None:
    program = await written(tmp_path, FakeMachine((L40S,)))
    settings = HardwareSettings(
        node="n1", backend="nvidia-smi", nvidia_smi=str(program), cpu_device=True
    )
    inventory = await discover(settings)
    assert inventory.backend == "nvidia-smi"
    assert [device.label for device in inventory.devices] == ["0", "cpu"]


async def test_a_machine_without_the_tool_falls_back_to_the_processor_and_says_so(
    tmp_path: Path,
) -> None:
    settings = HardwareSettings(
        node="n1",
        nvidia_smi=str(tmp_path / "none"),
        nvml_library=str(tmp_path / "none.so"),
        cpu_device=True,
    )
    inventory = await discover(settings)
    assert inventory.backend == "cpu"
    assert inventory.fallback_from is not None
    assert inventory.fallback_from.startswith("nvml: ")
    assert inventory.fallback_from.endswith("was not found")
    assert "no GPU tool was found" in inventory.warnings[0]


async def test_a_backend_asked_for_by_name_does_not_fall_back(tmp_path: Path) -> None:
    settings = HardwareSettings(
        node="n1", backend="nvidia-smi", nvidia_smi=str(tmp_path / "none"), cpu_device=True
    )
    with pytest.raises(BackendUnavailable, match="not found"):
        await discover(settings)
