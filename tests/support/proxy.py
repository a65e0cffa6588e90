"""A proxy that can stall: connections stay open, and nothing comes through until it goes on.

That is what a network does that loses packets; a proxy that closes is the easy case. It can be
slow as well: what the server says comes late, as on a long way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator


class StallingProxy:
    """Passes bytes on between its clients and a port on loopback, unless it stalls."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._late_seconds = 0.0
        self.port = 0

    @property
    def url(self) -> str:
        """Where NATS clients find it."""
        return f"nats://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Let nothing through for the length of the block; what waits goes on afterwards."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Let what the server says arrive so much later for the length of the block."""
        self._late_seconds = seconds
        try:
            yield
        finally:
            self._late_seconds = 0.0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, here = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._pass(reader, here, is_answer=False)
            self._pass(there, writer, is_answer=True)

    def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        task = asyncio.create_task(self._carry(source, sink, is_answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while chunk := await source.read(65536):
                await self._flows.wait()
                if is_answer and self._late_seconds:
                    loop.call_later(self._late_seconds, sink.write, chunk)
                else:
                    sink.write(chunk)
                    await sink.drain()
        except OSError:
            pass  # one of the two is gone, and so is this connection
        finally:
            sink.close()

    async def end(self) -> None:
        """End every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve on a free port for the length of the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await self.end()


@contextlib.asynccontextmanager
async def stalling_proxy(target_port: int) -> AsyncIterator[StallingProxy]:
    """Run a proxy for the length of the block."""
    proxy = StallingProxy(target_port)
    async with proxy.running():
        yield proxy
