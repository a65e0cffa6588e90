"""The controller: follow, fold, decide, append. The shell around `core.fold` and `core.decide`.

One task folds the log. While this controller holds the lease, another asks `decide` and appends
what comes back, events fenced against every other controller, and waits until its own records
came back through the fold before it asks again. A third notes silence: the clock is a fact that
only a shell can see. It may be killed anywhere; the next one folds the log and goes on, from a
snapshot where there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Sequence

import anyio
import structlog

from llmgw import __version__, wire
from llmgw.clock import now
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Node
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.telemetry import ControllerHeartbeat
from llmgw.core.watch import Watch
from llmgw.errors import (
    AppendRefused,
    DataFolderError,
    LlmgwError,
    LogUnreachable,
    MalformedRecord,
)
from llmgw.folding import fold
from llmgw.log.base import LogRewound
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.keeper import Keeper
from llmgw.log.lease import Lease
from llmgw.log.snapshots import LocalSnapshots, open_snapshots
from llmgw.service import serve_views
from llmgw.settings import Settings, nats_url
from llmgw.stopping import hearing_signals

RETRY_SECONDS = 1.0
WATCH_SECONDS = 1.0
BATCH = 500
FOLDER = "controller"
"""Where in the data folder a controller keeps what it need not fold again."""

log = structlog.get_logger()


class Controller:
    """One running controller. Made and run by `run_controller`."""

    def __init__(
        self,
        settings: Settings,
        found: JetStreamLog,
        keeper: Keeper,
        awaited: frozenset[str] = frozenset(),
        created_ns: int = 0,
    ) -> None:
        self.awaited = awaited
        """Nodes of the log of before that this one has not heard of yet."""
        self.created_ns = created_ns
        self._begun_ns = 0
        self._settings = settings
        self._log = found
        self._keeper = keeper
        self._holder = f"{settings.node}-{os.getpid()}-{secrets.token_hex(4)}"
        subject = found.lease_subject("controller")
        self._lease = Lease(
            found,
            subject,
            lease_seconds=settings.lease_seconds,
            silence=self._silence_of,
        )
        self._ear = found.ear(
            [
                wire.heartbeat_subject(settings.cluster, "*"),
                wire.telemetry_subject(settings.cluster, "*"),
                wire.leader_heartbeat_subject(settings.cluster),
            ],
            self._hear,
        )
        self._renewed = anyio.Event()
        self._said = ""
        self.state = Cluster()
        self._folded = asyncio.Condition()
        self._number = 0
        self._term = 0
        self._appending = asyncio.Lock()
        self._beats: dict[str, float] = {}
        self._leader_beat: tuple[str, float] = ("", 0.0)
        self._watch: Watch | None = None

    async def run(self) -> None:
        """Run for ever. Raises `LogRewound` when the log is not the one that was folded."""
        bounds = await self._log.bounds()
        self.state = await self._keeper.load(self._log, bounds)
        log.info("controller_begins", sequence=self.state.sequence, of=bounds.last)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fold)
            await self._until_folded(bounds.last)
            log.info("controller_caught_up", sequence=bounds.last)
            if self.created_ns == bounds.created_ns:  # put back to an earlier state
                self._begun_ns = self.state.time_ns
            self.created_ns = bounds.created_ns
            tasks.start_soon(self._keeper.keep, self.state, lambda: self._lease.held)
            tasks.start_soon(self._ear.listen)
            tasks.start_soon(self._lead)
            tasks.start_soon(serve_views, self._log, self._settings, self.state, self._until_folded)

    # --- folding -------------------------------------------------------------------------------

    async def _fold(self) -> None:
        state = self.state
        batches = self._log.follow(state.sequence + 1)
        async with contextlib.aclosing(batches):  # type: ignore[type-var]
            async for batch in batches:
                fold(state, batch)
                async with self._folded:
                    self._folded.notify_all()
                await anyio.lowlevel.checkpoint()

    async def _until_folded(self, sequence: int) -> None:
        async with self._folded:
            await self._folded.wait_for(lambda: self.state.sequence >= sequence)

    # --- leading -------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Take the lead whenever it is free, and lead until it is lost."""
        while True:
            try:
                if await self._lease.acquire(self._holder):
                    await self._lead_once()
            except LogRewound:
                raise
            except LogUnreachable as error:
                self._say_once("lead_not_to_be_had", str(error))
            else:
                self._said = ""
            await anyio.sleep(self._lease.pause_seconds)

    async def _lead_once(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                await self._take_the_lead()
                tasks.start_soon(self._say_leading)
                tasks.start_soon(self._watch_silence)
                tasks.start_soon(self._decide)
        except* (AppendRefused, LogUnreachable) as group:
            log.warning("controller_lost_the_lead", term=self._term, reason=_first(group))
        finally:
            self._watch = None

    async def _take_the_lead(self) -> None:
        await self._until_folded((await self._log.bounds()).last)
        self._term = self.state.term + 1
        self._number = 0
        await self._append(
            [e.ControllerElected(term=self._term, holder=self._holder, llmgw_version=__version__)]
        )
        log.info("controller_leads", term=self._term)

    async def _renew(self) -> None:
        """Keep the lease, also beyond its end while the log is away: then nothing is said."""
        while True:
            await anyio.sleep(self._lease.pause_seconds)
            try:
                if not await self._lease.renew():
                    raise AppendRefused("another controller took the lease")
            except LogUnreachable as error:
                self._say_once("lease_not_renewed", str(error))
            else:
                self._said = ""
                self._renewed.set()
                self._renewed = anyio.Event()

    async def _say_leading(self) -> None:
        """Let who waits hear of each renewal, and that this leader is there while there is none."""
        for number in itertools.count(1):
            beat = ControllerHeartbeat(
                holder=self._holder,
                term=self._term,
                lease_sequence=self._lease.sequence,
                number=number,
            )
            message = wire.encode_leader_heartbeat(self._settings.cluster, beat, time=now())
            await self._log.say(message.subject, message.payload)
            with anyio.move_on_after(1.5 * self._lease.pause_seconds):
                await self._renewed.wait()

    def _say_once(self, what: str, reason: str) -> None:
        """Log what is tried again and again only when it begins to fail."""
        if self._said != what:
            self._said = what
            log.warning(what, reason=reason)

    async def _until_reported(self) -> None:
        """After a log was replaced, decide nothing before the nodes have said what they run.

        One that says nothing for as long as makes a node lost is not waited for any longer.
        """
        if missing := self._unheard():
            seconds = self._settings.node_lost_seconds
            log.warning("waits_for_nodes", nodes=missing, at_most_seconds=seconds)
            with anyio.move_on_after(seconds):
                async with self._folded:
                    await self._folded.wait_for(lambda: not self._unheard())
        self.awaited = frozenset()

    def _unheard(self) -> list[str]:
        """Return the awaited nodes that have not told what they have since this log was found."""
        known = self.state.nodes
        told = {n for n, node in known.items() if node.heard_ns > self._begun_ns and is_told(node)}
        return sorted(self.awaited - told)

    async def _decide(self) -> None:
        """Ask for decisions after every change, and append them, until the lead is lost."""
        await self._until_reported()
        decided_at = -1
        while True:
            async with self._folded:
                await self._folded.wait_for(lambda: self.state.sequence > decided_at)  # noqa: B023
            decided_at = self.state.sequence
            if self.state.term != self._term:
                raise AppendRefused(f"term {self.state.term} leads")
            intentions = decide(self.state)
            events = [i for i in intentions if isinstance(i, e.Decision)]
            if events:
                await self._append(events)
            commands = [i for i in intentions if isinstance(i, SetAssignments)]
            if commands:
                await self._command(commands)

    async def _append(self, events: Sequence[e.ControllerEvent]) -> None:
        """Append events of ours, fenced, and wait until they came back through the fold."""
        async with self._appending:
            for start in range(0, len(events), BATCH):
                batch = events[start : start + BATCH]
                await self._until_held()
                sequences = await self._log.append_many(
                    [self._encode(event) for event in batch],
                    expected_last=self.state.last_controller_sequence,
                    fence=wire.controller_fence(self._settings.cluster),
                )
                for event in batch:
                    log.info(event.wire.replace(".", "_"), **_told(event))
                await self._until_folded(sequences[-1])

    async def _command(self, commands: list[SetAssignments]) -> None:
        await self._until_held()
        cluster = self._settings.cluster
        messages = []
        for command in commands:
            try:
                messages.append(wire.encode_command(cluster, command, time=now()))
            except MalformedRecord as error:  # of one node; the others are told all the same
                log.error("command_too_large", node=command.node, reason=str(error))  # noqa: TRY400
            else:
                log.info("command", node=command.node, revision=command.revision)
        if messages:
            sequences = await self._log.append_many(messages)
            await self._until_folded(sequences[-1])

    async def _until_held(self) -> None:
        """A controller that slept past its lease finds out here, before it says anything."""
        while not self._lease.held:
            await self._renewed.wait()
        if self.state.term > self._term:
            raise AppendRefused(f"term {self.state.term} leads")

    def _encode(self, event: e.ControllerEvent) -> wire.Outgoing:
        self._number += 1
        return wire.encode_event(
            self._settings.cluster,
            event,
            session=f"{self._holder}-{self._term}",
            number=self._number,
            time=now(),
        )

    # --- silence -------------------------------------------------------------------------------

    def _hear(self, subject: str, payload: bytes) -> None:
        """Take a sign of life of a node, heartbeat or sample, or the leader's."""
        heard_at = time.monotonic()
        kind, *_, name = subject.split(".")[3:]
        if kind == "heartbeat" and subject == wire.leader_heartbeat_subject(self._settings.cluster):
            self._hear_leader(subject, payload, heard_at)
        elif name in self.state.nodes:
            if kind == "heartbeat":
                self._beats[name] = heard_at
            if self._watch is not None:
                self._watch.hear(name, heard_at)

    def _hear_leader(self, subject: str, payload: bytes, heard_at: float) -> None:
        with contextlib.suppress(MalformedRecord):
            beat = wire.decode_leader_heartbeat(subject, payload)
            self._lease.hear(beat.holder, beat.lease_sequence)
            if beat.holder == self._lease.leader != self._holder:
                if beat.holder != self._leader_beat[0]:
                    log.info("controller_waits", leader=beat.holder, term=beat.term)
                self._leader_beat = (beat.holder, heard_at)

    def _silence_of(self, holder: str) -> float:
        """Return how long a leader could have been heard and was not; 0 if it never was."""
        name, heard_at = self._leader_beat
        if name != holder or self._ear.since is None:
            return 0.0
        return time.monotonic() - max(heard_at, self._ear.since)

    async def _watch_silence(self) -> None:
        """Write down which nodes are silent for too long, and which are back; see `core.watch`."""
        limit_seconds = self._settings.node_lost_seconds
        watch = self._watch = Watch(limit_seconds, self.state, time.monotonic(), self._beats)
        doubt = None
        while True:
            await anyio.sleep(WATCH_SECONDS)
            connected = self._log.connected and self._lease.held
            noted = watch.look(self.state, time.monotonic(), connected=connected)
            if watch.doubt not in (doubt, None):
                log.error("silence_not_believed", reason=watch.doubt)
            doubt = watch.doubt
            if noted:
                await self._append(noted)

    async def release(self) -> None:
        """Give the lease up, so that the next controller need not wait for its end."""
        with contextlib.suppress(LlmgwError), anyio.move_on_after(2):
            await self._keeper.leave(self.state)
        with contextlib.suppress(LlmgwError), anyio.move_on_after(2):
            await self._lease.release()


def is_told(node: Node) -> bool:
    """Return whether it is known what a node has, or that it cannot be known."""
    return node.started and bool(node.inventory or node.unreadable)


def _told(event: e.ControllerEvent) -> dict[str, object]:
    names = ("term", "replica", "model", "node", "reason", "reasons", "refusals", "missing")
    return {n: getattr(event, n) for n in names if hasattr(event, n)}


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def run_controller(settings: Settings) -> None:
    """Run a controller until SIGTERM or SIGINT; reconnects, and folds anew a log that changed."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, settings)
        with hearing_signals() as signals:
            async for number in signals:
                log.info("controller_leaving", signal=number.name)
                tasks.cancel_scope.cancel()
                return


async def _serve(settings: Settings) -> None:
    async with contextlib.AsyncExitStack() as stack:
        local = None
        try:
            local = await stack.enter_async_context(open_snapshots(settings.data / FOLDER))
        except DataFolderError as error:
            log.warning("snapshots_not_kept_here", reason=str(error))
        await _serve_with(settings, local)


async def _serve_with(settings: Settings, local: LocalSnapshots | None) -> None:
    name = f"controller {settings.node}"
    awaited: frozenset[str] = frozenset()
    created_ns = 0
    while True:
        try:
            found = await connect(
                nats_url(settings), settings.cluster, name=name, replicas=settings.log_replicas
            )
        except LogUnreachable as error:
            log.warning("log_unreachable", reason=str(error))
            await anyio.sleep(RETRY_SECONDS)
            continue
        controller = Controller(
            settings, found, Keeper(local, found.snapshots), awaited, created_ns
        )
        try:
            await controller.run()
        except* (LogRewound, LogUnreachable) as group:
            log.warning("controller_folds_anew", reason=_first(group))
            awaited, created_ns = controller.awaited, controller.created_ns
            if group.subgroup(LogRewound) is not None:
                nodes = controller.state.nodes.values()
                awaited |= {node.name for node in nodes if node.started and not node.lost}
        finally:
            with anyio.CancelScope(shield=True):
                await controller.release()
                await found.close()
        await anyio.sleep(RETRY_SECONDS)
