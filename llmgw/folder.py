"""The data folder: made, checked for writing, and held by one process at a time.

Used by `llmgw up` and by the agent before they touch anything in it. The lock is the kernel's
(`flock`), so it ends with its holder, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgw.errors import DataFolderError

LOCK_FILE = "lock"


@contextmanager
def held(folder: Path, what: str) -> Iterator[Path]:
    """Make `folder` if need be and hold it until the block ends.

    `what` names the holder in the message that the next one gets. Raises `DataFolderError` when
    the folder cannot be made or written, when the disk is full, or when another process holds it.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        _lock(descriptor, folder, what)
        yield folder
    finally:
        os.close(descriptor)


def holder(folder: Path) -> int | None:
    """Return the id of the process that holds `folder`, or `None` when none does.

    Raises `DataFolderError` when this user may not even look.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        pid = os.pread(descriptor, 200, 0).decode(errors="replace").removeprefix("pid ").strip()
        if not pid.isdecimal() or not Path("/proc", pid).exists():
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(pid)
        return None  # the number is another process's by now
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, what: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
        raise DataFolderError(
            f"{folder} is in use by another {what} ({holder}); stop that one first, or give "
            "this one another folder with --data"
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        os.fsync(descriptor)
    except OSError as error:
        raise unusable(folder, error) from error


def unusable(folder: Path, error: OSError) -> DataFolderError:
    """Return the error that says why the folder cannot be used and what to do."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        why = "a file is in its place or above it"
    return DataFolderError(
        f"cannot use the data folder {folder}: {why}. Make room or choose a folder that this "
        "user may write to, with --data or LLMGW_DATA"
    )
