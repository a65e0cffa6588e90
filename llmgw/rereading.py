"""How the fold reads messages: just as `llmgw.wire` does, but nothing twice.

Checking a name letter by letter takes longer than all else about a small event, and most names in
a log were there before. So `trusting_decoder` reads names as mere strings: whoever uses it looks
each of them up among those of the state, which were checked when they came. A command lists all
that shall run on a node, so most of it stood in the command before; and an agent that comes back
has the hardware that it had. Whether such bytes are valid depends on nothing but the bytes: so they
are compared with those that were read last on the same subject, and the rest of the message is read
by the same decoder as ever, with something short in their place. What is not written exactly as
llmgw writes it is read as a whole.

Pure but for what is remembered, which changes how long reading takes, and never what is read.
`llmgw.folding` is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from llmgw.core import events as e
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.values import Token
from llmgw.errors import MalformedRecord
from llmgw.hardware.types import Inventory
from llmgw.wire import MAX_DEPTH, SHALLOW_BYTES, check_size_and_depth, decoder_of

Read = Callable[[bytes], Any]

MOST_REMEMBERED_BYTES = 16_384
"""Of one message. A node's state takes more memory than the bytes that it was read from."""


# --- names that were there before ---------------------------------------------------------------


def _trusting(kind: type[Any]) -> type[Any]:
    """Return a type with the fields of `kind`, but any string where that has a name."""
    fields = []
    for field in msgspec.structs.fields(kind):
        given: dict[str, Any] = {"name": field.encode_name}
        if field.default is not msgspec.NODEFAULT:
            given["default"] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            given["default_factory"] = field.default_factory
        fields.append((field.name, _TRUSTED.get(field.type, field.type), msgspec.field(**given)))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, gc=False)


_TRUSTED: dict[Any, Any] = {Token: str}
_TRUSTED[tuple[e.PartPlacement, ...]] = tuple[_trusting(e.PartPlacement), ...]  # type: ignore[misc]

_TRUSTING: dict[str, Read] = {
    kind.wire: decoder_of(kind, _trusting(kind)).decode
    for kind in (
        e.ReplicaStarting,
        e.ReplicaBecameReady,
        e.ReplicaAdopted,
        e.ReplicaFailed,
        e.ReplicaStopped,
        e.NodeLost,
        e.NodeReturned,
        e.ReplicaAssigned,
        e.ReplicaRetired,
        SetAssignments,
    )
}


def trusting_decoder(wire: str) -> Read | None:
    """Return a decoder that reads names as strings, for the types of which the fold knows them."""
    return _TRUSTING.get(wire)


# --- bytes that were there before ---------------------------------------------------------------


def _read_whole(read: Read, payload: bytes) -> Any:  # noqa: ANN401 -- as the decoder says
    if len(payload) > SHALLOW_BYTES:
        check_size_and_depth(payload)
    return read(payload)


def _is_plain(head: bytes, opened: int) -> bool:
    """Return whether nothing is nested in the beginning of a message but what is still open."""
    return len(head) < SHALLOW_BYTES and head.count(b"{") == opened and b"[" not in head


_ASSIGNMENTS = b',"assignments":[{"replica":'
_NEXT_ASSIGNMENT = b'},{"replica":'
_END_OF_ASSIGNMENTS = b"}]}}"
_NO_ASSIGNMENTS = b',"assignments":[]}}'
_MOST_BRACKETS = MAX_DEPTH - 4
"""So many inside of one assignment cannot nest deeper than a message may."""
_assignments = msgspec.json.Decoder(Assignment)


class Commands:
    """Reads the commands for one node, and remembers the assignments of the last one."""

    __slots__ = ("_read", "_told")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._told: list[bytes] = []

    def read(self, payload: bytes) -> Any:  # noqa: ANN401 -- as the decoder says
        """Return the envelope of a command, without assignments, though all of them were checked.

        Raises `MalformedRecord` or `msgspec.MsgspecError` where it cannot be read, or where only
        reading it as a whole tells whether it can. No string holds what parts the assignments: a
        quotation mark inside of one has a backslash before it. So if what is between is an
        assignment each, and the rest a command without any, there is no other way to read them.
        """
        head, _, listed = payload.partition(_ASSIGNMENTS)
        if (
            len(payload) > MOST_REMEMBERED_BYTES
            or not listed.endswith(_END_OF_ASSIGNMENTS)
            or not _is_plain(head, 2)
        ):
            return _read_whole(self._read, payload)
        told, found = self._told, listed[:-4].split(_NEXT_ASSIGNMENT)
        for one in found:
            if one not in told:
                _check_assignment(one)
        self._told = found
        read = self._read
        return read(head + _NO_ASSIGNMENTS)


def _check_assignment(told: bytes) -> None:
    if told.count(b"{") + told.count(b"[") > _MOST_BRACKETS:
        raise MalformedRecord("it may nest too deep: the whole message tells whether it does")
    _assignments.decode(b'{"replica":' + told + b"}")


_INVENTORY = b',"data":{"inventory":'
_END_OF_INVENTORY = b"}}"
_OTHER_INVENTORY = b',"data":{"inventory":{"node":"","backend":""}}}'
_inventories = msgspec.json.Decoder(Inventory)


class Inventories:
    """Reads the inventories of one node, and remembers the last one."""

    __slots__ = ("_last", "_read")

    def __init__(self, read: Read) -> None:
        self._read = read
        self._last: tuple[bytes, e.NodeInventoryTaken] | None = None

    def read(self, payload: bytes) -> Any:  # noqa: ANN401 -- as the decoder says
        """Return the envelope of an inventory.

        Raises `MalformedRecord` or `msgspec.MsgspecError` where it cannot be read, or where only
        reading it as a whole tells what it is. No string holds what the inventory begins with, and
        what follows is one value and the end: there is no other way to read them.
        """
        head, _, told = payload.partition(_INVENTORY)
        plain = _is_plain(head, 1)
        last = self._last
        if last is not None and plain and told == last[0]:
            return replace(self._read(head + _OTHER_INVENTORY), data=last[1])
        envelope = _read_whole(self._read, payload)
        if (  # a short one may nest deep: in a message no longer than that nobody looks
            plain
            and SHALLOW_BYTES < len(told) <= MOST_REMEMBERED_BYTES
            and told.endswith(_END_OF_INVENTORY)
        ):
            _inventories.decode(told[:-2])  # one value, and nothing after it
            self._last = told, envelope.data
        return envelope


READERS: dict[str, type[Commands | Inventories]] = {
    SetAssignments.wire: Commands,
    e.NodeInventoryTaken.wire: Inventories,
}
"""For the types of which much is said again."""
