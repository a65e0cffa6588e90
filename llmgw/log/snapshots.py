"""The folded state, kept so that a controller that starts folds only what came after it.

A snapshot is `(sequence, state, code schema, checksum)`, and says of which log it is. Nothing
depends on one: what is damaged, of another log or of another version is passed over with a
warning, and the log is folded from further back. Kept by a controller in SQLite in its data folder
(`open_snapshots`), and by the leader in the log's server (`llmgw.log.objects`).
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import aiosqlite
import msgspec
import structlog

from llmgw.core.cluster import CODE_SCHEMA, Cluster
from llmgw.core.freezing import fingerprint, freeze, thaw
from llmgw.errors import DataFolderError, LlmgwError
from llmgw.log.shielded import shielded

FILE = "snapshots.sqlite"
KEPT = 3
"""So many are kept: if the newest is damaged, an older one spares most of the folding."""

MOST_STATE_BYTES = 1 << 30

_FORMAT = 1
_LEVEL = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS snapshots (sequence INTEGER PRIMARY KEY, snapshot BLOB NOT NULL);
"""

_log = structlog.get_logger(__name__)


class BadSnapshot(LlmgwError):
    """A snapshot that cannot be used; the message says why."""


class _Stored(msgspec.Struct, frozen=True, array_like=True, tag="llmgw-snapshot"):
    """A snapshot as it is stored: msgpack. `state` is compressed, `sha256` of all before it."""

    format: int
    code_schema: int
    fingerprint: str
    log_created_ns: int
    sequence: int
    sha256: bytes
    state: bytes


class Snapshot(NamedTuple):
    """A state, and the log that it was folded from, up to `sequence`."""

    log_created_ns: int
    state: Cluster

    @property
    def sequence(self) -> int:
        """The last record that the state holds."""
        return self.state.sequence


class Wanted(NamedTuple):
    """Which snapshots can be used: of this log, and from a record that is still there to go on.

    Both ends belong to it.
    """

    log_created_ns: int
    least_sequence: int
    most_sequence: int


class Stored(Protocol):
    """A place where snapshots are."""

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        """Return the newest that can be used, or `None`."""
        ...


class Snapshots(Stored, Protocol):
    """A place where snapshots are kept."""

    async def save(self, sequence: int, encoded: bytes) -> None:
        """Keep what `encode` returned, and forget the oldest beyond `KEPT`."""
        ...


def encode(state: Cluster, log_created_ns: int) -> bytes:
    """Return a state as a snapshot is stored."""
    return compressed(freeze(state), state.sequence, log_created_ns)


def compressed(frozen: bytes, sequence: int, log_created_ns: int) -> bytes:
    """Return a frozen state as a snapshot is stored. Takes milliseconds and may run in a thread."""
    body = zlib.compress(frozen, _LEVEL)
    known = (_FORMAT, CODE_SCHEMA, fingerprint(), log_created_ns, sequence)
    return msgspec.msgpack.encode(_Stored(*known, _checksum(known, body), body))


def decode(
    encoded: bytes, wanted: Wanted | None = None, most_bytes: int = MOST_STATE_BYTES
) -> Snapshot:
    """Return a stored snapshot. Raises `BadSnapshot` when it is not whole, or not `wanted`.

    No more than `most_bytes` of a state are unpacked: what is longer cannot be read.
    """
    try:
        stored = msgspec.msgpack.decode(encoded, type=_Stored)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadSnapshot(f"it is not a snapshot of llmgw, or cut short ({error})") from error
    known = (stored.format, stored.code_schema, stored.fingerprint)
    about = (*known, stored.log_created_ns, stored.sequence)
    if stored.sha256 != _checksum(about, stored.state):
        raise BadSnapshot("it does not match its checksum")
    if known != (_FORMAT, CODE_SCHEMA, fingerprint()):
        newer = stored.code_schema > CODE_SCHEMA or stored.format > _FORMAT
        raise BadSnapshot(f"{'a newer' if newer else 'another'} version of llmgw made it")
    if wanted is not None:
        _check_wanted(stored.log_created_ns, stored.sequence, wanted)
    return Snapshot(stored.log_created_ns, _restored(stored, most_bytes))


def _check_wanted(log_created_ns: int, sequence: int, wanted: Wanted) -> None:
    if log_created_ns != wanted.log_created_ns:
        raise BadSnapshot("it is of another log, which was wiped or replaced")
    if sequence > wanted.most_sequence:
        raise BadSnapshot(f"it is of sequence {sequence}, and {wanted.most_sequence} is asked for")
    if sequence < wanted.least_sequence:
        raise BadSnapshot(
            f"it is of sequence {sequence}, and the log goes on at {wanted.least_sequence + 1}"
        )


