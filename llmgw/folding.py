"""Many messages into the state at once: what `wire.decode` and `fold.apply` do, without a record.

Pure. A log is mostly records that are as they should be, so those take a short way: one lookup by
subject gives everything that is to be known about a message before its bytes are read, and what is
read is folded only where nothing about it is odd. All else goes through `decode` and `apply`,
which say what is right; a property test holds both ways to the same state. The controller and
replay fold with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import msgspec

from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Node
from llmgw.core.commands import SetAssignments
from llmgw.core.fold import (
    CONTROLLER_HANDLERS,
    NODE_HANDLERS,
    apply,
    asked,
    commanded,
    node_for,
)
from llmgw.core.mistakes import FELL, set_apart
from llmgw.core.parts import LIVES
from llmgw.core.refusals import CHECKS
from llmgw.errors import MalformedRecord
from llmgw.rereading import READERS, Read, trusting_decoder
from llmgw.wire import (
    MAX_PAYLOAD_BYTES,
    SHALLOW_BYTES,
    UNDECODABLE,
    Route,
    check_size_and_depth,
    decode,
    route_of,
)

Fact = Callable[[Cluster, Node, Any], None]
Change = Callable[[Cluster, str, Any], bool]

MOST_PLANS = 65_536
MOST_READERS = 8_192
"""So many subjects at most have a reader that remembers what it read."""
READ_AT_ONCE = 256
"""So many messages are read before the first of them is folded. Reading and folding in turns, each
finds the processor's caches full of what the other needed, which costs as much as the work."""

UNREAD = (*UNDECODABLE, *FELL)


class Stored(Protocol):
    """A message of a log, such as `log.base.Message`."""

    @property
    def sequence(self) -> int:
        """Its place in the log."""

    @property
    def time_ns(self) -> int:
        """When the log stored it, in nanoseconds since 1970."""

    @property
    def subject(self) -> str:
        """Where it was written to."""

    @property
    def payload(self) -> bytes:
        """Its envelope, as JSON."""


class _Plan(msgspec.Struct, frozen=True, gc=False):
    """How the messages of one subject are folded.

    Where they can be read, `fact` is there for what a node says, and `change` for everything else:
    that is given the name of the node and the envelope, and returns whether it was possible.
    `of_part`: the fact names a replica, which may be no name unless the state has it.

    `read` checks size and depth itself where that is not to be done for it, see `checked_bytes`.
    """

    read: Read
    checked_bytes: int = SHALLOW_BYTES
    source: str = ""
    node: str = ""
    fact: Fact | None = None
    of_part: bool = False
    change: Change | None = None


def _unknown(_payload: bytes) -> NoReturn:
    raise MalformedRecord("not a message of this version's: `decode` says what it is")


class _Plans(dict[str, _Plan]):
    """Plans by subject. A log has few subjects and very many messages."""

    def __init__(self) -> None:
        super().__init__()
        self._readers = 0

    def __missing__(self, subject: str) -> _Plan:
        if len(self) >= MOST_PLANS:  # somebody makes up subjects
            self.clear()
            self._readers = 0
        plan = self[subject] = self._planned(route_of(subject))
        return plan

    def _planned(self, route: Route | None) -> _Plan:
        if route is None or route.decode is None:
            return _Plan(_unknown)
        read: Read = trusting_decoder(route.wire) or route.decode
        checked_bytes = SHALLOW_BYTES
        if route.wire in READERS and self._readers < MOST_READERS:
            self._readers += 1
            read, checked_bytes = READERS[route.wire](read).read, MAX_PAYLOAD_BYTES
        kind = e.EVENTS.get(route.wire, SetAssignments)
        fact, change = None, None
        if route.origin == "node":
            fact = NODE_HANDLERS[kind]
        elif route.origin == "controller":
            change = _decision(kind)
        else:
            change = _command if route.origin == "command" else _wish
        of_part = kind in LIVES
        return _Plan(read, checked_bytes, route.source, route.node, fact, of_part, change)


def _decision(kind: type[Any]) -> Change:
    """Return how decisions of a kind are folded. An election is never of the term that leads."""
    check, handle = CHECKS[kind], CONTROLLER_HANDLERS[kind]

    def change(state: Cluster, _node: str, envelope: Any) -> bool:  # noqa: ANN401
        body = envelope.data
        state.last_controller_sequence = state.sequence
        if body.term != state.term or check(state, body) is not None:
            return False
        handle(state, body)
        return True

    return change


def _command(state: Cluster, node: str, envelope: Any) -> bool:  # noqa: ANN401
    body = envelope.data
    if body.node != node:
        return False
    commanded(state, body, node)
    return True


def _wish(state: Cluster, _node: str, envelope: Any) -> bool:  # noqa: ANN401
    asked(state, envelope.data, envelope.session, envelope.number)
    return True


_PLANS = _Plans()


def fold(state: Cluster, messages: Sequence[Stored]) -> None:
    """Fold messages of a log, in their order, into `state`. Never raises: see `core.mistakes`."""
    for begin in range(0, len(messages), READ_AT_ONCE):
        some = messages[begin : begin + READ_AT_ONCE]
        plans = [_PLANS[message.subject] for message in some]
        found = zip(some, plans, _read(some, plans), strict=True)
        while True:
            try:
                _fold(state, found)
            except FELL as error:
                set_apart(state, error)
            else:
                break


def _read(messages: Sequence[Stored], plans: Sequence[_Plan]) -> list[Any]:
    """Return the envelopes of messages; `None` where one cannot be read in the short way."""
    envelopes: list[Any] = []
    for message, plan in zip(messages, plans, strict=True):
        payload, read = message.payload, plan.read
        try:
            if len(payload) > plan.checked_bytes:
                check_size_and_depth(payload)
            envelopes.append(read(payload))
        except UNREAD:
            envelopes.append(None)
    return envelopes


def _fold(state: Cluster, found: Iterator[tuple[Stored, _Plan, Any]]) -> None:
    """Fold what was read, until there is no more."""
    replicas = state.replicas
    for message, plan, envelope in found:
        if envelope is None or envelope.source != plan.source:
            _fold_slowly(state, message)
            continue
        fact, change = plan.fact, plan.change
        if fact is not None:
            body = envelope.data
            if plan.of_part and body.replica not in replicas:
                _fold_slowly(state, message)
                continue
            state.sequence = message.sequence
            state.time_ns = message.time_ns
            node = node_for(state, plan.node, envelope.session, envelope.number)
            if node is not None:
                fact(state, node, body)
        elif change is not None:
            state.sequence = message.sequence
            state.time_ns = message.time_ns
            if not change(state, plan.node, envelope):
                _fold_slowly(state, message)


def _fold_slowly(state: Cluster, message: Stored) -> None:
    state.sequence = message.sequence  # the record to name if this fails
    record = decode(message.sequence, message.time_ns, message.subject, message.payload)
    apply(state, record)
