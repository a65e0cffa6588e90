"""The fold: each record changes what it should, and nothing else."""

from __future__ import annotations

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.cluster import KEPT_INCIDENTS, KEPT_SESSIONS, Cluster, Part
from llmgw.core.fold import apply
from llmgw.core.records import NewerVersion, Record, UnknownType, Unreadable
from llmgw.testing.builders import (
    CLUSTER,
    TIME,
    From,
    Story,
    applied,
    card,
    elected,
    entry,
    inventory,
    joined,
    processor,
    serving,
    started,
)
from llmgw.testing.invariants import snapshot
from llmgw.views import nodes

ONE = entry("m", "cpu")


def one_replica() -> Story:
    return serving(ONE, nodes=[joined("n1", processor())])


def part(story: Story, replica: str = "r1") -> Part:
    return story.state.replicas[replica].parts[0]


def test_a_node_is_there_with_its_devices_after_it_said_so() -> None:
    node = Story().given(*joined("n1", card(0), processor())).state.nodes["n1"]
    assert (node.started, node.boot_id, sorted(node.devices)) == (True, "b1", [0, 900])


def test_an_event_that_comes_twice_changes_nothing() -> None:
    story = Story().given(started())
    before = story.state.nodes["n1"]
    story.append(story.log[-1])
    assert story.state.nodes["n1"] == before
    assert (story.state.duplicates, story.state.sequence) == (1, 2)


def test_an_operators_event_that_comes_twice_is_one_wish() -> None:
    story = Story().given(applied(ONE))
    story.append(story.log[-1])
    assert (story.state.pending_sequence, story.state.duplicates) == (1, 1)


def test_events_of_many_sessions_are_told_apart_and_few_sessions_are_kept() -> None:
    story = Story()
    for session in range(20):
        message = wire.encode_event(
            CLUSTER, started(), node="n1", session=f"s{session}", number=1, time=TIME
        )
        story.append(message)
    assert story.state.duplicates == 0
    assert len(story.state.nodes["n1"].sessions) == KEPT_SESSIONS


def test_what_cannot_be_read_is_counted_and_shown() -> None:
    story = Story().given(started())
    story.append(story.log[-1]._replace(payload=b"{}"))
    assert story.state.unreadable == 1
    assert story.state.incidents[-1].detail.startswith("llmgw.v1.c.event.node.n1.node.started: ")


def test_an_unknown_type_is_counted_and_skipped() -> None:
    state = Cluster()
    apply(state, Record(1, 1, "node", "n1", "", 0, UnknownType("node.sang")))
    assert (state.unknown, state.nodes) == (1, {})


def test_a_newer_version_stops_deciding_and_not_viewing() -> None:
    story = Story().given(elected(), applied(ONE))
    newer = NewerVersion("node.started", 2)
    apply(story.state, Record(3, 3, "node", "n1", "", 0, newer))
    assert story.decisions() == []
    story.state.sequence = 2  # the story's log does not hold the record
    assert story.given(started()).state.nodes["n1"].started
    assert story.state.needs_upgrade == "node.started version 2"


def test_few_incidents_are_kept() -> None:
    state = Cluster()
    for sequence in range(300):
        body = Unreadable("s", "r")
        apply(state, Record(sequence, 0, "operator", "", "", 0, body))
    assert (len(state.incidents), state.unreadable) == (KEPT_INCIDENTS, 300)


def test_the_life_of_a_replica_is_what_its_agent_says() -> None:
    story = one_replica()
    phases = [part(story).phase]
    for event in (
        e.ReplicaStarting(replica="r1", generation=1, port=18100, devices=(900,)),
        e.ReplicaBecameReady(
            replica="r1", generation=1, address="127.0.0.1", port=18100, pid=7, seconds=1
        ),
        e.ReplicaFailed(replica="r1", generation=1, reason="it fell", retry_seconds=1),
    ):
        story.given(event)
        phases.append(part(story).phase)
    assert phases == ["assigned", "starting", "ready", "failed"]
    assert (part(story).failures, part(story).reason, part(story).pid) == (1, "it fell", None)


