"""Shared memory that dead engines left in /dev/shm: found while they live, dropped afterwards.

vLLM's workers hand each other tensors through segments of hundreds of megabytes; who is killed does
not remove them. Nothing in /dev/shm says whose it is, so only what a process of the engine had
mapped counts as the engine's, and only under the names that such libraries give; a file that was
there before the engine (a model, say) never does. `supervise` asks before it kills.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llmgw.processes import born, process_ids

_FOLDER = "/dev/shm/"  # noqa: S108 - this is where they are
_NAME = re.compile(r"psm_[0-9a-f]+|sem\.mp-[0-9a-z_]+|nccl-\w+|torch_[0-9]+_\w+|sglang_\w+")
_CLOCK_SECONDS = 1.0


class Segment(NamedTuple):
    """One file of shared memory: its name may be another file's tomorrow, with its inode not."""

    path: str
    inode: int


def mapped(pids: Iterable[int]) -> frozenset[Segment]:
    """Return the segments that these processes have mapped, as far as they made them themselves."""
    known = list(pids)
    seen = {segment for pid in known for segment in _maps(pid)}
    named = {x for x in seen if _NAME.fullmatch(x.path.removeprefix(_FOLDER))}
    since = min((at for pid in known if (at := _started(pid)) is not None), default=None)
    if since is None:
        return frozenset()
    return frozenset(segment for segment in named if _is_newer(segment, since))


def drop(segments: Iterable[Segment]) -> list[str]:
    """Remove those that are still there and that no living process has mapped; return which."""
    left = {segment for segment in segments if _is_there(segment)}
    if not left:
        return []
    for pid in process_ids():
        left -= _maps(pid)
    dropped = []
    for segment in left:
        with suppress(OSError):
            Path(segment.path).unlink()
            dropped.append(segment.path)
    return sorted(dropped)


def _maps(pid: int) -> set[Segment]:
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            place = line.find(_FOLDER.encode())
            if place < 0 or line.endswith(b" (deleted)"):
                continue
            inode = int(line.split(maxsplit=5)[4])
            found.add(Segment(line[place:].decode(errors="replace"), inode))
    return found


def _started(pid: int) -> float | None:
    """Return when a process started, in seconds since 1970."""
    try:
        ticks = born(pid)
        lines = Path("/proc/stat").read_text().splitlines()
    except (OSError, IndexError, ValueError):
        return None
    booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def _is_newer(segment: Segment, since: float) -> bool:
    try:
        return Path(segment.path).stat().st_mtime >= since - _CLOCK_SECONDS
    except OSError:
        return False


def _is_there(segment: Segment) -> bool:
    try:
        return Path(segment.path).stat().st_ino == segment.inode
    except OSError:
        return False
