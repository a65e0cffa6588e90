"""The agent's brain and its devices: what engines take, where they are, whether they are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.memory import Policy
from llmgw.core.values import Phase
from llmgw.hardware.types import Device, DeviceReading, Process, Readings
from llmgw.testing.builders import card, instance, inventory
from tests.core.agent import (
    HERE,
    TICK,
    Agent,
    answered,
    assignment,
    exited,
    published,
    start,
    uncounted,
)

GIB = 1 << 30
SPLIT = card(0, mig=True)

Told = Sequence[tuple[int, int | None]] | None
"""The processes of a device, with what each holds as far as it is told."""


def sample(
    devices: Mapping[int, tuple[int | None, Told]],
    own: Mapping[int, s.Start] | None = None,
    has: tuple[Device, ...] = HERE.devices,
    age: float = 0.0,
) -> s.SampleTaken:
    """Devices by their number, with what is used of each in GiB and who is on it."""
    uuids = {device.id: device.uuid for device in has}
    readings = (
        DeviceReading(
            id=number,
            uuid=uuids[number],
            memory_used_bytes=None if used is None else used * GIB,
            processes=None
            if told is None
            else tuple(
                Process(pid=pid, memory_bytes=None if held is None else held * GIB)
                for pid, held in told
            ),
        )
        for number, (used, told) in devices.items()
    )
    return s.SampleTaken(Readings(devices=tuple(readings)), own or {}, age_seconds=age)


EMPTY = sample({0: (1, ()), 1: (1, ())})
OWN = {77: start()}


def loading(before: s.SampleTaken = EMPTY) -> Agent:
    """An agent whose engine r1, of pid 77, was started after a sample and is not ready."""
    return Agent().up().given(before).told(assignment()).given(s.EngineSpawned(start(), 77))


def taken(agent: Agent) -> tuple[int, ...]:
    (ready,) = (x for x in published(agent) if isinstance(x, e.ReplicaBecameReady))
    return tuple(size // GIB for size in ready.memory_bytes)


def phase(agent: Agent, part: str = "r1/0") -> Phase:
    return agent.memory.parts[part].phase


def conditions(agent: Agent) -> dict[int | None, str]:
    """Return the conditions that were published last: device to `name: detail`."""
    told = [x for x in published(agent) if isinstance(x, e.NodeConditionsChanged)]
    return {c.device: f"{c.name}: {c.detail}" for c in told[-1].conditions} if told else {}


# --- what an engine takes ---------------------------------------------------------------------


def test_a_ready_engine_is_weighed_by_a_sample_that_is_taken_at_once() -> None:
    agent = loading()
    agent.when(answered(200), after=30).then("measure")
    agent.when(sample({0: (21, [(77, 19), (78, 1)])}, {77: start(), 78: start()}), after=0.1)
    assert taken(agent) == (20,)
    (ready,) = published(agent)
    assert isinstance(ready, e.ReplicaBecameReady)
    assert ready.seconds == 30, "the time is that of its health, not of the sample"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param((1, ()), (21, [(77, 20)]), (20,), id="its process tells what it holds"),
        pytest.param((5, [(9, 4)]), (25, [(77, 20), (9, 4)]), (20,), id="beside a stranger"),
        pytest.param((1, ()), (21, [(77, None)]), (20,), id="the difference, when alone"),
        pytest.param((5, [(9, 4)]), (25, [(77, None)]), (), id="a stranger was there before"),
        pytest.param((1, ()), (25, [(77, None), (9, 4)]), (), id="a stranger has come"),
        pytest.param((1, None), (21, [(77, None)]), (), id="who was there before is not known"),
        pytest.param((1, ()), (21, None), (), id="processes are not told"),
        pytest.param((1, ()), (21, ()), (), id="its process is not among those that are told"),
        pytest.param((1, ()), (None, [(77, None)]), (), id="what is in use is not told"),
        pytest.param((None, ()), (21, [(77, None)]), (), id="nor was it before"),
    ],
)
def test_what_it_takes_is_measured_or_not_said(
    before: tuple[int | None, Told], after: tuple[int | None, Told], expected: tuple[int, ...]
) -> None:
    agent = loading(sample({0: before})).given(answered(200))
    agent.when(sample({0: after}, OWN))
    assert taken(agent) == expected


def test_a_group_is_weighed_on_all_its_devices_or_not_at_all() -> None:
    group = assignment(gpus=2)
    both = s.EngineSpawned(start(), 77)
    pair = type(group)(
        replica="r1",
        generation=1,
        entry=group.entry,
        devices=(0, 1),
        grants=(*group.grants, *assignment(device=1).grants),
    )
    first: tuple[int, Told] = (21, [(77, 20)])
    others: list[tuple[tuple[int, Told], tuple[int, ...]]] = [
        ((19, [(77, 18)]), (20, 18)),
        ((19, [(77, None), (9, 1)]), ()),
    ]
    for second, expected in others:
        agent = Agent().up().given(EMPTY).told(pair).given(both, answered(200))
        agent.when(sample({0: first, 1: second}, OWN))
        assert taken(agent) == expected


def test_instances_that_share_memory_are_not_weighed_by_the_difference() -> None:
    both = [
        type(x)(**{f: getattr(x, f) for f in x.__struct_fields__} | {"memory_pool": "gi-1"})
        for x in (instance(SPLIT, 0), instance(SPLIT, 1))
    ]
    has = inventory("n1", SPLIT, *both)
    one = assignment()
    given = type(one.grants[0])(both[0].uuid, both[0].device_class, 0)
    granted = type(one)(
        replica="r1", generation=1, entry=one.entry, devices=(both[0].id,), grants=(given,)
    )
    before = sample({x.id: (1, ()) for x in both}, has=has.devices)
    agent = Agent().up(has=has).given(before).told(granted)
    agent.given(s.EngineSpawned(start(), 77), answered(200))
    agent.when(sample({both[0].id: (5, [(77, None)])}, OWN, has=has.devices))
    assert taken(agent) == ()


def test_a_sample_of_before_its_health_was_good_does_not_weigh_it() -> None:
    agent = loading().given(answered(200))
    agent.when(sample({0: (5, [(77, 4)])}, OWN, age=1.0), after=0.5).then()
    agent.when(sample({0: (21, [(77, 20)])}, OWN), after=0.1)
    assert taken(agent) == (20,)


def test_ready_waits_a_moment_for_the_sample_and_no_longer() -> None:
    agent = loading().given(answered(200))
    agent.when(TICK, after=4.9).then("probe r1/0 attempt 1 on port 18100")
    agent.when(TICK, after=0.2)
    assert taken(agent) == ()
    assert phase(agent) == "ready"


def test_an_engine_that_falls_silent_while_it_is_weighed_is_loading_again() -> None:
    agent = loading().given(answered(200), answered(None))
    agent.when(sample({0: (21, [(77, 20)])}, OWN)).then()
    assert phase(agent) == "starting"


def test_on_the_processor_and_on_a_pretended_machine_nothing_is_waited_for() -> None:
    agent = Agent().up().given(EMPTY).told(assignment(device=900))
    agent.given(s.EngineSpawned(start(), 77)).when(answered(200))
    assert taken(agent) == ()


def test_hardware_that_cannot_be_read_is_not_waited_for() -> None:
    agent = loading().given(s.HardwareUnreadable("gone")).when(answered(200))
    assert taken(agent) == ()


# --- where it is ------------------------------------------------------------------------------


def test_an_engine_on_a_device_that_it_was_not_given_is_ended_and_says_where() -> None:
    agent = loading().given(answered(200))
    astray = sample({0: (21, [(77, 20)]), 1: (2, [(77, 1)])}, OWN)
    agent.when(astray)
    assert phase(agent) == "ready", "one look may be mistaken"
    agent.when(astray).then("KILL r1/0 attempt 1")
    agent.when(exited())
    failed = next(x for x in published(agent) if isinstance(x, e.ReplicaFailed))
    assert failed.reason == "its process 77 is on device 1, which it was not given"
    assert failed.meaning == "the engine uses a device that belongs to somebody else"
    assert failed.advice is not None


def test_an_engine_that_is_on_another_device_alone_is_ended_while_it_still_loads() -> None:
    """As one that counts devices in another order does."""
    elsewhere = sample({0: (1, ()), 1: (21, [(77, 20)])}, OWN)
    loading().given(elsewhere).when(elsewhere).then("KILL r1/0 attempt 1")


def test_a_look_at_another_device_is_no_use_of_it() -> None:
    agent = loading().given(answered(200))
    readings = sample({0: (21, [(77, 20)]), 1: (2, [(77, 0)])}, OWN)
    agent.given(readings).when(readings, readings).then()


def test_the_processes_of_others_are_where_they_like() -> None:
    agent = loading().given(answered(200))
    others = sample({0: (21, [(77, 20)]), 1: (2, [(9, 1)])}, OWN)
    agent.given(others).when(others, others)
    assert not any(isinstance(x, s.StopEngine) for x in agent.effects)


def test_a_stranger_on_a_device_is_counted_and_never_ended() -> None:
    agent = loading().given(answered(200))
    beside = sample({0: (40, [(77, 20), (9, 19)]), 1: (20, [(10, 19)])}, OWN)
    told: dict[int | None, str] = {}
    for _ in range(20):
        agent.when(beside, TICK, after=5)
        assert not any(isinstance(x, s.StopEngine) for x in agent.effects)
        told = conditions(agent) or told
    assert told.keys() == {0, 1}
    assert "pid 9" in told[0]
    assert "pid 10" in told[1]
    assert phase(agent) == "ready"


def test_process_ids_of_another_name_space_say_nothing() -> None:
    agent = loading().given(answered(200))
    readings = sample({0: (21, [(77, 20)]), 1: (2, [(77, 1)])}).readings
    elsewhere = s.SampleTaken(readings, OWN, same_ids=False)
    agent.when(elsewhere)
    assert taken(agent) == ()
    agent.when(elsewhere, elsewhere)
    assert not any(isinstance(x, s.StopEngine) for x in agent.effects)


def test_an_engine_that_serves_without_its_device_is_told_of() -> None:
    agent = loading().given(answered(200)).given(EMPTY)
    agent.when(EMPTY, after=29)
    assert conditions(agent) == {}
    agent.when(EMPTY, after=2)
    assert conditions(agent) == {0: "unused: r1 serves, and none of its processes is on the device"}
    agent.when(sample({0: (9, [(77, 8)]), 1: (1, ())}, OWN))
    assert published(agent) == [e.NodeConditionsChanged(conditions=())]


# --- whether it is gone -----------------------------------------------------------------------


def stopping() -> Agent:
    """An agent whose engine r1 was weighed, is stopped and has just ended."""
    agent = loading().given(answered(200), sample({0: (21, [(77, 20)])}, OWN))
    agent.given(agent.command(), uncounted())
    return agent.when(exited(), after=0.1)


def test_a_stop_is_told_once_the_device_has_its_memory_back() -> None:
    agent = stopping().then("measure")
    agent.when(sample({0: (21, [(77, 20)])})).then()
    agent.when(sample({0: (15, ())}), TICK, after=1).then()
    agent.when(sample({0: (1, ())})).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_a_sample_of_before_the_end_does_not_free_the_device() -> None:
    agent = stopping().when(sample({0: (1, ())}, age=1.0), after=0.5).then()
    agent.when(sample({0: (1, ())}), after=0.1)
    assert "r1/0" not in agent.memory.parts


def test_what_a_dead_engine_does_not_give_back_is_told_after_a_while() -> None:
    agent = stopping().given(sample({0: (21, ()), 1: (1, ())}))
    agent.when(TICK, after=15).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )
    agent.when(sample({0: (21, ()), 1: (1, ())}))
    assert conditions(agent) == {0: "occupied: r1/0 has ended, but 20480 MiB were not given back"}
    agent.when(EMPTY, after=60)
    assert published(agent) == [e.NodeConditionsChanged(conditions=())]


def test_a_device_that_is_not_measured_any_more_is_not_accused() -> None:
    """A person had NVML released, or the driver hangs: what was seen last is old."""
    agent = stopping().when(TICK, after=15)
    assert "r1/0" not in agent.memory.parts
    agent.when(s.HardwareUnreadable("no answer"))
    assert conditions(agent) == {0: "unreadable: no answer", 1: "unreadable: no answer"}


def test_old_samples_make_nobody_wait_for_new_ones() -> None:
    agent = loading().when(answered(200), after=61)
    assert taken(agent) == ()


def test_nothing_starts_on_a_device_before_it_is_free_of_the_engine_before() -> None:
    agent = loading().given(answered(200), sample({0: (21, [(77, 20)])}, OWN))
    agent.given(agent.command(assignment("r2")), uncounted())
    agent.when(exited(), sample({0: (21, ())})).then("measure")
    agent.when(sample({0: (1, ())}))
    assert any(isinstance(x, s.SpawnEngine) for x in agent.effects)


def test_an_engine_that_failed_starts_again_only_when_its_memory_is_back() -> None:
    agent = loading().when(exited())
    assert [type(x) for x in published(agent)] == [e.ReplicaFailed], "that is told at once"
    agent.when(sample({0: (21, ())}), TICK, after=5).then()
    agent.when(sample({0: (1, ())}))
    assert any(isinstance(x, s.SpawnEngine) for x in agent.effects)


def test_nothing_starts_where_a_process_cannot_be_killed() -> None:
    agent = loading()
    agent.given(s.EngineExited(start(), None, 9, "", left=(78,)))
    stuck = sample({0: (21, [(78, 20)]), 1: (1, ())})
    agent.given(stuck).when(TICK, stuck, after=16)
    assert "r1/0 has ended, but its processes 78 are still there" in conditions(agent)[0]
    agent.when(TICK, stuck, after=300)
    assert not any(isinstance(x, s.SpawnEngine) for x in agent.effects)
    agent.when(EMPTY)
    assert any(isinstance(x, s.SpawnEngine) for x in agent.effects)


def test_the_next_agent_goes_on_waiting_for_the_device() -> None:
    agent = stopping().given(sample({0: (21, ())})).restarted()
    assert phase(agent) == "stopping"
    agent.when(sample({0: (1, ())}), after=0.1)
    assert "r1/0" not in agent.memory.parts


# --- engines that ran out of memory ---------------------------------------------------------------

OOM = "torch.OutOfMemoryError: CUDA out of memory."


def starved(before: s.SampleTaken = EMPTY) -> Agent:
    """An agent whose engine has just ended for want of the device's memory."""
    return loading(before).when(exited(output=OOM))


