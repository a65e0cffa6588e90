"""Reading: a pipelined pull reader that loses nothing, doubles nothing and stays within bounds.

An ephemeral consumer without acknowledgements, asked for the next thousand before the last
thousand has been taken. Order and completeness are checked on every message: by the consumer's
own sequence (a break in it was lost on the way: read again from there) and, without a filter, by
the stream's (a break in that is missing in the log: say so). Whatever goes wrong with a session
or a consumer, the reader opens another right after the last message that it handed out.

nats-py's iterators are not used: they take several loop turns a message, and stall for up to
twenty seconds after a restart of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import msgspec
import structlog
from nats.aio.msg import Msg

from llmgw.errors import LogUnreachable
from llmgw.log.base import LogRewound, Message
from llmgw.log.connection import Connection
from llmgw.log.session import NoAnswer, Session
from llmgw.log.setup import StreamInfo, api, stream_info

CHUNK_MESSAGES = 1_000
CHUNK_BYTES = 4 * 1024 * 1024
MOST_OUTSTANDING = 4 * CHUNK_MESSAGES
HEARTBEAT_SECONDS = 1.5

_EXPIRES_SECONDS = 30.0
_SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
_TICK_SECONDS = 0.2
_REOPEN_PAUSE_SECONDS = 0.05
_ABANDONED_AFTER_SECONDS = 60
_SECOND_NS = 1_000_000_000
_SHORT_REPLY_FIELDS = 9

_log = structlog.get_logger(__name__)


class _Delivered(msgspec.Struct, frozen=True):
    consumer_seq: int = 0
    stream_seq: int = 0


class _ConsumerInfo(msgspec.Struct):
    name: str
    delivered: _Delivered = _Delivered()
    num_pending: int = 0


class Pull:
    """An open consumer: what it delivered and what it still owes.

    Never more than `MOST_OUTSTANDING` messages are asked for and not yet taken, so a slow taker
    slows the server, not the process.
    """

    def __init__(self, session: Session, stream: str, inbox: str, strict_from: int | None) -> None:
        self._session = session
        self._stream = stream
        self._inbox = inbox
        self._name = ""
        self._buffer: list[Msg] = []
        self._arrived = asyncio.Event()
        self._next_delivery = 1
        self._next_sequence = strict_from  # None where a filter makes gaps natural.
        self._outstanding = 0
        self._pending = 0
        self._requests = 0
        self._broken: LogUnreachable | None = None
        self._heard = asyncio.get_running_loop().time()

    async def open(self, config: dict[str, Any]) -> None:
        """Create the consumer and ask for the first messages."""
        request = {"stream_name": self._stream, "action": "create", "config": config}
        subject = f"CONSUMER.CREATE.{self._stream}.{config['name']}"
        info = await api(self._session, subject, request, _ConsumerInfo)
        self._name = info.name
        self._pending = info.num_pending
        await self._ask()

    async def on_message(self, message: Msg) -> None:
        """Keep what arrives; it is looked at when it is taken."""
        self._buffer.append(message)
        self._arrived.set()

    def wake(self) -> None:
        """Let a waiting `take` look around."""
        self._arrived.set()

    async def take(self, patience_seconds: float) -> list[Message]:
        """Return what has arrived, in order, or nothing after `patience_seconds`.

        Raises `NoAnswer` when the consumer must be opened again, and `LogUnreachable` when the
        log itself misses messages; never before the messages ahead of the break were returned.
        """
        self._raise_break()
        if not self._buffer and self._session.lost is None:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    await self._arrived.wait()
        arrived, self._buffer = self._buffer, []
        self._check_alive(bool(arrived))
        messages = self._read(arrived)
        if not messages:
            self._raise_break()
        if self._session.lost is None:
            await self._ask()
        return messages

    def _raise_break(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _check_alive(self, something_came: bool) -> None:
        """Raise `NoAnswer` when the session is lost or even the heartbeats stay away."""
        now = asyncio.get_running_loop().time()
        if something_came:
            self._heard = now
        elif self._session.lost is not None:
            raise NoAnswer(self._session.lost)
        elif now - self._heard >= _SILENCE_SECONDS:
            raise NoAnswer(f"the consumer was silent for {now - self._heard:.1f} s")

    async def has_passed(self, sequence: int) -> bool:
        """Tell whether everything up to a sequence of the log has been delivered and taken."""
        if self._pending or self._buffer:
            return False
        info = await stream_info(self._session, self._stream)
        if info.state.last_seq < sequence:
            return False
        consumer = f"CONSUMER.INFO.{self._stream}.{self._name}"
        state = await api(self._session, consumer, None, _ConsumerInfo)
        return state.num_pending == 0 and state.delivered.consumer_seq == self._next_delivery - 1

    async def forget(self) -> None:
        """Delete the consumer without waiting; the server forgets it later anyway."""
        with contextlib.suppress(NoAnswer):
            await self._session.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", b"")

    def _read(self, arrived: list[Msg]) -> list[Message]:
        """Check and convert; stop at the first break and remember it."""
        messages: list[Message] = []
        for message in arrived:
            subject = message.subject
            if subject.startswith(self._inbox):
                self._read_status(message.headers or {})
            else:
                fields = message.reply.split(".")
                # The longer layout has the domain and an account hash before the stream.
                shift = 0 if len(fields) == _SHORT_REPLY_FIELDS else 2
                sequence = int(fields[5 + shift])
                if int(fields[6 + shift]) != self._next_delivery:
                    self._broken = NoAnswer(f"messages before {sequence} were lost on the way")
                elif self._next_sequence is not None and sequence != self._next_sequence:
                    self._broken = missing(self._stream, self._next_sequence, sequence - 1)
                else:
                    self._next_delivery += 1
                    self._outstanding -= 1
                    self._pending = int(fields[8 + shift])
                    if self._next_sequence is not None:
                        self._next_sequence = sequence + 1
                    time_ns = int(fields[7 + shift])
                    messages.append(Message(sequence, time_ns, subject, message.data))
            if self._broken is not None:
                break
        return messages

    def _read_status(self, headers: dict[str, str]) -> None:
        """Take note of a heartbeat, of a request that ended, or of a consumer that is gone."""
        status = headers.get("Status", "")
        if status == "100":
            if int(headers.get("Nats-Last-Consumer", 0)) >= self._next_delivery:
                self._broken = NoAnswer("the last messages were lost on the way")
        elif status in ("404", "408", "409") and "Nats-Pending-Messages" in headers:
            self._outstanding -= int(headers["Nats-Pending-Messages"])
        else:
            description = headers.get("Description", "").partition("\n")[0]
            self._broken = NoAnswer(f"the consumer ended: {status} {description}".strip())

    async def _ask(self) -> None:
        """Keep the pipeline full while there is a backlog, and one request open at the end."""
        while self._outstanding <= MOST_OUTSTANDING - CHUNK_MESSAGES and (
            self._outstanding < CHUNK_MESSAGES // 2 or self._outstanding < self._pending
        ):
            request = {
                "batch": CHUNK_MESSAGES,
                "max_bytes": CHUNK_BYTES,
                "expires": int(_EXPIRES_SECONDS * _SECOND_NS),
                "idle_heartbeat": int(HEARTBEAT_SECONDS * _SECOND_NS),
            }
            self._outstanding += CHUNK_MESSAGES
            self._requests += 1
            await self._session.send(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}",
                msgspec.json.encode(request),
                reply=f"{self._inbox}{self._requests}",
            )


@contextlib.asynccontextmanager
async def pulling(
    session: Session, stream: str, config: dict[str, Any], *, strict_from: int | None
) -> AsyncIterator[Pull]:
    """Open a consumer for the length of the block."""
    inbox = session.new_inbox() + "."
    pull = Pull(session, stream, inbox, strict_from)
    subscription = await session.subscribe(f"{inbox}*", pull.on_message)
    try:
        with session.telling(pull.wake):
            await pull.open(
                {
                    **config,
                    "name": inbox.rstrip(".").rpartition(".")[2],
                    "ack_policy": "none",
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": _ABANDONED_AFTER_SECONDS * _SECOND_NS,
                }
            )
            yield pull
    finally:
        await pull.forget()
        await session.unsubscribe(subscription)


async def follow(
    connection: Connection,
    stream: str,
    start: int,
    subjects: Sequence[str],
    until: int | None,
    deadline_seconds: float,
) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of a stream from `start` on; see `Log.follow`.

    An open-ended reader waits for the server for as long as it takes; one with an end gives up
    after `deadline_seconds` without it.
    """
    position = start - 1
    created = ""
    patience_seconds = None if until is None else deadline_seconds
    # Only a filtered reader with an end must ask now and then whether it has reached it.
    tick_seconds = _TICK_SECONDS if subjects and until is not None else _SILENCE_SECONDS

    async def look(session: Session) -> tuple[Session, StreamInfo]:
        return session, await stream_info(session, stream)

    while until is None or position < until:
        session, info = await connection.until_answered(look, patience_seconds)
        _check_continuity(stream, info, position, created)
        created = info.created
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": position + 1,
        }
        if subjects:
            config["filter_subjects"] = list(subjects)
        strict_from = None if subjects else position + 1
        try:
            async with pulling(session, stream, config, strict_from=strict_from) as pull:
                while until is None or position < until:
                    batch = await pull.take(tick_seconds)
                    if batch:
                        position = batch[-1].sequence
                        if part := _up_to(until, batch):
                            yield part
                    elif until is not None and subjects and await pull.has_passed(until):
                        return
        except NoAnswer as failure:
            _log.debug("reader opens again", stream=stream, at=position, reason=str(failure))
            await asyncio.sleep(_REOPEN_PAUSE_SECONDS)


def _up_to(until: int | None, batch: list[Message]) -> list[Message]:
    if until is None or batch[-1].sequence <= until:
        return batch
    return [message for message in batch if message.sequence <= until]


def _check_continuity(stream: str, info: StreamInfo, position: int, created: str) -> None:
    """Raise unless the stream goes on right after `position`, and is the one of before."""
    if created and info.created != created:
        raise LogRewound(
            f"the log {stream} is another one than before (created {info.created}, was {created}): "
            "it was wiped or replaced; start again from its beginning"
        )
    if info.state.last_seq < position:
        raise LogRewound(
            f"the log {stream} ends at sequence {info.state.last_seq}, and {position} was read "
            "before: it was wiped or restored; start again from its beginning"
        )
    if info.state.first_seq > position + 1 and info.state.last_seq > position:
        raise missing(stream, position + 1, info.state.first_seq - 1)


def missing(stream: str, first: int, last: int) -> LogUnreachable:
    """Return the error for messages that a log should hold and does not."""
    return LogUnreachable(
        f"the log {stream} misses the sequences {first} to {last}: they were deleted or lost; "
        "restore the store from a copy, or start from a snapshot that is newer"
    )
