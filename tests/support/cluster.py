"""llmgw as a user runs it: real processes on a real nats-server, and the log that they write.

A `Cluster` starts programs by their command line, ends each by its pid, and follows the log with
llmgw's own fold meanwhile. Tests wait on `state` and `events` and never on time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from llmgw import wire
from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster as State
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.core.verify import verify
from llmgw.log.base import LogRewound
from llmgw.log.embedded import EmbeddedServer, embedded_server
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.processes import VARIABLE, Marker, parse_marker
from llmgw.replay import fold_log, present_records, records
from llmgw.settings import ENDPOINT_FILE
from llmgw.testing.invariants import check, snapshot
from tests.support import engine_program
from tests.support.nats import is_running
from tests.support.ports import claim_ports
from tests.support.wait import until

E = TypeVar("E", bound=e.Event | SetAssignments)

NAME = "c1"
_FOLDER = "CLUSTER_UNDER_TEST"


class EngineProcess(NamedTuple):
    """A living process with an engine's marker."""

    pid: int
    marker: Marker
    parent: int


class Program:
    """One process that a test started; its output is kept in a file."""

    def __init__(self, arguments: list[str], environment: dict[str, str], output: Path) -> None:
        self.output_file = output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """All that it printed."""
        return self.output_file.read_text(errors="replace")

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def says(self, text: str) -> bool:
        return text in self.output

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    async def ended(self, deadline_seconds: float = 30) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        await until(
            self.has_ended,
            deadline_seconds,
            f"{self.process.args!r} has ended",
        )
        return self.process.returncode

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        self.send(number)
        return await self.ended()


