"""Replicas whose device vanished or fails them, and how a changed entry replaces what serves."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.meanings import EVACUATED, MEANINGS
from llmgw.core.rollout import paused
from llmgw.hardware.types import Card, Device, Excluded
from llmgw.testing.builders import (
    From,
    Story,
    applied,
    card,
    entry,
    instance,
    inventory,
    joined,
    processor,
    serving,
    started,
)
from llmgw.views import nodes, status

SPLIT = card(0, of_class="a100-80g", mig=True)
SLICE = entry("m", "a100-80g-mig-*", gib=10)


def carved(*numbers: int, life: str = "", **fields: str) -> list[Card | Device]:
    """A card with these instances; those of another `life` have other UUIDs."""
    of = card(0, of_class="a100-80g", mig=True, uuid=f"GPU-0{life}")
    return [SPLIT, *(instance(of, number, **fields) for number in numbers)]  # type: ignore[arg-type]


def has(node: str, *devices: Card | Device) -> From:
    """The node tells what it has now."""
    return From(node, e.NodeInventoryTaken(inventory=inventory(node, *devices)))


def ready(story: Story, *replicas: str) -> Story:
    for name in replicas:
        replica = story.state.replicas[name]
        said = e.ReplicaBecameReady(
            replica=name,
            generation=replica.generation,
            address="127.0.0.1",
            port=18100,
            pid=7,
            seconds=1,
        )
        story.given(From(replica.parts[0].node, said))
    return story


def failed(story: Story, name: str, times: int = 1) -> Story:
    replica = story.state.replicas[name]
    for attempt in range(1, times + 1):
        said = e.ReplicaFailed(
            replica=name,
            generation=replica.generation,
            attempt=attempt,
            reason="exit code 1",
            retry_seconds=1,
        )
        story.given(From(replica.parts[0].node, said))
    return story


def stopped(story: Story, name: str) -> Story:
    node = story.state.replicas[name].parts[0].node
    revision = story.state.nodes[node].revision
    gone = e.ReplicaStopped(replica=name, generation=1, reason="not wanted", revision=revision)
    return story.given(From(node, gone))


def serving_replicas(story: Story) -> list[str]:
    """Return the replicas that clients can use, in order."""
    found = story.state.replicas.values()
    return [r.name for r in found if r.retired is None and r.parts[0].phase == "ready"]


# --- devices that vanish ------------------------------------------------------------------------


def test_a_replica_whose_instance_was_carved_anew_is_lost_and_placed_again() -> None:
    story = failed(ready(serving(SLICE, nodes=[joined("n1", *carved(0, 1))]), "r1"), "r1")
    story.when(has("n1", *carved(0, 1, life="-b")))
    part = story.state.replicas["r1"].parts[0]
    assert part.phase == "lost"
    assert part.reason == "its device 0/mig0 is not there any more"
    story.then("assign r2 of m to n1 0/mig0", f"retire r1: {part.reason}")


def test_what_still_serves_on_a_device_that_nobody_sees_goes_once_another_serves() -> None:
    nodes = [joined("n1", *carved(0)), joined("n2", *carved(0, life="-n2"))]
    story = ready(serving(SLICE, nodes=nodes), "r1").given(has("n1", processor())).decided()
    assert serving_replicas(story) == ["r1"]
    ready(story, "r2").then("retire r1: its device 0/mig0 is not there any more")


def test_a_device_that_was_away_for_a_moment_costs_nothing() -> None:
    story = ready(serving(SLICE, nodes=[joined("n1", *carved(0))]), "r1")
    story.when(has("n1", processor())).decided()
    assert story.state.models["m"].missing == 1
    story.when(has("n1", *carved(0))).decided()
    assert serving_replicas(story) == ["r1"]
    assert [*story.state.replicas] == ["r1"]


def test_an_instance_whose_memory_was_another_one_s_is_free_once_that_replica_has_gone() -> None:
    pool = "0/gi3"
    story = ready(serving(SLICE, nodes=[joined("n1", *carved(0, pool=pool))]), "r1")
    story.when(has("n1", *carved(0, pool=pool, life="-b"))).decided()
    assert story.state.replicas["r1"].retired is not None
    stopped(story, "r1").then("assign r2 of m to n1 0/mig0", "m lacks 0: nothing")


def test_a_replica_that_never_began_is_lost_with_its_device_too() -> None:
    story = serving(SLICE, nodes=[joined("n1", *carved(0))]).when(has("n1", SPLIT)).decided()
    assert story.state.replicas["r1"].retired is not None
    assert story.state.models["m"].missing == 1


def test_a_device_that_has_another_number_after_a_reboot_is_not_gone() -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0), card(1))]), "r1")
    swapped = has("n1", card(0, uuid="GPU-1"), card(1, uuid="GPU-0"))
    story.given(started("b2"), swapped).decided()
    assert [*story.state.replicas] == ["r1"]
    assert story.state.replicas["r1"].parts[0].gone is None
    assert story.state.replicas["r1"].parts[0].devices == (1,)


# --- devices that fail their replica ------------------------------------------------------------


def against(device: int, name: str) -> e.NodeConditionsChanged:
    return e.NodeConditionsChanged(
        conditions=(e.Condition(device=device, name=name, detail="something"),)
    )


@pytest.mark.parametrize("name", ["failing", "hot", "occupied", "unreadable", "driver-mismatch"])
def test_a_replica_that_fails_on_a_bad_device_is_tried_elsewhere(name: str) -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0), card(1))])
    failed(story, "r1", 3).when(against(0, name)).then(
        "assign r2 of m to n1 1", f"retire r1: it failed 3 times, and n1 0 is {name}"
    )


@pytest.mark.parametrize("name", ["power-capped", "throttled"])
def test_a_condition_that_says_nothing_of_the_failure_moves_nobody(name: str) -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0), card(1))])
    failed(story, "r1", 3).when(against(0, name)).then()


KEEPS = sorted((MEANINGS.keys() | {"of-tomorrow"}) - EVACUATED)


@pytest.mark.parametrize("name", KEEPS)
def test_a_replica_that_serves_stays_on_a_bad_device(name: str) -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0), card(1))]), "r1")
    story.when(against(0, name)).then()


@pytest.mark.parametrize("name", sorted(EVACUATED))
def test_what_serves_on_a_card_that_must_be_reset_serves_until_another_does(name: str) -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0), card(1))]), "r1")
    story.when(against(0, name)).then("assign r2 of m to n1 1").decided()
    assert serving_replicas(story) == ["r1"]
    ready(story, "r2").then(f"retire r1: n1 0 is {name}")


def test_it_is_the_same_when_the_inventory_says_that_a_card_must_be_reset() -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0), card(1))]), "r1")
    out = Excluded(card=0, reason="needs-reset", detail="the driver asks for it")
    has = msgspec.structs.replace(inventory("n1", card(0), card(1)), excluded=(out,))
    story.when(From("n1", e.NodeInventoryTaken(inventory=has))).then("assign r2 of m to n1 1")
    story.decided()
    ready(story, "r2").then("retire r1: n1 0 is needs-reset")


def test_what_does_not_serve_there_goes_at_once_and_waits_for_a_device_to_be_sound() -> None:
    story = failed(serving(entry("m"), nodes=[joined("n1", card(0))]), "r1")
    story.when(against(0, "lost")).then("m lacks 1: 1 lost", "retire r1: n1 0 is lost")
    story.decided()
    stopped(story, "r1").given(From("n1", e.NodeConditionsChanged(conditions=())))
    story.then("assign r2 of m to n1 0", "m lacks 0: nothing")


def test_without_another_device_it_serves_on_where_it_is() -> None:
    story = ready(serving(entry("m"), nodes=[joined("n1", card(0))]), "r1")
    story.when(against(0, "xid")).then("m lacks 1: 1 xid").decided()
    assert serving_replicas(story) == ["r1"]
    story.when(From("n1", e.NodeConditionsChanged(conditions=()))).then("m lacks 0: nothing")


def test_of_two_replicas_on_a_node_only_that_on_the_bad_card_moves() -> None:
    cards = [card(0), card(1), card(2)]
    story = ready(serving(entry("m", replicas=2), nodes=[joined("n1", *cards)]), "r1", "r2")
    story.when(against(0, "lost")).decided()
    ready(story, "r3").decided()
    assert serving_replicas(story) == ["r2", "r3"]


def test_a_replica_that_fails_everywhere_stays_where_it_is() -> None:
    story = serving(entry("m"), nodes=[joined("n1", card(0), card(1))])
    both = (
        e.Condition(device=0, name="failing", detail="something"),
        e.Condition(device=1, name="failing", detail="something"),
    )
    failed(story, "r1", 3).when(e.NodeConditionsChanged(conditions=both)).then()


# --- one entry after the other ------------------------------------------------------------------


def full(replicas: int) -> tuple[Story, Entry]:
    """As many cards as replicas, all ready; and a changed entry."""
    nodes = [joined("n1", *(card(index) for index in range(replicas)))]
    story = serving(entry("m", replicas=replicas), nodes=nodes)
    return ready(story, *story.state.replicas), entry("m", gib=20, replicas=replicas)


def test_without_room_one_replica_after_the_other_is_replaced() -> None:
    story, changed = full(3)
    story.given(applied(changed)).decided()
    for number, old in enumerate(("r3", "r2", "r1"), start=4):
        assert len(serving_replicas(story)) == 2
        assert story.state.replicas[old].retired == "it stands in the way of the changed entry"
        stopped(story, old).decided()
        assert len(serving_replicas(story)) == 2, "the next waits until the new one serves"
        ready(story, f"r{number}").decided()
    assert serving_replicas(story) == ["r4", "r5", "r6"]


def test_a_replica_that_does_not_serve_makes_room_at_once() -> None:
    story, changed = full(3)
    failed(failed(story, "r1"), "r2").given(applied(changed)).decided()
    retired = [r.name for r in story.state.replicas.values() if r.retired is not None]
    assert retired == ["r1", "r2"]
    assert serving_replicas(story) == ["r3"]


def test_a_rollout_pauses_while_the_changed_entry_fails_and_says_so() -> None:
    story, changed = full(3)
    story.given(*joined("n2", card(0, uuid="GPU-n2-0"), card(1, uuid="GPU-n2-1")))
    story.given(applied(changed)).decided()
    assert [r.name for r in story.state.replicas.values() if r.parts[0].node == "n2"] == [
        "r4",
        "r5",
    ]
    failed(story, "r4", 3)
    ready(story, "r5").then()
    state = story.state
    assert paused(state, state.models["m"], state.replicas.values()) == (
        "rollout paused: r4 of the changed entry failed 3 times (exit code 1);"
        " 3 of the earlier entry left as they are"
    )
    assert len(serving_replicas(story)) == 4
    ready(story, "r4").decided()
    assert serving_replicas(story) == ["r1", "r4", "r5"]
    assert paused(state, state.models["m"], state.replicas.values()) is None


def test_a_paused_rollout_is_over_when_the_operator_takes_the_change_back() -> None:
    story, changed = full(2)
    story.given(applied(changed)).decided()
    stopped(story, "r2").decided()
    failed(story, "r3", 3).then()
    story.given(applied(entry("m", replicas=2))).decided()
    stopped(story, "r3").decided()
    assert serving_replicas(story) == ["r1"]
    assert story.state.replicas["r4"].entry == story.state.replicas["r1"].entry


def test_a_node_is_drained_though_a_rollout_is_paused() -> None:
    nodes = [joined("n1", card(0)), joined("n2", card(0, uuid="GPU-n2"))]
    story = ready(serving(entry("m"), nodes=nodes), "r1")
    story.given(e.NodeDrained(node="n1")).decided()
    ready(story, "r2").then("retire r1: its node is drained")


# --- what an operator sees of it ----------------------------------------------------------------


def test_a_paused_rollout_is_in_the_status() -> None:
    story, changed = full(2)
    story.given(applied(changed)).decided()
    stopped(story, "r2").decided()
    failed(story, "r3", 3)
    [row] = status(story.state).models
    assert row.rollout is not None
    assert row.rollout.startswith("rollout paused: r3 of the changed entry failed 3 times")
    ready(story, "r3").decided()
    assert status(story.state).models[0].rollout is None


def test_a_flapping_node_says_how_long_it_must_be_heard() -> None:
    story = serving(nodes=[joined("n1", processor())])
    for _ in range(3):
        story.given(e.NodeLost(term=1, node="n1", silent_seconds=20))
        story.given(e.NodeReturned(term=1, node="n1"))
    assert nodes(story.state)[0].warnings == ()
    story.given(e.NodeLost(term=1, node="n1", silent_seconds=20))
    assert nodes(story.state)[0].warnings == (
        "lost 4 times of late: it counts as back once it is heard for 120 s",
    )
