"""A part of a log in one file: written by `ctl export`, read like a log without any server.

An archive is a SQLite file. `chunks` holds what the log held, a few thousand records a row (see
`llmgw.log.chunks`); `subjects` the names that they refer to, with the last sequence of each;
`meta` what it is, and a SHA-256 over the msgpack encoding of the rows of all three, of chunks
without their blobs: `[[[name, value]…], [[id, subject, last]…], [[first, last, sha256]…]]`.
`snapshots` are there in long ones (see `llmgw.log.carried`), and among `meta` `latest_ns`, the
latest time in each chunk, as msgpack. Older versions pass both over.

What describes the file is checked when it is opened, and every chunk before any record of it is
handed out: a damaged file gives what is whole before the damage, and then says what is wrong.
Files of format 1, which had a row for each record in `records`, are read too. Decoding is the
caller's. With snapshots and the agent's outbox the only user of SQLite.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import msgspec

from llmgw import __version__
from llmgw.core.cluster import Cluster
from llmgw.errors import LlmgwError, LogUnreachable, UsageError
from llmgw.files import NoRegularFile, read_regular
from llmgw.log import carried
from llmgw.log.base import Bounds, LogRewound, Message
from llmgw.log.chunks import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    BadChunk,
    pack,
    sha256,
    unpack,
    unpack_rows,
)
from llmgw.masking import visible

FORMAT = 2
"""Raised whenever an older llmgw could not read the file any more."""

APPLICATION_ID = 0x6C6D6777
"""What SQLite files of ours carry in their header: "lmgw"."""

_OLDEST_FORMAT = 1
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_TOTAL = "total_sha256"
_LATEST = "latest_ns"

MOST_BLOB_BYTES = 64 * 1024 * 1024
"""No chunk and no snapshot is that long, and nothing longer is read: anybody may make a file."""

_IS_A_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'snapshots'"
_SNAPSHOTS = (
    "SELECT DISTINCT sequence FROM snapshots "
    "WHERE typeof(sequence) = 'integer' AND sequence BETWEEN ? AND ?"
)

_TABLES = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE subjects (id INTEGER PRIMARY KEY, subject TEXT NOT NULL, last INTEGER NOT NULL);
CREATE TABLE chunks (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, sha256 BLOB NOT NULL, body BLOB NOT NULL
);
"""


_ROWS = (
    "SELECT sequence, time_ns, subject, payload FROM records "
    "WHERE sequence BETWEEN ? AND ? ORDER BY sequence"
)


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds: its table `meta`.

    `created_ns` tells which log it came from and `log_first` where that log began; sequences are
    the log's own. Times are nanoseconds since 1970; `exported_ns` is when the file was written.
    `scrubbed`: names and what else would tell whose log it is were replaced.
    """

    cluster: str
    created_ns: int
    log_first: int
    first: int
    last: int
    first_ns: int
    last_ns: int
    records: int
    exported_ns: int
    llmgw_version: str
    scrubbed: bool = False


class _Chunk(NamedTuple):
    first: int
    last: int
    sha256: bytes


class _Header(NamedTuple):
    """Where the file is, how long it is, and how long it says that it should be."""

    address: str
    size_bytes: int
    full_bytes: int
    format: int

    @property
    def cut(self) -> str:
        if self.size_bytes >= self.full_bytes:
            return ""
        return f"; it is cut short, with {self.size_bytes} of its {self.full_bytes} bytes"


# --- writing -------------------------------------------------------------------------------------


async def write_archive(
    path: Path,
    batches: AsyncIterable[Sequence[Message]],
    *,
    cluster: str,
    log: Bounds,
    now_ns: int,
    force: bool = False,
    scrubbed: bool = False,
    state: Cluster | None = None,
) -> Contents:
    """Write the messages of `batches`, consecutive ones of the log with these bounds, to a file.

    With the `state` of before the first of them, or of later, the file has snapshots. It is folded
    on. The file appears whole, synchronised and checked, or not at all. Raises `UsageError` when it
    is there already (unless `force`) or there is nothing to write, and `LlmgwError` when it cannot
    be written.
    """
    check_free(path, force)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    try:
        # Made here, because a connection that fails to open leaves aiosqlite's thread to itself.
        await asyncio.to_thread(unfinished.touch, exist_ok=False)
        async with aiosqlite.connect(unfinished) as database:
            carrier = carried.Carrier(state, log.created_ns) if state is not None else None
            writer = _Writer(database, carrier)
            await database.executescript(_TABLES + carried.TABLE)
            async for batch in batches:
                await writer.add(batch)
            contents = await writer.finish(cluster, log, now_ns, scrubbed)
        async with open_archive(unfinished) as written:
            await written.check()
        check_free(path, force)
        await asyncio.to_thread(_put_in_place, unfinished, path)
    except (sqlite3.Error, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise LlmgwError(
            f"cannot write {path}: {why}. Nothing was left there: make room on that disk, check "
            "who may write to the folder, or choose another"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return contents


def check_free(path: Path, force: bool) -> None:
    """Raise `UsageError` when the file must not be written."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the file to write")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already: choose another name, or overwrite with --force")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no regular file, and is not replaced: choose another name")


