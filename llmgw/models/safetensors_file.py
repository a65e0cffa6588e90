"""Headers of safetensors files and their index: shapes and types, never the weights.

A header is 8 bytes with its length, then JSON: name to `dtype`, `shape` and `data_offsets`. Shards
are found by `model.safetensors.index.json`, or by name where there is none. Bounded: a hostile
file is refused by its first lie.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmgw.errors import ModelUnreadable
from llmgw.models.dtypes import SAFETENSORS_BITS
from llmgw.models.types import TensorInfo

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MOST_INDEX_BYTES = 64 << 20
MOST_CONFIG_BYTES = 4 << 20
MOST_TENSORS = 1_000_000
MOST_SHARDS = 2_000
MOST_DIMENSIONS = 16

INDEX_NAME = "model.safetensors.index.json"


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Index(NamedTuple):
    """An index: the shards that it names, and the size in bytes that it claims, if it does."""

    shards: tuple[str, ...]
    total_bytes: int | None


def read_header(path: Path) -> tuple[TensorInfo, ...]:
    """Return the tensors of one safetensors file. Raises `ModelUnreadable`."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MOST_HEADER_BYTES, size - 8):
                raise ModelUnreadable(
                    f"{path}: its header claims {length} bytes and the file has {size}: it is cut "
                    "off or no safetensors file (a Git LFS pointer?); download it again"
                )
            return _tensors(path, file.read(length), size - 8 - length)
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error.strerror or error}") from error


def _tensors(path: Path, header: bytes, data_bytes: int) -> tuple[TensorInfo, ...]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=Entry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelUnreadable(f"{path}: its header is no safetensors header: {error}") from error
    if len(entries) > MOST_TENSORS:
        raise ModelUnreadable(f"{path}: claims {len(entries)} tensors: more than any model has")
    return tuple(_tensor(path, name, entry, data_bytes) for name, entry in entries.items())


def _tensor(path: Path, name: str, entry: Entry, data_bytes: int) -> TensorInfo:
    start, end = entry.data_offsets
    if not 0 <= start <= end <= data_bytes:
        raise ModelUnreadable(
            f"{path}: the tensor {name!r:.80} lies at {start} to {end} of {data_bytes} bytes: the "
            "file is cut off; download it again"
        )
    bits = SAFETENSORS_BITS.get(entry.dtype)
    odd = len(entry.shape) > MOST_DIMENSIONS or any(length < 0 for length in entry.shape)
    if bits is not None and (odd or -(-math.prod(entry.shape) * bits // 8) != end - start):
        raise ModelUnreadable(
            f"{path}: the tensor {name!r:.80} is {entry.dtype} {entry.shape!s:.60} in "
            f"{end - start} bytes: these do not agree"
        )
    return TensorInfo(name, tuple(entry.shape), entry.dtype, end - start)


def read_index(path: Path) -> Index:
    """Return what a `*.index.json` names. Raises `ModelUnreadable`."""
    index = read_json(path, MOST_INDEX_BYTES)
    weights = index.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise ModelUnreadable(f"{path}: has no weight_map")
    shards = sorted({str(shard) for shard in weights.values()})
    if len(shards) > MOST_SHARDS:
        raise ModelUnreadable(f"{path}: names {len(shards)} files: more than any model has")
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelUnreadable(f"{path}: names {shard!r:.80}, which is no file beside it")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    known = isinstance(total, int | float) and not isinstance(total, bool) and 0 < total < 1 << 53
    return Index(tuple(shards), int(total) if known and total is not None else None)


def read_json(path: Path, most_bytes: int = MOST_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in the file at `path`. Raises `ModelUnreadable`."""
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except OSError as error:
        raise ModelUnreadable(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > most_bytes:
        raise ModelUnreadable(f"{path}: is larger than {most_bytes} bytes: no model's is")
    try:
        found = json.loads(raw)  # some have Infinity in them, which msgspec refuses
    except (ValueError, RecursionError) as error:
        raise ModelUnreadable(f"{path}: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelUnreadable(f"{path}: is no JSON object")
    return found
