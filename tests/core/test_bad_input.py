"""Everything bad that a log can hold, and what comes of it: a table, one line a kind.

Whatever it is, the log folds on, what was there is shown as before, what is bad is shown for what
it is, and views of any kind are made. Only a newer version stops deciding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import pytest

from llmgw import views, wire
from llmgw.cli.tables import view_lines
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.records import Record, Unreadable
from llmgw.folding import fold
from llmgw.testing.invariants import check, restored, snapshot
from llmgw.views.explain import Explanations
from tests.core import golden
from tests.views.history import CLUSTER, NOON_NS, SECOND_NS, History, serving, started

ODD = ("unreadable", "unknown", "void", "duplicates", "unexpected", "gaps")


class Stored(NamedTuple):
    """A message as a log holds it."""

    sequence: int
    time_ns: int
    subject: str
    payload: bytes


def looked_at(records: list[Record]) -> Cluster:
    """Fold records, look at them in every way that there is, and return the state."""
    state = Cluster()
    for record in records:
        apply(state, record)
    check(state)
    assert snapshot(restored(snapshot(state))) == snapshot(state)
    decide(state)
    shown: list[Any] = [views.shown(name, state, CLUSTER) for name in views.VIEWS]
    for view in (*shown, views.events(records), views.rejected(records)):
        msgspec.json.encode(view)
        for wide in (True, False):
            assert all(isinstance(line, str) for line in view_lines(view, wide))
    for name in ("r1", "tiny", "n1", "n2"):
        explanations = Explanations(name)
        for record in records:
            explanations.take(record)
        msgspec.json.encode(explanations.found())
    return state


def message_of(event: e.Event, node: str = "n1", **fields: object) -> wire.Outgoing:
    """Return the message of an event, with other envelope fields."""
    found = wire.encode_event(
        CLUSTER, event, node=node, session="s2", number=1, time="2026-03-01T12:00:00Z"
    )
    return found._replace(payload=json.dumps(json.loads(found.payload) | fields).encode())


STARTED = message_of(e.NodeStarted(boot_id="b1", agent_version="1"))
TEXT = STARTED.payload.decode()
READY = e.ReplicaBecameReady(
    replica="r1", generation=1, address="127.0.0.1", port=1, pid=1, seconds=1.0
)
SAID = msgspec.to_builtins(READY)


def other(payload: bytes | str, subject: str = STARTED.subject) -> wire.Outgoing:
    payload = payload.encode() if isinstance(payload, str) else payload
    return wire.Outgoing(subject, payload, "bad")


def subject_of(rest: str) -> str:
    return f"llmgw.v1.{CLUSTER}.{rest}"


UNREADABLE: dict[str, wire.Outgoing] = {
    "nothing at all": other(b""),
    "half of it": other(TEXT[:-9]),
    "two of it": other(TEXT * 2),
    "bytes that are no text": other(b"\xff\xfe\x00\x01"),
    "text that is no JSON": other("hello"),
    "JSON that is no object": other("[1, 2]"),
    "more than 1 MiB": message_of(e.NodeStarted(boot_id="b", agent_version="1"), data="x" * 2**20),
    "nested 2,000 deep": other("[" * 2_000 + "]" * 2_000),
    "nested and never closed": other('{"a":' * 100_000),
    "NaN": other(TEXT.replace('"number": 1', '"number": NaN')),
    "infinity": other(TEXT.replace('"number": 1', '"number": -Infinity')),
    "a number beyond all numbers": other(
        message_of(READY).payload.decode().replace('"seconds": 1.0', '"seconds": 1e999'),
        message_of(READY).subject,
    ),
    "an integer of 5,000 digits": other(TEXT.replace('"number": 1', '"number": ' + "9" * 5_000)),
    "an integer that JavaScript cannot keep": message_of(READY, data={**SAID, "pid": 2**53}),
    "a count below zero": message_of(READY, data={**SAID, "pid": -1}),
    "half a character": other(TEXT.replace("b1", "\\ud800")),
    "a field of another type": message_of(READY, data={**SAID, "pid": "1"}),
    "a field that is missing": message_of(READY, data={}),
    "another specification": message_of(READY, specversion="0.3"),
    "an older version that never was": message_of(READY, dataversion=0),
    "an acknowledgement of JetStream's": other('{"stream":"LLMGW_test_LOG","seq":9}'),
    "the source of another node": message_of(READY, source=f"/llmgw/{CLUSTER}/node/n2"),
    "the source of another cluster": message_of(READY, source="/llmgw/other/node/n1"),
    "the type of another subject": message_of(READY, type="llmgw.replica.failed"),
    "a newer version in another's name": message_of(READY, dataversion=2, source="/x"),
    "a version of 300 digits": other(TEXT.replace('version": 1', 'version": ' + "9" * 300)),
    "a subject that is none of ours": other(TEXT, subject_of("event.stranger.n1.node.started")),
    "a node with a name that is none": other(TEXT, subject_of("event.node.ä.node.started")),
    "a command that is none": other("{}", subject_of("command.n1")),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_set_apart_and_shown(kind: str) -> None:
    history = serving()
    before = looked_at(history.records)
    after = looked_at(history.store(UNREADABLE[kind]).records)
    assert odd(after) == {**odd(before), "unreadable": before.unreadable + 1}
    assert after.needs_upgrade is None
    assert what_matters(after) == what_matters(before)
    (row,) = views.rejected(history.records)
    assert (row.sequence, row.kind) == (len(history.records), "unreadable")
    assert 0 < len(row.detail) < 5_000
    assert "\n" not in row.detail


def odd(state: Cluster) -> dict[str, int]:
    return {name: getattr(state, name) for name in ODD}


def what_matters(state: Cluster) -> list[bytes]:
    """Return what is shown of nodes, devices and replicas."""
    return [
        msgspec.json.encode(views.shown(name, state, CLUSTER))
        for name in ("nodes", "devices", "replicas")
    ]


Bad = Callable[[History], object]
OTHERWISE: dict[str, tuple[Bad, dict[str, int], list[str]]] = {
    "an unknown type": (
        lambda h: h.store(other("{}", subject_of("event.node.n1.node.sang"))),
        {"unknown": 1},
        ["unknown type"],
    ),
    "a type under the subject of others": (
        lambda h: h.store(other("{}", subject_of("event.node.n1.controller.elected"))),
        {"unknown": 1},
        ["unknown type"],
    ),
    "an unknown field": (
        lambda h: h.store(message_of(e.NodeStopped(engines="stopped"), colour="green")),
        {},
        [],
    ),
    "a key that comes twice": (
        lambda h: h.store(other(TEXT.replace('"number": 1', '"number": 7, "number": 1'))),
        {},
        [],
    ),
    "the same message twice": (lambda h: h.again(), {"duplicates": 1}, ["duplicate"]),
    "a number from before": (
        lambda h: h.store(
            other(TEXT.replace('"session": "s2"', '"session": "s1"').replace('ber": 1', 'ber": 2'))
        ),
        {"duplicates": 1},
        ["duplicate"],
    ),
    "numbers that were left out": (
        lambda h: h.store(
            message_of(e.NodeStopped(engines="stopped"), session=h.records[1].session, number=900)
        ),
        {"gaps": 1},
        ["gap"],
    ),
    "ready twice, in two reports": (lambda h: h.write(READY, "n1"), {"unexpected": 1}, []),
    "a report of an older generation": (
        lambda h: h.write(msgspec.structs.replace(READY, generation=0), "n1"),
        {},
        [],
    ),
    "a report of another node": (lambda h: h.write(READY, "n2"), {}, []),
    "a decision of a term that is over": (
        lambda h: h.write(e.ReplicaRetired(term=0, at=8, replica="r1", reason="late")),
        {"void": 1},
        ["void"],
    ),
    "a decision on what is not there": (
        lambda h: h.write(e.ReplicaRetired(term=1, at=8, replica="r9", reason="no")),
        {"void": 1},
        ["void"],
    ),
    "a command of a term that is over": (
        lambda h: h.command(SetAssignments(node="n1", revision=1, term=0, at=8)),
        {"void": 1},
        ["void"],
    ),
    "a command that nobody decided": (
        lambda h: h.command(SetAssignments(node="n1", revision=2**53 - 1, term=1, at=8)),
        {"void": 1},
        ["void"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERWISE)
def test_what_is_readable_and_wrong_is_counted_for_what_it_is(kind: str) -> None:
    bad, counts, kinds = OTHERWISE[kind]
    history = serving()
    before = looked_at(history.records)
    bad(history)
    after = looked_at(history.records)
    assert odd(after) == {**odd(before), **counts}
    assert [row.kind for row in views.rejected(history.records)] == kinds
    assert after.needs_upgrade is None
    started(history, "n3")
    assert "n3" in looked_at(history.records).nodes


def test_a_newer_version_stops_deciding_and_nothing_else() -> None:
    history = serving()
    before = looked_at(history.records)
    history.store(message_of(READY, dataversion=2, data={"anything": [1, 2]}))
    after = looked_at(history.records)
    assert what_matters(after) == what_matters(before)
    assert after.needs_upgrade == "replica.ready version 2"
    assert [row.kind for row in views.rejected(history.records)] == ["newer version"]
    started(history, "n3")
    assert "n3" in looked_at(history.records).nodes
    assert decide(looked_at(history.records)) == []


CLOCKS: dict[str, Callable[[int], int]] = {
    "stands still": lambda n: NOON_NS,
    "goes back": lambda n: NOON_NS - n * SECOND_NS,
    "jumps ahead": lambda n: NOON_NS + (10**18 if n > 4 else 0),
    "jumps ahead and back": lambda n: NOON_NS + (10**18 if n % 2 else 0),
    "is before 1970": lambda n: -n * SECOND_NS,
    "is at zero": lambda n: 0,
    "is beyond the year 9999": lambda n: 2**62 + n,
}


@pytest.mark.parametrize("kind", CLOCKS)
def test_the_clock_of_the_log_may_be_any(kind: str) -> None:
    records = serving().records
    times = [CLOCKS[kind](record.sequence) for record in records]
    moved = [
        msgspec.structs.replace(record, time_ns=time)
        for record, time in zip(records, times, strict=True)
    ]
    assert looked_at(moved).replicas.keys() == looked_at(records).replicas.keys()


@pytest.mark.parametrize("time", ["", "now", "0000-00-00T00:00:00Z", "9999-12-31T23:59:59Z", 7])
def test_the_clock_of_a_writer_is_never_read(time: object) -> None:
    history = serving().store(message_of(e.NodeStopped(engines="stopped"), time=time))
    state = looked_at(history.records)
    assert (state.unreadable, state.nodes["n1"].started) == (0, False)


@pytest.mark.parametrize("left_out", range(8))
def test_a_record_that_is_missing_stops_no_view(left_out: int) -> None:
    """A reader of the log says so; but a state made without it, from an archive, must stand."""
    records = serving().records
    looked_at([*records[:left_out], *records[left_out + 1 :]])


# --- every value of every message, replaced by the worst that JSON can say -----------------------

WORST = (
    *("null", "true", "0", "-1", "1.5", '""', "[]", "{}", "[[]]", "[1, 1]"),
    *(str(2**53 - 1), str(2**53), str(1 - 2**53), str(2**64 - 1), "9" * 400, "-" + "9" * 400),
    *("1e308", "-1e308", "1e-320", '"1e999"', '"\\u0000\\u001b[2J\\u202e"'),
    *(f'"{unit * (65_000 // len(unit))}"' for unit in ("x", "a.", "a-", "a:", "/a@", "eyJ-", "{")),
)  # fmt: skip


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterable[tuple[str | int, ...]]:  # noqa: ANN401
    """Yield the way to every value in a document, and to the document itself."""
    yield path
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from places(inner, (*path, key))


def with_value(document: Any, path: tuple[str | int, ...], value: str) -> bytes:  # noqa: ANN401
    """Return the document as JSON with another value in one place."""
    marked = json.loads(json.dumps(document))
    holder = marked
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = "(here)"
    return json.dumps(marked).replace('"(here)"', value).encode()


def examples() -> dict[str, wire.Outgoing]:
    """Return one message of each type that speaks of what the history of these tests holds."""
    names = {b"/llmgw/main/": b"/llmgw/test/", b"gpu-1": b"n1", b"r7": b"r1", b"qwen3-8b": b"tiny"}
    numbers = {b'"term":3': b'"term":1', b'"number":': b'"number":1000'}
    found = {}
    for name, message in golden.messages().items():
        payload = message.payload
        for old, new in (names | numbers).items():
            payload = payload.replace(old, new)
        subject = message.subject.replace(".main.", ".test.").replace("gpu-1", "n1")
        found[name] = wire.Outgoing(subject, payload, name)
    for name in ("node.sample", "node.heartbeat", "controller.heartbeat"):  # they are in no log
        del found[name]
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_value_of_any_field_stops_folding_deciding_or_viewing(name: str) -> None:
    message = EXAMPLES[name]
    document = json.loads(message.payload)
    history = serving()
    sound = history.store(message).records[-1]
    assert not isinstance(sound.body, Unreadable), sound.body.reason
    records, sequence = history.records[:-1], len(history.records)
    for path in places(document["data"], ("data",)):
        for value in WORST:
            payload = with_value(document, path, value)
            bad = wire.decode(sequence, NOON_NS, message.subject, payload)
            if not isinstance(bad.body, Unreadable):  # those have tests of their own
                looked_at([*records, bad])
            both = Cluster()
            fold(both, [Stored(sequence, NOON_NS, message.subject, payload)])
