"""Engine processes of this machine, as the kernel shows them: found, watched, signalled.

An engine is known by a marker in its environment, which all its children inherit, so what an
agent started can be found again whatever happened to the agent and to the process group. A
process is signalled only through a descriptor of it (`pidfd`) whose marker was read after the
descriptor was opened: a number that was given to another program meanwhile is never touched.
Linux only.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from llmgw.core.stimuli import Key, Start
from llmgw.masking import visible

VARIABLE = "LLMGW_ENGINE"
_PROC = Path("/proc")
_PAUSE_SECONDS = 0.02
_FIRST_NAMESPACE = 0xEFFFFFFC
"""What the kernel calls the name space of process ids that is there from the beginning."""


class Marker(NamedTuple):
    """Who started an engine process, and as what. `agent` is the agent's lasting id."""

    agent: str
    start: Start
    port: int
    digest: int

    def text(self) -> str:
        """Return the value of the environment variable."""
        start = self.start
        numbers = (start.key.part, start.generation, start.attempt, self.port, self.digest)
        return ":".join([self.agent, start.key.replica, *map(str, numbers)])


class MarkedProcess(NamedTuple):
    """A living process with a marker. `born` is in the kernel's clock ticks since boot.

    The leader is the engine itself: the oldest process of its start that leads a group. A child
    of it can lead a group too, but is younger.
    """

    born: int
    pid: int
    marker: Marker
    is_leader: bool


def parse_marker(text: str) -> Marker | None:
    """Return the marker that the text says, or `None` when it is none of ours.

    What a newer version may have added behind it is passed over: its engines are ours, too.
    """
    words = text.split(":")[:7]
    if len(words) != 7 or not all(word.isdecimal() for word in words[2:]):
        return None
    part, generation, attempt, port, digest = map(int, words[2:])
    return Marker(words[0], Start(Key(words[1], part), generation, attempt), port, digest)


def marked_processes(agent: str, among: frozenset[int] | None = None) -> list[MarkedProcess]:
    """Return the living processes that carry this agent's marker, oldest first, no zombies.

    Only `among` these process ids is looked, where they are given: the whole table costs more.
    """
    pids = among if among is not None else process_ids()
    found = sorted(p for pid in pids if (p := _marked(pid)) is not None and p.marker.agent == agent)
    engines: dict[Start, int] = {}
    for process in found:
        if process.is_leader:
            engines.setdefault(process.marker.start, process.pid)
    return [p._replace(is_leader=engines.get(p.marker.start) == p.pid) for p in found]


def process_ids() -> list[int]:
    """Return the ids of all processes that there are now."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _marked(pid: int) -> MarkedProcess | None:
    """Read one process; it may end, or belong to somebody else, at any moment."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
        if VARIABLE.encode() not in environment:
            return None
        for pair in environment.split(b"\0"):
            name, _, value = pair.partition(b"=")
            if name == VARIABLE.encode():
                marker = parse_marker(value.decode(errors="replace"))
                if marker is not None:
                    return MarkedProcess(born(pid), pid, marker, os.getpgid(pid) == pid)
    except (OSError, ValueError):
        return None
    return None


def environment_of(pid: int) -> dict[str, str]:
    """Return what a process was started with; empty where it is gone or somebody else's."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (pair.decode(errors="replace").partition("=") for pair in raw.split(b"\0"))
    return {name: value for name, _, value in pairs}


def names_of(pids: Iterable[int]) -> dict[int, str]:
    """Return what the kernel calls these processes: at most 15 characters, no arguments."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            raw = (_PROC / str(pid) / "comm").read_bytes()
            found[pid] = visible(raw.decode(errors="replace").strip())
    return found


def born(pid: int) -> int:
    """Return when a process started, in clock ticks since boot. Raises `OSError` if it is gone."""
    return int(_stat(pid)[19])


def has_machines_ids() -> bool:
    """Return whether process ids here are the machine's own, as the driver of its cards tells them.

    In a container with a name space of its own a number means another process.
    """
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return True


def families(pids: Iterable[int]) -> set[int]:
    """Return these processes with everything that they started, as far as parents are told."""
    children: dict[int, list[int]] = {}
    for pid in process_ids():
        with suppress(OSError, IndexError, ValueError):
            children.setdefault(int(_stat(pid)[1]), []).append(pid)
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def _stat(pid: int) -> list[bytes]:
    """Return the fields after a process's name, which may hold anything: state, parent, group …"""
    return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


@contextmanager
def pidfd(pid: int) -> Iterator[int]:
    """Open a descriptor of a process for the block. Raises `ProcessLookupError` if it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def signal_marked(marker: Marker, number: signal.Signals, *, leader_only: bool = False) -> int:
    """Signal every process of one start; return how many there were."""
    count = 0
    for process in marked_processes(marker.agent):
        if process.marker.start != marker.start or (leader_only and not process.is_leader):
            continue
        with suppress(ProcessLookupError, PermissionError), pidfd(process.pid) as descriptor:
            again = _marked(process.pid)
            if again is not None and again.marker == process.marker:
                signal.pidfd_send_signal(descriptor, number)
                count += 1
    return count


def kill_marked(marker: Marker, deadline_seconds: float) -> frozenset[int]:
    """Kill every process of one start, wait for their ends, and return those that do not end.

    Each is waited for by its descriptor: a dying process has lost its environment, and with it
    the marker, before it lets go of its devices.
    """
    deadline = time.monotonic() + deadline_seconds
    looks_in_vain = 0
    while looks_in_vain < 2:  # a process that just becomes another program shows no marker
        killed, left = _kill_seen(marker, deadline)
        if left and time.monotonic() > deadline:
            return left
        looks_in_vain = 0 if killed else looks_in_vain + 1
        if not killed:
            time.sleep(_PAUSE_SECONDS)
    return frozenset()


def _kill_seen(marker: Marker, deadline: float) -> tuple[int, frozenset[int]]:
    """Kill the processes of a start that are there now, and wait for them.

    Return how many they were, and those that have not ended.
    """
    with ExitStack() as opened:
        killed = {}
        for process in marked_processes(marker.agent):
            if process.marker.start == marker.start:
                with suppress(ProcessLookupError):
                    killed[process.pid] = opened.enter_context(pidfd(process.pid))
        signal_marked(marker, signal.SIGKILL)
        ended = {p for p, fd in killed.items() if _has_ended(fd, deadline - time.monotonic())}
        return len(killed), frozenset(killed.keys() - ended)


def kill_group(child: int, deadline_seconds: float) -> bool:
    """Kill what is left of the group of a child that ended, and tell whether it is gone.

    Until the child is reaped its number is not given to anybody else. Of a process that is not
    our child that is not known: then nothing is done.
    """
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    deadline = time.monotonic() + deadline_seconds
    while _has_group(child):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _has_ended(descriptor: int, seconds: float) -> bool:
    """Wait for the end of a process for as long, and return whether it came."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _has_group(group: int) -> bool:
    for pid in process_ids():
        with suppress(OSError, IndexError, ValueError):
            state, _, of_group = _stat(pid)[:3]
            if int(of_group) == group and state not in (b"Z", b"X"):
                return True
    return False
