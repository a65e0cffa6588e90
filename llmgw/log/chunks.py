"""How an archive holds a few thousand records together: packed, and with a checksum.

In format 2 a chunk is one blob: zlib over the msgpack encoding of three lists of one length, the
times (nanoseconds since 1970), the numbers of the subjects and the payloads. Any program with a
zlib and a msgpack reads it. Its checksum is a SHA-256 over the blob. In format 1, which is still
read, a chunk is rows of a table, and its checksum a SHA-256 over the msgpack encoding of the rows
`[sequence, time_ns, subject, payload]`. Bytes in, messages out; files are `archive`'s.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from llmgw.log.base import Message

CHUNK_RECORDS = 4_096
CHUNK_BYTES = 4 * 1024 * 1024
MOST_UNPACKED_BYTES = 4 * CHUNK_BYTES
"""More than a chunk can hold: a blob that says otherwise is not unpacked any further."""

_LEVEL = 6
"""Slower to write than 1, and a quarter faster to read, and smaller."""

Row = tuple[int, int, int, bytes]
Columns = tuple[list[int], list[int], list[bytes]]

_decoder: msgspec.msgpack.Decoder[Columns] = msgspec.msgpack.Decoder(Columns)


class BadChunk(ValueError):
    """A chunk is not what was written; the message says how."""


def sha256(rows: Sequence[object]) -> bytes:
    """Return the checksum of the msgpack encoding of rows."""
    return hashlib.sha256(msgspec.msgpack.encode(rows)).digest()


def pack(times: list[int], subjects: list[int], payloads: list[bytes]) -> tuple[bytes, bytes]:
    """Return a chunk's blob and the checksum of it."""
    body = zlib.compress(msgspec.msgpack.encode((times, subjects, payloads)), _LEVEL)
    return body, hashlib.sha256(body).digest()


def unpack(
    body: object, checksum: bytes, first: int, last: int, names: Mapping[int, str]
) -> list[Message]:
    """Return the messages of a chunk, known to be what was written. Raises `BadChunk`."""
    if not isinstance(body, bytes) or hashlib.sha256(body).digest() != checksum:
        raise BadChunk("do not match their checksum")
    try:
        reader = zlib.decompressobj()
        times, subjects, payloads = _decoder.decode(reader.decompress(body, MOST_UNPACKED_BYTES))
        named = [names[number] for number in subjects]
    except (zlib.error, msgspec.MsgspecError, ValueError, KeyError) as error:
        raise BadChunk(f"cannot be unpacked ({error})") from error
    sequences = range(first, last + 1)
    if not len(sequences) == len(times) == len(named) == len(payloads):
        raise BadChunk(f"are {len(payloads)} in number")
    return list(map(Message, sequences, times, named, payloads))


def unpack_rows(rows: Sequence[Row], checksum: bytes, names: Mapping[int, str]) -> list[Message]:
    """Return the messages of a chunk of format 1. Raises `BadChunk`."""
    if not rows or sha256(rows) != checksum:
        raise BadChunk("do not match their checksum")
    return [
        Message(sequence, time_ns, names[number], payload)
        for sequence, time_ns, number, payload in rows
    ]
