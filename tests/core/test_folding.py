"""The short way from bytes to state and the long one end in the same state, whatever the bytes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.testing.invariants import snapshot
from tests.benchmarks.history import Fleet

HISTORIES = sorted((Path(__file__).parent.parent / "histories").glob("*.jsonl"))


def messages(path: Path) -> list[Message]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        Message(m["sequence"], m["time_ns"], m["subject"], m["payload"].encode())
        for m in map(json.loads, lines)
    ]


def fleet() -> list[Message]:
    """A busy hour of three nodes, in which much is said again."""
    told = Fleet(nodes=3, models=4, replicas=8).take(600)
    return [Message(n, n, m.subject, m.payload) for n, m in enumerate(told, start=1)]


def one_by_one(found: list[Message]) -> Cluster:
    state = Cluster()
    for m in found:
        apply(state, wire.decode(m.sequence, m.time_ns, m.subject, m.payload))
    return state


def at_once(found: list[Message]) -> Cluster:
    state = Cluster()
    fold(state, found)
    return state


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_history_folds_to_the_same_state_both_ways(path: Path) -> None:
    found = messages(path)
    assert len(found) > 10
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))


def test_a_busy_fleet_folds_to_the_same_state_both_ways() -> None:
    found = fleet()
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))


@given(cuts=st.lists(st.integers(0, 600), max_size=20))
def test_in_which_pieces_messages_come_makes_no_difference(cuts: list[int]) -> None:
    found, state = fleet(), Cluster()
    ends = [0, *sorted(cuts), len(found)]
    for begin, end in itertools.pairwise(ends):
        fold(state, iter(found[begin:end]))
    assert snapshot(state) == snapshot(one_by_one(found))


@given(
    found=st.sampled_from([*map(messages, HISTORIES), fleet()]),
    places=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.binary())),
    doubled=st.lists(st.integers(0, 10_000)),
)
def test_broken_and_doubled_messages_do_the_same_both_ways(
    found: list[Message], places: list[tuple[int, int, bytes]], doubled: list[int]
) -> None:
    found = list(found)
    for which, where, put in places:
        m = found[which % len(found)]
        at = where % (len(m.payload) + 1)
        payload = m.payload[:at] + put + m.payload[at + len(put) :]
        found[which % len(found)] = Message(m.sequence, m.time_ns, m.subject, payload)
    for which in doubled:
        m = found[which % len(found)]
        last = found[-1]
        found.append(Message(last.sequence + 1, last.time_ns, m.subject, m.payload))
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))


@pytest.mark.parametrize(
    "subject",
    [
        "elsewhere",
        "llmgw.v1.c.event.node.n1.replica.danced",
        "llmgw.v1.c.event.controller.replica.ready",
        "llmgw.v1.c.command.n1",
    ],
)
def test_what_is_not_a_fact_of_a_node_goes_the_long_way(subject: str) -> None:
    found = [Message(7, 9, subject, b"{}")]
    state = at_once(found)
    assert (state.sequence, state.time_ns) == (7, 9)
    assert state.unreadable + state.unknown == 1
    assert snapshot(state) == snapshot(one_by_one(found))


NAMES = {
    "replica.starting": "replica",
    "replica.ready": "replica",
    "replica.failed": "replica",
    "replica.stopped": "replica",
    "replica.adopted": "replica",
    "replica.retired": "replica",
    "replica.assigned": "replica",
    "node.lost": "node",
    "node.returned": "node",
}


@pytest.mark.parametrize("name", ["r r", "", "r" * 64, "r9999", "ä", 'r1","x":"'])
@pytest.mark.parametrize("kind", NAMES)
def test_a_name_that_the_state_has_not_is_judged_as_ever(kind: str, name: str) -> None:
    found = fleet()
    at = next(n for n, m in enumerate(found) if m.subject.endswith(kind))
    read = json.loads(found[at].payload)
    read["data"][NAMES[kind]] = name
    payload = json.dumps(read).encode()
    found[at] = Message(found[at].sequence, found[at].time_ns, found[at].subject, payload)
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))


def test_a_placement_on_a_node_whose_name_is_none_is_judged_as_ever() -> None:
    found = fleet()
    at = next(n for n, m in enumerate(found) if m.subject.endswith("replica.assigned"))
    read = json.loads(found[at].payload)
    read["data"]["parts"][0]["node"] = "n n"
    payload = json.dumps(read).encode()
    found[at] = Message(found[at].sequence, found[at].time_ns, found[at].subject, payload)
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))
