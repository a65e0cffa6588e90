"""Many messages into the state at once: what `wire.decode` and `fold.apply` do, without a record.

Pure. A log is mostly facts of nodes that are as they should be, so those take a short way: one
lookup by subject gives everything that is to be known about a message before its bytes are read.
All else goes through `decode` and `apply`, which say what is right; a property test holds both
ways to the same state. The controller and replay fold with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, Protocol

from llmgw.core.cluster import Cluster, Node
from llmgw.core.events import EVENTS
from llmgw.core.fold import NODE_HANDLERS, apply, node_for
from llmgw.core.mistakes import FELL, set_apart
from llmgw.errors import MalformedRecord
from llmgw.wire import (
    SHALLOW_BYTES,
    UNDECODABLE,
    Route,
    check_size_and_depth,
    decode,
    record_of,
    route_of,
)

MOST_PLANS = 65_536


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


class _Plan(NamedTuple):
    """How the messages of one subject are folded; `handler` is there for facts of a node."""

    read: Callable[[bytes], Any]
    source: str
    node: str
    handler: Callable[[Cluster, Node, Any], None] | None
    route: Route | None


def _unknown(_payload: bytes) -> NoReturn:
    raise MalformedRecord("not a message of this version's: `decode` says what it is")


class _Plans(dict[str, _Plan]):
    """Plans by subject. A log has few subjects and very many messages."""

    def __missing__(self, subject: str) -> _Plan:
        route = route_of(subject)
        plan = _Plan(_unknown, "", "", None, None)
        if route is not None and route.decode is not None:
            handler = NODE_HANDLERS.get(EVENTS[route.wire]) if route.origin == "node" else None
            plan = _Plan(route.decode, route.source, route.node, handler, route)
        if len(self) >= MOST_PLANS:  # somebody makes up subjects
            self.clear()
        self[subject] = plan
        return plan


_PLANS = _Plans()


def fold(state: Cluster, messages: Iterable[Stored]) -> None:
    """Fold messages of a log, in their order, into `state`. Never raises: see `core.mistakes`."""
    following = iter(messages)
    while True:
        try:
            _fold(state, following)
        except FELL as error:
            set_apart(state, error)
        else:
            return


def _fold(state: Cluster, messages: Iterator[Stored]) -> None:
    plans = _PLANS
    for message in messages:
        payload = message.payload
        read, source, name, handler, route = plans[message.subject]
        try:
            if len(payload) > SHALLOW_BYTES:
                check_size_and_depth(payload)
            envelope = read(payload)
        except UNDECODABLE:
            _fold_slowly(state, message)
            continue
        if route is None or envelope.source != source:
            _fold_slowly(state, message)
            continue
        if handler is None:
            apply(state, record_of(message.sequence, message.time_ns, route, envelope))
            continue
        state.sequence = message.sequence
        state.time_ns = message.time_ns
        node = node_for(state, name, envelope.session, envelope.number)
        if node is not None:
            handler(state, node, envelope.data)


def _fold_slowly(state: Cluster, message: Stored) -> None:
    record = decode(message.sequence, message.time_ns, message.subject, message.payload)
    apply(state, record)
