"""Every part is killed, paused and cut off while a replica starts, serves and stops.

Run by `make faults`: it takes minutes. What must hold each time: nothing that was acknowledged is
lost, no engine runs twice, and what is wanted comes to pass. At the end each test prints what it
did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.wire import Outgoing
from tests.support.cluster import NAME, Cluster, Program, pretended, running_cluster
from tests.support.nats import collect, stopped
from tests.support.proxy import stalling_proxy
from tests.support.wait import until

pytestmark = pytest.mark.faults

TIME = "2026-01-01T00:00:00Z"
PARTS = ("nats-server", "controller", "agent")


class Parts:
    """One of each part, and a second controller; what is killed is started again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.agent = cluster.agent()
        self.controllers = {node: self._controller(node) for node in ("k1", "k2")}
        self.longest_takeover = 0.0

    def _controller(self, node: str) -> Program:
        return self._cluster.controller(node, node_lost_seconds=60)

    @property
    def leading(self) -> tuple[str, Program]:
        """The leader's node and program."""
        holder = self._cluster.state.leader
        return next((n, p) for n, p in self.controllers.items() if f"-{p.pid}-" in holder)

    async def hurt(self, part: str, number: signal.Signals, while_paused: Awaitable[None]) -> None:
        """Kill the part and start it again, or pause it until others have noticed."""
        if number == signal.SIGKILL:
            while_paused.close()  # type: ignore[attr-defined]
            await self._kill(part)
        else:
            await self._pause(part, while_paused)

    async def _kill(self, part: str) -> None:
        if part == "nats-server":
            await self._cluster.kill_server()
            await self._cluster.server.start()
        elif part == "agent":
            self.agent.kill()
            self.agent = self._cluster.agent()
        else:
            node, program = self.leading
            async with self._taken_over():
                program.kill()
            self.controllers[node] = self._controller(node)
            await until(lambda: self.controllers[node].says("caught_up"), 30, "a standby again")

    async def _pause(self, part: str, while_paused: Awaitable[None]) -> None:
        if part == "controller":
            while_paused.close()  # type: ignore[attr-defined]
            async with self._taken_over():
                paused = stopped(self.leading[1].pid)
                paused.__enter__()
            paused.__exit__(None, None, None)
        elif part == "agent":
            with stopped(self.agent.pid):
                await while_paused
        else:
            while_paused.close()  # type: ignore[attr-defined]
            leader = self.leading[1]
            before = leader.output.count("lease_not_renewed")
            with stopped(self._cluster.server.pid):
                await until(
                    lambda: leader.output.count("lease_not_renewed") > before, 20, "it is missed"
                )

    @contextlib.asynccontextmanager
    async def _taken_over(self) -> AsyncIterator[None]:
        """Wait for the next leader after the block, and note how long that took."""
        term = self._cluster.state.term + 1
        began = time.time()
        yield
        await self._cluster.event(e.ControllerElected, 30, term=term)
        [led_at] = [
            record.time_ns / 1e9
            for record in self._cluster.records
            if isinstance(record.body, e.ControllerElected) and record.body.term == term
        ]
        self.longest_takeover = max(self.longest_takeover, led_at - began)


