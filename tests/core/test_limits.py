"""What is too much is refused where it is asked for, and stops nothing else."""

from __future__ import annotations

from llmgw.catalog.entries import Catalog
from llmgw.catalog.problems import problems
from llmgw.catalog.rules import MOST_REPLICAS, MOST_TEXT_BYTES
from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import MOST_PLACED_AT_ONCE
from llmgw.core.memory import Policy
from llmgw.core.placement import MOST_REPLICAS_ON_A_NODE
from llmgw.testing.builders import Fact, Story, applied, elected, entry, joined, processor, serving
from llmgw.testing.invariants import check
from llmgw.wire import MAX_PAYLOAD_BYTES
from tests.core.agent import Agent, assignment, published


def test_an_entry_that_says_too_much_is_named() -> None:
    wordy = entry("m", args=("x" * MOST_TEXT_BYTES,))
    assert any("put long values into a file" in line for line in problems(Catalog(models=(wordy,))))


def test_a_slip_of_the_finger_in_replicas_is_named() -> None:
    many = entry("m", replicas=MOST_REPLICAS + 1)
    assert any("too many" in line for line in problems(Catalog(models=(many,))))


def test_a_node_takes_no_more_replicas_than_one_command_can_list() -> None:
    wordy = entry("m", "cpu", gib=0.001, replicas=80, args=("x" * (MOST_TEXT_BYTES - 10),))
    story = Story().given(*joined("n1", processor(64)), elected(), applied(wordy)).decided()
    assert len(story.state.replicas) == MOST_REPLICAS_ON_A_NODE
    assert story.state.models["m"].refusals == {"on a node with 64 replicas": 1}
    check(story.state)
    command = story.log[-1]
    assert command.subject.endswith(".command.n1")
    assert len(command.payload) < MAX_PAYLOAD_BYTES


def test_many_replicas_are_decided_in_answers_that_take_a_moment() -> None:
    nodes: list[Fact] = []
    for number in range(6):
        nodes += joined(f"n{number}", processor(64))
    story = Story().given(*nodes, elected(), applied(entry("m", "cpu", gib=0.1, replicas=300)))
    story.given(e.CatalogAccepted(term=1, at=story.state.sequence, request=story.state.sequence))
    first = story.decisions()
    assert len(first) == MOST_PLACED_AT_ONCE
    story.decided()
    assert len(story.state.replicas) == 300
    assert story.state.models["m"].missing == 0


def test_a_command_that_nobody_decided_is_void_and_the_node_is_told_again() -> None:
    story = serving(entry("m", "cpu"), nodes=[joined("n1", processor())])
    forged = SetAssignments(node="n1", revision=9_000, term=story.state.term, at=1)
    story.given(forged)
    assert story.state.incidents[-1].detail == "n1 was never to have revision 9000"
    (again,) = story.decisions()
    assert isinstance(again, SetAssignments)
    assert again.revision == 9_001
    assert [a.replica for a in again.assignments] == ["r1"]


def test_when_every_port_is_held_the_failure_says_so() -> None:
    agent = Agent(policy=Policy(first_port=18100, last_port=18100)).up()
    effects = agent.told(assignment(), assignment("r2", device=1)).effects
    failed = [event for event in published(agent) if isinstance(event, e.ReplicaFailed)]
    assert len(failed) == 1, effects
    assert "widen LLMGW_PORT_RANGE" in failed[0].reason
