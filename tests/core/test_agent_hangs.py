"""An engine that answers its health endpoint and gets on with nothing: found out, and only then."""

from __future__ import annotations

import pytest

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.memory import Policy
from tests.core.agent import TICK, Agent, assignment, exited, published, start

POLICY = Policy(hung_seconds=60.0)


def ready(liveness_seconds: float | None = None) -> Agent:
    """An agent with one engine that serves, and was looked at once."""
    what = assignment(liveness_seconds=liveness_seconds)
    agent = Agent(policy=POLICY).up().told(what)
    return agent.given(s.EngineSpawned(start(), 70), s.EngineAnswered(start(), 200))


def look(agent: Agent, hangs: bool | None, seconds: float = 10.0) -> Agent:
    """The engine is asked after so many seconds, and answers well."""
    agent.when(TICK, after=seconds)
    looked = [x.look for x in agent.effects if isinstance(x, s.ProbeEngine)]
    assert looked == [True]
    return agent.when(s.EngineAnswered(start(), 200, None, hangs))


def test_an_engine_that_hangs_is_asked_for_a_token_and_then_killed() -> None:
    agent = ready()
    for _ in range(3):
        look(agent, hangs=True).then()
    look(agent, hangs=True).then("ask r1/0 attempt 1 for one token")
    assert agent.effects == [s.AskForToken(start(), assignment(), 18100, 60.0)]
    for _ in range(2):
        look(agent, hangs=True).then()
    look(agent, hangs=True).then("KILL r1/0 attempt 1")
    agent.when(exited())
    (failed,) = published(agent)
    assert isinstance(failed, e.ReplicaFailed)
    assert failed.reason == "it hung: its health endpoint answered, and no token came for 60 s"
    assert failed.meaning == "the engine hung: requests waited, and it worked on none of them"
    agent.when(TICK, after=failed.retry_seconds + 0.01)
    assert any(isinstance(effect, s.SpawnEngine) for effect in agent.effects)


@pytest.mark.parametrize("status", [200, 201])
def test_one_that_gives_the_token_was_not_hung(status: int) -> None:
    agent = ready()
    for _ in range(4):
        look(agent, hangs=True)
    agent.when(s.TokenAnswered(start(), status)).then()
    for _ in range(3):
        look(agent, hangs=True).then()


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_one_that_refuses_the_question_is_never_killed_for_it(status: int) -> None:
    agent = ready()
    for _ in range(4):
        look(agent, hangs=True)
    agent.when(s.TokenAnswered(start(), status))
    for _ in range(20):
        look(agent, hangs=True).then()


def test_no_answer_to_the_question_is_no_refusal() -> None:
    agent = ready()
    for _ in range(6):
        look(agent, hangs=True)
    agent.given(s.TokenAnswered(start(), None))
    look(agent, hangs=True).then("KILL r1/0 attempt 1")


def test_one_step_of_it_begins_the_count_again() -> None:
    agent = ready()
    for _ in range(20):
        for _ in range(3):
            look(agent, hangs=True).then()
        look(agent, hangs=False).then()


def test_an_engine_that_does_not_tell_is_left_alone() -> None:
    agent = ready()
    for _ in range(30):
        look(agent, hangs=None).then()


def test_the_entry_says_how_long_it_may_hang() -> None:
    agent = ready(liveness_seconds=6.0)
    told = [look(agent, hangs=True, seconds=2).effects for _ in range(4)]
    kinds = [type(effect) for effects in told for effect in effects]
    assert kinds == [s.AskForToken, s.StopEngine]


def test_an_agent_that_slept_kills_nothing_for_what_it_did_not_see() -> None:
    agent = ready()
    look(agent, hangs=True)
    look(agent, hangs=True, seconds=7200).then("ask r1/0 attempt 1 for one token")


def test_the_next_agent_counts_from_its_own_start() -> None:
    agent = ready()
    for _ in range(6):
        look(agent, hangs=True)
    found = s.EngineFound(start(), 70, 18100, agent.memory.parts["r1/0"].digest)
    later = agent.restarted(found)
    for _ in range(3):
        look(later, hangs=True).then()


def test_work_is_looked_at_seldom() -> None:
    agent = ready()
    agent.when(TICK, after=5)
    looks = []
    for _ in range(24):
        agent.when(TICK, after=5)
        looks += [x.look for x in agent.effects if isinstance(x, s.ProbeEngine)]
    assert (len(looks), sum(looks)) == (24, 12)
