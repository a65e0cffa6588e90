"""Bytes to records and back: subjects, CloudEvents envelopes, message ids, upcasts.

Pure. Everything on the log passes through here in both directions, so this is where bytes from
outside are distrusted: size and depth are checked before decoding, types and ranges while
decoding, and the writer's name against the subject that the server let it publish on. `decode`
never raises; what it cannot read comes back as a record that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from llmgw.core.commands import SetAssignments
from llmgw.core.events import EVENTS, Event
from llmgw.core.records import Body, NewerVersion, Record, UnknownType, Unreadable
from llmgw.core.telemetry import ControllerHeartbeat, NodeHeartbeat, NodeSample
from llmgw.core.values import MAX_INTEGER, Origin, Whole
from llmgw.errors import MalformedRecord, UsageError

MAX_PAYLOAD_BYTES = 1_048_576
MAX_DEPTH = 32
SHALLOW_BYTES = 1_024
"""So few bytes cannot exhaust a stack, however they nest: a level takes about 500 bytes of it."""
MOST_ROUTES = 65_536
TYPE_PREFIX = "llmgw."
SEQUENCE_HEADER = "Llmgw-Sequence"
"""Of an answer: up to where the log was folded for it."""

_TOKEN_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

# Possessive and with an optional end, so that no string, not even one that never ends, is read
# twice: a search for the end that starts over at each quote takes minutes for a megabyte.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_TERM_SESSION = re.compile("term-([0-9]{1,15})", re.ASCII)
_BRACKETS = b"[]{}"
_NO_BRACKET = bytes(set(range(256)) - set(_BRACKETS))
_NO_BRACKET_NO_STRING = bytes(set(range(256)) - set(_BRACKETS + b'"\\'))

UNDECODABLE = (msgspec.MsgspecError, MalformedRecord, ValueError, RecursionError)
# An upcast takes apart what only an older version ever checked.
_UPCASTING = (*UNDECODABLE, LookupError, TypeError, AttributeError, ArithmeticError)

Session = Annotated[str, msgspec.Meta(max_length=256)]
Ordinal = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A CloudEvents Integer has 32 bits and a sign; what is written keeps to that."""

T = TypeVar("T")