class Programs:
    """Everything that one test runs, under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Program] = []
        self.ports = claim_ports(self)

    @property
    def journal(self) -> Path:
        """Where the pretended engines write; see engine_program.py."""
        path = self.folder / "journal"
        path.mkdir(exist_ok=True)
        return path

    def half_of_ports(self, number: int) -> str:
        """Return the port range of the first or the second of two agents, which share none."""
        half = len(self.ports) // 2
        first = self.ports[0] + (number - 1) * half
        return f"{first}-{first + half - 1}"

    def environment(self, settings: dict[str, object]) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
        first, last = self.ports[0], self.ports[-1]
        values = {"port_range": f"{first}-{last}", "backend": "cpu", "cpu_device": "true"}
        values |= {name: str(value) for name, value in settings.items()}
        own = {f"LLMGW_{name.upper()}": value for name, value in values.items() if value}
        return {**inherited, **own, _FOLDER: str(self.folder), "LLMGW_CLUSTER": NAME}

    def start(self, *arguments: str, **settings: object) -> Program:
        """Start `llmgw ARGUMENTS` with these settings in its environment."""
        output = self.folder / f"{len(self.started):02}-{arguments[0]}.out"
        command = [sys.executable, "-m", "llmgw", *arguments]
        program = Program(command, self.environment(settings), output)
        self.started.append(program)
        return program

    async def run(self, *arguments: str, **settings: object) -> tuple[int, str, str]:
        """Run `llmgw ARGUMENTS` to its end; return exit code, stdout and stderr."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llmgw", *arguments),
            env=self.environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    def engines(self, replica: str | None = None) -> list[EngineProcess]:
        """Return the living processes that carry a marker, children of engines included."""
        found = [*_marked(str(self.folder))]
        return [one for one in found if replica in (None, one.marker.start.key.replica)]

    def tree(self) -> list[int]:
        """Return every living process that this test started, directly or not."""
        return [pid for pid, _, _ in _processes(str(self.folder))]

    def starts(self) -> list[str]:
        """Return `PID MARKER` of every start of a pretended engine, in order."""
        path = self.journal / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def assert_never_doubled(self) -> None:
        """Fail when two engines ever ran for one part of a replica."""
        path = self.journal / "doubled"
        assert not path.exists(), f"engines ran twice: {path.read_text()}"

    def end_all(self) -> None:
        """End what still runs, by pid."""
        for program in self.started:
            program.kill()
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class OnLog(Programs):
    """Programs on a log, and that log, folded as it grows."""

    def __init__(self, folder: Path, url: str, log: JetStreamLog) -> None:
        super().__init__(folder)
        self.url = url
        self.log = log
        self.state = State()
        self.records: list[Record] = []
        self._numbers = iter(range(1, 1_000_000))
        self._by_hand = False
        self._following = asyncio.create_task(self._follow())

    # --- what is asked of the cluster --------------------------------------------------------

    async def apply(self, *entries: Entry) -> int:
        """Have exactly these models served; return the sequence of the request."""
        return await self.write(e.CatalogApplied(catalog=Catalog(models=entries)))

    async def write(self, event: e.Event, node: str = "") -> int:
        """Append an event as its writer would; `node` is whose agent that is."""
        number = next(self._numbers)
        session = f"test-{os.getpid()}"
        message = wire.encode_event(
            NAME, event, node=node, session=session, number=number, time="2026-01-01T00:00:00Z"
        )
        return await self.log.append(
            message.subject, message.payload, message_id=message.message_id
        )

    async def command(
        self, *assignments: Assignment, revision: int, term: int = 1, node: str = "n1"
    ) -> int:
        """Command an agent as a controller would, without one that decided it."""
        self._by_hand = True
        command = SetAssignments(
            node=node, revision=revision, term=term, at=0, assignments=assignments
        )
        message = wire.encode_command(NAME, command, time="2026-01-01T00:00:00Z")
        return await self.log.append(
            message.subject, message.payload, message_id=message.message_id
        )

    # --- programs on it ---------------------------------------------------------------------

    def controller(self, node: str = "k1", **settings: object) -> Program:
        """Start a controller."""
        settings = {"node": node, "data": self.folder / node} | settings
        return self.start("controller", "run", nats_url=self.url, **settings)

    def agent(self, node: str = "n1", *flags: str, **settings: object) -> Program:
        """Start an agent; one started again under the same name is the same agent."""
        settings = {"node": node, "data": self.folder / node, "sample_seconds": 0.5} | settings
        return self.start("agent", "run", *flags, nats_url=self.url, **settings)

    # --- what the log says -------------------------------------------------------------------

    def events(self, kind: type[E], **fields: object) -> list[E]:
        """Return the events of a kind so far whose fields have these values."""
        return [
            record.body
            for record in self.records
            if isinstance(record.body, kind)
            and all(getattr(record.body, name) == value for name, value in fields.items())
        ]

    async def event(self, kind: type[E], deadline_seconds: float = 30, **fields: object) -> E:
        """Wait for an event of a kind with these values, and return the newest."""
        what = f"{kind.__name__} {fields}"
        await self.until_state(lambda _: self.events(kind, **fields), what, deadline_seconds)
        return self.events(kind, **fields)[-1]

    async def until_state(
        self, condition: Callable[[State], object], what: str, deadline_seconds: float = 40
    ) -> None:
        """Wait until the folded log is so."""

        def holds() -> bool:
            if self._following.done():
                self._following.result()
            return bool(condition(self.state))

        await until(holds, deadline_seconds, what)

    async def caught_up(self) -> None:
        """Wait until all is folded that the log holds now.

        A program that has ended has told the log; the test may hear of it later.
        """
        last = (await self.log.bounds()).last
        await self.until_state(lambda state: state.sequence >= last, "the log is folded")

    async def until_ready(self, *replicas: str) -> None:
        """Wait until all parts of these replicas are ready."""
        await self.until_state(
            lambda state: all(
                name in state.replicas
                and all(p.phase == "ready" for p in state.replicas[name].parts)
                for name in replicas
            ),
            f"{replicas} are ready",
        )

    async def _follow(self) -> None:
        """Fold the log as it grows, for ever; a log that was replaced is folded anew."""
        while True:
            self.state, self.records = State(), []
            with contextlib.suppress(LogRewound):
                async for record in records(self.log):
                    apply(self.state, record)
                    self.records.append(record)
                    if not self._by_hand:
                        check(self.state)

    async def assert_folds_the_same(self) -> None:
        """Fail when the log, read again from its beginning, gives another state."""
        await self.caught_up()
        sequence, state = self.state.sequence, snapshot(self.state)
        assert snapshot(await fold_log(self.log, sequence)) == state

    def assert_decides_the_same(self) -> None:
        """Fail when anything that controllers decided would be decided otherwise by this code.

        What was read of the log is decided again, as `ctl replay --verify` does; of one that was
        replaced or that commands were put into by hand nothing follows.
        """
        if self._by_hand or not self.records or self.records[0].sequence != 1:
            return
        verdict = verify(self.records)
        assert verdict.difference is None, verdict.difference
        assert verdict.changed == 0, verdict.first_change

    async def close(self) -> None:
        """End what still runs, and stop following."""
        self.end_all()
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self.log.close()

    async def all_records(self) -> list[Record]:
        """Return every record that the log holds now."""
        return [record async for record in present_records(self.log)]