def spawns(agent: Agent) -> bool:
    return any(isinstance(effect, s.SpawnEngine) for effect in agent.effects)


def test_an_engine_that_ran_out_of_memory_waits_longer_than_any_other_for_its_next_start() -> None:
    (failed,) = published(starved())
    assert isinstance(failed, e.ReplicaFailed)
    assert failed.meaning == "the device has not enough free memory for the model"
    assert failed.retry_seconds == Policy().freed_seconds


def test_it_starts_again_on_a_device_that_is_seen_to_be_empty() -> None:
    agent = starved().given(EMPTY)
    assert not spawns(agent.when(TICK, EMPTY, after=14))
    assert spawns(agent.when(TICK, after=2))


def test_it_does_not_start_again_beside_a_stranger_that_holds_the_memory() -> None:
    beside = sample({0: (30, [(9, 29)])})
    agent = starved().given(beside)
    agent.when(beside, after=6)
    assert "pid 9" in conditions(agent)[0]
    for _ in range(10):
        assert not spawns(agent.when(TICK, beside, TICK, after=60))
    assert not spawns(agent.when(EMPTY, after=1))
    assert spawns(agent.when(EMPTY, after=6)), "the stranger has been gone for a while"


def test_it_does_not_start_again_on_what_it_did_not_give_back() -> None:
    kept = sample({0: (21, ())})
    agent = starved().given(kept)
    agent.given(TICK).when(TICK, kept, after=15.1)
    assert conditions(agent) == {0: "occupied: r1/0 has ended, but 20480 MiB were not given back"}
    for _ in range(10):
        assert not spawns(agent.when(TICK, kept, after=60))
    assert spawns(agent.when(EMPTY, TICK, after=1))


