"""Carries out what the agent's brain wants done with engines, and reports what became of it.

It spawns, watches, probes and stops processes, and decides nothing: every outcome goes back to
the brain as an input. Engines are group leaders of their own session with their output in files,
so they outlive the agent; `find` is how the next agent finds them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc
import httpx
import structlog

from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.memory import digest
from llmgw.engines.base import Launch, LaunchRequest
from llmgw.engines.devices import DEVICE_VARIABLES
from llmgw.engines.references import resolve
from llmgw.engines.registry import engine
from llmgw.errors import LlmgwError
from llmgw.masking import mask_known, mask_text
from llmgw.processes import (
    VARIABLE,
    Marker,
    kill_group,
    kill_marked,
    marked_processes,
    signal_marked,
)
from llmgw.programs import ProgramSettings, find_program

PROBE_SECONDS = 5.0
TAIL_BYTES = 8_192
TAIL_LINES = 40
KEPT_LOGS = 5
GROUP_END_SECONDS = 30.0
# Engines that set their title (vLLM, SGLang: setproctitle) write it over their environment in
# /proc, and with it the marker, unless told not to.
KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}

log = structlog.get_logger()


class Supervisor:
    """The engines of one agent. `report` takes inputs for the brain."""

    def __init__(
        self,
        agent: str,
        folder: Path,
        host: str,
        programs: ProgramSettings,
        tasks: anyio.abc.TaskGroup,
        report: Callable[[s.Input], None],
    ) -> None:
        self.agent = agent
        self._folder = folder
        self._host = host
        self._programs = programs
        self._tasks = tasks
        self._report = report
        self._watched: dict[int, int] = {}
        self._probing: set[s.Start] = set()
        self._client = httpx.AsyncClient(timeout=PROBE_SECONDS, trust_env=False)

    async def close(self) -> None:
        """Stop watching and probing. The engines go on."""
        loop = asyncio.get_running_loop()
        for descriptor in self._watched.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()
        await self._client.aclose()

    async def carry_out(self, effect: s.Effect) -> None:
        """Carry out one effect that concerns engines; returns before slow ones are done."""
        match effect:
            case s.SpawnEngine():
                self._tasks.start_soon(self._spawn, effect)
            case s.ProbeEngine():
                if effect.start not in self._probing:
                    self._probing.add(effect.start)
                    self._tasks.start_soon(self._probe, effect)
            case s.StopEngine():
                await anyio.to_thread.run_sync(self._stop, effect)
            case _:
                raise AssertionError(f"not an effect on engines: {type(effect).__name__}")

    async def find(self, started: Mapping[s.Start, int]) -> tuple[s.EngineFound, ...]:
        """Return the engines that run under this agent's marker, and watch them.

        `started` are the process ids that are remembered. What is left of an engine whose own
        process is gone (workers that survived it) is ended first.
        """
        processes = await anyio.to_thread.run_sync(marked_processes, self.agent)
        leaders = {
            p.marker.start: p
            for p in processes
            if p.is_leader and started.get(p.marker.start, p.pid) == p.pid
        }
        for marker in {p.marker for p in processes if p.marker.start not in leaders}:
            log.warning("engine_leftover_ended", engine=marker.text())
            await _end_all(marker)
        found = []
        for process in leaders.values():
            if self._watch(process.pid, process.marker):
                marker = process.marker
                found.append(s.EngineFound(marker.start, process.pid, marker.port, marker.digest))
        return tuple(found)

    async def own_pids(self) -> frozenset[int]:
        """Return every process of this agent's engines."""
        processes = await anyio.to_thread.run_sync(marked_processes, self.agent)
        return frozenset(process.pid for process in processes)

    # --- starting ---------------------------------------------------------------------------

    async def _spawn(self, effect: s.SpawnEngine) -> None:
        entry = effect.assignment.entry
        try:
            program = await find_program(entry.engine, self._programs)
            launch = launch_of(effect.assignment, program, self._host, effect.port)
            environment = resolve(launch.env, os.environ)
        except LlmgwError as error:
            self._report(s.SpawnFailed(effect.start, mask_text(str(error))))
            return
        if not _is_free(self._host, effect.port):
            reason = f"port {effect.port} on {self._host} is in use"
            self._report(s.SpawnFailed(effect.start, reason, port_taken=True))
            return
        marker = Marker(self.agent, effect.start, effect.port, digest(effect.assignment))
        try:
            pid = self._start_process(launch, environment, marker)
        except OSError as error:
            reason = f"cannot run {launch.argv[0]}: {error.strerror or error}"
            self._report(s.SpawnFailed(effect.start, reason))
            return
        self._report(s.EngineSpawned(effect.start, pid))
        self._watch(pid, marker)

    def _start_process(self, launch: Launch, environment: dict[str, str], marker: Marker) -> int:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("LLMGW_") and name not in DEVICE_VARIABLES
        }
        path = self._log_file(marker.start)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._drop_old_logs(marker.start)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawnp(
            launch.argv[0],
            launch.argv,
            {**inherited, **KEEP_ENVIRONMENT, **environment, VARIABLE: marker.text()},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(path), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
        )

    def _log_file(self, start: s.Start) -> Path:
        return self._folder / log_name(start)

    def _drop_old_logs(self, start: s.Start) -> None:
        attempts = sorted(
            self._folder.glob(f"{start.key.replica}-{start.key.part}-*.log"),
            key=lambda path: path.stat().st_mtime,
        )
        for path in attempts[: -KEPT_LOGS + 1]:
            path.unlink(missing_ok=True)

    # --- watching ---------------------------------------------------------------------------

    def _watch(self, pid: int, marker: Marker) -> bool:
        """Have the end of a process reported; return whether it was there to be watched."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(self._watched.pop(pid))
            self._tasks.start_soon(self._ended, pid, marker)

        self._watched[pid] = descriptor
        loop.add_reader(descriptor, ended)
        return True

    async def _ended(self, pid: int, marker: Marker) -> None:
        """The engine's own process is gone: end what is left of it, then say how it ended.

        The group is signalled before the leader is reaped: until then its number is not reused.
        """
        await _end_all(marker, pid)
        exit_code, number = _reap(pid)
        output = await anyio.to_thread.run_sync(self._tail, marker.start)
        self._report(s.EngineExited(marker.start, exit_code, number, output))

    def _tail(self, start: s.Start) -> str:
        return last_output(self._log_file(start))

    # --- asking and stopping ----------------------------------------------------------------

    async def _probe(self, effect: s.ProbeEngine) -> None:
        status: int | None = None
        try:
            path = launch_of(effect.assignment, (), self._host, effect.port).health_path
            url = f"http://{_bracketed(self._host)}:{effect.port}{path}"
            with suppress(httpx.HTTPError):
                status = (await self._client.get(url)).status_code
        finally:
            self._probing.discard(effect.start)
        self._report(s.EngineAnswered(effect.start, status))

    def _stop(self, effect: s.StopEngine) -> None:
        """TERM lets the engine's own process end its children; KILL spares none of them."""
        number = signal.SIGTERM if effect.signal == "TERM" else signal.SIGKILL
        for process in marked_processes(self.agent):
            if process.marker.start == effect.start:
                leader_only = number is signal.SIGTERM
                signal_marked(process.marker, number, leader_only=leader_only)
                return


