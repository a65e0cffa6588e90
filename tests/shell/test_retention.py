"""Old records out of a real log: nothing is lost on the way, and both parts read as one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmgw.core.cluster import Cluster
from llmgw.errors import LogUnreachable, UsageError
from llmgw.folding import fold
from llmgw.log.archive import open_archive, write_archive
from llmgw.log.base import Bounds
from llmgw.log.embedded import embedded_server
from llmgw.log.jetstream import JetStreamLog
from llmgw.log.joined import join
from llmgw.log.keeper import newest_for
from llmgw.log.retention import LEAST_AGE_SECONDS, Moved, move
from llmgw.log.snapshots import encode
from llmgw.replay import fold_log, foundation, span, verify_log
from llmgw.testing.builders import applied, card, elected, entry, joined, serving
from llmgw.testing.invariants import snapshot
from llmgw.wire import Outgoing
from tests.support.nats import Subjects, collect, fresh_subjects, log_on
from tests.support.wait import until


class There(NamedTuple):
    """A log, and whose it is."""

    log: JetStreamLog
    at: Subjects

    async def write(self, messages: list[Outgoing]) -> None:
        """Append messages of the builders' cluster as this one's."""
        old, new = b"/llmgw/c/", f"/llmgw/{self.at.cluster}/".encode()
        renamed = [
            Outgoing(
                m.subject.replace(".c.", f".{self.at.cluster}."),
                m.payload.replace(old, new),
                m.message_id,
            )
            for m in messages
        ]
        await self.log.append_many(renamed)

    async def move(
        self, path: Path, before_ns: int, *, least_age: float = 0, older: Path | None = None
    ) -> Moved:
        """Move what was stored before a time into an archive."""
        about: dict[str, Any] = {
            "cluster": self.at.cluster,
            "before_ns": before_ns,
            "now_ns": time.time_ns(),
            "least_age_seconds": least_age,
        }
        if older is None:
            return await move(self.log, path, **about)
        async with open_archive(older) as held:
            return await move(self.log, path, older=held, **about)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[There]:
    at = fresh_subjects()
    async with embedded_server(tmp_path / "nats") as server, log_on(server, at) as log:
        yield There(log, at)


def story() -> list[list[Outgoing]]:
    """A log in three parts."""
    made = serving(entry("m"), nodes=[joined("n1", card(0)), joined("n2", card(0))])
    first = len(made.log)
    made.given(applied(entry("m", replicas=2))).decided()
    second = len(made.log)
    made.given(elected(2, "b"), applied(entry("m", replicas=1))).decided()
    return [made.log[:first], made.log[first:second], made.log[second:]]


async def pause(there: There) -> int:
    """Return a time that is after all that was stored and before all that will be."""
    last = (await there.log.bounds()).last
    stored = (await collect(there.log, start=last, until=last))[0].time_ns
    await until(lambda: time.time_ns() > stored + 1_000_000, what="time has gone on")
    return stored + 1


async def test_what_is_old_goes_into_an_archive_and_both_read_as_one(
    there: There, tmp_path: Path
) -> None:
    parts = story()
    await there.write(parts[0])
    first_cut = await pause(there)
    await there.write(parts[1])
    second_cut = await pause(there)
    await there.write(parts[2])
    whole = snapshot(await fold_log(there.log))
    last = sum(map(len, parts))

    moved = await there.move(tmp_path / "one.llmgw", first_cut)
    assert (moved.contents.last, moved.log_first) == (len(parts[0]), len(parts[0]) + 1)
    assert moved.snapshot >= len(parts[0])
    assert snapshot(await fold_log(there.log)) == whole, "from the snapshot"

    again = await there.move(tmp_path / "two.llmgw", second_cut, older=tmp_path / "one.llmgw")
    assert (again.contents.first, again.contents.last) == (1, len(parts[0] + parts[1]))
    assert again.log_first == again.contents.last + 1

    async with open_archive(tmp_path / "two.llmgw") as archive:
        both = await join(archive, there.log)
        assert [m.sequence for m in await collect(both, until=last)] == [*range(1, last + 1)]  # type: ignore[arg-type]
        assert snapshot(await fold_log(both)) == whole
        verdict = await verify_log(both, there.at.cluster)
        assert (verdict.difference, verdict.terms) == (None, 2)

    # The stream is as it was: it lets go of nothing more, and takes new records.
    await there.write([Outgoing(parts[0][0].subject, b"{", "another")])
    assert await there.log.bounds() == Bounds(
        again.log_first, last + 1, (await there.log.bounds()).created_ns
    )


async def test_a_log_that_was_cut_needs_what_was_before_or_a_snapshot(
    there: There, tmp_path: Path
) -> None:
    parts = story()
    await there.write(parts[0])
    cut = await pause(there)
    await there.write(parts[1] + parts[2])
    await there.move(tmp_path / "one.llmgw", cut)
    with pytest.raises(UsageError, match="name the archive that holds what was before"):
        await there.move(tmp_path / "two.llmgw", cut)
    with pytest.raises(UsageError, match="can be decided again only from the first record"):
        await verify_log(there.log, there.at.cluster)
    bounds = await there.log.bounds()
    for sequence in (1, bounds.first - 2):
        with pytest.raises(UsageError, match="the records 1 to"):
            await fold_log(there.log, sequence)
    with pytest.raises(LogUnreachable, match="misses the sequences 1 to"):
        await collect(there.log, until=bounds.last)
    found = await newest_for(there.log, bounds, there.log.snapshots)
    assert found is not None
    later = await fold_log(there.log)
    await there.write([Outgoing(parts[0][0].subject, b"{", "another")])
    fold(later, await collect(there.log, start=bounds.last + 1, until=bounds.last + 1))
    await there.log.snapshots.save(later.sequence, encode(later, bounds.created_ns))
    bounds = await there.log.bounds()
    assert (await foundation(there.log, bounds)).sequence == found.sequence < later.sequence


@pytest.mark.parametrize(
    ("before", "least_age", "said"),
    [
        (-3_600, 0, "nothing in the log is older"),
        (3_600, 0, "everything in the log is older"),
        (0, LEAST_AGE_SECONDS, "only what is older than 300 s can be moved"),
    ],
)
async def test_what_cannot_be_moved_stays(
    there: There, tmp_path: Path, before: int, least_age: float, said: str
) -> None:
    parts = story()
    await there.write(parts[0])
    cut = await pause(there)
    await there.write(parts[1])
    with pytest.raises(UsageError, match=said):
        await there.move(tmp_path / "one.llmgw", cut + before * 10**9, least_age=least_age)
    assert not (tmp_path / "one.llmgw").exists()
    assert (await there.log.bounds()).first == 1
    state: Cluster = await fold_log(there.log)
    assert state.sequence == len(parts[0] + parts[1])


async def test_an_archive_of_another_log_is_not_read_as_one_with_it(
    there: There, tmp_path: Path
) -> None:
    await there.write(story()[0])
    bounds = await there.log.bounds()
    about = {"cluster": there.at.cluster, "log": bounds, "now_ns": 1}
    await write_archive(tmp_path / "one.llmgw", span(there.log), **about)  # type: ignore[arg-type]
    async with (
        embedded_server(tmp_path / "other") as server,
        log_on(server, there.at) as other,
        open_archive(tmp_path / "one.llmgw") as archive,
    ):
        with pytest.raises(UsageError, match="is of another log than the live one"):
            await join(archive, other)
