"""Following the log live on a real server, decoded and folded, against nats-py reading it raw.

Both sides read the same stream of the same embedded server from its first message to its last,
each over a connection of its own. The peer is nats-py's ordered consumer, its limits raised so
that nothing is dropped, and does nothing with what it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.log.embedded import embedded_server
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.setup import Names
from tests.benchmarks.folding import check
from tests.benchmarks.history import CLUSTER, Fleet
from tests.benchmarks.measure import Result, Turns, at_least

EVENTS = 100_000
TURNS = 3
GOAL = 0.7
PATIENCE_SECONDS = 60.0


def benchmark() -> Iterator[Result]:
    """Measure."""
    turns = asyncio.run(_measure())
    raw = f"raw nats-py ordered consumer, {EVENTS / turns.peer_seconds:,.0f} messages/s"
    yield at_least(GOAL, "live fold of the log", 1 / turns.slowdown, "of the peer", raw)
    yield Result("live fold of the log", EVENTS / turns.ours_seconds, "events/s", raw)


async def _measure() -> Turns:
    turns = Turns()
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        async with embedded_server(Path(folder)) as server, _log(server.url) as log:
            await log.append_many(Fleet().take(EVENTS))
            for _ in range(TURNS):
                with turns.peer():
                    await read_raw(server.url)
                state = Cluster()
                with turns.ours():
                    await fold_live(log, state)
                check(state, EVENTS)
    return turns


@contextlib.asynccontextmanager
async def _log(url: str) -> AsyncIterator[JetStreamLog]:
    log = await connect(url, CLUSTER, name="benchmark", answer_deadline_seconds=PATIENCE_SECONDS)
    try:
        yield log
    finally:
        await log.close()


async def fold_live(log: JetStreamLog, state: Cluster) -> None:
    """Fold the log as a controller does, up to its last event."""
    async with contextlib.aclosing(log.follow(1)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            for message in batch:
                record = wire.decode(
                    message.sequence, message.time_ns, message.subject, message.payload
                )
                apply(state, record)
            if state.sequence == EVENTS:
                return


async def read_raw(url: str) -> None:
    """Read every message of the log with nats-py alone."""
    client = await nats.connect(url)
    names = Names(CLUSTER)
    subscription = await client.jetstream().subscribe(
        f"{names.prefix}>",
        stream=names.log,
        ordered_consumer=True,
        config=ConsumerConfig(),
        pending_msgs_limit=2 * EVENTS,
        pending_bytes_limit=4 * 2**30,
    )
    for _ in range(EVENTS):
        await subscription.next_msg(PATIENCE_SECONDS)
    await subscription.unsubscribe()
    await client.close()
