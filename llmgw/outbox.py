"""What an agent must not forget, in SQLite: its memory, and the facts that the log has not yet.

Each turn of the agent's brain is one transaction: the new memory and the events that it
published, before any other effect is carried out. Events wait here until the log acknowledged
them, so an outage of the log loses nothing and keeps their order and ids. The only user of
aiosqlite besides the archive.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiosqlite

from llmgw.errors import DataFolderError
from llmgw.wire import Outgoing

FILE = "agent.sqlite"

_TABLES = """
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    subject TEXT NOT NULL, payload BLOB NOT NULL, message_id TEXT NOT NULL
);
"""


class Waiting(NamedTuple):
    """A message that the log has not acknowledged; `place` is its order."""

    place: int
    message: Outgoing


class Outbox:
    """An agent's durable memory and queue. Open it with `open_outbox`."""

    def __init__(self, database: aiosqlite.Connection, path: Path) -> None:
        self._database = database
        self._path = path

    async def kept(self, name: str) -> bytes | None:
        """Return what was stored under `name`, or `None`."""
        async with self._database.execute(
            "SELECT value FROM kept WHERE name = ?", (name,)
        ) as cursor:
            row = await cursor.fetchone()
        return None if row is None else bytes(row[0])

    async def identity(self) -> str:
        """Return this agent's lasting random id; engines carry it in their environment."""
        found = await self.kept("identity")
        if found is None:
            found = secrets.token_hex(8).encode()
            await self.commit({"identity": found})
        return found.decode()

    async def commit(self, keep: dict[str, bytes], messages: Sequence[Outgoing] = ()) -> None:
        """Store values and queue messages, all or nothing. Raises `DataFolderError`."""
        try:
            await self._database.executemany(
                "INSERT INTO kept VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                list(keep.items()),
            )
            await self._database.executemany(
                "INSERT INTO outbox (subject, payload, message_id) VALUES (?, ?, ?)", messages
            )
            await self._database.commit()
        except sqlite3.Error as error:
            await self._database.rollback()
            raise _unwritable(self._path, error) from error

    async def waiting(self, at_most: int = 500) -> list[Waiting]:
        """Return the oldest messages that wait, in order."""
        query = "SELECT place, subject, payload, message_id FROM outbox ORDER BY place LIMIT ?"
        async with self._database.execute(query, (at_most,)) as cursor:
            rows = await cursor.fetchall()
        return [Waiting(place, Outgoing(s, bytes(p), m)) for place, s, p, m in rows]

    async def sent(self, places: Iterable[int]) -> None:
        """Forget messages that the log acknowledged."""
        try:
            await self._database.executemany(
                "DELETE FROM outbox WHERE place = ?", [(place,) for place in places]
            )
            await self._database.commit()
        except sqlite3.Error as error:
            await self._database.rollback()
            raise _unwritable(self._path, error) from error


@asynccontextmanager
async def open_outbox(folder: Path) -> AsyncIterator[Outbox]:
    """Open the agent's database in `folder`. Raises `DataFolderError` when that is impossible."""
    path = folder / FILE
    database: aiosqlite.Connection | None = None
    try:
        try:
            # Tried here first: after a failed one aiosqlite's thread may speak to a closed loop.
            await asyncio.to_thread(lambda: sqlite3.connect(path).close())
            database = await aiosqlite.connect(path)
            await database.execute("PRAGMA journal_mode = WAL")
            await database.execute("PRAGMA synchronous = FULL")
            await database.executescript(_TABLES)
            await database.commit()
        except sqlite3.Error as error:
            raise _unwritable(path, error) from error
        yield Outbox(database, path)
    finally:
        if database is not None:
            await database.close()


def _unwritable(path: Path, error: sqlite3.Error) -> DataFolderError:
    return DataFolderError(
        f"cannot write the agent's records in {path}: {error}. Make room on that disk, or check "
        "who owns the file"
    )