def test_a_ready_replica_has_no_old_reason() -> None:
    story = one_replica().given(
        e.ReplicaFailed(replica="r1", generation=1, reason="it fell", retry_seconds=1), ready()
    )
    assert part(story).reason is None


def test_an_unexpected_move_is_followed_and_counted() -> None:
    story = one_replica().given(ready())
    assert (part(story).phase, story.state.unexpected) == ("ready", 1)


def test_an_event_of_another_node_says_nothing_of_a_replica() -> None:
    story = one_replica().given(From("n2", ready()))
    assert part(story).phase == "assigned"


def test_an_event_of_another_generation_says_nothing_of_a_replica() -> None:
    story = one_replica().given(
        e.ReplicaFailed(replica="r1", generation=2, reason="it fell", retry_seconds=1)
    )
    assert part(story).phase == "assigned"


def test_an_engine_that_nobody_wants_is_seen_and_a_command_without_it_follows() -> None:
    story = Story().given(*joined("n1", processor()), elected(), applied()).decided()
    stray = e.ReplicaStarting(replica="r9", generation=1, port=18100, devices=(900,))
    story.given(stray).then("command n1 revision 1: nothing")
    assert story.state.nodes["n1"].strays == {"r9/0": (900,)}


def test_a_stray_is_over_when_its_agent_says_so() -> None:
    story = Story().given(*joined("n1", processor()), elected(), ready("r9"))
    story.given(e.ReplicaStopped(replica="r9", generation=1, reason="not wanted"))
    assert story.state.nodes["n1"].strays == {}


def test_a_stray_of_which_nothing_is_heard_again_is_over_when_the_next_list_is_done() -> None:
    story = Story().given(*joined("n1", processor()), elected(), ready("r9")).decided()
    story.given(e.CommandCompleted(revision=1, term=1))
    assert story.state.nodes["n1"].strays == {}


def test_a_reboot_loses_what_ran_and_asks_for_a_new_command() -> None:
    story = one_replica().given(ready()).given(started("b2"))
    assert (part(story).phase, part(story).reason) == ("lost", "the machine restarted")
    story.then("command n1 revision 2: r1/0 on cpu")


def test_an_agent_that_merely_restarts_loses_nothing() -> None:
    story = one_replica().given(ready(), started("b1"))
    assert part(story).phase == "ready"
    story.then()


def test_a_retired_replica_is_forgotten_when_it_was_stopped_for_that() -> None:
    story = one_replica().given(ready(), applied()).decided()
    stopped = e.ReplicaStopped(replica="r1", generation=1, reason="not wanted", revision=2)
    story.given(stopped)
    assert (story.state.replicas, story.state.nodes["n1"].held) == ({}, {})


def test_a_retired_replica_is_forgotten_when_its_command_is_done() -> None:
    story = one_replica().given(applied()).decided().given(e.CommandCompleted(revision=2, term=1))
    assert (story.state.replicas, story.state.nodes["n1"].held) == ({}, {})


def test_a_retired_replica_that_may_come_back_with_its_agent_keeps_its_memory() -> None:
    story = one_replica().given(ready(), applied()).decided()
    leaving = e.ReplicaStopped(replica="r1", generation=1, reason="leaving", revision=1)
    story.given(leaving, e.CommandCompleted(revision=1, term=1))
    assert story.state.nodes["n1"].held != {}
    assert part(story).phase == "stopped"


def test_a_stopping_replica_is_not_ready_again_by_an_event_that_was_under_way() -> None:
    story = one_replica().given(applied()).decided().given(ready())
    assert part(story).phase == "stopping"


def test_a_command_of_an_older_term_is_void_and_followed_by_a_newer_one() -> None:
    story = one_replica()
    command = story.log[-1]
    story.given(elected(2, "b"))
    story.append(command)
    assert story.state.void == 1
    story.then("command n1 revision 2: r1/0 on cpu")


