"""Carries out what the agent's brain wants done with engines, and reports what became of it.

It spawns, watches, probes and stops processes, and decides nothing: every outcome goes back to
the brain as an input. Engines are group leaders of their own session with their output in files,
so they outlive the agent; `find` is how the next agent finds them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc
import structlog

from llmgw import listening, outputs, segments
from llmgw.cgroups import Groups
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.memory import digest
from llmgw.engines.base import Launch, LaunchRequest, ProbeAnswer
from llmgw.engines.devices import DEVICE_VARIABLES
from llmgw.engines.references import resolve
from llmgw.engines.registry import engine
from llmgw.errors import EngineUnavailable, LlmgwError
from llmgw.loading import Loaded, Loading
from llmgw.masking import hide, mask_known, mask_text, secret_values, visible
from llmgw.probing import (
    Look,
    answer_of,
    hangs,
    key_in,
    look,
    served_models,
    status_of,
    token_status,
)
from llmgw.processes import (
    VARIABLE,
    Marker,
    born,
    environment_of,
    families,
    kill_group,
    kill_marked,
    marked_processes,
    signal_marked,
)
from llmgw.programs import ProgramSettings, find_program
from llmgw.strays import Strays

PROBE_SECONDS = 5.0
TAIL_BYTES = 262_144
PROGRESS_BYTES = 32_768
"""So much is read each second while engines load, of which one line is shown."""
TAIL_LINES = 40
KEPT_LOGS = 5
GROUP_END_SECONDS = 30.0
SECRET_BYTES = 16_384
PROGRESS_CHARACTERS = 160
LINE_CHARACTERS = 600
# Engines that set their title (vLLM, SGLang: setproctitle) write it over their environment in
# /proc, and with it the marker, unless told not to.
KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}

_START_NAME = re.compile(r"(.+)-(\d+)-g(\d+)-a(\d+)")

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
        groups: Groups | None = None,
    ) -> None:
        self.agent = agent
        self._groups = groups or Groups(agent)
        self._folder = folder
        self._host = host
        self._programs = programs
        self._tasks = tasks
        self._report = report
        self._watched: dict[int, int] = {}
        self._hidden: set[str] = set()
        self._probing: set[s.Start] = set()
        self._listening: set[s.Start] = set()
        self._named: set[s.Start] = set()
        self._looks: dict[s.Start, Look] = {}
        self._keys: dict[s.Start, str | None] = {}
        self._shared: dict[s.Start, frozenset[segments.Segment]] = {}
        self._strays = Strays(folder)
        self._left: dict[s.Start, frozenset[int]] = {}
        self._loading = Loading()

    async def close(self) -> None:
        """Stop watching and probing. The engines go on."""
        loop = asyncio.get_running_loop()
        for descriptor in self._watched.values():
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    async def carry_out(self, effect: s.Effect) -> None:
        """Carry out one effect that concerns engines; returns before slow ones are done."""
        match effect:
            case s.SpawnEngine():
                self._tasks.start_soon(self._spawn, effect)
            case s.ProbeEngine():
                if effect.start not in self._probing:
                    self._probing.add(effect.start)
                    self._tasks.start_soon(self._probe, effect)
            case s.AskForToken():
                self._tasks.start_soon(self._ask_for_token, effect)
            case s.CountRequests():
                self._tasks.start_soon(self._count, effect)
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
            self._left[marker.start] = await self._end_all(marker)
        running = {name_of_start(start) for start in leaders}
        await anyio.to_thread.run_sync(self._end_groups_but, running)
        found = []
        for process in leaders.values():
            if self._watch(process.pid, process.marker):
                marker = process.marker
                given = await anyio.to_thread.run_sync(environment_of, process.pid)
                self._hidden |= secret_values(given)
                self._keys[marker.start] = key_in(given)
                found.append(s.EngineFound(marker.start, process.pid, marker.port, marker.digest))
        return tuple(found)

    async def ended(self, gone: Mapping[s.Start, Assignment | None]) -> tuple[s.EngineExited, ...]:
        """Return what is known of engines that ended before they could be found.

        That is what they printed last, and which of their processes cannot be killed.
        """

        def told() -> tuple[s.EngineExited, ...]:
            return tuple(self._ended_unseen(start, of) for start, of in gone.items())

        return await anyio.to_thread.run_sync(told)

    def _ended_unseen(self, start: s.Start, assignment: Assignment | None) -> s.EngineExited:
        left, output = self._left.pop(start, frozenset()), ""
        if assignment is not None:
            with suppress(LlmgwError):  # whose secrets are not known, of that nothing can be shown
                env = resolve(assignment.entry.env, os.environ, read_secret)
                self._hidden |= secret_values(env)
                output = self._tail(start)
        return s.EngineExited(start, None, None, output, tuple(sorted(left)))

    def _end_groups_but(self, running: set[str]) -> None:
        for name in self._groups.names():
            if name not in running:
                self._groups.end(name, GROUP_END_SECONDS)
        self._strays.end_but(running, GROUP_END_SECONDS)

    async def own_pids(self, among: frozenset[int] | None = None) -> dict[int, s.Start]:
        """Return the processes of this agent's engines; `among` these, or all that there are."""
        return await anyio.to_thread.run_sync(self._own_pids, among)

    def _own_pids(self, among: frozenset[int] | None) -> dict[int, s.Start]:
        found: dict[int, s.Start] = {}
        for name in self._groups.names():
            start = start_of_name(name)
            if start is not None:
                found |= dict.fromkeys(self._groups.pids(name), start)
        if among is not None:
            found = {pid: start for pid, start in found.items() if pid in among}
        for pid, name in self._strays.named(among).items():
            start = start_of_name(name)
            found |= {pid: start} if start is not None else {}
        processes = marked_processes(self.agent, among)
        return found | {process.pid: process.marker.start for process in processes}

    async def progress(self, starts: Mapping[str, s.Start]) -> dict[str, str]:
        """Return the last line that each of these engines printed, where it printed one."""
        found = await anyio.to_thread.run_sync(self._progress, starts)
        return {name: line for name, line in found.items() if line}

    def _progress(self, starts: Mapping[str, s.Start]) -> dict[str, str]:
        return {
            name: last_line(self._tail(start, PROGRESS_BYTES)) for name, start in starts.items()
        }

    async def loaded(
        self, starts: Mapping[str, s.Start], sources: Mapping[str, str]
    ) -> dict[str, Loaded]:
        """Return how far engines are with loading, of those with a source, where it is told."""
        if not sources:
            return {}
        return await anyio.to_thread.run_sync(self._loaded, starts, sources)

    def _loaded(
        self, starts: Mapping[str, s.Start], sources: Mapping[str, str]
    ) -> dict[str, Loaded]:
        own = self._own_pids(None)
        found = {}
        for name, source in sources.items():
            start = starts[name]
            pids = [pid for pid, of in own.items() if of == start]
            told = self._loading.measure(start, pids, source)
            if told is not None:
                found[name] = told
        return found

    async def keep_outputs_small(self) -> None:
        """Keep what engines print from filling the disk, for ever."""
        while True:
            await self.limit_outputs()
            await anyio.sleep(outputs.LOOK_SECONDS)
            while not self._watched:  # noqa: ASYNC110 - nothing prints, and looking takes a thread
                await anyio.sleep(outputs.LOOK_SECONDS)

    async def limit_outputs(self) -> None:
        """Cut what has grown too large of the engines' output, once."""
        await anyio.to_thread.run_sync(outputs.limit_folder, self._folder, self._in_use)

    def _in_use(self) -> set[str]:
        return {log_name(process.marker.start) for process in marked_processes(self.agent)}

    # --- starting ---------------------------------------------------------------------------

    async def _spawn(self, effect: s.SpawnEngine) -> None:
        entry = effect.assignment.entry
        try:
            program = await find_program(entry.engine, self._programs)
            launch = launch_of(effect.assignment, program, self._host, effect.port)
            environment = await anyio.to_thread.run_sync(
                resolve, launch.env, os.environ, read_secret
            )
            self._hidden |= secret_values(environment)
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
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or a variable
            why = getattr(error, "strerror", None) or error
            self._report(s.SpawnFailed(effect.start, f"cannot run {launch.argv[0]}: {why}"))
            return
        await anyio.to_thread.run_sync(self._groups.put, name_of_start(effect.start), pid)
        self._keys[effect.start] = key_in(environment)
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
            outputs.drop(path)

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
        left = await self._end_all(marker, pid)
        exit_code, number = _reap(pid)
        self._listening.discard(marker.start)
        self._named.discard(marker.start)
        self._looks.pop(marker.start, None)
        self._keys.pop(marker.start, None)
        self._loading.forget(marker.start)
        output = await anyio.to_thread.run_sync(self._tail, marker.start)
        self._report(s.EngineExited(marker.start, exit_code, number, output, tuple(sorted(left))))

    async def _end_all(self, marker: Marker, child: int | None = None) -> frozenset[int]:
        """Kill every process of one start, and return when they are gone, or cannot be killed."""

        def end() -> frozenset[int]:
            name = name_of_start(marker.start)
            shared = segments.mapped(self._pids_of(marker.start))
            left = kill_marked(marker, GROUP_END_SECONDS)
            if child is not None and not kill_group(child, GROUP_END_SECONDS):
                left |= {child}
            left |= self._groups.end(name, GROUP_END_SECONDS)
            left |= self._strays.end(name, GROUP_END_SECONDS)
            self._drop(self._shared.pop(marker.start, frozenset()) | shared)
            return left

        left = await anyio.to_thread.run_sync(end, abandon_on_cancel=True)
        if left:
            seconds = GROUP_END_SECONDS
            log.error("engine_unkillable", engine=marker.text(), pids=sorted(left), seconds=seconds)
        return left

    def _pids_of(self, start: s.Start) -> set[int]:
        """Return what an engine consists of now."""
        name = name_of_start(start)
        marked = {p.pid for p in marked_processes(self.agent) if p.marker.start == start}
        found = marked | self._groups.pids(name) | self._strays.pids(name)
        self._strays.see(name, found)
        return found

    def _drop(self, shared: frozenset[segments.Segment]) -> None:
        dropped = segments.drop(shared)
        if dropped:
            log.info("shared_memory_dropped", files=dropped)

    def _tail(self, start: s.Start, most_bytes: int = TAIL_BYTES) -> str:
        said = hide(last_output(self._log_file(start), most_bytes), self._hidden)
        return "\n".join(line[:LINE_CHARACTERS] for line in said.splitlines())

    # --- asking and stopping ----------------------------------------------------------------

    async def _probe(self, effect: s.ProbeEngine) -> None:
        status, stranger, hangs = None, None, None
        try:
            path = launch_of(effect.assignment, (), self._host, effect.port).health_path
            status = await status_of(self._host, effect.port, path, PROBE_SECONDS)
            if status is not None and effect.start not in self._listening:
                stranger = await anyio.to_thread.run_sync(self._stranger, effect)
            if status is not None and stranger is None and effect.start not in self._named:
                stranger = await self._other_engine(effect, status)
            if status is not None and effect.look:
                await anyio.to_thread.run_sync(self._pids_of, effect.start)
                hangs = await self._hangs(effect)
        finally:
            self._probing.discard(effect.start)
        self._report(s.EngineAnswered(effect.start, status, stranger, hangs))

    async def _hangs(self, effect: s.ProbeEngine) -> bool | None:
        """Look at the engine's work, and tell whether it hung since it was looked at before."""
        counts, start = engine(effect.assignment.entry.engine).request_counts, effect.start
        if counts is None:
            return None
        key = self._keys.get(start)
        seen = await look(self._host, effect.port, counts, key, PROBE_SECONDS)
        before = self._looks.pop(start, None)
        if seen is None:
            return None
        self._looks[start] = seen
        return hangs(before, seen)

    async def _ask_for_token(self, effect: s.AskForToken) -> None:
        model, key = effect.assignment.entry.name, self._keys.get(effect.start)
        status = await token_status(self._host, effect.port, model, effect.seconds, key)
        log.info("asked_for_a_token", engine=name_of_start(effect.start), status=status)
        self._report(s.TokenAnswered(effect.start, status))

    def _stranger(self, effect: s.ProbeEngine) -> str | None:
        """Return who else answers on the engine's port; asked until it was the engine once."""
        own = self._pids_of(effect.start)
        if not own:
            return None
        since = min((at for pid in own if (at := _born(pid)) is not None), default=None)
        found = listening.stranger(self._host, effect.port, families(own), since)
        if found is None:
            self._listening.add(effect.start)
        return found

    async def _other_engine(self, effect: s.ProbeEngine, status: int) -> str | None:
        """Return who answers instead, by the model that it serves; asked once, when it is well."""
        entry, start = effect.assignment.entry, effect.start
        chosen = engine(entry.engine)
        if chosen.judge(ProbeAnswer(status), False) != "ready":
            return None
        self._named.add(start)
        if not chosen.names_model:
            return None
        key = self._keys.get(start)
        served = await served_models(self._host, effect.port, PROBE_SECONDS, key)
        if served is None or entry.name in served:
            return None
        names = visible(", ".join(served))[:PROGRESS_CHARACTERS]
        return f"an engine that serves {names or 'no model'}"

    async def _count(self, effect: s.CountRequests) -> None:
        """Ask how many requests there are. Who is silent may be busy: then it is asked again."""
        counts = engine(effect.assignment.entry.engine).request_counts
        requests: int | None = None
        if counts is not None:
            key = self._keys.get(effect.start)
            answer = await answer_of(self._host, effect.port, counts.path, PROBE_SECONDS, key)
            requests = counts.count(answer) if answer is not None else None
        self._report(s.EngineCounted(effect.start, requests))

    def _stop(self, effect: s.StopEngine) -> None:
        """TERM lets the engine's own process end its children; KILL spares none of them."""
        number = signal.SIGTERM if effect.signal == "TERM" else signal.SIGKILL
        own = self._pids_of(effect.start)
        if effect.signal == "KILL":
            self._shared[effect.start] = segments.mapped(own)
        for process in marked_processes(self.agent):
            if process.marker.start == effect.start:
                leader_only = number is signal.SIGTERM
                signal_marked(process.marker, number, leader_only=leader_only)
                break
        if effect.signal == "KILL":
            self._groups.kill(name_of_start(effect.start))


