"""A program's tie to the log for as long as it runs: found again, sent to, and heard from.

What an agent and a fleet of simulated ones do alike. Events wait in the outbox and go out in
order; commands are read from the last one that was taken; a log that was replaced or rewound is
noticed, and `start_over` called before anything of the new one is read. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import structlog

from llmgw import wire
from llmgw.core.records import Record
from llmgw.errors import LlmgwError
from llmgw.log.base import LogRewound
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.outbox import Outbox
from llmgw.settings import Settings, nats_url

RETRY_SECONDS = 1.0

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
                await found.append_many([w.message for w in waiting])
                await self._outbox.sent(w.place for w in waiting)
            except LlmgwError as error:
                _log.warning("events_wait", reason=str(error), at_least=len(waiting))
                await anyio.sleep(RETRY_SECONDS)

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
    return [record async for record in commands(found, subject, start, last)], last + 1


async def commands(
    found: JetStreamLog, subject: str, start: int, until: int | None = None
) -> AsyncIterator[Record]:
    """Yield the records on a subject. `llmgw.replay` does, and brings what an agent needs not."""
    async for batch in found.follow(start, subjects=[subject], until=until):
        for message in batch:
            yield wire.decode(message.sequence, message.time_ns, message.subject, message.payload)
