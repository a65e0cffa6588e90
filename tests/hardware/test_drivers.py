"""One card under the layouts of six drivers: the same truth each time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.hardware.types import Process
from llmgw.testing.fake_smi import FakeCard, FakeMachine, FakeProcess, render_report

from .support import DRIVERS, MIB, edited, only, read

CARD = FakeCard(
    name="NVIDIA RTX A5000",
    memory_total_mib=24564,
    memory_reserved_mib=300,
    memory_used_mib=1000,
    temperature_celsius=41,
    slowdown_celsius=95,
    shutdown_celsius=98,
    clock_graphics_mhz=1695,
    clock_memory_mhz=0,
    pcie_replays=2,
    power_watts=26.78,
    power_limit_watts=230.0,
    utilization_percent=0,
    fan_percent=30,
    throttled_by=("sw_power_cap",),
    processes=(FakeProcess(pid=675, memory_mib=22), FakeProcess(pid=5762)),
)


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_tells_the_same_about_a_card(driver: str) -> None:
    inventory = read(FakeMachine((CARD,), driver=driver))
    card, device = only(inventory)
    assert inventory.driver_version == driver
    assert inventory.warnings == ()
    assert (card.index, card.card_class, device.device_class) == (
        0,
        "rtx-a5000-24g",
        card.card_class,
    )
    assert card.pci == "00000000:01:00.0"
    assert (card.temperature_celsius, card.temperature_slowdown_celsius) == (41, 95)
    assert card.temperature_shutdown_celsius == 98
    assert card.temperature_margin_celsius is None
    assert (card.clock_graphics_mhz, card.clock_memory_mhz, card.pcie_replays) == (1695, 0, 2)
    assert (card.power_watts, card.power_limit_watts) == (26.78, 230)
    assert (card.utilization_percent, card.fan_percent) == (0, 30)
    assert card.throttled_by == ("sw_power_cap",)
    assert device.memory_total_bytes == 24564 * MIB
    assert device.memory_free_bytes == (24564 - 1300) * MIB
    assert device.processes == (Process(pid=675, memory_bytes=22 * MIB), Process(pid=5762))
    assert (device.id, device.label, device.uuid) == (0, "0", card.uuid)


@pytest.mark.parametrize("driver", ["535.54.03", "570.124.06", "580.65.06", "595.58.03"])
def test_a_driver_that_reserves_memory_says_how_much(driver: str) -> None:
    _, device = only(read(FakeMachine((CARD,), driver=driver)))
    assert device.memory_reserved_bytes == 300 * MIB
    assert device.memory_used_bytes == 1000 * MIB


@pytest.mark.parametrize("driver", ["418.43", "470.82.01"])
def test_an_older_driver_counts_what_is_reserved_as_used(driver: str) -> None:
    _, device = only(read(FakeMachine((CARD,), driver=driver)))
    assert device.memory_reserved_bytes is None
    assert device.memory_used_bytes == 1300 * MIB


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_card_without_mig_is_not_one_with_mig_disabled(driver: str) -> None:
    card, _ = only(read(FakeMachine((CARD,), driver=driver)))
    assert card.mig_mode is None
    if not driver.startswith("418"):
        able = replace(CARD, mig="Disabled")
        assert only(read(FakeMachine((able,), driver=driver)))[0].mig_mode == "disabled"


@pytest.mark.parametrize("driver", DRIVERS[2:])
def test_a_margin_is_the_distance_to_slowdown_and_no_temperature(driver: str) -> None:
    ada = replace(CARD, margin_celsius=58, slowdown_celsius=None)
    card, _ = only(read(FakeMachine((ada,), driver=driver)))
    assert card.temperature_margin_celsius == 58
    assert (card.temperature_slowdown_celsius, card.temperature_shutdown_celsius) == (None, None)
    assert card.temperature_slowdown_margin_celsius == -2
    assert card.temperature_shutdown_margin_celsius == -8
    assert card.temperature_celsius == 41


@pytest.mark.parametrize("driver", DRIVERS)
def test_wear_is_counted_over_the_life_and_since_the_driver_was_loaded(driver: str) -> None:
    worn = replace(
        CARD,
        ecc_uncorrected=3,
        ecc_volatile_corrected=7,
        ecc_volatile_uncorrected=2,
        retired_pages=0,
        remapped_rows=1,
    )
    wear = only(read(FakeMachine((worn,), driver=driver)))[0].wear
    assert (wear.ecc_uncorrected, wear.ecc_corrected) == (3, None)
    assert (wear.ecc_volatile_uncorrected, wear.ecc_volatile_corrected) == (2, 7)
    assert (wear.retired_pages, wear.retired_pending) == (0, False)
    assert (wear.remapped_rows, wear.remap_pending, wear.remap_failed) == (1, False, False)


@pytest.mark.parametrize("driver", DRIVERS)
def test_wear_that_a_card_does_not_count_is_absent(driver: str) -> None:
    wear = only(read(FakeMachine((CARD,), driver=driver)))[0].wear
    assert wear.ecc_uncorrected is None
    assert wear.retired_pages is None
    assert wear.remapped_rows is None
    assert wear.remap_failed is None


def test_pascal_counts_ecc_errors_in_another_layout() -> None:
    report = render_report(FakeMachine((CARD,), driver="470.82.01"))
    kinds = (
        "<single_bit><total>3</total></single_bit>"
        "<double_bit><device_memory>9</device_memory><total>0</total></double_bit>"
    )
    wear = only(read(FakeMachine((CARD,)), report=edited(report, "aggregate", kinds)))[0].wear
    assert (wear.ecc_corrected, wear.ecc_uncorrected) == (3, 0)


def test_an_idle_card_is_measured_as_not_throttled_and_a_silent_one_is_not_measured() -> None:
    machine = FakeMachine((replace(CARD, throttled_by=()),))
    assert only(read(machine))[0].throttled_by == ()
    silent = render_report(machine).replace("Not Active", "N/A").replace("Active", "N/A")
    assert only(read(machine, report=silent))[0].throttled_by is None


def test_the_limit_in_force_counts_and_not_the_greatest_possible() -> None:
    report = edited(render_report(FakeMachine((CARD,), driver="470.82.01")), "power_limit", "N/A")
    card, _ = only(read(FakeMachine((CARD,)), report=report))
    assert card.power_limit_watts == 230


@pytest.mark.parametrize("driver", DRIVERS[2:])
def test_the_power_of_the_module_is_never_taken_for_the_cards(driver: str) -> None:
    silent = replace(CARD, power_watts=None, power_limit_watts=None)
    report = render_report(FakeMachine((silent,), driver=driver)).replace("3.00 W", "N/A")
    card, _ = only(read(FakeMachine((silent,)), report=report))
    assert (card.power_watts, card.power_limit_watts) == (None, None)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [("None", "none"), ("N/A", None), ("Drain and Reset", "drain-and-reset")],
)
def test_none_is_the_healthy_recovery_action(printed: str, expected: str | None) -> None:
    card, _ = only(read(FakeMachine((replace(CARD, recovery=printed),))))
    assert card.recovery_action == expected


def test_processes_that_the_driver_hides_are_unknown_and_not_none_at_all() -> None:
    machine = FakeMachine((replace(CARD, processes=()),))
    assert only(read(machine))[1].processes == ()
    hidden = edited(render_report(machine), "processes", "Insufficient Permissions")
    assert only(read(machine, report=hidden))[1].processes is None


@pytest.mark.parametrize("pid", [0, 2**22, 2**32 - 1])
def test_a_process_that_cannot_exist_makes_the_whole_list_unknown(pid: int) -> None:
    broken = replace(CARD, processes=(FakeProcess(pid=7), FakeProcess(pid=pid, memory_mib=1)))
    assert only(read(FakeMachine((broken,))))[1].processes is None


def test_a_process_may_have_any_name() -> None:
    names = ("a & b <c>", "</process_name><pid>1</pid>", "\x1b[31m\x00", "GPU is lost")
    found = tuple(FakeProcess(pid=n, name=name) for n, name in enumerate(names, start=100))
    _, device = only(read(FakeMachine((replace(CARD, processes=found),))))
    assert [p.pid for p in device.processes or ()] == [100, 101, 102, 103]