def test_after_another_failure_a_device_that_is_occupied_is_tried_again() -> None:
    beside = sample({0: (30, [(9, 29)])})
    agent = loading(beside).given(beside, exited(output="segfault"))
    agent.given(beside)
    assert spawns(agent.when(TICK, after=2))


def test_the_next_agent_does_not_try_it_blindly_either() -> None:
    beside = sample({0: (30, [(9, 29)])})
    agent = starved(beside).given(beside).when(beside, after=6)
    later = agent.restarted(sample=beside)
    assert not spawns(later)
    assert not spawns(later.when(TICK, beside, TICK, after=60))


# --- devices on which nothing works -----------------------------------------------------------


def failed_often(times: int, output: str = "") -> Agent:
    agent = Agent(policy=Policy(backoff_cap_seconds=1.0)).up().told(assignment())
    for attempt in range(1, times + 1):
        agent.given(s.EngineSpawned(start(attempt=attempt), 77))
        agent.given(exited(attempt=attempt, output=output))
        if attempt < times:
            agent.when(TICK, after=2)
    return agent


def test_a_device_on_which_a_replica_keeps_failing_is_told_of() -> None:
    assert conditions(failed_often(4).when(EMPTY)) == {}
    assert conditions(failed_often(5).when(EMPTY)) == {
        0: "failing: r1 failed 5 times in a row: the engine exited with code 1"
    }


