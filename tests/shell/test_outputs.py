"""Files that take output: cut while they are written to, without their writers' knowing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.outputs import drop, earlier, limit, limit_folder, tail
from llmgw.supervise import last_output


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A file that a program writes to, opened as the output of an engine is, and its descriptor."""
    path = tmp_path / "r1-0-g1-a1.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    yield path, descriptor
    os.close(descriptor)


def test_a_file_that_grew_too_large_is_cut_and_its_writer_goes_on(
    written: tuple[Path, int],
) -> None:
    path, writer = written
    os.write(writer, b"old " * 100)
    assert not limit(path, 400)
    os.write(writer, b"recent")
    assert limit(path, 100)
    os.write(writer, b"new")
    assert path.read_bytes() == b"new"
    assert earlier(path).read_bytes() == (b"old " * 100 + b"recent")[-100:]
    assert earlier(path).stat().st_mode == path.stat().st_mode
    assert tail(path, 5) == (b"ntnew", True)
    assert tail(path, 1000) == ((b"old " * 100 + b"recent")[-100:] + b"new", False)


def test_the_last_words_of_an_engine_outlive_the_cut(written: tuple[Path, int]) -> None:
    path, writer = written
    os.write(writer, b"loading\n" * 10 + b"CUDA out of memory\n")
    assert limit(path, 50)
    assert last_output(path).endswith("CUDA out of memory")


def test_errors_far_above_the_last_lines_are_among_the_last_words(
    written: tuple[Path, int],
) -> None:
    """As of vLLM: its worker says what is wrong, and its other processes that one of them ended."""
    path, writer = written
    prefix = "(Worker pid=1) ERROR 12-02 05:36:31 [multiproc_executor.py:953] "
    cause = "RuntimeError: Cannot find any model weights"
    os.write(writer, b"WARNING limits cause errors like `OSError: [Errno 24]`\n")
    for name in ("Worker", "EngineCore"):
        os.write(writer, f"{prefix.replace('Worker', name)}{cause}\n".encode())
        os.write(writer, b"  File somewhere\n" * 100)
    os.write(writer, b"RuntimeError: initialization failed")
    said = last_output(path).splitlines()
    assert said[:2] == [f"{prefix}{cause}", "…"]
    assert said[-1] == "RuntimeError: initialization failed"
    assert len(said) == 42


def test_where_nothing_can_be_kept_the_file_is_cut_all_the_same(
    written: tuple[Path, int],
) -> None:
    path, writer = written
    path.with_name(f"{path.name}.new").mkdir()  # as little can be written there as on a full disk
    os.write(writer, bytes(1000))
    assert limit(path, 100)
    assert path.stat().st_size == 0
    assert not earlier(path).exists()


def test_of_a_folder_the_oldest_that_nobody_writes_to_goes_first(tmp_path: Path) -> None:
    names = [f"r{number}-0-g1-a1.log" for number in range(6)]
    for place, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (place, place))
    (tmp_path / "notes.txt").write_bytes(bytes(1000))
    earlier(tmp_path / names[1]).write_bytes(bytes(100))
    limit_folder(tmp_path, lambda: {names[0]}, most_bytes=200, most_folder_bytes=400)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["notes.txt", names[0], *names[3:]]


def test_nobody_is_asked_what_is_in_use_while_there_is_room(tmp_path: Path) -> None:
    def in_use() -> set[str]:
        raise AssertionError("it was asked")

    (tmp_path / "a.log").write_bytes(bytes(100))
    limit_folder(tmp_path, in_use, most_folder_bytes=100)
    limit_folder(tmp_path / "not there", in_use)
    assert (tmp_path / "a.log").exists()


def test_a_file_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "none.log"
    assert not limit(path)
    assert tail(path, 10) == (b"", False)
    drop(path)
