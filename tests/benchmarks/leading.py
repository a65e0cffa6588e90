"""How long it takes until another controller leads: real controllers, real nats-servers.

Once after a leader was killed alone, and once after it was killed together with the server that
leads the stream of leases, of three. The peers are what neither can be faster than: the lease, and
how long JetStream itself was without a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median

from llmgw.core import events as e
from llmgw.log.jetstream import connect
from llmgw.settings import Settings
from tests.benchmarks.measure import Result, at_most
from tests.support.cluster import NAME, OnLog, Program, running_cluster
from tests.support.nats_cluster import ServerCluster, three_servers
from tests.support.wait import until

LEASES = f"KV_LLMGW_{NAME}"
STREAMS = (f"LLMGW_{NAME}_LOG", LEASES)
KILLS = 5
FAILOVERS = 5
GOAL_SECONDS = 10.0


def benchmark() -> Iterator[Result]:
    """Measure."""
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # servers die here on purpose
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        kills = asyncio.run(_after_kills(Path(folder)))
    lease_seconds = Settings(node="n", data=Path()).lease_seconds
    lease = f"a lease of {lease_seconds:g} s"
    yield Result("take-over after a kill", median(kills), "s", lease)
    yield Result("take-over after a kill, longest", max(kills), "s", lease)
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        failovers = asyncio.run(_through_failovers(Path(folder)))
    taken = [taken for taken, _ in failovers]
    elections = [led for _, led in failovers]
    peer = f"JetStream without a leader: {median(elections):.1f} s, longest {max(elections):.1f} s"
    yield Result("take-over through a failover", median(taken), "s", peer)
    yield at_most(GOAL_SECONDS, "take-over through a failover, longest", max(taken), "s", peer)
    beyond = median(ours - jetstreams for ours, jetstreams in failovers)
    yield Result("take-over beyond JetStream's own", beyond, "s", peer)


class _Controllers:
    """A leader and one that waits; who is killed is replaced."""

    def __init__(self, on: OnLog, **settings: object) -> None:
        self._on = on
        self._settings = settings
        self._numbers = iter(range(1, 1_000))
        self._programs = [self._start(), self._start()]

    def _start(self) -> Program:
        return self._on.controller(f"k{next(self._numbers)}", **self._settings)

    async def ready(self) -> None:
        """Wait until one leads, and the other has folded all and hears it lead."""
        await until(lambda: self._leader is not None, 60, "somebody leads")
        waiting = next(program for program in self._programs if program is not self._leader)
        await until(lambda: waiting.says("controller_waits"), 60, "another one waits")

    @property
    def _leader(self) -> Program | None:
        holder = self._on.state.leader
        return next((p for p in self._programs if f"-{p.pid}-" in holder), None)

    async def kill_the_leader(self) -> float:
        """Kill it; return when (seconds since 1970)."""
        leader = self._leader
        assert leader is not None
        at = time.time()
        await asyncio.to_thread(leader.kill)
        self._programs.remove(leader)
        return at

    async def led_again_at(self) -> float:
        """Wait for the next leader, replace who was killed, and return when it was elected."""
        term = self._on.state.term + 1
        await self._on.event(e.ControllerElected, 90, term=term)
        elected = next(
            record
            for record in self._on.records
            if isinstance(record.body, e.ControllerElected) and record.body.term == term
        )
        self._programs.append(self._start())
        return elected.time_ns / 1e9


async def _after_kills(folder: Path) -> list[float]:
    async with running_cluster(folder) as cluster:
        controllers = _Controllers(cluster)
        taken = []
        for _ in range(KILLS):
            await controllers.ready()
            killed_at = await controllers.kill_the_leader()
            taken.append(await controllers.led_again_at() - killed_at)
        return taken


@contextlib.asynccontextmanager
async def _on(folder: Path, servers: ServerCluster) -> AsyncIterator[OnLog]:
    log = await connect(
        servers.url, NAME, name="bench", deadline_seconds=60, answer_deadline_seconds=60, replicas=3
    )
    on = OnLog(folder, servers.url, log)
    try:
        yield on
    finally:
        await on.close()


async def _through_failovers(folder: Path) -> list[tuple[float, float]]:
    """Return for each failover when another controller led, and when JetStream did."""
    found = []
    async with three_servers(folder) as servers, _on(folder, servers) as on:
        controllers = _Controllers(on, log_replicas=3)
        for _ in range(FAILOVERS):
            await controllers.ready()
            name = await servers.leader_of(LEASES)
            killed_at = await controllers.kill_the_leader()
            await servers.kill(name)
            led = asyncio.create_task(_led_again_at(servers))
            taken_at = await controllers.led_again_at()
            found.append((taken_at - killed_at, await led - killed_at))
            await servers.start(name)
            await servers.until_ready()
    return found


async def _led_again_at(servers: ServerCluster) -> float:
    """Wait until both streams have a leader among the servers that run; return when that was."""
    await asyncio.gather(*(servers.leader_of(stream) for stream in STREAMS))
    return time.time()
