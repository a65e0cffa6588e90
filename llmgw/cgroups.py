"""A control group for each engine, where this agent was given a tree of its own to make them in.

Then whatever an engine starts stays in its group, also what left its session and threw away its
environment, and the kernel ends all of it at once. systemd gives a service such a tree with
`Delegate=yes`; nobody else's is ever touched. Where there is none, the marker in the environment
alone tells an engine's processes (see `processes`), as it does beside the groups. cgroup v2 only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

_DELEGATED = ("user.delegate", "trusted.delegate")
"""With these attributes systemd marks a tree that it has given away."""
_PAUSE_SECONDS = 0.02


def given(proc: Path = Path("/proc/self")) -> Path | None:
    """Return the tree that this process was given to make groups in, if it was given one."""
    try:
        mounts = (proc / "mountinfo").read_text()
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    for root, mount in _mounted(mounts):
        if own != "/" and Path(own).is_relative_to(root):
            path = Path(mount, Path(own).relative_to(root))
            if _is_delegated(path) and os.access(path, os.W_OK) and (path / "cgroup.kill").exists():
                return path
    return None


def _mounted(text: str) -> Iterator[tuple[str, str]]:
    """Yield root and place of each cgroup v2 in a mount table."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if after.startswith("cgroup2 ") and len(words) > 4:
            yield words[3], words[4].replace("\\040", " ")


def _is_delegated(path: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


class Groups:
    """The groups of one agent's engines, below the tree that it was given, if it was given one.

    All of it is blocking file work; callers use threads. `find_tree` is for tests.
    """

    def __init__(self, agent: str, find_tree: Callable[[], Path | None] = given) -> None:
        self._prefix = f"llmgw-{agent}-"
        self._find_tree = find_tree

    @cached_property
    def _tree(self) -> Path | None:
        return self._find_tree()

    def put(self, name: str, pid: int) -> bool:
        """Put a process into the group of this name, made now; return whether it is there."""
        if self._tree is None:
            return False
        group = self._group(name)
        try:
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def names(self) -> list[str]:
        """Return the names of all groups that are there."""
        if self._tree is None:
            return []
        found = self._tree.glob(f"{self._prefix}*")
        return [path.name.removeprefix(self._prefix) for path in found]

    def pids(self, name: str) -> frozenset[int]:
        """Return the processes in a group; none where there is no such group."""
        if self._tree is None:
            return frozenset()
        try:
            return frozenset(map(int, (self._group(name) / "cgroup.procs").read_text().split()))
        except (OSError, ValueError):
            return frozenset()

    def kill(self, name: str) -> None:
        """Have the kernel kill everything in a group."""
        if self._tree is not None:
            with suppress(OSError):
                (self._group(name) / "cgroup.kill").write_text("1")

    def end(self, name: str, deadline_seconds: float) -> frozenset[int]:
        """Kill everything in a group, wait for its end, remove it; return what cannot be killed."""
        if self._tree is None:
            return frozenset()
        self.kill(name)
        deadline = time.monotonic() + deadline_seconds
        while left := self.pids(name):
            if time.monotonic() > deadline:
                return left
            time.sleep(_PAUSE_SECONDS)
        with suppress(OSError):
            self._group(name).rmdir()
        return frozenset()

    def _group(self, name: str) -> Path:
        assert self._tree is not None
        return self._tree / f"{self._prefix}{name}"
