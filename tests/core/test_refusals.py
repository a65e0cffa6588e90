"""What became impossible between deciding and folding is void: counted, and without effect."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.core import events as e
from llmgw.core.refusals import refuses
from llmgw.testing.builders import (
    GIB,
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


def story() -> Story:
    """A lead of term 3, one node, one free card, one replica on the other card."""
    told = Story().given(*joined("n1", card(0), card(1), processor()), elected(3), applied(M))
    return told.decided()


M = entry("m", "l40s-48g", "cpu", replicas=1)


def assigned(**fields: object) -> e.ReplicaAssigned:
    values: dict[str, object] = {
        "term": 3,
        "at": 1,
        "replica": "r2",
        "model": "m",
        "generation": 1,
        "catalog": 4,
        "parts": (at(1),),
        "reasons": (),
    }
    return e.ReplicaAssigned(**(values | fields))  # type: ignore[arg-type]


def at(*devices: int, node: str = "n1", gib: float = 10) -> e.PartPlacement:
    return e.PartPlacement(node=node, devices=devices, memory_bytes=int(gib * GIB))


def test_what_is_possible_is_not_refused() -> None:
    told = story()
    assert refuses(told.state, assigned()) is None
    told.given(assigned())
    assert told.state.replicas["r2"].parts[0].devices == (1,)


IMPOSSIBLE = [
    (elected(3), "term 3 does not follow 3"),
    (elected(2**53 - 1), f"term {2**53 - 1} does not follow 3"),
    (assigned(term=2), "term 2 does not lead; 3 does"),
    (assigned(term=4), "term 4 does not lead; 3 does"),
    (e.NodeLost(term=3, node="n7", silent_seconds=1), "no node n7"),
    (e.NodeReturned(term=3, node="n1"), "n1 is there already"),
    (e.CatalogAccepted(term=3, at=1, request=4), "the catalog of 4 is not waiting for an answer"),
    (
        e.CatalogRejected(term=3, at=1, request=9, reasons=()),
        "the catalog of 9 is not waiting for an answer",
    ),
    (e.ModelLeftUnplaced(term=3, at=1, model="o", missing=1, refusals={}), "no model o"),
    (e.ReplicaRetired(term=3, at=1, replica="r9", reason=""), "no replica r9"),
    (assigned(model="o"), "no model o"),
    (assigned(catalog=3), "the catalog of 3 is not in force"),
    (assigned(replica="r7"), "the next replica is r2, not r7"),
    (assigned(parts=()), "0 parts are not the 1 of m"),
    (assigned(parts=(at(1), at(1))), "2 parts are not the 1 of m"),
    (assigned(parts=(at(1, 1),)), "n1: 2 devices are not what m needs"),
    (assigned(parts=(at(0, node="n7"),)), "n7: no such node"),
    (assigned(parts=(at(7),)), "n1 device 7: no such device"),
    (assigned(parts=(at(0),)), "n1 device 0: in use"),
    (assigned(parts=(at(900, gib=20),), catalog=4, model="big"), "no model big"),
    (
        assigned(parts=(at(1, gib=1),)),
        f"n1: {GIB} bytes are not what m needs",
    ),
]


@pytest.mark.parametrize(("intention", "reason"), IMPOSSIBLE, ids=[r for _, r in IMPOSSIBLE])
def test_a_void_decision_says_why_and_changes_nothing(
    intention: e.ControllerEvent, reason: str
) -> None:
    told = story()
    before = msgspec.to_builtins(told.state)
    assert refuses(told.state, intention) == reason
    told.given(intention)
    after = msgspec.to_builtins(told.state)
    assert told.state.incidents[-1].detail == reason
    moved = {key for key in after if after[key] != before[key]}
    assert moved == {"sequence", "time_ns", "void", "incidents", "last_controller_sequence"}


def test_a_node_that_left_before_the_decision_came_makes_it_void() -> None:
    told = story().given(e.NodeStopped(engines="stopped"))
    assert refuses(told.state, assigned()) == "n1: node stopped"


def test_a_card_that_became_hot_before_the_decision_came_makes_it_void() -> None:
    hot = e.Condition(device=1, name="hot", detail="90 °C")
    told = story().given(e.NodeConditionsChanged(conditions=(hot,)))
    assert refuses(told.state, assigned()) == "n1 device 1: hot"


def test_a_card_that_is_gone_before_the_decision_came_makes_it_void() -> None:
    smaller = inventory("n1", card(0), processor())
    told = story().given(started("b2"), e.NodeInventoryTaken(inventory=smaller))
    assert refuses(told.state, assigned()) == "n1 device 1: no such device"


def test_a_replica_is_retired_once() -> None:
    told = serving(M, nodes=[joined("n1", card(0))])
    retired = e.ReplicaRetired(term=1, at=1, replica="r1", reason="enough")
    told.given(retired)
    assert refuses(told.state, retired) == "r1 is retired already"


def test_a_lost_node_is_lost_once() -> None:
    told = story().given(e.NodeLost(term=3, node="n1", silent_seconds=20))
    lost = e.NodeLost(term=3, node="n1", silent_seconds=20)
    assert refuses(told.state, lost) == "n1 is lost already"
