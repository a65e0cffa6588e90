"""The agent's brain after a restart: adoption, losses, reboots, a log that is another."""

from __future__ import annotations

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.hardware.types import CardReading, DeviceReading, Readings
from llmgw.testing.builders import card, inventory, processor
from tests.core.agent import (
    HERE,
    TICK,
    Agent,
    answered,
    assignment,
    exited,
    found,
    published,
    start,
)

UP = ("publish node.started", "publish node.inventory")


def test_an_agent_that_comes_up_says_so_and_what_there_is() -> None:
    Agent().up().then(*UP)


def test_an_unchanged_inventory_is_not_told_again() -> None:
    agent = Agent().up()
    there = agent.memory.inventory
    assert there is not None
    agent.when(s.InventoryTaken(there)).then()
    agent.when(s.InventoryTaken(inventory("n1", card(0)))).then("publish node.inventory")


def test_an_engine_that_still_runs_is_adopted_and_not_started_again() -> None:
    agent = Agent().serving("r1").restarted(found())
    agent.then(*UP, "publish replica.adopted r1/0 attempt 1")
    agent.when(TICK).then("probe r1/0 attempt 1 on port 18100")


def test_an_engine_found_before_it_was_known_to_exist_is_adopted() -> None:
    agent = Agent().up().told(assignment()).restarted(found())
    agent.when(answered(200)).then("publish replica.ready r1/0 attempt 1")


def test_an_engine_that_ended_meanwhile_is_reported_once_and_started_again() -> None:
    agent = Agent().serving("r1").restarted()
    agent.then(
        *UP,
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: "
        "the engine was not running when the agent came up",
    )
    agent.when(TICK, after=2).then(
        "publish replica.starting r1/0 attempt 2 on port 18100",
        "spawn r1/0 attempt 2 on port 18100",
    )


