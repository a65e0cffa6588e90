"""A log that lets go of its beginning on a real server, whoever dies or writes meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from llmgw.errors import LlmgwError
from llmgw.log import cutting, setup
from llmgw.log.archive import open_archive
from llmgw.log.base import Bounds
from llmgw.log.embedded import EmbeddedServer, embedded_server
from llmgw.log.jetstream import JetStreamLog
from llmgw.log.joined import join
from llmgw.log.retention import move
from llmgw.log.session import Session
from tests.support.nats import Subjects, collect, fresh_subjects, log_on, numbered, plain_server
from tests.support.wait import until

WRITERS = 4

# Moves records into an archive as `ctl archive` does, and is killed once so many of its changes to
# the stream were made.
MOVER = """
import asyncio, itertools, os, signal, sys
from pathlib import Path
from llmgw.log import cutting
from llmgw.log.jetstream import connect
from llmgw.log.retention import move
from llmgw.log.session import Session

url, cluster, file, before_ns, deadly = sys.argv[1:]
update, number = cutting._update, itertools.count()

async def mortal(*about):
    if next(number) == int(deadly):
        os.kill(os.getpid(), signal.SIGKILL)
    await update(*about)

async def main():
    log = await connect(url, cluster, name="mover")
    ns = int(before_ns)
    about = {"before_ns": ns, "now_ns": ns, "least_age_seconds": 0}
    await move(log, Path(file), cluster=cluster, **about)
    await log.close()

