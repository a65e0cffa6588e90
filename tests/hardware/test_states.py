"""States in which nothing can run: named, kept out of placement, and never hiding good cards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.core.conditions import at_a_glance
from llmgw.errors import BackendUnavailable
from llmgw.hardware.assemble import ECC_UNCORRECTED_LIMIT, HostMemory, assemble
from llmgw.hardware.shapes import shape
from llmgw.hardware.smi_list import Listing
from llmgw.hardware.smi_xml import parse_report
from llmgw.hardware.types import Inventory
from llmgw.testing.fake_smi import (
    FakeCard,
    FakeMachine,
    FakeProcess,
    render_listing,
    render_report,
)

from .support import A100, L40S, MIB, SLICE, edited, only, read


def reasons(inventory: Inventory) -> list[tuple[int | None, str]]:
    return [(out.card, out.reason) for out in inventory.excluded]


def placeable(inventory: Inventory) -> list[int]:
    cards = {out.card for out in inventory.excluded if out.device is None}
    return [device.id for device in inventory.devices if device.card not in cards]


def test_a_lost_card_is_excluded_and_its_neighbours_stay() -> None:
    inventory = read(FakeMachine((L40S, replace(L40S, lost=True), L40S)))
    assert [card.index for card in inventory.cards] == [0, 1, 2]
    assert [device.id for device in inventory.devices] == [0, 2]
    assert reasons(inventory) == [(1, "lost")]
    lost = inventory.cards[1]
    assert (lost.card_class, lost.memory_total_bytes) == ("l40s-48g", None)
    assert (lost.temperature_celsius, lost.power_watts) == (None, None)


@pytest.mark.parametrize("text", ["ERR!", "[Unknown Error]", "GPU is lost"])
def test_a_card_whose_memory_reads_as_an_error_is_lost(text: str) -> None:
    machine = FakeMachine((L40S,))
    inventory = read(machine, report=edited(render_report(machine), "total", text))
    assert reasons(inventory) == [(0, "lost")]
    assert inventory.devices == ()


def test_one_value_that_cannot_be_read_does_not_condemn_a_card() -> None:
    machine = FakeMachine((L40S,))
    report = edited(render_report(machine), "instant_power_draw", "Unknown Error")
    card, _ = only(read(machine, report=edited(report, "fan_speed", "Unknown Error")))
    assert card.fan_percent is None
    assert read(machine, report=report).excluded == ()


def test_a_card_that_needs_a_reset_says_so() -> None:
    inventory = read(FakeMachine((replace(L40S, recovery="Reset"), L40S)))
    assert reasons(inventory) == [(0, "needs-reset")]
    assert placeable(inventory) == [1]
    older = read(FakeMachine((replace(L40S, recovery="Reset"),), driver="535.54.03"))
    assert reasons(older) == [(0, "needs-reset")]


def test_mig_without_instances_is_excluded_as_empty() -> None:
    inventory = read(FakeMachine((A100, replace(A100, mig="Enabled"))))
    assert reasons(inventory) == [(1, "mig-empty")]
    assert [device.id for device in inventory.devices] == [0]


def test_mig_that_waits_for_a_reset_keeps_new_work_away() -> None:
    enabling = replace(A100, mig="Disabled", mig_pending="Enabled")
    disabling = replace(A100, mig="Enabled", mig_pending="Disabled", instances=(SLICE,))
    inventory = read(FakeMachine((enabling, disabling, A100)))
    assert reasons(inventory) == [(0, "mig-pending"), (1, "mig-pending")]
    assert [device.id for device in inventory.devices] == [0, 2, 1100]
    assert placeable(inventory) == [2]


HELD = replace(L40S, processes=(FakeProcess(pid=41, memory_mib=5),))


@pytest.mark.parametrize("mode", ["Exclusive_Process", "Exclusive_Thread"])
def test_an_exclusive_compute_mode_keeps_work_away_from_a_card_that_is_held(mode: str) -> None:
    free = replace(L40S, compute_mode=mode)
    held = replace(HELD, compute_mode=mode)
    silent = replace(held, process_error=4)
    inventory = read(FakeMachine((free, held, silent, HELD)))
    assert reasons(inventory) == [(1, "compute-mode"), (2, "compute-mode")]
    assert placeable(inventory) == [0, 3]
    assert all(mode in out.detail for out in inventory.excluded)
    assert "nvidia-smi -i 1 -c DEFAULT" in inventory.excluded[0].detail
    warned = [text for text in inventory.warnings if "one process at a time" in text]
    assert [text.split()[1] for text in warned] == ["0", "1", "2"]


def test_a_prohibited_compute_mode_keeps_all_work_away() -> None:
    inventory = read(FakeMachine((replace(L40S, compute_mode="Prohibited"), L40S)))
    assert reasons(inventory) == [(0, "compute-mode")]
    assert "Prohibited" in inventory.excluded[0].detail


@pytest.mark.parametrize("state", ["In Progress", "Not Started"])
def test_a_fabric_that_is_not_ready_keeps_work_away(state: str) -> None:
    waiting = replace(A100, fabric=(state, "N/A", 0))
    assert reasons(read(FakeMachine((waiting,)))) == [(0, "fabric")]


def test_a_card_that_may_not_be_read_is_not_taken_for_one_without_memory() -> None:
    machine = FakeMachine((L40S,))
    report = edited(render_report(machine), "total", "Insufficient Permissions")
    assert reasons(read(machine, report=report)) == [(0, "no-permission")]
    report = edited(render_report(machine), "total", "N/A")
    assert reasons(read(machine, report=report)) == [(0, "unreadable")]


GB10 = FakeCard(
    name="NVIDIA GB10", memory_total_mib=None, memory_reserved_mib=None, memory_used_mib=None
)
HOST = HostMemory(total_bytes=120 * 2**30, available_bytes=100 * 2**30)


def test_a_card_without_memory_of_its_own_has_the_systems() -> None:
    card, device = only(read(FakeMachine((GB10,)), host=HOST))
    assert card.unified
    assert device.unified
    assert device.device_class == "gb10-128g"
    assert device.memory_total_bytes == HOST.total_bytes
    assert (device.memory_used_bytes, device.memory_free_bytes) == (20 * 2**30, 100 * 2**30)


def test_unified_memory_of_unknown_size_is_not_placed_on() -> None:
    inventory = read(FakeMachine((GB10,)))
    assert inventory.devices == ()
    assert reasons(inventory) == [(0, "unreadable")]


def test_a_lost_card_never_gets_the_systems_memory() -> None:
    inventory = read(FakeMachine((replace(GB10, lost=True),)), host=HOST)
    assert inventory.cards[0].memory_total_bytes is None
    assert reasons(inventory) == [(0, "lost")]


def test_a_card_that_addresses_system_memory_keeps_its_own() -> None:
    coherent = replace(A100, addressing="ATS")
    card, device = only(read(FakeMachine((coherent,)), host=HOST))
    assert not card.unified
    assert device.memory_total_bytes == 81920 * MIB


def test_a_card_that_did_not_answer_is_warned_of() -> None:
    inventory = read(FakeMachine((L40S,), attached=4))
    assert inventory.warnings == ("the driver attaches 4 cards and 1 answered",)


def test_a_generic_name_is_warned_of() -> None:
    nameless = replace(L40S, name="Graphics Device", memory_total_mib=5912)
    inventory = read(FakeMachine((nameless,)))
    assert only(inventory)[1].device_class == "graphics-device-6g"
    assert "generic name" in inventory.warnings[0]


def test_a_card_keeps_its_index_when_one_before_it_is_missing() -> None:
    whole = FakeMachine((L40S, L40S, L40S))
    report = render_report(whole)
    first = report.index("<gpu ")
    without_first = report[:first] + report[report.index("</gpu>") + len("</gpu>") :]
    inventory = read(whole, report=without_first)
    assert [card.index for card in inventory.cards] == [1, 2]
    assert [device.label for device in inventory.devices] == ["1", "2"]


def test_a_listing_of_another_machine_changes_no_index() -> None:
    other = FakeMachine((replace(L40S, uuid="GPU-other"),))
    inventory = read(FakeMachine((L40S, L40S)), listing=render_listing(other))
    assert [card.index for card in inventory.cards] == [0, 1]


def test_cards_with_the_same_serial_are_still_two_cards() -> None:
    machine = FakeMachine((L40S, L40S))
    inventory = read(machine, report=edited(render_report(machine), "serial", "1"))
    assert len({card.uuid for card in inventory.cards}) == 2


def test_two_cards_with_one_uuid_are_refused() -> None:
    machine = FakeMachine((replace(L40S, uuid="GPU-a"), replace(L40S, uuid="GPU-a")))
    with pytest.raises(BackendUnavailable, match="same UUID"):
        read(machine)


def test_a_card_without_uuid_is_known_by_its_address() -> None:
    machine = FakeMachine((L40S,))
    report = edited(render_report(machine), "uuid", "N/A")
    card, _ = only(read(machine, report=report, listing=""))
    assert card.uuid == "PCI-00000000:01:00.0"
    assert card.uuid in {device.uuid for device in read(machine, report=report, listing="").devices}
    assert only(read(machine, report=report))[0].uuid.startswith("GPU-")


def test_a_card_that_failed_to_remap_a_row_is_kept_out_as_worn() -> None:
    worn = replace(L40S, remapped_rows=9, remap_failed=True)
    inventory = read(FakeMachine((worn, L40S)))
    assert reasons(inventory) == [(0, "worn")]
    assert inventory.cards[0].wear.remap_failed is True
    assert placeable(inventory) == [1]


def test_a_row_that_waits_to_be_remapped_keeps_nobody_out_and_is_told() -> None:
    """The driver has taken the page out of use until then: the card works on."""
    inventory = read(FakeMachine((L40S, replace(L40S, remapped_rows=1, remap_pending=True))))
    assert placeable(inventory) == [0, 1]
    assert inventory.cards[1].wear.remap_pending is True
    assert [(c.device, c.name) for c in at_a_glance(inventory)] == [(1, "remap-pending")]


def test_errors_above_the_limit_keep_work_away_and_errors_that_were_mended_do_not() -> None:
    worn = replace(L40S, ecc_volatile_uncorrected=ECC_UNCORRECTED_LIMIT + 1)
    mended = replace(L40S, ecc_volatile_uncorrected=ECC_UNCORRECTED_LIMIT, ecc_uncorrected=10_000)
    machine = FakeMachine((worn, mended))
    inventory = read(machine)
    assert reasons(inventory) == [(0, "worn")]
    assert placeable(inventory) == [1]
    strict = assemble(
        "n1", parse_report(render_report(machine)), Listing(), ecc_uncorrected_limit=0
    )
    assert reasons(strict) == [(0, "worn"), (1, "worn")]


def test_a_further_error_is_no_other_machine() -> None:
    worn = replace(L40S, ecc_volatile_uncorrected=ECC_UNCORRECTED_LIMIT + 1)
    worse = replace(worn, ecc_volatile_uncorrected=ECC_UNCORRECTED_LIMIT + 2)
    assert shape(read(FakeMachine((worn,)))) == shape(read(FakeMachine((worse,))))


def test_a_page_that_waits_to_be_retired_is_warned_of() -> None:
    waiting = replace(L40S, retired_pages=1, retired_pending=True)
    inventory = read(FakeMachine((L40S, waiting)))
    assert inventory.excluded == ()
    assert ["page of card 1" in text for text in inventory.warnings] == [True]


def test_a_card_in_mig_mode_is_never_said_to_be_idle() -> None:
    carved = replace(A100, mig="Enabled", instances=(SLICE,), utilization_percent=0)
    card, device = only(read(FakeMachine((carved,))))
    assert (card.utilization_percent, device.utilization_percent) == (None, None)
