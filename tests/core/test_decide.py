"""Decisions: what should happen in a state, and that it comes to rest."""

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

M = entry("m", "cpu", gib=5)
BIG = entry("big", gib=40)


def ready(story: Story, *replicas: str) -> Story:
    """Have these replicas become ready where they are."""
    for name in replicas:
        node = story.state.replicas[name].parts[0].node
        story.given(
            From(
                node,
                e.ReplicaBecameReady(
                    replica=name, generation=1, address="127.0.0.1", port=18100, pid=7, seconds=1
                ),
            )
        )
    return story


def stopped(story: Story, *replicas: str) -> Story:
    """Have these replicas stopped as their node was told."""
    for name in replicas:
        node = story.state.replicas[name].parts[0].node
        revision = story.state.nodes[node].revision
        gone = e.ReplicaStopped(replica=name, generation=1, reason="not wanted", revision=revision)
        story.given(From(node, gone))
    return story


def test_without_a_leader_nothing_is_decided() -> None:
    Story().given(*joined("n1", processor()), applied(M)).then()


def test_a_catalog_is_answered_first() -> None:
    Story().given(*joined("n1", processor()), elected()).when(applied(M)).then("accept catalog 4")


def test_a_catalog_that_is_not_valid_is_rejected_with_every_reason() -> None:
    story = Story().given(elected(), applied(M, M, entry("bad", gpus=0)))
    (rejected,) = story.decisions()
    assert isinstance(rejected, e.CatalogRejected)
    assert len(rejected.reasons) >= 2
    story.decided()
    assert (story.state.pending, story.state.catalog.models) == (None, ())


def test_an_accepted_model_is_placed_and_its_node_told() -> None:
    story = Story().given(*joined("n1", processor()), elected(), applied(M))
    story.when(*story.decisions()).then("assign r1 of m to n1 cpu")
    story.when(*story.decisions()).then("command n1 revision 1: r1/0 on cpu")
    story.when(*story.decisions()).then()


def test_a_model_that_fits_nowhere_is_said_once_with_the_counts() -> None:
    story = serving(nodes=[joined("n1", card(0), card(1))])
    story.when(applied(entry("m", "l40s-*", gib=52.2))).decided()
    assert story.records[-1].body == e.ModelLeftUnplaced(
        term=1, at=5 + 2, model="m", missing=1, refusals={"too small by 4.2 GiB": 2}
    )
    story.when(joined("n1", card(0), card(1))[1]).then()


def test_a_model_is_placed_as_soon_as_a_device_for_it_comes() -> None:
    story = serving(M, nodes=[joined("n1", card(0))])
    story.when(*joined("n2", processor())).then("assign r1 of m to n2 cpu", "m lacks 0: nothing")


def test_more_replicas_are_added() -> None:
    story = ready(serving(M, nodes=[joined("n1", processor())]), "r1")
    story.given(applied(entry("m", "cpu", gib=5, replicas=2)))
    story.when(*story.decisions()).then("assign r2 of m to n1 cpu")


def test_fewer_replicas_retire_the_newest_and_rather_one_that_is_not_ready() -> None:
    three = entry("m", "cpu", gib=5, replicas=3)
    story = ready(serving(three, nodes=[joined("n1", processor())]), "r1", "r3")
    story.given(applied(entry("m", "cpu", gib=5, replicas=2)))
    story.when(*story.decisions()).then("retire r2: more than the 2 wanted")
    story.given(applied(M)).decided()
    assert [r.name for r in story.state.replicas.values() if r.retired is None] == ["r1"]


def test_a_model_that_left_the_catalog_is_retired() -> None:
    story = serving(M, nodes=[joined("n1", processor())]).given(applied())
    story.when(*story.decisions()).then("retire r1: its model left the catalog")
    story.when(*story.decisions()).then("command n1 revision 2: nothing")


def test_a_changed_entry_is_served_anew_before_the_old_one_goes() -> None:
    story = ready(serving(M, nodes=[joined("n1", processor())]), "r1")
    story.given(applied(entry("m", "cpu", gib=6))).decided()
    assert story.state.replicas["r1"].retired is None
    ready(story, "r2").then("retire r1: its entry changed")


