"""The embedded nats-server: how it starts, ends with its parent, and says why it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from llmgw.errors import DataFolderError, LlmgwError, LogUnreachable
from llmgw.log import tether
from llmgw.log.embedded import embedded_server
from llmgw.log.jetstream import connect
from llmgw.log.version import refuse_old_server
from tests.support.nats import (
    collect,
    fresh_subjects,
    is_running,
    log_on,
    numbered,
    payloads,
    stopped,
)
from tests.support.wait import until

PARENT = """
import asyncio, pathlib, sys
from llmgw.log.embedded import embedded_server

async def main():
    async with embedded_server(pathlib.Path(sys.argv[1])) as server:
        print(server.pid, flush=True)
        await server.wait()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def parent_of_a_server(
    data_dir: Path,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Run another process that has an embedded server; give it and the server's pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(data_dir), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        lines = process.stdout
        line = b""
        while not line.strip().isdigit():
            line = await asyncio.wait_for(lines.readline(), 20)
            assert line, "the parent ended before its server ran"
        yield process, int(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_serves_on_a_free_loopback_port_and_ends_with_the_block(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        assert server.url.startswith("nats://127.0.0.1:")
        assert is_running(server.pid)
        at = fresh_subjects()
        async with log_on(server, at) as log:
            assert await log.append(at.event(), b"1", message_id="1") == 1
    assert not is_running(server.pid)


async def test_it_flushes_every_append_and_keeps_to_the_old_acknowledgements(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path):
        config = (tmp_path / "nats" / "nats.conf").read_text()
        said = (tmp_path / "nats" / "server.log").read_text()
    assert "sync_interval: always" in config
    assert "js_ack_fc_v2 (disabled)" in said


async def test_it_is_out_of_reach_of_ctrl_c_in_the_terminal(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        assert os.getsid(server.pid) != os.getsid(0)
        assert os.getpgid(server.pid) != os.getpgid(0)


async def test_what_was_stored_is_there_at_the_next_start(tmp_path: Path) -> None:
    at = fresh_subjects()
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        await log.append_many(numbered(at.event(), 20))
        created_ns = (await log.bounds()).created_ns
    async with embedded_server(tmp_path) as server, log_on(server, at) as log:
        assert payloads(await collect(log, until=20)) == [b"%d" % n for n in range(1, 21)]
        assert (await log.bounds()).created_ns == created_ns


async def test_an_unexpected_end_is_seen_and_a_restart_keeps_port_and_store(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path) as server:
        url, pid = server.url, server.pid
        ended = asyncio.ensure_future(server.wait())
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.wait_for(ended, 10) == -signal.SIGKILL
        await server.restart()
        assert server.url == url
        assert server.pid != pid


async def test_it_ends_when_its_parent_is_killed_and_the_folder_is_free_again(
    tmp_path: Path,
) -> None:
    async with parent_of_a_server(tmp_path) as (parent, pid):
        assert is_running(pid)
        parent.kill()
        await parent.wait()
        # At once: the next start waits for the dying server rather than sharing its store.
        async with embedded_server(tmp_path) as server:
            assert not is_running(pid)
            assert is_running(server.pid)


async def test_the_folder_stays_locked_while_an_orphaned_server_still_lives(
    tmp_path: Path,
) -> None:
    async with parent_of_a_server(tmp_path) as (parent, pid):
        with stopped(pid), (tmp_path / "nats" / "lock").open("rb") as lock:
            parent.kill()
            await parent.wait()
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        async with embedded_server(tmp_path):
            assert not is_running(pid)


async def test_it_ends_when_its_parent_is_killed_with_nobody_following(tmp_path: Path) -> None:
    async with parent_of_a_server(tmp_path) as (parent, pid):
        parent.kill()
        await parent.wait()
        await until(lambda: not is_running(pid), what="the orphaned server has ended")


async def test_a_second_server_on_the_same_folder_is_refused_at_once(tmp_path: Path) -> None:
    async with parent_of_a_server(tmp_path) as (parent, pid):
        with pytest.raises(DataFolderError, match=rf"in use by another llmgw \(pid {parent.pid}\)"):
            async with embedded_server(tmp_path):
                pass
        assert is_running(pid)


async def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "one") as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(LlmgwError, match=f"port {port} on 127.0.0.1 is in use"):
            async with embedded_server(tmp_path / "two", port=port):
                pass
        assert is_running(first.pid)


async def test_a_file_in_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataFolderError, match="is a file where a folder is needed"):
        async with embedded_server(tmp_path / "file"):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_is_not_writable_is_said(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)  # noqa: PTH101 - the async rule knows pathlib alone
    try:
        with pytest.raises(DataFolderError, match="not writable"):
            async with embedded_server(tmp_path):
                pass
    finally:
        os.chmod(tmp_path, 0o700)  # noqa: PTH101


async def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "jetstream").write_text("in the way")
    with pytest.raises(LlmgwError, match="ended with exit code 1; its last lines") as failure:
        async with embedded_server(tmp_path):
            pass
    assert "JetStream" in str(failure.value)
    (tmp_path / "nats" / "jetstream").unlink()
    async with embedded_server(tmp_path) as server:
        assert is_running(server.pid)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 32 MiB, where that is permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "llmgw-test", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"mounting is not permitted: {failure}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk_is_said_at_the_start(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(20 * 1024 * 1024))
    with pytest.raises(DataFolderError, match="needs at least 16 MiB: make room"):
        async with embedded_server(small_disk):
            pass
    (small_disk / "ballast").unlink()
    async with embedded_server(small_disk) as server:
        assert is_running(server.pid)


async def test_a_log_that_fills_its_disk_says_so_and_keeps_what_it_acknowledged(
    small_disk: Path,
) -> None:
    at = fresh_subjects()
    stored = 0
    async with embedded_server(small_disk) as server, log_on(server, at) as log:
        with pytest.raises(LogUnreachable, match=r"is full.*make room"):
            for number in range(1_000):
                await log.append(at.event(), bytes(200_000), message_id=str(number))
                stored += 1
        assert stored > 10
        assert len(await collect(log, until=stored)) == stored
        remount = ["mount", "-o", "remount,size=128m", str(small_disk)]
        await asyncio.to_thread(subprocess.run, remount, check=True)
        await server.restart()
        assert await log.append(at.event(), b"more", message_id="more") == stored + 1
        assert len(await collect(log, until=stored + 1)) == stored + 1


@pytest.mark.parametrize("version", ["2.9.10", "2.10.29", "2.11.14", "2.12.5", "2.12.0-RC.1", "?"])
def test_old_servers_are_refused(version: str) -> None:
    with pytest.raises(LlmgwError, match=r"needs 2\.11\.15, 2\.12\.6 or newer"):
        refuse_old_server(version, "nats://somewhere:4222")


@pytest.mark.parametrize("version", ["2.11.15", "2.12.6", "2.12.11", "2.13.0", "2.15.1", "3.0.0"])
def test_newer_servers_are_welcome(version: str) -> None:
    refuse_old_server(version, "nats://somewhere:4222")


async def test_connecting_to_an_old_server_is_refused_at_once() -> None:
    hung_up = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.10","headers":true}\r\n')
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()
        hung_up.set()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as old:
        port = old.sockets[0].getsockname()[1]
        with pytest.raises(LlmgwError, match=r"2\.9\.10.*upgrade"):
            await connect(f"nats://127.0.0.1:{port}", "c", name="test")
        await hung_up.wait()


def test_a_tethered_program_does_not_start_when_its_parent_is_gone(tmp_path: Path) -> None:
    proof = tmp_path / "started"
    command = tether.tethered(["touch", str(proof)])
    command[command.index(str(os.getpid()))] = "1"
    assert subprocess.run(command, check=False).returncode == 125
    assert not proof.exists()


def test_a_tethered_program_gets_its_arguments_untouched() -> None:
    command = tether.tethered(
        [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--", "a b", "-c"]
    )
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "['--', 'a b', '-c']\n"