class Envelope(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """CloudEvents 1.0 in JSON. `dataversion`, `session` and `number` are extension attributes."""

    specversion: Literal["1.0"] = "1.0"
    type: str
    id: str
    source: str
    time: str
    datacontenttype: Literal["application/json"] = "application/json"
    dataversion: Ordinal
    session: Session
    number: Ordinal
    data: T


Type = TypeVar("Type")
Version = TypeVar("Version")


class _Incoming(msgspec.Struct, Generic[Type, Version, T], frozen=True, kw_only=True, gc=False):
    """What is read of an envelope: the rest (id, time, content type) is for other readers.

    Making fewer strings is a quarter of the cost of reading a small event; so the type and the
    version that a subject calls for are literals, which msgspec compares where they stand.
    """

    specversion: Literal["1.0"]
    type: Type
    source: str
    dataversion: Version
    session: Session
    number: Whole
    data: T


class Outgoing(NamedTuple):
    """A message ready to be appended. `message_id` makes repeating it harmless."""

    subject: str
    payload: bytes
    message_id: str


class Route(msgspec.Struct, frozen=True):
    """What a subject says of its messages. `decode` is absent where the type is unknown."""

    origin: Origin
    node: str
    wire: str
    source: str
    version: int = 0
    decode: Callable[[bytes], _Incoming[Any, Any, Any]] | None = None

    @property
    def type(self) -> str:
        """The type that an envelope on this subject must have."""
        return TYPE_PREFIX + self.wire


# A newer writer's version: upcast functions take the decoded data of (type, version) and return
# the data of version + 1. Empty until a released version changes.
Upcast = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTS: dict[tuple[str, int], Upcast] = {}

_encoder = msgspec.json.Encoder()
_KNOWN: Mapping[str, type[Any]] = {**EVENTS, SetAssignments.wire: SetAssignments}


def decoder_of(kind: type[Any], data: type[Any]) -> msgspec.json.Decoder[Any]:
    """Return what reads messages of an event, or a command, in its newest version.

    `data` is the type to read it into: itself, or one with the same fields.
    """
    envelope: Any = _Incoming[Literal[TYPE_PREFIX + kind.wire], Literal[kind.version], data]  # type: ignore[misc]
    return msgspec.json.Decoder(envelope)


_DECODERS = {wire: decoder_of(kind, kind) for wire, kind in _KNOWN.items()}
_AnyVersion = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
_AnyIncoming = _Incoming[str, _AnyVersion, Any]
_ANY: msgspec.json.Decoder[_AnyIncoming] = msgspec.json.Decoder(_AnyIncoming)


def _is_token(name: str) -> bool:
    return 1 <= len(name) <= 63 and _TOKEN_CHARACTERS.issuperset(name)


def check_token(name: str, what: str) -> str:
    """Return `name` if it can be one token of a subject, else raise `UsageError`."""
    if not _is_token(name):
        raise UsageError(
            f"{what} {name!r} is not valid: use 1 to 63 of the characters A-Z a-z 0-9 _ -"
        )
    return name


def prefix(cluster: str) -> str:
    """Return what every subject of the cluster begins with, without the final dot."""
    return f"llmgw.v1.{cluster}"


def event_subject(cluster: str, event: type[Event] | Event, node: str = "") -> str:
    """Return the subject that an event of this class is written to."""
    writer = f"node.{node}" if event.origin == "node" else event.origin
    return f"{prefix(cluster)}.event.{writer}.{event.wire}"


def command_subject(cluster: str, node: str) -> str:
    """Return the subject of the commands for one node."""
    return f"{prefix(cluster)}.command.{node}"


def telemetry_subject(cluster: str, node: str) -> str:
    """Return the subject of one node's samples."""
    return f"{prefix(cluster)}.telemetry.{node}"


def heartbeat_subject(cluster: str, node: str) -> str:
    """Return the subject of one node's heartbeats; in no stream."""
    return f"{prefix(cluster)}.heartbeat.node.{node}"


def leader_heartbeat_subject(cluster: str) -> str:
    """Return the subject of the leading controller's heartbeats; in no stream."""
    return f"{prefix(cluster)}.heartbeat.controller"


def view_subject(cluster: str, view: str) -> str:
    """Return the subject on which controllers answer with a view; in no stream."""
    return f"{prefix(cluster)}.api.views.{view}"


def controller_fence(cluster: str) -> str:
    """Return the filter over which a controller's append expects a last sequence."""
    return f"{prefix(cluster)}.event.controller.>"


def encode_event(
    cluster: str, event: Event, *, node: str = "", session: str, number: int, time: str
) -> Outgoing:
    """Return the message for an event. `time` is RFC 3339 and only for display."""
    writer = f"node/{node}" if event.origin == "node" else event.origin
    subject = event_subject(cluster, event, node)
    message_id = f"{writer}/{session}/{number}"
    source = f"/llmgw/{cluster}/{writer}"
    return _outgoing(subject, event, message_id, source, session, number, time)


def revision_and_term(record: Record) -> tuple[int, int] | None:
    """Return what the envelope of a command says of it, even if the rest could not be read."""
    match = _TERM_SESSION.fullmatch(record.session)
    if record.origin != "command" or match is None:
        return None
    return record.number, int(match[1])


def encode_command(cluster: str, command: SetAssignments, *, time: str) -> Outgoing:
    """Return the message for a command. Deciding it again gives the same message id."""
    subject = command_subject(cluster, command.node)
    message_id = f"command/{command.node}/{command.term}/{command.revision}"
    source, session = f"/llmgw/{cluster}/controller", f"term-{command.term}"
    return _outgoing(subject, command, message_id, source, session, command.revision, time)


def _outgoing(
    subject: str,
    said: Event | SetAssignments | NodeSample | NodeHeartbeat | ControllerHeartbeat,
    message_id: str,
    source: str,
    session: str,
    number: int,
    time: str,
) -> Outgoing:
    envelope = Envelope(
        type=TYPE_PREFIX + said.wire,
        id=message_id,
        source=source,
        time=time,
        dataversion=said.version,
        session=session,
        number=number,
        data=said,
    )
    payload = _encoder.encode(envelope)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MalformedRecord(
            f"{envelope.type} on {subject} would take {len(payload)} bytes; "
            f"the log takes {MAX_PAYLOAD_BYTES} at most"
        )
    return Outgoing(subject, payload, message_id)


def encode_sample(cluster: str, sample: NodeSample, *, time: str) -> Outgoing:
    """Return the message for a telemetry sample."""
    subject = telemetry_subject(cluster, sample.node)
    message_id = f"telemetry/{sample.node}/{sample.session}/{sample.number}"
    source = f"/llmgw/{cluster}/node/{sample.node}"
    return _outgoing(subject, sample, message_id, source, sample.session, sample.number, time)


def encode_heartbeat(cluster: str, beat: NodeHeartbeat, *, time: str) -> Outgoing:
    """Return the message for a node's heartbeat."""
    subject = heartbeat_subject(cluster, beat.node)
    message_id = f"heartbeat/node/{beat.node}/{beat.session}/{beat.number}"
    source = f"/llmgw/{cluster}/node/{beat.node}"
    return _outgoing(subject, beat, message_id, source, beat.session, beat.number, time)


def encode_leader_heartbeat(cluster: str, beat: ControllerHeartbeat, *, time: str) -> Outgoing:
    """Return the message for a leader's heartbeat."""
    subject = leader_heartbeat_subject(cluster)
    session = f"{beat.holder}-{beat.term}"
    message_id = f"heartbeat/controller/{session}/{beat.number}"
    source = f"/llmgw/{cluster}/controller"
    return _outgoing(subject, beat, message_id, source, session, beat.number, time)


def _read(decoder: msgspec.json.Decoder[T], subject: str, payload: bytes) -> T:
    """Return what a message outside the log says. Raises `MalformedRecord`."""
    try:
        check_size_and_depth(payload)
        return decoder.decode(payload)
    except UNDECODABLE as error:
        raise MalformedRecord(f"{subject}: {_one_line(error)}") from error


_LEADERS = msgspec.json.Decoder(
    _Incoming[Literal["llmgw.controller.heartbeat"], int, ControllerHeartbeat]
)


def decode_leader_heartbeat(subject: str, payload: bytes) -> ControllerHeartbeat:
    """Return what a leader's heartbeat says. Raises `MalformedRecord`."""
    return _read(_LEADERS, subject, payload).data


_SAMPLES = msgspec.json.Decoder(_Incoming[Literal["llmgw.node.sample"], int, NodeSample])


def decode_sample(subject: str, payload: bytes) -> NodeSample:
    """Return the sample in a telemetry message. Raises `MalformedRecord`.

    A sample of another version is one like any other if it can be read as this version's: it
    decides nothing, and the next one comes in seconds.
    """
    envelope = _read(_SAMPLES, subject, payload)
    cluster, _, node = subject.removeprefix("llmgw.v1.").partition(".telemetry.")
    if envelope.source != f"/llmgw/{cluster}/node/{node}" or envelope.data.node != node:
        said = f"source {envelope.source!r} and node {envelope.data.node!r}"
        raise MalformedRecord(f"{subject}: a sample that names {said}")
    return envelope.data


def decode(sequence: int, time_ns: int, subject: str, payload: bytes) -> Record:
    """Return the record of one message of the log. Never raises."""
    route = _ROUTES[subject]
    if route is None:
        body = Unreadable(subject, "the subject is not one of llmgw's")
        return Record(sequence, time_ns, "operator", "", "", 0, body)
    read = route.decode
    if read is None:
        return _record(sequence, time_ns, route, UnknownType(route.wire))
    try:
        if len(payload) > SHALLOW_BYTES:
            check_size_and_depth(payload)
        envelope = read(payload)
    except UNDECODABLE as error:
        return _reread(sequence, time_ns, subject, route, payload, error)
    if envelope.source != route.source:
        return _record(sequence, time_ns, route, Unreadable(subject, _forged(envelope, route)))
    return _record(sequence, time_ns, route, envelope.data, envelope.session, envelope.number)


def _record(
    sequence: int, time_ns: int, route: Route, body: Body, session: str = "", number: int = 0
) -> Record:
    return Record(sequence, time_ns, route.origin, route.node, session, number, body)


def _forged(envelope: _Incoming[Any, Any, Any], route: Route) -> str:
    """Return in what the envelope says another thing than the subject, or nothing."""
    if envelope.source != route.source:
        return f"source {envelope.source!r:.200} does not match the subject's {route.source!r}"
    if envelope.type != route.type:
        return f"type {envelope.type!r:.200} does not match the subject's {route.type!r}"
    return ""


def _reread(
    sequence: int, time_ns: int, subject: str, route: Route, payload: bytes, error: Exception
) -> Record:
    """Say why a payload did not decode, or decode it after all: it may be of another version.

    Who wrote it, and as which number, is kept where the envelope says so and is believed: that
    is enough to answer a command that cannot be read.
    """
    why = _one_line(error)
    envelope: _AnyIncoming | None = None
    with suppress(*UNDECODABLE):  # of two errors the first says more
        check_size_and_depth(payload)
        envelope = _ANY.decode(payload)
    if envelope is None:
        return _record(sequence, time_ns, route, Unreadable(subject, why))
    if forged := _forged(envelope, route):
        return _record(sequence, time_ns, route, Unreadable(subject, forged))
    if envelope.dataversion > route.version:
        body: Body = NewerVersion(route.wire, envelope.dataversion)
    elif envelope.dataversion < route.version:
        body = _upcasted(subject, route, envelope)
    else:
        body = _last_told(subject, route, envelope, why)
    return _record(sequence, time_ns, route, body, envelope.session, envelope.number)


def _upcasted(subject: str, route: Route, envelope: _AnyIncoming) -> Body:
    """Bring the data of an older version up to this one, step by step."""
    data = envelope.data
    try:
        for version in range(envelope.dataversion, route.version):
            data = _upcast(route.wire, version)(data)
        body: Body = msgspec.convert(data, _KNOWN[route.wire])
    except _UPCASTING as error:
        return Unreadable(subject, _one_line(error))
    return body


def _last_told(subject: str, route: Route, envelope: _AnyIncoming, why: str) -> Body:
    """Read the data once more, or say why it cannot be read.

    Of a key that is there twice the last value counts, as with most readers of JSON, also where
    the first is none: `llmgw.rereading` looks at the last one only.
    """
    try:
        body: Body = msgspec.convert(envelope.data, _KNOWN[route.wire])
    except UNDECODABLE:
        return Unreadable(subject, why)
    return body


def _upcast(wire: str, version: int) -> Upcast:
    try:
        return UPCASTS[wire, version]
    except KeyError:
        raise MalformedRecord(f"version {version} of {wire} was never released") from None


class _Routes(dict[str, Route | None]):
    """Subjects taken apart, once each: a log has few subjects and very many messages.

    When it is full it begins anew, so that a writer who makes up subjects cannot fill the memory.
    """

    def __missing__(self, subject: str) -> Route | None:
        if len(self) >= MOST_ROUTES:
            self.clear()
            _SHARED.clear()
        route = self[subject] = _route(subject)
        return route


_ROUTES = _Routes()
_SHARED: dict[str, str] = {}
"""Names and sources as one string each, however many subjects have them: to compare a string with
itself costs nothing."""


def _route(subject: str) -> Route | None:
    tokens = subject.split(".")
    if len(tokens) < 5 or tokens[0] != "llmgw" or tokens[1] != "v1":
        return None
    cluster, kind, writer = tokens[2], tokens[3], tokens[4]
    if kind == "command" and len(tokens) == 5 and _is_token(writer):
        return _known_route("command", writer, SetAssignments, f"/llmgw/{cluster}/controller")
    if kind != "event":
        return None
    if writer == "node" and len(tokens) > 6 and _is_token(tokens[5]):
        return _event_route("node", tokens[5], ".".join(tokens[6:]), cluster)
    if writer in ("controller", "operator") and len(tokens) > 5:
        return _event_route(writer, "", ".".join(tokens[5:]), cluster)  # type: ignore[arg-type]
    return None


def _event_route(origin: Origin, node: str, wire: str, cluster: str) -> Route:
    known = EVENTS.get(wire)
    source = f"/llmgw/{cluster}/node/{node}" if node else f"/llmgw/{cluster}/{origin}"
    if known is None or known.origin != origin:  # under somebody else's subject it is not that
        return Route(origin, node, wire, source)
    return _known_route(origin, node, known, source)


def _known_route(
    origin: Origin, node: str, known: type[Event | SetAssignments], source: str
) -> Route:
    node, source = _SHARED.setdefault(node, node), _SHARED.setdefault(source, source)
    return Route(origin, node, known.wire, source, known.version, _DECODERS[known.wire].decode)


def route_of(subject: str) -> Route | None:
    """Return what a subject says about its messages; `None` when it is not one of llmgw's."""
    return _ROUTES[subject]


def check_size_and_depth(payload: bytes) -> None:
    """Refuse what would cost too much to decode. Raises `MalformedRecord`.

    A decoder that recurses can end the process on a small stack, so the depth is counted first.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MalformedRecord(f"{len(payload)} bytes; {MAX_PAYLOAD_BYTES} at most are read")
    few = MAX_DEPTH + 1
    without = payload.replace(b"{", b"", few).replace(b"[", b"", few)  # faster than counting
    if len(payload) - len(without) <= MAX_DEPTH:
        return
    marks = payload.translate(None, _NO_BRACKET_NO_STRING)
    brackets = marks.replace(b'""', b"")
    if b'"' in brackets or b"\\" in brackets:  # a string holds a bracket, or an escape
        brackets = _STRINGS.sub(b"", payload).translate(None, _NO_BRACKET)
    for _ in range(MAX_DEPTH):  # each turn takes the innermost level away
        before, brackets = brackets, brackets.replace(b"{}", b"").replace(b"[]", b"")
        if brackets == before:
            break
    if b"{" in brackets or b"[" in brackets:
        raise MalformedRecord(f"nested more than {MAX_DEPTH} deep, or never closed")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
