"""Shared memory of dead engines: theirs is removed, everybody else's stays."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.segments import drop, mapped

MAP = """
import mmap, sys, signal
keep = []
for path in sys.argv[1:]:
    file = open(path, "r+b" if __import__("os").path.exists(path) else "w+b")
    file.truncate(4096)
    keep.append(mmap.mmap(file.fileno(), 4096))
    keep[-1][0] = 1
print("mapped", flush=True)
signal.pause()
"""


@contextmanager
def mapping(*paths: Path) -> Iterator[int]:
    """Run a program that makes and maps these files."""
    words = [sys.executable, "-IS", "-c", MAP, *map(str, paths)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mapped\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def path() -> Iterator[Path]:
    """A name in /dev/shm as Python's shared memory gives them."""
    found = Path(f"/dev/shm/psm_{secrets.token_hex(4)}")
    if not os.access(found.parent, os.W_OK):
        pytest.skip("no shared memory here")
    yield found
    found.unlink(missing_ok=True)


def test_what_a_killed_engine_had_mapped_is_removed(path: Path) -> None:
    with mapping(path) as pid:
        segments = mapped([pid])
        assert [segment.path for segment in segments] == [str(path)]
    assert drop(segments) == [str(path)]
    assert not path.exists()


def test_what_another_process_still_uses_stays(path: Path) -> None:
    with mapping(path) as pid:
        segments = mapped([pid])
        with mapping(path):
            os.kill(pid, 9)
            assert drop(segments) == []
    assert path.exists()


def test_a_file_that_was_there_before_the_engine_is_not_its_own(path: Path) -> None:
    path.write_bytes(b"a" * 4096)
    os.utime(path, (1, 1))
    reading = MAP.replace("keep[-1][0] = 1", "").replace("file.truncate(4096)", "")
    words = [sys.executable, "-IS", "-c", reading, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert mapped([process.pid]) == frozenset()
        process.kill()


def test_a_name_that_means_another_file_by_now_is_left_alone(path: Path) -> None:
    with mapping(path) as pid:
        segments = mapped([pid])
        path.unlink()
        with mapping(path):
            assert drop(segments) == []
    assert path.exists()


def test_files_of_other_names_are_never_touched() -> None:
    model = Path(f"/dev/shm/model-{secrets.token_hex(4)}.gguf")
    try:
        with mapping(model) as pid:
            assert mapped([pid]) == frozenset()
    finally:
        model.unlink(missing_ok=True)


def test_processes_that_are_gone_have_mapped_nothing() -> None:
    assert mapped([2**22 - 1]) == frozenset()
    assert drop(frozenset()) == []
