"""Asking "if": what would be decided otherwise, and that the state that is asked stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.catalog.entries import Catalog
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.testing.builders import Story, applied, card, entry, inventory, joined, serving
from llmgw.testing.invariants import snapshot
from llmgw.testing.simulator import Simulation
from llmgw.views import whatif
from llmgw.views.whatif import Fact, WhatIf, what_if

M = entry("m", gib=10)


def two_nodes() -> Story:
    return serving(M, nodes=[joined("n1", card(0)), joined("n2", card(0))])


def asked(state: Cluster, *facts: Fact) -> WhatIf:
    before = snapshot(state)
    found = what_if(state, facts, ["it"])
    assert snapshot(state) == before
    assert found.settled
    return found


def summaries(found: WhatIf) -> list[str]:
    return [decision.summary for decision in found.decisions]


def changes(found: WhatIf) -> dict[str, tuple[object, object]]:
    return {change.path: (change.before, change.after) for change in found.differences}


def test_nothing_else_is_decided_if_nothing_is_otherwise() -> None:
    found = asked(two_nodes().state)
    assert (found.decisions, found.instead_of, found.differences) == ((), (), ())


def test_a_node_that_is_gone_moves_what_it_ran() -> None:
    state = two_nodes().state
    found = asked(state, *whatif.without_node(state, "n1"))
    assert summaries(found) == ["r2 of m goes to n2, device 0"]
    assert found.decisions[0].reasons
    assert changes(found)["status.nodes.lost"] == (0, 1)


def test_a_node_that_is_gone_leaves_a_model_without_a_place_and_says_why() -> None:
    state = serving(M, nodes=[joined("n1", card(0))]).state
    found = asked(state, *whatif.without_node(state, "n1"))
    (decision,) = found.decisions
    assert decision.type == "model.unplaced"
    assert decision.refusals == {"node lost": 1}
    assert changes(found)["status.models.m.missing"] == (0, 1)


def test_a_node_more_takes_what_had_no_place() -> None:
    state = serving(entry("m", gib=40, replicas=2), nodes=[joined("n1", card(0))]).state
    found = asked(state, *whatif.with_node(inventory("n2", card(0), card(1))))
    assert "r2 of m goes to n2, device 0" in summaries(found)
    assert changes(found)["status.models.m.ready"] == (1, 2)
    assert changes(found)["status.devices.l40s-48g.total"] == (1, 3)


def test_another_catalog_is_rolled_out_to_its_end() -> None:
    state = two_nodes().state
    other = entry("m", gib=10, args=("--x",))
    found = asked(state, *whatif.with_catalog(Catalog(models=(other,))))
    assert summaries(found) == [
        "r2 of m goes to n2, device 0",
        "r1 is to stop: its entry changed",
    ]


def test_a_catalog_that_is_not_valid_would_be_rejected() -> None:
    bad = Catalog(models=(entry("m", engine="none"),))
    found = asked(two_nodes().state, *whatif.with_catalog(bad))
    assert [decision.type for decision in found.decisions] == ["catalog.rejected"]


def test_another_policy_places_what_is_still_to_be_placed_elsewhere() -> None:
    nodes = [fact for n in ("n1", "n2") for fact in joined(n, card(0), card(1))]
    story = Story().given(*nodes, applied(entry("m", gib=10, replicas=2)))
    found = asked(story.state, *whatif.with_policy(story.state, "pack"))
    assert len({decision.summary.split()[4] for decision in found.decisions}) == 1
    assert found.instead_of
    with pytest.raises(KeyError):
        whatif.with_policy(story.state, "pack", "other")


def test_a_node_that_does_not_exist_cannot_be_lost() -> None:
    with pytest.raises(KeyError):
        whatif.without_node(two_nodes().state, "n9")


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 1_000_000))
def test_it_can_be_asked_anywhere_in_any_history(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    state = Cluster()
    for place in range(len(simulation.log.messages)):
        apply(state, simulation.log.record(place))
        if place % 50 == 0 and state.nodes:
            node = next(iter(state.nodes))
            asked(state, *whatif.without_node(state, node))
            asked(state, *whatif.with_node(inventory("another", card(0))))
            asked(state, Fact(e.CatalogApplied(catalog=Catalog())))
