"""A real nats-server for tests, and logs on it that share nothing with each other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import nats

from llmgw.log.base import Log, Message
from llmgw.log.embedded import EmbeddedServer, server_program
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.storefolder import StoreFolder
from llmgw.log.tether import tethered
from llmgw.wire import Outgoing
from tests.support.wait import until

_clusters = itertools.count(1)


class Subjects(NamedTuple):
    """The subjects of one test's cluster."""

    cluster: str

    def event(self, node: str = "n1") -> str:
        return f"llmgw.v1.{self.cluster}.event.node.{node}.sample"

    @property
    def decision(self) -> str:
        return f"llmgw.v1.{self.cluster}.event.controller.decided"

    @property
    def fence(self) -> str:
        return f"llmgw.v1.{self.cluster}.event.controller.>"

    def command(self, node: str = "n1") -> str:
        return f"llmgw.v1.{self.cluster}.command.{node}"

    def telemetry(self, node: str = "n1") -> str:
        return f"llmgw.v1.{self.cluster}.telemetry.{node}"


def fresh_subjects() -> Subjects:
    """Return the subjects of a cluster that no other test uses."""
    return Subjects(f"test-{next(_clusters)}")


@contextlib.asynccontextmanager
async def log_on(
    server: EmbeddedServer | str, subjects: Subjects, *, ping_interval_seconds: float = 5.0
) -> AsyncIterator[JetStreamLog]:
    """Connect to a server for the length of the block."""
    log = await connect(
        server if isinstance(server, str) else server.url,
        subjects.cluster,
        name="test",
        answer_deadline_seconds=20,
        ping_interval_seconds=ping_interval_seconds,
    )
    try:
        yield log
    finally:
        await log.close()


@contextlib.asynccontextmanager
async def plain_server(folder: Path, config: str) -> AsyncIterator[str]:
    """Run a nats-server with a configuration of its own; give its HOST:PORT."""
    file = folder / "plain.conf"
    file.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n{config}')
    command = tethered([await asyncio.to_thread(server_program), "-c", str(file)])
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    written = StoreFolder(folder)
    try:
        port: int | None = await until(
            lambda: asyncio.to_thread(written.read_port, process.pid),
            what="the server has written down its port",
        )
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


class OwnServer:
    """A nats-server whose configuration a test changes while it runs."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._file = folder / "own.conf"
        self.address = f"127.0.0.1:{port}"

    def write(self, config: str) -> list[str]:
        """Write its configuration; return the command line that runs it."""
        own = f'listen: "{self.address}"\nlog_file: "{self._folder}/own.log"\n'
        store = f'jetstream {{ store_dir: "{self._folder}/own" }}\n'
        self._file.write_text(own + store + config)
        return [server_program(), "-c", str(self._file)]

    async def reload(self, config: str) -> None:
        """Have it go on with another configuration."""
        await asyncio.to_thread(self.write, config)
        before = await asyncio.to_thread(self._reloads)
        os.kill(self.pid, signal.SIGHUP)

        async def done() -> bool:
            return await asyncio.to_thread(self._reloads) > before

        await until(done, what="the server has reloaded its configuration")

    def _reloads(self) -> int:
        log = (self._folder / "own.log").read_text()
        assert "Failed to reload" not in log, log
        return log.count("Reloaded server configuration")

    @contextlib.asynccontextmanager
    async def running(self, config: str) -> AsyncIterator[None]:
        """Run it for the length of the block."""
        command = tethered(await asyncio.to_thread(self.write, config))
        process = await asyncio.create_subprocess_exec(*command)
        self.pid = process.pid
        try:
            await until(lambda: answers(self.address), what="the server answers")
            yield
        finally:
            process.terminate()
            await process.wait()


async def answers(address: str) -> bool:
    """Tell whether something takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True


def free_port() -> int:
    """Return a port of loopback that nobody has right now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


async def ask(server: EmbeddedServer, subject: str, body: object = None) -> dict[str, object]:
    """Speak to the JetStream API as another program would."""
    client = await nats.connect(server.url)
    try:
        payload = b"" if body is None else json.dumps(body).encode()
        reply: dict[str, object] = json.loads((await client.request(subject, payload)).data)
    finally:
        await client.close()
    return reply


def numbered(subject: str, count: int, *, first: int = 1) -> list[Outgoing]:
    """Return messages whose payload and id are their number."""
    return [Outgoing(subject, b"%d" % n, f"id-{n}") for n in range(first, first + count)]


async def collect(
    log: Log,
    *,
    start: int = 1,
    subjects: tuple[str, ...] = (),
    until: int | None = None,
    enough: Callable[[list[Message]], bool] = lambda _: False,
) -> list[Message]:
    """Follow a log to `until`, or until there is enough."""
    messages: list[Message] = []
    async with contextlib.aclosing(log.follow(start, subjects=subjects, until=until)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            assert batch, "a batch was empty"
            messages += batch
            if enough(messages):
                break
    return messages


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Hold a process with SIGSTOP for the length of the block, or until somebody kills it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is more than a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