cutting._update = mortal
asyncio.run(main())
"""


async def configuration(log: JetStreamLog, at: Subjects) -> setup.StreamConfig:
    names = setup.Names(at.cluster)

    async def look(session: Session) -> setup.StreamConfig:
        return (await setup.stream_info(session, names.log)).config

    return await log._connection.until_answered(look, 10)


async def told(log: JetStreamLog, at: Subjects, count: int) -> int:
    """Append records that fold, and return a time after them and before the next."""
    await log.append_many(numbered(at.event(), count))
    last = (await log.bounds()).last
    (newest,) = await collect(log, start=last, until=last)
    return newest.time_ns + 1


async def write(log: JetStreamLog, at: Subjects, writer: int, stop: asyncio.Event) -> list[bytes]:
    """Append one record after the other until told to stop; return those that are acknowledged."""
    written: list[bytes] = []
    while not stop.is_set():
        payload = b"%d-%d" % (writer, len(written))
        await log.append(at.event(f"w{writer}"), payload, message_id=payload.decode())
        written.append(payload)
    return written


async def all_of_it(log: JetStreamLog, archive: Path) -> list[bytes]:
    """Return every record, of the archive and then of the log, which must be without a gap."""
    async with open_archive(archive) as held:
        both = await join(held, log)
        last = (await both.bounds()).last
        found = await collect(both, until=last)  # type: ignore[arg-type]
    assert [message.sequence for message in found] == [*range(1, last + 1)]
    return [message.payload for message in found]


@pytest.mark.parametrize("deadly", [0, 1, 2])
async def test_a_mover_that_is_killed_at_any_step_loses_nothing_and_holds_up_nobody_for_long(
    tmp_path: Path, deadly: int
) -> None:
    """0: before it parks the log, 1: before it cuts it, 2: before it gives the subjects back."""
    at, file, stop = fresh_subjects(), tmp_path / "old.llmgw", asyncio.Event()
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        cut_ns = await told(log, at, 50)
        async with asyncio.TaskGroup() as group:
            writers = [group.create_task(write(log, at, n, stop)) for n in range(WRITERS)]
            await until(lambda: log_grew(log, 60), what="something is newer")
            mover = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", MOVER, server.url, at.cluster, str(file)),
                *(str(cut_ns), str(deadly)),
            )
            assert await mover.wait() == -signal.SIGKILL
            if deadly == 2:
                await power_cut(server)  # whatever limit there is counts from the start
            last = (await log.bounds()).last
            await until(lambda: log_grew(log, last + 20), 30, "the log takes records again")
            stop.set()
        written = [payload for writer in writers for payload in writer.result()]
        assert (await log.bounds()).first == (51 if deadly == 2 else 1)
        found = await all_of_it(log, file)
        assert sorted(found[50:]) == sorted(written), "each once, and none is missing"
        (wanted, *_) = setup.Names(at.cluster).configurations(1)
        kept = await configuration(log, at)
        assert sorted(kept.subjects) == sorted(wanted["subjects"])
        assert (kept.max_msgs, setup.PARKED in kept.metadata) == (-1, False)


async def log_grew(log: JetStreamLog, least: int) -> bool:
    return (await log.bounds()).last >= least


async def power_cut(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.start()


async def test_whoever_writes_while_the_log_is_cut_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    at, file, stop = fresh_subjects(), tmp_path / "old.llmgw", asyncio.Event()
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        cut_ns = await told(log, at, 1_000)
        async with asyncio.TaskGroup() as group, log_on(server, at) as other:
            writers = [group.create_task(write(other, at, n, stop)) for n in range(WRITERS)]
            await until(lambda: log_grew(log, 1_010), what="something is newer")
            about = {"cluster": at.cluster, "before_ns": cut_ns, "now_ns": cut_ns}
            moved = await move(log, file, least_age_seconds=0, **about)  # type: ignore[arg-type]
            assert (moved.contents.last, moved.log_first) == (1_000, 1_001)
            last = (await log.bounds()).last
            await until(lambda: log_grew(log, last + 20), what="the log takes records")
            stop.set()
            await asyncio.wait(writers)
        written = [payload for writer in writers for payload in writer.result()]
        assert sorted((await all_of_it(log, file))[1_000:]) == sorted(written)


async def test_a_log_is_not_mended_while_whoever_cuts_it_is_connected(tmp_path: Path) -> None:
    at = fresh_subjects()
    stream = setup.Names(at.cluster).log
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        await told(log, at, 3)
        async with log_on(server, at) as cutter:
            session = await cutter._connection.session()
            found = await cutting._look(session, stream)
            async with cutting._reachable(session) as inbox:
                old = {"ts": "2026-01-01T00:00:00Z"}
                await cutting._park(session, stream, replaced(found, old), inbox)
                async with log_on(server, at) as reader:
                    assert len(await collect(reader, until=3)) == 3, "it can be read all the while"
                    assert setup.PARKED in (await configuration(reader, at)).metadata
                with pytest.raises(cutting.NotCut, match="being cut by somebody else"):
                    await log.let_go(1)
        assert await log.append(at.event(), b"next", message_id="next") == 4
        assert setup.PARKED not in (await configuration(log, at)).metadata


def replaced(found: cutting._Found, fields: dict[str, str]) -> cutting._Found:
    for name, value in fields.items():
        setattr(found, name, value)
    return found


async def test_what_would_leave_nothing_is_not_cut(tmp_path: Path) -> None:
    at = fresh_subjects()
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        await told(log, at, 3)
        with pytest.raises(cutting.NotCut, match="none would be left after 3"):
            await log.let_go(3)
        assert (await log.bounds()).first == 1
        await log.let_go(2)
        assert await log.append(at.event(), b"next", message_id="next") == 4
        bounds = await log.bounds()
        assert bounds == Bounds(3, 4, bounds.created_ns)


PERMISSIONS = """
jetstream {{ store_dir: "{store}" }}
authorization {{ users: [
  {{ user: admin, password: admin }}
  {{ user: clerk, password: clerk, permissions: {{
      publish: {{ deny: ["$JS.API.STREAM.UPDATE.>"] }}
  }} }}
] }}
"""


async def test_a_move_that_the_server_refuses_leaves_no_file(tmp_path: Path) -> None:
    at, file = fresh_subjects(), tmp_path / "old.llmgw"
    config = PERMISSIONS.format(store=tmp_path / "store")
    async with (
        plain_server(tmp_path, config) as address,
        log_on(f"nats://admin:admin@{address}", at) as admin,
        log_on(f"nats://clerk:clerk@{address}", at) as clerk,
    ):
        cut_ns = await told(admin, at, 5)
        await told_more(admin, at)
        about = {"cluster": at.cluster, "before_ns": cut_ns, "now_ns": cut_ns}
        with pytest.raises(LlmgwError, match="does not let this user publish on"):
            await move(clerk, file, least_age_seconds=0, **about)  # type: ignore[arg-type]
        assert left_behind(tmp_path) == []
        file.write_text("precious")
        with pytest.raises(LlmgwError, match=r"old\.llmgw is written; the log holds all of it"):
            await move(clerk, file, least_age_seconds=0, force=True, **about)  # type: ignore[arg-type]
        assert (await admin.bounds()).first == 1
        async with open_archive(file) as held:
            assert held.contents.last == 5


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if "llmgw" in path.name]


async def told_more(log: JetStreamLog, at: Subjects) -> None:
    await log.append(at.event("n2"), b"newer", message_id="newer")
