"""What an operator asks for beside a catalog, and what comes of it: scale, drain, restart, rank."""

from __future__ import annotations

import pytest

from llmgw.core import events as e
from llmgw.testing.builders import From, Story, applied, card, elected, entry, joined, serving


def ready(*names: str, story: Story, node: str = "n1", generation: int = 1) -> None:
    for name in names:
        told = e.ReplicaBecameReady(
            replica=name, generation=generation, address="a", port=1, pid=1, seconds=1
        )
        story.given(From(node, told))


def starting(story: Story, *, generation: int) -> None:
    begun = e.ReplicaStarting(replica="r1", generation=generation, port=1, devices=(0,))
    story.given(From("n1", begun))


def phase(story: Story) -> str:
    return story.state.replicas["r1"].parts[0].phase


def gone(name: str, story: Story, node: str = "n1") -> None:
    revision = story.state.nodes[node].revision
    stopped = e.ReplicaStopped(replica=name, generation=1, reason="enough", revision=revision)
    story.given(From(node, stopped))


def where(story: Story) -> dict[str, str]:
    """Return the node of every replica that is wanted."""
    replicas = story.state.replicas.values()
    return {r.name: r.parts[0].node for r in replicas if r.retired is None}


# --- scale and delete ---------------------------------------------------------------------------


def test_scaling_up_places_more_and_scaling_to_zero_stops_all() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0), card(1))])
    story.given(e.ModelScaled(model="m", replicas=2)).decided()
    assert len(where(story)) == 2
    story.given(e.ModelScaled(model="m", replicas=0)).decided()
    assert where(story) == {}
    assert story.state.models["m"].missing == 0
    story.given(e.ModelScaled(model="m", replicas=1))
    gone("r1", story)
    gone("r2", story)
    assert len(where(story.decided())) == 1


def test_the_next_catalog_ends_what_was_scaled() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0), card(1))])
    story.given(e.ModelScaled(model="m", replicas=2)).decided()
    story.given(applied(entry("m"))).decided()
    assert len(where(story)) == 1


def test_a_deleted_model_is_stopped_and_is_in_no_catalog() -> None:
    story = serving(entry("m"), entry("o"), nodes=[joined("n1", card(0), card(1))])
    story.given(e.ModelDeleted(model="m")).decided()
    assert [x.name for x in story.state.catalog.models] == ["o"]
    assert [story.state.replicas[name].model for name in where(story)] == ["o"]


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (e.ModelScaled(model="x", replicas=1), "x cannot be scaled"),
        (e.ModelScaled(model="m", replicas=20_000), "m cannot be scaled to 20000: 10000 at most"),
        (e.ModelDeleted(model="x"), "x cannot be deleted"),
        (e.NodeCordoned(node="n9"), "no node n9 is known"),
        (e.NodeDrained(node="n9"), "no node n9 is known"),
        (e.NodeUncordoned(node="n9"), "no node n9 is known"),
        (e.ReplicaRestartAsked(replica="r9"), "r9 cannot be restarted"),
    ],
)
def test_what_cannot_be_is_void_and_said(wish: e.Event, why: str) -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0))])
    story.given(wish)
    assert story.state.void == 1
    assert story.state.incidents[-1].detail.startswith(why)
    story.then()


def test_a_wish_that_comes_twice_is_granted_once() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0))])
    story.given(e.ReplicaRestartAsked(replica="r1"))
    story.append(story.log[-1])
    assert story.state.replicas["r1"].generation == 2
    assert story.state.duplicates == 1


# --- cordon and drain ---------------------------------------------------------------------------


def test_what_runs_on_a_cordoned_node_goes_on() -> None:
    nodes = [joined("n1", card(0), card(1)), joined("n2", *(card(i) for i in range(3)))]
    story = serving(entry("m"), nodes=nodes)
    assert where(story) == {"r1": "n1"}
    story.given(e.NodeCordoned(node="n1"), e.ModelScaled(model="m", replicas=5)).decided()
    assert where(story) == {"r1": "n1", "r2": "n2", "r3": "n2", "r4": "n2"}
    assert story.state.models["m"].refusals == {"in use": 3, "node cordoned": 2}
    story.given(e.NodeUncordoned(node="n1")).decided()
    assert where(story)["r5"] == "n1"


def test_a_drained_node_keeps_serving_until_another_does() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0)), joined("n2", card(0))])
    ready("r1", story=story)
    story.given(e.NodeDrained(node="n1")).decided()
    assert where(story) == {"r1": "n1", "r2": "n2"}
    ready("r2", story=story, node="n2")
    story.decided()
    assert where(story) == {"r2": "n2"}
    assert story.state.replicas["r1"].retired == "its node is drained"


def test_a_drained_node_without_another_goes_on_and_it_is_said_why() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0))])
    story.given(e.NodeDrained(node="n1")).decided()
    assert where(story) == {"r1": "n1"}
    model = story.state.models["m"]
    assert (model.missing, model.refusals) == (1, {"node being drained": 1})
    story.given(e.NodeUncordoned(node="n1")).decided()
    assert where(story) == {"r1": "n1"}
    assert story.state.models["m"].missing == 0


