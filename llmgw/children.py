"""The other llmgw processes that `llmgw up` runs: started, kept running, stopped in order.

A child is tethered (it hears SIGTERM when `up` dies, however), sits in its own session (Ctrl-C in
the terminal reaches only `up`) and logs to a file of its own. One that ends unasked is started
again, with a growing pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import structlog

from llmgw.log.tether import tethered
from llmgw.masking import visible
from llmgw.stopping import blocked
from llmgw.supervise import last_output

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
SAID_CHARACTERS = 300
STEADY_SECONDS = 60.0

log = structlog.get_logger()


class Child:
    """One part of llmgw as a process: `python -m llmgw ARGUMENTS`."""

    def __init__(
        self, name: str, arguments: list[str], environment: dict[str, str], folder: Path
    ) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._stopping = False
        self._abandoned = False
        self._log_start_bytes = 0

    @property
    def pid(self) -> int | None:
        """The process id, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left for `finish` to do: it ended in good order, or was abandoned."""
        ended = self._process is not None and self._process.returncode == 0
        return self._abandoned or (self._stopping and ended)

    async def keep(self) -> None:
        """Run the child until `stop`, again and again."""
        pause = FIRST_PAUSE_SECONDS
        loop = asyncio.get_running_loop()
        while not self._is_stopping():
            began = loop.time()
            code = await (await self._start()).wait()
            if self._is_stopping():
                return
            if loop.time() - began > STEADY_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            log.warning(
                "part_ended",
                part=self.name,
                exit_code=code,
                restart_seconds=pause,
                said=await asyncio.to_thread(self._last_words),
                log=str(self.log_file),
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _last_words(self) -> str:
        """Return the last line that the present process wrote to its log, fit for a terminal."""
        try:
            grown = self.log_file.stat().st_size != self._log_start_bytes  # less: it was cut
        except OSError:
            return ""
        text = last_output(self.log_file) if grown else ""
        lines = [line for line in text.splitlines() if line.strip()]
        return visible(lines[-1].strip())[:SAID_CHARACTERS] if lines else ""

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _start(self) -> asyncio.subprocess.Process:
        """Return the process that runs, started now if none does.

        Signals are blocked in it until it hears them (`stopping`), so that one which comes
        while it is still being loaded is not its end but waits.
        """
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                # The process is made before the first switch of tasks: another child that is
                # started meanwhile cannot unblock them too early.
                with blocked(), self.log_file.open("ab") as output:
                    self._log_start_bytes = output.tell()
                    self._process = await asyncio.create_subprocess_exec(
                        *tethered([sys.executable, "-m", "llmgw", *self._arguments]),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env=self._environment,
                        start_new_session=True,
                    )
                if self._abandoned:  # It was being started just then.
                    self._kill()
            return self._process

    async def finish(self, grace_seconds: float) -> bool:
        """Have the child end in good order, and return whether it did. Safe to call twice.

        One that was not there, or died of it, is started once more for that: what it left behind
        only it can clear away.
        """
        await self.stop(grace_seconds)
        if not self._abandoned and (self._process is None or self._process.returncode != 0):
            await self._start()
            await self.stop(grace_seconds)
        return self._process is not None and self._process.returncode == 0

    def abandon(self) -> None:
        """Kill the child and start it no more: whoever waits for its end waits no longer."""
        self._stopping = self._abandoned = True
        self._kill()

    async def stop(self, grace_seconds: float) -> None:
        """Ask the child to end, and make it end after the grace. Safe to call twice."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await process.wait()
        except TimeoutError:
            log.warning("part_killed", part=self.name, after_seconds=grace_seconds)
            self._kill()
            await process.wait()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
