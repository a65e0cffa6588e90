"""A program's tie to the log for as long as it runs: found again, sent to, and heard from.

What an agent and a fleet of simulated ones do alike. Events wait in the outbox and go out in
order; commands are read from the last one that was taken; a log that was replaced or rewound is
noticed, and `start_over` called before anything of the new one is read. Heartbeats say that nodes
are there. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import anyio
import structlog

from llmgw import wire
from llmgw.clock import now, until_beat
from llmgw.core.records import Record
from llmgw.core.telemetry import NodeHeartbeat
from llmgw.errors import LlmgwError
from llmgw.log.base import LogRewound, Message, TooLarge
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.outbox import Outbox
from llmgw.settings import Settings, nats_url

RETRY_SECONDS = 1.0
SHORTEST_TURN_SECONDS = 0.1
"""Of many nodes as many beat together as fall into this."""
UNTIL_CONNECTED_SECONDS = 0.25
"""How soon a node beats after an outage."""

_log = structlog.get_logger()


class LogLink:
    """One program's tie to the log. `name` is what the server's list of connections shows."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        outbox: Outbox,
        start_over: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._name = name
        self._outbox = outbox
        self._start_over = start_over
        self._found: JetStreamLog | None = None
        self._connected = asyncio.Event()

    async def connect(self) -> None:
        """Find the log, however long it takes, and notice when it is not the one of before."""
        settings = self._settings
        while True:
            try:
                found = await connect(
                    nats_url(settings),
                    settings.cluster,
                    name=self._name,
                    replicas=settings.log_replicas,
                )
                if not await self._is_same(found):
                    await self._forget()
            except LlmgwError as error:
                _log.warning("log_unreachable", reason=str(error))
                await anyio.sleep(RETRY_SECONDS)
            else:
                self._found = found
                self._connected.set()
                return

    async def reached(self) -> JetStreamLog:
        """Return the log once it is there."""
        await self._connected.wait()
        assert self._found is not None
        return self._found

    async def close(self) -> None:
        """Let go of the log."""
        if self._found is not None:
            await self._found.close()

    async def _is_same(self, found: JetStreamLog) -> bool:
        """Remember which log this is, and return whether it is the one of before, or the first."""
        created = str((await found.bounds()).created_ns).encode()
        known = await self._outbox.kept("log_created")
        if known != created:
            await self._outbox.commit({"log_created": created})
        return known is None or known == created

    async def _forget(self) -> None:
        _log.warning("log_replaced")
        await self._start_over()

    async def send_events(self, found: JetStreamLog, queued: Callable[[], asyncio.Event]) -> None:
        """Send what waits, in order, again and again until the log has it.

        `queued` returns an event that is set once something is put into the outbox from then on.
        """
        while True:
            more = queued()
            waiting = await self._outbox.waiting()
            if not waiting:
                await more.wait()
                continue
            try:
                try:
                    await found.append_many([w.message for w in waiting])
                    await self._outbox.sent(w.place for w in waiting)
                except TooLarge as error:  # those behind it must not wait for ever
                    _log.error("event_too_large", reason=str(error))
                    await self._outbox.put_aside(error.message_id, str(error))
            except LlmgwError as error:
                _log.warning("events_wait", reason=str(error), at_least=len(waiting))
                await anyio.sleep(RETRY_SECONDS)

    async def say_alive(self, sessions: Mapping[str, str]) -> None:
        """Say of each node, by its agent's session, again and again that it is there.

        Plain messages that wait for no stream. Nodes of one program beat one after the other;
        those of several machines are spread by their clocks, which count from each one's start.
        """
        found, cluster = await self.reached(), self._settings.cluster
        seconds, nodes = self._settings.heartbeat_seconds, [*sessions.items()]
        turns = min(len(nodes), max(round(seconds / SHORTEST_TURN_SECONDS), 1))
        for number in itertools.count(1):
            for turn in range(turns):
                for node, session in nodes[turn::turns]:
                    beat = NodeHeartbeat(node=node, session=session, number=number)
                    message = wire.encode_heartbeat(cluster, beat, time=now())
                    while not await found.say(message.subject, message.payload):  # noqa: ASYNC110
                        await anyio.sleep(UNTIL_CONNECTED_SECONDS)
                await anyio.sleep(until_beat(seconds / turns))

    async def say_last_words(self, seconds: float) -> None:
        """Give the last events a moment to reach the log; what does not stays in the outbox."""
        with anyio.move_on_after(seconds):
            while self._found is not None and await self._outbox.waiting(1):  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def follow(
        self, found: JetStreamLog, take: Callable[[JetStreamLog], Awaitable[None]]
    ) -> None:
        """Have commands taken, again and again, also of a log that was rewound."""
        rewound = False
        while True:
            try:
                if rewound:
                    await self._is_same(found)
                    await self._forget()
                    rewound = False
                await take(found)
            except LogRewound as error:
                _log.warning("log_rewound", reason=str(error))
                rewound = True
            except LlmgwError as error:
                _log.warning("commands_unreachable", reason=str(error))
            await anyio.sleep(RETRY_SECONDS)


async def waiting_commands(
    found: JetStreamLog, subject: str, seen: int
) -> tuple[list[Record], int]:
    """Return the commands that the log holds beyond sequence `seen`, and where the next begin.

    What was archived is answered, or void: a log that was cut begins later than `seen`.
    """
    newest = await found.last(subject)
    last = newest.sequence if newest is not None else 0
    start = max(seen + 1, (await found.bounds()).first)
    if start > last:
        return [], start
    batches = found.follow(start, subjects=[subject], until=last)
    return [record async for batch in batches for record in _decoded(batch)], last + 1


async def commands(found: JetStreamLog, subject: str, start: int) -> AsyncIterator[list[Record]]:
    """Yield the commands on a subject as they come, those together that had to wait.

    One that comes after an outage may be the first of several, and the last one counts: so the
    log is asked each time how many there are.
    """
    came: list[Record] = []
    last = 0
    async for batch in found.follow(start, subjects=[subject]):
        came += _decoded(batch)
        if last == 0 and (newest := await found.last(subject)) is not None:
            last = newest.sequence
        if came[-1].sequence >= last:
            yield came
            came, last = [], 0


def _decoded(batch: Sequence[Message]) -> list[Record]:
    return [wire.decode(m.sequence, m.time_ns, m.subject, m.payload) for m in batch]
