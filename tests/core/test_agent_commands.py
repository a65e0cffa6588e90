"""The agent's brain and commands: late, doubled, stale, and each with one outcome."""

from __future__ import annotations

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.testing.builders import From, entry, joined, processor, serving
from tests.core.agent import TICK, Agent, assignment, exited, published, start, uncounted


def test_an_empty_list_is_an_order_to_run_nothing() -> None:
    agent = Agent().up()
    agent.when(agent.command()).then("publish command.done revision 1")


def test_without_a_command_nothing_is_started_or_stopped() -> None:
    Agent().up().when(TICK, after=1000).then()


def test_a_command_is_done_once() -> None:
    agent = Agent().up().told(assignment())
    agent.when(TICK, exited(), TICK).then(
        "publish replica.failed r1/0 attempt 1 retry in 1.07 s: the engine exited with code 1"
    )


def test_the_same_command_again_changes_nothing() -> None:
    agent = Agent().up()
    command = agent.command(assignment())
    agent.given(command).when(command).then()


def test_a_command_of_an_older_term_is_refused_and_says_so() -> None:
    agent = Agent().up().told(assignment(), term=2)
    agent.when(agent.command(term=1)).then(
        "publish command.refused revision 2: term 1 is over; this agent has seen 2"
    )


def test_an_older_list_is_superseded_when_it_comes_late() -> None:
    agent = Agent().up().told(assignment(), revision=5)
    agent.when(agent.command(revision=4)).then("publish command.superseded revision 4 by 5")


def test_of_commands_that_waited_only_the_newest_is_acted_upon() -> None:
    agent = Agent().up()
    old = agent.command(assignment())
    agent.when(s.CommandReceived(old.sequence, old.command, superseded_by=2)).then(
        "publish command.superseded revision 1 by 2"
    )


def test_a_newer_list_supersedes_one_that_is_not_done() -> None:
    agent = Agent().serving("r1")
    agent.given(agent.command(assignment("r2")))
    agent.when(agent.command(assignment("r3", device=1))).then(
        "publish command.superseded revision 2 by 3",
        "publish replica.starting r3/0 attempt 1 on port 18101",
        "spawn r3/0 attempt 1 on port 18101",
    )


def test_a_new_leader_may_repeat_the_list() -> None:
    agent = Agent().serving("r1")
    agent.when(agent.command(assignment(), revision=1, term=2)).then(
        "publish command.done revision 1"
    )


def test_after_a_reboot_the_open_command_is_superseded_by_its_own_number() -> None:
    agent = Agent().serving("r1")
    agent.given(agent.command(assignment("r2")))
    next_agent = agent.restarted(rebooted=True)
    next_agent.when(next_agent.command(revision=3))
    assert published(next_agent)[0] == e.CommandSuperseded(revision=2, term=1, by=3)


def test_a_stop_says_which_list_it_followed() -> None:
    agent = Agent().serving("r1")
    agent.given(agent.command(revision=7)).when(exited())
    (stopped, _) = published(agent)
    assert isinstance(stopped, e.ReplicaStopped)
    assert stopped.revision == 7


def test_commands_of_the_controller_are_what_the_agent_takes() -> None:
    story = serving(entry("m", "cpu"), nodes=[joined("n1", processor())])
    command = story.records[-1]
    agent = Agent().up(has=story.state.nodes["n1"].inventory or None)  # type: ignore[arg-type]
    agent.when(s.CommandReceived(command.sequence, command.body))  # type: ignore[arg-type]
    story.given(*(From("n1", event) for event in published(agent)))
    assert story.state.replicas["r1"].parts[0].phase == "starting"
    assert story.state.nodes["n1"].ended == story.state.nodes["n1"].revision


def test_leaving_lets_the_engines_run() -> None:
    Agent().serving("r1").when(s.ShutdownRequested(stop_engines=False)).then(
        "publish node.stopped engines left running", "leave"
    )


def test_leaving_with_engines_waits_for_their_end() -> None:
    agent = Agent().serving("r1", "r2")
    agent.when(s.ShutdownRequested(stop_engines=True)).then(
        "count r1/0 attempt 1", "count r2/0 attempt 1"
    )
    agent.when(uncounted("r1"), uncounted("r2")).then("TERM r1/0 attempt 1", "TERM r2/0 attempt 1")
    agent.when(exited("r1")).then(
        "publish replica.stopped r1/0 attempt 1: the agent is shutting down"
    )
    agent.when(TICK, after=16).then("KILL r2/0 attempt 1")
    agent.when(exited("r2")).then(
        "publish replica.stopped r2/0 attempt 1: the agent is shutting down",
        "publish node.stopped engines stopped",
        "leave",
    )


def test_an_agent_that_stopped_its_engines_starts_them_again_when_it_comes_back() -> None:
    agent = Agent().serving("r1").given(s.ShutdownRequested(stop_engines=True), exited())
    agent.restarted().then(
        "publish node.started",
        "publish node.inventory",
        "publish replica.starting r1/0 attempt 2 on port 18100",
        "spawn r1/0 attempt 2 on port 18100",
    )


def test_while_leaving_a_process_that_is_just_being_made_is_stopped_too() -> None:
    agent = Agent().up().told(assignment()).given(s.ShutdownRequested(stop_engines=True))
    agent.when(s.EngineSpawned(start(), 77)).then("TERM r1/0 attempt 1")
