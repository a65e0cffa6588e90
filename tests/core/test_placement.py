"""Placement: which devices a replica gets, and for each refusal how many failed which test."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.placement import Held, Placed, place
from llmgw.hardware.types import Card, Device, Excluded, device_label
from llmgw.testing.builders import (
    From,
    Story,
    applied,
    card,
    elected,
    entry,
    instance,
    inventory,
    joined,
    processor,
    serving,
    started,
)
from llmgw.views import nodes


def cluster(**nodes: Sequence[Card | Device]) -> Cluster:
    story = Story()
    for name, devices in nodes.items():
        story.given(*joined(name, *devices))
    return story.state


def where(state: Cluster, wanted: Entry) -> str:
    """Return `NODE DEVICES` of a placement, or the refusals."""
    answer = place(state, wanted, Held())
    if isinstance(answer, Placed):
        (part,) = answer.parts
        return f"{part.node} {'+'.join(map(device_label, part.devices))}"
    return ", ".join(f"{count} {test}" for test, count in answer.refusals.items())


A100, H100 = "a100-80g", "h100-80g"


def test_a_replica_goes_to_a_device_of_its_class() -> None:
    state = cluster(n1=[card(0), processor()], n2=[card(0, of_class=H100, gib=80)])
    assert where(state, entry("m", H100)) == "n2 0"
    assert where(state, entry("m", "cpu")) == "n1 cpu"


def test_classes_are_tried_in_order_of_preference() -> None:
    state = cluster(n1=[card(0)], n2=[card(0, of_class=H100, gib=80)])
    assert where(state, entry("m", H100, "l40s-48g")) == "n2 0"
    assert where(state, entry("m", "l40s-48g", H100)) == "n1 0"
    assert where(state, entry("m", "b200-180g", "l40s-48g")) == "n1 0"


def test_a_class_may_be_a_pattern() -> None:
    state = cluster(n1=[card(0)], n2=[card(0, of_class="h100-nvl-94g", gib=94)])
    assert where(state, entry("m", "h100-*")) == "n2 0"


def test_a_class_that_nobody_has_is_named() -> None:
    assert where(cluster(n1=[card(0)]), entry("m", H100)) == f"1 no device of class {H100}"


def test_a_refusal_counts_how_many_devices_failed_which_test() -> None:
    state = cluster(n1=[card(0), card(1), card(2)], n2=[card(0, gib=24)])
    state.nodes["n1"].conditions = (e.Condition(device=2, name="hot", detail="90 °C"),)
    wanted = entry("m", gib=52.2)
    assert where(state, wanted) == "2 too small by 4.2 GiB, 1 hot, 1 too small by 28.2 GiB"


def test_a_hair_too_small_is_too_small() -> None:
    state = cluster(n1=[card(0, gib=10)])
    assert where(state, entry("m", gib=10.0001)) == "1 too small by 0.1 GiB"
    assert where(state, entry("m", gib=10)) == "n1 0"


def test_a_device_of_unknown_size_is_refused_and_not_taken_for_empty() -> None:
    unknown = Device(id=0, label="0", card=0, uuid="GPU-0", device_class="gb10-128g")
    assert where(cluster(n1=[unknown]), entry("m", "gb10-128g")) == "1 memory unknown"


def test_a_card_serves_one_replica() -> None:
    story = serving(entry("m", gib=4), nodes=[joined("n1", card(0))])
    assert where(story.state, entry("o", gib=4)) == "1 in use"


def test_the_processor_serves_as_many_as_its_memory_holds() -> None:
    story = serving(entry("m", "cpu", gib=6, replicas=2), nodes=[joined("n1", processor(16))])
    assert where(story.state, entry("o", "cpu", gib=4)) == "n1 cpu"
    assert where(story.state, entry("o", "cpu", gib=5)) == "1 too small by 1.0 GiB"


def test_earlier_placements_of_the_same_decision_count() -> None:
    state, held = cluster(n1=[card(0), card(1)]), Held()
    first = place(state, entry("m"), held)
    assert isinstance(first, Placed)
    held.take(state, "r1", first.parts)
    second = place(state, entry("m"), held)
    assert isinstance(second, Placed)
    assert first.parts != second.parts


def test_replicas_spread_over_nodes() -> None:
    nodes = [joined(name, card(0), card(1)) for name in ("n1", "n2", "n3")]
    story = serving(entry("m", replicas=3), nodes=nodes)
    assert sorted(r.parts[0].node for r in story.state.replicas.values()) == ["n1", "n2", "n3"]


def test_the_smallest_device_that_fits_is_taken() -> None:
    state = cluster(
        n1=[card(0, of_class=A100, gib=80), card(1, of_class="a100-40g", gib=40)],
    )
    assert where(state, entry("m", "a100-*", gib=30)) == "n1 1"
    assert where(state, entry("m", "a100-*", gib=60)) == "n1 0"


@pytest.mark.parametrize("reason", ["lost", "mig-empty", "compute-mode"])
def test_an_excluded_card_is_kept_out_with_its_reason(reason: str) -> None:
    out = Excluded(card=0, reason=reason, detail="")
    taken = e.NodeInventoryTaken(inventory=inventory("n1", card(0), card(1), excluded=[out]))
    story = Story().given(*joined("n1"), taken)
    assert where(story.state, entry("m")) == "n1 1"
    occupied = e.Condition(device=1, name="occupied", detail="")
    story.given(e.NodeConditionsChanged(conditions=(occupied,)))
    assert where(story.state, entry("m")) == f"1 {reason}, 1 occupied"


def test_a_device_with_an_engine_that_nobody_wants_is_kept_out() -> None:
    stray = e.ReplicaStarting(replica="r9", generation=1, port=18100, devices=(0,))
    story = Story().given(*joined("n1", card(0)), stray)
    assert where(story.state, entry("m")) == "1 occupied by an engine that is being stopped"


def test_nodes_that_are_not_there_are_counted_by_their_fitting_devices() -> None:
    story = Story().given(*joined("n1", card(0), card(1)), *joined("n2", card(0)))
    story.given(*joined("n3", processor()), From("n3", e.NodeStopped(engines="stopped")))
    story.given(elected(), e.NodeLost(term=1, node="n1", silent_seconds=20))
    story.given(From("n2", e.NodeStopped(engines="stopped")))
    assert where(story.state, entry("m")) == "2 node lost, 1 node stopped"


def test_a_node_that_has_not_told_what_it_has_is_named() -> None:
    story = Story().given(joined("n1")[0])
    assert where(story.state, entry("m")) == "1 node without inventory"


# --- groups of cards ------------------------------------------------------------------------------


def test_a_group_stays_within_one_nvlink_domain() -> None:
    cards = [card(0), card(1, domain="a"), card(2), card(3, domain="a")]
    assert where(cluster(n1=cards), entry("m", gpus=2)) == "n1 1+3"


def test_a_group_takes_the_smallest_domain_that_has_room() -> None:
    cards = [*(card(i, domain="big") for i in range(4)), card(4, domain="a"), card(5, domain="a")]
    assert where(cluster(n1=list(cards)), entry("m", gpus=2)) == "n1 4+5"
    assert where(cluster(n1=list(cards)), entry("m", gpus=4)) == "n1 0+1+2+3"


def test_a_node_with_a_domain_is_better_for_a_group_than_one_without() -> None:
    plain, linked = [card(0), card(1)], [card(0, domain="a"), card(1, domain="a")]
    assert where(cluster(n1=list(plain), n2=list(linked)), entry("m", gpus=2)) == "n2 0+1"


def test_a_single_card_is_rather_taken_from_outside_of_domains() -> None:
    plain, linked = [card(0)], [card(0, domain="a"), card(1, domain="a")]
    assert where(cluster(n1=list(linked), n2=list(plain)), entry("m")) == "n2 0"
    assert where(cluster(n1=[*linked, card(2)]), entry("m")) == "n1 2"


def test_a_group_without_a_domain_says_that_it_speaks_over_pcie() -> None:
    answer = place(cluster(n1=[card(0), card(1)]), entry("m", gpus=2), Held())
    assert isinstance(answer, Placed)
    assert "PCIe" in answer.reasons[1]


def test_a_group_is_of_one_class() -> None:
    cards = [card(0), card(1, of_class=A100), card(2, of_class=A100)]
    assert where(cluster(n1=list(cards)), entry("m", "*", gpus=2)) == "n1 1+2"
    assert where(cluster(n1=list(cards[:2])), entry("m", "*", gpus=2)) == (
        "2 fewer than 2 free together"
    )


def test_a_group_does_not_reach_over_nodes() -> None:
    state = cluster(n1=[card(0)], n2=[card(0)])
    assert where(state, entry("m", gpus=2)) == "2 fewer than 2 free together"


# --- over several nodes ---------------------------------------------------------------------------


def over(state: Cluster, **fields: int) -> list[tuple[str, tuple[int, ...]]] | dict[str, int]:
    answer = place(state, entry("m", engine="vllm", gib=10, **fields), Held())
    if isinstance(answer, Placed):
        return [(part.node, part.devices) for part in answer.parts]
    return dict(answer.refusals)


def test_the_parts_of_a_replica_go_to_different_nodes() -> None:
    pair = [card(0, domain="node:x/0"), card(1, domain="node:x/0")]
    state = cluster(n1=list(pair), n2=list(pair), n3=[card(0)])
    two = [("n1", (0, 1)), ("n2", (0, 1))]
    assert over(state, nodes=2, gpus=4, tp=2, pp=2) == two
    assert over(state, nodes=3, gpus=3, pp=3) == [("n3", (0,)), ("n1", (0,)), ("n2", (0,))]
    assert over(state, nodes=3, gpus=6, tp=2, pp=3) == {
        "on fewer than 3 nodes with 2 free together": 4,
        "fewer than 2 free together": 1,
    }


def test_a_tensor_parallel_group_over_nodes_needs_a_fabric() -> None:
    local = [card(0, domain="node:x/0"), card(1, domain="node:x/0")]
    fabric = [card(0, domain="f/1"), card(1, domain="f/1")]
    state = cluster(n1=list(local), n2=list(fabric), n3=list(local), n4=list(fabric))
    assert over(state, nodes=2, gpus=4, tp=4) == [("n2", (0, 1)), ("n4", (0, 1))]
    assert over(cluster(n1=list(local), n2=list(local)), nodes=2, gpus=4, tp=4) == {
        "on fewer than 2 nodes of one NVLink fabric with 2 free together": 4
    }


def test_a_gang_is_assigned_whole_or_not_at_all() -> None:
    story = Story()
    for name in ("n1", "n2"):
        story.given(*joined(name, card(0)))
    story.given(elected(), applied(entry("m", engine="vllm", nodes=2, gpus=2, pp=2))).decided()
    (replica,) = story.state.replicas.values()
    assert [part.node for part in replica.parts] == ["n1", "n2"]
    assert where(story.state, entry("o")) == "2 in use"


# --- MIG ------------------------------------------------------------------------------------------

SPLIT = card(0, of_class=A100, mig=True)
MIG = f"{A100}-mig-1g.20gb"


def test_an_instance_is_a_device_and_its_card_is_none() -> None:
    state = cluster(n1=[SPLIT, instance(SPLIT, 0), instance(SPLIT, 1)])
    assert where(state, entry("m", MIG)) == "n1 0/mig0"
    assert where(state, entry("m", A100)) == f"1 no device of class {A100}"


def test_instances_make_no_group() -> None:
    state = cluster(n1=[SPLIT, instance(SPLIT, 0), instance(SPLIT, 1)])
    assert where(state, entry("m", MIG, gpus=2)) == "2 a MIG instance cannot be part of a group"


def test_instances_of_one_pool_are_not_sold_twice() -> None:
    shared = [instance(SPLIT, i, pool="0/gi0") for i in (0, 1)]
    story = serving(entry("m", MIG), nodes=[joined("n1", SPLIT, *shared)])
    assert where(story.state, entry("o", MIG)) == "2 in use"


def test_instances_of_different_pools_serve_one_replica_each() -> None:
    own = [instance(SPLIT, i, pool=f"0/gi{i}") for i in (0, 1)]
    story = serving(entry("m", MIG), nodes=[joined("n1", SPLIT, *own)])
    assert where(story.state, entry("o", MIG)) == "n1 0/mig1"


def test_unreadable_hardware_is_a_reason_until_it_can_be_read() -> None:
    story = Story().given(From("n1", started()), elected(), applied(entry("m", "cpu")))
    story.given(From("n1", e.NodeHardwareUnreadable(reason="no driver"))).decided()
    assert story.state.models["m"].refusals == {"node of unreadable hardware": 1}
    assert nodes(story.state)[0].warnings == ("hardware cannot be read: no driver",)
    taken = e.NodeInventoryTaken(inventory=inventory("n1", processor()))
    story.given(From("n1", taken)).decided()
    assert story.state.models["m"].missing == 0
    assert nodes(story.state)[0].warnings == ()
