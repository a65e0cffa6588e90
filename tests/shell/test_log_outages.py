"""A log that hangs, is slow, was away for long or takes less than before; and coming back to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.cluster import Cluster as State
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.log.connection import Connection
from llmgw.log.embedded import EmbeddedServer
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.publisher import _WINDOW as WINDOW
from llmgw.log.session import NoAnswer, Session
from llmgw.loglink import LogLink, commands
from llmgw.outbox import Outbox, open_outbox
from llmgw.settings import Settings
from llmgw.wire import Outgoing
from tests.support.load import Load
from tests.support.nats import (
    OwnServer,
    Subjects,
    ask,
    collect,
    free_port,
    log_on,
    numbered,
    payloads,
    stopped,
)
from tests.support.nats_cluster import SERVERS, ServerCluster, three_servers
from tests.support.proxy import stalling_proxy
from tests.support.wait import until

TIME = "2026-01-01T00:00:00Z"


async def no_streams(_: Session) -> None:
    """Plain NATS will do."""


# --- connecting -----------------------------------------------------------------------------------


async def test_a_connection_that_is_given_up_while_it_is_made_is_given_up(
    server: EmbeddedServer, at: Subjects
) -> None:
    """Ctrl-C at the moment of the server's answer must not be forgotten over it."""
    chance, pause, outcomes = random.Random(7), asyncio.Event(), []
    for _ in range(300):
        connecting = asyncio.ensure_future(connect(server.url, at.cluster, name="test"))
        pause.clear()
        asyncio.get_running_loop().call_later(chance.uniform(0, 0.006), pause.set)
        await pause.wait()
        was_asked = connecting.cancel()
        [outcome] = await asyncio.gather(connecting, return_exceptions=True)
        if isinstance(outcome, JetStreamLog):
            await outcome.close()
        outcomes.append((was_asked, type(outcome)))
    assert outcomes.count((True, asyncio.CancelledError)) > 20
    assert (True, JetStreamLog) not in outcomes
    await until(lambda: len(asyncio.all_tasks()) == 1, what="nothing of them is left")


