"""What an agent does when the driver tells of a critical error, or tells nothing at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.meanings import EVACUATED, XIDS
from llmgw.hardware.types import (
    MISMATCH,
    CardError,
    CardReading,
    DeviceReading,
    Excluded,
    Inventory,
    Process,
    Readings,
)
from llmgw.testing.builders import card, instance, inventory
from tests.core.agent import (
    HERE,
    TICK,
    Agent,
    answered,
    assignment,
    exited,
    grant,
    published,
    start,
)

BOTH = {70: start("r1"), 71: start("r2")}
ENDS = [number for number, xid in XIDS.items() if xid.ends == "all"]
NEEDS_RESET = [number for number, xid in XIDS.items() if xid.condition in EVACUATED]
NO_DRIVER = s.HardwareUnreadable(f"nvml: {MISMATCH} (NVML error 18)")


def error(number: int, on: int = 0, instance: int | None = None) -> CardError:
    return CardError(card=HERE.cards[on].uuid, number=number, gpu_instance=instance)


def sample(
    *errors: CardError, strangers: tuple[int, ...] = (), has: Inventory = HERE
) -> s.SampleTaken:
    """Two engines on a device each, and strangers on the first; nothing else moves."""
    pids = {0: (70, *strangers), 1: (71,)}
    devices = tuple(
        DeviceReading(
            id=device.id,
            uuid=device.uuid,
            processes=tuple(Process(pid=pid) for pid in pids.get(place, ())),
        )
        for place, device in enumerate(x for x in has.devices if x.card is not None)
    )
    cards = tuple(
        CardReading(
            index=one.index,
            uuid=one.uuid,
            temperature_celsius=50,
            xids=tuple(x.number for x in errors if x.card == one.uuid),
        )
        for one in has.cards
    )
    return s.SampleTaken(Readings(cards=cards, devices=devices), BOTH, errors=errors)


QUIET = s.SampleTaken(
    Readings(
        cards=tuple(
            CardReading(index=one.index, uuid=one.uuid, temperature_celsius=50)
            for one in HERE.cards
        ),
        devices=tuple(
            DeviceReading(id=one.id, uuid=one.uuid, processes=(), memory_used_bytes=0)
            for one in HERE.devices
            if one.card is not None
        ),
    ),
    {},
)
"""A sample of a machine on which nothing runs and nothing is told."""


def stops(agent: Agent) -> list[str]:
    return [x.start.key.replica for x in agent.effects if isinstance(x, s.StopEngine)]


def spawns(agent: Agent) -> list[str]:
    return [x.start.key.replica for x in agent.effects if isinstance(x, s.SpawnEngine)]


def failures(agent: Agent) -> list[e.ReplicaFailed]:
    return [x for x in published(agent) if isinstance(x, e.ReplicaFailed)]


def condition_names(agent: Agent) -> dict[int | None, str]:
    told = [x for x in published(agent) if isinstance(x, e.NodeConditionsChanged)]
    return {c.device: c.name for c in told[-1].conditions} if told else {}


# --- which engines end --------------------------------------------------------------------------


@pytest.mark.parametrize("number", ENDS)
def test_all_that_runs_on_a_card_that_is_lost_ends_and_nothing_else(number: int) -> None:
    agent = Agent().serving("r1", "r2").when(sample(error(number)), TICK)
    assert stops(agent) == ["r1"]
    (failed,) = failures(agent.when(exited("r1")))
    assert failed.reason == f"Xid {number} of its card: {XIDS[number].meaning}"
    assert failed.advice is not None
    assert "--gpu-reset" in failed.advice


@pytest.mark.parametrize("number", [x for x in (*XIDS, 999) if x not in (*ENDS, 94)])
def test_no_other_error_ends_an_engine(number: int) -> None:
    agent = Agent().serving("r1", "r2").when(sample(error(number)), TICK, TICK)
    assert stops(agent) == []


@pytest.mark.parametrize("number", ENDS)
def test_an_engine_that_was_just_being_made_ends_as_well(number: int) -> None:
    agent = Agent().up().told(assignment("r1")).given(QUIET).given(sample(error(number)))
    agent.when(s.EngineSpawned(start("r1"), 70), TICK)
    assert stops(agent) == ["r1"]


def test_what_a_driver_that_answers_no_more_told_last_is_heeded() -> None:
    agent = Agent().serving("r1", "r2")
    agent.when(s.HardwareUnreadable("a card is lost", errors=(error(79),)), TICK)
    assert stops(agent) == ["r1"]


def test_an_agent_that_died_over_it_ends_them_when_it_is_back() -> None:
    before = Agent().serving("r1", "r2").given(sample(error(95)))
    here = [
        s.EngineFound(start(name), 70 + place, 18100 + place, before.memory.parts[key].digest)
        for place, (name, key) in enumerate((("r1", "r1/0"), ("r2", "r2/0")))
    ]
    agent = before.restarted(*here).when(TICK)
    assert stops(agent) == ["r1"]


# --- the one that an error hit ------------------------------------------------------------------


def test_a_contained_error_starts_the_one_engine_of_the_card_again_where_it_was() -> None:
    agent = Agent().serving("r1", "r2").when(sample(error(94)), TICK)
    assert stops(agent) == ["r1"]
    assert condition_names(agent) == {0: "suspect"}
    agent.given(exited("r1"), QUIET).when(TICK, after=2)
    assert spawns(agent) == ["r1"]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(sample(error(94), strangers=(9,)), id="a stranger is there too"),
        pytest.param(replace(sample(error(94)), readings=Readings()), id="nobody knows who is"),
    ],
)
def test_where_it_may_have_hit_another_nobody_is_ended(told: s.SampleTaken) -> None:
    assert stops(Agent().serving("r1", "r2").when(told, TICK)) == []


def carved() -> tuple[Inventory, Agent]:
    """A card of two instances, each with an engine that serves."""
    of = card(0, mig=True, uuid=HERE.cards[0].uuid)
    slices = [replace(instance(of, number), gpu_instance=7 + number) for number in (0, 1)]
    has = inventory("n1", of, *slices)
    wanted = [
        replace(assignment(name), devices=(one.id,), grants=(grant(one),))
        for name, one in zip(("r1", "r2"), slices, strict=True)
    ]
    agent = Agent().up(has=has).told(*wanted)
    for name, pid in (("r1", 70), ("r2", 71)):
        agent.given(s.EngineSpawned(start(name), pid), answered(200, name))
    return has, agent


def test_of_two_on_a_card_the_one_ends_that_the_driver_names_and_else_none() -> None:
    has, agent = carved()
    assert stops(agent.when(sample(error(94), has=has), TICK)) == []
    assert stops(agent.when(sample(error(94, instance=8), has=has), TICK)) == ["r2"]


def test_its_own_end_is_not_followed_by_that_of_its_neighbour() -> None:
    has, agent = carved()
    agent.given(exited("r1"))
    assert stops(agent.when(sample(error(94), has=has), TICK)) == []


# --- where nothing starts any more --------------------------------------------------------------


@pytest.mark.parametrize("number", NEEDS_RESET)
def test_nothing_starts_on_a_card_that_needs_a_reset_and_it_is_said_once(number: int) -> None:
    agent = Agent().serving("r1", "r2").given(sample(error(number)), TICK, exited("r1"), QUIET)
    told = [x for _ in range(20) for x in failures(agent.when(TICK, QUIET, after=60))]
    assert spawns(agent) == []
    assert [x.reason for x in told] == [
        f"nothing starts on card 0: Xid {number}: {XIDS[number].meaning}"
    ]


@pytest.mark.parametrize("number", NEEDS_RESET)
def test_the_next_agent_holds_it_against_the_card_until_a_reboot(number: int) -> None:
    before = Agent().serving("r1").given(sample(error(number)), exited("r1"), QUIET)
    agent = before.restarted(sample=QUIET)
    assert condition_names(agent) == {0: XIDS[number].condition}
    assert spawns(agent.when(TICK, QUIET, after=60)) == []
    rebooted = agent.restarted(rebooted=True, sample=QUIET)
    assert condition_names(rebooted) == {}
    assert spawns(rebooted.when(rebooted.command(assignment("r1")), after=60)) == ["r1"]


def test_or_until_a_person_had_nvml_released_to_reset_it() -> None:
    agent = Agent().serving("r1").given(sample(error(79)), TICK, exited("r1"), QUIET)
    assert spawns(agent.when(TICK, after=60)) == []
    agent.when(s.NvmlReleased(), QUIET, after=60)
    assert published(agent)[-1] == e.NodeConditionsChanged(conditions=())
    assert spawns(agent) == ["r1"]


def test_a_card_that_the_driver_had_lost_is_not_used_when_it_answers_again() -> None:
    """Also where nobody told of an error: nvidia-smi does not."""
    out = Excluded(card=0, reason="lost", detail="the driver has lost the card")
    without = replace(HERE, devices=HERE.devices[1:], cards=HERE.cards[1:], excluded=(out,))
    agent = Agent().serving("r1").when(s.InventoryTaken(without), TICK)
    assert stops(agent) == ["r1"]
    agent.given(exited("r1"), s.InventoryTaken(HERE)).when(QUIET)
    assert condition_names(agent) == {0: "lost"}
    assert spawns(agent.when(TICK, QUIET, after=60)) == []
    assert condition_names(agent.restarted(rebooted=True, sample=QUIET)) == {}


def test_its_neighbour_is_used_as_before() -> None:
    agent = Agent().serving("r1").given(sample(error(79)), TICK, exited("r1"), QUIET)
    agent.when(agent.command(assignment("r2", device=1)))
    assert spawns(agent) == ["r2"]


# --- a driver that cannot be read ---------------------------------------------------------------


def test_what_runs_goes_on_under_a_driver_that_was_upgraded_and_not_reloaded() -> None:
    agent = Agent().serving("r1", "r2").when(NO_DRIVER, TICK)
    assert stops(agent) == []
    assert condition_names(agent) == {0: "driver-mismatch", 1: "driver-mismatch"}
    assert agent.memory.inventory == HERE
    for _ in range(20):
        agent.when(NO_DRIVER, TICK, after=30)
        assert published(agent) == []


def test_nothing_new_starts_under_it_and_one_failure_says_so() -> None:
    agent = Agent().serving("r1").given(NO_DRIVER)
    agent.when(agent.command(assignment("r1"), assignment("r2", device=1)))
    (failed,) = failures(agent)
    assert failed.replica == "r2"
    assert MISMATCH in failed.reason
    assert failed.advice is not None
    agent.given(exited("r1"))
    told = [x for _ in range(50) for x in failures(agent.when(TICK, NO_DRIVER, after=60))]
    assert [(x.replica, MISMATCH in x.reason) for x in told] == [("r1", True)]
    assert spawns(agent) == []


def test_all_that_waited_starts_once_the_driver_answers_again() -> None:
    agent = Agent().serving("r1").given(NO_DRIVER, exited("r1"))
    agent.when(TICK, after=60).when(s.InventoryTaken(HERE), TICK, after=1)
    assert spawns(agent) == []
    agent.when(QUIET)
    assert published(agent)[-1] == e.NodeConditionsChanged(conditions=())
    assert spawns(agent.when(TICK, after=60)) == ["r1"]


def test_the_next_agent_does_not_try_before_it_has_looked() -> None:
    agent = Agent().serving("r1").given(NO_DRIVER, exited("r1"))
    later = agent.restarted(has=None)
    assert spawns(later.when(TICK, after=60)) == []
    assert spawns(later.when(s.InventoryTaken(HERE), QUIET, TICK, after=60)) == ["r1"]


def test_what_needs_the_processor_alone_starts_all_the_same() -> None:
    agent = Agent().up().given(s.HardwareUnreadable("no answer"))
    agent.when(agent.command(assignment("r1", device=900)))
    assert spawns(agent) == ["r1"]