def _put_in_place(unfinished: Path, path: Path) -> None:
    """Rename the finished file so that a power cut leaves the old one or the new one."""
    _synchronise(unfinished, os.O_RDWR)
    unfinished.replace(path)
    _synchronise(path.parent, os.O_RDONLY)


def _synchronise(path: Path, mode: int) -> None:
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Writer:
    """Fills the tables of a new archive, a chunk at a time."""

    def __init__(self, database: aiosqlite.Connection, carrier: carried.Carrier | None) -> None:
        self._database = database
        self._carrier = carrier
        self._subjects: dict[str, int] = {}
        self._newest: dict[int, int] = {}
        self._chunks: list[_Chunk] = []
        self._latest: list[int] = []
        self._times: list[int] = []
        self._numbers: list[int] = []
        self._payloads: list[bytes] = []
        self._room_bytes = CHUNK_BYTES
        self._first: Message | None = None
        self._last: Message | None = None

    async def add(self, messages: Sequence[Message]) -> None:
        """Take messages that go on where the last ones ended."""
        if self._carrier is not None and self._first is None:
            leads = self._carrier.leads_to(messages[0].sequence)
            self._carrier = self._carrier if leads else None
        ids = self._subjects
        for message in messages:
            number = ids.get(message.subject)
            if number is None:
                number = ids[message.subject] = len(ids) + 1
            self._newest[number] = message.sequence
            last = self._last
            if last is not None and message.sequence != last.sequence + 1:
                raise _missing("the log", last.sequence + 1, message.sequence - 1)
            if len(self._times) == CHUNK_RECORDS or self._room_bytes < len(message.payload):
                await self._flush()
            self._first = self._first or message
            self._last = message
            self._times.append(message.time_ns)
            self._numbers.append(number)
            self._payloads.append(message.payload)
            self._room_bytes -= len(message.payload)
        if self._carrier is not None:
            await self._carry(await self._carrier.follow(messages))

    async def _carry(self, snapshot: tuple[int, bytes] | None) -> None:
        if snapshot is not None:
            await self._database.execute("INSERT INTO snapshots VALUES (?, ?)", snapshot)

    async def _flush(self) -> None:
        """Write a chunk. The last message that was taken is the last of it."""
        columns = self._times, self._numbers, self._payloads
        self._times, self._numbers, self._payloads = [], [], []
        self._room_bytes = CHUNK_BYTES
        if not columns[0] or self._last is None:
            return
        last = self._last.sequence
        body, checksum = await asyncio.to_thread(pack, *columns)
        chunk = _Chunk(last - len(columns[0]) + 1, last, checksum)
        await self._database.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", (*chunk, body))
        self._chunks.append(chunk)
        self._latest.append(max(columns[0]))

    async def finish(self, cluster: str, log: Bounds, now_ns: int, scrubbed: bool) -> Contents:
        """Write what describes the records, and commit."""
        await self._flush()
        if self._carrier is not None:
            await self._carry(await self._carrier.end())
        if self._first is None or self._last is None:
            raise UsageError("there is no record to export in that span of the log")
        contents = Contents(
            cluster=cluster,
            created_ns=log.created_ns,
            log_first=log.first,
            first=self._first.sequence,
            last=self._last.sequence,
            first_ns=self._first.time_ns,
            last_ns=self._last.time_ns,
            records=self._last.sequence - self._first.sequence + 1,
            exported_ns=now_ns,
            llmgw_version=__version__,
            scrubbed=scrubbed,
        )
        latest = msgspec.msgpack.encode(self._latest)
        told = sorted([*msgspec.structs.asdict(contents).items(), (_LATEST, latest)])
        # SQLite knows no booleans.
        meta = [(name, int(v) if isinstance(v, bool) else v) for name, v in told]
        subjects = [(number, name, self._newest[number]) for name, number in self._subjects.items()]
        total = (_TOTAL, sha256([meta, subjects, self._chunks]))
        await self._database.executemany("INSERT INTO subjects VALUES (?, ?, ?)", subjects)
        await self._database.executemany("INSERT INTO meta VALUES (?, ?)", [*meta, total])
        await self._database.commit()
        return contents


