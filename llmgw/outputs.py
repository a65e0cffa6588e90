"""Files that take what programs print: never larger than they may be, and read from their end.

A program that runs for months must not fill the disk with what it says. Its file cannot be renamed
away, since the program holds it open and goes on writing into it. So what a file holds is copied
to a second one and the file is cut to nothing; opened for appending, its writer goes on at the new
end. Nothing has to run for the program to be able to write: while llmgw is away the file grows,
and it is cut when llmgw is back. Blocking file work; callers use threads.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

MOST_BYTES = 16 * 1024 * 1024
MOST_FOLDER_BYTES = 1024 * 1024 * 1024
LOOK_SECONDS = 2.0
"""How often somebody should look at the files of what runs."""
_TELLING_LINES = 12
_TELLS = re.compile(r"\b\w*(?:Error|Exception): \S|(?i:\berror: |\bout of memory\b|\bfatal\b)")
_HARMLESS = re.compile(r"\b(?:WARNING|WARN|INFO|DEBUG)\b")


def limit(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Cut a file that has grown too large, keeping its last part beside it; return whether it was.

    What is written between the copy and the cut is lost: a few lines at most. On a full disk there
    is no copy, and the cut is what makes room.
    """
    size = _size(path)
    if size <= most_bytes:
        return False
    part = path.with_name(f"{path.name}.new")
    try:
        with path.open("rb") as source, part.open("wb") as target:
            source.seek(size - most_bytes)
            shutil.copyfileobj(source, target)
        part.chmod(path.stat().st_mode)
        part.replace(earlier(path))
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


def limit_folder(
    folder: Path,
    in_use: Callable[[], set[str]],
    *,
    most_bytes: int = MOST_BYTES,
    most_folder_bytes: int = MOST_FOLDER_BYTES,
) -> None:
    """Cut every `*.log` in a folder, and drop the oldest files while all together are too much.

    `in_use` tells the names of those that somebody writes to; it is asked only if it matters.
    """
    logs = [*folder.glob("*.log")]
    for path in logs:
        with contextlib.suppress(OSError):
            limit(path, most_bytes)
    sizes = {path: _size(path) + _size(earlier(path)) for path in logs}
    excess = sum(sizes.values()) - most_folder_bytes
    if excess <= 0:
        return
    kept = in_use()
    for path in sorted((p for p in logs if p.name not in kept), key=_age):
        if excess > 0:
            excess -= sizes[path]
            drop(path)


def drop(path: Path) -> None:
    """Remove a file and what was kept of it earlier."""
    path.unlink(missing_ok=True)
    earlier(path).unlink(missing_ok=True)


def earlier(path: Path) -> Path:
    """Return where the last part of a file is kept that was cut."""
    return path.with_name(f"{path.name}.1")


def tail(path: Path, most_bytes: int) -> tuple[bytes, bool]:
    """Return the end of what was written, and whether there was more before it.

    What was kept when the file was cut counts. Empty when there is no file.
    """
    end, more = _end_of(path, most_bytes)
    if more or not earlier(path).exists():
        return end, more
    before, more = _end_of(earlier(path), most_bytes - len(end))
    return before + end, more


def telling(lines: Iterable[str]) -> list[str]:
    """Return the last lines that name an error, each error once, where it was named first."""
    found: dict[str, str] = {}
    for line in lines:
        if _TELLS.search(line) and not _HARMLESS.search(line):
            found.setdefault(line.rpartition("] ")[2], line)
    return list(found.values())[-_TELLING_LINES:]


def _end_of(path: Path, most_bytes: int) -> tuple[bytes, bool]:
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - most_bytes)
            file.seek(start)
            return file.read(most_bytes), start > 0
    except OSError:
        return b"", False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
