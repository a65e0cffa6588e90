"""The log as a file: it gives back what was written, or says what is wrong with it; and imports."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw.errors import LlmgwError, LogUnreachable, UsageError
from llmgw.log.archive import FORMAT, Archive, Contents, open_archive, write_archive
from llmgw.log.base import Bounds, Entry, LogRewound, Message
from llmgw.log.chunks import CHUNK_RECORDS, MOST_UNPACKED_BYTES
from llmgw.log.embedded import embedded_server
from llmgw.log.memory import MemoryLog
from llmgw.log.restore import import_archive
from llmgw.replay import span
from llmgw.wire import Outgoing
from tests.support.archives import change, seal
from tests.support.nats import collect, fresh_subjects, log_on

CREATED_NS = 1_700_000_000_000_000_000
SUBJECTS = (
    "llmgw.v1.c.event.node.n1.node.started",
    "llmgw.v1.c.event.node.n2.node.started",
    "llmgw.v1.c.event.controller.controller.elected",
    "llmgw.v1.c.command.n1",
)
FEW = 30


def written(count: int, first: int = 1) -> list[Message]:
    """Return messages of several subjects, with a clock that jumps back now and then."""
    return [
        Message(n, CREATED_NS + n - 5 * (n % 7 == 0), SUBJECTS[n % 4], b'{"n": %d}' % n)
        for n in range(first, first + count)
    ]


async def in_batches(messages: Sequence[Message], of: int = 1000) -> AsyncIterator[list[Message]]:
    for start in range(0, len(messages), of):
        yield list(messages[start : start + of])


async def archive_of(
    path: Path, messages: Sequence[Message], *, log_first: int = 1, force: bool = False
) -> Contents:
    return await write_archive(
        path,
        in_batches(messages),
        cluster="c",
        log=Bounds(log_first, messages[-1].sequence, CREATED_NS),
        now_ns=CREATED_NS,
        force=force,
    )


async def read(
    archive: Archive, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
) -> list[Message]:
    found = [batch async for batch in archive.follow(start, subjects=subjects, until=until)]
    assert all(found), "a batch was empty"
    return [message for batch in found for message in batch]


def fill(path: Path, content: bytes | bytearray) -> None:
    path.write_bytes(content)


def content(path: Path) -> bytes:
    return path.read_bytes()


def tamper(path: Path, record: int) -> None:
    """Change one byte of the chunk that holds a record."""
    change(
        path,
        "UPDATE chunks SET body = CAST(body || x'00' AS BLOB) WHERE ? BETWEEN first AND last",
        record,
    )


def cut(path: Path, kept: float) -> int:
    """Keep so many bytes, or such a part, of the file, and return how many it had."""
    size_bytes = path.stat().st_size
    os.truncate(path, int(kept if kept > 1 else size_bytes * kept))
    return size_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.llmgw"


class TestReading:
    async def test_what_was_written_is_read_back_over_many_chunks(self, path: Path) -> None:
        messages = written(2 * CHUNK_RECORDS + 100)
        contents = await archive_of(path, messages)
        assert (contents.first, contents.last) == (1, len(messages))
        async with open_archive(path) as archive:
            assert archive.contents == contents
            assert await archive.bounds() == Bounds(1, len(messages), CREATED_NS)
            assert await read(archive) == messages
            tail = await read(archive, start=CHUNK_RECORDS, until=CHUNK_RECORDS + 5)
            assert tail == messages[CHUNK_RECORDS - 1 : CHUNK_RECORDS + 5]
            assert await read(archive, start=len(messages) + 1) == []
            assert await read(archive, start=3, until=2) == []

    async def test_payloads_of_any_size_and_bytes_come_back(self, path: Path) -> None:
        sizes = (0, 1, 5_000, 1_048_576, 1_048_576, 1_048_576, 1_048_576, 1_048_576, 3)
        messages = [
            Message(n, n, "llmgw.v1.c.command.n1", os.urandom(size))
            for n, size in enumerate(sizes, start=1)
        ]
        await archive_of(path, messages)
        async with open_archive(path) as archive:
            assert await read(archive) == messages

    async def test_subjects_are_chosen_as_the_live_log_chooses_them(self, path: Path) -> None:
        log = MemoryLog(time.time_ns)
        for message in written(FEW):
            await log.append(message.subject, message.payload, message_id=str(message.sequence))
        kept = await collect(log, until=FEW)
        await archive_of(path, kept)
        async with open_archive(path) as archive:
            for chosen in (
                ("llmgw.v1.c.event.>",),
                ("llmgw.v1.c.command.*", "llmgw.v1.c.event.controller.>"),
                (SUBJECTS[0],),
                ("llmgw.v1.c.event.node.*",),
                ("llmgw.v1.c.event.node.n1.node.started.>",),
                (">",),
            ):
                live = await collect(log, subjects=chosen, until=FEW)
                assert await read(archive, subjects=chosen) == live
                assert await archive.last(chosen[0]) == await log.last(chosen[0])

    async def test_what_is_not_in_it_is_told_as_a_log_tells_it(self, path: Path) -> None:
        await archive_of(path, written(FEW, first=10))
        async with open_archive(path) as archive:
            with pytest.raises(LogUnreachable, match="misses the sequences 3 to 9"):
                await read(archive, start=3)
            with pytest.raises(LogRewound, match="ends at sequence 39"):
                await read(archive, start=41)
            assert await archive.last("llmgw.v1.other.>") is None

    async def test_any_program_that_reads_sqlite_reads_it(self, path: Path) -> None:
        messages = written(FEW)
        await archive_of(path, messages)
        database = sqlite3.connect(path)
        names = dict(database.execute("SELECT id, subject FROM subjects"))
        ((first, body),) = database.execute("SELECT first, body FROM chunks")
        meta = dict(database.execute("SELECT name, value FROM meta"))
        database.close()
        times, subjects, payloads = msgspec.msgpack.decode(zlib.decompress(body))
        rows = zip(times, subjects, payloads, strict=True)
        found = [Message(n, t, names[s], p) for n, (t, s, p) in enumerate(rows, start=first)]
        assert found == messages
        assert (meta["cluster"], meta["created_ns"], meta["records"]) == ("c", CREATED_NS, FEW)


async def test_reading_takes_no_more_memory_for_a_longer_log(path: Path) -> None:
    peaks = []
    for chunks in (3, 12):
        await archive_of(path, written(chunks * CHUNK_RECORDS), force=True)
        tracemalloc.start()
        async with open_archive(path) as archive:
            async for batch in archive.follow():
                assert len(batch) == CHUNK_RECORDS
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


class TestSpan:
    @pytest.mark.parametrize(
        ("ends", "first", "last"),
        [
            ({}, 1, FEW),
            ({"start": 5, "until": 9}, 5, 9),
            ({"start_ns": CREATED_NS + 5, "until_ns": CREATED_NS + 9}, 5, 9),
            ({"start_ns": CREATED_NS + 6, "until": 12}, 6, 12),
            ({"until_ns": CREATED_NS + 13}, 1, 14),
        ],
    )
    async def test_both_ends_belong_to_it_and_it_has_no_gaps(
        self, path: Path, ends: dict[str, int], first: int, last: int
    ) -> None:
        await archive_of(path, written(FEW))
        async with open_archive(path) as archive:
            batches = span(archive, **ends)  # type: ignore[arg-type]
            found = [m.sequence async for batch in batches for m in batch]
        assert found == list(range(first, last + 1))

    async def test_a_sequence_that_was_not_written_is_refused(self, path: Path) -> None:
        await archive_of(path, written(FEW))
        async with open_archive(path) as archive:
            with pytest.raises(UsageError, match="ends at sequence 30; 31 has not been written"):
                await anext(span(archive, start=31))


class TestWriting:
    async def test_a_file_that_is_there_is_overwritten_by_force_only(self, path: Path) -> None:
        fill(path, b"precious")
        with pytest.raises(UsageError, match="is there already"):
            await archive_of(path, written(FEW))
        assert content(path) == b"precious"
        await archive_of(path, written(FEW), force=True)
        async with open_archive(path) as archive:
            assert len(await read(archive)) == FEW
        with pytest.raises(UsageError, match="is a folder"):
            await archive_of(path.parent, written(FEW), force=True)

    async def test_what_is_no_file_is_neither_waited_for_nor_replaced(self, path: Path) -> None:
        os.mkfifo(path)
        with pytest.raises(UsageError, match="is no regular file: an archive is one"):
            async with open_archive(path):
                pass
        with pytest.raises(UsageError, match="is no regular file, and is not replaced"):
            await archive_of(path, written(FEW), force=True)
        assert path.is_fifo()  # noqa: ASYNC240 - a test may block

    async def test_a_log_that_fails_on_the_way_leaves_nothing(self, path: Path) -> None:
        async def failing() -> AsyncIterator[list[Message]]:
            yield written(2 * CHUNK_RECORDS)
            raise LogUnreachable("gone")

        fill(path, b"precious")
        bounds = Bounds(1, 1, CREATED_NS)
        with pytest.raises(LogUnreachable, match="gone"):
            await write_archive(path, failing(), cluster="c", log=bounds, now_ns=1, force=True)
        assert [p.name for p in path.parent.iterdir()] == [path.name]
        assert content(path) == b"precious"

    async def test_a_log_with_a_gap_is_no_archive(self, path: Path) -> None:
        messages = written(CHUNK_RECORDS) + written(5, first=CHUNK_RECORDS + 3)
        with pytest.raises(LogUnreachable, match="misses the sequences 4097 to 4098"):
            await archive_of(path, messages)
        with pytest.raises(LogUnreachable, match="misses the sequences 6 to 8"):
            await archive_of(path, written(5) + written(5, first=9))
        assert list(path.parent.iterdir()) == []

    async def test_nothing_to_write_is_told(self, path: Path) -> None:
        with pytest.raises(UsageError, match="no record to export"):
            await write_archive(
                path, in_batches([]), cluster="c", log=Bounds(1, 9, CREATED_NS), now_ns=1
            )

    async def test_a_folder_that_is_not_there_is_named(self, path: Path) -> None:
        with pytest.raises(LlmgwError, match=r"cannot write .*missing/log\.llmgw") as caught:
            await archive_of(path.parent / "missing" / path.name, written(FEW))
        assert caught.value.exit_code == 1


class TestDamage:
    async def test_a_damaged_chunk_is_named_and_what_comes_before_is_given(
        self, path: Path
    ) -> None:
        messages = written(3 * CHUNK_RECORDS)
        await archive_of(path, messages)
        tamper(path, (2 * CHUNK_RECORDS + 7))
        async with open_archive(path) as archive:
            whole = await read(archive, until=2 * CHUNK_RECORDS)
            assert whole == messages[: 2 * CHUNK_RECORDS]
            with pytest.raises(UsageError) as caught:
                await read(archive)
            with pytest.raises(UsageError, match="is damaged"):
                await archive.check()
        assert "the records 8193 to 12288 do not match their checksum" in str(caught.value)
        assert "What comes before is whole: replay it with --to 8192" in str(caught.value)

    @pytest.mark.parametrize("kept", [0.999, 0.9, 0.5, 0.1, 5000, 100])
    async def test_a_file_that_lost_its_end_is_refused(self, path: Path, kept: float) -> None:
        await archive_of(path, written(CHUNK_RECORDS))
        full = cut(path, kept)
        with pytest.raises(UsageError, match=rf"cut short, with \d+ of its {full} bytes"):
            async with open_archive(path) as archive:
                await archive.check()

    @pytest.mark.parametrize("found", [b"", b"SQLite", b"x" * 5000, b"{}\n"])
    async def test_what_is_no_database_is_named(self, path: Path, found: bytes) -> None:
        fill(path, found)
        with pytest.raises(UsageError, match=r"log\.llmgw is no archive of llmgw") as caught:
            async with open_archive(path):
                pass
        assert caught.value.exit_code == 2
        assert content(path) == found

    async def test_another_programs_database_is_named(self, path: Path) -> None:
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE records (sequence)")
        database.close()
        with pytest.raises(UsageError, match="another program's SQLite file"):
            async with open_archive(path):
                pass

    @pytest.mark.parametrize(("found", "said"), [(FORMAT + 1, "newer llmgw"), (0, "no llmgw")])
    async def test_another_format_is_named(self, path: Path, found: int, said: str) -> None:
        await archive_of(path, written(FEW))
        change(path, f"PRAGMA user_version = {found}")
        with pytest.raises(
            UsageError, match=rf"has format {found}, .* reads 1 to {FORMAT}: .*{said}"
        ):
            async with open_archive(path):
                pass

    async def test_what_is_not_there_and_what_is_a_folder_are_named(self, path: Path) -> None:
        for place, said in ((path, "No such file"), (path.parent, "Is a directory")):
            with pytest.raises(UsageError, match=said):
                async with open_archive(place):
                    pass

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE meta SET value = 'other' WHERE name = 'cluster'",
            "DELETE FROM meta WHERE name = 'last'",
            "UPDATE subjects SET subject = 'llmgw.v1.c.command.n9' WHERE id = 1",
            "UPDATE subjects SET last = 1",
            "DELETE FROM chunks",
            "DROP TABLE chunks",
            "UPDATE meta SET value = CAST(x'1b5b324aff' AS TEXT) WHERE name = 'cluster'",
            "UPDATE chunks SET body = 7",
            "UPDATE chunks SET body = zeroblob(30)",
            "UPDATE chunks SET sha256 = zeroblob(32)",
            "UPDATE chunks SET first = 2",
            "UPDATE chunks SET last = 29",
        ],
    )
    async def test_what_somebody_changed_is_noticed(self, path: Path, statement: str) -> None:
        await archive_of(path, written(FEW))
        change(path, statement)
        with pytest.raises(UsageError, match="is damaged: ") as caught:
            async with open_archive(path) as archive:
                await archive.check()
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("unpacked", "said"),
    [
        (b"\0" * (2 * MOST_UNPACKED_BYTES), "cannot be unpacked"),
        (b"nonsense", "cannot be unpacked"),
        (msgspec.msgpack.encode([[1], [1], [b"x"]]), "are 1 in number"),
        (msgspec.msgpack.encode([[1] * 30, [99] * 30, [b"x"] * 30]), "cannot be unpacked"),
        (msgspec.msgpack.encode([["now"] * 30, [1] * 30, [b"x"] * 30]), "cannot be unpacked"),
        (msgspec.msgpack.encode([[[]] * 30, 3]), "cannot be unpacked"),
    ],
)
async def test_a_file_that_is_made_to_do_harm_is_refused(
    path: Path, unpacked: bytes, said: str
) -> None:
    await archive_of(path, written(FEW))
    body = zlib.compress(unpacked)
    checksum = hashlib.sha256(body).digest()
    change(path, "UPDATE chunks SET body = ?, sha256 = ?", body, checksum)
    seal(path)
    with pytest.raises(UsageError, match=f"the records 1 to 30 {said}"):
        async with open_archive(path) as archive:
            await archive.check()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Give a place for damaged copies, and a whole archive."""
    import asyncio

    path = tmp_path_factory.mktemp("damaged") / "log.llmgw"
    asyncio.run(archive_of(path, written(FEW)))
    return path, path.read_bytes()


