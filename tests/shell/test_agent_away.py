"""A real agent whose log refuses it, and one whose disk does: engines serve on, and it is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from llmgw.core import events as e
from llmgw.log.jetstream import connect
from llmgw.outbox import FILE
from tests.support.cluster import NAME, OnLog, Program, pretended, running_cluster
from tests.support.nats import OwnServer, free_port
from tests.support.wait import until

USERS = "authorization { users: [ { user: operator, password: o } %s ] }"
AGENT = ", { user: n1, password: %s }"


@contextlib.asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[OnLog, OwnServer]]:
    """Run a server that lets in whom its configuration names, at first n1 with password `a`."""
    server = OwnServer(folder, free_port())
    async with server.running(USERS % (AGENT % "a")):
        url = f"nats://operator:o@{server.address}"
        cluster = OnLog(folder, url, await connect(url, NAME, name="test"))
        try:
            yield cluster, server
        finally:
            await cluster.close()
    cluster.assert_never_doubled()


def agent_of(cluster: OnLog, server: OwnServer, password: str) -> Program:
    url = f"nats://n1:{password}@{server.address}"
    settings = {"node": "n1", "data": cluster.folder / "n1", "sample_seconds": 0.5}
    return cluster.start("agent", "run", nats_url=url, **settings)


async def served_by(port: int) -> object:
    """Ask an engine who it is."""
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"http://127.0.0.1:{port}/")).json()["pid"]


@pytest.mark.faults
async def test_an_agent_that_is_refused_keeps_its_engines_and_says_why_until_it_is_let_in(
    tmp_path: Path,
) -> None:
    refused = "refuses these credentials: check LLMGW_NATS_URL"
    async with guarded(tmp_path) as (cluster, server):
        cluster.controller(node_lost_seconds=60)
        agent = agent_of(cluster, server, "a")
        await cluster.apply(pretended(cluster, "m"))
        first = await cluster.event(e.ReplicaBecameReady, replica="r1")

        # Revoked: it goes on without the log, starts an engine again that ended, and tells later.
        await server.reload(USERS % "")
        await until(lambda: agent.says(refused), 20, "the agent says that it is refused")
        assert await served_by(first.port) == first.pid
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: len(cluster.starts()) == 2, 20, "the engine is started again")
        assert agent.says("***") and not agent.says("n1:a@")
        await server.reload(USERS % (AGENT % "a"))
        second = await cluster.event(e.ReplicaBecameReady, 40, replica="r1", attempt=2)
        assert not agent.has_ended()

        # Rotated: the next agent has the new password, and adopts what serves.
        before = agent.output.count(refused)
        await server.reload(USERS % (AGENT % "b"))
        await until(lambda: agent.output.count(refused) > before, 20, "it is refused again")
        assert await agent.stop() == 0
        agent_of(cluster, server, "b")
        adopted = await cluster.event(e.ReplicaAdopted, replica="r1")
        assert adopted.pid == second.pid == await served_by(second.port)
        assert cluster.events(e.NodeLost) == []
        await cluster.assert_folds_the_same()


@contextlib.contextmanager
def files_cannot_grow(pid: int, most_bytes: int) -> Iterator[None]:
    """Let every write of a process beyond a size fail, as on a full disk or one gone read-only."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


async def test_an_agent_whose_disk_takes_no_more_forgets_nothing_and_says_so_as_a_condition(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.controller(node_lost_seconds=5)
        agent = cluster.agent(trouble_seconds=1)
        await cluster.apply(pretended(cluster, "m"), pretended(cluster, "other"))
        ready = await cluster.event(e.ReplicaBecameReady, replica="r1")
        other = await cluster.event(e.ReplicaBecameReady, replica="r2")
        records = tmp_path / "n1" / "agent" / f"{FILE}-wal"
        size = (await asyncio.to_thread(records.stat)).st_size
        assert size > len(agent.output) + 16384, "there is room for what the agent prints"
        with files_cannot_grow(agent.pid, size):
            os.kill(ready.pid, signal.SIGKILL)
            await until(lambda: agent.says("agent_cannot_remember"), 30, "the agent says so")
            assert await served_by(other.port) == other.pid
            await is_heard(cluster)
            assert len(cluster.starts()) == 2, "nothing is started that is not written down"
        failed = await cluster.event(e.ReplicaFailed, replica="r1")
        assert failed.signal == signal.SIGKILL
        await cluster.event(e.ReplicaBecameReady, 40, replica="r1", attempt=2)
        await cluster.until_state(
            lambda _: conditions(cluster) == [["unwritable"], []], "it is said"
        )
        assert [p.pid for p in cluster.engines("r2")] == [other.pid]
        assert cluster.events(e.NodeLost) == []
        await cluster.assert_folds_the_same()


async def is_heard(cluster: OnLog) -> None:
    """Wait for the next heartbeat of any node."""
    heard = asyncio.Event()
    ear = cluster.log.ear([f"llmgw.v1.{NAME}.heartbeat.node.*"], lambda *_: heard.set())
    listening = asyncio.ensure_future(ear.listen())
    try:
        await asyncio.wait_for(heard.wait(), 10)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def conditions(cluster: OnLog) -> list[list[str]]:
    """Return the names of all conditions of the node, each time that they changed."""
    told = [[c.name for c in said.conditions] for said in cluster.events(e.NodeConditionsChanged)]
    return told[1:] if told[:1] == [[]] else told
