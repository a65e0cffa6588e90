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
