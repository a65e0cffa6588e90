"""What holds of conditions whatever is measured: no flapping, no order, nothing out of thin air."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.conditions import MEANINGS, ConditionTracker
from llmgw.core.events import Condition
from llmgw.core.judging import Band, Gate
from llmgw.hardware.types import DeviceReading, Process, Readings, Wear, instance_id
from tests.core.samples import COOL, MIB, ONE, of_card, offered, reads

Sample = tuple[Sequence[Mapping[str, object]], Sequence[tuple[Process, ...] | None]]
History = Sequence[tuple[float, Sample]]

_celsius = st.one_of(st.none(), st.floats(0, 120))
_card = st.fixed_dictionaries(
    {
        "temperature_celsius": _celsius,
        "temperature_margin_celsius": st.one_of(st.none(), st.floats(-10, 60)),
        "power_watts": st.one_of(st.none(), st.floats(0, 500)),
        "power_limit_watts": st.one_of(st.none(), st.just(400.0)),
        "throttled_by": st.one_of(
            st.none(),
            st.lists(
                st.sampled_from(("sw_power_cap", "hw_slowdown", "sync_boost")), unique=True
            ).map(tuple),
        ),
        "wear": st.builds(
            Wear,
            ecc_volatile_uncorrected=st.one_of(st.none(), st.integers(0, 20)),
            remap_pending=st.one_of(st.none(), st.booleans()),
        ),
        "xids": st.lists(st.sampled_from((13, 48, 79, 94, 999)), unique=True).map(tuple),
    }
)
_process = st.builds(
    Process,
    pid=st.integers(1, 4),
    memory_bytes=st.one_of(st.none(), st.integers(0, 2_000 * MIB)),
)
_processes = st.one_of(st.none(), st.lists(_process, max_size=3).map(tuple))
_sample = st.tuples(
    st.lists(_card, min_size=2, max_size=2), st.lists(_processes, min_size=3, max_size=3)
)
_history = st.lists(st.tuples(st.sampled_from((1, 10, 40, 400)), _sample), max_size=8)
NUMBERS = (0, instance_id(1, 0), instance_id(1, 1))
MACHINE = offered(*NUMBERS)
OWN = frozenset({1})


def _readings(sample: Sample, reverse: bool = False) -> Readings:
    values, processes = sample
    cards = [reads(index, **value) for index, value in enumerate(values)]
    devices = [
        DeviceReading(id=device.id, uuid=device.uuid, processes=told)
        for device, told in zip(MACHINE.devices, processes, strict=True)
    ]
    step = -1 if reverse else 1
    return Readings(cards=tuple(cards[::step]), devices=tuple(devices[::step]))


def _told(history: History, reverse: bool = False) -> list[tuple[Condition, ...] | None]:
    tracker, now, answers = ConditionTracker(), 0.0, []
    for seconds, sample in history:
        now += seconds
        answers.append(tracker.update(_readings(sample, reverse), OWN, now, MACHINE))
    return answers


@given(_history)
def test_the_same_samples_give_the_same_answers_in_whatever_order_devices_come(
    history: History,
) -> None:
    assert _told(history) == _told(history) == _told(history, reverse=True)


@given(_history)
def test_every_answer_is_about_a_device_that_is_there_and_differs_from_the_one_before(
    history: History,
) -> None:
    before: set[tuple[int | None, str]] | None = None
    for answer in _told(history):
        if answer is None:
            continue
        keys = [(c.device, c.name) for c in answer]
        assert len(keys) == len(set(keys))
        assert {number for number, _ in keys} <= set(NUMBERS)
        assert {name for _, name in keys} <= MEANINGS.keys()
        assert set(keys) != before
        before = set(keys)


@given(
    st.booleans(),
    st.lists(st.tuples(st.floats(80, 88, exclude_min=True, exclude_max=True), st.floats(0, 600))),
)
def test_inside_the_band_nothing_changes_however_long_it_swings(
    hot: bool, swings: list[tuple[float, float]]
) -> None:
    tracker, now = ConditionTracker(), 0.0
    first = of_card(temperature_celsius=90 if hot else COOL)
    told = tracker.update(first, OWN, now, ONE)
    assert bool(told) == hot
    for celsius, seconds in swings:
        now += seconds
        assert tracker.update(of_card(temperature_celsius=celsius), OWN, now, ONE) is None


@given(st.lists(st.tuples(st.sampled_from((10.0, 25.0, 70.0, 95.0, None)), st.floats(0.1, 29))))
def test_nothing_changes_twice_within_the_time_that_a_change_takes(
    steps: list[tuple[float | None, float]],
) -> None:
    gate, band, now = Gate(), Band(88, 80, enter_seconds=30, leave_seconds=10), 0.0
    changed_at, before = float("-inf"), False
    for celsius, seconds in steps:
        now += seconds
        if celsius is None:
            gate.miss()
        else:
            gate.take(celsius, band, now)
        if gate.holds != before:
            assert now - changed_at >= (band.enter_seconds if gate.holds else band.leave_seconds)
            changed_at, before = now, gate.holds


@given(_history, st.floats(0, 1_000))
def test_where_nothing_is_measured_no_condition_begins_and_none_ends(
    history: History, seconds: float
) -> None:
    tracker, now = ConditionTracker(), 0.0
    held: tuple[Condition, ...] = ()
    for step, sample in history:
        now += step
        answer = tracker.update(_readings(sample), OWN, now, MACHINE)
        held = held if answer is None else answer
    answer = tracker.update(None, OWN, now + seconds, MACHINE)
    after = held if answer is None else answer
    assert {c.device for c in after} == {c.device for c in held}
    assert {c.name for c in after} <= {"unmeasured", *(c.name for c in held)}
