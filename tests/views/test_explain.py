"""The chain that led to how something stands: which records are in it, and what they say."""

from __future__ import annotations

from llmgw.core import events as e
from llmgw.testing.builders import (
    From,
    Story,
    applied,
    card,
    elected,
    entry,
    joined,
    processor,
    serving,
)
from llmgw.views.explain import Explanation, explain

M = entry("m", "cpu", gib=5)
READY = e.ReplicaBecameReady(
    replica="r1", generation=1, address="127.0.0.1", port=18100, pid=7, seconds=1
)


def why(story: Story, name: str) -> Explanation:
    found = explain(story.records, name)
    assert found is not None
    return found


def chain(found: Explanation) -> list[tuple[str, str]]:
    return [(step.kind, step.type) for step in found.steps]


def served() -> Story:
    """One replica of one model, ready; and a node that has nothing to do with it."""
    story = serving(M, nodes=[joined("n1", processor()), joined("n2", card(0))])
    done = e.CommandCompleted(revision=1, term=1)
    starting = e.ReplicaStarting(replica="r1", generation=1, port=18100, devices=(900,))
    return story.given(starting, done, READY)


def test_a_replica_is_explained_from_the_catalog_to_its_engine() -> None:
    found = why(served(), "r1")
    assert chain(found) == [
        ("event", "catalog.applied"),
        ("decision", "catalog.accepted"),
        ("decision", "replica.assigned"),
        ("command", "assignments.set"),
        ("outcome", "replica.starting"),
        ("outcome", "command.done"),
        ("outcome", "replica.ready"),
    ]
    assert (found.kind, found.now) == ("replica", "replica r1 of m is ready on n1, cpu")
    assigned = found.steps[2]
    assert assigned.because == (found.steps[0].sequence, found.steps[1].sequence)
    assert assigned.reasons == ("n1: cpu of class cpu (asked: cpu)",)


def test_a_model_without_a_place_is_explained_by_the_refusals_that_were_recorded() -> None:
    story = serving(entry("big", gib=100), nodes=[joined("n1", card(0), card(1))])
    found = why(story, "big")
    assert chain(found)[-1] == ("decision", "model.unplaced")
    assert found.steps[-1].refusals == {"too small by 52.0 GiB": 2}
    assert found.now == "model big: 0 of 1 ready; 1 without a place (2 too small by 52.0 GiB)"


def test_a_model_brings_the_chains_of_its_replicas_and_no_others() -> None:
    story = served().given(applied(M, entry("o", gib=10))).decided()
    found = why(story, "m")
    assert {step.type for step in found.steps} >= {"replica.assigned", "replica.ready"}
    assert not [step for step in found.steps if " of o " in step.summary]
    assert found.now == "model m: 1 of 1 ready"


def test_a_node_is_explained_by_what_it_said_and_what_was_put_there() -> None:
    story = served().given(e.NodeLost(term=1, node="n1", silent_seconds=20)).decided()
    found = why(story, "n1")
    types = [step.type for step in found.steps]
    assert types[:2] == ["node.started", "node.inventory"]
    assert types[-1] == "node.lost"
    assert "replica.assigned" in types
    assert found.now == "node n1 is lost and holds r1"
    assert "n2" not in {step.node for step in found.steps}


def test_a_replica_that_is_gone_still_has_its_story() -> None:
    story = served().given(applied()).decided()
    story.given(e.CommandCompleted(revision=2, term=1))
    found = why(story, "r1")
    assert chain(found)[-3:] == [
        ("decision", "replica.retired"),
        ("command", "assignments.set"),
        ("outcome", "command.done"),
    ]
    assert found.steps[-3].reasons == ("its model left the catalog",)
    assert found.now == "replica r1 is not there any more"


def test_a_decision_that_is_void_says_why() -> None:
    story = Story().given(*joined("n1", processor()), elected(), applied(M))
    story.given(*story.decisions())
    (assigned,) = story.decisions()
    story.given(elected(2, "b"), assigned).decided()
    found = why(story, "r1")
    assert [step.void for step in found.steps if step.type == "replica.assigned"] == [
        "term 1 does not lead; 2 does",
        None,
    ]


def test_a_refused_command_is_its_outcome() -> None:
    story = serving(M, nodes=[joined("n1", processor())])
    story.given(From("n1", e.CommandRefused(revision=1, term=1, reason="no such device")))
    found = why(story, "r1")
    assert chain(found)[-1] == ("outcome", "command.refused")
    assert "no such device" in found.steps[-1].summary


def test_what_the_log_does_not_know_has_no_explanation() -> None:
    assert explain(served().records, "nobody") is None
    assert explain([], "r1") is None