def test_a_refusal_of_a_void_command_is_not_held_against_the_node() -> None:
    story = one_replica().given(elected(2, "b"), started("b2")).decided()
    story.given(e.CommandRefused(revision=1, term=1, reason="term 1 is over"))
    assert story.state.nodes["n1"].refused is None


def test_a_command_that_its_agent_refuses_is_shown() -> None:
    story = one_replica().given(e.CommandRefused(revision=1, term=1, reason="no"))
    node = story.state.nodes["n1"]
    assert (node.refused, node.ended) == ("no", 1)
    story.given(e.CommandCompleted(revision=1, term=1))
    assert story.state.nodes["n1"].refused is None


def test_cards_that_swap_numbers_keep_their_replicas_by_uuid() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0), card(1))])
    swapped = inventory("n1", card(0, uuid="GPU-1"), card(1, uuid="GPU-0"))
    story.given(started("b2"), e.NodeInventoryTaken(inventory=swapped))
    assert part(story).devices == (1,)
    story.then("command n1 revision 2: r1/0 on 1")
    story.given(applied(entry("m"), entry("o"))).decided()
    assert part(story, "r2").devices == (0,)


def test_a_command_names_the_device_that_was_given_even_when_it_is_gone() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0))]).given(ready())
    story.given(e.NodeInventoryTaken(inventory=inventory("n1")))
    story.given(e.ReplicaStarting(replica="r9", generation=1, port=1, devices=())).decided()
    (given,) = story.records[-1].body.assignments[0].grants  # type: ignore[union-attr]
    assert given.uuid == "GPU-0"


def test_time_may_go_backwards() -> None:
    story = Story().given(started())
    message = story.encode(started("b2"))
    apply(story.state, wire.decode(2, -5, message.subject, message.payload))
    assert story.state.time_ns == -5


def test_two_folds_of_one_log_are_the_same() -> None:
    story = one_replica().given(ready(), started("b2")).decided()
    again = Cluster()
    for record in story.records:
        apply(again, record)
    assert snapshot(again) == snapshot(story.state)


def ready(replica: str = "r1") -> e.ReplicaBecameReady:
    return e.ReplicaBecameReady(
        replica=replica, generation=1, address="127.0.0.1", port=18100, pid=7, seconds=1
    )


def test_two_agents_under_one_name_are_seen_and_given_nothing_more() -> None:
    story = serving(entry("m", "cpu", gib=4), nodes=[joined("n1", processor())])
    first = story.state.nodes["n1"].session

    def say(session: str, number: int) -> None:
        event = e.CommandSuperseded(revision=0, term=1, by=1)
        story.append(
            wire.encode_event(CLUSTER, event, node="n1", session=session, number=number, time=TIME)
        )

    say("second", 1)
    assert nodes(story.state)[0].warnings == ()  # an agent that came up anew
    say(first, 100)
    assert "two agents" in story.state.incidents[-1].detail
    assert "LLMGW_NODE" in nodes(story.state)[0].warnings[0]
    story.given(applied(entry("m", "cpu", gib=4, replicas=2))).decided()
    assert story.state.models["m"].refusals == {"node name used by two agents": 1}
    say("third", 1)
    story.decided()
    assert story.state.models["m"].missing == 0


def test_an_event_that_is_missing_is_seen_by_the_number_of_the_next() -> None:
    story = Story().given(*joined("n1", card(0)))
    lost = story.encode(From("n1", e.NodeConditionsChanged(conditions=())))
    assert lost.subject
    story.given(From("n1", e.NodeConditionsChanged(conditions=())))
    assert story.state.gaps == 1
    assert story.state.incidents[-1].detail == "events of n1 are missing before this one: 1"


def test_an_outcome_of_a_command_that_was_never_given_ends_nothing() -> None:
    story = Story().given(*joined("n1", card(0)), e.CommandCompleted(revision=2**53 - 1, term=0))
    assert story.state.nodes["n1"].ended == 0
