"""Samples become conditions with hysteresis, and only changes are told."""

from __future__ import annotations

import pytest

from llmgw.core.conditions import MIB, ConditionTracker
from llmgw.core.events import Condition
from llmgw.hardware.types import CardReading, DeviceReading, Process, Readings


def warm(celsius: float | None = None, margin: float | None = None) -> Readings:
    card = CardReading(
        index=0, uuid="GPU-0", temperature_celsius=celsius, temperature_margin_celsius=margin
    )
    return Readings(cards=(card,), devices=(DeviceReading(id=0, uuid="GPU-0"),))


def used(mib: int, pid: int = 4242) -> Readings:
    processes = (Process(pid=pid, memory_bytes=mib * MIB),)
    return Readings(devices=(DeviceReading(id=0, uuid="GPU-0", processes=processes),))


class Tracked:
    """A tracker that has given its first answer already."""

    def __init__(self) -> None:
        self.tracker = ConditionTracker()
        assert self.see(warm(50), at=-1) == ()

    def see(
        self, readings: Readings, *, at: float, own: frozenset[int] = frozenset()
    ) -> tuple[Condition, ...] | None:
        return self.tracker.update(readings, own, at)


HOT = (Condition(device=0, name="hot", detail="90 °C"),)


def test_a_card_is_hot_only_after_it_has_been_too_warm_for_a_while() -> None:
    tracked = Tracked()
    assert tracked.see(warm(90), at=0) is None
    assert tracked.see(warm(90), at=29) is None
    assert tracked.see(warm(90), at=30) == HOT
    assert tracked.see(warm(91), at=60) is None


def test_a_short_peak_is_forgotten() -> None:
    tracked = Tracked()
    for at in range(0, 600, 20):
        assert tracked.see(warm(90 if at % 40 else 70), at=at) is None


def test_a_hot_card_stays_hot_until_it_is_clearly_cooler() -> None:
    tracked = Tracked()
    tracked.see(warm(90), at=0)
    tracked.see(warm(90), at=30)
    assert tracked.see(warm(84), at=31) is None
    assert tracked.see(warm(80), at=32) == ()


@pytest.mark.parametrize("unmeasured", [warm(None), Readings(devices=warm().devices)])
def test_what_is_not_measured_changes_nothing(unmeasured: Readings) -> None:
    tracked = Tracked()
    tracked.see(warm(90), at=0)
    tracked.see(warm(90), at=30)
    assert tracked.see(unmeasured, at=31) is None
    assert tracked.see(warm(50), at=32) == ()


def test_the_distance_to_slowdown_counts_where_there_is_no_temperature() -> None:
    tracked = Tracked()
    assert tracked.see(warm(margin=1), at=0) is None
    assert tracked.see(warm(margin=1), at=30) == (
        Condition(device=0, name="hot", detail="1 °C below its slowdown"),
    )
    assert tracked.see(warm(margin=8), at=31) == ()


def test_the_heat_of_a_card_is_that_of_its_instances() -> None:
    tracked = Tracked()
    card = CardReading(index=2, uuid="GPU-2", temperature_celsius=95)
    devices = (DeviceReading(id=1203, uuid="MIG-2-3"), DeviceReading(id=1, uuid="GPU-1"))
    tracked.see(Readings(cards=(card,), devices=devices), at=0)
    hot = tracked.see(Readings(cards=(card,), devices=devices), at=30)
    assert hot is not None
    assert [(c.device, c.name) for c in hot] == [(1203, "hot")]


def test_a_device_that_others_use_is_occupied_until_they_leave() -> None:
    tracked = Tracked()
    assert tracked.see(used(512), at=0) is None
    assert tracked.see(used(513), at=1) == (
        Condition(device=0, name="occupied", detail="processes that are not llmgw's hold 513 MiB"),
    )
    assert tracked.see(used(900), at=2) is None, "more of the same is no news"
    assert tracked.see(used(100), at=3) == ()


def test_the_agents_own_engines_do_not_occupy_a_device() -> None:
    assert Tracked().see(used(9000, pid=77), at=0, own=frozenset({77})) is None


def test_the_first_sample_always_gives_an_answer() -> None:
    assert ConditionTracker().update(warm(50), frozenset(), 0) == ()
