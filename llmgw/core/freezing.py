"""The whole state as bytes and back: what a snapshot stores, and how a copy is made to ask "if".

Pure. `fingerprint` tells two shapes of the state apart even where somebody forgot to raise
`CODE_SCHEMA`, and two versions of the code of which one knows records that the other passes over:
what the older one folded lacks them. Called by snapshots, by replay's checkpoints and by what-if.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from llmgw.core.cluster import CODE_SCHEMA, Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.events import EVENTS

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Cluster] = msgspec.msgpack.Decoder(Cluster)


def freeze(state: Cluster) -> bytes:
    """Return the state as msgpack; the order of its parts is kept, because decisions follow it."""
    return _encoder.encode(state)


def thaw(frozen: bytes) -> Cluster:
    """Return a state of its own from what `freeze` returned.

    Raises `msgspec.MsgspecError` for anything else.
    """
    return _decoder.decode(frozen)


@cache
def fingerprint() -> str:
    """Return what changes with the shape of the state and the known records: 32 hex digits."""
    shape = _undescribed(msgspec.json.schema(Cluster))
    known = {wire: kind.version for wire, kind in EVENTS.items()}
    known[SetAssignments.wire] = SetAssignments.version
    text = msgspec.json.encode([CODE_SCHEMA, shape, known], order="sorted")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _undescribed(schema: Any) -> Any:  # noqa: ANN401 -- a JSON Schema is any JSON
    """Return a JSON Schema without what docstrings say."""
    if isinstance(schema, Mapping):
        kept = {k: v for k, v in schema.items() if k != "description" or not isinstance(v, str)}
        return {key: _undescribed(value) for key, value in kept.items()}
    if isinstance(schema, list | tuple):
        return [_undescribed(one) for one in schema]
    return schema
