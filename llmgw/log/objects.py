"""Snapshots on the log's own server, in a JetStream object store: for a controller that is new.

The layout is that of NATS object stores (ADR-20), so that `nats object ls` shows them: bytes in
pieces under `$O.<bucket>.C.<id>`, and what they are under `$O.<bucket>.M.<name>`. The bucket is
made by the first one that is saved; a cluster without one simply has no snapshots.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
import structlog

from llmgw.errors import LlmgwError
from llmgw.log import reader, setup
from llmgw.log.connection import Connection
from llmgw.log.publisher import Stored, StoredReply
from llmgw.log.session import Session
from llmgw.log.snapshots import KEPT, Snapshot, Wanted, first_usable

T = TypeVar("T")

PIECE_BYTES = 128 * 1024
_ACK_SECONDS = 5.0
_NAME_DIGITS = 20

_log = structlog.get_logger(__name__)


class _Info(msgspec.Struct, frozen=True, kw_only=True):
    """What an object store says of one object. `digest` is SHA-256, in URL-safe base 64."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    mtime: str = ""
    deleted: bool = False


class _Subjects(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Stream(msgspec.Struct):
    state: _Subjects


class _Copies(msgspec.Struct):
    num_replicas: int = 1


class _LogStream(msgspec.Struct):
    config: _Copies


class _Nothing(msgspec.Struct):
    pass


class ObjectSnapshots:
    """The snapshots of one cluster on its server."""

    def __init__(self, connection: Connection, names: setup.Names, deadline_seconds: float) -> None:
        self._connection = connection
        self._log_stream = names.log
        self._bucket = f"{names.bucket}_SNAPSHOTS"
        self._stream = f"OBJ_{self._bucket}"
        self._deadline_seconds = deadline_seconds

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        """Return the newest that can be used; see `Snapshots.newest`."""
        where = f"object store {self._bucket}"
        for name in sorted(await self._names(), reverse=True):
            if not name.isdecimal() or int(name) > wanted.most_sequence:
                continue
            encoded = await self._read(name)
            if encoded is None:
                _log.warning("snapshot_discarded", where=where, sequence=name, reason="incomplete")
            elif found := first_usable([(int(name), encoded)], wanted, where):
                return found
        return None

    async def save(self, sequence: int, encoded: bytes) -> None:
        """Keep a snapshot; see `Snapshots.save`. It is there once all of it is."""
        await self._ask(self._make)
        nuid, name = secrets.token_hex(11), f"{sequence:0{_NAME_DIGITS}}"
        pieces = [encoded[at : at + PIECE_BYTES] for at in range(0, len(encoded), PIECE_BYTES)]
        for piece in pieces:
            await self._publish(f"$O.{self._bucket}.C.{nuid}", piece)
        info = _Info(
            name=name,
            bucket=self._bucket,
            nuid=nuid,
            size=len(encoded),
            chunks=len(pieces),
            digest=_digest(encoded),
        )
        await self._publish(self._about(name), msgspec.json.encode(info), {"Nats-Rollup": "sub"})
        names = sorted(await self._names())
        # What is of a later sequence is of a log that is no more.
        kept = [one for one in names if one <= name][-KEPT:]
        for old in names:
            if old not in kept:
                await self._forget(old)

    # --- the object store --------------------------------------------------------------------

    async def _names(self) -> list[str]:
        """Return the names of what is there."""
        state = await self._state(f"$O.{self._bucket}.M.>")
        found = []
        for subject in (state.subjects or {}) if state is not None else ():
            with suppress(ValueError):
                found.append(base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode())
        return found

    async def _state(self, subject: str) -> _Subjects | None:
        """Return what the store holds under a subject; `None` if there is no store."""

        async def attempt(session: Session) -> _Subjects | None:
            request = {"subjects_filter": subject}
            try:
                info = await setup.api(session, f"STREAM.INFO.{self._stream}", request, _Stream)
            except setup.ApiError as failure:
                if failure.code == setup.STREAM_NOT_FOUND:
                    return None
                raise
            return info.state

        return await self._ask(attempt)

    async def _info(self, name: str) -> _Info | None:
        async def attempt(session: Session) -> Stored | None:
            query = {"last_by_subj": self._about(name)}
            try:
                subject = f"STREAM.MSG.GET.{self._stream}"
                return (await setup.api(session, subject, query, StoredReply)).message
            except setup.ApiError as failure:
                if failure.code == setup.NO_MESSAGE_FOUND:
                    return None
                raise

        stored = await self._ask(attempt)
        if stored is None:
            return None
        try:
            return msgspec.json.decode(base64.b64decode(stored.data), type=_Info)
        except (msgspec.MsgspecError, ValueError):
            return None

    async def _read(self, name: str) -> bytes | None:
        """Return an object, or `None` if it is not all there."""
        info = await self._info(name)
        subject = f"$O.{self._bucket}.C.{info.nuid}" if info is not None else ""
        state = await self._state(subject)
        if info is None or info.deleted or state is None:
            return None
        encoded = b"".join(await self._pieces(subject, state, info.chunks))
        whole = len(encoded) == info.size and _digest(encoded) == info.digest
        return encoded if whole else None

    async def _pieces(self, subject: str, state: _Subjects, wanted: int) -> list[bytes]:
        """Return the pieces of an object that are there, as soon as all that are wanted have come.

        The store's last message is of another subject: a reader that waits for its end waits long.
        """
        found: list[bytes] = []
        if not state.subjects:
            return found
        following = reader.follow(
            self._connection,
            self._stream,
            max(state.first_seq, 1),
            [subject],
            state.last_seq,
            self._deadline_seconds,
        )
        async with aclosing(following) as batches:
            async for batch in batches:
                found += [message.payload for message in batch]
                if len(found) >= wanted:
                    break
        return found

    async def _forget(self, name: str) -> None:
        info = await self._info(name)
        for subject in [f"$O.{self._bucket}.C.{info.nuid}"] if info is not None else []:
            await self._purge(subject)
        await self._purge(self._about(name))

    async def _purge(self, subject: str) -> None:
        request = {"filter": subject}

        async def attempt(session: Session) -> _Nothing:
            return await setup.api(session, f"STREAM.PURGE.{self._stream}", request, _Nothing)

        await self._ask(attempt)

    async def _make(self, session: Session) -> None:
        """Make the store if it is not there; nothing is changed of one that is."""
        with suppress(setup.ApiError):
            await setup.api(session, f"STREAM.INFO.{self._stream}", None, _Stream)
            return
        log = await setup.api(session, f"STREAM.INFO.{self._log_stream}", None, _LogStream)
        wanted = self._settings(log.config.num_replicas)
        await setup.api(session, f"STREAM.CREATE.{self._stream}", wanted, _Nothing)

    def _settings(self, replicas: int) -> dict[str, Any]:
        return {
            "name": self._stream,
            "description": "llmgw: snapshots; they can be made again from the log",
            "subjects": [f"$O.{self._bucket}.C.>", f"$O.{self._bucket}.M.>"],
            "storage": "file",
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "num_replicas": replicas,
        }

    async def _publish(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> None:
        async def attempt(session: Session) -> None:
            message = await session.request(subject, payload, _ACK_SECONDS, headers)
            ack = msgspec.json.decode(message.data)
            if not isinstance(ack, dict) or "seq" not in ack:
                said = ack.get("error", ack) if isinstance(ack, dict) else ack
                raise LlmgwError(f"the server did not keep a snapshot: {said}")

        await self._ask(attempt)

    async def _ask(self, attempt: Callable[[Session], Awaitable[T]]) -> T:
        return await self._connection.until_answered(attempt, self._deadline_seconds)

    def _about(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _digest(encoded: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(encoded).digest()).decode()}"
