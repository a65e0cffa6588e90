"""A log in memory, with the contract of the JetStream log: for tests and the simulator.

Time is what the given clock says, so that a simulated run is the same each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache

from llmgw.errors import AppendRefused, LogUnreachable
from llmgw.log.base import Bounds, Entry, Fence, LogRewound, Message
from llmgw.wire import Outgoing

DUPLICATE_WINDOW_NS = 120 * 1_000_000_000
BATCH_MESSAGES = 1_000


class MemoryLog:
    """A list of messages. `clock` returns nanoseconds since 1970."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._arrived = asyncio.Event()
        self._closed = False
        self.wipe()

    def wipe(self) -> None:
        """Become another, empty log, as when a server lost its store."""
        self._messages: list[Message] = []
        self._ids: dict[str, Message] = {}
        self._created_ns = self._clock()
        self._generation = object()
        self._wake()

    async def append(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> int:
        """Store a message and return its sequence; see `Log.append`."""
        entry = Outgoing(subject, payload, message_id)
        return (await self.append_many([entry], expected_last=expected_last, fence=fence))[0]

    async def append_many(
        self,
        entries: Sequence[Entry],
        *,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> list[int]:
        """Store messages in order and return their sequences; see `Log.append_many`."""
        self._check_open()
        condition = Fence.given(fence, expected_last)
        if condition is not None and not all(map(self._known, entries)):
            self._check_fence(condition)
        sequences = [self._store(entry) for entry in entries]
        self._wake()
        return sequences

    async def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from `start` on; see `Log.follow`."""
        position = start - 1
        generation = self._generation
        while until is None or position < until:
            self._check_open()
            if generation is not self._generation or len(self._messages) < position:
                raise LogRewound(f"the log in memory is another one, or ends before {position}")
            end = min(
                len(self._messages), position + BATCH_MESSAGES, until or position + BATCH_MESSAGES
            )
            batch = self._messages[position:end]
            position = max(position, end)
            if chosen := [message for message in batch if _chosen(message.subject, subjects)]:
                yield chosen
            elif not batch:
                await self._arrived.wait()

    async def last(self, subject: str) -> Message | None:
        """Return the newest message whose subject matches the filter, or `None`."""
        self._check_open()
        return self._last(subject)

    async def bounds(self) -> Bounds:
        """Return the first and last sequence stored now."""
        self._check_open()
        last = len(self._messages)
        return Bounds(min(1, last), last, self._created_ns)

    async def close(self) -> None:
        """End the log and its followers. Safe to call twice."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        """Wake every follower once; those that come later wait for the next event."""
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnreachable("the log in memory was closed by this program")

    def _known(self, entry: Entry) -> bool:
        earlier = self._ids.get(entry.message_id)
        return earlier is not None and self._clock() - earlier.time_ns < DUPLICATE_WINDOW_NS

    def _check_fence(self, fence: Fence) -> None:
        found = self._last(fence.subject)
        if (found.sequence if found else 0) != fence.expected_last:
            raise AppendRefused(
                f"append refused: {fence.subject} went on beyond sequence {fence.expected_last}; "
                "somebody else wrote there first"
            )

    def _store(self, entry: Entry) -> int:
        if self._known(entry):
            return self._ids[entry.message_id].sequence
        sequence = len(self._messages) + 1
        message = Message(sequence, self._clock(), entry.subject, entry.payload)
        self._messages.append(message)
        self._ids[entry.message_id] = message
        return sequence

    def _last(self, subject: str) -> Message | None:
        matching = (m for m in reversed(self._messages) if _matches(subject, m.subject))
        return next(matching, None)


def _chosen(subject: str, filters: Sequence[str]) -> bool:
    return not filters or any(_matches(pattern, subject) for pattern in filters)


@lru_cache(maxsize=65_536)
def _matches(pattern: str, subject: str) -> bool:
    """Tell whether a subject matches a filter: `*` is one token, `>` one or more at the end."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        want in ("*", has) for want, has in zip(wanted, given, strict=True)
    )
