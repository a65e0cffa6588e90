"""A million events of the log from memory: bytes to state, against decoding the bytes alone.

The floor is msgspec reading the same payloads into the same types, each with the decoder that
`llmgw.wire` would choose for it, chosen beforehand; what `llmgw.folding.fold` does beyond that
is what the measurement is about. Generated, decoded and folded in pieces that go on from each
other, so that both sides meet the same moments of a busy machine; what counts is processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from llmgw import folding, wire
from llmgw.core.cluster import Cluster
from llmgw.log.base import Message
from tests.benchmarks.history import Fleet
from tests.benchmarks.measure import Result, Turns, at_least

EVENTS = 1_000_000
PIECE = 25_000
GOAL = 0.5


def benchmark() -> Iterator[Result]:
    """Measure, and make sure that what was folded was all there and all legal."""
    fleet, state, turns = Fleet(), Cluster(), Turns(time.process_time)
    size_bytes = 0
    for piece in range(EVENTS // PIECE):
        begin = state.sequence + 1
        log = [
            Message(number, number * 1_000_000, subject, payload)
            for number, (subject, payload, _) in enumerate(fleet.take(PIECE), begin)
        ]
        size_bytes += sum(len(message.payload) for message in log)
        readers = [(decoder(message.subject), message.payload) for message in log]
        if piece % 2:
            with turns.peer():
                read(readers)
        with turns.ours():
            folding.fold(state, log)
        if not piece % 2:
            with turns.peer():
                read(readers)
    check(state, EVENTS)
    floor = f"msgspec decode alone, {PIECE / turns.peer_seconds:,.0f} events/s"
    yield at_least(GOAL, "fold of a million events", 1 / turns.slowdown, "of the floor", floor)
    mix = f"{size_bytes / EVENTS:,.0f} bytes an event"
    yield Result("fold of a million events", PIECE / turns.ours_seconds, f"events/s, {mix}", floor)


def read(readers: list[tuple[Callable[[bytes], object], bytes]]) -> None:
    """Decode messages and nothing else."""
    for decode, payload in readers:
        decode(payload)


def decoder(subject: str) -> Callable[[bytes], object]:
    """Return the decoder of the messages on a subject."""
    route = wire.route_of(subject)
    assert route is not None
    assert route.decode is not None
    return route.decode


def check(state: Cluster, events: int) -> None:
    """Raise unless all of a fleet's log was folded, and nothing of it was odd."""
    odd = (state.unreadable, state.unknown, state.duplicates, state.void, state.unexpected)
    assert odd == (0, 0, 0, 0, 0), f"{odd}: {state.incidents[-3:]}"
    assert state.sequence == events
    assert not state.incidents
    phases = [part.phase for replica in state.replicas.values() for part in replica.parts]
    assert phases.count("ready") > 500, phases
