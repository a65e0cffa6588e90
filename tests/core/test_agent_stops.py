"""The agent's brain ends an engine: its requests first, then SIGTERM, then SIGKILL."""

from __future__ import annotations

import pytest

from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.stopping import DRAIN_SHARE
from llmgw.engines.registry import ENGINES
from tests.core.agent import (
    TICK,
    Agent,
    answered,
    assignment,
    exited,
    found,
    published,
    start,
)
from tests.core.test_agent_devices import EMPTY, conditions


def counted(requests: int | None) -> s.EngineCounted:
    return s.EngineCounted(start(), requests)


def draining(what: Assignment | None = None) -> Agent:
    agent = Agent().up().told(what or assignment()).given(s.EngineSpawned(start(), 77))
    agent.given(answered(200))
    return agent.when(agent.command())


def test_an_engine_that_shall_stop_is_first_asked_for_its_requests() -> None:
    draining().then("count r1/0 attempt 1")


def test_it_is_told_once_it_was_idle_twice_in_a_row() -> None:
    agent = draining().when(counted(2), counted(0), counted(1), counted(0)).then()
    agent.when(counted(0)).then("TERM r1/0 attempt 1")
    agent.when(counted(0)).then()


def test_it_is_asked_again_and_again_while_it_has_requests() -> None:
    agent = draining().given(counted(3))
    agent.when(TICK, after=0.2).then()
    agent.when(TICK, after=0.1).then("count r1/0 attempt 1")


def test_requests_that_do_not_end_are_not_waited_for_for_ever() -> None:
    agent = draining(assignment(stop_seconds=40.0))
    agent.when(TICK, counted(1), after=40 * DRAIN_SHARE - 1).then("count r1/0 attempt 1")
    agent.when(TICK, after=1.1).then("TERM r1/0 attempt 1")
    agent.when(TICK, counted(1), after=9).then()
    agent.when(TICK, after=1.1).then("KILL r1/0 attempt 1")


def test_an_engine_that_does_not_tell_is_told_at_once() -> None:
    draining().when(counted(None)).then("TERM r1/0 attempt 1")


def test_a_program_of_the_operators_own_is_told_at_once() -> None:
    own = assignment(engine="command", command=("./serve",), source=None)
    draining(own).then("TERM r1/0 attempt 1")


def test_an_engine_that_ends_while_it_is_asked_has_stopped() -> None:
    draining().when(exited()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_the_next_agent_begins_a_stop_that_was_under_way_with_the_kill() -> None:
    agent = draining()
    engine = s.EngineFound(start(), 77, 18100, agent.memory.parts["r1/0"].digest)
    agent.restarted(engine).when(TICK).then("KILL r1/0 attempt 1")


METRICS = """\
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 1.0
vllm:num_requests_waiting{engine="0",model_name="a"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
sglang:num_running_reqs{model_name="a"} 1e+00
sglang:num_queue_reqs{model_name="a"} 0.0
"""


@pytest.mark.parametrize(("engine", "requests"), [("llama.cpp", 3), ("vllm", 6), ("sglang", 1)])
def test_requests_are_counted_in_the_metrics_of_each_engine(engine: str, requests: int) -> None:
    counts = ENGINES[engine].request_counts
    assert counts is not None
    assert counts.count(METRICS) == requests
    assert counts.count("401 Unauthorized") is None


def stuck(agent: Agent, seconds: float = 31) -> Agent:
    """Kill in vain for so long."""
    for _ in range(int(seconds)):
        agent.given(TICK).when(TICK, after=1)
    return agent


def test_a_hung_engine_that_cannot_be_killed_has_failed_and_keeps_its_device_and_port() -> None:
    agent = Agent().serving("r1").when(*[answered(None)] * 6).then("KILL r1/0 attempt 1")
    assert published(agent.when(TICK, after=29)) == []
    agent.when(TICK, after=2).then(
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: its health endpoint failed 6 times "
        "in a row; its process 70 cannot be killed",
        "KILL r1/0 attempt 1",
    )
    agent.when(EMPTY)
    assert conditions(agent) == {0: "occupied: r1/0 does not end: its process 70 cannot be killed"}
    agent.when(TICK, after=3600).then("KILL r1/0 attempt 1")
    agent.when(agent.command(assignment("r2", device=1), assignment())).then(
        "publish replica.starting r2/0 attempt 1 on port 18101",
        "spawn r2/0 attempt 1 on port 18101",
        "publish command.done revision 2",
    )
    agent.when(exited(), EMPTY).then(
        "publish replica.starting r1/0 attempt 2 on port 18102",
        "spawn r1/0 attempt 2 on port 18102",
        "publish node.conditions none",
    )


def test_nothing_else_starts_where_an_engine_that_shall_stop_cannot_be_killed() -> None:
    agent = draining().given(counted(None))
    agent = stuck(agent.given(agent.command(assignment("r2"))), 60)
    assert published(agent) == []
    agent.when(EMPTY)
    assert "cannot be killed" in conditions(agent)[0]
    agent.when(exited()).then("measure")
    agent.when(EMPTY).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish node.conditions none",
        "publish replica.starting r2/0 attempt 1 on port 18101",
        "spawn r2/0 attempt 1 on port 18101",
        "publish command.done revision 3",
    )


def test_a_failed_engine_that_cannot_be_killed_is_not_said_to_have_stopped() -> None:
    agent = stuck(Agent().serving("r1").given(*[answered(None)] * 6))
    agent.when(agent.command(), TICK)
    assert published(agent) == []
    agent.when(exited()).then(
        "publish replica.stopped r1/0 attempt 1: not wanted any more",
        "publish command.done revision 2",
    )


def test_the_next_agent_holds_the_device_of_what_cannot_be_killed() -> None:
    agent = stuck(Agent().serving("r1").given(*[answered(None)] * 6))
    later = agent.restarted(found())
    later.when(TICK, EMPTY, after=3600).then(
        "KILL r1/0 attempt 1",
        "publish node.conditions 0 occupied",
    )
    assert agent.restarted().when(TICK, after=1).memory.parts["r1/0"].attempt == 2
