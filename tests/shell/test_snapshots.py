"""Snapshots: a start folds only the tail, and what is damaged or foreign is passed over aloud."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from llmgw.core import events as e
from llmgw.core.cluster import CODE_SCHEMA, Cluster, Incident
from llmgw.core.freezing import fingerprint, freeze, thaw
from llmgw.errors import DataFolderError, UsageError
from llmgw.folding import fold
from llmgw.log import snapshots
from llmgw.log.base import Bounds
from llmgw.log.embedded import embedded_server
from llmgw.log.keeper import AT_LEAVING_RECORDS, EVERY_RECORDS, Keeper, newest_for
from llmgw.log.memory import MemoryLog
from llmgw.log.snapshots import (
    KEPT,
    BadSnapshot,
    Snapshot,
    Wanted,
    decode,
    encode,
    open_snapshots,
)
from llmgw.replay import fold_log, foundation
from llmgw.testing.builders import card, entry, joined, serving
from llmgw.testing.invariants import snapshot as told
from llmgw.wire import Outgoing
from tests.support.cluster import running_cluster
from tests.support.nats import fresh_subjects, log_on

CREATED_NS = 1_700_000_000_000_000_000
ANY = Wanted(CREATED_NS, 0, 10**9)


def state(sequence: int = 7) -> Cluster:
    """A state that something is in."""
    made = serving(entry("m"), nodes=[joined("n1", card(0))]).state
    made.sequence, made.time_ns = sequence, sequence * 10
    return made


def stored(sequence: int = 7) -> bytes:
    return encode(state(sequence), CREATED_NS)


async def kept_in(folder: Path, *sequences: int) -> None:
    async with open_snapshots(folder) as kept:
        for sequence in sequences:
            await kept.save(sequence, stored(sequence))


def discarded(logs: Sequence[Mapping[str, object]]) -> list[str]:
    return [str(one["reason"]) for one in logs if one["event"] == "snapshot_discarded"]


class TestOne:
    def test_a_state_comes_back_as_it_was(self) -> None:
        found = decode(stored(), ANY)
        assert told(found.state) == told(state())
        assert (found.sequence, found.log_created_ns) == (7, CREATED_NS)
        assert told(thaw(freeze(state()))) == told(state())

    @given(place=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.booleans())
    def test_any_damage_is_noticed(self, place: int, bit: int, cut: bool) -> None:
        whole = stored()
        changed = bytearray(whole)
        changed[place % len(whole)] ^= 1 << bit
        with pytest.raises(BadSnapshot):
            decode(bytes(whole[: place % len(whole)] if cut else changed))

    def test_another_version_of_the_state_is_not_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = stored()
        monkeypatch.setattr(snapshots, "CODE_SCHEMA", CODE_SCHEMA + 1)
        newer = stored()
        with pytest.raises(BadSnapshot, match="another version of llmgw"):
            decode(old)
        monkeypatch.undo()
        with pytest.raises(BadSnapshot, match="a newer version of llmgw"):
            decode(newer)

    def test_a_shape_that_changed_without_saying_so_is_not_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Changed(Cluster):
            another: int = 0

        before = fingerprint()
        fingerprint.cache_clear()
        monkeypatch.setattr("llmgw.core.freezing.Cluster", Changed)
        after = fingerprint()
        fingerprint.cache_clear()
        assert after != before

    def test_one_that_a_version_made_which_knows_fewer_records_is_not_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = fingerprint()
        fingerprint.cache_clear()
        fewer = {w: k for w, k in snapshots_events().items() if w != "node.lost"}
        monkeypatch.setattr("llmgw.core.freezing.EVENTS", fewer)
        after = fingerprint()
        fingerprint.cache_clear()
        assert after != before

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            (Wanted(1, 0, 99), "it is of another log"),
            (Wanted(CREATED_NS, 8, 99), "the log goes on at 9"),
            (Wanted(CREATED_NS, 0, 6), "6 is asked for"),
        ],
    )
    def test_what_does_not_fit_the_log_is_not_taken(self, wanted: Wanted, said: str) -> None:
        with pytest.raises(BadSnapshot, match=said):
            decode(stored(), wanted)


def snapshots_events() -> dict[str, type[e.Event]]:
    return dict(e.EVENTS)


class TestInTheDataFolder:
    async def test_the_newest_is_found_and_the_last_few_are_kept(self, tmp_path: Path) -> None:
        await kept_in(tmp_path, *range(10, 10 + 2 * KEPT))
        async with open_snapshots(tmp_path) as kept:
            found = await kept.newest(ANY)
            assert found is not None
            assert found.sequence == 9 + 2 * KEPT
            older = await kept.newest(Wanted(CREATED_NS, 0, 8 + 2 * KEPT))
            assert older is not None
            assert older.sequence == 8 + 2 * KEPT
            assert await kept.newest(Wanted(CREATED_NS, 0, 9 + KEPT)) is None

    async def test_a_damaged_one_is_told_and_an_older_one_taken(self, tmp_path: Path) -> None:
        await kept_in(tmp_path, 10, 20)
        async with open_snapshots(tmp_path) as kept:
            await kept.save(30, stored(30)[:-40])
            with capture_logs() as logs:
                found = await kept.newest(ANY)
        assert found is not None
        assert found.sequence == 20
        (reason,) = discarded(logs)
        assert "cut short" in reason

    async def test_a_log_that_is_shorter_than_before_leaves_nothing_later(
        self, tmp_path: Path
    ) -> None:
        await kept_in(tmp_path, 10, 20, 15)
        async with open_snapshots(tmp_path) as kept:
            found = await kept.newest(ANY)
        assert found is not None
        assert found.sequence == 15

    async def test_a_file_that_is_no_database_is_put_aside(self, tmp_path: Path) -> None:
        path = tmp_path / snapshots.FILE
        path.write_bytes(b"x" * 5_000)
        with capture_logs() as logs:
            await kept_in(tmp_path, 10)
        assert [one["event"] for one in logs] == ["snapshots_put_aside"]
        assert path.with_suffix(".damaged").read_bytes() == b"x" * 5_000

    async def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(DataFolderError, match="cannot write snapshots to"):
            async with open_snapshots(tmp_path / "taken"):
                pass


def large(sequence: int) -> bytes:
    """A snapshot of several pieces: what is random is not made smaller."""
    made = state(sequence)
    made.incidents = [Incident(1, "void", os.urandom(400).hex()) for _ in range(900)]
    return encode(made, CREATED_NS)


async def test_a_server_keeps_the_last_few_and_any_client_can_read_them(tmp_path: Path) -> None:
    at = fresh_subjects()
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        store = log.snapshots
        assert await store.newest(ANY) is None
        for sequence in range(10, 10 + KEPT + 1):
            await store.save(sequence, large(sequence))
        newest = await store.newest(ANY)
        assert newest is not None
        assert newest.sequence == 10 + KEPT
        client = await nats.connect(server.url)
        objects = await client.jetstream().object_store(f"LLMGW_{at.cluster}_SNAPSHOTS")
        names = [info.name for info in await objects.list()]
        assert [int(name or 0) for name in names] == [11, 12, 13]
        whole = (await objects.get(names[-1] or "")).data
        assert whole is not None
        assert decode(whole).sequence == 10 + KEPT

        pieces = f"$O.LLMGW_{at.cluster}_SNAPSHOTS.C.>"
        stream = f"OBJ_LLMGW_{at.cluster}_SNAPSHOTS"
        last = await client.jetstream().get_last_msg(stream, pieces)
        assert last.seq is not None
        await client.jetstream().delete_msg(stream, last.seq)
        with capture_logs() as logs:
            older = await store.newest(ANY)
        assert older is not None
        assert older.sequence == 9 + KEPT
        assert discarded(logs) == ["incomplete"]
        await client.close()


class InMemory:
    """Snapshots in memory."""

    def __init__(self, *held: Cluster, created_ns: int = 0) -> None:
        self._created_ns = created_ns
        self.held = {one.sequence: encode(one, created_ns) for one in held}

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        found = sorted(self.held.items(), reverse=True)
        return snapshots.first_usable(found, wanted, "memory")

    async def save(self, sequence: int, encoded: bytes) -> None:
        self.held[sequence] = encoded


async def log_of(count: int, payload: bytes = b"{") -> MemoryLog:
    """A log of records that nobody can read: folding them counts."""
    clock = iter(range(1, 10 * count))
    log = MemoryLog(lambda: next(clock))
    subject = "llmgw.v1.c.event.node.n1.node.started"
    await log.append_many([Outgoing(subject, payload, str(n)) for n in range(count)])
    return log


async def folded(log: MemoryLog, until: int) -> Cluster:
    made = Cluster()
    async for batch in log.follow(until=until):
        fold(made, batch)
    return made


class TestStarting:
    async def test_only_the_tail_is_folded(self) -> None:
        log = await log_of(100)
        bounds = await log.bounds()
        there = InMemory(await folded(log, 60), await folded(log, 90), created_ns=bounds.created_ns)
        begun = await Keeper(there, InMemory()).load(log, bounds)
        assert begun.sequence == 90
        async for batch in log.follow(91, until=100):
            fold(begun, batch)
        assert told(begun) == told(await folded(log, 100))

    async def test_a_log_that_was_restored_from_a_copy_is_folded_from_before_that(self) -> None:
        log = await log_of(100)
        bounds = await log.bounds()
        other = await folded(log, 90)
        other.time_ns += 1
        there = InMemory(await folded(log, 60), other, created_ns=bounds.created_ns)
        with capture_logs() as logs:
            begun = await Keeper(there, InMemory()).load(log, bounds)
        assert begun.sequence == 60
        assert discarded(logs) == [
            "the log holds another record there: it was restored from a copy"
        ]

    async def test_a_controller_without_any_takes_the_servers(self) -> None:
        log = await log_of(EVERY_RECORDS + 10)
        bounds = await log.bounds()
        remote = InMemory(await folded(log, EVERY_RECORDS), created_ns=bounds.created_ns)
        for local in (None, InMemory()):
            assert (await Keeper(local, remote).load(log, bounds)).sequence == EVERY_RECORDS

    async def test_none_is_kept_of_a_log_that_is_newer_than_the_code(self) -> None:
        there = InMemory()
        made = state(AT_LEAVING_RECORDS + 1)
        await Keeper(there, InMemory()).leave(made)
        assert [*there.held] == [AT_LEAVING_RECORDS + 1]
        there.held.clear()
        made.needs_upgrade = "node.started version 9"
        await Keeper(there, InMemory()).leave(made)
        assert there.held == {}


class Truncated(MemoryLog):
    """A log of which the beginning was moved away, and the snapshots beside it."""

    def __init__(self, whole: MemoryLog, first: int, kept: InMemory) -> None:
        super().__init__(time.time_ns)
        self._whole = whole
        self._first = first
        self.snapshots = kept
        self.follow = whole.follow  # type: ignore[method-assign]

    async def bounds(self) -> Bounds:
        whole = await self._whole.bounds()
        return Bounds(self._first, whole.last, whole.created_ns)


class TestALogWithoutItsBeginning:
    async def test_it_is_folded_from_a_snapshot(self) -> None:
        whole = await log_of(100)
        created_ns = (await whole.bounds()).created_ns
        kept = InMemory(await folded(whole, 40), await folded(whole, 70), created_ns=created_ns)
        log = Truncated(whole, 31, kept)
        assert told(await fold_log(log)) == told(await folded(whole, 100))
        assert told(await fold_log(log, 50)) == told(await folded(whole, 50))

    async def test_what_no_snapshot_stands_for_is_named(self) -> None:
        whole = await log_of(100)
        created_ns = (await whole.bounds()).created_ns
        log = Truncated(whole, 31, InMemory(await folded(whole, 20), created_ns=created_ns))
        with pytest.raises(UsageError, match="begins at sequence 31: the records 1 to 30"):
            await fold_log(log)
        assert await newest_for(log, await log.bounds(), log.snapshots) is None
        with pytest.raises(UsageError, match="--archive"):
            await foundation(log, await log.bounds())


async def test_a_controller_that_is_started_again_folds_only_what_came_since(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        first = cluster.controller()
        await cluster.event(e.ControllerElected, term=1)
        for number in range(AT_LEAVING_RECORDS):
            await cluster.write(e.NodeStarted(boot_id=f"b{number}", agent_version="1"), "n1")
        assert await first.stop() == 0
        assert first.says("snapshot_kept")
        await cluster.caught_up()
        kept = cluster.state.sequence
        second = cluster.controller()
        await cluster.event(e.ControllerElected, term=2)
        begun = [msgspec.json.decode(x) for x in second.output.splitlines() if "_begins" in x]
        assert [0 < one["sequence"] <= kept for one in begun] == [True]
        await cluster.assert_folds_the_same()
