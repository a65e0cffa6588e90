"""Doctor on every machine that is described: each state has its finding, and its command."""

from __future__ import annotations

import pytest

from llmgw.errors import BackendUnavailable
from llmgw.hardware.assemble import HostMemory
from llmgw.hardware.types import Inventory
from llmgw.testing.machines import FakeMachine
from llmgw.views.carving import carving_findings
from llmgw.views.findings import Finding, HardwareFacts, hardware_findings, unreadable_finding

from .described import GB10, MACHINES, MIXED_A100, STATES, carved, part
from .support import A100, read

HOST = HostMemory(128 << 30, 100 << 30)
COMMANDS = (
    *("nvidia-smi", "dmesg", "reboot", "ls -l", "systemctl", "modprobe", "llmgw", "sudo", "lspci"),
    *("restart", "pip"),
)


def judged(machine: FakeMachine) -> tuple[Inventory | None, list[Finding]]:
    """What doctor says of a machine as nvidia-smi shows it."""
    try:
        found = read(machine, topology=True, host=HOST)
    except BackendUnavailable as error:
        return None, [unreadable_finding(str(error))]
    facts = HardwareFacts(kernel_version=machine.driver, tool_version=machine.driver)
    return found, [*hardware_findings(found, facts), *carving_findings(found)]


@pytest.mark.parametrize("name", [*MACHINES, *STATES])
def test_whatever_is_kept_out_is_a_fault_that_says_what_to_do(name: str) -> None:
    inventory, findings = judged((MACHINES | STATES)[name])
    faults = [one for one in findings if one.state == "fault"]
    if inventory is not None:
        cards = {f"card {out.card}" for out in inventory.excluded if out.device is None}
        devices = [out for out in inventory.excluded if out.device is not None]
        assert cards <= {one.check for one in faults}
        assert len(faults) >= len(cards) + len(devices)
        assert {f"card {card.index}" for card in inventory.cards} <= {o.check for o in findings}
    for one in faults:
        assert one.do, one
        assert any(command in one.do for command in COMMANDS), one
    assert len({one.check for one in faults}) == len(faults)


def carving(*cards: object) -> dict[str, Finding]:
    inventory = read(FakeMachine(tuple(cards)), topology=True, host=HOST)  # type: ignore[arg-type]
    return {one.check: one for one in carving_findings(inventory)}


def test_what_is_left_of_a_card_is_told_where_an_instance_would_still_fit() -> None:
    found = carving(*MIXED_A100)
    assert set(found) == {"carving of card 1", "carving of card 2"}
    assert found["carving of card 1"].detail.startswith("1 of 7 slices and 11.8 GiB")
    assert found["carving of card 2"].detail.startswith("5 of 7 slices and 41.0 GiB")
    assert "nvidia-smi mig -i 2 -lgip" in (found["carving of card 2"].do or "")


def test_a_card_whose_memory_is_all_given_out_is_carved_whole_with_a_slice_to_spare() -> None:
    halves = carved(A100, part("3g.40gb", 40192, 1), part("3g.40gb", 40192, 2))
    assert carving(halves, GB10) == {}


def test_what_is_left_of_a_gpu_instance_is_told_with_the_command_that_uses_it() -> None:
    shared = carved(
        A100,
        part("1c.3g.40gb", 40192, 1),
        part("1c.3g.40gb", 40192, 1, compute_instance=1),
        part("3g.40gb", 40192, 2, multiprocessors=42),
    )
    found = carving(shared)
    assert set(found) == {"GPU instance 1 of card 0"}
    one = found["GPU instance 1 of card 0"]
    assert one.detail == "1 of its 3 compute slices are in no compute instance"
    assert "nvidia-smi mig -i 0 -gi 1 -cci PROFILE" in (one.do or "")
