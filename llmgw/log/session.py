"""One connection to NATS, honest about being lost.

A `Session` lives from the handshake to the loss of one connection. It never reconnects: what was
asked on it fails when it goes, and nothing that was buffered for it is sent later on another.
`connection` makes one after the other.

nats-py's own reconnecting is not used. It leaves pull requests dead on subscriptions that look
alive, sends timed-out publishes again after an outage, closes for good on most server errors,
and its closing callback can fail to come (it flushes to the dead peer first). A new client each
time has none of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from urllib.parse import urlsplit

import anyio
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from llmgw.errors import LlmgwError, LogUnreachable, UsageError
from llmgw.log.version import parse_version, refuse_old_server

Headers = Mapping[str, str]

CONNECT_ATTEMPT_SECONDS = 5.0
# Above what the publisher's window can put there: a publish then never waits for the socket.
_CLIENT_BUFFER_BYTES = 256 * 1024 * 1024
_RETRY_PAUSE_SECONDS = 0.25
_SILENT_TIMEOUTS = 3
_AGAIN_SECONDS = 0.25
_CLOSE_SECONDS = 2.0
_DEFAULT_PORT = 4222
_DENIED = re.compile(r'permissions violation for publish to "(.+)"', re.IGNORECASE)

_log = structlog.get_logger(__name__)


class NoAnswer(LogUnreachable):
    """An attempt got no usable answer; another may. It is retried up to a deadline."""


class NoResponders(NoAnswer):
    """The server is there, and nobody listens on the subject: the stream is missing or starting."""


def masked(url: str) -> str:
    """Return the URL without its credentials."""
    return re.sub(r"//[^@/,]*@", "//***@", url)


def address(url: str) -> tuple[str | None, int]:
    """Return host and port of one server."""
    parts = urlsplit(url.strip())
    return parts.hostname, parts.port or _DEFAULT_PORT


def check_url(url: str) -> None:
    """Raise `UsageError` unless this is one NATS URL or several, separated by commas."""
    for one in url.split(","):
        with contextlib.suppress(ValueError):
            parts = urlsplit(one.strip())
            port = parts.port  # Raises when it is no number.
            if parts.scheme in ("nats", "tls") and parts.hostname and port != 0:
                continue
        raise UsageError(
            f"{masked(url)!r} is not the URL of a NATS server: "
            "give nats://HOST:PORT, or several of them separated by commas"
        )


class Session:
    """One connection to one server."""

    def __init__(self, ping_interval_seconds: float) -> None:
        self._client = Client()
        self._ping_interval_seconds = ping_interval_seconds
        self._inbox = self._client.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._subscriptions: list[Subscription] = []
        self._listeners: set[Callable[[], None]] = set()
        self._lost = asyncio.Event()
        self._silence: tuple[int, int] = (0, 0)
        self._round_trips = 0
        self._watch: asyncio.Task[None] | None = None
        self._last_error = ""
        self._loss: str | None = None
        self.url = ""
        self.address: tuple[str | None, int] = (None, 0)
        self.version = (0, 0, 0)

    async def open(self, url: str, name: str, attempt_seconds: float) -> None:
        """Connect to the first server that answers, of several in `url` separated by commas.

        Raises `NoAnswer` (try again) or `LlmgwError` (the server is too old).
        """
        # In a task of its own: what is cancelled in the middle of nats-py's waiting may not be,
        # since `wait_for` of Python 3.11 forgets that when its answer comes in the same moment.
        connecting = asyncio.ensure_future(self._connect(url, name))
        try:
            async with asyncio.timeout(attempt_seconds):
                await asyncio.wait({connecting})
            connecting.result()
        except (OSError, nats.errors.Error) as failure:
            self._fail(self._last_error or str(failure) or "no answer")
            raise NoAnswer(self._loss) from failure
        finally:
            if not connecting.done():
                connecting.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.gather(connecting, return_exceptions=True)
        connected = self._client.connected_url
        self.url = masked(connected.geturl()) if connected else masked(url)
        self.address = address(connected.geturl() if connected else url)
        version = repr(self._client.connected_server_version).strip("<>").rpartition(" v")[2]
        refuse_old_server(version, self.url)
        self.version = parse_version(version)
        # Its end is the one sure sign of a dead connection: `is_connected` can stay true.
        assert self._client._reading_task is not None
        self._client._reading_task.add_done_callback(lambda _: self._fail("the connection broke"))
        await self.subscribe(f"{self._inbox}.*", self._on_reply)
        self._watch = asyncio.create_task(self._watch_round_trips())

    async def _connect(self, url: str, name: str) -> None:
        await self._client.connect(
            url.split(","),
            name=name,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            allow_reconnect=False,
            max_reconnect_attempts=-1,  # Within this attempt; its end is the time-out.
            reconnect_time_wait=_RETRY_PAUSE_SECONDS,  # type: ignore[arg-type]
            connect_timeout=CONNECT_ATTEMPT_SECONDS,  # type: ignore[arg-type]
            ping_interval=self._ping_interval_seconds,  # type: ignore[arg-type]
            max_outstanding_pings=2,
            pending_size=_CLIENT_BUFFER_BYTES,
            dont_randomize=True,
        )

    @property
    def lost(self) -> str | None:
        """Why the session has ended; `None` while it lives."""
        return self._loss

    async def wait_lost(self) -> None:
        """Wait until the session has ended."""
        await self._lost.wait()

    @property
    def max_payload_bytes(self) -> int:
        """The largest message, headers included, that the server takes."""
        return self._client.max_payload

    @property
    def unsent_bytes(self) -> int:
        """What has been published and not yet written to the socket."""
        return self._client.pending_data_size

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses."""
        return self._client.new_inbox()

    async def send(
        self, subject: str, payload: bytes, headers: Headers | None = None, reply: str = ""
    ) -> None:
        """Publish without waiting for anything. Raises `NoAnswer` when the session is lost."""
        if self.lost is not None:
            raise NoAnswer(self.lost)
        try:
            await self._client.publish(subject, payload, reply, dict(headers) if headers else None)
        except nats.errors.Error as failure:
            raise NoAnswer(str(failure)) from failure

    async def request(
        self,
        subject: str,
        payload: bytes,
        timeout: float,
        headers: Headers | None = None,
        *,
        again: bool = False,
    ) -> Msg:
        """Publish and wait for the one reply. Raises `NoAnswer`, or `LlmgwError` when
        the server does not permit it.

        With `again` it is said anew while no answer comes, and the first answer counts: nobody
        answers for a stream without a leader, and the next one is so asked soon after it is there.
        """
        token = f"{next(self._numbers):x}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (subject, answer)
        reply = f"{self._inbox}.{token}"
        received = self._received
        try:
            await self.send(subject, payload, headers, reply)
            async with asyncio.timeout(timeout):
                if again:
                    await self._insist(answer, subject, payload, headers, reply)
                return await answer
        except TimeoutError:
            if self._received == received:
                self._note_silence()
            raise NoAnswer(f"no answer within {timeout:g} s") from None
        finally:
            del self._waiting[token]

    async def _insist(
        self,
        answer: asyncio.Future[Msg],
        subject: str,
        payload: bytes,
        headers: Headers | None,
        reply: str,
    ) -> None:
        """Say it again, more and more seldom, until there is an answer."""
        pause_seconds = _AGAIN_SECONDS
        while True:
            wait_seconds = pause_seconds * random.uniform(0.8, 1.2)  # noqa: S311 -- no secret
            await asyncio.wait({answer}, timeout=wait_seconds)
            if answer.done():
                return
            await self.send(subject, payload, headers, reply)
            pause_seconds *= 2

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], *, queue: str = ""
    ) -> Subscription:
        """Hand every message on `subject` to `callback`; nothing is ever dropped.

        Of those who subscribe with the same `queue` each message goes to one.

        Who subscribes bounds what can come: by what was asked for, or by taking it away at once.
        """
        if self.lost is not None:
            raise NoAnswer(self.lost)
        try:
            subscription = await self._client.subscribe(
                subject, queue, cb=callback, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except nats.errors.Error as failure:
            raise NoAnswer(str(failure)) from failure
        self._subscriptions.append(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; on a lost session this has happened already."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    @contextlib.contextmanager
    def telling(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` when the session is lost during the block."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    async def close(self) -> None:
        """End the session and leave no task and no socket behind, whatever the peer does."""
        self._fail("the session was closed")
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await _discard(self._client, self._subscriptions)
        self._subscriptions.clear()

    def _fail(self, reason: str) -> None:
        """Declare the session lost: everything that waits on it is told now."""
        if self.lost is not None:
            return
        self._loss = reason
        self._lost.set()
        for _, answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(NoAnswer(reason))
        for listener in list(self._listeners):
            listener()

    async def _watch_round_trips(self) -> None:
        """Notice a server that is connected and silent, within two ping intervals."""
        while self.lost is None:
            await asyncio.sleep(self._ping_interval_seconds)
            try:
                await self._client.flush(self._ping_interval_seconds)  # type: ignore[arg-type]
                self._round_trips += 1
            except nats.errors.Error:
                self._fail(f"the server was silent for {self._ping_interval_seconds:g} s")

    @property
    def _received(self) -> int:
        """How often the server was heard."""
        return self._client.stats["in_msgs"] + self._round_trips

    def _note_silence(self) -> None:
        """Count time-outs during which nothing at all arrived; too many end the session."""
        since, count = self._silence
        self._silence = (self._received, count + 1 if since == self._received else 1)
        if self._silence[1] >= _SILENT_TIMEOUTS:
            self._fail(f"{_SILENT_TIMEOUTS} requests in a row got no answer")

    async def _on_reply(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is None or waiting[1].done():
            return
        subject, answer = waiting
        if message.headers and message.headers.get("Status") == "503":
            answer.set_exception(NoResponders(f"nothing answers on {subject}"))
        else:
            answer.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        """Log what nats-py reports, and fail what a missing permission concerns."""
        before, self._last_error = self._last_error, str(error) or type(error).__name__
        if denied := _DENIED.search(self._last_error):
            for subject, answer in self._waiting.values():
                if subject.lower() == denied[1] and not answer.done():
                    answer.set_exception(
                        LlmgwError(f"the server does not let this user publish on {subject}")
                    )
        # While connecting, the caller says it better; and what is denied may be tried for ever.
        if self.url and self._last_error != before:
            _log.warning("nats reported an error", error=self._last_error, url=self.url)

    async def _on_closed(self) -> None:
        self._fail(self._last_error or "the connection was closed")


async def _discard(client: Client, subscriptions: list[Subscription]) -> None:
    """Close a client whose peer may be dead, hung or gone, without waiting for that peer.

    `Client.close` writes what is pending first, waits until the peer has read it, and forgets
    its subscriptions' tasks when that fails. So what is pending is dropped here, the socket
    aborted, and the tasks ended by hand.
    """
    client._pending.clear()
    client._pending_data_size = 0
    writer = getattr(client._transport, "_io_writer", None)
    if writer is not None:
        writer.transport.abort()
    # A client that never began to connect asserts that it did.
    with contextlib.suppress(TimeoutError, OSError, nats.errors.Error, AssertionError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    found = (getattr(subscription, "_wait_for_msgs_task", None) for subscription in subscriptions)
    tasks: list[asyncio.Task[None]] = [task for task in found if task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
