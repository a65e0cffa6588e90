"""Finds processes that a test run started and did not end, orphans included.

The run marks its own environment; whatever it starts inherits the mark, and so do the engines of
an agent that was killed, though they are no longer anybody's children. Used by conftest.py alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Not LLMGW_…: an agent keeps its own settings from its engines, and these must carry the mark.
_MARK = "TEST_RUN_OF_LLMGW"
_ENDS_WITH_THE_RUN = "multiprocessing.resource_tracker"


class Leftover(NamedTuple):
    """A process of the run that is still there."""

    pid: int
    command_line: str


def mark_this_run() -> str:
    """Mark this process and all that it starts from here on. Returns the mark."""
    mark = f"{os.getpid()}-{os.urandom(6).hex()}"
    os.environ[_MARK] = mark
    return mark


def leftovers(mark: str) -> list[Leftover]:
    """Return the processes that carry the mark or are children of this one, itself excepted.

    A zombie counts when it is our own child: somebody forgot to wait for it.
    """
    found = (_leftover(process, mark) for process in _processes())
    return [one for one in found if one is not None and one.pid != os.getpid()]


def end(processes: list[Leftover]) -> None:
    """End what was found, by pid, so that one failing test leaves the machine clean."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdecimal())


def _leftover(process: Path, mark: str) -> Leftover | None:
    # Processes end while they are looked at, and those of other users cannot be read.
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        state_and_parent = (process / "stat").read_text().rpartition(")")[2].split()
        child = int(state_and_parent[1]) == os.getpid()
        if child or f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
            arguments = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if _ENDS_WITH_THE_RUN not in arguments:
                state = "zombie" if state_and_parent[0] == "Z" else "running"
                return Leftover(int(process.name), arguments.strip() or state)
    return None