def test_a_number_of_replicas_is_no_change_of_the_entry() -> None:
    story = ready(serving(M, nodes=[joined("n1", processor())]), "r1")
    story.given(applied(entry("m", "cpu", gib=5, replicas=2))).decided()
    assert all(r.retired is None for r in story.state.replicas.values())


def test_an_old_replica_goes_first_when_it_stands_in_the_way() -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0))]), "r1")
    story.given(applied(entry("m", gib=20))).decided()
    assert story.state.replicas["r1"].retired == "it stands in the way of the changed entry"
    stopped(story, "r1").then("assign r2 of m to n1 0", "m lacks 0: nothing")


def test_no_more_old_replicas_go_than_stand_in_the_way() -> None:
    three = entry("m", replicas=3)
    story = serving(three, nodes=[joined("n1", card(0), card(1), card(2), card(3))])
    ready(story, "r1", "r2", "r3").given(applied(entry("m", gib=20, replicas=2))).decided()
    retired = [r.name for r in story.state.replicas.values() if r.retired is not None]
    assert retired == ["r3"], "two are wanted, and its card is enough for the second new one"
    stopped(story, *retired).decided()
    ready(story, "r4").then("retire r2: its entry changed")
    ready(story.decided(), "r5").then("retire r1: its entry changed")


def test_an_old_replica_serves_on_when_a_changed_entry_fits_nowhere() -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0))]), "r1")
    story.given(applied(entry("m", "h100-80g"))).decided()
    assert story.state.replicas["r1"].retired is None
    assert story.state.models["m"].missing == 1


def test_with_each_new_replica_one_old_one_goes() -> None:
    two = entry("m", "cpu", gib=2, replicas=2)
    story = ready(serving(two, nodes=[joined("n1", processor())]), "r1", "r2")
    story.given(applied(entry("m", "cpu", gib=3, replicas=2))).decided()
    ready(story, "r3").then("retire r2: its entry changed")
    ready(story.decided(), "r4").then("retire r1: its entry changed")


def test_a_replica_of_a_lost_node_is_replaced_and_one_goes_when_the_node_returns() -> None:
    nodes = [joined("n1", processor()), joined("n2", processor())]
    story = ready(serving(M, nodes=nodes), "r1")
    story.when(e.NodeLost(term=1, node="n1", silent_seconds=20)).then("assign r2 of m to n2 cpu")
    story.decided().when(e.NodeReturned(term=1, node="n1")).then(
        "retire r2: more than the 1 wanted"
    )


def test_when_the_only_node_is_lost_the_model_waits_for_it() -> None:
    story = ready(serving(M, nodes=[joined("n1", processor())]), "r1")
    story.when(e.NodeLost(term=1, node="n1", silent_seconds=20)).then("m lacks 1: 1 node lost")
    story.decided().when(e.NodeReturned(term=1, node="n1")).then("m lacks 0: nothing")


def test_a_stopped_node_is_told_when_it_comes_back() -> None:
    story = ready(serving(M, nodes=[joined("n1", processor())]), "r1")
    story.given(e.NodeStopped(engines="left running"), applied()).decided()
    story.when(joined("n1")[0]).then("command n1 revision 2: nothing")


def test_a_new_leader_repeats_nothing_that_was_said() -> None:
    serving(M, nodes=[joined("n1", processor())]).when(elected(2, "b")).then()


def test_a_new_leader_sends_what_the_old_one_decided_and_did_not_send() -> None:
    story = Story().given(*joined("n1", processor()), elected(), applied(M))
    story.given(*story.decisions()).given(*story.decisions())
    story.when(elected(2, "b")).then("command n1 revision 1: r1/0 on cpu")


def test_models_are_served_in_the_order_of_the_catalog() -> None:
    story = serving(BIG, entry("o", gib=40), nodes=[joined("n1", card(0))])
    assert [r.model for r in story.state.replicas.values()] == ["big"]
    assert story.state.models["o"].refusals == {"in use": 1}
