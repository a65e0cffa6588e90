"""The supervisor with real processes: it starts, watches, ends and reports whole engines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.memory import digest
from llmgw.engines.base import Grant
from llmgw.errors import EngineUnavailable
from llmgw.settings import Settings
from llmgw.supervise import Supervisor, last_output, log_name, read_secret
from tests.support.cluster import Programs, pretended
from tests.support.nats import is_running
from tests.support.wait import until

AGENT = "cafe0001"
CPU = (Grant("cpu-n1", "cpu"),)

F = TypeVar("F", bound=s.Input)


class Watched:
    """A supervisor, what it reported, and a way to wait for it."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.reports: list[s.Input] = []
        self.supervisor: Supervisor
        self.port = programs.ports[0]

    async def spawn(self, entry: Entry, attempt: int = 1) -> s.Start:
        start = s.Start(s.Key("r1", 0), 1, attempt)
        await self.supervisor.carry_out(s.SpawnEngine(start, assignment(entry), self.port))
        return start

    async def stop(self, start: s.Start, how: str = "TERM") -> None:
        await self.supervisor.carry_out(s.StopEngine(start, 0, how))  # type: ignore[arg-type]

    async def report(self, kind: type[F], start: s.Start) -> F:
        """Wait for a report of this kind on this start."""

        def found() -> list[F]:
            of_kind = [report for report in self.reports if isinstance(report, kind)]
            return [report for report in of_kind if getattr(report, "start", None) == start]

        return (await until(found, 15, f"{kind.__name__} of {start}"))[0]

    async def health(self, start: s.Start, entry: Entry, status: int | None) -> None:
        """Probe until the engine answers so."""

        async def answered() -> bool:
            del self.reports[:]
            await self.supervisor.carry_out(s.ProbeEngine(start, assignment(entry), self.port))
            return (await self.report(s.EngineAnswered, start)).status == status

        done: bool = await until(answered, 15, f"the engine answers {status}")
        assert done

    def children(self) -> list[int]:
        """Return the processes that engines say they started, as far as they live."""
        path = self.programs.journal / "children"
        pids = [int(line) for line in path.read_text().split()] if path.exists() else []
        return [pid for pid in pids if is_running(pid)]


def assignment(entry: Entry) -> Assignment:
    return Assignment(replica="r1", generation=1, entry=entry, devices=(0,), grants=CPU)


@contextlib.asynccontextmanager
async def supervising(programs: Programs, agent: str = AGENT) -> AsyncIterator[Watched]:
    """Run a supervisor; what it started lives on when the block ends, as with an agent."""
    settings = Settings(node="n1", data=programs.folder)
    watched = Watched(programs)
    async with anyio.create_task_group() as tasks:
        watched.supervisor = Supervisor(
            agent,
            programs.folder / "engines",
            "127.0.0.1",
            settings,
            tasks,
            watched.reports.append,
        )
        try:
            yield watched
        finally:
            tasks.cancel_scope.cancel()
            await watched.supervisor.close()


async def assert_the_next_ends_what_is_left(programs: Programs, start: s.Start, pid: int) -> None:
    """Kill an engine's own process, and fail unless the next agent ends the others."""
    os.kill(pid, signal.SIGKILL)
    await until(lambda: os.waitpid(pid, os.WNOHANG)[0], what="the engine's own process is gone")
    async with supervising(programs) as second:
        assert second.children() != []
        assert await second.supervisor.find({start: pid}) == ()
        assert second.children() == []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    monkeypatch.setenv("CLUSTER_UNDER_TEST", str(tmp_path))
    own = Programs(tmp_path)
    yield own
    pids = own.tree()
    own.end_all()
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    own.assert_never_doubled()


async def test_an_engine_is_started_asked_and_stopped_with_its_children(
    programs: Programs,
) -> None:
    entry = pretended(programs, "m", "child=group")
    async with supervising(programs) as watched:
        start = await watched.spawn(entry)
        pid = (await watched.report(s.EngineSpawned, start)).pid
        await watched.health(start, entry, 200)
        assert os.getsid(pid) == pid, "it would die with its agent"
        assert set(await watched.supervisor.own_pids()) == {pid, *watched.children()}

        await watched.stop(start)
        ended = await watched.report(s.EngineExited, start)
        assert (ended.exit_code, ended.signal) == (None, signal.SIGTERM)
        assert watched.children() == []


