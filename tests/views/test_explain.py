"""The chain that led to how something stands: which records are in it, and what they say."""

from __future__ import annotations

import pytest

from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.fold import apply
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
from llmgw.testing.simulator import Simulation
from llmgw.views.chain import Chain
from llmgw.views.explain import Explanation, Explanations, explain
from llmgw.views.summaries import chosen

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


def test_what_devices_were_chosen_by_is_shown_as_it_was_recorded() -> None:
    story = serving(entry("m", gib=30, replicas=2), nodes=[joined("n1", card(0), card(1), card(2))])
    steps = [step for step in why(story, "m").steps if step.type == "replica.assigned"]
    recorded = [r.body.score for r in story.records if isinstance(r.body, e.ReplicaAssigned)]
    assert [step.score for step in steps] == recorded
    assert [(s.score["same_model"], s.score["left_free"]) for s in steps] == [(0, 2), (1, 1)]
    assert chosen(steps[0].score) == "18.0 GiB to spare, 2 left free beside"
    assert chosen(steps[1].score) == (
        "1 more of the model there, 18.0 GiB to spare, 1 left free beside"
    )


def test_a_score_is_told_in_the_order_in_which_its_parts_count_and_what_is_new_by_its_name() -> (
    None
):
    told = {"later": 7, "left_free": 0, "apart": 1, "same_model": 0, "labels": 2, "avoided": 1}
    assert chosen(told) == (
        "a device that is better avoided, 2 preferred labels missed, second choice by NVLink, "
        "0 left free beside, 7 later"
    )
    assert chosen({}) == ""


def test_a_model_without_a_place_is_explained_by_the_refusals_that_were_recorded() -> None:
    story = serving(entry("big", gib=47), nodes=[joined("n1", card(0, gib=40), card(1, gib=40))])
    found = why(story, "big")
    assert chain(found)[-1] == ("decision", "model.unplaced")
    assert found.steps[-1].refusals == {"too small by 7.0 GiB": 2}
    assert found.now == "model big: 0 of 1 ready; 1 without a place (2 too small by 7.0 GiB)"


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


def story_of(story: Story, sequence: int) -> Explanation:
    chain = Chain(sequence)
    for record in story.records:
        chain.take(record)
        if chain.complete:
            break
    found = chain.found()
    assert found is not None
    return found


def sequence_of(story: Story, kind: type) -> int:
    return next(r.sequence for r in story.records if isinstance(r.body, kind))


WHOLE = [
    ("event", "catalog.applied"),
    ("decision", "catalog.accepted"),
    ("decision", "replica.assigned"),
    ("command", "assignments.set"),
    ("outcome", "replica.starting"),
    ("outcome", "command.done"),
    ("outcome", "replica.ready"),
]


