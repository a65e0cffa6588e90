"""Reading a file that somebody named: at once, or not at all.

A pipe is waited for until somebody writes into it, and a device may never end: what is no regular
file is refused before it is read. Every file that a person, a setting or a folder names to the
command line is read through here; what llmgw keeps for itself is not.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NoRegularFile(OSError):
    """What is there under this name is a pipe, a device or a socket."""


def read_regular(path: Path, most_bytes: int | None = None) -> bytes:
    """Return what a regular file holds, or the first `most_bytes` of it.

    Raises `NoRegularFile`, and whatever else of `OSError` keeps it from being read; its `strerror`
    says what.
    """
    # A pipe is opened without waiting for a writer, and a terminal without becoming ours.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise NoRegularFile(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:  # of a folder it says that
            return file.read(-1 if most_bytes is None else most_bytes)
    finally:
        os.close(descriptor)
