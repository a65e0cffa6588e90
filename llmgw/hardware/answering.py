"""A program that stays and answers a line with a line, over two pipes.

`nvml_session` asks one every second for as long as an agent runs. So an answer costs a few system
calls here, and no tasks and buffers of streams, which cost more than the program's own work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from subprocess import DEVNULL
from typing import Self

import anyio.abc

from llmgw.hardware import running

_CHUNK_BYTES = 2**18


class Answering:
    """One such program. Made by `start`; whoever has one calls `end`."""

    def __init__(self, process: anyio.abc.Process, name: str, asking: int, hearing: int) -> None:
        self._process = process
        self._name = name
        self._asking = asking
        self._hearing = hearing
        self._heard = b""

    @classmethod
    async def start(cls, command: Sequence[str]) -> Self | None:
        """Start it; `None` where an earlier run is not gone. Raises `OSError`."""
        input_end, asking = os.pipe()
        hearing, output_end = os.pipe()
        started = False
        try:
            process = await running.start(
                command, stdin=input_end, stdout=output_end, stderr=DEVNULL
            )
            started = process is not None
        finally:
            for end in (input_end, output_end, *(() if started else (asking, hearing))):
                os.close(end)
        if process is None:
            return None
        for own in (asking, hearing):
            os.set_blocking(own, False)
        return cls(process, command[0], asking, hearing)

    async def ask(self, timeout_seconds: float) -> bytes:
        """Ask for a line and return it, as `line` does."""
        try:
            os.write(self._asking, b"\n")
        except (BrokenPipeError, BlockingIOError) as error:
            raise EOFError from error
        return await self.line(timeout_seconds)

    async def line(self, timeout_seconds: float) -> bytes:
        """Return the next line.

        Raises `TimeoutError` when it does not come in time, and `EOFError` when the program has
        ended or the line has no end.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while (at := self._heard.find(b"\n")) < 0:
            await self._readable(deadline)
            chunk = os.read(self._hearing, _CHUNK_BYTES)
            if not chunk or len(self._heard) > running.MOST_BYTES:
                raise EOFError
            self._heard += chunk
        line, self._heard = self._heard[:at], self._heard[at + 1 :]
        return line

    async def _readable(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None = None) -> None:
            if not waiting.done():
                waiting.set_exception(error) if error else waiting.set_result(None)

        timer = loop.call_at(deadline, settle, TimeoutError())
        loop.add_reader(self._hearing, settle)
        try:
            await waiting
        finally:
            loop.remove_reader(self._hearing)
            timer.cancel()

    async def end(self) -> None:
        """End it, however stuck it is, and return when it is gone or cannot be ended.

        Its input ends first, so that one that is not stuck lets go of what it holds by itself.
        """
        os.close(self._asking)
        os.close(self._hearing)
        await running.end(self._process, self._name, is_asked=True)
