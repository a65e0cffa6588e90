"""The agent's brain and one engine: start, ready, failures, hangs, stops."""

from __future__ import annotations

import pytest

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.endings import backoff_seconds
from llmgw.core.memory import EnginePart, Policy
from llmgw.testing.builders import card, inventory, processor
from tests.core.agent import TICK, Agent, answered, assignment, exited, published, start, uncounted


def test_a_start_is_written_down_before_the_process_exists() -> None:
    Agent().up().when(Agent().command(assignment())).then(
        "publish replica.starting r1/0 attempt 1 on port 18100",
        "spawn r1/0 attempt 1 on port 18100",
        "publish command.done revision 1",
    )


def test_an_engine_that_answers_is_ready() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(answered(200), after=2.5).then("publish replica.ready r1/0 attempt 1")
    assert published(agent) == [
        e.ReplicaBecameReady(
            replica="r1", generation=1, address="127.0.0.1", port=18100, pid=77, seconds=2.5
        )
    ]


def test_an_engine_that_loads_or_is_silent_is_not_ready_yet() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(answered(None), answered(503)).then()


def test_an_engine_is_asked_often_while_it_loads_and_seldom_later() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(TICK).then("probe r1/0 attempt 1 on port 18100")
    agent.when(TICK, after=0.2).then()
    agent.when(TICK, after=0.1).then("probe r1/0 attempt 1 on port 18100")
    agent.given(answered(200)).when(TICK, after=1).then("probe r1/0 attempt 1 on port 18100")
    agent.when(TICK, after=4.9).then()


def test_a_failed_start_is_tried_again_after_a_pause_that_doubles() -> None:
    agent = Agent().up().told(assignment())
    pauses = []
    for attempt in range(1, 13):
        agent.given(s.EngineSpawned(start(attempt=attempt), 77)).when(exited(attempt=attempt))
        (failed,) = published(agent)
        assert isinstance(failed, e.ReplicaFailed)
        pauses.append(failed.retry_seconds)
        agent.when(TICK, after=failed.retry_seconds - 0.01).then()
        agent.when(TICK, after=0.02)
        assert agent.effects[1] == s.SpawnEngine(
            start(attempt=attempt + 1), assignment(), agent.memory.parts["r1/0"].port
        )
    assert [round(p / 2.0**n) for n, p in enumerate(pauses[:8])] == [1] * 8
    assert pauses[8:] == [pytest.approx(300, rel=0.1)] * 4
    assert all(p >= 300 for p in pauses[9:])


def test_the_pause_is_the_same_in_every_replay_and_differs_between_replicas() -> None:
    def pause(replica: str) -> float:
        agent = Agent().up().told(assignment(replica)).when(exited(replica))
        (failed,) = published(agent)
        assert isinstance(failed, e.ReplicaFailed)
        return failed.retry_seconds

    assert pause("r1") == pause("r1")
    assert pause("r1") != pause("r2")


def test_no_number_of_failures_makes_a_pause_too_long_to_be_counted() -> None:
    part = EnginePart(assignment(), 1)
    for failures in (30, 1100, 10**9):
        part.failures = failures
        assert 300 <= backoff_seconds(Policy(), s.Key("r1", 0), part) <= 330


def test_long_service_forgives_earlier_failures() -> None:
    agent = Agent().up().told(assignment())
    agent.given(exited()).when(TICK, after=2).given(s.EngineSpawned(start(attempt=2), 77))
    agent.given(answered(200, attempt=2)).when(exited(attempt=2), after=600)
    (failed,) = published(agent)
    assert isinstance(failed, e.ReplicaFailed)
    assert failed.retry_seconds < 2


def test_an_exit_says_why_and_what_a_known_failure_means() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(exited(output="error: failed to load model"))
    (failed,) = published(agent)
    assert isinstance(failed, e.ReplicaFailed)
    assert (failed.reason, failed.exit_code) == ("the engine exited with code 1", 1)
    assert failed.meaning == "the model could not be loaded"
    assert failed.output == "error: failed to load model"


def test_a_program_that_cannot_be_started_is_a_failure() -> None:
    Agent().up().told(assignment()).when(s.SpawnFailed(start(), "no llama-server")).then(
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: no llama-server"
    )


def test_a_taken_port_is_followed_by_the_next_ones_at_once() -> None:
    agent = Agent(policy=Policy(port_tries=3)).up().told(assignment())
    for attempt in (1, 2):
        agent.when(s.SpawnFailed(start(attempt=attempt), "in use", port_taken=True)).then(
            f"publish replica.failed r1/0 attempt {attempt} retry in 0.00 s: in use",
            f"publish replica.starting r1/0 attempt {attempt + 1} on port {18100 + attempt}",
            f"spawn r1/0 attempt {attempt + 1} on port {18100 + attempt}",
        )
    agent.when(s.SpawnFailed(start(attempt=3), "in use", port_taken=True))
    assert len(agent.effects) == 1, "after three ports it pauses"