# --- reading -------------------------------------------------------------------------------------


class Archive:
    """A log that does not change. It keeps the contract of `Log` as far as reading goes.

    Opened by `open_archive`. Whatever it is asked raises `UsageError` where the file is damaged.
    """

    def __init__(self, path: Path, header: _Header, database: sqlite3.Connection) -> None:
        self.path = path
        self._header = header
        self._database = database
        # One thread: SQLite is asked one thing at a time, and meanwhile what it gave is looked at.
        self._reader = ThreadPoolExecutor(1, "archive")
        self._subjects: dict[int, str] = {}
        self._newest: dict[str, int] = {}
        self._chunks: list[_Chunk] = []
        self._latest: list[int] | None = None
        self._contents: Contents | None = None
        self.snapshots = carried.Carried(self._snapshot, (), str(path))
        """Those that can be used; none where another version wrote the file."""

    @property
    def contents(self) -> Contents:
        """What the archive holds."""
        if self._contents is None:
            raise LlmgwError(f"{self.path} is not open")
        return self._contents

    async def describe(self) -> None:
        """Read and check what describes the records."""
        try:
            stored: dict[str, Any] = dict(await self._fetch("SELECT name, value FROM meta"))
            subjects = await self._fetch("SELECT id, subject, last FROM subjects ORDER BY id")
            chunks = await self._fetch("SELECT first, last, sha256 FROM chunks ORDER BY first")
            total = stored.pop(_TOTAL, None)
            matches = total == sha256([sorted(stored.items()), subjects, chunks])
            latest = stored.pop(_LATEST, None)
            times = None if latest is None else msgspec.msgpack.decode(latest, type=list[int])
            contents = msgspec.convert(stored, Contents, strict=False)
        except (sqlite3.Error, msgspec.ValidationError, TypeError, ValueError) as error:
            raise self._damaged(
                f"what describes its records cannot be read ({_harmless(error)})"
            ) from error
        if not matches:
            raise self._damaged("what describes its records does not match its checksum")
        self._contents = contents
        self._subjects = {number: subject for number, subject, _ in subjects}
        self._newest = {subject: last for _, subject, last in subjects}
        self._chunks = [_Chunk(*chunk) for chunk in chunks]
        self._latest = times if times is not None and len(times) == len(chunks) else None
        # A view by that name may never come to an end.
        if contents.llmgw_version == __version__ and await self._or_nothing(_IS_A_TABLE):
            least = max(contents.first - 1, 1)
            kept = await self._or_nothing(_SNAPSHOTS, least, contents.last)
            places = [sequence for (sequence,) in kept]
            self.snapshots = carried.Carried(self._snapshot, places, str(self.path))

    async def _snapshot(self, sequence: int) -> bytes:
        query = "SELECT CAST(snapshot AS BLOB) FROM snapshots WHERE sequence = ?"
        found = await self._or_nothing(query, sequence)
        return found[0][0] or b"" if found else b""

    async def _or_nothing(self, query: str, *values: int) -> list[Any]:
        """Ask about snapshots. Files of before had none, and nobody depends on them."""
        try:
            return await self._fetch(query, *values)
        except (sqlite3.Error, OverflowError):
            return []

    async def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from `start` on; see `Log.follow`. Ends where the file ends."""
        held = self.contents
        end = held.last if until is None else until
        if held.last < start - 1:
            raise LogRewound(f"{self.path} ends at sequence {held.last}, before {start - 1}")
        if start < held.first and start <= end:
            raise _missing(str(self.path), start, held.first - 1)
        chosen = self._chosen(subjects)
        wanted = self._chunks if chosen or not subjects else []
        chunks = [c for c in wanted if c.last >= start and c.first <= end]
        async for chunk, batch in self._whole(chunks):
            if chunk.first < start or chunk.last > end:
                batch = [message for message in batch if start <= message.sequence <= end]
            if subjects:
                batch = [message for message in batch if message.subject in chosen]
            if batch:
                yield batch

    async def _whole(
        self, chunks: Sequence[_Chunk]
    ) -> AsyncGenerator[tuple[_Chunk, list[Message]], None]:
        """Yield chunks with what is in them; the next one is read while one is looked at."""
        reading: asyncio.Future[list[Message]] | None = None
        try:
            for place, chunk in enumerate(chunks):
                reading = reading or self._begin(chunk)
                batch = await reading
                reading = self._begin(chunks[place + 1]) if place + 1 < len(chunks) else None
                yield chunk, batch
        finally:
            if reading is not None:
                await asyncio.wait([reading])
                reading.cancelled() or reading.exception()

    async def first_stored(self, since_ns: int, start: int = 1) -> int:
        """Return the first sequence from `start` on that was stored at a time or later.

        The one after the last if none was. Only chunks that have such a time are read; in files of
        before, which do not say what times are in which, all are.
        """
        latest = self._latest or [since_ns] * len(self._chunks)
        pairs = zip(self._chunks, latest, strict=True)
        chunks = [c for c, most_ns in pairs if c.last >= start and most_ns >= since_ns]
        async with aclosing(self._whole(chunks)) as read:
            async for _, batch in read:
                for message in batch:
                    if message.sequence >= start and message.time_ns >= since_ns:
                        return message.sequence
        return self.contents.last + 1

    async def last(self, subject: str) -> Message | None:
        """Return the newest message whose subject matches the filter, or `None`."""
        newest = max((self._newest[name] for name in self._chosen([subject])), default=0)
        if newest == 0:
            return None
        (chunk,) = (chunk for chunk in self._chunks if chunk.first <= newest <= chunk.last)
        return (await self._read(chunk))[newest - chunk.first]

    async def bounds(self) -> Bounds:
        """Return the first and last sequence of the file, and when its log was created."""
        held = self.contents
        return Bounds(held.first, held.last, held.created_ns)

    async def check(self) -> None:
        """Read everything, and raise `UsageError` if any of it is damaged."""
        for chunk in self._chunks:
            await self._read(chunk)

    async def close(self) -> None:
        """Let go of the file."""
        await asyncio.get_running_loop().run_in_executor(self._reader, self._database.close)
        self._reader.shutdown(wait=False)  # nothing is left to be waited for

    async def _read(self, chunk: _Chunk) -> list[Message]:
        """Return the messages of a chunk once they are known to be what was written."""
        return await self._begin(chunk)

    def _begin(self, chunk: _Chunk) -> asyncio.Future[list[Message]]:
        """Begin to read a chunk, in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._reader, self._load, chunk)

    def _load(self, chunk: _Chunk) -> list[Message]:
        try:
            if self._header.format == 1:
                rows = self._database.execute(_ROWS, (chunk.first, chunk.last)).fetchall()
                return unpack_rows(rows, chunk.sha256, self._subjects)
            query = "SELECT CAST(body AS BLOB) FROM chunks WHERE first = ?"
            (body,) = self._database.execute(query, (chunk.first,)).fetchone()
            return unpack(body, chunk.sha256, chunk.first, chunk.last, self._subjects)
        except (sqlite3.Error, TypeError) as error:
            wrong = f"cannot be read ({_harmless(error)})"
        except BadChunk as error:
            wrong = str(error)
        raise self._damaged(
            f"the records {chunk.first} to {chunk.last} {wrong}", whole_until=chunk.first - 1
        )

    async def _fetch(self, query: str, *values: int) -> list[Any]:
        def fetch() -> list[Any]:
            return self._database.execute(query, values).fetchall()

        return await asyncio.get_running_loop().run_in_executor(self._reader, fetch)

    def _chosen(self, filters: Sequence[str]) -> set[str]:
        """Return the subjects of the file that match a filter."""
        patterns = [_pattern(text) for text in filters]
        return {s for s in self._newest if any(pattern.fullmatch(s) for pattern in patterns)}

    def _damaged(self, what: str, whole_until: int = 0) -> UsageError:
        before = ""
        if whole_until and whole_until >= self.contents.first:
            before = f". What comes before is whole: replay it with --to {whole_until}"
        return UsageError(
            f"{self.path} is damaged: {what}{self._header.cut}{before}. "
            "Export it again, or take another copy"
        )


