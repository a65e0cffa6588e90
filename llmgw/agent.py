"""The agent: the shell around `core.node` on one machine.

It feeds the brain what happens (commands from the log, engines, samples, time, signals), stores
what the brain must remember together with the events it publishes in one transaction, and only
then carries out the other effects. It goes on without the log: events wait in the outbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import structlog
from anyio import to_thread
from msgspec.structs import replace

from llmgw import __version__, leaving, releasing, wire
from llmgw.clock import Alarm, now, until_beat
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.memory import Memory, Policy, key_of
from llmgw.core.node import NodeMachine
from llmgw.core.records import Record
from llmgw.core.reporting import start_of
from llmgw.core.starting import rests
from llmgw.core.telemetry import NodeSample
from llmgw.errors import BackendUnavailable, DataFolderError
from llmgw.folder import held
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.host import boot_id
from llmgw.log.jetstream import JetStreamLog
from llmgw.loglink import RETRY_SECONDS, LogLink, commands, waiting_commands
from llmgw.naming import Name
from llmgw.outbox import Outbox, open_outbox
from llmgw.sample import Sampler, hardware_settings, simulated_hardware
from llmgw.settings import AGENT_FOLDER, Settings
from llmgw.stopping import hearing_hangups, hearing_signals
from llmgw.supervise import Supervisor
from llmgw.views.summaries import summary
from llmgw.watchdog import OVERDUE_SECONDS, Pulse, Supervision, supervision

TICK_SECONDS = 0.1
CALM_TICK_SECONDS = 1.0
"""The same while nothing of an engine is under way: then only probes are waited for."""
LAST_WORDS_SECONDS = 5.0

SIMULATED_FOLDER = "simulated"

log = structlog.get_logger()


class CommandsAlone(Supervisor):
    """The engines of a simulated node: it has no hardware, so only programs that need none."""

    async def carry_out(self, effect: s.Effect) -> None:
        """Refuse to start what would look for the cards; else as on any node."""
        if isinstance(effect, s.SpawnEngine) and effect.assignment.entry.engine != "command":
            reason = (
                f"this node is simulated and cannot run {effect.assignment.entry.engine}: it starts"
                " entries with `engine: command` alone. Place the model on a real node, or give a"
                " command that stands for it"
            )
            self._report(s.SpawnFailed(effect.start, reason))
            return
        await super().carry_out(effect)


class Agent:
    """One running agent. Made and run by `run_agent`."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        hardware: HardwareSettings,
        outbox: Outbox,
        machine: NodeMachine,
        boot_id: str,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._hardware = hardware
        self._boot_id = boot_id.encode()
        self._outbox = outbox
        self._machine = machine
        self._session = secrets.token_hex(4)
        self._number = 0
        self._remembered = b""
        self._inputs: asyncio.Queue[s.Input] = asyncio.Queue()
        self._queued = asyncio.Event()
        self._ticks = Alarm()
        self._restless = False
        self._left = asyncio.Event()
        self._begun = asyncio.Event()
        self._early: list[s.NameTaken] = []
        self._brain_pulse = Pulse("brain")
        self._sender_pulse = Pulse("sender")
        self._sample_pulse = Pulse("samples", OVERDUE_SECONDS + 3 * settings.sample_seconds)
        self._link = LogLink(settings, f"agent {settings.node}", outbox, self._start_over)

    async def run(
        self,
        identity: str,
        rebooted: bool,
        signals: AsyncIterator[signal.Signals],
        hangups: AsyncIterator[signal.Signals],
        stop_engines: bool,
        systemd: Supervision,
    ) -> None:
        """Run until the brain says that the agent may leave."""
        settings = self._settings
        async with anyio.create_task_group() as tasks:
            pulses = (self._brain_pulse, self._sender_pulse, self._sample_pulse)
            tasks.start_soon(systemd.keep_told, pulses)
            simulated = self._hardware.capture_from is not None
            supervisor = CommandsAlone if simulated else Supervisor
            self._supervisor = supervisor(
                identity,
                self._folder / "engines",
                settings.host,
                settings,
                tasks,
                self._inputs.put_nowait,
            )
            sampler = self._sampler = Sampler(
                settings,
                self._hardware,
                self._session,
                self._report_sample,
                self._send_sample,
                self._supervisor.own_pids,
            )
            self._name = Name(settings.node, identity, self._report_name)
            # A driver that hangs can hold up the first look for a minute: the node lives meanwhile.
            tasks.start_soon(self._link.connect)
            for loop in (self._hold_name, self._say_alive):
                tasks.start_soon(_for_ever, loop)
            await self._heed_release(sampler)
            await self._look_around(sampler, rebooted)
            self._begin()
            for loop in (
                self._think,
                self._tick,
                self._send_events,
                self._follow_commands,
                sampler.measure,
                self._supervisor.keep_outputs_small,
            ):
                tasks.start_soon(_for_ever, loop)
            tasks.start_soon(self._beat, sampler)
            tasks.start_soon(self._hear_signals, signals, stop_engines)
            tasks.start_soon(self._hear_hangups, hangups, sampler)
            await self._left.wait()
            await self._link.say_last_words(LAST_WORDS_SECONDS)
            tasks.cancel_scope.cancel()
        await self._supervisor.close()
        await self._link.close()

    async def _look_around(self, sampler: Sampler, rebooted: bool) -> None:
        """Tell the brain what there is: devices, engines of before, and those that ended since."""
        inventory, memory = await sampler.look(), self._machine.memory
        found = await self._supervisor.find(started_pids(memory))
        ended = await self._supervisor.ended(gone_of(memory, found))
        sample = sampler.first()
        self._inputs.put_nowait(s.AgentStarted(found, rebooted, inventory, sample, ended))
        if sampler.error is not None and not sampler.released:
            self._inputs.put_nowait(s.HardwareUnreadable(sampler.error))

    # --- the brain ---------------------------------------------------------------------------

    async def _think(self) -> None:
        while True:
            await self._take_turn(await self._inputs.get())
            self._inputs.task_done()
            self._brain_pulse.show()

    async def _take_turn(self, fact: s.Input) -> None:
        effects = self._machine.handle(fact, time.monotonic())
        calm, parts = not self._restless, self._machine.memory.parts.values()
        self._restless = any(part.phase != "ready" for part in parts)
        if calm and self._restless:
            self._ticks.ring()
        if not effects and isinstance(fact, s.ClockTicked):
            return
        await self._remember([f.event for f in effects if isinstance(f, s.Publish)])
        for effect in effects:
            if isinstance(effect, s.Leave):
                self._left.set()
            elif isinstance(effect, s.MeasureDevices):
                self._sampler.measure_soon()
            elif not isinstance(effect, s.Publish):
                await self._supervisor.carry_out(effect)

    async def _remember(self, events: list[e.Event]) -> None:
        """Store memory and events in one transaction; wait for room rather than forget."""
        memory = msgspec.json.encode(self._machine.memory)
        if not events and memory == self._remembered:
            return  # as after nearly every sample
        keep = {"memory": memory, "boot_id": self._boot_id}
        messages = [self._encode(event) for event in events]
        while True:
            try:
                await self._outbox.commit(keep, messages)
                self._remembered = memory
                break
            except DataFolderError as error:
                log.warning("agent_cannot_remember", reason=str(error))
                self._brain_pulse.show()
                await anyio.sleep(RETRY_SECONDS)
        if messages:
            self._queued.set()
            self._sender_pulse.expect()

    def _encode(self, event: e.Event) -> wire.Outgoing:
        self._number += 1
        log.info(event.wire.replace(".", "_"), **_told(event))
        return wire.encode_event(
            self._settings.cluster,
            event,
            node=self._settings.node,
            session=self._session,
            number=self._number,
            time=now(),
        )

    async def _tick(self) -> None:
        while True:
            if not self._restless:
                await self._ticks.wait(until_beat(CALM_TICK_SECONDS))
            if self._restless:
                await anyio.sleep(TICK_SECONDS)
            self._inputs.put_nowait(s.ClockTicked())

    async def _hear_signals(
        self, signals: AsyncIterator[signal.Signals], stop_engines: bool
    ) -> None:
        async for number in signals:
            asked = await to_thread.run_sync(leaving.asked, self._folder, os.getpid())
            stop = stop_engines or asked
            log.info("agent_leaving", signal=number.name, stop_engines=stop)
            self._inputs.put_nowait(s.ShutdownRequested(stop))

    async def _hear_hangups(self, hangups: AsyncIterator[signal.Signals], sampler: Sampler) -> None:
        async for number in hangups:
            log.info("hardware_looked_at_again", signal=number.name)
            if not await self._heed_release(sampler):
                sampler.look_again()

    async def _heed_release(self, sampler: Sampler) -> bool:
        """Give NVML up or take it up again, as the last request says; tell whether there is one."""
        request = await to_thread.run_sync(releasing.requested, self._folder)
        if request is None:
            return False
        trouble = await sampler.release(request.until)
        try:
            await to_thread.run_sync(releasing.answer, self._folder, request, trouble)
        except DataFolderError as error:
            log.warning("release_unanswered", reason=str(error))
        return True

    # --- the log -----------------------------------------------------------------------------

    async def _reached(self) -> JetStreamLog:
        """Return the log once it is there, and this node's name is this agent's."""
        found = await self._link.reached()
        await self._name.settled()
        return found

    async def _hold_name(self) -> None:
        found = await self._link.reached()
        await self._name.hold(found, found.lease_subject(f"node.{self._settings.node}"))

    def _begin(self) -> None:
        """The brain has been told what it woke up to: now it may be told what came meanwhile."""
        self._begun.set()
        for fact in self._early:
            self._inputs.put_nowait(fact)

    def _report_name(self, fact: s.NameTaken) -> None:
        if self._begun.is_set():
            self._inputs.put_nowait(fact)
        else:
            self._early.append(fact)

    async def _start_over(self) -> None:
        """Have the brain forget what the old log said, before anything of the new one is read."""
        await self._begun.wait()
        self._inputs.put_nowait(s.LogReplaced())
        await self._inputs.join()

    async def _send_events(self) -> None:
        await self._link.send_events(await self._reached(), self._unqueued)

    def _unqueued(self) -> asyncio.Event:
        self._sender_pulse.rest()
        self._queued.clear()
        return self._queued

    async def _follow_commands(self) -> None:
        await self._link.follow(await self._reached(), self._take_commands)

    async def _take_commands(self, found: JetStreamLog) -> None:
        """Feed commands to the brain: those that waited, then each as it comes."""
        subject = wire.command_subject(self._settings.cluster, self._settings.node)
        seen = self._machine.memory.command_sequence
        waiting, start = await waiting_commands(found, subject, seen)
        self._take_waiting(waiting, first_time=seen == 0)
        async for together in commands(found, subject, start):
            self._take_waiting(together, first_time=False)

    def _take_waiting(self, waiting: list[Record], first_time: bool) -> None:
        """Of the commands that waited only the newest of the highest term is acted upon.

        An agent without memory leaves those before it alone: an earlier life has answered them.
        """
        told = {r.sequence: r.body for r in waiting if isinstance(r.body, SetAssignments)}
        acted_upon = max(told, key=lambda n: (told[n].term, n), default=0)
        for record in waiting:
            if record.sequence >= acted_upon:
                self._take_command(record)
            elif not first_time:
                self._take_command(record, told[acted_upon].revision)

    def _take_command(self, record: Record, superseded_by: int | None = None) -> None:
        body = record.body
        if isinstance(body, SetAssignments) and body.node == self._settings.node:
            self._inputs.put_nowait(s.CommandReceived(record.sequence, body, superseded_by))
        else:
            self._refuse_unread(record)

    def _refuse_unread(self, record: Record) -> None:
        """Answer a command that cannot be acted upon, if its envelope says which one it is."""
        body = record.body
        log.error("command_unreadable", sequence=record.sequence, body=repr(body)[:300])
        numbers = wire.revision_and_term(record)
        if numbers is not None:
            reason = f"agent {__version__} cannot act on it: {summary(body)}"
            self._inputs.put_nowait(s.CommandUnreadable(record.sequence, *numbers, reason))

    def _report_sample(self, fact: s.Input) -> None:
        """Hand on what was measured, with what ails the agent's own records."""
        if isinstance(fact, s.SampleTaken | s.HardwareUnreadable):
            fact = replace(fact, troubles=(*fact.troubles, *self._outbox.troubles()))
        self._inputs.put_nowait(fact)

    async def _beat(self, sampler: Sampler) -> None:
        await self._reached()  # the first sign of life must not go to nobody
        await sampler.beat()

    async def _say_alive(self) -> None:
        await self._reached()
        await self._link.say_alive({self._settings.node: self._session})

    async def _send_sample(self, sample: NodeSample) -> None:
        found = await self._reached()
        memory = self._machine.memory
        starting = starting_parts(memory)
        if starting:
            loaded = await self._supervisor.loaded(starting, sources_of(memory, starting))
            sizes = {name: told.weights_bytes for name, told in loaded.items()}
            sample = replace(
                sample,
                progress=await self._supervisor.progress(starting),
                loaded_bytes={name: told.read_bytes for name, told in loaded.items()},
                weights_bytes={name: size for name, size in sizes.items() if size is not None},
            )
        message = wire.encode_sample(self._settings.cluster, sample, time=now())
        await found.publish_sample(message.subject, message.payload)
        self._sample_pulse.show()


