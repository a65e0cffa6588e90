"""Parts of a running cluster are killed, each in turn, while events keep coming."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from llmgw import views, wire
from llmgw.catalog.entries import Catalog
from llmgw.core import events as e
from llmgw.log.base import Message
from llmgw.wire import Outgoing
from tests.support.cluster import NAME, EngineProcess, Up, pretended, running_up
from tests.support.nats import collect
from tests.support.wait import until

TIME = "2026-01-01T00:00:00Z"


class Traffic:
    """Events that a second writer appends without a pause, and an engine that must keep serving.

    Every round appends a fact of a node that does not exist, now and then a catalog in which a
    second model comes or goes, and asks the first model's engine who it is.
    """

    def __init__(self, up: Up, port: int) -> None:
        self._up = up
        self._port = port
        self._rounds = itertools.count(1)
        self._steady = pretended(up, "steady", "child=session")
        self._changing = pretended(up, "changing", stop_seconds=1.0)
        self.acknowledged: dict[int, Outgoing] = {}
        self.answered_by: set[int] = set()
        self.most_engines = 0

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        flow = asyncio.create_task(self._flow())
        try:
            yield
            if flow.done():
                await flow
        finally:
            flow.cancel()
            await asyncio.gather(flow, return_exceptions=True)

    async def _flow(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for number in self._rounds:
                await self._append(number)
                answer = await client.get(f"http://127.0.0.1:{self._port}/")
                self.answered_by.add(answer.json()["pid"])
                self._look(self._up.engines("r1"))

    async def _append(self, number: int) -> None:
        event: e.Event = e.NodeStarted(boot_id="b", agent_version=str(number))
        if number % 40 == 0:
            also = [self._changing] if number % 80 else []
            event = e.CatalogApplied(catalog=Catalog(models=(self._steady, *also)))
        message = wire.encode_event(
            NAME, event, node="other", session="traffic", number=number, time=TIME
        )
        sequence = await self._up.log.append(
            message.subject, message.payload, message_id=message.message_id
        )
        self.acknowledged[sequence] = message

    def _look(self, engines: list[EngineProcess]) -> None:
        """One engine and its child: more would be two."""
        self.most_engines = max(self.most_engines, len(engines))

    async def more(self, count: int = 100) -> None:
        """Wait until so many more events were acknowledged."""
        target = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= target, 60, "more events are acknowledged")


def row_of(up: Up, replica: str) -> views.ReplicaRow:
    [row] = [row for row in views.replicas(up.state) if row.replica == replica]
    return row


def assert_all_there(messages: list[Message], acknowledged: dict[int, Outgoing]) -> None:
    """Fail unless every acknowledged event is in the log, where its acknowledgement said."""
    stored = {message.sequence: message.payload for message in messages}
    lost = [n for n, message in acknowledged.items() if stored.get(n) != message.payload]
    assert lost == []


async def test_killing_any_part_loses_no_event_and_doubles_no_engine(tmp_path: Path) -> None:
    async with running_up(tmp_path, node_lost_seconds=60) as up:
        await up.apply(pretended(up, "steady", "child=session"))
        ready = await up.event(e.ReplicaBecameReady, replica="r1")
        before = row_of(up, "r1")
        traffic = Traffic(up, ready.port)
        async with traffic.flowing():
            await traffic.more()
            for part, back in (
                ("agent", lambda: up.events(e.ReplicaAdopted, replica="r1")),
                ("nats-server", lambda: up.program.says("log_server_ended")),
            ):
                os.kill(up.part(part), signal.SIGKILL)
                await until(back, 60, f"{part} is back")
                await traffic.more()
                assert row_of(up, "r1") == before, f"after {part} was killed"

            # Nobody leads until the lease of the dead controller is over: lose the others, too.
            os.kill(up.part("controller"), signal.SIGKILL)
            await traffic.more()
            os.kill(up.part("agent"), signal.SIGKILL)
            os.kill(up.part("nats-server"), signal.SIGKILL)
            await up.event(e.ControllerElected, 60, term=2)
            await until(lambda: len(up.events(e.ReplicaAdopted, replica="r1")) == 2, 60, "adopted")
            await traffic.more()
            assert row_of(up, "r1") == before
        assert traffic.answered_by == {ready.pid}
        assert traffic.most_engines == 2

        # A quiet end: what came and went is settled, and the second model is gone again.
        request = await up.apply(pretended(up, "steady", "child=session"))
        await up.event(e.CatalogAccepted, request=request)
        await up.until_state(lambda state: list(state.replicas) == ["r1"], "only r1 is left")
        assert {p.marker.start.key.replica for p in up.engines()} == {"r1"}
        assert len(up.events(e.ReplicaStarting, replica="r1")) == 1
        last = (await up.log.bounds()).last
        assert_all_there(await collect(up.log, until=last), traffic.acknowledged)
        await up.assert_folds_the_same()
        assert await up.program.stop(signal.SIGINT) == 0
        assert up.tree() == []
