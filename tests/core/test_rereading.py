"""What was read before is not read again, and what is read is the same as if it were."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.rereading import MOST_REMEMBERED_BYTES, READERS
from llmgw.testing.invariants import snapshot
from tests.benchmarks.history import Fleet

LOG = Fleet(nodes=1, models=4, replicas=8).take(400)
OFTEN = ("assignments.set", "node.inventory")


def of(kind: str) -> list[wire.Outgoing]:
    """The log's messages of a type; each is longer than what needs no check of its depth."""
    found = [m for m in LOG if f'"type":"llmgw.{kind}"'.encode() in m.payload]
    return [m for m in found if len(m.payload) > wire.SHALLOW_BYTES]


def deep(depth: int) -> bytes:
    return b'"x":' + b"[" * depth + b"]" * depth + b","


def deep_objects(depth: int) -> bytes:
    return b'"x":' + b'{"a":' * depth + b"1" + b"}" * depth + b","


def with_spaces(payload: bytes) -> bytes:
    return json.dumps(json.loads(payload), indent=1).encode()


Change = Callable[[bytes], bytes]

CHANGES: dict[str, Change] = {
    "as it was": lambda p: p,
    "with spaces": with_spaces,
    "keys in another order": lambda p: json.dumps(json.loads(p), sort_keys=True).encode(),
    "cut off": lambda p: p[:-1],
    "another end": lambda p: p[:-1] + b"]",
    "with something behind it": lambda p: p + b" x",
    "with space behind it": lambda p: p + b" ",
    "a field behind the data": lambda p: p[:-1] + b',"session":"other"}',
    "an object behind the data": lambda p: p[:-1] + b',"session":"other","x":{}}',
    "data twice": lambda p: p[:-1] + b',"data":{}}',
    "data before it": lambda p: p.replace(b',"data":', b',"data":{"x":1},"data":', 1),
    "its own key in a string": lambda p: p.replace(
        b'"id":"', rb'"id":"\",\"data\":{\"inventory\":{},\"assignments\":[{\"replica\":', 1
    ),
    "the list before it": lambda p: p.replace(
        b',"assignments":', b',"assignments":[1],"assignments":', 1
    ),
    "the list before it, with an escape": lambda p: p.replace(
        b',"assignments":', rb',"\u0061ssignments":[1],"assignments":', 1
    ),
    "the inventory before it": lambda p: p.replace(
        b'{"inventory":', b'{"inventory":1,"inventory":'
    ),
    "another object around it": lambda p: p.replace(b',"data":', b',"x":{"data":', 1) + b"}",
    "a long head": lambda p: p.replace(b'"id":"', b'"id":"' + b"i" * 2_000, 1),
    "a huge head": lambda p: p.replace(b'"id":"', b'"id":"' + b"i" * wire.MAX_PAYLOAD_BYTES, 1),
    "a deep head": lambda p: p.replace(b'"id":', deep(40) + b'"id":', 1),
    "a deep head of objects": lambda p: p.replace(b'"id":', deep_objects(40) + b'"id":', 1),
    "a head that is not too deep": lambda p: p.replace(b'"id":', deep(20) + b'"id":', 1),
    "deep inside": lambda p: p.replace(b'{"replica":', b"{" + deep(40) + b'"replica":', 1),
    "one level too deep inside": lambda p: p.replace(b'],"grants"', b"]," + deep(30) + b'"grants"'),
    "as deep as can be inside": lambda p: p.replace(b'],"grants"', b"]," + deep(29) + b'"grants"'),
    "a name that is none": lambda p: p.replace(b'{"replica":"r', b'{"replica":"r r', 1),
    "a number that is none": lambda p: p.replace(b'"gpus":2', b'"gpus":"2"'),
    "what parts the list in a string": lambda p: p.replace(
        b'"--max-num-seqs"', rb'"},{\"replica\":\"r9"', 1
    ),
    "what parts the list in an object": lambda p: p.replace(
        b'"devices":', b'"x":[{"a":{"b":1},"c":[{"a":1},{"replica":"r9"}]}],"devices":', 1
    ),
    "bytes that are no text": lambda p: p.replace(b'"--max-num-seqs"', b'"\xff"', 1),
    "another card": lambda p: p.replace(b"NVIDIA H100", b"NVIDIA H200", 1),
    "no list": lambda p: p.partition(b',"assignments":')[0] + b"}}",
    "somebody else's": lambda p: p.replace(b'"source":"/llmgw/', b'"source":"/x/', 1),
    "another version": lambda p: p.replace(b'"dataversion":1', b'"dataversion":2', 1),
    "longer than what is remembered": lambda p: p.replace(
        b'"--max-num-seqs"', b'"' + b"a" * MOST_REMEMBERED_BYTES + b'"', 1
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", OFTEN)
def test_it_is_read_as_if_nothing_had_been_read_before(kind: str, change: str) -> None:
    """The reader reads a message, that message changed, and again: the state is the same."""
    first, *more = of(kind)
    again = wire.Outgoing(first.subject, CHANGES[change](first.payload), "again")
    log = [*LOG, first, again, again, first, again, *more, again]
    found = [Message(n, n, m.subject, m.payload) for n, m in enumerate(log, start=1)]
    fast, slow = Cluster(), Cluster()
    fold(fast, found)
    for m in found:
        apply(slow, wire.decode(m.sequence, m.time_ns, m.subject, m.payload))
    assert snapshot(fast) == snapshot(slow)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", OFTEN)
def test_a_reader_takes_nothing_for_valid_that_is_not(kind: str, change: str) -> None:
    """It may send a message the long way, but what it returns is what the whole message says."""
    first, *_ = of(kind)
    route = wire.route_of(first.subject)
    assert route is not None
    assert route.decode is not None
    reader = READERS[kind](route.decode)
    payload = CHANGES[change](first.payload)
    for known in (first.payload, payload, payload, first.payload, payload):
        try:
            read = reader.read(known)
        except wire.UNDECODABLE:
            continue
        wire.check_size_and_depth(known)
        whole = route.decode(known)
        if kind == "assignments.set":
            whole = msgspec.structs.replace(
                whole, data=msgspec.structs.replace(whole.data, assignments=read.data.assignments)
            )
        assert read == whole


def shares_read(kind: str, payload: bytes) -> list[float]:
    """Read a message twice, and return how much of it the decoder was asked for each time."""
    first, *_ = of(kind)
    route = wire.route_of(first.subject)
    assert route is not None
    assert route.decode is not None
    decode, lengths = route.decode, []

    def read(asked: bytes) -> object:
        lengths.append(len(asked))
        return decode(asked)

    reader = READERS[kind](read)
    reader.read(payload)
    reader.read(payload)
    return [length / len(payload) for length in lengths]


@pytest.mark.parametrize("kind", OFTEN)
def test_what_is_said_again_is_not_read_again(kind: str) -> None:
    first, *_ = of(kind)
    assert shares_read(kind, first.payload)[1] < 0.5


@pytest.mark.parametrize("kind", OFTEN)
def test_what_is_long_is_not_remembered(kind: str) -> None:
    first, *_ = of(kind)
    key = b'"generation":' if kind == "assignments.set" else b'"backend":'
    long = first.payload.replace(key, b'"x":"' + b"x" * MOST_REMEMBERED_BYTES + b'",' + key, 1)
    assert shares_read(kind, long) == [1, 1]


def test_what_nobody_looked_into_because_it_was_short_is_looked_into_in_a_longer_message() -> None:
    """A short message may nest deep. The same in a longer one may not, whatever was read before."""
    first, *_ = of("node.inventory")
    head, _, _ = first.payload.partition(b',"data":')
    data = b',"data":{"inventory":{' + deep(200) + b'"node":"n","backend":"b"}}}'
    long_head = head.replace(b'"id":"', b'"id":"' + b"i" * 600, 1)
    assert len(long_head) < wire.SHALLOW_BYTES
    assert len(head + data) <= wire.SHALLOW_BYTES < len(long_head + data)
    found = [
        Message(n, n, first.subject, payload.replace(b'"number":2', b'"number":%d' % n))
        for n, payload in enumerate([head + data, long_head + data, head + data], start=1)
    ]
    fast, slow = Cluster(), Cluster()
    fold(fast, found)
    for m in found:
        apply(slow, wire.decode(m.sequence, m.time_ns, m.subject, m.payload))
    assert snapshot(fast) == snapshot(slow)
    assert slow.unreadable == 1
