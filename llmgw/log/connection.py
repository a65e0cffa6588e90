"""The connection to the log that is always being replaced, and the patience to ask through it.

A `Connection` keeps exactly one `Session` alive until it is closed, however long an outage lasts,
and hands it to the publisher and the readers. It knows nothing of streams or messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import structlog

from llmgw.errors import LlmgwError, LogUnreachable
from llmgw.log.session import (
    CONNECT_ATTEMPT_SECONDS,
    NoAnswer,
    NoResponders,
    Session,
    address,
    masked,
)

T = TypeVar("T")

_RECONNECT_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
PREPARE_AGAIN_SECONDS = 0.3
"""Short: a leader of ours keeps its lease only if it is back soon, whatever other streams do."""
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
        # In any order, so that clients spread over the servers; which is tried first changes.
        self._servers = random.sample(url.split(","), url.count(",") + 1)
        self._name = name
        self._prepare = prepare
        self._ping_interval_seconds = ping_interval_seconds
        self._session: Session | None = None
        self._ready = asyncio.Event()
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._ailment = ""
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
                if _is_refusal(failure):
                    raise LogUnreachable(self._refused) from failure
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
                            self._begin_repair(session)
                            reason = self._ailment or reason
                    jitter = random.uniform(0.8, 1.2)  # noqa: S311 -- no secret
                    await asyncio.sleep(pause_seconds * jitter)
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
        for task in (self._keeper, self._repairing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        self._ready.set()

    @property
    def _refused(self) -> str:
        return f"the log at {self.where} refuses these credentials: check LLMGW_NATS_URL"

    async def _connect(self, attempt_seconds: float, *, again: bool = False) -> Session:
        session = Session(self._ping_interval_seconds)
        try:
            await session.open(",".join(self._servers), self._name, attempt_seconds)
            try:
                async with asyncio.timeout(PREPARE_AGAIN_SECONDS if again else None):
                    await self._prepare(session)
            except (NoAnswer, TimeoutError) as failure:
                # Streams without a leader come back while others are asked for something, and only
                # one that is missing needs to be prepared.
                if session.lost is not None:
                    raise NoAnswer(session.lost) from failure
                if not again:
                    raise
                self._begin_repair(session)
        except BaseException:
            # One that hangs is not tried twice in a row.
            self._servers.append(self._servers.pop(0))
            with anyio.CancelScope(shield=True):
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
            lost_at = self._session.address
            await self._session.close()
            self._servers.sort(key=lambda url: address(url) == lost_at)
            self._offer(await self._reconnect())
            _log.info("log connection restored", url=self.where)

    async def _reconnect(self) -> Session:
        pause_seconds = _RECONNECT_PAUSE_SECONDS
        while True:
            try:
                return await self._connect(CONNECT_ATTEMPT_SECONDS, again=True)
            except LlmgwError as failure:  # Even a refusal: credentials rotate, servers upgrade.
                self._reason = self._refused if _is_refusal(failure) else str(failure)
                _log.warning("log cannot be reached", url=self.where, reason=self._reason)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _begin_repair(self, session: Session) -> None:
        """Set the streams up again meanwhile, in case somebody deleted them.

        Nobody waits for that: a stream that only has no leader right now answers sooner.
        """
        if self._repairing is None or self._repairing.done():
            self._repairing = asyncio.create_task(self._repair(session))

    async def _repair(self, session: Session) -> None:
        self._ailment = ""
        try:
            await self._prepare(session)
        except LlmgwError as failure:
            self._ailment = str(failure)


def _is_refusal(failure: LlmgwError) -> bool:
    """Whether it was the credentials: unknown, wrong or revoked."""
    said = str(failure).lower()
    return "authorization" in said or "authentication" in said
