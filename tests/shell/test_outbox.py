"""The agent's memory on disk: it keeps order and ids, and takes all or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.errors import DataFolderError
from llmgw.outbox import FILE, open_outbox
from llmgw.wire import Outgoing

WRITER = """
import asyncio, sys
from pathlib import Path
from llmgw.outbox import open_outbox
from llmgw.wire import Outgoing

async def main():
    async with open_outbox(Path(sys.argv[1])) as outbox:
        for n in range(1_000_000):
            number = b"%d" % n
            await outbox.commit({"memory": number}, [Outgoing("s", number, f"id-{n}")])
            print(n, flush=True)

asyncio.run(main())
"""


def messages(*numbers: int) -> list[Outgoing]:
    return [Outgoing(f"subject.{n}", b"%d" % n, f"id-{n}") for n in numbers]


async def test_what_waits_keeps_its_order_and_ids_until_it_was_sent(tmp_path: Path) -> None:
    async with open_outbox(tmp_path) as outbox:
        await outbox.commit({}, messages(1, 2))
        await outbox.commit({"memory": b"x"}, messages(3))
    async with open_outbox(tmp_path) as outbox:
        waiting = await outbox.waiting()
        assert [w.message for w in waiting] == messages(1, 2, 3)
        await outbox.sent(w.place for w in waiting[:2])
        await outbox.commit({}, messages(4))
        assert [w.message for w in await outbox.waiting()] == messages(3, 4)
        assert [w.message for w in await outbox.waiting(1)] == messages(3)
        assert await outbox.kept("memory") == b"x"
        assert await outbox.kept("nothing") is None


async def test_an_agent_stays_the_same_agent_over_restarts(tmp_path: Path) -> None:
    async with open_outbox(tmp_path) as outbox:
        identity = await outbox.identity()
        assert await outbox.identity() == identity
    async with open_outbox(tmp_path) as outbox:
        assert await outbox.identity() == identity


async def test_memory_and_events_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    broken = Outgoing("subject", None, "id")  # type: ignore[arg-type]
    async with open_outbox(tmp_path) as outbox:
        await outbox.commit({"memory": b"before"}, messages(1))
        with pytest.raises(DataFolderError, match="NOT NULL"):
            await outbox.commit({"memory": b"after"}, [*messages(2), broken])
        assert await outbox.kept("memory") == b"before"
        assert [w.message for w in await outbox.waiting()] == messages(1)


def write_until_killed(folder: Path) -> int:
    """Commit transactions in a process that is killed; return the last that it told of."""
    committed = -1
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            committed = int(line)
            if committed == 40:
                os.kill(writer.pid, signal.SIGKILL)
    return committed


async def test_a_writer_that_is_killed_leaves_whole_transactions(tmp_path: Path) -> None:
    committed = write_until_killed(tmp_path)
    async with open_outbox(tmp_path) as outbox:
        found = [int(w.message.payload) for w in await outbox.waiting()]
        assert found == list(range(len(found)))
        assert len(found) > committed
        assert await outbox.kept("memory") == b"%d" % found[-1]


async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes(b"precious" * 1000)
    with pytest.raises(DataFolderError, match=rf"{FILE}: file is not a database"):
        async with open_outbox(tmp_path):
            pass
    assert file.read_bytes() == b"precious" * 1000


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match="no-such-folder"):
        async with open_outbox(tmp_path / "no-such-folder"):
            pass


def hurt(file: Path, offset: int, length: int = 4096) -> None:
    """Overwrite a part of a file, as a disk that fails does."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"\xa5" * length)


async def filled(folder: Path, count: int) -> str:
    """Queue so many messages, of some 1,000 bytes each; return who the agent is."""
    async with open_outbox(folder) as outbox:
        for number in range(count):
            await outbox.commit({}, [Outgoing("s", b"%04d" % number + bytes(1000), f"id-{number}")])
        return await outbox.identity()


@pytest.mark.parametrize("lost_bytes", [1, 1500, 5000])
async def test_a_last_record_that_is_torn_is_cut_off_and_those_before_it_are_kept(
    tmp_path: Path, lost_bytes: int
) -> None:
    """A power cut in the middle of a write: what was being written is gone, and nothing else."""
    committed = write_until_killed(tmp_path)
    log = tmp_path / f"{FILE}-wal"
    os.truncate(log, log.stat().st_size - lost_bytes)
    async with open_outbox(tmp_path) as outbox:
        found = [int(w.message.payload) for w in await outbox.waiting()]
        assert found == list(range(len(found)))
        assert len(found) >= committed - 3
        assert outbox.troubles() == ()


