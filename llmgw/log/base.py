"""What a log is: an ordered, durable list of messages that can be appended to and followed.

Bytes in, bytes out: what the payload means is the business of `llmgw.wire`. Two implementations
keep the same contract (tests/shell runs it against both): JetStream and memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from llmgw.errors import LlmgwError, LogUnreachable


class LogRewound(LogUnreachable):
    """The log is another one than before, or shorter: it was wiped, replaced or restored.

    What was folded from the old one no longer describes it; start again from its beginning, and
    give no command until the nodes have reported.
    """


class TooLarge(LlmgwError):
    """A message is larger than the log takes; `message_id` says which. Repeating it is in vain."""

    def __init__(self, message: str, message_id: str) -> None:
        super().__init__(message)
        self.message_id = message_id


class Entry(Protocol):
    """One message to append, such as `wire.Outgoing`. `message_id` makes repeating harmless."""

    @property
    def subject(self) -> str:
        """Where it goes."""
        ...

    @property
    def payload(self) -> bytes:
        """What it says."""
        ...

    @property
    def message_id(self) -> str:
        """What makes it this message."""
        ...


class Fence(msgspec.Struct, frozen=True):
    """The condition of an append: the last message under `subject` has `expected_last`."""

    subject: str
    expected_last: int

    @classmethod
    def given(cls, subject: str | None, expected_last: int | None) -> Fence | None:
        """Return the fence that the two arguments of an append make, or `None` without them."""
        if subject is None and expected_last is None:
            return None
        if subject is None or expected_last is None:
            raise LlmgwError("a fenced append needs both `fence` and `expected_last`")
        return cls(subject, expected_last)


class Message(msgspec.Struct, frozen=True, gc=False):
    """One stored message. `time_ns` is when the log stored it, in nanoseconds since 1970."""

    sequence: int
    time_ns: int
    subject: str
    payload: bytes


class Bounds(msgspec.Struct, frozen=True):
    """First and last sequence of a log (0 and 0 when empty), and when it was created.

    A `created_ns` that changed means another log: the old one was wiped.
    """

    first: int
    last: int
    created_ns: int


class Log(Protocol):
    """A durable order of messages."""

    async def append(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> int:
        """Store a message durably and return its sequence.

        The same `message_id` again within the log's duplicate window stores nothing and returns
        the first sequence. With `expected_last`, the append is refused (`AppendRefused`) unless
        the last message under the subject filter `fence` has exactly that sequence (0: none).
        Raises `LogUnreachable` when no acknowledgement came: the message may be stored or not,
        and repeating it with the same id is safe.
        """
        ...

    async def append_many(
        self,
        entries: Sequence[Entry],
        *,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> list[int]:
        """Store messages durably, in this order, and return their sequences.

        With a fence all are stored or none (so they must fit into one batch: 1,000 messages
        of 4 MiB together). Without, a failure may leave the first of them stored; repeating
        the whole list is safe. Raises as `append` does.
        """
        ...

    def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from sequence `start` on, in order, each exactly once.

        `subjects` are filters (`llmgw.v1.c.command.n1`, `….event.>`); empty means all. With
        `until`, ends after that sequence (or at once, if it is already behind); without, it
        follows for ever. Batches are never empty. Survives restarts of the server; a gap
        raises `LogUnreachable` naming the missing sequences rather than passing over them, and
        a log that was wiped, or that ends before `start - 1`, raises `LogRewound`.

        To poll, take `bounds` or another reader: cancelling a pending `__anext__` ends this one.
        """
        ...

    async def last(self, subject: str) -> Message | None:
        """Return the newest message whose subject matches the filter, or `None`."""
        ...

    async def bounds(self) -> Bounds:
        """Return the first and last sequence stored now."""
        ...

    async def close(self) -> None:
        """Let go of the connection. Safe to call twice."""
        ...