@asynccontextmanager
async def open_archive(path: Path) -> AsyncIterator[Archive]:
    """Open an archive to read it.

    Raises `UsageError`, saying what is wrong, when the file is none, is not there, was written by
    a newer llmgw, or is damaged where it describes its records.
    """
    header = await asyncio.to_thread(_read_header, path)
    try:
        database = await asyncio.to_thread(
            sqlite3.connect, header.address, uri=True, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BLOB_BYTES)
    archive = Archive(path, header, database)
    try:
        await archive.describe()
        yield archive
    finally:
        await archive.close()


def _read_header(path: Path) -> _Header:
    """Return what the header of a SQLite file says (https://sqlite.org/fileformat2.html, 1.3)."""
    try:
        header = read_regular(path, _HEADER_BYTES)
        size_bytes = path.stat().st_size
    except NoRegularFile as error:
        raise UsageError(f"{path} is no regular file: an archive is one") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise UsageError(f"{path} is no archive of llmgw: it does not begin as a SQLite file does")
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise UsageError(f"{path} is no archive of llmgw: it is another program's SQLite file")
    found = int.from_bytes(header[60:64])
    if not _OLDEST_FORMAT <= found <= FORMAT:
        newer = "a newer llmgw wrote it; upgrade" if found > FORMAT else "no llmgw wrote that"
        raise UsageError(
            f"{path} has format {found}, and this llmgw reads {_OLDEST_FORMAT} to {FORMAT}: {newer}"
        )
    page_bytes = int.from_bytes(header[16:18])
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return _Header(address, size_bytes, page_bytes * int.from_bytes(header[28:32]), found)


def _harmless(error: Exception) -> str:
    """Return what an error says: it may quote the file, which anybody may have made."""
    return visible(str(error))[:200]


def _pattern(text: str) -> re.Pattern[str]:
    """Return a subject filter as a pattern: `*` is one token, `>` one or more at the end."""
    tokens = {"*": r"[^.]+", ">": r".+"}
    return re.compile(r"\.".join(tokens.get(token, re.escape(token)) for token in text.split(".")))


def _missing(where: str, first: int, last: int) -> LogUnreachable:
    return LogUnreachable(f"{where} misses the sequences {first} to {last}")