def test_a_port_rests_after_its_engine_ended() -> None:
    agent = Agent().up().told(assignment()).given(exited())
    agent.when(TICK, after=2)
    assert agent.memory.parts["r1/0"].port == 18101


def test_the_ports_of_engines_are_none_that_the_kernel_gives_away_by_itself() -> None:
    assert Policy().last_port < 32_768


def test_with_all_ports_resting_a_port_is_chosen_that_no_engine_uses() -> None:
    agent = Agent(policy=Policy(first_port=18100, last_port=18101)).serving("r2")
    agent.given(agent.command(assignment("r2"), assignment("r1", device=1)))
    agent.given(exited("r1")).when(TICK, after=2)
    assert agent.memory.parts["r1/0"].port == 18101


def test_an_engine_that_never_gets_ready_is_killed_at_its_deadline() -> None:
    agent = Agent().up().told(assignment(start_seconds=60.0)).given(s.EngineSpawned(start(), 77))
    agent.when(TICK, after=61).then("KILL r1/0 attempt 1")
    agent.when(exited())
    (failed,) = published(agent)
    assert isinstance(failed, e.ReplicaFailed)
    assert failed.reason == "not ready after 60 s"


def test_a_hung_engine_is_killed_after_so_many_misses() -> None:
    agent = Agent().serving("r1")
    agent.when(*[answered(None)] * 5).then()
    agent.when(answered(None)).then("KILL r1/0 attempt 1")
    agent.when(exited())
    assert "6 times in a row" in str(published(agent))


def test_an_entry_says_how_long_its_engine_may_be_silent() -> None:
    agent = Agent().up().told(assignment(liveness_seconds=60.0))
    agent.given(s.EngineSpawned(start(), 77), answered(200))
    agent.when(*[answered(None)] * 20).then()
    agent.when(TICK, answered(None), after=59).then("probe r1/0 attempt 1 on port 18100")
    agent.when(answered(None), after=1.1).then("KILL r1/0 attempt 1")


def test_an_entry_that_allows_little_silence_has_its_engine_asked_often() -> None:
    agent = Agent().up().told(assignment(liveness_seconds=4.0))
    agent.given(s.EngineSpawned(start(), 77), answered(200), TICK)
    agent.when(TICK, after=0.9).then()
    agent.when(TICK, after=0.2).then("probe r1/0 attempt 1 on port 18100")


def test_an_agent_that_slept_does_not_blame_its_engine_for_the_first_silence() -> None:
    agent = Agent().up().told(assignment(liveness_seconds=4.0))
    agent.given(s.EngineSpawned(start(), 77), answered(200))
    agent.when(answered(None), after=3600).then()


def test_another_program_on_its_port_does_not_make_an_engine_ready() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(s.EngineAnswered(start(), 200, "pid 8 (nginx)")).then("KILL r1/0 attempt 1")
    agent.when(exited(), TICK, after=0.5)
    (failed,) = published(agent)
    assert isinstance(failed, e.ReplicaFailed)
    assert failed.reason == "pid 8 (nginx) listens on port 18100, and not the engine"
    agent.when(TICK, after=2)
    assert agent.memory.parts["r1/0"].port == 18101


def test_one_good_answer_forgives_the_misses() -> None:
    agent = Agent().serving("r1")
    agent.when(*[answered(None)] * 5, answered(200), *[answered(None)] * 5).then()


def test_an_engine_that_is_being_killed_does_not_become_ready_by_a_late_answer() -> None:
    agent = Agent().up().told(assignment(start_seconds=60.0)).given(s.EngineSpawned(start(), 77))
    agent.when(TICK, after=61)
    agent.when(answered(200)).then()


def test_a_wrong_answer_of_a_loading_engine_ends_it() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(answered(404)).then("KILL r1/0 attempt 1")


def test_a_kill_that_does_not_help_is_repeated() -> None:
    agent = Agent().serving("r1").given(*[answered(None)] * 6)
    agent.when(TICK, after=1.1)
    assert s.StopEngine(start(), 70, "KILL") in agent.effects