def _restored(stored: _Stored, most_bytes: int) -> Cluster:
    try:
        reader = zlib.decompressobj()
        frozen = reader.decompress(stored.state, most_bytes)
        if reader.unconsumed_tail:
            raise BadSnapshot(f"its state is longer than {most_bytes >> 20} MiB")
        state = thaw(frozen)
    except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadSnapshot(f"its state cannot be read ({error})") from error
    if state.sequence != stored.sequence:
        raise BadSnapshot(f"its state is of sequence {state.sequence}, not {stored.sequence}")
    return state


def _checksum(about: tuple[object, ...], body: bytes) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(about) + body).digest()


def first_usable(
    found: Iterable[tuple[int, bytes]],
    wanted: Wanted,
    where: str,
    most_bytes: int = MOST_STATE_BYTES,
) -> Snapshot | None:
    """Return the first of some stored snapshots that can be used; tell of each that cannot."""
    for sequence, encoded in found:
        if not wanted.least_sequence <= sequence <= wanted.most_sequence:
            continue  # as good as any, and not what is asked for
        try:
            return decode(encoded, wanted, most_bytes)
        except BadSnapshot as error:
            _log.warning("snapshot_discarded", where=where, sequence=sequence, reason=str(error))
    return None


# --- in the data folder --------------------------------------------------------------------------


class LocalSnapshots:
    """The snapshots of a data folder. Open them with `open_snapshots`."""

    def __init__(self, database: aiosqlite.Connection, path: Path) -> None:
        self._database = database
        self._path = path

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        """Return the newest that can be used; see `Snapshots.newest`."""
        query = "SELECT sequence, snapshot FROM snapshots ORDER BY sequence DESC"
        try:
            rows = await self._database.execute_fetchall(query)
        except sqlite3.Error as error:
            _log.warning("snapshots_unreadable", where=str(self._path), reason=str(error))
            return None
        found = [(int(sequence), bytes(blob)) for sequence, blob in rows]
        return await asyncio.to_thread(first_usable, found, wanted, str(self._path))

    async def save(self, sequence: int, encoded: bytes) -> None:
        """Keep a snapshot, all or nothing; see `Snapshots.save`. Raises `DataFolderError`.

        What is of a later sequence is of a log that is no more.
        """
        try:
            await self._database.execute("DELETE FROM snapshots WHERE sequence >= ?", (sequence,))
            row = (sequence, encoded)
            await self._database.execute("INSERT INTO snapshots VALUES (?, ?)", row)
            kept = "SELECT sequence FROM snapshots ORDER BY sequence DESC LIMIT ?"
            await self._database.execute(
                f"DELETE FROM snapshots WHERE sequence NOT IN ({kept})",  # noqa: S608
                (KEPT,),
            )
            await self._database.commit()
        except sqlite3.Error as error:
            await self._database.rollback()
            raise _unwritable(self._path, error) from error


@asynccontextmanager
async def open_snapshots(folder: Path) -> AsyncIterator[LocalSnapshots]:
    """Open the snapshots of a folder, which is made if need be.

    A file that is no database any more is put aside: nothing depends on it. Raises
    `DataFolderError` when the folder cannot be written.
    """
    path = folder / FILE
    try:
        await asyncio.to_thread(_prepare, path)
        async with shielded(aiosqlite.connect(path)) as database:
            yield LocalSnapshots(database, path)
    except (sqlite3.Error, OSError) as error:
        raise _unwritable(path, error) from error


def _prepare(path: Path) -> None:
    """Make sure that there is a database to be opened."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _create(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            raise
        _log.warning("snapshots_put_aside", where=str(path), reason=str(error))
        path.replace(path.with_suffix(".damaged"))
        for left in ("-wal", "-shm"):
            path.with_name(path.name + left).unlink(missing_ok=True)
        _create(path)


def _create(path: Path) -> None:
    database = sqlite3.connect(path)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_TABLE)
        database.execute("SELECT count(*) FROM snapshots").fetchone()
        database.commit()
    finally:
        database.close()


def _unwritable(path: Path, error: sqlite3.Error | OSError) -> DataFolderError:
    return DataFolderError(
        f"cannot write snapshots to {path}: {error}. Make room on that disk, or check who owns "
        "the folder"
    )
