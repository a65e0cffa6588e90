"""Questions over NATS: a micro-service as ADR-32 describes it, through every loss of connection.

Whoever has something to answer describes it as a `Service` and calls `serve`; discovery
(`$SRV.PING`, `$SRV.INFO`, `$SRV.STATS`), counting, errors and bounds are done here. It knows
nothing of what is asked. nats-py's own `nats.micro` is not used: its service ends with its client,
and a client lives as long as one connection here (see `session`).

Anybody may ask, so nothing that comes in grows without bound, and an answer goes to an inbox only:
a question whose reply subject is one of the log's would have it written down there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from llmgw.clock import now
from llmgw.errors import LlmgwError
from llmgw.log.connection import Connection
from llmgw.log.session import Headers, NoAnswer, Session

MOST_AT_ONCE = 64
"""Questions that are being answered at the same time; more are told to come again."""

BAD_REQUEST, FAILED, BUSY, TOO_LATE, TOO_LARGE = 400, 500, 503, 504, 507
"""Error codes, as HTTP knows them. 507: the answer does not fit into a message."""

_QUEUE_GROUP = "q"
_ROOT = "$SRV"
_TYPE = "io.nats.micro.v1.{}_response"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NEVER_REPLY_TO = re.compile(r"\$|llmgw\.")
_HEADER_BYTES = 1_024
_RETRY_SECONDS = 0.5
_ONE_LINE = re.compile(r"\s+")

_log = structlog.get_logger(__name__)


class Answer(NamedTuple):
    """What was asked for."""

    payload: bytes
    headers: Headers = {}


class Refusal(NamedTuple):
    """Why there is no answer: a code as HTTP knows it, and what to do, on one line."""

    code: int
    said: str


Handler = Callable[[bytes], Awaitable[Answer | Refusal]]


class Endpoint(NamedTuple):
    """One thing that can be asked for, and under which subject."""

    name: str
    subject: str
    handler: Handler
    metadata: Mapping[str, str] = {}


class Service(NamedTuple):
    """What answers. `name` is of `A-Z a-z 0-9 _ -`, `version` semantic (`1.2.3`)."""

    name: str
    version: str
    description: str
    endpoints: tuple[Endpoint, ...]
    metadata: Mapping[str, str] = {}


class _Count(msgspec.Struct):
    """What `$SRV.STATS` tells of an endpoint. Times are nanoseconds."""

    name: str
    subject: str
    queue_group: str = _QUEUE_GROUP
    num_requests: int = 0
    num_errors: int = 0
    last_error: str = ""
    processing_time: int = 0
    average_processing_time: int = 0

    def note(self, spent_ns: int, error: str) -> None:
        self.num_requests += 1
        self.processing_time += spent_ns
        self.average_processing_time = self.processing_time // self.num_requests
        if error:
            self.num_errors += 1
            self.last_error = error


async def serve(connection: Connection, service: Service) -> None:
    """Answer on whatever session is alive, until cancelled.

    Several that serve the same subjects share the questions. Raises `LogUnreachable` once the
    connection was closed.
    """
    desk = _Desk(service)
    try:
        while True:
            session = await connection.session()
            try:
                await desk.open(session)
                await session.wait_lost()
            except NoAnswer as failure:
                _log.debug("endpoints open again", reason=str(failure))
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                await desk.leave(session)
    finally:
        await desk.close()


class _Desk:
    """One running service: its identity and its counts outlive the sessions."""

    def __init__(self, service: Service) -> None:
        if not _NAME.fullmatch(service.name):
            raise LlmgwError(f"{service.name!r} cannot be the name of a service")
        self._service = service
        self._id = secrets.token_hex(11)
        self._started = now()
        self._counts = {e.name: _Count(e.name, e.subject) for e in service.endpoints}
        self._subscriptions: list[Subscription] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, session: Session) -> None:
        """Subscribe to everything that is answered. Raises `NoAnswer`."""
        for endpoint in self._service.endpoints:
            await self._subscribe(session, endpoint.subject, self._asked(session, endpoint), True)
        for verb, tell in (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats)):
            for subject in self._discovery(verb):
                await self._subscribe(session, subject, _telling(session, tell), False)

    async def leave(self, session: Session) -> None:
        """Take no more questions from a session."""
        for subscription in self._subscriptions:
            await session.unsubscribe(subscription)
        self._subscriptions.clear()

    async def close(self) -> None:
        """Give up what is being answered."""
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _discovery(self, verb: str) -> tuple[str, str, str]:
        of_all = f"{_ROOT}.{verb}"
        of_name = f"{of_all}.{self._service.name}"
        return of_all, of_name, f"{of_name}.{self._id}"

    async def _subscribe(
        self, session: Session, subject: str, callback: Callable[[Msg], Awaitable[None]], one: bool
    ) -> None:
        queue = _QUEUE_GROUP if one else ""
        self._subscriptions.append(await session.subscribe(subject, callback, queue=queue))

    # --- what can be asked for -----------------------------------------------------------------

    def _asked(self, session: Session, endpoint: Endpoint) -> Callable[[Msg], Awaitable[None]]:
        async def on_question(message: Msg) -> None:
            if not _may_reply(message):
                return
            if len(self._answering) >= MOST_AT_ONCE:
                busy = Refusal(BUSY, "too much is asked at once: ask again in a second")
                self._counts[endpoint.name].note(0, _as_error(busy))
                await _send(session, message.reply, busy)
                return
            task = asyncio.create_task(self._answer(session, endpoint, message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

        return on_question

    async def _answer(self, session: Session, endpoint: Endpoint, message: Msg) -> None:
        begun_ns = time.perf_counter_ns()
        reply: Answer | Refusal
        try:
            reply = await endpoint.handler(message.data)
        except LlmgwError as failure:
            reply = Refusal(BUSY, str(failure))
        except Exception as failure:  # noqa: BLE001 -- a mistake of ours is told to who asked
            _log.exception("a question could not be answered", subject=endpoint.subject)
            reply = Refusal(FAILED, f"{type(failure).__name__}: {failure}")
        if isinstance(reply, Answer):
            reply = _fitting(reply, session.max_payload_bytes)
        said = _as_error(reply) if isinstance(reply, Refusal) else ""
        self._counts[endpoint.name].note(time.perf_counter_ns() - begun_ns, said)
        await _send(session, message.reply, reply)

    # --- discovery -----------------------------------------------------------------------------

    def _ping(self) -> dict[str, object]:
        return self._described("ping")

    def _info(self) -> dict[str, object]:
        endpoints = [
            {
                "name": endpoint.name,
                "subject": endpoint.subject,
                "queue_group": _QUEUE_GROUP,
                "metadata": dict(endpoint.metadata),
            }
            for endpoint in self._service.endpoints
        ]
        told = {"description": self._service.description, "endpoints": endpoints}
        return self._described("info") | told

    def _stats(self) -> dict[str, object]:
        told = {"started": self._started, "endpoints": list(self._counts.values())}
        return self._described("stats") | told

    def _described(self, kind: str) -> dict[str, object]:
        return {
            "type": _TYPE.format(kind),
            "name": self._service.name,
            "id": self._id,
            "version": self._service.version,
            "metadata": dict(self._service.metadata),
        }


def _telling(
    session: Session, tell: Callable[[], dict[str, object]]
) -> Callable[[Msg], Awaitable[None]]:
    async def on_question(message: Msg) -> None:
        if _may_reply(message):
            await _send(session, message.reply, Answer(msgspec.json.encode(tell())))

    return on_question


def _may_reply(message: Msg) -> bool:
    """Return whether the answer would reach an inbox, and nothing that takes it for its own."""
    return bool(message.reply) and _NEVER_REPLY_TO.match(message.reply) is None


def _fitting(answer: Answer, most_bytes: int) -> Answer | Refusal:
    size_bytes = len(answer.payload)
    if size_bytes + _HEADER_BYTES <= most_bytes:
        return answer
    return Refusal(
        TOO_LARGE,
        f"the answer has {size_bytes} bytes and a message takes {most_bytes}: ask for less, or "
        "raise max_payload of the nats-server",
    )


def _as_error(refusal: Refusal) -> str:
    return f"{refusal.code}: {refusal.said}"


async def _send(session: Session, subject: str, reply: Answer | Refusal) -> None:
    """Send a reply; whoever asked over a connection that is gone asks again."""
    if isinstance(reply, Answer):
        payload, headers = reply
    else:
        said = _ONE_LINE.sub(" ", reply.said)[:_HEADER_BYTES]
        payload = b""
        headers = {"Nats-Service-Error": said, "Nats-Service-Error-Code": str(reply.code)}
    try:
        await session.send(subject, payload, headers)
    except NoAnswer as failure:
        _log.debug("answer not sent", subject=subject, reason=str(failure))