def test_what_would_fail_anywhere_is_no_fault_of_the_device() -> None:
    agent = failed_often(5, "error: invalid argument: --frobnicate").when(EMPTY)
    assert conditions(agent) == {}


def test_a_failing_device_is_told_of_also_when_the_replica_has_gone_elsewhere() -> None:
    agent = failed_often(5).given(EMPTY)
    agent.given(agent.command()).when(EMPTY)
    assert published(agent) == [], "it still holds"
    later = agent.restarted()
    later.when(EMPTY)
    assert 0 in conditions(later)
    later.given(TICK).when(TICK, EMPTY, after=3600)
    assert published(later) == [e.NodeConditionsChanged(conditions=())]


def test_a_reboot_gives_a_failing_device_another_chance() -> None:
    agent = failed_often(5).restarted(rebooted=True)
    agent.when(EMPTY)
    assert conditions(agent) == {}


def test_what_is_occupied_is_said_before_what_there_is() -> None:
    """Else a controller could place on it in between."""
    foreign = sample({0: (20, [(77, 20)]), 1: (0, [])})
    agent = Agent().when(s.AgentStarted((), False, HERE, foreign))
    told = [type(event) for event in published(agent)]
    assert told == [e.NodeStarted, e.NodeConditionsChanged, e.NodeInventoryTaken]
    (said,) = [x for x in published(agent) if isinstance(x, e.NodeConditionsChanged)]
    assert [(c.device, c.name) for c in said.conditions] == [(0, "occupied")]
