"""The short way from bytes to state and the long one end in the same state, whatever the bytes."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw import folding, wire
from llmgw.catalog.entries import Entry, Labels
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.events import EVENTS
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.rereading import READERS
from llmgw.testing.builders import (
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
    return [*_fleet()]


@cache
def _fleet() -> list[Message]:
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
        fold(state, found[begin:end])
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
    "assignments.set": "node",
}


def place_of(kind: str, found: list[Message]) -> int:
    """Where the first message of a type is."""
    return next(n for n, m in enumerate(found) if f'"type":"llmgw.{kind}"'.encode() in m.payload)


@pytest.mark.parametrize("name", ["r r", "", "r" * 64, "r9999", "ä", 'r1","x":"'])
@pytest.mark.parametrize("kind", NAMES)
def test_a_name_that_the_state_has_not_is_judged_as_ever(kind: str, name: str) -> None:
    found = fleet()
    at = place_of(kind, found)
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


FIRST_VALUES = ['"r r"', '"\\ud800"', '"r1"', '"r1\\n"', '""', "7", "null", "[]", '{"a":[1]}']
ANOTHER_WAY = ['"{0}" : ', '"{1}{2}":']
"""How a key may be written: with space behind it, and with an escape in it."""


@pytest.mark.parametrize(
    ("written", "value"),
    [*[('"{0}":', value) for value in FIRST_VALUES], *[(key, '"r r"') for key in ANOTHER_WAY]],
)
@pytest.mark.parametrize(("kind", "name"), [*NAMES.items(), ("replica.assigned", "node")])
def test_of_a_name_that_is_there_twice_the_last_value_counts(
    kind: str, name: str, written: str, value: str
) -> None:
    """As with other readers of JSON, whether the first is looked at or not."""
    found = fleet()
    at = place_of(kind, found)
    as_it_was = snapshot(one_by_one(found))
    m, key = found[at], f'"{name}":'
    first = written.format(name, f"\\u{ord(name[0]):04x}", name[1:]) + value
    payload = m.payload.decode().replace(key, f"{first},{key}", 1).encode()
    found[at] = Message(m.sequence, m.time_ns, m.subject, payload)
    state = at_once(found)
    assert snapshot(state) == snapshot(one_by_one(found))
    is_json = "ud800" not in value
    assert (snapshot(state) == as_it_was) == is_json


@pytest.mark.parametrize("kind", [*EVENTS, SetAssignments.wire])
def test_every_type_is_folded_both_ways(kind: str) -> None:
    """What has no handler would be raised out of the fold, and end a controller at each start."""
    event = EVENTS.get(kind)
    subject = wire.event_subject("c", event, "n1") if event else wire.command_subject("c", "n1")
    found = [Message(1, 1, subject, b"{}")]
    state = at_once(found)
    assert state.unreadable == 1
    assert snapshot(state) == snapshot(one_by_one(found))


@pytest.mark.parametrize("limit", ["MOST_PLANS", "MOST_READERS", "READ_AT_ONCE"])
def test_a_small_limit_changes_no_state(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, limit, 2)
    plans = folding._Plans()
    monkeypatch.setattr(folding, "_PLANS", plans)
    found = fleet()
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))
    readers = [p for p in plans.values() if p.checked_bytes > wire.SHALLOW_BYTES]
    assert len(plans) <= folding.MOST_PLANS
    assert len(readers) <= folding.MOST_READERS


@pytest.mark.parametrize("kind", ["node.started", "replica.starting", "replica.retired"])
def test_what_nests_too_deep_is_unreadable_both_ways(kind: str) -> None:
    found = fleet()
    at = place_of(kind, found)
    m = found[at]
    inside = b'"x":' + b"[" * 40 + b"]" * 40 + b',"y":"' + b"y" * wire.SHALLOW_BYTES + b'",'
    payload = m.payload.replace(b'"data":{', b'"data":{' + inside, 1)
    found[at] = Message(m.sequence, m.time_ns, m.subject, payload)
    state = at_once(found)
    assert snapshot(state) == snapshot(one_by_one(found))
    assert state.unreadable == 1


def test_subjects_that_somebody_made_up_leave_room_for_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folding, "MOST_PLANS", 20)
    monkeypatch.setattr(folding, "MOST_READERS", 10)
    plans = folding._Plans()
    monkeypatch.setattr(folding, "_PLANS", plans)
    made_up = [Message(n, n, wire.command_subject("c", f"x{n}"), b"{}") for n in range(1, 51)]
    fold(Cluster(), made_up)
    readers = [p for p in plans.values() if p.checked_bytes > wire.SHALLOW_BYTES]
    assert len(readers) == 10


def test_a_reader_that_makes_a_mistake_costs_time_and_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def mistaken(_payload: bytes) -> object:
        raise KeyError("what nobody thought of")

    class Mistaken:
        def __init__(self, _read: object) -> None:
            self.read = mistaken

    monkeypatch.setattr(folding, "READERS", dict.fromkeys(READERS, Mistaken))
    monkeypatch.setattr(folding, "_PLANS", folding._Plans())
    found = fleet()
    assert snapshot(at_once(found)) == snapshot(one_by_one(found))


def test_a_record_at_which_reading_itself_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_message: object) -> Record:
        raise KeyError("what nobody thought of")

    monkeypatch.setattr(folding, "decode", mistaken)
    state = at_once([*fleet()[:20], Message(21, 21, "elsewhere", b"{}")])
    assert (state.incidents[-1].sequence, state.incidents[-1].kind) == (21, "failed")


# --- told anew, and the same but for how it is written -------------------------------------------


def numbered(*facts: object) -> list[Message]:
    story = Story().given(*facts)  # type: ignore[arg-type]
    return [Message(n, n, m.subject, m.payload) for n, m in enumerate(story.log, start=1)]


SAME_BUT_FOR_WRITING = [
    (entry("m", env={"A": "1", "B": "2"}), entry("m", env={"B": "2", "A": "1"})),
    (
        entry("m", labels=Labels(require={"a": "1", "b": "2"})),
        entry("m", labels=Labels(require={"b": "2", "a": "1"})),
    ),
    (entry("m", liveness_seconds=0.0), entry("m", liveness_seconds=-0.0)),
]


@pytest.mark.parametrize("entries", SAME_BUT_FOR_WRITING)
def test_the_catalog_in_force_is_written_as_it_was_told_last(entries: tuple[Entry, Entry]) -> None:
    """Equal to the last one, and yet an engine may look at the order of its environment."""
    first, last = entries
    assert first == last
    accepted = [e.CatalogAccepted(term=1, at=at, request=at) for at in (2, 4)]
    found = numbered(elected(), applied(first), accepted[0], applied(last), accepted[1])
    state = at_once(found)
    assert snapshot(state) == snapshot(one_by_one(found))
    assert msgspec.json.encode(state.models["m"].entry) == msgspec.json.encode(last)
    assert state.models["m"].one.env == last.env
    assert [*state.models["m"].one.env] == [*last.env]


def test_the_inventory_is_written_as_it_was_told_last() -> None:
    told = [
        e.NodeInventoryTaken(
            inventory=inventory("n1", replace(processor(), utilization_percent=zero))
        )
        for zero in (0.0, -0.0)
    ]
    assert told[0] == told[1]
    found = numbered(started(), *told)
    state = at_once(found)
    assert snapshot(state) == snapshot(one_by_one(found))
    node = state.nodes["n1"]
    assert msgspec.json.encode(node.inventory) == msgspec.json.encode(told[1].inventory)
    assert msgspec.json.encode(node.devices[900]) == msgspec.json.encode(
        told[1].inventory.devices[0]
    )


def test_an_inventory_that_gives_a_number_twice_does_the_same_each_time_it_is_told() -> None:
    """It takes the device of a replica away, also of one that has failed since."""
    story = serving(entry("m"), nodes=[joined("n1", card(0))])
    many = [card(n, uuid=f"GPU-other-{n}") for n in range(8)]  # long enough to be remembered
    other = e.NodeInventoryTaken(inventory=inventory("n1", *many, card(0, uuid="GPU-new")))
    failed = e.ReplicaFailed(replica="r1", generation=1, reason="it ended", retry_seconds=1.0)
    story.given(other, failed, other, failed, other)
    found = [Message(n, n, m.subject, m.payload) for n, m in enumerate(story.log, start=1)]
    state = at_once(found)
    assert snapshot(state) == snapshot(one_by_one(found))
    assert state.replicas["r1"].parts[0].phase == "lost"
