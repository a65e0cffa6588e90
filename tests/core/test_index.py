"""The placement index is what one built from scratch would be, and placing with it is right.

Right is what a placer says that looks at every device: what it finds room for gets a place, what
gets a place passes every test, and each refused device is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.catalog.entries import Entry, Labels
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Node
from llmgw.core.demand import demand_bytes
from llmgw.core.held import Held
from llmgw.core.index import Board, Index, full, index_of, node_refuses
from llmgw.core.placement import Placed, domain_of, label_refuses, place, why_not
from llmgw.hardware.types import Device
from llmgw.testing.builders import Story, card, entry, instance, joined, serving
from llmgw.testing.invariants import restored, snapshot
from tests.core.histories import Step, histories, told


def described(index: Index) -> dict[str, Any]:
    """Return what an index says, whatever the order in which it grew."""
    board, kinds = index.board, index.kinds

    def kind(number: int) -> object:
        return kinds[number] if number >= 0 else "none"

    def key(one: object) -> object:
        return one if not isinstance(one, int) else (kind(one >> 14), one >> 10 & 15, one & 1023)

    return {
        "marks": {key(one): list(marks) for one, marks in board.marks.items()},
        "counts": {key(one): marks.count for one, marks in board.marks.items()},
        "refused": {kind(n): counts for n, counts in board.refused.items() if counts},
        "sharing": {kind(n): count for n, count in board.sharing.items() if count},
        "partials": {kind(n): row for n, row in board.partials.items() if row},
        "sizes": {
            form if isinstance(form, tuple) else (kind(form >> 4), form & 15): sizes
            for form, sizes in board.sizes.items()
            if sizes
        },
        "names": index.names,
    }


@given(histories)
def test_the_index_is_what_one_built_from_scratch_would_be(steps: list[Step]) -> None:
    story = Story()
    index_of(story.state)
    for record in told(steps).log:
        story.append(record)
        kept = described(index_of(story.state))
        assert kept == described(index_of(restored(snapshot(story.state))))


def fitting(state: Cluster, node: Node, wanted: Entry, pattern: str) -> Iterator[Device]:
    """Yield the devices of a node that pass every test, one by one."""
    from fnmatch import fnmatchcase

    if node_refuses(node) or full(node) or label_refuses(wanted, node):
        return
    demand = demand_bytes(wanted, state.models.get(wanted.name))
    for device in node.devices.values():
        if not fnmatchcase(device.device_class, pattern):
            continue
        if wanted.gpus > 1 and device.profile is not None:
            continue
        if why_not(state, node, device, wanted, demand) is None:
            yield device


def has_room(state: Cluster, wanted: Entry) -> bool:
    """Return whether any node has so many fitting devices of one class and size."""
    for pattern in wanted.classes:
        for node in state.nodes.values():
            alike: dict[tuple[str, object, object], int] = {}
            for device in fitting(state, node, wanted, pattern):
                if device.device_class == "cpu" and wanted.gpus > 1:
                    continue
                domain = domain_of(node, [device]) if wanted.nvlink == "require" else ""
                if domain is None and wanted.gpus > 1:
                    continue
                key = (device.device_class, device.memory_total_bytes, domain)
                alike[key] = alike.get(key, 0) + 1
            if any(count >= wanted.gpus for count in alike.values()):
                return True
    return False


WANTED = st.builds(
    entry,
    st.sampled_from(("a", "x")),
    st.sampled_from(("l40s-48g", "cpu", "a100-*", "*")),
    gib=st.sampled_from((1, 5, 30, 100)),
    gpus=st.sampled_from((1, 1, 2, 4)),
    share=st.booleans(),
    nvlink=st.sampled_from(("prefer", "require", "ignore")),
    policy=st.sampled_from(("spread", "pack")),
    labels=st.sampled_from(
        (Labels(), Labels(require={"rack": "a"}), Labels(prefer={"rack": "*"}, avoid={"disk": "*"}))
    ),
)


@given(histories, WANTED)
def test_a_place_is_found_when_there_is_one_and_it_passes_every_test(
    steps: list[Step], wanted: Entry
) -> None:
    state = told(steps).state
    answer = place(state, wanted, Held())
    assert isinstance(answer, Placed) == has_room(state, wanted)
    if not isinstance(answer, Placed):
        return
    (part,) = answer.parts
    node = state.nodes[part.node]
    assert len(part.devices) == wanted.gpus
    passing = {device.id for device in fitting(state, node, wanted, wanted.classes[0])}
    assert passing >= set(part.devices)
    if wanted.nvlink == "require" and wanted.gpus > 1:
        assert domain_of(node, [node.devices[number] for number in part.devices]) is not None


@given(histories, WANTED)
def test_every_refused_device_is_counted_once(steps: list[Step], wanted: Entry) -> None:
    from fnmatch import fnmatchcase

    state = told(steps).state
    answer = place(state, wanted, Held())
    if isinstance(answer, Placed):
        return
    matching = sum(
        fnmatchcase(device.device_class, wanted.classes[0])
        for node in state.nodes.values()
        for device in node.devices.values()
    )
    silent = sum(node.inventory is None for node in state.nodes.values())
    assert sum(answer.refusals.values()) == (matching + silent or 1)


@given(histories, st.lists(WANTED, min_size=1, max_size=6))
def test_what_one_decision_takes_step_by_step_is_what_the_fold_makes_of_it(
    steps: list[Step], wanted: list[Entry]
) -> None:
    """Placing on top of `Held` answers as placing on a state that has folded it all."""
    story = told(steps)
    state, held = story.state, Held()
    later = restored(snapshot(state))
    later.models = {}
    for number, one in enumerate(wanted):
        answer = place(state, one, held)
        name = f"r{later.next_replica}"
        assert place(later, one, Held()) == answer or state.models.get(one.name)
        if isinstance(answer, Placed):
            held.take(state, name, answer.parts, one)
            _fold_in(later, name, one, answer)
        assert number < len(wanted)


def _fold_in(state: Cluster, name: str, wanted: Entry, answer: Placed) -> None:
    from llmgw.core.cluster import Model, unit
    from llmgw.core.fold import apply
    from llmgw.core.records import Record

    state.models[wanted.name] = Model(wanted, unit(wanted))
    state.term = max(state.term, 1)
    event = e.ReplicaAssigned(
        term=state.term,
        at=state.sequence,
        replica=name,
        model=wanted.name,
        generation=1,
        catalog=state.catalog_sequence,
        parts=answer.parts,
        reasons=answer.reasons,
    )
    void = state.void
    number = state.sequence + 1
    apply(state, Record(number, state.time_ns, "controller", "", "c", number, event))
    assert state.void == void, state.incidents[-1]


@given(histories, WANTED.filter(lambda one: one.gpus == 1))
def test_more_machines_never_take_a_place_away(steps: list[Step], wanted: Entry) -> None:
    story = told(steps)
    before = place(story.state, wanted, Held())
    story.given(*joined("n9", card(0), card(1)))
    if isinstance(before, Placed):
        assert isinstance(place(story.state, wanted, Held()), Placed)


# --- what wins --------------------------------------------------------------------------------


def best(state: Cluster, wanted: Entry) -> tuple[str, tuple[int, ...]]:
    answer = place(state, wanted, Held())
    assert isinstance(answer, Placed), answer
    (part,) = answer.parts
    return part.node, part.devices


def fleet(**nodes: list[Any]) -> Story:
    story = Story()
    for name, devices in nodes.items():
        story.given(*joined(name, *devices))
    return story


def domain(size: int, name: str = "a", first: int = 0) -> list[Any]:
    return [card(first + i, domain=name) for i in range(size)]


def test_a_small_group_leaves_the_large_domain_whole() -> None:
    state = fleet(n1=domain(8), n2=domain(4), n3=domain(2)).state
    assert best(state, entry("m", gpus=2)) == ("n3", (0, 1))
    assert best(state, entry("m", gpus=3))[0] == "n2"
    assert best(state, entry("m", gpus=5))[0] == "n1"


def test_a_domain_in_use_is_filled_before_a_whole_one_is_broken() -> None:
    story = serving(entry("m", gpus=4, gib=10), nodes=[joined("n1", *domain(8))])
    story.given(*joined("n2", *domain(2)))
    assert best(story.state, entry("o", gib=10)) == ("n1", (4,))
    assert best(story.state, entry("o", gib=10, gpus=2)) == ("n1", (4, 5))


def test_pack_fills_a_node_up_and_spread_takes_another() -> None:
    wanted = entry("m", replicas=1, gib=10)
    nodes = [joined("n1", *domain(4)), joined("n2", *domain(4))]
    story = serving(wanted, nodes=nodes)
    assert best(story.state, wanted)[0] == "n2"
    assert best(story.state, entry("m", gib=10, policy="pack"))[0] == "n1"
    assert best(story.state, entry("o", gib=10))[0] == "n1"


def test_replicas_of_a_model_spread_evenly_once_every_node_has_one() -> None:
    nodes = [joined(name, *domain(4)) for name in ("n1", "n2", "n3")]
    story = serving(entry("m", replicas=7), nodes=nodes)
    where = [replica.parts[0].node for replica in story.state.replicas.values()]
    assert sorted(where.count(name) for name in ("n1", "n2", "n3")) == [2, 2, 3]


def test_a_device_that_is_better_avoided_comes_last() -> None:
    story = fleet(n1=[card(0)], n2=[card(0)])
    throttled = e.Condition(device=0, name="throttled", detail="")
    story.given(e.NodeConditionsChanged(conditions=(throttled,)))
    assert best(story.state, entry("m"))[0] == "n2"
    story.given(e.NodeLost(term=0, node="n2", silent_seconds=1))
    assert best(story.state, entry("m"))[0] == "n1"


def test_a_group_takes_an_avoided_card_rather_than_none() -> None:
    story = fleet(n1=domain(4))
    throttled = e.Condition(device=1, name="throttled", detail="")
    story.given(e.NodeConditionsChanged(conditions=(throttled,)))
    assert best(story.state, entry("m", gpus=3)) == ("n1", (0, 2, 3))
    assert best(story.state, entry("m", gpus=4)) == ("n1", (0, 2, 3, 1))


def test_labels_are_required_preferred_and_avoided() -> None:
    story = Story()
    for name, labels in (("n1", {"rack": "a"}), ("n2", {"rack": "b"}), ("n3", {})):
        up, has = joined(name, card(0))
        event = e.NodeStarted(boot_id="b", agent_version="1", labels=labels)
        story.given(up._replace(event=event), has)
    state = story.state
    assert best(state, entry("m", labels=Labels(require={"rack": "b"})))[0] == "n2"
    assert best(state, entry("m", labels=Labels(prefer={"rack": "b*"})))[0] == "n2"
    assert best(state, entry("m", labels=Labels(prefer={"rack": "z"})))[0] == "n1"
    assert best(state, entry("m", labels=Labels(avoid={"rack": "*"})))[0] == "n3"
    answer = place(state, entry("m", labels=Labels(require={"rack": "z"})), Held())
    assert answer.refusals == {"without the label rack=z": 3}


def test_a_group_that_requires_nvlink_is_refused_without() -> None:
    state = fleet(n1=[card(0), card(1)]).state
    assert best(state, entry("m", gpus=2)) == ("n1", (0, 1))
    answer = place(state, entry("m", gpus=2, nvlink="require"), Held())
    assert answer.refusals == {"fewer than 2 free in one NVLink domain": 2}


def test_replicas_that_share_fill_a_card_before_they_take_the_next() -> None:
    shared = entry("m", gib=20, share=True, replicas=3, policy="pack")
    story = serving(shared, nodes=[joined("n1", card(0), card(1))])
    where = [replica.parts[0].devices for replica in story.state.replicas.values()]
    assert where == [(0,), (0,), (1,)]
    assert best(story.state, entry("o", gib=20, share=True)) == ("n1", (1,))
    assert place(story.state, entry("o", gib=1), Held()).refusals == {"in use": 2}


def test_a_cordoned_node_gets_nothing_and_an_uncordoned_one_does() -> None:
    story = fleet(n1=[card(0)]).given(e.NodeCordoned(node="n1"))
    assert place(story.state, entry("m"), Held()).refusals == {"node cordoned": 1}
    story.given(e.NodeUncordoned(node="n1"))
    assert best(story.state, entry("m")) == ("n1", (0,))


def test_a_measured_size_beats_an_estimate_and_what_was_given_if_that_was_too_little() -> None:
    story = serving(entry("m", gib=10, memory_estimated=True), nodes=[joined("n1", card(0))])
    ready = e.ReplicaBecameReady(
        replica="r1", generation=1, address="a", port=1, pid=1, seconds=1, memory_bytes=(20 << 30,)
    )
    story.given(ready)
    model = story.state.models["m"]
    assert demand_bytes(model.entry, model) == 21 << 30
    assert demand_bytes(entry("m", gib=10), model) == 21 << 30
    assert demand_bytes(entry("m", gib=30), model) == 30 << 30


def test_an_engine_that_takes_a_fraction_of_the_card_is_given_that() -> None:
    state = fleet(n1=[card(0)]).state
    wanted = entry("m", gib=40, gpu_memory_fraction=0.9)
    answer = place(state, wanted, Held())
    assert isinstance(answer, Placed)
    assert answer.parts[0].memory_bytes == int(0.9 * (48 << 30))
    answer = place(state, entry("m", gib=44, gpu_memory_fraction=0.9), Held())
    assert answer.refusals == {"too small by 0.8 GiB": 1}


@pytest.mark.parametrize("pool", [None, "0/gi0"])
def test_instances_are_devices_of_their_own_unless_they_share_a_pool(pool: str | None) -> None:
    split = card(0, of_class="a100-80g", mig=True)
    parts = [instance(split, i, pool=pool) for i in (0, 1)]
    story = serving(entry("m", "a100-*"), nodes=[joined("n1", split, *parts)])
    answer = place(story.state, entry("o", "a100-*"), Held())
    assert isinstance(answer, Placed) == (pool is None)


def test_a_board_that_is_never_asked_costs_nothing() -> None:
    assert "placement_index" not in vars(fleet(n1=domain(8)).state)
    assert Board().marks == {}