@hypothesis.settings(max_examples=150)
@given(place=st.integers(0, 20_479), bit=st.integers(0, 7))
async def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(
    sample: tuple[Path, bytes], place: int, bit: int
) -> None:
    path, whole = sample
    changed = bytearray(whole)
    changed[place % len(whole)] ^= 1 << bit
    fill(path, changed)
    try:
        async with open_archive(path) as archive:
            found = await read(archive)
    except UsageError as error:
        assert str(path) in str(error)
    else:
        assert found == written(FEW)


class BusyLog(MemoryLog):
    """A log to which an agent writes as soon as it holds something."""

    async def append_many(
        self,
        entries: Sequence[Entry],
        *,
        expected_last: int | None = None,
        fence: str | None = None,
    ) -> list[int]:
        stored = await super().append_many(entries, expected_last=expected_last, fence=fence)
        event = Outgoing(SUBJECTS[0], b"an agent is here", "agent")
        await super().append_many([event])
        return stored


class TestImport:
    async def test_a_log_on_a_server_becomes_the_same_again(self, path: Path) -> None:
        at = fresh_subjects()
        messages = [
            replace(m, subject=m.subject.replace(".c.", f".{at.cluster}.")) for m in written(1_200)
        ]
        await write_archive(
            path,
            in_batches(messages),
            cluster=at.cluster,
            log=Bounds(1, 1_200, CREATED_NS),
            now_ns=1,
        )
        async with (
            embedded_server(path.parent / "nats") as server,
            log_on(server, at) as log,
            open_archive(path) as archive,
        ):
            assert await import_archive(archive, log, at.cluster) == (1_200, 0)
            found = await collect(log, until=1_200)
            assert [said(m) for m in found] == [said(m) for m in messages]
            assert await import_archive(archive, log, at.cluster) == (1_200, 1_200)
            assert (await log.bounds()).last == 1_200

    async def test_an_import_that_was_interrupted_goes_on(self, path: Path) -> None:
        messages = written(1_200)
        await archive_of(path, messages)
        log = MemoryLog(time.time_ns)
        await log.append_many(
            [Outgoing(m.subject, m.payload, str(m.sequence)) for m in messages[:700]]
        )
        async with open_archive(path) as archive:
            assert await import_archive(archive, log, "c") == (1_200, 700)
        assert [said(m) for m in await collect(log, until=1_200)] == [said(m) for m in messages]

    async def test_records_that_are_in_the_log_twice_stay_so(self, path: Path) -> None:
        twice = [Message(n, n, SUBJECTS[0], b'{"id": "the same"}') for n in (1, 2)]
        await archive_of(path, twice)
        log = MemoryLog(time.time_ns)
        async with open_archive(path) as archive:
            await import_archive(archive, log, "c")
        assert len(await collect(log, until=2)) == 2

    async def test_a_log_that_holds_anything_else_is_refused(self, path: Path) -> None:
        await archive_of(path, written(FEW))
        log = MemoryLog(time.time_ns)
        await log.append(SUBJECTS[0], b"mine", message_id="1")
        async with open_archive(path) as archive:
            with pytest.raises(UsageError, match=r"holds records 1 to 1 of its own: .* empty log"):
                await import_archive(archive, log, "c")
        assert (await log.bounds()).last == 1

    async def test_an_archive_of_another_cluster_or_of_a_part_is_refused(self, path: Path) -> None:
        log = MemoryLog(time.time_ns)
        await archive_of(path, written(FEW))
        async with open_archive(path) as archive:
            with pytest.raises(UsageError, match=r"of cluster c, .* import it with --cluster c"):
                await import_archive(archive, log, "other")
        await archive_of(path, written(FEW, first=2), force=True)
        async with open_archive(path) as archive:
            with pytest.raises(UsageError, match="begins at sequence 2"):
                await import_archive(archive, log, "c")
        assert (await log.bounds()).last == 0

    async def test_a_damaged_archive_writes_nothing(self, path: Path) -> None:
        await archive_of(path, written(2 * CHUNK_RECORDS))
        tamper(path, (CHUNK_RECORDS + 7))
        log = MemoryLog(time.time_ns)
        async with open_archive(path) as archive:
            with pytest.raises(UsageError, match="the records 4097 to 8192 do not match"):
                await import_archive(archive, log, "c")
        assert (await log.bounds()).last == 0

    async def test_whoever_else_writes_meanwhile_ends_the_import(self, path: Path) -> None:
        await archive_of(path, written(1_200))
        async with open_archive(path) as archive:
            with pytest.raises(LlmgwError, match=r"something else writes .* before sequence 501"):
                await import_archive(archive, BusyLog(time.time_ns), "c")


def said(message: Message) -> tuple[int, str, bytes]:
    return message.sequence, message.subject, message.payload
