"""A long archive has snapshots: no point in it is far from one, and nothing depends on them."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.core.cluster import Cluster
from llmgw.errors import UsageError
from llmgw.folding import fold
from llmgw.log.archive import open_archive, write_archive
from llmgw.log.base import Bounds, Message
from llmgw.log.carried import EVERY_RECORDS, LEAST_RECORDS
from llmgw.log.chunks import CHUNK_RECORDS
from llmgw.log.scrub import scrubbed
from llmgw.replay import fold_log
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
    change(path, "UPDATE chunks SET body = x'00' WHERE first = 1")
    assert await state_at(path, until) == snapshot(folded(log, until))
    async with open_archive(path) as archive:
        with pytest.raises(UsageError, match="is damaged: the records 1 to"):
            await archive.check()
        with pytest.raises(UsageError, match="is damaged: the records 1 to"):
            await fold_log(archive, LEAST_RECORDS)


BAD = {
    "cut off": "UPDATE snapshots SET snapshot = substr(snapshot, 1, 1000)",
    "empty": "UPDATE snapshots SET snapshot = x''",
    "a text": "UPDATE snapshots SET snapshot = 'state'",
    "a number": "UPDATE snapshots SET snapshot = 7",
    "changed": "UPDATE snapshots SET snapshot = CAST(snapshot || x'00' AS BLOB)",
    "of another place": "UPDATE snapshots SET sequence = sequence - 1",
    "not there": "DELETE FROM snapshots",
    "without a table": "DROP TABLE snapshots",
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_snapshot_that_is_none_costs_time_and_nothing_else(
    path: Path, log: list[Message], bad: str
) -> None:
    change(path, BAD[bad])
    assert await state_at(path, COUNT) == snapshot(folded(log, COUNT))


async def test_what_another_version_folded_is_folded_again(path: Path, log: list[Message]) -> None:
    """Its file is whole, but it may have folded otherwise: so its records are read, all of them."""
    change(path, "UPDATE meta SET value = '0.0.9' WHERE name = 'llmgw_version'")
    seal(path)
    assert await state_at(path, COUNT) == snapshot(folded(log, COUNT))
    change(path, "UPDATE chunks SET body = x'00' WHERE first = 1")
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
