"""Replay: a log out of an archive, out of a live stream, and from a snapshot.

An archive is read and checked alone, brought to its last state as `ctl replay` does (with the
snapshots that it has), and folded whole as if it had none, which is what no snapshot can spare
`--verify`; against the same messages folded from memory. The live side reads the same stream as
nats-py's ordered consumer, which does nothing with what it reads. The snapshot is of a fleet at
work, with ten thousand records after it, both taken from a real server. The goals of reading and
of snapshots are numbers, not ratios: the table says what this machine managed.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from llmgw import folding
from llmgw.core.cluster import Cluster
from llmgw.log.archive import open_archive, write_archive
from llmgw.log.base import Bounds, Message
from llmgw.log.embedded import embedded_server
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.keeper import newest_for
from llmgw.log.snapshots import encode
from llmgw.replay import fold_log
from tests.benchmarks.folding import check, decoder, read
from tests.benchmarks.following import PATIENCE_SECONDS, read_raw
from tests.benchmarks.history import CLUSTER, Fleet
from tests.benchmarks.measure import Result, Turns, at_least, at_most

ARCHIVED = 1_000_000
PIECE = 50_000
POINTS = 7
LIVE = 100_000
TAIL = 10_000
TURNS = 3

READ_GOAL = 500_000
STATE_GOAL = 500_000
LIVE_GOAL = 0.8
SNAPSHOT_GOAL_SECONDS = 0.3


def benchmark() -> Iterator[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        yield from _archived(Path(folder))
        yield from asyncio.run(_live(Path(folder)))


# --- out of an archive ---------------------------------------------------------------------------


def _archived(folder: Path) -> Iterator[Result]:
    path = folder / "log.llmgw"
    memory = Turns(time.process_time)
    asyncio.run(_write(path, memory))
    size = path.stat().st_size / ARCHIVED
    took = asyncio.run(_read(path))
    decode = f"msgspec decode alone, {PIECE / memory.peer_seconds:,.0f} events/s"
    in_memory = f"the same folded from memory, {PIECE / memory.ours_seconds:,.0f} events/s"
    unit = f"events/s, {size:.0f} bytes each in the file"
    yield at_least(READ_GOAL, "archive read and checked", ARCHIVED / took.checked, unit, decode)
    whole = ARCHIVED / took.folded
    yield at_least(STATE_GOAL, "archive folded whole", whole, "events/s", in_memory)
    seconds = f"s at most, of {POINTS} points in {ARCHIVED:,} events"
    goal = ARCHIVED / STATE_GOAL
    yield at_most(goal, "archive to a state", took.restored, seconds, in_memory)


async def _write(path: Path, memory: Turns) -> None:
    """Write a million events, and fold them on the way from memory."""
    fleet, state = Fleet(), Cluster()

    async def batches() -> AsyncIterator[Sequence[Message]]:
        while state.sequence < ARCHIVED:
            batch = numbered(fleet, state.sequence + 1, PIECE)
            readers = [(decoder(message.subject), message.payload) for message in batch]
            with memory.peer():
                read(readers)
            with memory.ours():
                folding.fold(state, batch)
            yield batch

    bounds = Bounds(1, ARCHIVED, 1)
    await write_archive(path, batches(), cluster=CLUSTER, log=bounds, now_ns=1, state=Cluster())


def numbered(fleet: Fleet, first: int, count: int) -> list[Message]:
    """Return the next messages of a fleet as a log stores them."""
    return [
        Message(number, number * 1_000_000, subject, payload)
        for number, (subject, payload, _) in enumerate(fleet.take(count), first)
    ]


class _Took(NamedTuple):
    """Seconds, by the clock."""

    checked: float
    folded: float
    restored: float


async def _read(path: Path) -> _Took:
    """Return how long reading, folding, and coming to a state take; opening the file included."""
    began = time.perf_counter()
    async with open_archive(path) as archive:
        await archive.check()
    checked = time.perf_counter()
    async with open_archive(path) as archive:
        whole = Cluster()
        async for batch in archive.follow():
            folding.fold(whole, batch)
    folded = time.perf_counter()
    check(whole, ARCHIVED)
    points = [await _restored(path, ARCHIVED * n // POINTS) for n in range(1, POINTS + 1)]
    return _Took(checked - began, folded - checked, max(points))


async def _restored(path: Path, sequence: int) -> float:
    began = time.perf_counter()
    async with open_archive(path) as archive:
        state = await fold_log(archive, sequence)
    took = time.perf_counter() - began
    check(state, sequence)
    return took


# --- out of a live stream, and from a snapshot ---------------------------------------------------


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[JetStreamLog]:
    log = await connect(url, CLUSTER, name="benchmark", answer_deadline_seconds=PATIENCE_SECONDS)
    try:
        yield log
    finally:
        await log.close()


async def _live(folder: Path) -> list[Result]:
    turns, from_snapshot = Turns(), Turns()
    fleet = Fleet()
    async with embedded_server(folder) as server, _connected(server.url) as log:
        await log.append_many(fleet.take(LIVE - TAIL))
        bounds = await log.bounds()
        before = await fold_log(log)
        await log.snapshots.save(before.sequence, encode(before, bounds.created_ns))
        await log.append_many(fleet.take(TAIL))
        for _ in range(TURNS):
            with turns.peer():
                await read_raw(server.url)
            whole = Cluster()
            with turns.ours():
                async for batch in log.follow(until=LIVE):
                    folding.fold(whole, batch)
            check(whole, LIVE)
            now = await log.bounds()
            with from_snapshot.ours():
                found = await newest_for(log, now, log.snapshots)
                assert found is not None
                async for batch in log.follow(found.sequence + 1, until=LIVE):
                    folding.fold(found.state, batch)
            check(found.state, LIVE)
    raw = f"raw nats-py ordered consumer, {LIVE / turns.peer_seconds:,.0f} messages/s"
    nodes = f"{len(whole.nodes)} nodes"
    return [
        at_least(LIVE_GOAL, "live replay to a state", 1 / turns.slowdown, "of the peer", raw),
        Result("live replay to a state", LIVE / turns.ours_seconds, "events/s", raw),
        at_most(
            SNAPSHOT_GOAL_SECONDS,
            "state from snapshot and 10,000 events",
            from_snapshot.ours_seconds,
            f"s, {nodes}",
            f"folding all {LIVE:,}, {turns.ours_seconds:.2f} s",
        ),
    ]