def test_a_stop_that_was_under_way_is_finished() -> None:
    agent = Agent().serving("r1")
    agent = agent.given(agent.command()).restarted(found())
    agent.when(TICK).then("KILL r1/0 attempt 1")
    agent.when(exited()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_a_stop_that_was_finished_meanwhile_is_reported() -> None:
    agent = Agent().serving("r1")
    agent.given(agent.command()).restarted().then(
        *UP,
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_without_memory_engines_are_adopted_and_kept_until_a_command_comes() -> None:
    agent = Agent().up(found(attempt=3))
    agent.then(*UP, "publish replica.adopted r1/0 attempt 3")
    agent.when(TICK, after=1000).then()
    agent.when(agent.command(assignment()), TICK).then(
        "publish command.done revision 1", "probe r1/0 attempt 3 on port 18100"
    )


def test_an_unknown_engine_that_is_not_wanted_is_stopped_whichever_attempt_it_is() -> None:
    agent = Agent().up(found(attempt=3))
    agent.when(agent.command()).then("TERM r1/0 attempt 3")
    agent.when(exited(attempt=3)).then(
        "publish replica.stopped r1/0 attempt 3: not wanted any more",
        "publish command.done revision 1",
    )


def test_an_unknown_engine_that_runs_something_else_is_replaced() -> None:
    agent = Agent().up(found(assignment(gib=11)))
    agent.when(agent.command(assignment())).then("TERM r1/0 attempt 1")
    agent.when(exited())
    assert s.SpawnEngine(start(attempt=2), assignment(), 18101) in agent.effects


def test_nothing_is_started_beside_an_engine_of_which_nobody_knows_what_it_holds() -> None:
    agent = Agent().up(found())
    agent.when(agent.command(assignment("r2"))).then("TERM r1/0 attempt 1")
    agent.when(exited())
    assert s.SpawnEngine(start("r2"), assignment("r2"), 18101) in agent.effects


def test_after_a_reboot_nothing_starts_until_a_command_says_so() -> None:
    agent = Agent().serving("r1").restarted(rebooted=True)
    agent.when(TICK, after=1000).then()
    agent.when(agent.command(assignment())).then(
        "publish replica.starting r1/0 attempt 2 on port 18100",
        "spawn r1/0 attempt 2 on port 18100",
        "publish command.done revision 2",
    )


def test_a_card_is_known_by_its_uuid_when_its_number_changed() -> None:
    moved = inventory("n1", card(0, uuid="GPU-1"), card(1, uuid="GPU-0"), processor())
    agent = Agent().serving("r1").restarted(rebooted=True, has=moved)
    agent.given(agent.command(assignment())).when(TICK, after=2)
    spawned = next(x for x in agent.effects if isinstance(x, s.SpawnEngine))
    (given,) = spawned.assignment.grants
    assert (given.uuid, given.card_index, spawned.assignment.devices) == ("GPU-0", 1, (1,))


def test_a_log_that_was_replaced_is_told_what_is_here_and_nothing_is_stopped() -> None:
    agent = Agent().serving("r1").when(s.LogReplaced())
    agent.then(*UP, "publish replica.adopted r1/0 attempt 1")
    agent.when(TICK).then("probe r1/0 attempt 1 on port 18100")


def test_after_a_log_was_replaced_its_commands_count_from_the_beginning() -> None:
    agent = Agent().serving("r1").given(s.LogReplaced())
    agent.when(agent.command(assignment(), revision=1, sequence=1)).then(
        "publish replica.adopted r1/0 attempt 1",
        "publish replica.ready r1/0 attempt 1",
        "publish command.done revision 1",
    )


def test_the_first_sample_says_what_holds_since_an_earlier_agent_may_have_said_other() -> None:
    agent = Agent().up()
    agent.when(_sample(50.0)).then("publish node.conditions none")
    agent.when(_sample(50.0)).then()
    agent.given(s.LogReplaced()).when(_sample(50.0)).then("publish node.conditions none")


def test_hardware_that_cannot_be_read_is_said_once_and_so_is_its_return() -> None:
    agent = Agent().up()
    broken = s.HardwareUnreadable("no driver")
    said, conditions = published(agent.when(broken))
    assert said == e.NodeHardwareUnreadable(reason="no driver")
    assert isinstance(conditions, e.NodeConditionsChanged)
    assert {c.name for c in conditions.conditions} == {"unreadable"}
    agent.when(broken).then()
    (back,) = published(agent.when(s.InventoryTaken(HERE)))
    assert back == e.NodeInventoryTaken(inventory=HERE)
    agent.when(s.InventoryTaken(HERE)).then()


def _sample(celsius: float) -> s.SampleTaken:
    cards = (CardReading(index=0, uuid="GPU-0", temperature_celsius=celsius),)
    readings = Readings(cards=cards, devices=(DeviceReading(id=0, uuid="GPU-0"),))
    return s.SampleTaken(readings, {})


def test_an_event_of_the_adopted_engine_names_its_start() -> None:
    (_, _, adopted) = published(Agent().up(found(attempt=3, pid=71, port=18103)))
    assert adopted == e.ReplicaAdopted(replica="r1", generation=1, attempt=3, pid=71, port=18103)


def test_the_last_words_of_an_engine_that_ended_meanwhile_are_told_and_explained() -> None:
    words = "error: failed to load model"
    ended = s.EngineExited(start(), None, None, words)
    agent = Agent().serving("r1").restarted(ended=(ended,))
    failed = published(agent)[-1]
    assert isinstance(failed, e.ReplicaFailed)
    assert (failed.exit_code, failed.signal, failed.output) == (None, None, words)
    assert failed.meaning == "the model could not be loaded"


def test_an_engine_that_ended_meanwhile_is_reported_by_one_agent_alone() -> None:
    agent = Agent().serving("r1").restarted()
    assert [event.wire for event in published(agent)][2:] == ["replica.failed"]
    agent.restarted().then(
        *UP,
        "publish replica.starting r1/0 attempt 2 on port 18100",
        "spawn r1/0 attempt 2 on port 18100",
    )


def test_what_ended_meanwhile_starts_again_once_its_device_is_free_of_it() -> None:
    before, after = _used(20), _used(0)
    agent = Agent().up().given(after).told(assignment())
    agent.given(s.EngineSpawned(start(), 70), answered(200), before)
    later = agent.restarted(sample=before)
    later.when(before, TICK, after=10)
    assert not any(isinstance(effect, s.SpawnEngine) for effect in later.effects)
    later.when(after)
    assert any(isinstance(effect, s.SpawnEngine) for effect in later.effects)


def test_a_start_that_an_agent_wrote_down_and_did_not_make_is_a_failure_and_not_a_second_one() -> (
    None
):
    agent = Agent().up().told(assignment()).restarted()
    agent.then(
        *UP,
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: the agent ended while it started "
        "the engine, which does not run",
    )
    agent.when(TICK, after=2).then(
        "publish replica.starting r1/0 attempt 2 on port 18100",
        "spawn r1/0 attempt 2 on port 18100",
    )


def test_after_a_reboot_what_ran_is_said_to_have_ended_with_the_machine() -> None:
    Agent().serving("r1").restarted(rebooted=True).then(
        *UP, "publish replica.failed r1/0 attempt 1 retry in 1.07 s: the machine restarted"
    )


def _used(gib: int) -> s.SampleTaken:
    device = DeviceReading(id=0, uuid="GPU-0", memory_used_bytes=gib << 30, processes=())
    return s.SampleTaken(Readings(devices=(device,)), {})