async def _end_all(marker: Marker, child: int | None = None) -> None:
    """Kill every process of one start, and return when they are gone, or cannot be killed."""

    def end() -> bool:
        gone = kill_marked(marker, GROUP_END_SECONDS)
        return gone if child is None else kill_group(child, GROUP_END_SECONDS) and gone

    if not await anyio.to_thread.run_sync(end, abandon_on_cancel=True):
        log.error("engine_unkillable", engine=marker.text(), seconds=GROUP_END_SECONDS)


def launch_of(assignment: Assignment, program: tuple[str, ...], host: str, port: int) -> Launch:
    """Return the command line of an assignment on this node."""
    entry = assignment.entry
    request = LaunchRequest(assignment.replica, entry, assignment.grants, program, host, port)
    return engine(entry.engine).launch(request)


def log_name(start: s.Start) -> str:
    """Return the name of the file that takes an engine's output, one for each start."""
    key = start.key
    return f"{key.replica}-{key.part}-g{start.generation}-a{start.attempt}.log"


def last_output(path: Path) -> str:
    """Return the last lines of a file of output, secrets masked; empty when it is not there."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    if start:  # Half a line may be half a secret, which nothing would mask.
        del lines[0]
    return mask_text(mask_known("\n".join(lines[-TAIL_LINES:]), os.environ))


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _reap(pid: int) -> tuple[int | None, int | None]:
    """Return exit code and signal of a child that ended; both absent when it is not our child."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
