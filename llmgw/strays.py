"""Processes of an engine that shed its marker: who still prints into its file, or came from it.

A child that left its session and threw away its environment cannot be told by either (see
`processes`). But what it prints still goes to the engine's own file, unless it took care of that
as well, and while its parents live it can be seen to descend from them. Blocking; `supervise` asks
in threads. Linux only.

Having orphans handed to the agent (PR_SET_CHILD_SUBREAPER) would tell less: not of which engine
one was, and nothing of the engines that an agent adopts, which descend from an earlier agent.
"""

from __future__ import annotations

import select
import signal
import threading
import time
from collections.abc import Callable, Container, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from llmgw.processes import VARIABLE, environment_of, families, pidfd, process_ids

_OUTPUTS = (1, 2)
_GONE = " (deleted)"


class Stray(NamedTuple):
    """One process: its number may be another's tomorrow, with its birth in clock ticks not."""

    pid: int
    born: int


class Strays:
    """Those of one agent's engines, by the name of each start; `folder` has the engines' output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, frozenset[Stray]] = {}
        self._turn = threading.Lock()

    def see(self, name: str, pids: Iterable[int]) -> None:
        """Remember what descends from an engine's processes, until its end.

        One after the other: a probe must not undo what a stop has seen meanwhile, and an end
        waits for what a probe sees.
        """
        with self._turn:
            self._seen[name] = living(self._seen.get(name, ())) | descendants(pids)

    def named(self, among: Iterable[int] | None = None) -> dict[int, str]:
        """Return those that still print into their engine's file, `among` these processes."""
        found = writers(self._folder.resolve(), among)
        return {pid: Path(name).stem for pid, name in found.items()}

    def pids(self, name: str) -> set[int]:
        """Return those that print into the file of an engine."""
        return {pid for pid, of in self.named().items() if of == name}

    def end(self, name: str, deadline_seconds: float) -> frozenset[int]:
        """Kill all of an engine, wait for their ends, and return those that cannot be killed."""
        seen = self._seen.pop(name, frozenset())
        return end(lambda: seen | descendants(self.pids(name)), deadline_seconds)

    def end_but(self, running: Container[str], deadline_seconds: float) -> None:
        """The same for all engines but those that run."""

        def found() -> frozenset[Stray]:
            return descendants(pid for pid, of in self.named().items() if of not in running)

        end(found, deadline_seconds)


def writers(folder: Path, among: Iterable[int] | None = None) -> dict[int, str]:
    """Return the processes that print into a file of a folder, each with that file's name.

    Only those without any marker: the others are known by it, or are another agent's.
    """
    found = {}
    for pid in process_ids() if among is None else among:
        for number in _OUTPUTS:
            with suppress(OSError):
                path = Path(f"/proc/{pid}/fd/{number}").readlink()
                if path.parent == folder and VARIABLE not in environment_of(pid):
                    found[pid] = path.name.removesuffix(_GONE)
    return found


def living(strays: Iterable[Stray]) -> frozenset[Stray]:
    """Return those that are still there."""
    return frozenset(stray for stray in strays if _is_there(stray))


def descendants(pids: Iterable[int]) -> frozenset[Stray]:
    """Return these processes, as far as they live, and all that descend from them now."""
    told = ((pid, _born(pid)) for pid in families(pids))
    return frozenset(Stray(pid, at) for pid, at in told if at is not None)


def end(find: Callable[[], frozenset[Stray]], deadline_seconds: float) -> frozenset[int]:
    """Kill what `find` finds and what descends from that, until it finds nothing that lives.

    Return those that do not end in time.
    """
    deadline = time.monotonic() + deadline_seconds
    while left := living(find()):
        if time.monotonic() > deadline:
            return frozenset(stray.pid for stray in left)
        _kill(left | descendants(stray.pid for stray in left), deadline)
    return frozenset()


def _kill(strays: Iterable[Stray], deadline: float) -> None:
    """Kill these processes, and wait for their ends for as long."""
    with ExitStack() as opened:
        killed = []
        for stray in strays:
            with suppress(ProcessLookupError, PermissionError):
                descriptor = opened.enter_context(pidfd(stray.pid))
                if _is_there(stray):  # now that its number cannot be given away
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    killed.append(descriptor)
        for descriptor in killed:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


def _is_there(stray: Stray) -> bool:
    return _born(stray.pid) == stray.born


def _born(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; `None` if it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19]) if fields[0] not in (b"Z", b"X") else None
    except (OSError, IndexError, ValueError):
        return None
