"""Every part is killed, paused and cut off while a replica starts, serves, stops and others change.

Run by `make faults`: it takes minutes. What must hold each time: nothing that was acknowledged is
lost, no engine runs twice, and what is wanted comes to pass. At the end each test prints what it
did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from llmgw import wire
from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster as State
from llmgw.core.commands import SetAssignments
from llmgw.errors import LogUnreachable
from llmgw.log.jetstream import JetStreamLog
from llmgw.wire import Outgoing
from tests.support.cluster import (
    NAME,
    Cluster,
    Program,
    Programs,
    pretended,
    running_cluster,
    running_up,
)
from tests.support.disks import fill, mounted
from tests.support.nats import collect, is_running, stopped
from tests.support.proxy import stalling_proxy
from tests.support.wait import until

pytestmark = pytest.mark.faults

TIME = "2026-01-01T00:00:00Z"
PARTS = ("nats-server", "controller", "agent", "engine")


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

    async def hurt(self, part: str, number: signal.Signals, name: str, writer: Writer) -> None:
        """Kill the part and start it again, or pause it until others have noticed.

        An engine is the one that runs the model `name`.
        """
        if part == "engine":
            await self._hurt_engine(number, name, writer)
        elif number == signal.SIGKILL:
            await self._kill(part)
        else:
            await self._pause(part, writer)

    async def _hurt_engine(self, number: signal.Signals, name: str, writer: Writer) -> None:
        """One that hangs is killed and started again, unless it may still be loading."""
        replicas = self._cluster.state.replicas.values()
        [replica] = [replica for replica in replicas if replica.model == name]
        await until(lambda: self._cluster.engines(replica.name), 20, "the engine runs")
        [engine] = self._cluster.engines(replica.name)
        with contextlib.ExitStack() as stack:
            if number == signal.SIGKILL:
                os.kill(engine.pid, number)
            else:
                stack.enter_context(stopped(engine.pid))
            if number == signal.SIGSTOP and replica.parts[0].phase == "starting":
                await writer.more()
            else:
                await until(lambda: not is_running(engine.pid), 30, "its end is not waited for")

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

    async def _pause(self, part: str, writer: Writer) -> None:
        if part == "controller":
            async with self._taken_over():
                paused = stopped(self.leading[1].pid)
                paused.__enter__()
            paused.__exit__(None, None, None)
        elif part == "agent":
            with stopped(self.agent.pid):
                await writer.more()
        else:
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

    def __init__(self, log: JetStreamLog, padding: int = 0) -> None:
        self._log = log
        self._padding = padding
        self.acknowledged: dict[int, Outgoing] = {}
        self.refused = 0

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
            event = e.NodeStarted(boot_id="b" * (self._padding + 1), agent_version=str(number))
            message = wire.encode_event(
                NAME, event, node="other", session="w", number=number, time=TIME
            )
            self.acknowledged[await self._append(message)] = message

    async def _append(self, message: Outgoing) -> int:
        """Append as an agent does: until it is there."""
        while True:
            try:
                return await self._log.append(
                    message.subject, message.payload, message_id=message.message_id
                )
            except LogUnreachable:
                self.refused += 1

    async def more(self, count: int = 300) -> None:
        target = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= target, 60, "more is acknowledged")

    async def lost(self) -> int:
        """Return how many acknowledged messages are not where they were said to be."""
        last = (await self._log.bounds()).last
        stored = {m.sequence: m.payload for m in await collect(self._log, until=last)}
        return sum(stored.get(n) != m.payload for n, m in self.acknowledged.items())


FAULTS = [(part, number) for part in PARTS for number in (signal.SIGKILL, signal.SIGSTOP)]
Phase = Callable[[Cluster, str, Callable[[], Awaitable[None]]], Awaitable[None]]


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
    """A fault while an engine serves: it goes on, or another one does if it was itself hurt."""
    await cluster.apply(pretended(cluster, name, liveness_seconds=1.0))
    await serving(cluster, name)
    await unhurt(cluster, name, fault)


async def loaded(cluster: Cluster, name: str, fault: Callable[[], Awaitable[None]]) -> None:
    """The same while a second model comes and goes all the time."""
    steady = pretended(cluster, name, liveness_seconds=1.0)
    await cluster.apply(steady)
    await serving(cluster, name)
    changing = asyncio.create_task(change(cluster, steady, f"{name}-other"))
    try:
        await unhurt(cluster, name, fault)
        assert not changing.done(), "the catalog changed all the while"
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    await cluster.apply(steady)
    await serving(cluster, name)


async def change(cluster: Cluster, steady: Entry, name: str) -> None:
    """Have a second model served, and not, and so on."""
    for also in itertools.cycle(([pretended(cluster, name)], [])):
        request = await cluster.apply(steady, *also)
        await cluster.event(e.CatalogAccepted, 60, request=request)
        wanted = [name] if also else []
        await cluster.until_state(
            lambda state, wanted=wanted: (  # type: ignore[misc]
                [r.model for r in state.replicas.values() if r.model == name] == wanted
            ),
            "the second model came or went",
            60,
        )


async def unhurt(cluster: Cluster, name: str, fault: Callable[[], Awaitable[None]]) -> None:
    """See that a fault leaves the engine of a model alone, unless it was hurt itself."""
    [replica] = [r for r in cluster.state.replicas.values() if r.model == name]
    [before] = cluster.engines(replica.name)
    await fault()
    if not is_running(before.pid):
        await cluster.event(e.ReplicaBecameReady, 60, replica=replica.name, attempt=2)
    else:
        await cluster.until_ready(replica.name)
        assert [engine.pid for engine in cluster.engines(replica.name)] == [before.pid]


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


@pytest.mark.parametrize(
    "phase", [starting, ready, stopping, loaded], ids=lambda phase: phase.__name__
)
async def test_no_part_can_be_killed_or_paused_with_effect(phase: Phase, tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        parts, writer = Parts(cluster), Writer(cluster.log)
        await cluster.event(e.ControllerElected, term=1)
        for program in parts.controllers.values():
            await until(lambda p=program: p.says("caught_up"), 30, "both are caught up")  # type: ignore[misc]
        async with writer.writing():
            for tried, (part, number) in enumerate(FAULTS, start=1):
                name = f"m{tried}"
                await phase(cluster, name, partial(parts.hurt, part, number, name, writer))
                await writer.more(20)
                await cluster.apply()
                await cluster.until_state(lambda state: not state.replicas, "all is over", 60)
                await until(lambda: not cluster.engines(), 30, "no engine is left")
        lost, doubled = await writer.lost(), doubled_engines(cluster)
        print(
            f"{phase.__name__}: {tried} faults, {len(writer.acknowledged)} acknowledged, {lost} "
            f"lost, {doubled} engines doubled, longest take-over {parts.longest_takeover:.2f} s"
        )
        assert (lost, doubled) == (0, 0)
        assert cluster.events(e.NodeLost) == []
        await cluster.assert_folds_the_same()


def doubled_engines(cluster: Programs) -> int:
    """Return how many engines were started that another one ran for already."""
    starts = [line.split(" ", 1)[1] for line in cluster.starts()]
    path = cluster.journal / "doubled"
    overlapping = path.read_text().splitlines() if path.exists() else []
    return len(starts) - len(set(starts)) + len(overlapping)


async def test_a_disk_that_is_full_for_a_while_loses_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """The log's and the agent's own, under load, three times over."""
    with mounted(tmp_path / "small", "size=64m") as folder:
        async with running_up(tmp_path, data=folder, node_lost_seconds=60) as up:
            await up.apply(pretended(up, "m"))
            await up.event(e.ReplicaBecameReady)
            server_log = folder / "nats" / "server.log"
            writer = Writer(up.log, padding=2000)
            async with writer.writing():
                for attempt in (2, 3, 4):
                    await writer.more()
                    refusals = server_log.read_text().count("no space left")
                    [engine] = up.engines()
                    filler = fill(folder)
                    os.kill(engine.pid, signal.SIGKILL)
                    await until(
                        lambda n=refusals: server_log.read_text().count("no space left") > n,  # type: ignore[misc]
                        60,
                        "the log has refused",
                    )
                    filler.unlink()
                    await writer.more(20)
                    await up.event(e.ReplicaBecameReady, 90, attempt=attempt)
            lost, doubled = await writer.lost(), doubled_engines(up)
            print(
                f"full disk: 3 times, {len(writer.acknowledged)} acknowledged, {lost} lost, "
                f"{writer.refused} refused and sent again, {doubled} engines doubled"
            )
            assert (lost, doubled) == (0, 0)
            own = [(r.session, r.number) for r in await up.all_records() if r.node == "n1"]
            assert len(own) == len(set(own))
            await up.assert_folds_the_same()
            assert await up.program.stop() == 0
            assert up.tree() == []


async def test_an_agent_that_is_cut_off_for_a_minute_acts_on_the_newest_command_alone(
    tmp_path: Path,
) -> None:
    """The packets are lost, and nothing is closed; meanwhile it is lost, and told this and that."""
    async with running_cluster(tmp_path) as cluster:
        port = urlsplit(cluster.url).port
        assert port is not None
        async with stalling_proxy(port) as proxy:
            for node, url in (("n1", proxy.url), ("n2", cluster.url)):
                await join(cluster, node, url)
            cluster.controller(node_lost_seconds=5)
            steady = pretended(cluster, "m")
            await cluster.apply(steady)
            await cluster.until_ready("r1")
            assert cluster.state.replicas["r1"].parts[0].node == "n1"
            before = cluster.state.nodes["n1"].revision
            with proxy.stalled():
                began = time.monotonic()
                await cluster.apply(steady, pretended(cluster, "brief", replicas=2))
                stale = await cluster.event(SetAssignments, node="n1", revision=before + 1)
                assert stale.assignments[0].replica == "r1"
                [brief] = [a.replica for a in stale.assignments if a.replica != "r1"]
                assert (await cluster.event(e.NodeLost)).node == "n1"
                await cluster.until_state(lambda state: serves(state, "m", "n2"), "m is elsewhere")
                await cluster.apply()
                await cluster.until_state(lambda state: serves_nothing(state, "n2"), "n2 is empty")
                assert cluster.state.nodes["n1"].revision > stale.revision
                assert len(cluster.engines("r1")) == 1, "what is cut off serves on"
                await until(lambda: time.monotonic() - began >= 60, 61, "a minute is over")
                assert len(cluster.engines("r1")) == 1
                away = time.monotonic() - began
            assert (await cluster.event(e.NodeReturned, 60)).node == "n1"
            await cluster.until_state(lambda state: not state.replicas, "r1 ended, too", 60)
            assert cluster.engines() == []
            started = [s.replica for s in cluster.events(e.ReplicaStarting)]
            assert started.count("r1") == 1
            assert brief not in started, "a command that is not current any more is not acted upon"
            superseded = [s.revision for s in cluster.events(e.CommandSuperseded)]
            assert stale.revision in superseded
            print(
                f"cut off for {away:.1f} s: 1 engine served on, and ended on return; "
                f"{doubled_engines(cluster)} engines doubled"
            )
            assert doubled_engines(cluster) == 0


async def join(cluster: Cluster, node: str, url: str) -> None:
    """Start an agent that reaches the log under a URL, and wait until it has told what it has."""
    cluster.start(
        *("agent", "run"),
        node=node,
        data=cluster.folder / node,
        nats_url=url,
        port_range=cluster.half_of_ports(int(node[1:])),
        sample_seconds=0.5,
    )
    await cluster.until_state(
        lambda state: node in state.nodes and state.nodes[node].devices, f"{node} is there"
    )


def serves(state: State, model: str, node: str) -> bool:
    return any(
        (r.model, r.parts[0].node, r.parts[0].phase) == (model, node, "ready")
        for r in state.replicas.values()
    )


def serves_nothing(state: State, node: str) -> bool:
    return all(r.parts[0].node != node for r in state.replicas.values())