async def test_damaged_records_are_kept_beside_and_what_is_readable_is_taken_over(
    tmp_path: Path,
) -> None:
    identity = await filled(tmp_path, 200)
    size = (tmp_path / FILE).stat().st_size
    hurt(tmp_path / FILE, size // 8192 * 4096)
    async with open_outbox(tmp_path) as outbox:
        found = [int(w.message.payload[:4]) for w in await outbox.waiting()]
        assert found == sorted(set(found))
        assert 150 < len(found) < 200, "what stood on the bad page is lost, and no more"
        assert {0, 199} <= set(found)
        assert await outbox.identity() == identity
        [(name, said)] = outbox.troubles()
        assert name == "mended"
        assert f"{len(found)} facts were still to be read" in said
        assert outbox.troubles() == (), "it is told once"
        await outbox.commit({}, messages(1))
    assert (tmp_path / "agent.damaged").stat().st_size == size
    async with open_outbox(tmp_path) as outbox:
        assert outbox.troubles() == ()
        assert [w.message for w in await outbox.waiting()][-1] == messages(1)[0]


async def test_records_that_do_not_say_any_more_who_the_agent_is_are_not_replaced(
    tmp_path: Path,
) -> None:
    """Engines that run would else be nobody's."""
    await filled(tmp_path, 200)
    file = tmp_path / FILE
    for page in range(1, file.stat().st_size // 4096):
        hurt(file, page * 4096)
    before = file.read_bytes()
    with pytest.raises(DataFolderError, match=r"damaged.*who it is cannot be read"):
        async with open_outbox(tmp_path):
            pass
    assert file.read_bytes() == before


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from llmgw.errors import DataFolderError
from llmgw.outbox import open_outbox
from llmgw.wire import Outgoing

async def main():
    async with open_outbox(Path(sys.argv[1])) as outbox:
        fact = Outgoing("s", bytes(1000), "id")
        await outbox.commit({"memory": b"before"}, [fact])
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), most))
        done = 1
        try:
            for _ in range(1000):
                await outbox.commit({"memory": b"after"}, [fact])
                done += 1
        except DataFolderError as error:
            assert "Make room on that disk" in str(error), error
        assert [name for name, _ in outbox.troubles()] == ["unwritable"]
        assert [name for name, _ in outbox.troubles()] == ["unwritable"], "as long as it lasts"
        assert len(await outbox.waiting(2000)) == done
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        await outbox.commit({"memory": b"again"}, [fact])
        assert [name for name, _ in outbox.troubles()] == ["unwritable"], "once more afterwards"
        assert outbox.troubles() == ()
        assert len(await outbox.waiting(2000)) == done + 1
        print(done + 1)

asyncio.run(main())
"""


def fill_the_disk(folder: Path, most_bytes: int) -> int:
    """Store facts in files that may not become larger; return how many were stored."""
    command = [sys.executable, "-c", FULL, str(folder), str(most_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("most_bytes", [0, 20_000, 200_000])
async def test_a_disk_that_takes_no_more_loses_nothing_and_is_said(
    tmp_path: Path, most_bytes: int
) -> None:
    stored = fill_the_disk(tmp_path, most_bytes)
    async with open_outbox(tmp_path) as outbox:
        assert len(await outbox.waiting(2000)) == stored
        assert await outbox.kept("memory") == b"again"


async def test_what_the_log_never_takes_is_put_aside_and_lets_the_others_pass(
    tmp_path: Path,
) -> None:
    async with open_outbox(tmp_path) as outbox:
        await outbox.commit({}, messages(1, 2, 3))
        await outbox.put_aside("id-2", "2 is too large")
        assert [w.message for w in await outbox.waiting()] == messages(1, 3)
        assert outbox.troubles() == outbox.troubles() == (("untold", "2 is too large"),)
    async with open_outbox(tmp_path) as outbox:
        assert outbox.troubles() == (), "an agent that starts tells anew what holds"
