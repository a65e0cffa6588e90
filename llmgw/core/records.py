"""A record: one message of the log as the fold sees it, readable or not.

`llmgw.wire` makes records from bytes. What cannot be read is a record too, so that the fold stays
total: it counts and shows it, and goes on.
"""

from __future__ import annotations

import msgspec

from llmgw.core.commands import SetAssignments
from llmgw.core.events import Event
from llmgw.core.values import Origin


class Unreadable(msgspec.Struct, frozen=True):
    """The payload is malformed, oversized or forged; `reason` says which, with the field."""

    subject: str
    reason: str


class UnknownType(msgspec.Struct, frozen=True):
    """A type that this version does not know: counted and skipped."""

    wire: str


class NewerVersion(msgspec.Struct, frozen=True):
    """A known type in a version newer than this code: viewing goes on, deciding stops."""

    wire: str
    version: int


Body = Event | SetAssignments | Unreadable | UnknownType | NewerVersion


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message of the log.

    `time_ns` is when the stream stored it (nanoseconds since 1970): the only time the fold knows.
    `node` is the name of the node that wrote it, or that a command is addressed to. `session` and
    `number` identify an event of its writer: numbers of one session rise in stream order, so a
    number that is not above the last one is a duplicate.
    """

    sequence: int
    time_ns: int
    origin: Origin
    node: str
    session: str
    number: int
    body: Body
