"""NVML through the real binding: its traps, its failures, and a driver that hangs or crashes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.errors import BackendUnavailable
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.shapes import shape
from llmgw.hardware.types import Fabric, Inventory, Process
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.machines import FakeMachine, FakeProcess

from ..support.wait import until
from .described import BRIDGED, H100, MACHINES, SHARED_H200, carved, part
from .support import A100, L40S, MIB, needs_nvml, only
from .test_smi_program import running

pytestmark = needs_nvml

MACHINE = FakeMachine((L40S, L40S, L40S))
CARVED = FakeMachine((carved(A100, part("1g.10gb", 9728, 7), part("1g.10gb", 9728, 9)),))
BUSY = replace(L40S, processes=(FakeProcess(pid=41, memory_mib=5),))


async def look(
    folder: Path,
    machine: FakeMachine,
    *,
    timeout_seconds: float = 20,
    **more: Any,  # noqa: ANN401 - what write_fake_nvml takes
) -> Inventory:
    """What discovery finds through the binding and a pretended library."""
    library = await to_thread.run_sync(lambda: write_fake_nvml(folder, machine, **more))
    return await discover(
        HardwareSettings(
            node="n1",
            backend="nvml",
            nvml_library=str(library),
            timeout_seconds=timeout_seconds,
        )
    )


async def refusal(
    folder: Path,
    machine: FakeMachine = MACHINE,
    **more: Any,  # noqa: ANN401 - what look takes
) -> str:
    """Why discovery fails."""
    with pytest.raises(BackendUnavailable) as failure:
        await look(folder, machine, **more)
    return str(failure.value)


async def test_cards_on_a_switch_are_one_domain_though_its_address_is_no_cards(
    tmp_path: Path,
) -> None:
    machine = FakeMachine((replace(H100, fabric=None),) * 8, switched=tuple(range(8)))
    inventory = await look(tmp_path, machine)
    assert {card.nvlink_domain for card in inventory.cards} == {"node:n1/0"}
    assert inventory.cards[3].nvlink_peers == (0, 1, 2, 4, 5, 6, 7)


async def test_where_a_switch_is_invisible_the_drivers_word_on_each_pair_counts(
    tmp_path: Path,
) -> None:
    machine = MACHINES["h100-virtual-machine"]
    inventory = await look(tmp_path, machine)
    assert {card.nvlink_domain for card in inventory.cards} == {"node:n1/0"}
    denied = {f"{a} nvmlDeviceGetP2PStatus({b},2)": "=5" for a in range(4) for b in range(4)}
    inventory = await look(tmp_path, machine, changed=denied)
    assert {card.nvlink_domain for card in inventory.cards} == {None}


async def test_bridges_join_pairs_and_links_that_are_down_join_nothing(tmp_path: Path) -> None:
    inventory = await look(tmp_path, MACHINES["h100-pcie-bridges"])
    domains = [card.nvlink_domain for card in inventory.cards]
    assert domains == ["node:n1/0", "node:n1/0", "node:n1/2", "node:n1/2"]
    one_end = {"0 nvmlDeviceGetNvLinkState(0)": "=0"}
    pair = FakeMachine((BRIDGED, BRIDGED), links=((0, 1),))
    inventory = await look(tmp_path, pair, changed=one_end)
    assert [card.nvlink_peers for card in inventory.cards] == [(), ()]


async def test_links_that_are_down_are_named(tmp_path: Path) -> None:
    inventory = await look(tmp_path, MACHINES["h100-pcie-bridges"])
    assert [card.nvlink_links_down for card in inventory.cards] == [(), (1,), (1,), ()]
    alone = FakeMachine((BRIDGED, L40S), down=((0, 0),))
    inventory = await look(tmp_path, alone)
    assert [card.nvlink_links_down for card in inventory.cards] == [(0,), ()]
    assert [card.nvlink_domain for card in inventory.cards] == [None, None]


@pytest.mark.parametrize("generation", ["Ampere", "Hopper", "Blackwell"])
async def test_the_errors_of_links_are_counted_over_all_that_are_up(
    tmp_path: Path, generation: str
) -> None:
    card = replace(BRIDGED, architecture=generation, link_errors=3)
    machine = FakeMachine((card, replace(card, link_errors=0), L40S), links=((0, 1), (0, 1)))
    inventory = await look(tmp_path, machine)
    assert [card.nvlink_errors for card in inventory.cards] == [6, 0, None]


async def test_a_card_in_mig_mode_is_never_said_to_be_idle(tmp_path: Path) -> None:
    zero = {"0 nvmlDeviceGetUtilizationRates": "=0 0"}
    inventory = await look(tmp_path, CARVED, changed=zero)
    assert inventory.cards[0].utilization_percent is None
    assert {device.utilization_percent for device in inventory.devices} == {None}


async def test_the_maximum_of_instances_is_not_their_number_and_indexes_have_holes(
    tmp_path: Path,
) -> None:
    sparse = carved(A100, part("1g.10gb", 9728, 7, index=1), part("2g.20gb", 19968, 3, index=6))
    inventory = await look(tmp_path, FakeMachine((sparse,)))
    found = [(device.label, device.profile, device.gpu_instance) for device in inventory.devices]
    assert found == [("0/mig1", "1g.10gb", 7), ("0/mig6", "2g.20gb", 3)]
    assert inventory.excluded == ()


async def test_compute_instances_of_one_gpu_instance_share_its_pool(tmp_path: Path) -> None:
    inventory = await look(tmp_path, FakeMachine((SHARED_H200,)))
    assert [device.memory_pool for device in inventory.devices] == ["0/gi2", "0/gi2", "0/gi9"]
    assert inventory.devices[1].device_class == "h200-141g-mig-2c.3g.71gb"
    assert [device.processes for device in inventory.devices] == [
        (Process(pid=100 + n, memory_bytes=10 * MIB),) for n in range(3)
    ]


async def test_without_a_name_the_profile_follows_from_the_slices(tmp_path: Path) -> None:
    unnamed = {f"0.{n} nvmlDeviceGetName": "=NVIDIA H200" for n in range(3)}
    inventory = await look(tmp_path, FakeMachine((SHARED_H200,)), changed=unnamed)
    profiles = [device.profile for device in inventory.devices]
    assert profiles == ["1c.3g.71gb", "2c.3g.71gb", "1g.18gb"]


@pytest.mark.parametrize("code", [2, 6])
async def test_holes_in_the_list_of_instances_end_it_not(tmp_path: Path, code: int) -> None:
    hole = {"0 nvmlDeviceGetMigDeviceHandleByIndex(0)": f"!{code}"}
    inventory = await look(tmp_path, CARVED, changed=hole)
    assert [device.label for device in inventory.devices] == ["0/mig1"]
    assert inventory.excluded == ()


@pytest.mark.parametrize("code", [2, 6, 999])
async def test_a_stale_handle_is_no_instance_to_place_on(tmp_path: Path, code: int) -> None:
    calls = (
        *("UUID", "Name", "GpuInstanceId", "ComputeInstanceId", "Attributes", "MemoryInfo"),
        *("ComputeRunningProcesses", "GraphicsRunningProcesses"),
    )
    gone = {f"0.0 nvmlDeviceGet{call}": f"!{code}" for call in calls}
    inventory = await look(tmp_path, CARVED, changed=gone)
    assert [device.label for device in inventory.devices] == ["0/mig1"]
    assert [out.device for out in inventory.excluded] == [1000]


async def test_an_instance_that_cannot_be_opened_hides_no_other(tmp_path: Path) -> None:
    broken = {"0 nvmlDeviceGetMigDeviceHandleByIndex(0)": "!999"}
    inventory = await look(tmp_path, CARVED, changed=broken)
    assert [device.label for device in inventory.devices] == ["0/mig1"]
    (out,) = inventory.excluded
    assert (out.device, out.reason) == (1000, "unreadable")
    assert "Unknown Error" in out.detail


async def test_root_is_told_of_gpu_instances_that_hold_no_compute_instance(tmp_path: Path) -> None:
    bare = replace(A100, mig="Enabled", bare_gpu_instances=(3, 4), bare_profile=(2, 19968))
    partly = replace(CARVED.cards[0], bare_gpu_instances=(11,))
    machine = FakeMachine((bare, partly))
    inventory = await look(tmp_path, machine, root=True)
    (out,) = inventory.excluded
    assert (out.card, out.reason) == (0, "mig-empty")
    assert out.detail.endswith(": nvidia-smi mig -i 0 -gi 3,4 -cci")
    assert "GPU instance 3 (2g.20gb, 19968 MiB), 4 (2g.20gb, 19968 MiB) of card 0" in out.detail
    assert "GPU instance 11 (1g.10gb, 9728 MiB) of card 1" in inventory.warnings[0]
    assert inventory.warnings[0].endswith("nvidia-smi mig -i 1 -gi 11 -cci")
    assert len(inventory.devices) == 2
    unprivileged = await look(tmp_path, machine)
    assert [out.reason for out in unprivileged.excluded] == ["mig-empty"]
    assert unprivileged.warnings == ()


async def test_an_old_driver_lists_processes_though_the_binding_asks_for_more(
    tmp_path: Path,
) -> None:
    _, device = only(await look(tmp_path, FakeMachine((BUSY,), driver="470.82.01")))
    assert device.processes == (Process(pid=41, memory_bytes=5 * MIB),)


async def test_processes_in_another_structure_than_the_bindings_are_unknown(tmp_path: Path) -> None:
    several = tuple(FakeProcess(pid=40 + n, memory_mib=5) for n in range(3))
    machine = FakeMachine((replace(L40S, processes=several),), driver="535.54.03")
    _, device = only(await look(tmp_path, machine, wide_processes=True))
    assert device.processes is None
    assert device.memory_total_bytes == 46068 * MIB


async def test_a_process_that_computes_and_draws_is_one(tmp_path: Path) -> None:
    _, device = only(await look(tmp_path, FakeMachine((BUSY,))))
    assert device.processes == (Process(pid=41, memory_bytes=5 * MIB),)
    alone = {"0 nvmlDeviceGetGraphicsRunningProcesses": "!3"}
    _, device = only(await look(tmp_path, FakeMachine((BUSY,)), changed=alone))
    assert device.processes == (Process(pid=41, memory_bytes=5 * MIB),)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetTemperature(0)", "temperature_celsius"),
        ("nvmlDeviceGetFanSpeed", "fan_percent"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
        ("nvmlDeviceGetUtilizationRates", "utilization_percent"),
    ],
)
@pytest.mark.parametrize("answer", ["!3", "!999", "=4294967295"])
async def test_a_value_that_is_none_is_absent_and_never_zero(
    tmp_path: Path, call: str, field: str, answer: str
) -> None:
    card, device = only(await look(tmp_path, FakeMachine((L40S,)), changed={f"0 {call}": answer}))
    assert getattr(card, field) is None
    assert device.memory_total_bytes == 46068 * MIB


async def test_memory_that_reads_as_a_sentinel_is_unreadable(tmp_path: Path) -> None:
    everything = {"0 nvmlDeviceGetMemoryInfo": "=" + " ".join([str(2**64 - 1)] * 4)}
    inventory = await look(tmp_path, FakeMachine((L40S,)), changed=everything)
    assert inventory.devices == ()
    assert [out.reason for out in inventory.excluded] == ["unreadable"]


async def test_each_field_value_has_a_return_code_of_its_own(tmp_path: Path) -> None:
    machine = FakeMachine((replace(L40S, recovery="Reboot", power_watts=77.5),))
    failing = {"0 nvmlDeviceGetFieldValues(186,0)": "!3", "0 nvmlDeviceGetPowerUsage": "=12000"}
    inventory = await look(tmp_path, machine, changed=failing)
    assert inventory.cards[0].recovery_action == "reboot"
    assert inventory.cards[0].power_watts == 12


COSTS: dict[str, tuple[str, ...]] = {
    "nvmlDeviceGetMemoryInfo_v2": (),
    "nvmlDeviceGetTemperatureV": (),
    "nvmlDeviceGetCurrentClocksEventReasons": (),
    "nvmlDeviceGetGpuFabricInfoV": (),
    "nvmlDeviceGetFieldValues": (
        *("recovery_action", "nvlink_errors"),
        *("temperature_slowdown_margin_celsius", "temperature_shutdown_margin_celsius"),
    ),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (),
    "nvmlSystemGetCudaDriverVersion_v2": (),
    "nvmlDeviceGetP2PStatus": (),
    "nvmlDeviceGetCpuAffinity": ("cpu_affinity",),
    "nvmlDeviceGetClockInfo": ("clock_graphics_mhz", "clock_memory_mhz"),
    "nvmlDeviceGetPcieReplayCounter": ("pcie_replays",),
    "nvmlGpmQueryDeviceSupport": (),
}


@pytest.mark.parametrize(("missing", "costs"), COSTS.items())
async def test_a_symbol_that_a_driver_lacks_costs_at_most_its_own_value(
    tmp_path: Path, missing: str, costs: tuple[str, ...]
) -> None:
    machine = FakeMachine((BRIDGED, BRIDGED), links=((0, 1),))
    whole = await look(tmp_path, machine)
    lacking = await look(tmp_path, machine, hidden=frozenset({missing}))
    if missing == "nvmlDeviceGetMemoryInfo_v2":
        assert {card.memory_reserved_bytes for card in lacking.cards} == {None}
        assert {card.memory_used_bytes for card in lacking.cards} == {480 * MIB}
        lacking, whole = shape(lacking), shape(whole)
        lacking = replace(lacking, cards=whole.cards, devices=whole.devices)
    assert all(getattr(card, field) is not None for card in whole.cards for field in costs)
    without = dict.fromkeys(costs)
    whole = replace(whole, cards=tuple(replace(card, **without) for card in whole.cards))
    assert lacking == whole


async def test_a_fabric_structure_that_is_too_new_gives_way_to_an_older_one(tmp_path: Path) -> None:
    card, _ = only(await look(tmp_path, FakeMachine((H100,)), changed={"- fabricVersion": "=1"}))
    assert card.fabric == Fabric(
        state="Completed", cluster_uuid="00000000-0000-0000-0000-000000000000", clique=0
    )


async def test_a_name_that_is_no_text_costs_the_name_alone(tmp_path: Path) -> None:
    changed = {"0 nvmlDeviceGetName": "=NVIDIA \udcff"}
    inventory = await look(tmp_path, FakeMachine((L40S, L40S)), changed=changed)
    assert [device.id for device in inventory.devices] == [0, 1]
    assert inventory.cards[0].name == "unknown"


CODES = {
    9: "modprobe nvidia",
    18: "upgraded under a running system",
    4: "/dev/nvidia",
    15: "reset the card",
    999: "Restart the container",
    77: "dmesg",
}


@pytest.mark.parametrize(("code", "advice"), CODES.items())
async def test_nvml_that_does_not_start_says_what_to_do(
    tmp_path: Path, code: int, advice: str
) -> None:
    said = await refusal(tmp_path, changed={"- nvmlInit": f"!{code}"})
    assert said.startswith("nvml: ")
    assert f"NVML error {code}" in said
    assert advice in said


async def test_a_machine_on_which_no_card_answers_is_no_empty_machine(tmp_path: Path) -> None:
    assert "finds no card" in await refusal(tmp_path, FakeMachine(()))
    lost = FakeMachine((replace(L40S, handle_error=15),) * 2)
    assert "GPU is lost" in await refusal(tmp_path, lost)


@pytest.mark.parametrize(
    "call", ["- nvmlInit", "1 nvmlDeviceGetPowerUsage", "- nvmlDeviceGetCount"]
)
async def test_a_driver_that_hangs_is_given_up_and_leaves_nothing(
    tmp_path: Path, call: str
) -> None:
    said = await refusal(tmp_path, changed={call: "*"}, timeout_seconds=1)
    assert "did not answer within 1 seconds" in said
    await until(lambda: running(tmp_path) == [], what="the probe has ended")


async def test_a_library_that_crashes_takes_nobody_with_it(tmp_path: Path) -> None:
    said = await refusal(tmp_path, changed={"2 nvmlDeviceGetUUID": "^"})
    assert "killed by signal 11" in said


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "not found"), (b"no library at all", "cannot be loaded")]
)
async def test_a_library_that_cannot_be_loaded_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    if content is not None:
        library.write_bytes(content)
    settings = HardwareSettings(node="n1", backend="nvml", nvml_library=str(library))
    with pytest.raises(BackendUnavailable, match=reason) as failure:
        await discover(settings)
    assert str(library) in str(failure.value)


async def test_the_library_may_be_named_by_its_folder_or_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await to_thread.run_sync(write_fake_nvml, tmp_path, MACHINE)
    settings = HardwareSettings(node="n1", backend="nvml", nvml_library=str(tmp_path))
    assert len((await discover(settings)).cards) == 3
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert len((await discover(replace(settings, nvml_library=None))).cards) == 3


async def test_a_changed_machine_is_seen_at_the_next_look(tmp_path: Path) -> None:
    assert len((await look(tmp_path, CARVED)).devices) == 2
    one = replace(CARVED.cards[0], instances=CARVED.cards[0].instances[:1])
    assert len((await look(tmp_path, FakeMachine((one,)))).devices) == 1
    upgraded = await look(tmp_path, FakeMachine((one,), driver="595.58.03"))
    assert upgraded.driver_version == "595.58.03"


STALE = """
import ctypes, sys, pynvml
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])