class TestARecord:
    def test_what_was_asked_for_is_followed_to_its_outcome(self) -> None:
        story = served().given(applied(M, entry("o", gib=10))).decided()
        found = story_of(story, sequence_of(story, e.CatalogApplied))
        assert chain(found) == WHOLE
        assert found.kind == "record"
        assert "led up to" in found.now
        assert "r1 answers at 127.0.0.1:18100" in found.now

    def test_a_decision_shows_its_ground_its_command_and_its_outcome(self) -> None:
        assert chain(story_of(served(), sequence_of(served(), e.ReplicaAssigned))) == WHOLE

    def test_an_outcome_shows_the_way_back(self) -> None:
        for kind in (e.ReplicaBecameReady, e.CommandCompleted):
            found = story_of(served(), sequence_of(served(), kind))
            assert chain(found)[:4] == WHOLE[:4]
            assert found.now.endswith("is where its chain ends")

    def test_a_command_shows_who_decided_it_and_its_end(self) -> None:
        found = story_of(served(), sequence_of(served(), SetAssignments))
        assert chain(found) == [*WHOLE[:4], ("outcome", "command.done")]

    def test_a_retirement_is_followed_until_nothing_runs(self) -> None:
        story = served().given(applied()).decided()
        last = len(story.records)
        story.given(
            e.ReplicaStopped(replica="r1", generation=1, reason="not wanted", revision=2),
            e.CommandCompleted(revision=2, term=1),
        )
        found = story_of(story, sequence_of(story, e.ReplicaRetired))
        assert chain(found)[-4:] == [
            ("decision", "replica.retired"),
            ("command", "assignments.set"),
            ("outcome", "replica.stopped"),
            ("outcome", "command.done"),
        ]
        assert last < found.steps[-1].sequence

    def test_a_lost_node_leads_to_where_its_replicas_went(self) -> None:
        nodes = [joined("n1", processor()), joined("n2", processor())]
        story = serving(M, nodes=nodes)
        story.given(e.NodeLost(term=1, node="n1", silent_seconds=20)).decided()
        found = story_of(story, sequence_of(story, e.NodeLost))
        assert chain(found) == [
            ("event", "catalog.applied"),
            ("event", "node.lost"),
            ("decision", "replica.assigned"),
            ("command", "assignments.set"),
        ]
        assert "r2 of m goes to n2" in found.steps[2].summary

    def test_a_fact_that_nothing_followed_says_so(self) -> None:
        story = served().given(From("n1", e.NodeStopped(engines="stopped")))
        found = story_of(story, len(story.records))
        assert (len(found.steps), found.now) == (1, "Record 13 has led to nothing yet")

    def test_a_void_decision_says_why(self) -> None:
        story = Story().given(*joined("n1", processor()), elected(), applied(M))
        story.given(*story.decisions())
        (assigned,) = story.decisions()
        story.given(elected(2, "b"), assigned)
        found = story_of(story, len(story.records))
        assert found.steps[-1].void == "term 1 does not lead; 2 does"

    def test_every_record_of_a_long_story_has_a_chain_that_holds_it(self) -> None:
        simulation = Simulation(7)
        simulation.run()
        records = [simulation.log.record(n) for n in range(len(simulation.log.messages))]
        for sequence in range(1, len(records) + 1, 17):
            chain = Chain(sequence)
            for record in records:
                chain.take(record)
            found = chain.found()
            assert found is not None
            assert sequence in [step.sequence for step in found.steps]


class TestClosely:
    def test_each_record_says_what_it_changed(self) -> None:
        touching = Explanations("r1", closely=True)
        for record in failed().records:
            touching.take(record)
        found = touching.found()
        assert found is not None
        changes = {step.type: step.changed for step in found.steps}
        assert changes["replica.assigned"] == ("new",)
        assert "phase: assigned → starting" in changes["replica.starting"]
        assert "phase: ready → failed" in changes["replica.failed"]
        assert changes["assignments.set"] == ()

    def test_a_model_and_a_node_are_followed_too(self) -> None:
        for name, kind, change in (
            ("m", "replica.ready", "ready: 0 → 1"),
            ("n1", "command.done", "command: waiting → done"),
        ):
            touching = Explanations(name, closely=True)
            for record in failed().records:
                touching.take(record)
            found = touching.found()
            assert found is not None
            assert change in next(step.changed for step in found.steps if step.type == kind)


ENDS_OF_COMMANDS = {"command.done", "command.refused", "command.superseded"}
"""Of which command they are the end is not known where that was before."""


def folded(story: Story, upto: int) -> Cluster:
    state = Cluster()
    for record in story.records[:upto]:
        apply(state, record)
    return state


@pytest.mark.parametrize("name", ["r1", "r2", "m", "n1", "n2"])
def test_what_a_state_on_the_way_is_told_to_is_the_rest_of_the_whole_story(name: str) -> None:
    story = served().given(applied(entry("m", "cpu", gib=5, replicas=2))).decided()
    story.given(e.NodeLost(term=1, node="n1", silent_seconds=20)).decided()
    whole = Explanations(name, closely=True)
    for record in story.records:
        whole.take(record)
    found = whole.found()
    steps = found.steps if found is not None else ()
    for upto in range(1, len(story.records) + 1):
        rest = Explanations(name, closely=True, state=folded(story, upto))
        for record in story.records[upto:]:
            rest.take(record)
        known = rest.found()
        told = () if known is None else known.steps
        wanted = [s for s in steps if s.sequence > upto and s.type not in ENDS_OF_COMMANDS]
        assert [s for s in told if s.type not in ENDS_OF_COMMANDS] == wanted
    if found is not None:
        assert known is not None
        assert (known.now, known.steps) == (found.now, ())


def failed() -> Story:
    return served().given(
        e.ReplicaFailed(
            replica="r1", generation=1, reason="exit code 1", output="boom\nbang", retry_seconds=1
        )
    )


def test_the_last_output_of_what_failed_is_part_of_the_story() -> None:
    for name in ("r1", "m", "n1"):
        assert why(failed(), name).outputs == {"r1": "boom\nbang"}
    assert why(served(), "r1").outputs == {}
