"""The two halves of an inventory: what is logged, and what is sampled."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.types import Inventory, Process
from llmgw.testing.fake_smi import FakeCard, FakeMachine, FakeProcess

from .support import A100, L40S, MIB, SLICE, read

IDLE = FakeMachine((L40S, replace(A100, mig="Enabled", instances=(SLICE,))))


def busy(card: FakeCard) -> FakeCard:
    return replace(
        card,
        memory_used_mib=5000,
        temperature_celsius=80,
        power_watts=250.0,
        power_limit_watts=200.0,
        utilization_percent=None if card.instances else 99,
        fan_percent=70,
        throttled_by=("hw_thermal_slowdown",),
        clock_graphics_mhz=405,
        clock_memory_mhz=None,
        pcie_replays=7,
        ecc_corrected=5,
        ecc_volatile_uncorrected=1,
        retired_pages=0,
        processes=(FakeProcess(pid=9, memory_mib=4000),),
        instances=tuple(replace(one, memory_used_mib=100) for one in card.instances),
    )


BUSY = FakeMachine(tuple(busy(card) for card in IDLE.cards))


def test_a_machine_at_work_has_the_shape_that_it_has_at_rest() -> None:
    assert shape(read(BUSY)) == shape(read(IDLE))
    assert read(BUSY) != read(IDLE)


def test_another_card_is_another_shape() -> None:
    assert shape(read(IDLE)) != shape(read(FakeMachine((L40S,))))
    carved_anew = replace(IDLE.cards[1], instances=(SLICE, replace(SLICE, gpu_instance=8)))
    assert shape(read(IDLE)) != shape(read(FakeMachine((L40S, carved_anew))))


def test_a_shape_keeps_what_placement_needs() -> None:
    inventory = shape(read(BUSY))
    assert [device.memory_total_bytes for device in inventory.devices] == [46068 * MIB, 9728 * MIB]
    assert shape(inventory) == inventory


def test_readings_carry_what_was_measured() -> None:
    measured = readings(read(BUSY))
    card, device = measured.cards[0], measured.devices[0]
    assert (card.temperature_celsius, card.power_watts, card.power_limit_watts) == (80, 250, 200)
    assert (card.utilization_percent, card.fan_percent) == (99, 70)
    assert card.throttled_by == ("hw_thermal_slowdown",)
    assert (card.clock_graphics_mhz, card.clock_memory_mhz, card.pcie_replays) == (405, None, 7)
    assert (card.wear.ecc_corrected, card.wear.ecc_volatile_uncorrected) == (5, 1)
    assert (card.wear.retired_pages, card.wear.remapped_rows) == (0, None)
    assert device.memory_used_bytes == 5000 * MIB
    assert device.processes == (Process(pid=9, memory_bytes=4000 * MIB),)
    assert measured.devices[1].utilization_percent is None


def test_what_is_absent_has_no_key_in_json_and_a_measured_zero_has_one() -> None:
    inventory = read(FakeMachine((replace(L40S, utilization_percent=0, fan_percent=None),)))
    card = msgspec.to_builtins(inventory)["cards"][0]
    assert card["utilization_percent"] == 0
    assert card["class"] == "l40s-48g"
    assert "fan_percent" not in card
    assert "mig_mode" not in card
    encoded = msgspec.json.encode(inventory)
    assert msgspec.json.decode(encoded, type=Inventory) == inventory
