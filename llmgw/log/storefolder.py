"""The folder in which the embedded nats-server lives: its lock, files and last words.

All functions here are plain blocking file work; `embedded` calls them in threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from llmgw.errors import DataFolderError

RESERVE_BYTES = 16 * 1024 * 1024
_DYING_SECONDS = 15.0
_TAIL_BYTES = 16 * 1024
_TAIL_LINES = 12
_LOOK_BYTES = 1024 * 1024
_FULL = re.compile(
    rb"(?:failed to store a msg|write error)[^\n]*(?:no space left on device|disk quota exceeded)"
)


class _Owner(msgspec.Struct):
    """Who holds the folder: the llmgw process and its server (0: none yet)."""

    parent_pid: int
    server_pid: int


class _Ports(msgspec.Struct):
    """The file in which nats-server says where it listens."""

    nats: list[str] = []


class StoreFolder:
    """One server's folder. `acquire` before anything else; the lock outlives a killed parent.

    `room` tells how many bytes are free for this user on a folder's disk.
    """

    def __init__(self, path: Path, room: Callable[[Path], int] | None = None) -> None:
        self.path = path.absolute()
        self.config_file = self.path / "nats.conf"
        self.log_file = self.path / "server.log"
        self._output_file = self.path / "server.out"
        self._lock: IO[str] | None = None
        self._log_start = 0
        self._looked_to = 0
        self._room = room or _free_bytes
        self._ran_out = False
        self._limit_bytes = 0

    @property
    def lock_descriptor(self) -> int:
        """The descriptor to hand to the server, so that it holds the lock too."""
        if self._lock is None:
            raise DataFolderError(f"{self.path} was not acquired")
        return self._lock.fileno()

    def acquire(self) -> None:
        """Make the folder and take its lock, or raise `DataFolderError` that names the holder.

        nats-server itself lets two servers write to one store, which ruins it. A server whose
        parent was killed is given time to end; one whose parent lives is not waited for.
        """
        with self._named_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+", encoding="utf-8")
        deadline = time.monotonic() + _DYING_SECONDS
        while not _try_lock(lock):
            owner = _read_owner(lock)
            if owner is None or _alive(owner.parent_pid) or time.monotonic() > deadline:
                lock.close()
                held_by = f" (pid {owner.parent_pid})" if owner else ""
                raise DataFolderError(
                    f"{self.path} is in use by another llmgw{held_by}: "
                    "stop that one, or choose another data folder"
                )
            time.sleep(0.05)
        self._lock = lock
        self.note_owner(0)

    def release(self) -> None:
        """Let go of the lock. Safe to call twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def note_owner(self, server_pid: int) -> None:
        """Write down who holds the folder, for the message that a second llmgw gives."""
        if self._lock is None:
            return
        with self._named_errors():
            self._lock.truncate(0)
            self._lock.write(msgspec.json.encode(_Owner(os.getpid(), server_pid)).decode())
            self._lock.flush()

    def most_store_bytes(self) -> int:
        """Return how large the store may become: what it has, and all that is free but a reserve.

        Raises `DataFolderError` when not even the reserve is left.
        """
        with self._named_errors():
            free_bytes = self._room(self.path)
            if free_bytes < RESERVE_BYTES:
                raise DataFolderError(
                    f"{self.path} has {free_bytes // 1024} KiB free; the log needs at least "
                    f"{RESERVE_BYTES // 1024 // 1024} MiB: make room, or choose another folder"
                )
            self._limit_bytes = free_bytes - RESERVE_BYTES + self._stored_bytes()
            return self._limit_bytes

    def ailment(self) -> str | None:
        """Return why a server that runs must be started again, or `None` if it need not be.

        Once a write has failed for want of space, nats-server stores nothing more in that stream,
        however much room there is later; and the limit that it was started with stays what it was.
        """
        with contextlib.suppress(OSError):
            self._ran_out = self._ran_out or self._says_full()
            free_bytes = self._room(self.path)
            if self._ran_out and free_bytes >= RESERVE_BYTES:
                return "it ran out of space, and there is room again"
            room_bytes = free_bytes - RESERVE_BYTES
            if room_bytes > RESERVE_BYTES:
                left_bytes = self._limit_bytes - self._stored_bytes()
                if left_bytes < RESERVE_BYTES < room_bytes - left_bytes:
                    return "its log has come near the limit that it was started with"
        return None

    def _stored_bytes(self) -> int:
        files = (file for file in self.path.rglob("*") if file.is_file())
        return sum(file.stat().st_size for file in files)

    def _says_full(self) -> bool:
        """Whether the server wrote into its log, since the last look, that its disk is full.

        It tries again with each message, so what it could not write down then is said later.
        """
        with self.log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._looked_to if self._looked_to <= size else 0, size - _LOOK_BYTES))
            found = _FULL.search(file.read()) is not None
            self._looked_to = file.tell()
        return found

    def clear(self) -> None:
        """Remove what an earlier server left, and remember where its log ends."""
        with self._named_errors():
            for stale in self.path.glob("*.ports"):
                stale.unlink()
            self._output_file.write_bytes(b"")
            self.log_file.touch()
            self._log_start = self._looked_to = self.log_file.stat().st_size
            self._ran_out = False

    def write_config(self, config: str) -> None:
        """Write the server's configuration."""
        with self._named_errors():
            self.config_file.write_text(config, encoding="utf-8")

    @contextlib.contextmanager
    def output(self) -> Iterator[IO[bytes]]:
        """Open the file that takes what the server prints before its own log is open."""
        with self._named_errors():
            file = self._output_file.open("ab")
        with file:
            yield file

    def read_port(self, pid: int) -> int | None:
        """Return the port that the server with this pid has written down, if it has yet."""
        for file in self.path.glob(f"*_{pid}.ports"):
            with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
                for url in msgspec.json.decode(file.read_bytes(), type=_Ports).nats:
                    return int(url.rpartition(":")[2])
        return None

    def last_lines(self) -> list[str]:
        """Return what the server wrote last since `clear`, the newest at the end."""
        lines: list[str] = []
        for file, start in ((self.log_file, self._log_start), (self._output_file, 0)):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                # A log that was rotated meanwhile is shorter than where it began.
                opened.seek(max(start if start <= size else 0, size - _TAIL_BYTES))
                lines += opened.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-_TAIL_LINES:]

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            raise DataFolderError(_explain(self.path, failure)) from failure


def _free_bytes(path: Path) -> int:
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def _explain(path: Path, failure: OSError) -> str:
    match failure.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space is left for the log in {path}: make room, or choose another folder"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"the data folder {path} is not writable for this user: choose another"
        case errno.EEXIST | errno.ENOTDIR:
            return f"{failure.filename or path} is a file where a folder is needed: choose another"
    return f"the data folder {path} cannot be used: {failure}"


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_owner(file: IO[str]) -> _Owner | None:
    file.seek(0)
    try:
        return msgspec.json.decode(file.read(), type=_Owner)
    except msgspec.DecodeError:
        return None  # The holder is just writing it, or its disk was full.


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