def test_a_stop_is_asked_for_kindly_and_then_made() -> None:
    agent = Agent().serving("r1")
    agent.when(agent.command(), uncounted()).then("count r1/0 attempt 1", "TERM r1/0 attempt 1")
    agent.when(TICK, after=14).then()
    agent.when(TICK, after=1.5).then("KILL r1/0 attempt 1")
    agent.when(exited()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_a_stop_while_starting_ends_the_engine_before_it_is_ready() -> None:
    agent = Agent().up().told(assignment()).given(s.EngineSpawned(start(), 77))
    agent.when(agent.command()).then(
        "TERM r1/0 attempt 1",
    )
    agent.when(answered(200)).then()


def test_a_stop_before_the_process_exists_waits_for_it() -> None:
    agent = Agent().up().told(assignment())
    agent.when(agent.command()).then()
    agent.when(s.EngineSpawned(start(), 77)).then("TERM r1/0 attempt 1")


def test_a_stop_before_a_process_that_never_comes_is_done() -> None:
    agent = Agent().up().told(assignment())
    agent.given(agent.command()).when(s.SpawnFailed(start(), "no program")).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_a_stop_of_a_failed_replica_needs_no_signal() -> None:
    agent = Agent().up().told(assignment()).given(exited())
    agent.when(agent.command()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_what_an_earlier_start_reports_says_nothing_of_the_present_one() -> None:
    agent = Agent().up().told(assignment()).given(exited()).when(TICK, after=2)
    agent.when(exited(attempt=1), answered(200, attempt=1), answered(404, attempt=1)).then()


def test_a_device_is_given_on_only_after_its_engine_is_gone() -> None:
    agent = Agent().serving("r1")
    agent.when(agent.command(assignment("r2")), uncounted())
    agent.when(exited()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish replica.starting r2/0 attempt 1 on port 18101",
        "spawn r2/0 attempt 1 on port 18101",
        "publish command.done revision 2",
    )


def test_replicas_share_the_processor() -> None:
    agent = Agent().up()
    agent.when(agent.command(assignment("r1", device=900), assignment("r2", device=900)))
    assert [x.start.key.replica for x in agent.effects if isinstance(x, s.SpawnEngine)] == [
        "r1",
        "r2",
    ]


def test_a_new_generation_replaces_the_old_one() -> None:
    agent = Agent().serving("r1")
    agent.given(agent.command(assignment(generation=2)), uncounted()).when(exited())
    assert s.SpawnEngine(start(generation=2), assignment(generation=2), 18101) in agent.effects


def test_an_engine_without_its_device_is_not_started() -> None:
    agent = Agent().up().told(assignment()).given(exited())
    agent.given(s.InventoryTaken(inventory("n1", card(1), processor()))).when(TICK, after=2).then(
        "publish replica.failed r1/0 attempt 2 retry in 2.00 s: "
        "this machine has no device GPU-0 any more"
    )


def test_an_engine_of_a_newer_version_is_refused_with_advice() -> None:
    agent = Agent().up()
    agent.when(agent.command(assignment(engine="tomorrow")))
    assert "upgrade llmgw on this node" in str(published(agent)[0])


def test_an_engine_that_ends_with_success_has_failed_all_the_same_and_is_started_again() -> None:
    agent = Agent().serving("r1")
    agent.when(s.EngineExited(start(), 0, None, "bye")).then(
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: the engine exited with code 0"
    )
    agent.when(TICK, after=2)
    assert agent.effects[1] == s.SpawnEngine(start(attempt=2), assignment(), 18101)


def test_an_engine_that_was_killed_by_nobody_here_may_have_taken_the_machine_s_memory() -> None:
    agent = Agent().serving("r1").when(s.EngineExited(start(), None, 9, ""))
    (failed,) = published(agent)
    assert isinstance(failed, e.ReplicaFailed)
    assert failed.signal == 9
    assert "by the kernel when memory ran out" in failed.reason


def test_a_model_that_loads_for_long_is_starting_all_the_time_and_not_failed() -> None:
    agent = Agent().up().told(assignment(start_seconds=1800.0)).given(s.EngineSpawned(start(), 77))
    for minute in range(20):
        agent.when(TICK, answered(503 if minute % 2 else None), after=60)
        assert published(agent) == []
    agent.when(answered(200)).then("publish replica.ready r1/0 attempt 1")


def test_an_engine_that_ends_while_it_loads_has_failed_at_once() -> None:
    agent = Agent().up().told(assignment(start_seconds=1800.0)).given(s.EngineSpawned(start(), 77))
    agent.when(exited(), after=1).then(
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: the engine exited with code 1"
    )


def test_what_is_wanted_again_while_it_stops_starts_once_it_is_gone() -> None:
    agent = Agent().serving("r1").given(Agent().command(revision=2, sequence=20), uncounted())
    agent.when(agent.command(assignment(), revision=3, sequence=30)).then(
        "publish command.superseded revision 2 by 3"
    )
    agent.when(exited()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish replica.starting r1/0 attempt 2 on port 18101",
        "spawn r1/0 attempt 2 on port 18101",
        "publish command.done revision 3",
    )


def test_what_a_start_says_that_was_stopped_is_not_taken_for_the_next_one() -> None:
    agent = Agent().serving("r1").given(Agent().command(revision=2, sequence=20), uncounted())
    agent.given(agent.command(assignment(), revision=3, sequence=30), exited())
    agent.when(answered(200), answered(404), exited()).then()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        pytest.param(assignment(generation=2), "a restart was asked for", id="asked"),
        pytest.param(assignment(gib=11), "something else is wanted in its place", id="other"),
    ],
)
def test_an_engine_that_makes_room_for_another_of_its_name_says_for_which(
    wanted: Assignment, reason: str
) -> None:
    agent = Agent().serving("r1")
    agent.given(agent.command(wanted), uncounted()).when(exited())
    (stopped, *_) = published(agent)
    assert isinstance(stopped, e.ReplicaStopped)
    assert stopped.reason == reason
