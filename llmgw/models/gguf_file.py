"""The header of a GGUF file: its keys and the shapes of its tensors, never the weights.

Reads versions 2 and 3 in little endian, from an open binary file, in bounded memory: a hostile
file is refused by its first lie. Arrays longer than `KEPT_ITEMS` (vocabularies) are walked over
and only counted. What the keys mean is the business of `gguf_model`.

Layout (ggml's `docs/gguf.md`): magic, version, counts of tensors and keys; then keys as name,
type and value; then tensors as name, dimensions, type and offset; then padding and data.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from llmgw.errors import ModelUnreadable
from llmgw.models.dtypes import GGML_TYPES
from llmgw.models.types import GgufHeader, TensorInfo, Value

MOST_TENSORS = 200_000
MOST_KEYS = 20_000
MOST_HEADER_BYTES = 1 << 30
MOST_ITEMS = 50_000_000
MOST_TEXT_BYTES = 16 << 20
MOST_NAME_BYTES = 65_535
MOST_DIMENSIONS = 4
MOST_DEPTH = 4
KEPT_ITEMS = 4_096
_CHUNK_BYTES = 1 << 20
_ALIGNMENT = 32

_TEXT, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"} | {
    10: "<Q",
    11: "<q",
    12: "<d",
}
_READERS = {number: struct.Struct(form) for number, form in _SCALARS.items()}


def read_gguf(path: Path) -> GgufHeader:
    """Return the header of the GGUF file at `path`.

    Raises `ModelUnreadable` for a file that is cut off, lies about its sizes, or is none.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file, str(path), os.fstat(file.fileno()).st_size).header()
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error.strerror or error}") from error


class _Reader:
    """Reads forward through one file. Every length is checked against what is left of it."""

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file = file
        self._name = name
        self._size = size
        self._limit = min(size, MOST_HEADER_BYTES)
        self._at = 0
        self._items = 0
        self._lengths: dict[str, int] = {}

    def header(self) -> GgufHeader:
        magic = self._take(4, "the magic number") if self._size >= 4 else b""
        if magic != b"GGUF":
            raise self._bad("is no GGUF file: it does not begin with GGUF")
        version = self._number(4)
        if version not in (2, 3):
            raise self._bad(_version_advice(version))
        tensors, keys = self._number(10), self._number(10)
        if tensors > MOST_TENSORS or keys > MOST_KEYS:
            raise self._bad(f"claims {tensors} tensors and {keys} keys: more than any model has")
        values = self._keys(keys)
        infos = self._tensors(tensors, values)
        return GgufHeader(values, self._lengths, infos)

    def _keys(self, count: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for _ in range(count):
            name = self._text(MOST_NAME_BYTES, "the name of a key")
            if name in values:
                raise self._bad(f"holds the key {name!r:.80} twice")
            values[name] = self._value(self._number(4), name, MOST_DEPTH)
        return values

    def _value(self, kind: int, key: str, depth: int) -> Value:
        if kind == _TEXT:
            return self._text(MOST_TEXT_BYTES, f"the value of {key!r:.80}")
        if kind == _ARRAY:
            return self._array(key, depth)
        return self._scalar(kind, key)

    def _scalar(self, kind: int, key: str) -> int | float | bool:
        reader = _READERS.get(kind)
        if reader is None:
            raise self._bad(f"{key!r:.80} has the type {kind}, which GGUF does not define")
        value: int | float | bool = reader.unpack(self._take(reader.size, key))[0]
        return value

    def _array(self, key: str, depth: int) -> list[Value] | None:
        kind, count = self._number(4), self._number(10)
        self._items += count
        if self._items > MOST_ITEMS or depth == 0:
            raise self._bad(f"{key!r:.80} holds {count} items: more than any model's")
        if count <= KEPT_ITEMS:
            return [self._value(kind, key, depth - 1) for _ in range(count)]
        self._lengths[key] = count
        if kind in _READERS:
            self._skip(count * _READERS[kind].size, key)
            return None
        for _ in range(count):
            if kind == _TEXT:
                self._skip(self._number(10), key)
            else:
                self._value(kind, key, depth - 1)
        return None

    def _tensors(self, count: int, keys: Mapping[str, Value]) -> tuple[TensorInfo, ...]:
        infos: list[TensorInfo] = []
        end = 0
        names: set[str] = set()
        for _ in range(count):
            info, offset = self._tensor()
            if info.name in names:
                raise self._bad(f"holds the tensor {info.name!r:.80} twice")
            names.add(info.name)
            end = max(end, offset + info.bytes)
            infos.append(info)
        alignment = keys.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._bad(f"has the alignment {alignment!r:.40}, which no file can have")
        start = -(-self._at // alignment) * alignment
        if start + end > self._size and infos:
            missing = start + end - self._size
            raise self._bad(
                f"ends {missing} bytes before its last tensor: it is cut off; download it again"
            )
        return tuple(infos)

    def _tensor(self) -> tuple[TensorInfo, int]:
        name = self._text(MOST_NAME_BYTES, "the name of a tensor")
        dimensions = self._number(4)
        if dimensions > MOST_DIMENSIONS:
            raise self._bad(f"the tensor {name!r:.80} has {dimensions} dimensions")
        shape = tuple(self._number(10) for _ in range(dimensions))
        kind, offset = self._number(4), self._number(10)
        packing = GGML_TYPES.get(kind)
        if packing is None:
            raise self._bad(
                f"the tensor {name!r:.80} has the type {kind}, which this version does not know"
            )
        row = shape[0] if shape else 1
        if row % packing.elements:
            raise self._bad(
                f"the tensor {name!r:.80} has rows of {row}, no multiple of {packing.elements} "
                f"as {packing.name} needs"
            )
        size = packing.row_bytes(row) * math.prod(shape[1:])
        if size > self._size or offset > self._size:
            raise self._bad(
                f"the tensor {name!r:.80} of {size} bytes at {offset} is not within the file's "
                f"{self._size} bytes: it is cut off; download it again"
            )
        return TensorInfo(name, shape, packing.name, size), offset

    def _number(self, kind: int) -> int:
        """Return an unsigned number: of 32 bits (kind 4) or of 64 (kind 10)."""
        reader = _READERS[kind]
        return int(reader.unpack(self._take(reader.size, "a number"))[0])

    def _text(self, most_bytes: int, what: str) -> str:
        size = self._number(10)
        if size > most_bytes:
            raise self._bad(f"{what} claims {size} bytes; at most {most_bytes} are read")
        return self._take(size, what).decode("utf-8", "replace")

    def _take(self, size: int, what: str) -> bytes:
        if self._at + size > self._limit:
            raise self._bad(
                f"ends in the middle of its header, at {what!s:.80}: {size} bytes are wanted at "
                f"{self._at} of {self._limit}; download it again"
            )
        data = self._file.read(size)
        if len(data) != size:
            raise self._bad(f"became shorter while it was read, at {self._at}")
        self._at += size
        return data

    def _skip(self, size: int, what: str) -> None:
        while size > 0:
            step = min(size, _CHUNK_BYTES)
            self._take(step, what)
            size -= step

    def _bad(self, what: str) -> ModelUnreadable:
        return ModelUnreadable(f"{self._name}: {what}")


def _version_advice(version: int) -> str:
    if version == 1:
        return "is GGUF version 1, which nobody writes any more: convert it again"
    if version and version & 0xFFFF == 0:
        return "is written in big endian, which the engines on these machines do not read"
    return f"is GGUF version {version}; versions 2 and 3 are known"
