"""What doctor says of a machine's hardware, and what to do: every state with its command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.core.limits import Limits
from llmgw.hardware.types import Card, Device, Excluded, Inventory, Wear
from llmgw.views.findings import (
    Finding,
    HardwareFacts,
    driverless_finding,
    hardware_findings,
    no_gpu_finding,
    unreadable_finding,
)
from llmgw.views.surroundings import (
    EngineFact,
    clock_finding,
    disk_finding,
    engine_findings,
    files_finding,
    ports_finding,
)

A100 = Card(
    index=0,
    uuid="GPU-0",
    name="NVIDIA A100-SXM4-80GB",
    card_class="a100-80g",
    memory_total_bytes=80 << 30,
    mig_mode="disabled",
    wear=Wear(ecc_uncorrected=0, remapped_rows=0),
)
CARVED = replace(A100, mig_mode="enabled")
WHOLE = Device(id=0, label="0", card=0, uuid="GPU-0", device_class="a100-80g")
PART = Device(
    id=1000, label="0/mig0", card=0, uuid="MIG-0", device_class="a100-80g-mig-3g.40gb",
    profile="3g.40gb",
)  # fmt: skip
ONE = Inventory(
    node="n1", backend="nvml", driver_version="580.65.06", cards=(A100,), devices=(WHOLE,)
)
FACTS = HardwareFacts(
    kernel_version="580.65.06", library_version="580.65.06", tool_version="580.65.6"
)


def findings(inventory: Inventory, facts: HardwareFacts = FACTS) -> dict[str, Finding]:
    return {found.check: found for found in hardware_findings(inventory, facts)}


def excluded(reason: str, detail: str = "so it is", card: Card = CARVED) -> Finding:
    """What is said of the one card when it is kept out of placement for a reason."""
    out = (Excluded(card=0, reason=reason, detail=detail),)
    return findings(replace(ONE, cards=(card,), devices=(), excluded=out))["card 0"]


def test_a_machine_in_good_order_has_nothing_to_do() -> None:
    found = hardware_findings(ONE, FACTS)
    assert {one.state for one in found} == {"ok"}
    assert {one.do for one in found} == {None}
    assert [one.check for one in found] == ["hardware", "versions", "card 0", "wear"]


@pytest.mark.parametrize(
    ("reason", "detail", "command"),
    [
        ("lost", "", "dmesg | grep -i xid (79 "),
        ("needs-reset", "a row waits for a reset", "nvidia-smi --gpu-reset -i 0"),
        ("needs-reset", "the driver asks for a system-reboot", "reboot the machine"),
        ("worn", "", "nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER -i 0"),
        ("mig-empty", "", "nvidia-smi mig -i 0 -cgi 3g.40gb,3g.40gb -C"),
        ("mig-pending", "", "nvidia-smi --gpu-reset -i 0, or reboot"),
        ("compute-mode", "", "nvidia-smi -i 0 -c DEFAULT"),
        ("fabric", "", "systemctl restart nvidia-fabricmanager"),
        ("no-permission", "", "--device /dev/nvidia0"),
        ("unreadable", "", "nvidia-smi -q -i 0"),
    ],
)
def test_each_state_in_which_nothing_runs_comes_with_its_command(
    reason: str, detail: str, command: str
) -> None:
    found = excluded(reason, detail)
    assert found.state == "fault"
    assert reason in found.detail
    assert found.do is not None
    assert command in found.do


def test_a_card_of_unknown_profiles_is_told_how_to_list_them() -> None:
    strange = replace(CARVED, card_class="strange-1g")
    done = excluded("mig-empty", card=strange).do or ""
    assert "nvidia-smi mig -i 0 -lgip" in done
    assert "nvidia-smi -i 0 -mig 0" in done


def test_an_empty_card_with_gpu_instances_needs_compute_instances_only() -> None:
    detail = "MIG is on and GPU instance 2 of card 0 has no compute instance, so that nothing can"
    found = excluded("mig-empty", f"{detail} use it: nvidia-smi mig -i 0 -gi 2 -cci")
    assert found.do == "nvidia-smi mig -i 0 -gi 2 -cci"


def test_a_card_that_could_not_even_be_opened_has_a_row() -> None:
    out = (Excluded(card=7, reason="lost", detail="GPU is lost"),)
    found = findings(replace(ONE, excluded=out))
    assert (found["card 0"].state, found["card 7"].state) == ("ok", "fault")


def test_instances_are_named_with_their_profiles() -> None:
    found = findings(replace(ONE, cards=(CARVED,), devices=(PART,)))
    assert found["card 0"].detail == "NVIDIA A100-SXM4-80GB, MIG enabled: 0/mig0 3g.40gb"


def test_gpu_instances_without_compute_instances_are_seen_or_said_to_be_unseen() -> None:
    carved = replace(ONE, cards=(CARVED,), devices=(PART,))
    check = "GPU instances of card 0"
    unseen = findings(carved)[check]
    assert (unseen.state, "needs root" in unseen.detail) == ("unknown", True)
    assert (unseen.do or "").startswith("sudo llmgw doctor")
    seen = findings(carved, replace(FACTS, bare_gpu_instances={0: (2, 5)}))[check]
    assert (seen.state, seen.do) == ("warning", "nvidia-smi mig -i 0 -gi 2,5 -cci")
    assert findings(carved, replace(FACTS, bare_gpu_instances={0: ()}))[check].state == "ok"
    assert check not in findings(ONE)


def test_versions_that_differ_are_a_fault_and_spelling_is_no_difference() -> None:
    found = findings(ONE, replace(FACTS, library_version="570.124.06"))["versions"]
    assert (found.state, "NVML 570.124.06" in found.detail) == ("fault", True)
    assert findings(ONE, HardwareFacts())["versions"].state == "unknown"
    for same in ("13.580.65.06", "580.65", "13.580.65.6"):
        assert findings(ONE, replace(FACTS, library_version=same))["versions"].state == "ok"
    for other in ("13.580.82.07", "12.575.65.06", "580.66"):
        assert findings(ONE, replace(FACTS, library_version=other))["versions"].state == "fault"


def test_a_fallback_says_why_and_how_to_end_it() -> None:
    fallen = replace(
        ONE, backend="nvidia-smi", fallback_from="nvml: the nvml extra is not installed"
    )
    found = findings(fallen)["hardware"]
    assert found.state == "warning"
    assert found.do == "pip install 'llmgw[nvml]'"
    broken = findings(replace(fallen, fallback_from="nvml: unknown error"))["hardware"]
    assert "--backend nvml" in (broken.do or "")


def test_linked_cards_are_shown_by_domain_and_those_without_are_named() -> None:
    linked = [
        replace(A100, index=n, uuid=f"GPU-{n}", nvlink_domain="node:n1/0", nvlink_peers=(1 - n,))
        for n in (0, 1)
    ]
    alone = replace(A100, index=2, uuid="GPU-2", nvlink_peers=())
    assert findings(replace(ONE, cards=tuple(linked)))["NVLink"].detail == "node:n1/0: cards 0, 1"
    found = findings(replace(ONE, cards=(*linked, alone)))["NVLink"]
    assert found.state == "warning"
    assert found.detail.endswith("not linked: 2")
    none = findings(replace(ONE, cards=(alone, replace(alone, index=3))))["NVLink"]
    assert (none.state, none.detail) == ("ok", "no card is linked to another")
    untold = replace(alone, nvlink_peers=None)
    assert findings(replace(ONE, cards=(untold, untold)))["NVLink"].state == "unknown"


def test_wear_is_shown_by_card_and_what_is_not_counted_is_not_zero() -> None:
    worn = replace(A100, wear=Wear(ecc_uncorrected=3, remapped_rows=1))
    found = findings(replace(ONE, cards=(worn,)))["wear of card 0"]
    assert found.detail == "3 uncorrected errors, 1 remapped rows"
    silent = replace(A100, wear=Wear())
    assert findings(replace(ONE, cards=(silent,)))["wear"].state == "unknown"
    carved = replace(CARVED, wear=Wear(ecc_uncorrected=0))
    found = findings(replace(ONE, cards=(carved,), devices=(PART,)))["wear"]
    assert "remapped rows are not told of cards 0" in found.detail


def test_a_card_that_is_worn_beyond_the_limits_is_a_fault_and_the_limits_can_be_others() -> None:
    worn = replace(ONE, cards=(replace(A100, wear=Wear(ecc_volatile_uncorrected=11)),))
    found = findings(worn)["wear of card 0"]
    assert (found.state, found.detail) == ("fault", "11 uncorrected errors since its last reset")
    patient = replace(FACTS, limits=Limits(worn_errors=11))
    assert findings(worn, patient)["wear of card 0"].state == "warning"


def test_a_card_that_is_hot_or_slowed_right_now_is_warned_of_with_its_numbers() -> None:
    warm = replace(A100, temperature_celsius=91.0, throttled_by=("hw_thermal_slowdown",))
    found = findings(replace(ONE, cards=(warm,)))
    hot, slow = found["card 0, hot"], found["card 0, throttled"]
    assert (hot.state, hot.detail) == ("warning", "91 °C, limit 88 °C, at this moment")
    assert slow.detail == "hw_thermal_slowdown, at this moment"
    assert "nvidia-smi -q -d TEMPERATURE -i 0" in (hot.do or "")
    carved = findings(replace(ONE, cards=(replace(warm, mig_mode="enabled"),), devices=(PART,)))
    assert "card 0, hot" in carved


def test_links_that_are_down_are_named_where_others_of_the_card_are_up() -> None:
    pair = [
        replace(A100, index=n, uuid=f"GPU-{n}", nvlink_domain="d", nvlink_peers=(1 - n,))
        for n in (0, 1)
    ]
    bare = replace(A100, index=2, uuid="GPU-2", nvlink_peers=(), nvlink_links_down=(0, 1, 2, 3))
    broken = replace(pair[1], nvlink_links_down=(4, 5))
    found = findings(replace(ONE, cards=(pair[0], broken, bare)))
    assert found["NVLink of card 1"].detail == "links are down: 4, 5"
    assert {"NVLink of card 0", "NVLink of card 2"}.isdisjoint(found)


def test_unified_memory_is_said_to_be_shared() -> None:
    unified = replace(A100, unified=True)
    assert "80 GiB" in findings(replace(ONE, cards=(unified,)))["unified memory"].detail
    unknown = replace(unified, memory_total_bytes=None)
    assert findings(replace(ONE, cards=(unknown,)))["unified memory"].state == "unknown"


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("nvml: driver/library version mismatch (NVML error 18)", "reboot, or unload"),
        ("its kernel module is not loaded. Load it", "modprobe nvidia"),
        ("'nvidia-smi -q -x' did not end within 30 seconds", "dmesg | grep -i xid"),
        ("a card is lost and the tool answers for none", "nvidia-smi --gpu-reset"),
        ("a container lost its access to the cards", "restart the container"),
        ("this user may not read the cards", "ls -l /dev/nvidia*"),
        ("something that nobody has seen", "nvidia-smi -q"),
    ],
)
def test_hardware_that_cannot_be_read_is_a_fault_with_a_remedy(reason: str, command: str) -> None:
    found = unreadable_finding(reason)
    assert (found.state, reason in found.detail) == ("fault", True)
    assert command in (found.do or "")


def test_no_gpu_is_no_fault_and_a_card_without_a_driver_is_one() -> None:
    assert no_gpu_finding("nvml: libnvidia-ml.so.1 not found").state == "warning"
    assert driverless_finding(2).state == "fault"
    processor = Inventory(node="n1", backend="cpu", fallback_from="nvml: not found")
    assert {one.state for one in hardware_findings(processor, HardwareFacts())} == {"ok"}


def test_an_engine_that_is_missing_matters_when_a_setting_names_it_or_none_is_there() -> None:
    gone = EngineFact(name="vllm", problem="no vllm on PATH")
    here = EngineFact(name="llama.cpp", program="/opt/llama-server", version="9")
    states = [one.state for one in engine_findings([gone, here], ONE)]
    assert states == ["ok", "ok"]
    assert engine_findings([gone], ONE)[0].state == "warning"
    assert engine_findings([replace(gone, named=True)], ONE)[0].state == "fault"


def test_an_engine_that_would_not_use_the_cards_is_warned_of() -> None:
    blind = EngineFact(name="llama.cpp", program="llama-server", lists=())
    assert engine_findings([blind], ONE)[0].state == "warning"
    assert engine_findings([blind], None)[0].state == "ok"
    sees = engine_findings([replace(blind, lists=("CUDA0",))], ONE)[0]
    assert (sees.state, "CUDA0" in sees.detail) == ("ok", True)
    vllm = EngineFact(name="vllm", program="vllm", version="0.20.0")
    carved = replace(ONE, devices=(PART,))
    assert engine_findings([vllm], carved)[0].state == "warning"
    assert engine_findings([vllm], ONE)[0].state == "ok"


def test_the_clock_is_judged_beyond_the_doubt_of_the_measurement() -> None:
    assert clock_finding(None, 0).state == "unknown"
    assert clock_finding(0.2, 0.1).state == "ok"
    assert clock_finding(-1.5, 0.8).state == "ok"
    assert clock_finding(-3.0, 0.1).state == "warning"


def test_the_machine_s_limits_are_judged() -> None:
    assert disk_finding("/d", 50 << 30, None).state == "ok"
    assert disk_finding("/d", 1 << 30, None).state == "warning"
    assert disk_finding("/d", 1 << 20, None).state == "fault"
    assert disk_finding("/d", 50 << 30, "a file is there").state == "fault"
    assert [files_finding(n, None).state for n in (None, 65536, 1024)] == ["ok", "ok", "warning"]
    ports = range(100, 110)
    assert ports_finding("h", ports, 3, range(200, 300), None).state == "ok"
    assert ports_finding("h", ports, 0, range(105, 300), None).state == "warning"
    assert ports_finding("h", ports, 10, None, None).state == "fault"
    assert ports_finding("h", ports, 0, None, "not an address of this machine").state == "fault"
