"""Runs a program that asks the driver: bounded in time and output, ended as a group.

`smi` and `nvml` call it; what a failure means is theirs to say. A process that the kernel holds in
an uninterruptible call outlives every signal. It is left behind rather than waited for, and until
it is gone the same question is not asked again: never is more than one in flight.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Literal

import anyio
import anyio.abc
import msgspec
from anyio import to_thread

MOST_BYTES = 64 * 2**20
_GRACE_SECONDS = 2.0
_ASKED_SECONDS = 1.0

Ended = Literal["exited", "hung", "endless", "in-flight"]

# What could not be ended, by the program's name: (pid, start time) of each process.
_left_behind: dict[str, frozenset[tuple[int, str]]] = {}


class Output(msgspec.Struct, frozen=True):
    """What one run printed, its exit code (negative: the signal), and how it ended.

    `hung` outlived its time, `endless` printed too much, and `in-flight` was not started, since an
    earlier run still is not gone.
    """

    code: int
    stdout: str
    stderr: str
    ended: Ended = "exited"


async def start(
    command: Sequence[str], *, stdin: int = DEVNULL, stdout: int = PIPE, stderr: int = PIPE
) -> anyio.abc.Process | None:
    """Start a program as a group of its own; `None` where an earlier run is not gone.

    Raises `OSError` if it cannot be started. Whoever starts it calls `end`.
    """
    if await to_thread.run_sync(still_running, command[0]):
        return None
    with anyio.CancelScope(shield=True):  # else it might be there, and nobody would know of it
        process = await anyio.open_process(
            list(command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    return process  # noqa: RET504 - a scope might swallow what is raised, mypy thinks


async def run(command: Sequence[str], *, timeout_seconds: float) -> Output:
    """Run a program once. Raises `OSError` if it cannot be started."""
    process = await start(command)
    if process is None:
        return Output(0, "", "", "in-flight")
    try:
        with anyio.move_on_after(timeout_seconds):
            return await _collect(process)
        return Output(0, "", "", "hung")
    finally:
        await end(process, command[0])


async def _collect(process: anyio.abc.Process) -> Output:
    """Both streams to their ends, and the exit code."""
    texts = {"stdout": b"", "stderr": b""}
    long = False

    async def drain(name: str, stream: anyio.abc.ByteReceiveStream) -> None:
        nonlocal long
        chunks: list[bytes] = []
        size = 0
        async for chunk in stream:
            chunks.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                long = True
                group.cancel_scope.cancel()
        texts[name] = b"".join(chunks)

    async with anyio.create_task_group() as group:
        if process.stdout and process.stderr:
            group.start_soon(drain, "stdout", process.stdout)
            group.start_soon(drain, "stderr", process.stderr)
    if long:
        return Output(0, "", "", "endless")
    code = await process.wait()
    return Output(
        code,
        texts["stdout"].decode("utf-8", "replace"),
        texts["stderr"].decode("utf-8", "replace"),
    )


async def end(process: anyio.abc.Process, name: str, *, is_asked: bool = False) -> None:
    """End what still runs: politely, then by force, the whole group; then close the pipes.

    One that `is_asked` to end already, since its input has ended, gets the time to do so: what is
    killed in the middle of a call may leave the driver hanging.
    """
    with anyio.CancelScope(shield=True):
        if is_asked and process.returncode is None:
            await _wait(process, _ASKED_SECONDS)
        if process.returncode is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal_group(process.pid, number)
                await _wait(process, _GRACE_SECONDS)
            await to_thread.run_sync(leave_behind, name, process.pid)
        if process.returncode is not None:
            await process.aclose()


async def _wait(process: anyio.abc.Process, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await process.wait()


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def leave_behind(name: str, leader: int) -> None:
    """Remember what is left of a program's process group, if anything is."""
    left = frozenset((pid, started) for pid, group, started in _processes() if group == leader)
    if left:
        _left_behind[name] = left


def still_running(name: str) -> bool:
    """Whether a run of the program that could not be ended is still there."""
    return name in _left_behind and name in left_behind()


def may_have_left_behind() -> bool:
    """Whether a run could not be ended, and was not seen to be gone since. Costs nothing."""
    return bool(_left_behind)


def left_behind() -> dict[str, int]:
    """The programs of which a run could not be ended and is still there, and its process id."""
    there = {(pid, started) for pid, _, started in _processes()} if _left_behind else set()
    for name, left in list(_left_behind.items()):
        if not left & there:
            del _left_behind[name]
    return {name: min(left & there)[0] for name, left in _left_behind.items()}


def _processes() -> Iterator[tuple[int, int, str]]:
    """(pid, process group, start time) of every process that has not ended."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue
            state, _, group, *rest = (*text.rpartition(")")[2].split(), *[""] * 20)
            if state and state not in "ZX":
                yield int(folder.name), int(group), rest[16]