@pytest.mark.parametrize("child", ["group", "session", "bare"])
async def test_children_are_gone_before_the_end_of_their_engine_is_reported(
    programs: Programs, child: str
) -> None:
    entry = pretended(programs, "m", f"child={child}")
    async with supervising(programs) as watched:
        start = await watched.spawn(entry)
        pid = (await watched.report(s.EngineSpawned, start)).pid
        await until(watched.children, what="the engine has a child")
        os.kill(pid, signal.SIGKILL)
        ended = await watched.report(s.EngineExited, start)
        assert ended.signal == signal.SIGKILL
        assert watched.children() == []


async def test_an_engine_that_exits_at_once_says_why(programs: Programs) -> None:
    say = "loading\napi_key=sk-12345 is wrong\nCUDA out of memory"
    async with supervising(programs) as watched:
        start = await watched.spawn(pretended(programs, "m", f"say={say}", "exit=3"))
        ended = await watched.report(s.EngineExited, start)
        assert (ended.exit_code, ended.signal) == (3, None)
        assert ended.output == "loading\napi_key=*** is wrong\nCUDA out of memory"


async def test_an_engine_that_ignores_term_is_ended_by_kill(programs: Programs) -> None:
    entry = pretended(programs, "m", "ignore=term", "child=session")
    async with supervising(programs) as watched:
        start = await watched.spawn(entry)
        await watched.health(start, entry, 200)
        await watched.stop(start)
        await watched.health(start, entry, 200)
        await watched.stop(start, "KILL")
        assert (await watched.report(s.EngineExited, start)).signal == signal.SIGKILL
        assert watched.children() == []


async def test_a_port_in_use_is_reported_and_nothing_is_started(programs: Programs) -> None:
    async with supervising(programs) as watched:
        with socket.create_server(("127.0.0.1", watched.port)):
            start = await watched.spawn(pretended(programs, "m"))
            failed = await watched.report(s.SpawnFailed, start)
        assert failed.port_taken
        assert failed.reason == f"port {watched.port} on 127.0.0.1 is in use"
        assert programs.starts() == []


async def test_what_cannot_be_started_says_what_to_do(programs: Programs) -> None:
    no_secret = pretended(programs, "m", env={"HF_TOKEN": "${NO_SUCH_SECRET}"})
    no_program = pretended(programs, "m", command=("/no/such/program", "{port}"))
    no_server = msgspec.structs.replace(no_program, engine="vllm", source="org/model", command=())
    async with supervising(programs) as watched:
        for attempt, (entry, words) in enumerate(
            [
                (no_secret, "NO_SUCH_SECRET, which the agent's environment does not hold"),
                (no_program, "cannot run /no/such/program: No such file"),
                (no_server, "LLMGW_VLLM"),
            ]
        ):
            start = await watched.spawn(entry, attempt)
            failed = await watched.report(s.SpawnFailed, start)
            assert words in failed.reason
            assert not failed.port_taken