async def _for_ever(loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop without which the agent is none: should it end, the agent fails with it."""
    await loop()
    raise RuntimeError(f"{getattr(loop, '__qualname__', loop)} has ended, and must not")


def gone_of(memory: Memory, found: Sequence[s.EngineFound]) -> dict[s.Start, Assignment | None]:
    """Return the remembered starts of engines that are not there any more, and what they ran."""
    parts = ((start_of(key_of(n), p), p) for n, p in memory.parts.items() if not rests(p))
    there = {engine.start for engine in found}
    return {start: part.assignment for start, part in parts if start not in there}


def started_pids(memory: Memory) -> dict[s.Start, int]:
    """Return the process ids of the engines that are remembered."""
    parts = memory.parts.items()
    return {start_of(key_of(n), p): p.pid for n, p in parts if p.pid is not None}


def starting_parts(memory: Memory) -> dict[str, s.Start]:
    """Return the parts whose engines are coming up, by their names, with their starts."""
    parts = memory.parts.items()
    return {n: start_of(key_of(n), p) for n, p in parts if p.phase == "starting" and p.pid}


def sources_of(memory: Memory, parts: Mapping[str, s.Start]) -> dict[str, str]:
    """Return the source of the model of each of these parts, of those that have one."""
    assigned = {name: memory.parts[name].assignment for name in parts}
    told = {name: found.entry.source for name, found in assigned.items() if found is not None}
    return {name: source for name, source in told.items() if source is not None}


def _told(event: e.Event) -> dict[str, object]:
    """Return what an event says in the agent's own log: its plain values, long ones left out."""
    values = msgspec.structs.asdict(event)
    return {k: v for k, v in values.items() if isinstance(v, str | int | float) and k != "output"}


def policy_of(settings: Settings) -> Policy:
    """Return the brain's numbers that can be set."""
    ports = settings.ports
    return Policy(
        first_port=ports[0],
        last_port=ports[-1],
        address=settings.host,
        failing_after=settings.failing_after,
        limits=settings.limits,
    )


async def run_agent(
    settings: Settings, *, stop_engines: bool = False, capture: Path | None = None
) -> None:
    """Run the agent of this machine until it is told to leave (SIGTERM, SIGINT).

    With `stop_engines` its engines end first; else they go on, and the next agent adopts them.
    With `capture` the node is simulated: it has what a captured folder holds, and starts only
    entries that bring their own command. Raises `DataFolderError` when the data folder cannot be
    used or another agent uses it, and `UsageError` when the folder holds no capture.
    """
    folder, hardware = settings.data / AGENT_FOLDER, hardware_settings(settings)
    if capture is not None:
        folder = simulated_folder(settings)
        hardware = simulated_hardware(settings.node, capture)
        await _check_capture(hardware)
    systemd = supervision()
    # From the very start: a signal while the agent comes up must not leave its engines behind.
    with (
        hearing_signals() as signals,
        hearing_hangups() as hangups,
        held(folder, "agent"),
    ):
        async with open_outbox(folder) as outbox:
            identity = await outbox.identity()
            boot = await outbox.kept("boot_id")
            this_boot = boot_id() or "unknown"
            started = e.NodeStarted(
                boot_id=this_boot,
                agent_version=__version__,
                address=settings.host,
                simulated=capture is not None,
                labels=settings.node_labels,
            )
            machine = NodeMachine(
                stored_memory(await outbox.kept("memory")), policy_of(settings), started
            )
            systemd.tell("READY=1")
            agent = Agent(settings, folder, hardware, outbox, machine, this_boot)
            rebooted = boot is not None and boot.decode() != this_boot
            await agent.run(identity, rebooted, signals, hangups, stop_engines, systemd)


def simulated_folder(settings: Settings) -> Path:
    """Return where a simulated node keeps what the agent of a real one keeps in `agent`."""
    return settings.data / SIMULATED_FOLDER / settings.node


async def _check_capture(hardware: HardwareSettings) -> None:
    """Refuse a folder that is no capture. One of a machine that failed is one."""
    with contextlib.suppress(BackendUnavailable):
        await discover(hardware)


def stored_memory(stored: bytes | None) -> Memory:
    """Return the remembered state; one that cannot be read is begun anew, and said so.

    Nothing is lost by that: engines are found by their marker and the command is read again.
    """
    if stored is None:
        return Memory()
    try:
        return msgspec.json.decode(stored, type=Memory)
    except msgspec.MsgspecError as error:
        log.warning("memory_unreadable", reason=str(error))
        return Memory()
