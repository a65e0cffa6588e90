"""Appending: each message with an id, a deadline and as many attempts as fit into it.

nats-py's `publish_async` is not used: it has no time-out and swallows cancellation. Here every
attempt is a request on the session's own inbox; a lost acknowledgement is repeated with the same
message id, which the stream recognises. Many messages go as atomic batches, one flush each.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Sequence

import msgspec
import structlog
from nats.aio.msg import Msg

from llmgw.errors import AppendRefused, LlmgwError, LogUnreachable
from llmgw.log.base import Entry, Fence, TooLarge
from llmgw.log.connection import Connection
from llmgw.log.session import NoAnswer, Session
from llmgw.log.setup import (
    MAX_MESSAGE_BYTES,
    NO_MESSAGE_FOUND,
    ApiError,
    Names,
    api,
)

BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 * 1024 * 1024
ACK_TIMEOUT_SECONDS = 2.0
"""Short, since asking again is safe: what the old leader of a stream took is answered by nobody."""
SAMPLE_BUFFER_BYTES = 256 * 1024

_WINDOW = 128
_ATOMIC_SINCE = (2, 12, 0)
_STALE = 10071
_DUPLICATES = 10201
_TOO_LARGE = {10054, 10199}
_FULL = {10023, 10047, 10077}
_MESSAGE_ID = "Nats-Msg-Id"
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_FENCE = "Nats-Expected-Last-Subject-Sequence-Subject"
_HEADER_LINE_BYTES = 4
_HEADER_BLOCK_BYTES = 12

_log = structlog.get_logger(__name__)


class Stored(msgspec.Struct):
    """A message as `STREAM.MSG.GET` returns it; headers and data are base64."""

    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class StoredReply(msgspec.Struct):
    """The reply of `STREAM.MSG.GET`."""

    message: Stored


class _AckError(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _AckError | None = None


class Publisher:
    """Appends to the streams of one cluster through whatever session is alive."""

    def __init__(self, connection: Connection, names: Names, deadline_seconds: float) -> None:
        self._connection = connection
        self._names = names
        self._deadline_seconds = deadline_seconds
        self._window = asyncio.Semaphore(_WINDOW)
        self._one_batch = asyncio.Lock()
        self.samples_dropped = 0

    async def append(self, entry: Entry, fence: Fence | None) -> int:
        """Append one message; see `Log.append`."""
        headers = _headers(entry, fence)

        async def attempt(session: Session) -> int:
            _check_size(session, entry, headers)
            try:
                return await _acknowledged(session, entry, headers)
            except ApiError as failure:
                return await self._settle(session, failure, entry, fence)

        async with self._window:
            return await self._connection.until_answered(attempt, self._deadline_seconds)

    async def append_many(self, entries: Sequence[Entry], fence: Fence | None) -> list[int]:
        """Append messages in order; see `Log.append_many`."""
        batches = list(_batches(entries))
        if fence is not None and len(batches) > 1:
            raise LlmgwError(
                f"{len(entries)} messages do not fit into one fenced append "
                f"({BATCH_MESSAGES} messages of {BATCH_BYTES // 1024 // 1024} MiB together)"
            )
        sequences: list[int] = []
        for batch in batches:
            if len(batch) == 1:
                sequences.append(await self.append(batch[0], fence))
            else:
                sequences += await self._append_batch(batch, fence)
        return sequences

    async def _append_batch(self, batch: Sequence[Entry], fence: Fence | None) -> list[int]:
        async def attempt(session: Session) -> list[int] | None:
            if session.version < _ATOMIC_SINCE:
                return None
            try:
                last = await _send_batch(session, batch, fence)
            except ApiError as failure:
                if failure.code in (_DUPLICATES, *_TOO_LARGE) and fence is None:
                    return None
                last = await self._settle(session, failure, batch[0], fence) + len(batch) - 1
            return list(range(last - len(batch) + 1, last + 1))

        async with self._one_batch:
            sequences = await self._connection.until_answered(attempt, self._deadline_seconds)
        if sequences is not None:
            return sequences
        if fence is not None:
            raise LlmgwError(
                f"the nats-server at {self._connection.where} cannot store several fenced "
                "messages as one: upgrade it to 2.12.6 or newer"
            )
        # Some are stored already, one is too large, or the server knows no batches: one after the
        # other keeps the order, and the ids keep those that are there from being stored again.
        return [await self.append(entry, None) for entry in batch]

    async def publish_sample(self, subject: str, payload: bytes) -> bool:
        """Send a sample if it can go now, and tell whether it went.

        It waits for nothing, is acknowledged by nobody, and never stands before a fact in a
        buffer that has begun to fill.
        """
        session = self._connection.live
        if session is not None and session.unsent_bytes < SAMPLE_BUFFER_BYTES:
            try:
                await session.send(subject, payload)
            except NoAnswer as failure:
                _log.debug("sample dropped", subject=subject, reason=str(failure))
            else:
                return True
        self.samples_dropped += 1
        return False

    async def _settle(
        self, session: Session, failure: ApiError, first: Entry, fence: Fence | None
    ) -> int:
        """Find out what an error means: refused, too large, tried again, or stored long ago.

        JetStream checks the fence before the message id, so the repetition of a fenced append
        whose acknowledgement was lost is called stale. Ours was then the first message under
        the fence after the expected one; a look at that one tells.
        """
        if failure.code in _TOO_LARGE:
            said = f"the log does not take a message for {first.subject}: {failure}"
            raise TooLarge(said, first.message_id) from failure
        if failure.code in _FULL:
            raise LogUnreachable(
                f"the log at {session.url} is full ({failure}): "
                "make room on its disk and restart nats-server"
            ) from failure
        if fence is None or failure.code not in (_STALE, _DUPLICATES):
            raise failure
        found = await self._first_after(session, fence)
        if found is not None and _message_id(found) == first.message_id:
            return found.seq
        raise AppendRefused(
            f"append to {first.subject} refused: {fence.subject} went on beyond sequence "
            f"{fence.expected_last}; somebody else wrote there first"
        ) from failure

    async def _first_after(self, session: Session, fence: Fence) -> Stored | None:
        stream = self._names.stream_of(fence.subject)
        query = {"seq": fence.expected_last + 1, "next_by_subj": fence.subject}
        try:
            return (await api(session, f"STREAM.MSG.GET.{stream}", query, StoredReply)).message
        except ApiError as failure:
            if failure.code == NO_MESSAGE_FOUND:
                return None
            raise


def _headers(entry: Entry, fence: Fence | None) -> dict[str, str]:
    headers = {_MESSAGE_ID: entry.message_id}
    if fence is not None:
        headers[_EXPECTED] = str(fence.expected_last)
        headers[_FENCE] = fence.subject
    return headers


def _check_size(session: Session, entry: Entry, headers: dict[str, str]) -> None:
    """Refuse here what the server would answer by closing the connection."""
    header_bytes = _HEADER_BLOCK_BYTES + sum(
        len(key) + len(value) + _HEADER_LINE_BYTES for key, value in headers.items()
    )
    most_bytes = min(session.max_payload_bytes, MAX_MESSAGE_BYTES)
    size_bytes = len(entry.payload) + header_bytes
    if size_bytes > most_bytes:
        raise TooLarge(
            f"a message of {size_bytes} bytes for {entry.subject} is too large: "
            f"the log at {session.url} takes {most_bytes} bytes",
            entry.message_id,
        )


async def _acknowledged(session: Session, entry: Entry, headers: dict[str, str]) -> int:
    """Send one message and return the sequence of its acknowledgement, or raise `ApiError`."""
    return _sequence(
        await session.request(entry.subject, entry.payload, ACK_TIMEOUT_SECONDS, headers)
    )


def _sequence(message: Msg) -> int:
    try:
        ack = msgspec.json.decode(message.data, type=_Ack)
    except msgspec.DecodeError as failure:
        raise NoAnswer("the acknowledgement is not understood") from failure
    if ack.error is not None:
        raise ApiError(ack.error.err_code, ack.error.description)
    if ack.seq <= 0:
        raise NoAnswer("the acknowledgement carries no sequence")
    return ack.seq


async def _send_batch(session: Session, batch: Sequence[Entry], fence: Fence | None) -> int:
    """Send an atomic batch and return the sequence of its last message."""
    batch_id = uuid.uuid4().hex
    marked = []
    for place, entry in enumerate(batch, start=1):
        headers = _headers(entry, fence if place == 1 else None)
        headers["Nats-Batch-Id"] = batch_id
        headers["Nats-Batch-Sequence"] = str(place)
        if place == len(batch):
            headers["Nats-Batch-Commit"] = "1"
        _check_size(session, entry, headers)
        marked.append((entry, headers))
    for entry, headers in marked[:-1]:
        await session.send(entry.subject, entry.payload, headers)
    return await _acknowledged(session, *marked[-1])


def _batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Cut a list of messages into batches that the server takes."""
    batches: list[list[Entry]] = []
    room_bytes = 0
    for entry in entries:
        if not batches or len(batches[-1]) == BATCH_MESSAGES or len(entry.payload) > room_bytes:
            batches.append([])
            room_bytes = BATCH_BYTES
        batches[-1].append(entry)
        room_bytes -= len(entry.payload)
    return batches


def _message_id(stored: Stored) -> str | None:
    for line in base64.b64decode(stored.hdrs).decode(errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == _MESSAGE_ID.lower():
            return value.strip()
    return None