class Writer:
    """Facts of a node that does not exist, appended without a pause; what was acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self._log = cluster.log
        self.acknowledged: dict[int, Outgoing] = {}

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._write())
        try:
            yield
            if task.done():
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _write(self) -> None:
        for number in itertools.count(1):
            event = e.NodeStarted(boot_id="b", agent_version=str(number))
            message = wire.encode_event(
                NAME, event, node="other", session="w", number=number, time=TIME
            )
            sequence = await self._log.append(
                message.subject, message.payload, message_id=message.message_id
            )
            self.acknowledged[sequence] = message

    async def more(self, count: int = 300) -> None:
        target = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= target, 60, "more is acknowledged")

    async def lost(self) -> int:
        """Return how many acknowledged messages are not where they were said to be."""
        last = (await self._log.bounds()).last
        stored = {m.sequence: m.payload for m in await collect(self._log, until=last)}
        return sum(stored.get(n) != m.payload for n, m in self.acknowledged.items())


FAULTS = [(part, number) for part in PARTS for number in (signal.SIGKILL, signal.SIGSTOP)]


async def starting(cluster: Cluster, name: str, fault: Callable[[], Awaitable[None]]) -> None:
    """A fault while an engine loads; it is ready only afterwards."""
    gate = cluster.folder / f"{name}.ready"
    await cluster.apply(pretended(cluster, name, f"ready={gate}"))
    await cluster.until_state(
        lambda state: any(r.parts[0].phase == "starting" for r in state.replicas.values()),
        f"{name} starts",
    )
    await fault()
    await asyncio.to_thread(gate.touch)
    await serving(cluster, name)


async def ready(cluster: Cluster, name: str, fault: Callable[[], Awaitable[None]]) -> None:
    """A fault while an engine serves: it goes on."""
    await cluster.apply(pretended(cluster, name))
    await serving(cluster, name)
    before = {engine.pid for engine in cluster.engines()}
    await fault()
    await serving(cluster, name)
    assert {engine.pid for engine in cluster.engines()} == before


async def stopping(cluster: Cluster, name: str, fault: Callable[[], Awaitable[None]]) -> None:
    """A fault while an engine takes its time to stop."""
    await cluster.apply(pretended(cluster, name, "ignore=term", stop_seconds=2.0))
    await serving(cluster, name)
    await cluster.apply()
    await cluster.until_state(
        lambda state: any(r.retired for r in state.replicas.values()), f"{name} is retired"
    )
    await fault()


async def serving(cluster: Cluster, name: str) -> None:
    await cluster.until_state(
        lambda state: (
            [(r.model, r.parts[0].phase) for r in state.replicas.values()] == [(name, "ready")]
        ),
        f"{name} alone serves",
        60,
    )


@pytest.mark.parametrize("phase", [starting, ready, stopping], ids=lambda phase: phase.__name__)
async def test_no_part_can_be_killed_or_paused_with_effect(
    phase: Callable[[Cluster, str, Callable[[], Awaitable[None]]], Awaitable[None]], tmp_path: Path
) -> None:
    async with running_cluster(tmp_path) as cluster:
        parts, writer = Parts(cluster), Writer(cluster)
        await cluster.event(e.ControllerElected, term=1)
        for program in parts.controllers.values():
            await until(lambda p=program: p.says("caught_up"), 30, "both are caught up")  # type: ignore[misc]
        async with writer.writing():
            for tried, (part, number) in enumerate(FAULTS, start=1):

                async def fault(part: str = part, number: signal.Signals = number) -> None:
                    await parts.hurt(part, number, writer.more())

                await phase(cluster, f"m{tried}", fault)
                await writer.more(20)
                await cluster.apply()
                await cluster.until_state(lambda state: not state.replicas, "all is over", 60)
                await until(lambda: not cluster.engines(), 30, "no engine is left")
        lost = await writer.lost()
        print(
            f"{phase.__name__}: {tried} faults, {len(writer.acknowledged)} acknowledged, "
            f"{lost} lost, longest take-over {parts.longest_takeover:.2f} s"
        )
        assert lost == 0
        assert cluster.events(e.NodeLost) == []
        starts = [line.split(" ", 1)[1] for line in cluster.starts()]
        assert len(set(starts)) == len(starts), "no engine was started twice"
        await cluster.assert_folds_the_same()


async def test_an_agent_that_is_cut_off_while_it_is_commanded_follows_later(
    tmp_path: Path,
) -> None:
    """Longer than the silence that loses a node; the packets are lost, and nothing is closed."""
    async with running_cluster(tmp_path) as cluster:
        port = urlsplit(cluster.url).port
        assert port is not None
        async with stalling_proxy(port) as proxy:
            for node, url, ports in (
                ("n1", proxy.url, "18010-18019"),
                ("n2", cluster.url, "18020-18029"),
            ):
                cluster.start(
                    *("agent", "run"),
                    node=node,
                    data=cluster.folder / node,
                    nats_url=url,
                    port_range=ports,
                    sample_seconds=0.5,
                )
                await cluster.until_state(
                    lambda state, node=node: node in state.nodes and state.nodes[node].devices,  # type: ignore[misc]
                    f"{node} is there",
                )
            cluster.controller(node_lost_seconds=5)
            await cluster.apply(pretended(cluster, "m"))
            await cluster.until_ready("r1")
            assert cluster.state.replicas["r1"].parts[0].node == "n1"
            with proxy.stalled():
                began = time.monotonic()
                assert (await cluster.event(e.NodeLost)).node == "n1"
                await cluster.until_ready("r2")
                await cluster.apply()
                revision = cluster.state.nodes["n1"].revision
                await cluster.event(SetAssignments, node="n1", revision=revision + 1)
                await cluster.until_state(lambda state: "r2" not in state.replicas, "r2 ended")
                assert len(cluster.engines("r1")) == 1, "what is cut off serves on"
                away = time.monotonic() - began
            assert (await cluster.event(e.NodeReturned, 60)).node == "n1"
            await cluster.until_state(lambda state: not state.replicas, "r1 ended, too", 60)
            assert cluster.engines() == []
            assert len(cluster.events(e.ReplicaStarting, replica="r1")) == 1
            print(f"cut off for {away:.1f} s: 1 engine served on, and ended on return")