def launch_of(assignment: Assignment, program: tuple[str, ...], host: str, port: int) -> Launch:
    """Return the command line of an assignment on this node."""
    entry = assignment.entry
    request = LaunchRequest(
        assignment.replica,
        entry,
        assignment.grants,
        program,
        host,
        port,
        rank=assignment.part,
        leader=assignment.leader,
    )
    return engine(entry.engine).launch(request)


def read_secret(path: str) -> str:
    """Return what a file on this node holds, without the line end; see `engines.references`.

    Raises `EngineUnavailable` naming the file, never its contents.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            raw = file.read(SECRET_BYTES + 1) or b""
    except OSError as error:
        raise EngineUnavailable(
            f"the catalog refers to {path}, which the agent cannot read: {error.strerror}"
        ) from error
    text = raw.decode(errors="replace").removesuffix("\n").removesuffix("\r")
    if not text or len(raw) > SECRET_BYTES or "\0" in text or "\ufffd" in text:
        raise EngineUnavailable(
            f"the catalog refers to {path}, which must hold one value: a text of at most "
            f"{SECRET_BYTES} bytes"
        )
    return text


def log_name(start: s.Start) -> str:
    """Return the name of the file that takes an engine's output, one for each start."""
    return f"{name_of_start(start)}.log"


