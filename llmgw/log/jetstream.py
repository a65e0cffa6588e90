"""The log on NATS JetStream: `connect` gives a `JetStreamLog`, which keeps the `Log` contract.

This module puts the parts together: `connection` keeps a session alive, `setup` knows the
streams, `publisher` appends, `reader` follows. Together they are the only users of nats-py.
Decoding is the caller's.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio

from llmgw.log import endpoints, reader, setup
from llmgw.log.base import Bounds, Entry, Fence, Message
from llmgw.log.connection import Connection
from llmgw.log.endpoints import Service
from llmgw.log.hearing import Ear
from llmgw.log.publisher import Publisher, Stored, StoredReply
from llmgw.log.session import NoAnswer, Session, check_url
from llmgw.wire import Outgoing

if TYPE_CHECKING:
    from llmgw.log.objects import ObjectSnapshots

CONNECT_DEADLINE_SECONDS = 10.0
ANSWER_DEADLINE_SECONDS = 15.0
PING_INTERVAL_SECONDS = 3.0
"""Leaving a server that hangs takes up to twice this: no node may count as lost for that."""


class JetStreamLog:
    """One cluster's log on a NATS server, through every loss of the connection.

    Made by `connect`. Use it from the event loop that made it, and close it.
    """

    def __init__(
        self, connection: Connection, names: setup.Names, answer_deadline_seconds: float
    ) -> None:
        self._connection = connection
        self._names = names
        self._deadline_seconds = answer_deadline_seconds
        self._publisher = Publisher(connection, names, answer_deadline_seconds)

    @property
    def url(self) -> str:
        """Where the log is, without credentials."""
        return self._connection.where

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return self._connection.live is not None

    @property
    def samples_dropped(self) -> int:
        """How many samples were not sent because the connection was away or busy."""
        return self._publisher.samples_dropped

    async def append(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> int:
        """Store a message durably and return its sequence; see `Log.append`."""
        entry = Outgoing(subject, payload, message_id)
        return await self._publisher.append(entry, Fence.given(fence, expected_last))

    async def append_many(
        self,
        entries: Sequence[Entry],
        *,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> list[int]:
        """Store messages in order and return their sequences; see `Log.append_many`."""
        return await self._publisher.append_many(entries, Fence.given(fence, expected_last))

    def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from `start` on; see `Log.follow`."""
        return reader.follow(
            self._connection, self._names.log, start, subjects, until, self._deadline_seconds
        )

    async def last(self, subject: str) -> Message | None:
        """Return the newest message under a subject filter of any of the cluster's streams."""
        stream = self._names.stream_of(subject)

        async def attempt(session: Session) -> Stored | None:
            query = {"last_by_subj": subject}
            try:
                return (
                    await setup.api(session, f"STREAM.MSG.GET.{stream}", query, StoredReply)
                ).message
            except setup.ApiError as failure:
                if failure.code == setup.NO_MESSAGE_FOUND:
                    return None
                raise

        found = await self._connection.until_answered(attempt, self._deadline_seconds)
        if found is None:
            return None
        time_ns = setup.nanoseconds(found.time)
        return Message(found.seq, time_ns, found.subject, base64.b64decode(found.data))

    async def bounds(self) -> Bounds:
        """Return the first and last sequence of the log, and when it was created."""
        info = await self._connection.until_answered(
            partial(setup.stream_info, stream=self._names.log), self._deadline_seconds
        )
        created_ns = setup.nanoseconds(info.created)
        if info.state.messages == 0:
            return Bounds(0, 0, created_ns)
        return Bounds(info.state.first_seq, info.state.last_seq, created_ns)

    @property
    def snapshots(self) -> ObjectSnapshots:
        """The snapshots that leaders keep on the server, beside the log."""
        from llmgw.log.objects import ObjectSnapshots  # not for those who never ask: it costs time

        return ObjectSnapshots(self._connection, self._names, self._deadline_seconds)

    async def let_go(self, last: int) -> None:
        """Let all records go up to a sequence; see `llmgw.log.cutting.cut`."""
        from llmgw.log import cutting

        await cutting.cut(self._connection, self._names.log, last, self._deadline_seconds)

    async def publish_sample(self, subject: str, payload: bytes) -> bool:
        """Send a sample to the telemetry stream if it can go at once, and tell whether it went.

        Never waits, never fails, is never acknowledged: a sample that cannot go is counted.
        """
        return await self._publisher.publish_sample(subject, payload)

    async def say(self, subject: str, payload: bytes) -> bool:
        """Say something to whoever listens right now, and tell whether it went; in no stream.

        Never waits, never fails, and needs no stream that has a leader.
        """
        session = self._connection.live
        if session is None:
            return False
        try:
            await session.send(subject, payload)
        except NoAnswer:
            return False
        return True

    def ear(self, subjects: Sequence[str], take: Callable[[str, bytes], None]) -> Ear:
        """Return what hears all that is said on some subjects from now on; see `Ear`."""
        return Ear(self._connection, subjects, take)

    def lease_subject(self, name: str) -> str:
        """Return the subject of a lease (see `llmgw.log.lease`), a key in a key-value bucket."""
        return f"$KV.{self._names.bucket}.{name}"

    async def serve(self, service: Service) -> None:
        """Answer questions on this connection, through every loss of it, until cancelled."""
        await endpoints.serve(self._connection, service)

    async def close(self) -> None:
        """Let go of the connection. Safe to call twice."""
        await self._connection.close()


async def connect(
    url: str,
    cluster: str,
    *,
    name: str,
    deadline_seconds: float = CONNECT_DEADLINE_SECONDS,
    answer_deadline_seconds: float = ANSWER_DEADLINE_SECONDS,
    ping_interval_seconds: float = PING_INTERVAL_SECONDS,
    replicas: int = 1,
    found: bool = False,
) -> JetStreamLog:
    """Connect to a NATS server, set up the cluster's streams where missing, and return the log.

    `url` may hold credentials and several servers, separated by commas; `name` labels the
    connection on the server. `answer_deadline_seconds` bounds each later append or question,
    and a server that is silent for twice `ping_interval_seconds` counts as lost. `replicas` is
    for streams made now; with `found` none is made where the cluster's log is not there. Raises
    `LogUnreachable` when nothing answers by the deadline, and `LlmgwError` when the URL or cluster
    name is not valid, the cluster is not `found`, the server is too old or has no JetStream, or
    its streams are not as llmgw needs them.
    """
    check_url(url)
    names = setup.Names(cluster)
    prepare = partial(setup.set_up, names=names, replicas=replicas, found=found)
    connection = Connection(url, name, prepare, ping_interval_seconds)
    try:
        await connection.start(deadline_seconds)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await connection.close()
        raise
    return JetStreamLog(connection, names, answer_deadline_seconds)