async def test_from_a_server_that_hangs_a_client_goes_to_another(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for name in ("one", "two", "three"):
            (tmp_path / name).mkdir()
            own = OwnServer(tmp_path / name, free_port())
            await stack.enter_async_context(own.running(""))
            servers[f"nats://{own.address}"] = own
        connection = Connection(",".join(servers), "test", no_streams, ping_interval_seconds=0.3)
        await connection.start(10)
        stack.push_async_callback(connection.close)
        for left in (2, 1):
            session = await connection.session()
            hung = servers[session.url]
            stack.enter_context(stopped(hung.pid))
            await session.wait_lost()
            assert session.lost is not None
            assert "silent" in session.lost
            other = await connection.session()
            assert other.url != session.url, f"{left} others are there"


async def test_questions_that_nobody_answers_are_no_silence_of_a_server_that_is_heard(
    server: EmbeddedServer,
) -> None:
    async def ignore(_: Msg) -> None:
        """The questions come back to whoever asked: so much is heard of the server."""

    connection = Connection(server.url, "test", no_streams, ping_interval_seconds=60)
    await connection.start(10)
    try:
        session = await connection.session()
        await session.subscribe("questions", ignore)
        asked = [session.request("questions", b"", 0.5) for _ in range(4)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [NoAnswer] * 4
        assert session.lost is None
    finally:
        await connection.close()


# --- a server that is slow ------------------------------------------------------------------------


async def test_of_a_server_that_answers_late_no_more_is_awaited_than_fits_into_the_window(
    server: EmbeddedServer, at: Subjects
) -> None:
    count, most, acknowledged = 600, 0, 0

    def note(_: asyncio.Future[int]) -> None:
        nonlocal acknowledged
        acknowledged += 1

    port = int(server.url.rpartition(":")[2])
    async with (
        stalling_proxy(port) as proxy,
        log_on(proxy.url, at) as log,
        log_on(server, at) as near,
    ):

        async def are_acknowledged() -> bool:
            nonlocal most
            most = max(most, (await near.bounds()).last - acknowledged)
            return acknowledged == count

        with proxy.slow(0.2):
            for entry in numbered(at.event(), count):
                appending = log.append(entry.subject, entry.payload, message_id=entry.message_id)
                asyncio.ensure_future(appending).add_done_callback(note)
            await until(lambda: acknowledged > 0, what="the first is acknowledged")
            assert await log.publish_sample(at.telemetry(), b"sample")
            await until(are_acknowledged, 30, "all are acknowledged")
        sample = await near.last(at.telemetry())
        facts = await collect(near, until=count)
    assert 0 < most <= WINDOW
    assert sorted(payloads(facts)) == sorted(b"%d" % n for n in range(1, count + 1))
    assert sample is not None
    assert sample.time_ns < facts[-1].time_ns, "a sample does not wait for facts"


# --- coming back ----------------------------------------------------------------------------------


class Node:
    """What an agent is to the log: an outbox, and a link that empties it."""

    def __init__(self, url: str, cluster: str, outbox: Outbox) -> None:
        self._cluster = cluster
        self.outbox = outbox
        self._numbers = iter(range(1, 1_000_000))
        self._more = asyncio.Event()
        settings = Settings(node="n1", data=Path(), cluster=cluster, nats_url=url)
        self.link = LogLink(settings, "agent n1", outbox, self._start_over)

    async def _start_over(self) -> None:
        raise AssertionError("it is the same log")

    async def note(self, *details: str) -> None:
        """Put facts into the outbox, in one turn."""
        messages = []
        for detail in details:
            event = e.NodeHardwareUnreadable(reason=detail)
            numbers = {"session": "a", "number": next(self._numbers)}
            messages.append(
                wire.encode_event(self._cluster, event, node="n1", time=TIME, **numbers)  # type: ignore[arg-type]
            )
        await self.outbox.commit({}, messages)
        self._more.set()

    def _queued(self) -> asyncio.Event:
        self._more.clear()
        return self._more

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reach the log, say that the node lives and send what waits, for the block's length."""
        tasks = [asyncio.ensure_future(one()) for one in (self._send, self._beat)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.link.close()

    async def _send(self) -> None:
        await self.link.connect()
        await self.link.send_events(await self.link.reached(), self._queued)

    async def _beat(self) -> None:
        await self.link.say_alive({"n1": "a"})

    async def is_empty(self) -> bool:
        """Tell whether the log has everything."""
        return not await self.outbox.waiting(1)


def reasons(messages: list[Message]) -> list[str]:
    """Return what the facts say, in the order of the log."""
    records = [wire.decode(m.sequence, m.time_ns, m.subject, m.payload) for m in messages]
    return [r.body.reason for r in records if isinstance(r.body, e.NodeHardwareUnreadable)]


async def test_an_hour_of_facts_goes_out_in_order_and_holds_up_neither_new_ones_nor_heartbeats(
    server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    """On a line where each answer takes 200 ms: one batch after the other is under way."""
    backlog = [f"second {n}" for n in range(3600)]
    stored_at_heartbeat: list[int] = []
    async with open_outbox(tmp_path) as outbox, log_on(server, at) as near:
        port = int(server.url.rpartition(":")[2])
        async with stalling_proxy(port) as proxy, contextlib.AsyncExitStack() as stack:
            node = Node(proxy.url, at.cluster, outbox)
            await node.note(*backlog)
            heard = asyncio.Event()
            subject = wire.heartbeat_subject(at.cluster, "n1")
            ear = near.ear([subject], lambda *_: heard.set())
            listening = asyncio.ensure_future(ear.listen())
            stack.callback(listening.cancel)
            await until(lambda: ear.since is not None, what="heartbeats can be heard")
            stack.enter_context(proxy.slow(0.2))
            await stack.enter_async_context(node.running())
            await asyncio.wait_for(heard.wait(), 20)
            stored_at_heartbeat.append((await near.bounds()).last)
            await until(lambda: stored_in(near), 20, "the first facts are there")
            await node.note("new")
            await until(node.is_empty, 60, "all is told")
        facts = await collect(near, until=(await near.bounds()).last)
    print(f"heartbeat after {stored_at_heartbeat} of 3,600 facts")
    assert stored_at_heartbeat[0] <= 500, "the node lives before it has told everything"
    assert reasons(facts) == [*backlog, "new"]


async def stored_in(log: JetStreamLog) -> int:
    return (await log.bounds()).last


async def test_commands_that_had_to_wait_come_together_so_that_the_last_one_counts(
    server: EmbeddedServer, at: Subjects
) -> None:
    """However long the outage, and though whoever follows never noticed it."""
    port = int(server.url.rpartition(":")[2])
    async with (
        stalling_proxy(port) as proxy,
        log_on(proxy.url, at, ping_interval_seconds=0.3) as log,
        log_on(server, at) as near,
    ):
        turns = commands(log, at.command(), 1)
        for sent in (1, 1500, 1, 3):
            coming = asyncio.ensure_future(anext(turns))
            with proxy.stalled() if sent > 1 else contextlib.nullcontext():
                if sent > 1:
                    await until(lambda: not log.connected, 20, "the outage is noticed")
                first = (await near.bounds()).last + 1
                await near.append_many(numbered(at.command(), sent, first=first))
            together = await asyncio.wait_for(coming, 20)
            assert [record.sequence for record in together] == [*range(first, first + sent)]
        await turns.aclose()  # type: ignore[attr-defined]


async def test_what_is_sent_again_after_the_duplicate_window_is_folded_once(
    server: EmbeddedServer, at: Subjects, tmp_path: Path
) -> None:
    """The acknowledgements are lost, and the server comes back when it has forgotten the ids."""
    async with log_on(server, at) as log:
        stream = f"LLMGW_{at.cluster}_LOG"
        config = (await ask(server, f"$JS.API.STREAM.INFO.{stream}"))["config"]
        assert isinstance(config, dict)
        shortest = {**config, "duplicate_window": 100_000_000}
        assert "error" not in await ask(server, f"$JS.API.STREAM.UPDATE.{stream}", shortest)
        async with open_outbox(tmp_path) as outbox:
            node = Node(server.url, at.cluster, outbox)
            await node.note(*(f"fact {n}" for n in range(40)))
            waiting = [w.message for w in await outbox.waiting()]
            await log.append_many(waiting)
            once = await collect(log, until=40)
            os.kill(server.pid, signal.SIGKILL)
            await server.wait()
            await server.restart()
            await until(lambda: is_forgotten(log, at), what="ids from before are forgotten")
            async with node.running():
                await until(node.is_empty, 20, "all is told again")
        messages = await collect(log, until=(await log.bounds()).last)
    node_facts = [m for m in messages if ".node.n1." in m.subject]
    assert reasons(node_facts) == 2 * [f"fact {n}" for n in range(40)]
    first, again = State(), State()
    fold(first, once)
    fold(again, node_facts)
    assert (first.duplicates, again.duplicates, again.gaps) == (0, 40, 0)
    assert again.nodes["n1"].unreadable == first.nodes["n1"].unreadable == "fact 39"


async def is_forgotten(log: JetStreamLog, at: Subjects) -> bool:
    """Tell whether an id of before counts no more: the same message is stored again."""
    probe = Outgoing(at.event("probe"), b"probe", "probe")
    before = (await log.bounds()).last
    sequence = await log.append(probe.subject, probe.payload, message_id=probe.message_id)
    return 40 < sequence - 1 == before and before > 40 + 1


# --- a log that takes less than before ------------------------------------------------------------


async def test_a_fact_that_has_become_too_large_is_put_aside_and_said_and_the_others_go_on(
    at: Subjects, tmp_path: Path
) -> None:
    server = OwnServer(tmp_path, free_port())
    async with server.running("max_payload: 1MB"), open_outbox(tmp_path) as outbox:
        async with log_on(f"nats://{server.address}", at) as log:
            node = Node(f"nats://{server.address}", at.cluster, outbox)
            async with node.running():
                await node.note("first")
                await until(node.is_empty, 20, "the first is told")
                await server.reload("max_payload: 64KB")
                await node.note("before", "x" * 100_000, "after")
                await until(node.is_empty, 30, "what can be told is told")
                await node.note("later")
                await until(node.is_empty, 20, "and so is what comes later")
            facts = await collect(log, until=(await log.bounds()).last)
        [(name, said)] = outbox.troubles()
    assert reasons(facts) == ["first", "before", "after", "later"]
    assert name == "untold"
    assert "is too large" in said
    assert "takes 65536 bytes" in said
    state = State()
    fold(state, facts)
    assert (state.gaps, state.duplicates) == (1, 0), "the log shows that one is missing"


# --- three servers --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def on_three(servers: ServerCluster, at: Subjects) -> AsyncIterator[JetStreamLog]:
    """Connect to a log that lies on all three."""
    log = await connect(
        servers.url,
        at.cluster,
        name="test",
        replicas=3,
        deadline_seconds=30,
        answer_deadline_seconds=60,
    )
    try:
        yield log
    finally:
        await log.close()


async def assert_kept(log: JetStreamLog, load: Load) -> None:
    """Fail unless all that was acknowledged is there, and nothing twice."""
    stored = await collect(log, until=(await log.bounds()).last)
    lost = load.acknowledged.items() - {m.sequence: m.payload for m in stored}.items()
    doubled = len(stored) - len(set(payloads(stored)))
    print(f"{len(load.acknowledged)} acknowledged, {len(lost)} lost, {doubled} doubled")
    assert (len(lost), doubled) == (0, 0)


@pytest.mark.faults
async def test_three_servers_that_are_upgraded_in_turn_lose_and_double_nothing(
    tmp_path: Path, at: Subjects
) -> None:
    """Each leaves as a lame duck does, and comes back, while events are appended."""
    async with three_servers(tmp_path) as servers, on_three(servers, at) as log:
        load = Load(log, at)
        for name in SERVERS:
            await load.goes_on()
            load.longest_seconds = 0.0
            await servers.leave(name)
            await load.goes_on()
            await servers.start(name)
            await servers.until_ready()
            print(f"{name} upgraded: appends waited for {load.longest_seconds:.1f} s at most")
        await load.goes_on()
        await load.stop()
        await assert_kept(log, load)


@pytest.mark.faults
async def test_a_server_that_hangs_is_left_within_fifteen_seconds(
    tmp_path: Path, at: Subjects
) -> None:
    """With the patience that is in force everywhere; the server that leads the log hangs, too."""
    async with three_servers(tmp_path) as servers, on_three(servers, at) as log:
        load = Load(log, at)
        for _ in range(2):
            await load.goes_on()
            session = await log._connection.session()
            assert session.address is not None
            name, pid = servers.at(session.address[1])
            with stopped(pid):
                began = time.monotonic()
                await asyncio.wait_for(session.wait_lost(), 15)
                noticed = time.monotonic() - began
                await load.goes_on()
                went_on = time.monotonic() - began
            print(f"{name} hung: noticed after {noticed:.1f} s, appends after {went_on:.1f} s")
            await servers.until_ready()
        await load.stop()
        await assert_kept(log, load)
