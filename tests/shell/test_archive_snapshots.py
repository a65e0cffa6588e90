"""A long archive has snapshots: no point in it is far from one, and nothing depends on them."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from llmgw.core.cluster import Cluster
from llmgw.errors import LlmgwError, UsageError
from llmgw.folding import fold
from llmgw.log.archive import open_archive, write_archive
from llmgw.log.base import Bounds, Message
from llmgw.log.carried import EVERY_RECORDS, LEAST_RECORDS, Carried
from llmgw.log.chunks import CHUNK_RECORDS
from llmgw.log.joined import join
from llmgw.log.retention import Retained, move
from llmgw.log.scrub import scrubbed
from llmgw.log.snapshots import Snapshot, Wanted, encode
from llmgw.log.timeline import open_timeline
from llmgw.replay import LONG_LOG, first_stored, fold_log, foundation, span, verify_log
from llmgw.testing.invariants import snapshot
from tests.benchmarks.history import CLUSTER, Fleet
from tests.support.archives import change, seal

COUNT = EVERY_RECORDS + LEAST_RECORDS + 7 * CHUNK_RECORDS
CREATED_NS = 1_700_000_000_000_000_000


@pytest.fixture(scope="module")
def log() -> list[Message]:
    told = Fleet(nodes=4, models=4, replicas=8).take(COUNT)
    return [Message(n, CREATED_NS + n, m.subject, m.payload) for n, m in enumerate(told, start=1)]


@pytest.fixture(scope="module")
def made(log: list[Message], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("made") / "log.llmgw"
    asyncio.run(archived(path, log))
    return path.read_bytes()


@pytest.fixture
def path(made: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "log.llmgw"
    path.write_bytes(made)
    return path


async def in_batches(log: Sequence[Message], of: int = 3_000) -> AsyncIterator[Sequence[Message]]:
    for start in range(0, len(log), of):
        yield log[start : start + of]


async def archived(path: Path, log: Sequence[Message], state: Cluster | None = None) -> None:
    await write_archive(
        path,
        in_batches(log),
        cluster=CLUSTER,
        log=Bounds(1, COUNT, CREATED_NS),
        now_ns=CREATED_NS,
        state=Cluster() if state is None else state,
    )


def folded(log: Sequence[Message], until: int) -> Cluster:
    state = Cluster()
    fold(state, log[:until])
    return state


async def state_at(path: Path, until: int) -> Any:  # noqa: ANN401 -- plain data
    async with open_archive(path) as archive:
        return snapshot(await fold_log(archive, until))


def snapshots(path: Path) -> Iterator[tuple[int, bytes]]:
    database = sqlite3.connect(path)
    yield from database.execute("SELECT sequence, snapshot FROM snapshots ORDER BY sequence")
    database.close()


def change_all(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statements)


def put(path: Path, state: Cluster, sequence: int) -> None:
    """Leave one snapshot in a file, with a right checksum: of this state, at this place."""
    change(path, "DELETE FROM snapshots")
    change(path, "INSERT INTO snapshots VALUES (?, ?)", sequence, encode(state, CREATED_NS))


def falsified(log: Sequence[Message], until: int) -> Cluster:
    """Return a state as it never was."""
    state = folded(log, until)
    state.nodes.clear()
    return state


def damage_the_beginning(path: Path) -> None:
    """Have nobody read the first records of the file without an error."""
    change(path, "UPDATE chunks SET body = x'00' WHERE first = 1")


POINTS = [1, LEAST_RECORDS, EVERY_RECORDS - 1, EVERY_RECORDS + 4_000, COUNT - 1, COUNT]


@pytest.mark.parametrize("until", POINTS)
async def test_a_state_is_what_all_records_up_to_there_make(
    path: Path, log: list[Message], until: int
) -> None:
    assert len([*snapshots(path)]) == 2
    assert await state_at(path, until) == snapshot(folded(log, until))


@pytest.mark.parametrize("until", [EVERY_RECORDS + 4_000, COUNT])
async def test_only_what_comes_after_a_snapshot_is_read(
    path: Path, log: list[Message], until: int
) -> None:
    """A chunk that nobody needs may be damaged: whoever reads it says so."""
    damage_the_beginning(path)
    assert await state_at(path, until) == snapshot(folded(log, until))
    async with open_archive(path) as archive:
        with pytest.raises(UsageError, match="is damaged: the records 1 to"):
            await archive.check()
        with pytest.raises(UsageError, match="is damaged: the records 1 to"):
            await fold_log(archive, LEAST_RECORDS)


ODD = "DROP TABLE snapshots; CREATE TABLE snapshots (sequence, snapshot);"
ENDLESS = """WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted)
SELECT n AS sequence, x'00' AS snapshot FROM counted"""
COMPUTED = "snapshot BLOB AS (zeroblob(900000000))"

BAD = {
    "cut off": "UPDATE snapshots SET snapshot = substr(snapshot, 1, 1000)",
    "empty": "UPDATE snapshots SET snapshot = x''",
    "a text": "UPDATE snapshots SET snapshot = 'state'",
    "a number": "UPDATE snapshots SET snapshot = 7",
    "changed": "UPDATE snapshots SET snapshot = CAST(snapshot || x'00' AS BLOB)",
    "of another place": "UPDATE snapshots SET sequence = sequence - 1",
    "not there": "DELETE FROM snapshots",
    "without a table": "DROP TABLE snapshots",
    "a view without an end": f"DROP TABLE snapshots; CREATE VIEW snapshots AS {ENDLESS}",
    "longer than memory": "DROP TABLE snapshots; CREATE TABLE snapshots (sequence INTEGER PRIMARY "
    f"KEY, {COMPUTED}); INSERT INTO snapshots (sequence) VALUES ({EVERY_RECORDS})",
    "at places that are none": f"{ODD} INSERT INTO snapshots VALUES ('x', 1), (NULL, 1), (1.5, 1), "
    "(x'00', 1), (1e300, 1), (-1, 1), (0, 1), (9007199254740993, 1), (9223372036854775807, 1)",
    "several at one place": f"{ODD} INSERT INTO snapshots VALUES (60000, 1), (60000, NULL)",
    "in other columns": "DROP TABLE snapshots; CREATE TABLE snapshots (a, b)",
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_snapshot_that_is_none_costs_time_and_nothing_else(
    path: Path, log: list[Message], bad: str
) -> None:
    change_all(path, BAD[bad])
    until = EVERY_RECORDS + 1_500
    assert await state_at(path, until) == snapshot(folded(log, until))


@pytest.mark.parametrize("place", [0, -1, COUNT + 1])
async def test_a_snapshot_of_no_record_of_the_file_is_never_looked_at(
    path: Path, log: list[Message], place: int
) -> None:
    state = falsified(log, COUNT)
    state.sequence = place
    put(path, state, place)
    until = LONG_LOG + 1
    assert await state_at(path, until) == snapshot(folded(log, until))
    with pytest.raises(UsageError, match=f"the log ends at sequence {COUNT}"):
        await state_at(path, COUNT + 2 * EVERY_RECORDS)


async def test_a_state_that_unpacks_to_more_than_any_is_not_unpacked(
    path: Path, log: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.log.carried.MOST_STATE_BYTES", 1 << 10)
    damage_the_beginning(path)
    with pytest.raises(UsageError, match="is damaged: the records 1 to"):
        await state_at(path, COUNT)


async def test_verifying_uses_no_snapshot_and_finds_the_one_that_is_false(
    path: Path, log: list[Message]
) -> None:
    at = 1_000
    put(path, folded(log, at), at)
    async with open_archive(path) as archive:
        assert (await verify_log(archive, CLUSTER, at)).sequence == at
    put(path, falsified(log, at), at)
    async with open_archive(path) as archive:
        with pytest.raises(UsageError, match=f"snapshot of sequence {at} is another state"):
            await verify_log(archive, CLUSTER, at)


TIMES: dict[str, Callable[[int], int]] = {
    "one after the other": lambda n: n,
    "of a clock that jumped back": lambda n: n - 15_000 if n > 20_000 else n,
    "of a clock that jumped forth": lambda n: n + 90_000 if 10_000 < n < 10_100 else n,
    "all the same": lambda _: 7,
}
MOMENTS = [0, 1, 7, 7_500, 10_050, 20_001, 22_000, 24_000, 100_000]


@pytest.mark.parametrize("times", TIMES)
async def test_a_time_is_where_reading_everything_finds_it(
    log: list[Message], tmp_path: Path, times: str
) -> None:
    """Whether the file says where which times are, as those of before did not."""
    count = LONG_LOG + CHUNK_RECORDS
    told = [replace(m, time_ns=CREATED_NS + TIMES[times](m.sequence)) for m in log[:count]]
    path = tmp_path / "log.llmgw"
    await archived(path, told)
    for _ in range(2):
        async with open_archive(path) as archive:
            for at in (CREATED_NS + moment for moment in MOMENTS):
                first = next((m.sequence for m in told if m.time_ns >= at), count + 1)
                later = next((m.sequence for m in told if m.time_ns > at), count + 1)
                assert await first_stored(archive, at) == first
                between = [m async for b in span(archive, until_ns=at) for m in b]
                assert len(between) == later - 1
            at = CREATED_NS + MOMENTS[-2]
            last = next((m.sequence for m in told if m.time_ns > at), count + 1) - 1
            assert (await fold_log(archive, until_ns=at)).sequence == last
        change(path, "DELETE FROM meta WHERE name = 'latest_ns'")
        seal(path)


async def test_of_a_time_too_only_what_comes_after_a_snapshot_is_read(
    path: Path, log: list[Message]
) -> None:
    damage_the_beginning(path)
    until = EVERY_RECORDS + 4_000
    async with open_archive(path) as archive:
        state = await fold_log(archive, until_ns=CREATED_NS + until)
    assert snapshot(state) == snapshot(folded(log, until))


async def test_who_steps_through_time_starts_at_a_snapshot_too(
    path: Path, log: list[Message]
) -> None:
    damage_the_beginning(path)
    async with open_archive(path) as archive:
        line = await open_timeline(archive)
        for until in (COUNT, COUNT - 1, EVERY_RECORDS + 4_000):
            assert snapshot(await line.at(until)) == snapshot(folded(log, until))


async def test_what_another_version_folded_is_folded_again(path: Path, log: list[Message]) -> None:
    """Its file is whole, but it may have folded otherwise: so its records are read, all of them."""
    change(path, "UPDATE meta SET value = '0.0.9' WHERE name = 'llmgw_version'")
    seal(path)
    assert await state_at(path, COUNT) == snapshot(folded(log, COUNT))
    damage_the_beginning(path)
    with pytest.raises(UsageError, match="is damaged: the records 1 to"):
        await state_at(path, COUNT)


async def test_a_part_of_a_log_begins_with_the_state_before_it(
    path: Path, log: list[Message]
) -> None:
    part = path.with_name("part.llmgw")
    await archived(part, log[500:1_500], folded(log, 500))
    for until in (500, 501, 1_500):
        assert await state_at(part, until) == snapshot(folded(log, until))
    with pytest.raises(UsageError, match="begins at sequence 501"):
        await state_at(part, 499)


async def test_from_a_state_that_does_not_lead_there_none_is_made(
    path: Path, log: list[Message]
) -> None:
    part = path.with_name("part.llmgw")
    await archived(part, log[500:], folded(log, 499))
    assert [*snapshots(part)] == []
    with pytest.raises(UsageError, match="begins at sequence 501"):
        await state_at(part, COUNT)


async def test_a_long_part_is_told_from_its_beginning(path: Path, log: list[Message]) -> None:
    """Though it has later snapshots: what is asked of all of it begins with the earliest."""
    part = path.with_name("part.llmgw")
    end = LEAST_RECORDS + 600
    await archived(part, log[500:end], folded(log, 500))
    assert [sequence for sequence, _ in snapshots(part)] == [500, end]
    async with open_archive(part) as archive:
        assert (await foundation(archive, await archive.bounds())).sequence == 500
    for until in (500, end):
        assert await state_at(part, until) == snapshot(folded(log, until))


async def test_a_state_of_later_goes_where_it_stands(path: Path, log: list[Message]) -> None:
    """As of a log that lost its beginning, and has no snapshot of just there."""
    part = path.with_name("part.llmgw")
    await archived(part, log[500:1_500], folded(log, 700))
    assert [sequence for sequence, _ in snapshots(part)] == [700]
    for until in (700, 1_500):
        assert await state_at(part, until) == snapshot(folded(log, until))
    with pytest.raises(UsageError, match="begins at sequence 501, and holds no state of up to 699"):
        await state_at(part, 699)
    await archived(part.with_name("before.llmgw"), log[500:1_500], folded(log, 1_501))
    assert [*snapshots(part.with_name("before.llmgw"))] == []


async def test_neither_a_part_nor_a_scrubbed_one_is_taken_for_the_beginning_of_a_log(
    path: Path, log: list[Message]
) -> None:
    part, clean = path.with_name("part.llmgw"), path.with_name("clean.llmgw")
    await archived(part, log[500:600], folded(log, 500))
    await archived(clean, log[:600])
    change(clean, "UPDATE meta SET value = 1 WHERE name = 'scrubbed'")
    seal(clean)
    async with open_archive(path) as there, open_archive(part) as older:
        moving = move(
            cast("Retained", there),
            path.with_name("new.llmgw"),
            cluster=CLUSTER,
            before_ns=CREATED_NS + 550,
            now_ns=2 * CREATED_NS,
            older=older,
        )
        with pytest.raises(UsageError, match="begins at sequence 501: name the archive that holds"):
            await moving
        async with open_archive(clean) as other:
            with pytest.raises(UsageError, match="the archive is scrubbed"):
                await join(other, cast("Any", there))


class Unreadable:
    """Snapshots on a server that lets this user read the log, and not these."""

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        raise LlmgwError(f"permissions violation, up to {wanted.most_sequence}")


async def test_an_archive_beside_a_log_has_its_own_snapshots(
    path: Path, log: list[Message]
) -> None:
    async with open_archive(path) as archive, open_archive(path) as live:
        live.snapshots = cast("Carried", Unreadable())
        whole = await join(archive, cast("Any", live))
        until = EVERY_RECORDS + 1_500
        assert snapshot(await fold_log(whole, until)) == snapshot(folded(log, until))


async def test_a_short_one_has_none(path: Path, log: list[Message]) -> None:
    short = path.with_name("short.llmgw")
    await archived(short, log[: LEAST_RECORDS - 1])
    assert [*snapshots(short)] == []


async def test_the_snapshots_of_a_scrubbed_one_are_scrubbed(path: Path, log: list[Message]) -> None:
    clean = path.with_name("clean.llmgw")
    batches = scrubbed(in_batches(log), lambda: in_batches(log))
    written = [message async for batch in batches for message in batch]
    await archived(clean, written)
    assert await state_at(clean, COUNT) == snapshot(folded(written, COUNT))
    found = [*snapshots(clean)]
    assert found
    for _, encoded in found:
        state = zlib.decompress(msgspec.msgpack.decode(encoded)[-1])
        assert b"node" in state
        assert b"gpu-000" not in state
        assert b"organisation/model" not in state
