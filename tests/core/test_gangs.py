"""A replica over several nodes: its parts are told to start, and start again, as one."""

from __future__ import annotations

from llmgw.core import events as e
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.testing.builders import From, Story, applied, card, elected, entry, joined

GANG = entry("m", engine="vllm", nodes=2, gpus=2, pp=2)


def placed() -> Story:
    """A gang over n1 and n2, assigned and commanded."""
    story = Story().given(*joined("n1", card(0)), *joined("n2", card(0)), elected())
    return story.given(applied(GANG)).decided()


def told(story: Story, node: str) -> list[Assignment]:
    """Return the newest command for a node."""
    bodies = [record.body for record in story.records]
    commands = [b for b in bodies if isinstance(b, SetAssignments) and b.node == node]
    return list(commands[-1].assignments) if commands else []


def starting(story: Story, node: str, part: int, generation: int = 1) -> None:
    meeting = 29500 if part == 0 else None
    begun = e.ReplicaStarting(
        replica="r1", part=part, generation=generation, port=1, devices=(0,), meeting_port=meeting
    )
    story.given(From(node, begun)).decided()


def failed(story: Story, node: str, part: int, generation: int = 1) -> None:
    ended = e.ReplicaFailed(
        replica="r1", part=part, generation=generation, reason="it fell", retry_seconds=1
    )
    story.given(From(node, ended)).decided()


def test_the_first_part_starts_alone_and_the_others_once_it_says_where_to_meet() -> None:
    story = placed()
    (first,) = told(story, "n1")
    assert (first.part, first.parts, first.leader) == (0, 2, None)
    assert told(story, "n2") == []
    starting(story, "n1", 0)
    (second,) = told(story, "n2")
    assert (second.part, second.leader) == (1, "127.0.0.1:29500")


def test_when_one_part_ends_all_start_again_as_a_new_generation() -> None:
    story = placed()
    starting(story, "n1", 0)
    starting(story, "n2", 1)
    failed(story, "n2", 1)
    replica = story.state.replicas["r1"]
    assert (replica.generation, replica.regroups) == (2, 1)
    (first,) = told(story, "n1")
    assert (first.generation, first.failures) == (2, 1)
    assert told(story, "n2") == []
    starting(story, "n1", 0, generation=2)
    assert told(story, "n2")[0].generation == 2


def test_what_the_old_generation_still_says_changes_nothing() -> None:
    story = placed()
    starting(story, "n1", 0)
    failed(story, "n1", 0)
    failed(story, "n1", 0)
    assert story.state.replicas["r1"].generation == 2


def test_a_retired_gang_is_not_started_again_by_its_own_end() -> None:
    story = placed()
    starting(story, "n1", 0)
    story.given(applied()).decided()
    for node, part in (("n1", 0), ("n2", 1)):
        revision = story.state.nodes[node].revision
        stopped = e.ReplicaStopped(
            replica="r1", part=part, generation=1, reason="", revision=revision
        )
        story.given(From(node, stopped))
    assert story.state.replicas == {}


def test_a_machine_that_restarts_takes_its_gang_to_a_new_generation() -> None:
    story = placed()
    starting(story, "n1", 0)
    starting(story, "n2", 1)
    story.given(*joined("n2", card(0), boot="b2")).decided()
    assert story.state.replicas["r1"].generation == 2


def test_a_first_part_that_runs_and_never_said_where_to_meet_starts_again() -> None:
    """Its agent lost its folder, and with it what it had not sent."""
    story = placed()
    found = e.ReplicaAdopted(replica="r1", part=0, generation=1, pid=7, port=1)
    story.given(From("n1", found)).decided()
    (first,) = told(story, "n1")
    assert first.generation == 2
    starting(story, "n1", 0, generation=2)
    assert told(story, "n2")[0].leader == "127.0.0.1:29500"
