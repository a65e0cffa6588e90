"""Hearing what is said on subjects now, in no stream: nothing is kept, and nothing is asked of one.

Plain NATS, which goes on while JetStream has no leader. What is said while nobody is connected is
missed; so an `Ear` tells since when it has missed nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import structlog
from nats.aio.msg import Msg

from llmgw.log.connection import Connection
from llmgw.log.session import NoAnswer, Session

_RETRY_SECONDS = 0.25

_log = structlog.get_logger(__name__)


class Ear:
    """Gives everything that is said on some subjects to `take`, as subject and payload."""

    def __init__(
        self, connection: Connection, subjects: Sequence[str], take: Callable[[str, bytes], None]
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._take = take
        self._session: Session | None = None
        self._since = 0.0

    @property
    def since(self) -> float | None:
        """Since when everything was heard, as `time.monotonic` counts; `None`: deaf right now."""
        live = self._connection.live
        return self._since if live is not None and live is self._session else None

    async def listen(self) -> None:
        """Hear, through every loss of the connection, until cancelled.

        Raises `LogUnreachable` once the connection was closed.
        """
        while True:
            session = await self._connection.session()
            try:
                async with contextlib.AsyncExitStack() as stack:
                    for subject in self._subjects:
                        subscription = await session.subscribe(subject, self._on_message)
                        stack.push_async_callback(session.unsubscribe, subscription)
                    self._session, self._since = session, time.monotonic()
                    await session.wait_lost()
            except NoAnswer as failure:
                _log.debug("listens again", reason=str(failure))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _on_message(self, message: Msg) -> None:
        self._take(message.subject, message.data)