def name_of_start(start: s.Start) -> str:
    """Return a start as a name of files and groups: `r7-0-g1-a3`."""
    key = start.key
    return f"{key.replica}-{key.part}-g{start.generation}-a{start.attempt}"


def start_of_name(name: str) -> s.Start | None:
    """Return the start that a name means, or `None`."""
    match = _START_NAME.fullmatch(name)
    if match is None:
        return None
    replica, part, generation, attempt = match.groups()
    return s.Start(s.Key(replica, int(part)), int(generation), int(attempt))


def last_output(path: Path, most_bytes: int = TAIL_BYTES) -> str:
    """Return the last lines of a file of output, secrets masked; empty when it is not there.

    Before them stand lines from further above that name errors: the last lines of a program of
    many processes say only that one of them ended, and not why.
    """
    end, more = outputs.tail(path, most_bytes)
    lines = end.decode(errors="replace").splitlines()
    if more and lines:  # Half a line may be half a secret, which nothing would mask.
        del lines[0]
    above = outputs.telling(lines[:-TAIL_LINES])
    said = [*above, "…", *lines[-TAIL_LINES:]] if above else lines[-TAIL_LINES:]
    return mask_text(mask_known("\n".join(said), os.environ))


def last_line(text: str) -> str:
    """Return the last line that says something, fit for a table."""
    lines = (visible(line.strip()) for line in reversed(text.splitlines()))
    return next((line for line in lines if line), "")[:PROGRESS_CHARACTERS]


def _born(pid: int) -> int | None:
    try:
        return born(pid)
    except (OSError, IndexError, ValueError):
        return None


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
