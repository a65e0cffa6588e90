"""What an agent must not forget, in SQLite: its memory, and the facts that the log has not yet.

Each turn of the agent's brain is one transaction: the new memory and the events that it
published, before any other effect is carried out. Events wait here until the log acknowledged
them, so an outage of the log loses nothing and keeps their order and ids. Samples never wait
here. The only user of aiosqlite besides the archive and the snapshots.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import structlog

from llmgw.errors import DataFolderError
from llmgw.log.shielded import shielded
from llmgw.wire import Outgoing

FILE = "agent.sqlite"

_TABLES = """
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    subject TEXT NOT NULL, payload BLOB NOT NULL, message_id TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS aside (
    place INTEGER PRIMARY KEY,
    subject TEXT NOT NULL, payload BLOB NOT NULL, message_id TEXT NOT NULL, reason TEXT NOT NULL
);
"""
_KEEP = "INSERT INTO kept VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_QUEUE = "INSERT INTO outbox (subject, payload, message_id) VALUES (?, ?, ?)"

_log = structlog.get_logger(__name__)


class Waiting(NamedTuple):
    """A message that the log has not acknowledged; `place` is its order."""

    place: int
    message: Outgoing


class Outbox:
    """An agent's durable memory and queue. Open it with `open_outbox`."""

    def __init__(self, database: aiosqlite.Connection, path: Path, mended: str | None) -> None:
        self._database = database
        self._path = path
        self._mended = mended
        self._unwritten: str | None = None
        self._is_writable = True
        self._aside: str | None = None

    async def kept(self, name: str) -> bytes | None:
        """Return what was stored under `name`, or `None`. Raises `DataFolderError`."""
        rows = await self._read("SELECT value FROM kept WHERE name = ?", name)
        return bytes(rows[0][0]) if rows else None

    async def identity(self) -> str:
        """Return this agent's lasting random id; engines carry it in their environment."""
        found = await self.kept("identity")
        if found is None:
            found = secrets.token_hex(8).encode()
            await self.commit({"identity": found})
        return found.decode()

    async def commit(self, keep: dict[str, bytes], messages: Sequence[Outgoing] = ()) -> None:
        """Store values and queue messages, all or nothing. Raises `DataFolderError`."""
        async with self._transaction():
            await self._database.executemany(_KEEP, list(keep.items()))
            await self._database.executemany(_QUEUE, messages)

    async def waiting(self, at_most: int = 500) -> list[Waiting]:
        """Return the oldest messages that wait, in order. Raises `DataFolderError`."""
        query = "SELECT place, subject, payload, message_id FROM outbox ORDER BY place LIMIT ?"
        rows = await self._read(query, at_most)
        return [Waiting(place, Outgoing(s, bytes(p), m)) for place, s, p, m in rows]

    async def sent(self, places: Iterable[int]) -> None:
        """Forget messages that the log acknowledged. Raises `DataFolderError`."""
        async with self._transaction():
            await self._database.executemany(
                "DELETE FROM outbox WHERE place = ?", [(place,) for place in places]
            )

    async def put_aside(self, message_id: str, reason: str) -> None:
        """Let the others pass a message that the log will never take.

        It stays in the file until the agent is started again, which then tells anew what holds.
        Raises `DataFolderError`.
        """
        async with self._transaction():
            await self._database.execute(
                "INSERT INTO aside SELECT *, ? FROM outbox WHERE message_id = ?",
                (reason, message_id),
            )
            await self._database.execute("DELETE FROM outbox WHERE message_id = ?", (message_id,))
        self._aside = reason

    def troubles(self) -> tuple[tuple[str, str], ...]:
        """Return what ails these records, as name and detail of conditions of the node.

        What is over by the time of the call is told once.
        """
        unwritten, self._unwritten = self._unwritten, None
        if not self._is_writable:
            self._unwritten = unwritten
        mended, self._mended = self._mended, None
        found = (("unwritable", unwritten), ("mended", mended), ("untold", self._aside))
        return tuple((name, detail) for name, detail in found if detail is not None)

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Commit what is done in the block, or nothing of it."""
        try:
            yield
            await self._database.commit()
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                await self._database.rollback()
            self._is_writable, self._unwritten = False, str(error)
            raise _unwritable(self._path, error) from error
        self._is_writable = True

    async def _read(self, query: str, value: str | int) -> list[Any]:
        try:
            async with self._database.execute(query, (value,)) as cursor:
                return list(await cursor.fetchall())
        except sqlite3.Error as error:
            raise _unwritable(self._path, error) from error


@asynccontextmanager
async def open_outbox(folder: Path) -> AsyncIterator[Outbox]:
    """Open the agent's database in `folder`. Raises `DataFolderError` when that is impossible.

    One that is damaged is kept beside, and what can be read of it is taken over.
    """
    path = folder / FILE
    try:
        # Here first: after a failed one aiosqlite's thread may speak to a closed loop.
        mended = await asyncio.to_thread(_prepare, path)
        async with shielded(aiosqlite.connect(path)) as database:
            await database.execute("PRAGMA synchronous = FULL")
            yield Outbox(database, path, mended)
    except sqlite3.Error as error:
        raise _unwritable(path, error) from error


# --- the file itself (blocking) -------------------------------------------------------------------


def _prepare(path: Path) -> str | None:
    """Make sure that there is a sound database; return what was the matter with it, if mended."""
    try:
        _check(path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        reason = str(error)
    else:
        _create(path)
        return None
    kept, queued = _salvage(path)
    if "identity" not in kept:
        raise DataFolderError(
            f"the agent's records in {path} are damaged ({reason}), and who it is cannot be read "
            "any more: engines that still run would not be known for its own. Stop them by hand "
            "and move that file away, or put a copy of it in its place"
        )
    damaged = path.with_suffix(".damaged")
    path.replace(damaged)
    for left in ("-wal", "-shm"):
        path.with_name(path.name + left).unlink(missing_ok=True)
    _create(path, kept, queued)
    said = f"{path} was damaged ({reason}): {len(queued)} facts were still to be read in it"
    _log.error("records_mended", reason=reason, facts=len(queued), kept_as=str(damaged))
    return f"{said}; it is kept as {damaged.name}"


def _check(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        [verdict] = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        error = sqlite3.DatabaseError(verdict.splitlines()[-1])
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _create(path: Path, kept: Mapping[str, bytes] = {}, queued: Sequence[Outgoing] = ()) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_TABLES)
        database.execute("DELETE FROM aside")
        database.executemany(_KEEP, list(kept.items()))
        database.executemany(_QUEUE, queued)
        database.commit()


def _salvage(path: Path) -> tuple[dict[str, bytes], list[Outgoing]]:
    """Return what can still be read of a damaged database: values by name, and messages in order.

    From either end as far as it goes, since one bad page is no reason to lose those behind it.
    """
    kept: dict[str, bytes] = {}
    queued: dict[int, Outgoing] = {}
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.text_factory = bytes
        for order in ("ASC", "DESC"):
            for name, value in _rows(database, "kept ORDER BY name", order):
                kept[_text(name)] = value
            for place, *fields in _rows(database, "outbox ORDER BY place", order):
                subject, payload, message_id = fields
                queued[place] = Outgoing(_text(subject), payload, _text(message_id))
    return kept, [queued[place] for place in sorted(queued)]


def _rows(database: sqlite3.Connection, ordered: str, order: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table up to the first that cannot be read."""
    with contextlib.suppress(sqlite3.DatabaseError):
        yield from database.execute(f"SELECT * FROM {ordered} {order}")  # noqa: S608


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _unwritable(path: Path, error: sqlite3.Error) -> DataFolderError:
    return DataFolderError(
        f"cannot write the agent's records in {path}: {error}. Make room on that disk, or check "
        "who owns the file"
    )
