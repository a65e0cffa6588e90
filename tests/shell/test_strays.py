"""Children of engines that shed their marker and left their session end with their engine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.core import stimuli as s
from llmgw.processes import VARIABLE
from llmgw.strays import Stray, Strays, descendants, end, living, writers
from tests.shell.test_supervise import (
    Watched,
    assert_the_next_ends_what_is_left,
    assignment,
    programs,
    supervising,
)
from tests.support.cluster import Programs, pretended
from tests.support.nats import is_running
from tests.support.wait import until, until_sync

__all__ = ["programs"]

WAIT = "import signal; signal.pause()"
PARENT = (
    "import subprocess, sys, signal; "
    f"subprocess.Popen([sys.executable, '-IS', '-c', {WAIT!r}], start_new_session=True); "
    "signal.pause()"
)


@contextlib.contextmanager
def running(script: str = WAIT, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-IS", "-c", script]
    with subprocess.Popen(words, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


async def with_child(watched: Watched, child: str) -> tuple[s.Start, int]:
    """Start an engine with such a child, and return its process id once it was looked at."""
    entry = pretended(watched.programs, "m", f"child={child}")
    start = await watched.spawn(entry)
    pid = (await watched.report(s.EngineSpawned, start)).pid
    await watched.health(start, entry, 200)
    await until(watched.children, what="the engine has a child")
    del watched.reports[:]
    probe = s.ProbeEngine(start, assignment(entry), watched.port, look=True)
    await watched.supervisor.carry_out(probe)
    await watched.report(s.EngineAnswered, start)
    return start, pid


@pytest.mark.parametrize("child", ["lost", "mute"])
async def test_they_are_gone_before_the_end_of_their_engine_is_reported(
    programs: Programs, child: str
) -> None:
    async with supervising(programs) as watched:
        start, pid = await with_child(watched, child)
        os.kill(pid, signal.SIGKILL)
        await watched.report(s.EngineExited, start)
        assert watched.children() == []


async def test_they_end_with_an_engine_that_is_stopped(programs: Programs) -> None:
    async with supervising(programs) as watched:
        start, _ = await with_child(watched, "mute")
        await watched.stop(start)
        await watched.report(s.EngineExited, start)
        assert watched.children() == []


async def test_their_device_memory_is_their_engine_s(programs: Programs) -> None:
    async with supervising(programs) as watched:
        start, pid = await with_child(watched, "lost")
        own = {pid: start, **dict.fromkeys(watched.children(), start)}
        assert await watched.supervisor.own_pids() == own
        assert await watched.supervisor.own_pids(frozenset({*own, os.getpid()})) == own


async def test_they_are_ended_by_the_next_agent_if_their_engine_is_gone(
    programs: Programs,
) -> None:
    async with supervising(programs) as first:
        start, pid = await with_child(first, "lost")
    await assert_the_next_ends_what_is_left(programs, start, pid)


async def test_they_live_on_with_an_engine_that_is_adopted(programs: Programs) -> None:
    async with supervising(programs) as first:
        start, pid = await with_child(first, "lost")
    async with supervising(programs) as second:
        [found] = await second.supervisor.find({start: pid})
        assert (found.start, found.pid) == (start, pid)
        assert len(second.children()) == 1


def test_who_reads_a_file_of_output_is_not_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "r1-0-g1-a1.log"
    path.touch()
    with (
        path.open("rb") as read,
        path.open("ab") as write,
        running(stdin=read),
        running(stderr=write) as writer,
        running(stdout=write, env={VARIABLE: "cafe:r1:0:1:1:1:1"}),
    ):
        assert writers(tmp_path) == {writer.pid: path.name}
        path.unlink()
        assert writers(tmp_path) == {writer.pid: path.name}
        assert writers(tmp_path, {os.getpid()}) == {}


def test_a_number_that_is_another_process_by_now_is_left_alone() -> None:
    with running() as process:
        [stray] = descendants([process.pid])
        earlier = Stray(stray.pid, stray.born - 1)
        assert living([earlier]) == frozenset()
        assert end(lambda: frozenset({earlier}), 5.0) == frozenset()
        assert process.poll() is None
        assert end(lambda: frozenset({stray}), 5.0) == frozenset()
        assert process.wait() == -signal.SIGKILL


def test_what_descends_from_them_ends_too() -> None:
    with running(PARENT) as process:
        until_sync(lambda: len(descendants([process.pid])) == 2, what="it has a child")
        [child] = (x for x in descendants([process.pid]) if x.pid != process.pid)
        [stray] = (x for x in descendants([process.pid]) if x.pid == process.pid)
        end(lambda: frozenset({stray}), 5.0)
        assert not is_running(child.pid)


def test_what_two_looks_at_one_time_have_seen_all_ends(tmp_path: Path) -> None:
    strays = Strays(tmp_path)
    with running() as first, running() as second:
        other = threading.Thread(target=strays.see, args=("r1-0-g1-a1", [second.pid]))

        def in_the_middle_of_a_look() -> Iterator[int]:
            other.start()
            until_sync(
                lambda: not other.is_alive() or strays._turn.locked(),
                what="the other look is over, or has to wait",
            )
            yield first.pid

        strays.see("r1-0-g1-a1", in_the_middle_of_a_look())
        other.join()
        assert strays.end("r1-0-g1-a1", 5.0) == frozenset()
        assert (first.poll(), second.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
