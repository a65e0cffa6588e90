"""How far an engine is that loads its model: the bytes that it has read, of those that there are.

Told by the kernel's own counters of its processes, which cost the engine nothing to be read. They
say what was read or mapped of any file, its programs and libraries included, so that a small model
looks further than it is; never more than the weights, where their size is known. What is not told
is absent. Blocking file work, for threads; `supervise` calls it. Linux only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llmgw.core.stimuli import Start

_PROC = Path("/proc")
_SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt")
"""Files of weights in a folder: the first kind that is there, since others hold the same again."""


class Loaded(NamedTuple):
    """What an engine has read so far, and how much its weights are, where that is known."""

    read_bytes: int
    weights_bytes: int | None


class Loading:
    """What engines that come up have read: the most that was seen, since they let go of files."""

    def __init__(self) -> None:
        self._most: dict[Start, int] = {}

    def measure(self, start: Start, pids: Iterable[int], source: str) -> Loaded | None:
        """Return how far the engine with these processes is; `None`: nothing is told of them."""
        told = [size for pid in pids if (size := read_by(pid)) is not None]
        if not told:
            return None
        most = self._most[start] = max(sum(told), self._most.get(start, 0))
        weights = weights_bytes(source)
        return Loaded(most if weights is None else min(most, weights), weights)

    def forget(self, start: Start) -> None:
        """Keep nothing of an engine that has ended."""
        self._most.pop(start, None)


def read_by(pid: int) -> int | None:
    """Return the bytes of files that a process has read, or has in memory as its own mapping.

    From /proc/PID/io (`rchar`; `read_bytes`, what had to be fetched for it, by whichever way) and
    /proc/PID/status (`RssFile`).
    """
    folder = _PROC / str(pid)
    try:
        io = _numbers((folder / "io").read_text())
        status = _numbers((folder / "status").read_text())
    except OSError:
        return None
    return max(io.get("read_bytes", 0), io.get("rchar", 0) + 1024 * status.get("RssFile", 0))


def weights_bytes(source: str | None) -> int | None:
    """Return the size of a model's files of weights; `None` where they are not on this machine."""
    if source is None or not source.startswith("/"):
        return None
    sizes = []
    with suppress(OSError):
        sizes = [file.stat().st_size for file in _files(Path(source))]
    return sum(sizes) or None


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        split = _SPLIT.fullmatch(path.name)
        return sorted(path.parent.glob(f"{split[1]}-*-of-{split[2]}.gguf")) if split else [path]
    found = ([*path.glob(pattern)] for pattern in _WEIGHTS)
    return next((files for files in found if files), [])


def _numbers(text: str) -> dict[str, int]:
    """Read lines of `name: number`, with or without a unit behind it."""
    pairs = (line.partition(":") for line in text.splitlines())
    words = ((name, value.split()) for name, _, value in pairs)
    return {name: int(value[0]) for name, value in words if value and value[0].isdecimal()}