async def test_a_secret_of_the_node_reaches_the_engine_and_settings_do_not(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    monkeypatch.setenv("LLMGW_NATS_URL", "nats://me:password@127.0.0.1:4222")
    script = (
        "import os; key = os.environ['KEY'];"
        "print(sorted(n for n in os.environ if n[:5] == 'LLMGW'), key, key[::-1])"
    )
    entry = pretended(
        programs, "m", command=(sys.executable, "-c", script), env={"KEY": "<${MY_SECRET}>"}
    )
    async with supervising(programs) as watched:
        ended = await watched.report(s.EngineExited, await watched.spawn(entry))
    assert ended.exit_code == 0
    names = ["LLMGW_ENGINE", "LLMGW_HOST", "LLMGW_MODEL", "LLMGW_PORT"]
    # The engine had it, as its reverse shows; what it printed of it is masked.
    assert ended.output == f"{names} <***> >2retnuh<"


async def test_a_secret_in_a_file_reaches_the_engine_and_no_output_of_it_is_shown(
    programs: Programs,
) -> None:
    """Not even the output of an engine that an earlier supervisor started."""
    secret = programs.folder / "token"
    secret.write_text("hunter3\n")
    script = (
        "import os; key = os.environ['API_TOKEN']; print(key, key[::-1], flush=True);"
        "os.read(os.open(os.environ['GATE'], os.O_RDONLY), 1)"
    )
    gate = programs.folder / "gate"
    os.mkfifo(gate)
    env = {"API_TOKEN": f"${{file:{secret}}}", "GATE": str(gate)}
    entry = pretended(programs, "m", command=(sys.executable, "-c", script), env=env)
    async with supervising(programs) as first:
        start = await first.spawn(entry)
        await first.report(s.EngineSpawned, start)
    async with supervising(programs) as second:
        await second.supervisor.find({})
        descriptor = await anyio.to_thread.run_sync(os.open, gate, os.O_WRONLY)
        os.close(descriptor)
        ended = await second.report(s.EngineExited, start)
    # The engine had it, as its reverse shows; what it printed of it is masked.
    assert ended.output == "*** 3retnuh"


def test_a_file_of_a_secret_holds_one_value(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("value with blanks \r\n")
    assert read_secret(str(file)) == "value with blanks "
    wrong = {"empty": b"", "long": b"x" * 20_000, "binary": b"a\0b", "latin": b"caf\xe9"}
    for name, raw in wrong.items():
        file.write_bytes(raw)
        with pytest.raises(EngineUnavailable, match="must hold one value") as caught:
            read_secret(str(file))
        assert raw.decode("latin-1") not in str(caught.value) or not raw, name
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("none", "No such file"), ("pipe", "one value"), (".", "a directory")):
        with pytest.raises(EngineUnavailable, match=said):
            read_secret(str(tmp_path / name))


async def test_the_next_supervisor_finds_the_engine_and_notices_its_end(
    programs: Programs,
) -> None:
    entry = pretended(programs, "m", "child=session", "say=hello")
    async with supervising(programs) as first:
        start = await first.spawn(entry)
        pid = (await first.report(s.EngineSpawned, start)).pid
        await first.health(start, entry, 200)
        await until(first.children, what="the engine has a child")
    async with supervising(programs) as second:
        found = await second.supervisor.find({})
        assert found == (s.EngineFound(start, pid, second.port, digest(assignment(entry))),)
        assert await second.supervisor.find({start: pid}) == found, "found again when remembered"
        os.kill(pid, signal.SIGKILL)
        ended = await second.report(s.EngineExited, start)
        assert ended.output == "hello"
        assert second.children() == []


async def test_workers_that_outlived_their_engine_are_ended_and_not_adopted(
    programs: Programs,
) -> None:
    entry = pretended(programs, "m", "child=session")
    async with supervising(programs) as first:
        start = await first.spawn(entry)
        pid = (await first.report(s.EngineSpawned, start)).pid
        await until(first.children, what="the engine has a child")
    await assert_the_next_ends_what_is_left(programs, start, pid)


async def test_an_engine_that_writes_its_title_over_its_environment_is_told_not_to(
    programs: Programs,
) -> None:
    # What setproctitle does, which vLLM and SGLang use; it asks for this variable first.
    script = """
import ctypes, os, pathlib, signal
stat = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
start, end = int(stat[47]), int(stat[48])
if "SPT_NOENV" not in os.environ:
    ctypes.memset(start, 0, end - start)
print("titled", flush=True)
signal.pause()
"""
    entry = pretended(programs, "m", command=(sys.executable, "-c", script, "{port}"))
    async with supervising(programs) as watched:
        start = await watched.spawn(entry)
        pid = (await watched.report(s.EngineSpawned, start)).pid
        log = programs.folder / "engines" / log_name(start)
        await until(lambda: log.stat().st_size, what="the engine has set its title")
        assert set(await watched.supervisor.own_pids()) == {pid}
        await watched.stop(start, "KILL")
        await watched.report(s.EngineExited, start)


async def test_engines_of_another_agent_are_neither_found_nor_stopped(programs: Programs) -> None:
    entry = pretended(programs, "m")
    async with (
        supervising(programs, "cafe0002") as other,
        supervising(programs, "cafe0003") as watched,
    ):
        start = await other.spawn(entry)
        await other.health(start, entry, 200)
        assert await watched.supervisor.find({}) == ()
        await watched.stop(start, "KILL")
        await other.health(start, entry, 200)


async def test_only_the_newest_logs_of_a_part_are_kept(programs: Programs) -> None:
    async with supervising(programs) as watched:
        for attempt in range(1, 9):
            start = await watched.spawn(pretended(programs, "m", "exit=1"), attempt)
            await watched.report(s.EngineExited, start)
    logs = sorted(path.name for path in (programs.folder / "engines").iterdir())
    assert logs == [f"r1-0-g1-a{attempt}.log" for attempt in range(4, 9)]


def test_the_last_output_is_whole_lines_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "out.log"
    assert last_output(file) == ""
    secret = "api_key=" + "s" * 300_000
    file.write_bytes(b"first\n" + secret.encode() + b"\nlast \xff line\n")
    assert last_output(file) == "last \N{REPLACEMENT CHARACTER} line"
    file.write_text("\n".join(f"line {n}" for n in range(1000)))
    assert last_output(file).splitlines()[0] == "line 960"
    file.write_text(secret)
    assert "sss" not in last_output(file)