class Cluster(OnLog):
    """Controllers and agents on a nats-server of their own."""

    def __init__(self, folder: Path, server: EmbeddedServer, log: JetStreamLog) -> None:
        super().__init__(folder, server.url, log)
        self.server = server

    async def kill_server(self) -> None:
        """End the nats-server as a power cut would."""
        os.kill(self.server.pid, signal.SIGKILL)
        await self.server.wait()

    async def wipe_log(self) -> None:
        """Stop the server, delete its store, and start it again on the same port."""
        await self.server.stop()
        shutil.rmtree(self.folder / "nats" / "jetstream")
        await self.server.start()


class Up(OnLog):
    """`llmgw up` as one program, and its log."""

    def __init__(self, folder: Path, url: str, log: JetStreamLog, program: Program) -> None:
        super().__init__(folder, url, log)
        self.program = program
        self.started.append(program)

    def part(self, name: str) -> int:
        """Return the process id of one of its parts: `agent`, `controller` or `nats-server`."""
        children = {
            pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for pid, _, parent in _processes(str(self.folder))
            if parent == self.program.pid
        }
        [pid] = [pid for pid, line in children.items() if f"{name} " in line]
        return pid


@contextlib.asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Run a nats-server as `llmgw up` does, and end everything that was started on it."""
    async with embedded_server(folder) as server:
        cluster = Cluster(folder, server, await _connect(server.url))
        try:
            yield cluster
        finally:
            await cluster.close()
    cluster.assert_never_doubled()
    cluster.assert_decides_the_same()


@contextlib.asynccontextmanager
async def running_up(folder: Path, *arguments: str, **settings: object) -> AsyncIterator[Up]:
    """Run `llmgw up` on the data in `folder`, and end it with all that it started."""
    programs = Programs(folder)
    settings = {"data": folder / "data", "node": "n1", "sample_seconds": 0.5} | settings
    program = programs.start("up", *arguments, **settings)
    try:
        endpoint = Path(str(settings["data"])) / ENDPOINT_FILE
        await until(lambda: _is_of(endpoint, program), 30, "llmgw up is up")
        assert not program.has_ended(), program.output
        url = json.loads(endpoint.read_bytes())["nats_url"]
        up = Up(folder, url, await _connect(url), program)
        try:
            yield up
        finally:
            await up.close()
    finally:
        programs.end_all()
    programs.assert_never_doubled()
    up.assert_decides_the_same()


def _is_of(endpoint: Path, program: Program) -> bool:
    """Tell whether the program wrote its endpoint, or never will."""
    if program.has_ended():
        return True
    return endpoint.exists() and json.loads(endpoint.read_bytes())["pid"] == program.pid


async def _connect(url: str) -> JetStreamLog:
    return await connect(url, NAME, name="test", answer_deadline_seconds=20)


def pretended(programs: Programs, name: str, *options: str, **fields: object) -> Entry:
    """Return a catalog entry whose engine is `engine_program.py` with these options."""
    entry = Entry(
        name=name,
        engine="command",
        classes=("cpu",),
        memory_bytes=1 << 20,
        command=command_of(programs, *options),
    )
    return msgspec.structs.replace(entry, **fields)


def command_of(programs: Programs, *options: str) -> tuple[str, ...]:
    """Return the command line of the pretended engine."""
    script = engine_program.__file__
    return (sys.executable, "-IS", script, str(programs.journal), "{port}", *options)


def _marked(folder: str) -> Iterator[EngineProcess]:
    for pid, environment, parent in _processes(folder):
        for pair in environment.split(b"\0"):
            name, _, value = pair.partition(b"=")
            marker = parse_marker(value.decode()) if name == VARIABLE.encode() else None
            if marker is not None:
                yield EngineProcess(pid, marker, parent)


def _processes(folder: str) -> Iterator[tuple[int, bytes, int]]:
    """Yield pid, environment and parent of every living process that was started under a folder."""
    mark = f"{_FOLDER}={folder}".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                environment = (path / "environ").read_bytes()
                if mark in environment.split(b"\0") and is_running(int(path.name)):
                    parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                    yield int(path.name), environment, int(parent)