def instances():
    card, found = pynvml.nvmlDeviceGetHandleByIndex(0), 0
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
            found += 1
        except pynvml.NVMLError:
            pass
    return found

pynvml.nvmlInit()
print(instances(), flush=True)
sys.stdin.readline()
print(instances(), flush=True)
pynvml.nvmlShutdown()
pynvml.nvmlInit()
print(instances(), flush=True)
"""


def test_an_open_session_goes_on_seeing_instances_that_are_gone(tmp_path: Path) -> None:
    """Why discovery starts afresh each time: this is the trap, shown."""
    library = write_fake_nvml(tmp_path, CARVED)
    with subprocess.Popen(
        [sys.executable, "-c", STALE, str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        assert session.stdout.readline() == "2\n"
        write_fake_nvml(tmp_path, FakeMachine((replace(CARVED.cards[0], instances=()),)))
        session.stdin.write("\n")
        session.stdin.flush()
        assert session.stdout.readline() == "2\n"
        assert session.stdout.readline() == "0\n"


STALE_BINDINGS: dict[str, Callable[[Path], object]] = {
    "stale": lambda folder: (folder / "pynvml.py").write_text(
        "import ctypes\nclass c_nvmlProcessInfo_t(ctypes.Structure):\n"
        "    _fields_ = [('pid', ctypes.c_uint), ('usedGpuMemory', ctypes.c_ulonglong)]\n"
    ),
    "another module of that name": lambda folder: (folder / "pynvml.py").write_text(""),
}


@pytest.mark.parametrize("write", STALE_BINDINGS.values(), ids=STALE_BINDINGS)
async def test_a_module_that_only_looks_like_the_binding_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    write(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = await refusal(tmp_path)
    assert f"{tmp_path / 'pynvml.py'} is not nvidia-ml-py" in said
