"""Engine processes as the kernel shows them: found by their marker, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.stimuli import Key, Start
from llmgw.processes import (
    VARIABLE,
    Marker,
    kill_marked,
    marked_processes,
    parse_marker,
    signal_marked,
)
from tests.support.wait import until_sync

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
PAUSE = "import signal; signal.pause()"


def marker(agent: str, attempt: int = 1) -> Marker:
    return Marker(agent, Start(Key("r1", 0), 1, attempt), 18100, 7)


@contextmanager
def running(environment: dict[str, str] | None = None, script: str = PAUSE) -> Iterator[int]:
    """Run a Python script in a session of its own, and end it with its session."""
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", script],
        env=os.environ | (environment or {}),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@given(
    st.text("abcdef0123456789", min_size=1),
    st.from_regex(r"[A-Za-z0-9_-]{1,63}", fullmatch=True),
    st.tuples(*[st.integers(0, 2**53)] * 5),
)
def test_a_marker_reads_back_as_it_was_written(
    agent: str, replica: str, numbers: tuple[int, ...]
) -> None:
    part, generation, attempt, port, digest = numbers
    written = Marker(agent, Start(Key(replica, part), generation, attempt), port, digest)
    assert parse_marker(written.text()) == written


def test_a_marker_of_a_newer_version_is_ours_as_well() -> None:
    written = marker("abc")
    assert parse_marker(f"{written.text()}:something:new") == written


@pytest.mark.parametrize("text", ["", "a:r1:0:1:1:18100", "a:r1:x:1:1:1:1", "a:b:c:d:e:f:g:h"])
def test_what_is_no_marker_is_not_taken_for_one(text: str) -> None:
    assert parse_marker(text) is None


def test_an_agent_finds_its_engines_and_nobody_elses() -> None:
    mine, other = marker("aaaa"), marker("bbbb")
    with running({VARIABLE: mine.text()}) as pid, running({VARIABLE: other.text()}), running():
        found = until_sync(lambda: marked_processes("aaaa"), what="the engine is seen")
        assert [(p.pid, p.marker, p.is_leader) for p in found] == [(pid, mine, True)]


def test_a_child_in_a_session_of_its_own_is_found_and_is_not_the_engine() -> None:
    script = f"""
import subprocess, sys, signal
subprocess.Popen([sys.executable, "-IS", "-c", {PAUSE!r}], start_new_session=True)
signal.pause()
"""
    mark = marker("cccc")
    with running({VARIABLE: mark.text()}, script) as pid:
        until_sync(lambda: len(marked_processes("cccc")) == 2, what="engine and child are seen")
        found = marked_processes("cccc")
        assert [p.is_leader for p in found] == [p.pid == pid for p in found]
        assert signal_marked(mark, signal.SIGKILL, leader_only=True) == 1
        assert not kill_marked(mark, 10)
    assert not marked_processes("cccc")


def test_another_start_of_the_same_part_is_left_alone() -> None:
    first, second = marker("dddd", attempt=1), marker("dddd", attempt=2)
    with running({VARIABLE: second.text()}) as pid:
        until_sync(lambda: marked_processes("dddd"), what="the engine is seen")
        assert signal_marked(first, signal.SIGKILL) == 0
        assert [p.pid for p in marked_processes("dddd")] == [pid]


def test_a_pid_that_went_to_another_program_is_never_signalled() -> None:
    mark = marker("eeee")
    with running({VARIABLE: mark.text()}) as engine:
        until_sync(lambda: marked_processes("eeee"), what="the engine is seen")
    try:
        LAST_PID.write_text(str(engine - 1))
    except OSError as error:
        pytest.skip(f"this user cannot choose the next process id: {error}")
    with running() as foreign:
        if foreign != engine:
            pytest.skip("somebody else was given that process id first")
        assert signal_marked(mark, signal.SIGKILL) == 0
        os.kill(foreign, 0)