# --- restart ------------------------------------------------------------------------------------


def test_a_restart_is_a_new_generation_in_the_same_place() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0))])
    starting(story, generation=1)
    ready("r1", story=story)
    story.when(e.ReplicaRestartAsked(replica="r1")).then("command n1 revision 2: r1/0 on 0")
    story.decided()
    command = story.records[-1].body
    assert command.assignments[0].generation == 2  # type: ignore[union-attr]
    old = e.ReplicaStopped(replica="r1", generation=1, reason="replaced", revision=2)
    story.given(From("n1", old))
    assert phase(story) == "assigned"
    starting(story, generation=2)
    ready("r1", story=story, generation=2)
    assert phase(story) == "ready"
    assert story.state.unexpected == 0


# --- priority -----------------------------------------------------------------------------------


def test_a_model_of_higher_priority_displaces_the_least_useful_replica() -> None:
    story = serving(entry("m", replicas=2), nodes=[joined("n1", card(0), card(1))])
    ready("r1", story=story)
    story.given(applied(entry("m", replicas=2), entry("vip", priority=5))).decided()
    assert where(story) == {"r1": "n1"}
    assert story.state.replicas["r2"].retired == "vip of priority 5 needs its place"
    gone("r2", story)
    story.decided()
    assert story.state.replicas[max(where(story))].model == "vip"
    assert story.state.models["m"].missing == 1


def test_a_displaced_replica_whose_entry_changed_too_is_retired_once() -> None:
    """Which of the two says so first makes no difference: the other knows that it goes."""
    story = serving(entry("m", replicas=2), nodes=[joined("n1", card(0), card(1))])
    changed = entry("m", replicas=2, context=2048)
    story.given(applied(changed, entry("vip", priority=5, replicas=2)))
    story.given(*story.decisions())  # it is accepted
    found = story.decisions()
    retired = [d.replica for d in found if isinstance(d, e.ReplicaRetired)]
    assert sorted(retired) == ["r1", "r2"]
    (left,) = [d for d in found if isinstance(d, e.ModelLeftUnplaced) and d.model == "m"]
    assert left.missing == 2
    story.decided()
    assert story.state.void == 0


def test_no_more_are_displaced_while_one_is_on_its_way_out() -> None:
    story = serving(entry("m", replicas=3), nodes=[joined("n1", card(0), card(1), card(2))])
    story.given(applied(entry("m", replicas=3), entry("vip", priority=5))).decided()
    assert len(where(story)) == 2
    story.given(From("n1", e.NodeConditionsChanged(conditions=()))).decided()
    assert len(where(story)) == 2


def test_nothing_is_displaced_in_vain_or_by_an_equal() -> None:
    story = serving(entry("m", priority=1), nodes=[joined("n1", card(0, gib=40))])
    story.given(applied(entry("m", priority=1), entry("o", priority=1))).decided()
    assert where(story) == {"r1": "n1"}
    huge = entry("huge", "l40s-*", gib=45, priority=9)
    story.given(applied(entry("m", priority=1), huge)).decided()
    assert where(story) == {"r1": "n1"}


def test_a_group_displaces_only_what_is_in_its_place() -> None:
    cards = [*(card(i, domain="a") for i in range(2)), card(2), card(3)]
    story = serving(entry("m", replicas=4), nodes=[joined("n1", *cards)])
    ready(*where(story), story=story)
    pair = entry("pair", gpus=2, nvlink="require", priority=1)
    story.given(applied(entry("m", replicas=4), pair)).decided()
    left = {story.state.replicas[name].parts[0].devices for name in where(story)}
    assert left == {(2,), (3,)}


def test_the_rank_of_a_model_changes_without_a_restart() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0))])
    story.given(applied(entry("m", priority=7, policy="pack"))).decided()
    assert where(story) == {"r1": "n1"}


def test_two_of_one_rank_get_their_turn_in_the_order_of_the_catalog() -> None:
    story = Story().given(*joined("n1", card(0)), elected(), applied(entry("b"), entry("a")))
    assert story.decided().state.replicas["r1"].model == "b"


def test_room_that_opens_piece_by_piece_is_kept_for_whom_it_was_made() -> None:
    story = serving(entry("m", replicas=2), nodes=[joined("n1", card(0), card(1))])
    pair = entry("pair", gpus=2, priority=1)
    story.given(applied(entry("m", replicas=2), pair)).decided()
    assert where(story) == {}
    gone("r1", story)
    assert where(story.decided()) == {}
    gone("r2", story)
    assert [story.state.replicas[name].model for name in where(story.decided())] == ["pair"]


def test_two_that_displace_at_once_take_different_places() -> None:
    story = serving(entry("m", replicas=2), nodes=[joined("n1", card(0), card(1))])
    vips = [entry("a", priority=2), entry("b", priority=1)]
    story.given(applied(entry("m", replicas=2), *vips)).decided()
    assert story.state.void == 0
    gone("r1", story)
    gone("r2", story)
    assert {story.state.replicas[n].model for n in where(story.decided())} == {"a", "b"}
