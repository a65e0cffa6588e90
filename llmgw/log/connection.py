"""The connection to the log that is always being replaced, and the patience to ask through it.

A `Connection` keeps exactly one `Session` alive until it is closed, however long an outage lasts,
and hands it to the publisher and the readers. It knows nothing of streams or messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from llmgw.errors import LlmgwError, LogUnreachable
from llmgw.log.session import CONNECT_ATTEMPT_SECONDS, NoAnswer, NoResponders, Session, masked

T = TypeVar("T")

_RECONNECT_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_FIRST_RETRY_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 0.5

_log = structlog.get_logger(__name__)


class Connection:
    """Keeps one session alive until closed. `prepare` runs on each before anyone gets it."""

    def __init__(
        self,
        url: str,
        name: str,
        prepare: Callable[[Session], Awaitable[None]],
        ping_interval_seconds: float,
    ) -> None:
        self._url = url
        self._name = name
        self._prepare = prepare
        self._ping_interval_seconds = ping_interval_seconds
        self._session: Session | None = None
        self._ready = asyncio.Event()
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._reason = "not connected yet"

    @property
    def where(self) -> str:
        """The URL, without credentials, for messages."""
        return masked(self._url)

    @property
    def live(self) -> Session | None:
        """The session, if there is one right now."""
        session = self._session
        return session if session is not None and session.lost is None else None

    async def start(self, deadline_seconds: float) -> None:
        """Connect for the first time, or raise what a person can act on.

        A refusal (credentials, version, no JetStream, foreign streams) is raised at once; a
        server that is not there only after the deadline.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_seconds
        while True:
            left = deadline - loop.time()
            try:
                session = await self._connect(min(left, CONNECT_ATTEMPT_SECONDS))
                break
            except NoAnswer as failure:
                if "authorization" in str(failure).lower():
                    raise LogUnreachable(
                        f"the log at {self.where} refuses these credentials: check LLMGW_NATS_URL"
                    ) from failure
                if loop.time() + _RECONNECT_PAUSE_SECONDS >= deadline:
                    raise LogUnreachable(
                        f"the log at {self.where} cannot be reached within {deadline_seconds:g} s "
                        f"({failure}): start nats-server there, or check LLMGW_NATS_URL"
                    ) from failure
            await asyncio.sleep(_RECONNECT_PAUSE_SECONDS)
        self._offer(session)
        self._keeper = asyncio.create_task(self._keep())

    async def session(self) -> Session:
        """Wait for a live session. Raises `LogUnreachable` once the connection was closed."""
        while True:
            if self._closed:
                raise LogUnreachable(f"the log at {self.where} was closed by this program")
            if session := self.live:
                return session
            self._ready.clear()
            await self._ready.wait()

    async def until_answered(
        self, attempt: Callable[[Session], Awaitable[T]], deadline_seconds: float | None
    ) -> T:
        """Try on one session after the other until there is an answer.

        Raises `LogUnreachable` with the last reason after the deadline (`None`: never), and at
        once whatever else the attempt raises.
        """
        reason = self._reason
        pause_seconds = _FIRST_RETRY_SECONDS
        try:
            async with asyncio.timeout(deadline_seconds):
                while True:
                    session = await self.session()
                    try:
                        return await attempt(session)
                    except NoAnswer as failure:
                        reason = str(failure)
                        if isinstance(failure, NoResponders):
                            reason = await self._repair(session) or reason
                    await asyncio.sleep(pause_seconds)
                    pause_seconds = min(2 * pause_seconds, _LONGEST_RETRY_SECONDS)
        except TimeoutError:
            raise LogUnreachable(
                f"the log at {self.where} did not answer within {deadline_seconds:g} s "
                f"({reason}); what was asked may have been done, "
                "and asking again is safe"
            ) from None

    async def close(self) -> None:
        """End the session and the keeping. Safe to call twice."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._ready.set()

    async def _connect(self, attempt_seconds: float, *, again: bool = False) -> Session:
        session = Session(self._ping_interval_seconds)
        try:
            await session.open(self._url, self._name, attempt_seconds)
            try:
                await self._prepare(session)
            except NoAnswer:
                # Streams without a leader come back while they are asked for something, and only
                # one that is missing then needs to be prepared.
                if not again or session.lost is not None:
                    raise
        except BaseException:
            await session.close()
            raise
        return session

    def _offer(self, session: Session) -> None:
        self._session = session
        self._reason = "the server is there, and the stream keeps silent"
        self._ready.set()

    async def _keep(self) -> None:
        """Replace each lost session, however long that takes."""
        while True:
            assert self._session is not None
            await self._session.wait_lost()
            self._reason = self._session.lost or ""
            _log.warning("log connection lost", url=self.where, reason=self._reason)
            await self._session.close()
            self._offer(await self._reconnect())
            _log.info("log connection restored", url=self.where)

    async def _reconnect(self) -> Session:
        pause_seconds = _RECONNECT_PAUSE_SECONDS
        while True:
            try:
                return await self._connect(CONNECT_ATTEMPT_SECONDS, again=True)
            except LlmgwError as failure:  # Even a refusal: credentials rotate, servers upgrade.
                self._reason = str(failure)
                _log.warning("log cannot be reached", url=self.where, reason=self._reason)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def _repair(self, session: Session) -> str:
        """Set the streams up again, in case somebody deleted them; return why that failed."""
        try:
            await self._prepare(session)
        except LlmgwError as failure:
            return str(failure)
        return ""
