"""The controller: follow, fold, decide, append. The shell around `core.fold` and `core.decide`.

One task folds the log. While this controller holds the lease, another asks `decide` and appends
what comes back, events fenced against every other controller, and waits until its own records
came back through the fold before it asks again. A third notes silence: the clock is a fact that
only a shell can see. It may be killed anywhere; the next one folds the log and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import time
from collections.abc import Sequence

import anyio
import structlog

from llmgw import wire
from llmgw.clock import now
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.errors import AppendRefused, LlmgwError, LogUnreachable, MalformedRecord
from llmgw.folding import fold
from llmgw.log.base import LogRewound
from llmgw.log.jetstream import JetStreamLog, connect
from llmgw.log.lease import Lease
from llmgw.settings import Settings, nats_url
from llmgw.stopping import hearing_signals

RETRY_SECONDS = 1.0
LEASE_SECONDS = 15.0
WATCH_SECONDS = 1.0
PAUSED_SECONDS = 5.0
BATCH = 500

log = structlog.get_logger()


class Controller:
    """One running controller. Made and run by `run_controller`."""

    def __init__(self, settings: Settings, found: JetStreamLog) -> None:
        self._settings = settings
        self._log = found
        self._holder = f"{settings.node}-{os.getpid()}-{secrets.token_hex(4)}"
        self._lease = Lease(found, found.lease_subject("controller"), lease_seconds=LEASE_SECONDS)
        self.state = Cluster()
        self._folded = asyncio.Condition()
        self._number = 0
        self._term = 0
        self._appending = asyncio.Lock()
        self._newest_sample: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._counting_since = 0.0
        self._facts: dict[str, int] = {}

    async def run(self) -> None:
        """Run for ever. Raises `LogRewound` when the log is not the one that was folded."""
        target = (await self._log.bounds()).last
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fold)
            await self._until_folded(target)
            log.info("controller_caught_up", sequence=target)
            tasks.start_soon(self._listen)
            tasks.start_soon(self._lead)

    # --- folding -------------------------------------------------------------------------------

    async def _fold(self) -> None:
        state = self.state
        batches = self._log.follow(1)
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
            except (AppendRefused, LogUnreachable) as error:
                log.warning("controller_steps_back", reason=str(error))
            await anyio.sleep(LEASE_SECONDS / 3 if not self._lease.held else RETRY_SECONDS)

    async def _lead_once(self) -> None:
        await self._until_folded((await self._log.bounds()).last)
        self._term = self.state.term + 1
        self._number = 0
        await self._append([e.ControllerElected(term=self._term, holder=self._holder)])
        log.info("controller_leads", term=self._term)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._renew)
                tasks.start_soon(self._watch_silence)
                tasks.start_soon(self._decide)
        except* (AppendRefused, LogUnreachable) as group:
            log.warning("controller_lost_the_lead", term=self._term, reason=_first(group))

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(LEASE_SECONDS / 3)
            if not await self._lease.renew():
                raise AppendRefused("another controller took the lease")

    async def _decide(self) -> None:
        """Ask for decisions after every change, and append them, until the lead is lost."""
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
                self._check_lease()
                sequences = await self._log.append_many(
                    [self._encode(event) for event in batch],
                    expected_last=self.state.last_controller_sequence,
                    fence=wire.controller_fence(self._settings.cluster),
                )
                for event in batch:
                    log.info(event.wire.replace(".", "_"), **_told(event))
                await self._until_folded(sequences[-1])

    async def _command(self, commands: list[SetAssignments]) -> None:
        self._check_lease()
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

    def _check_lease(self) -> None:
        """A controller that slept past its lease finds out here, before it says anything."""
        if not self._lease.held:
            raise AppendRefused("the lease ran out")

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

    async def _listen(self) -> None:
        """Note when each node was last heard.

        The first sample of a node is the newest that the stream kept, however old: it is only
        what the next one is told apart from.
        """
        samples = self._log.follow_samples()
        async with contextlib.aclosing(samples):  # type: ignore[type-var]
            async for batch in samples:
                for message in batch:
                    node = message.subject.rsplit(".", 1)[-1]
                    if message.sequence > self._newest_sample.setdefault(node, message.sequence):
                        self._newest_sample[node] = message.sequence
                        self._heard[node] = time.monotonic()

    async def _watch_silence(self) -> None:
        """Write down which nodes are silent for too long, and which are heard again.

        The first deadline runs from the moment of taking the lead. If this process itself was
        away (paused, or without the log), or if all nodes fell silent together, the fault is
        more likely on this side: nobody is lost then, and every deadline starts again.
        """
        self._counting_since = woke = time.monotonic()
        self._facts = {node.name: node.heard_ns for node in self.state.nodes.values()}
        while True:
            await anyio.sleep(WATCH_SECONDS)
            late = time.monotonic() - woke - WATCH_SECONDS > PAUSED_SECONDS
            woke = time.monotonic()
            if late or not self._log.connected:
                self._counting_since = woke
                continue
            noted = self._noted(woke)
            if noted:
                await self._append(noted)

    def _noted(self, moment: float) -> list[e.ControllerEvent]:
        limit = self._settings.node_lost_seconds
        nodes = [node for node in self.state.nodes.values() if node.started]
        self._hear_facts(moment)
        heard = {node.name: self._heard.get(node.name, -math.inf) for node in nodes}
        silent = {node.name: moment - max(heard[node.name], self._counting_since) for node in nodes}
        lost = [n.name for n in nodes if not n.lost and silent[n.name] > limit]
        if len(lost) > 1 and len(lost) == len(nodes):
            log.error("all_nodes_silent", nodes=len(lost), seconds=limit)
            self._counting_since = moment
            return []
        back = [n.name for n in nodes if n.lost and moment - heard[n.name] < limit]
        term = self._term
        return [
            *(e.NodeLost(term=term, node=n, silent_seconds=round(silent[n], 1)) for n in lost),
            *(e.NodeReturned(term=term, node=n) for n in back),
        ]

    def _hear_facts(self, moment: float) -> None:
        """A fact is a sign of life as much as a sample is, and a new node's first one."""
        for node in self.state.nodes.values():
            if self._facts.get(node.name) != node.heard_ns:
                self._facts[node.name] = node.heard_ns
                self._heard[node.name] = moment

    async def release(self) -> None:
        """Give the lease up, so that the next controller need not wait for its end."""
        with contextlib.suppress(LlmgwError), anyio.move_on_after(2):
            await self._lease.release()


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
    name = f"controller {settings.node}"
    while True:
        try:
            found = await connect(nats_url(settings), settings.cluster, name=name)
        except LogUnreachable as error:
            log.warning("log_unreachable", reason=str(error))
            await anyio.sleep(RETRY_SECONDS)
            continue
        controller = Controller(settings, found)
        try:
            await controller.run()
        except* (LogRewound, LogUnreachable) as group:
            log.warning("controller_folds_anew", reason=_first(group))
        finally:
            with anyio.CancelScope(shield=True):
                await controller.release()
                await found.close()
        await anyio.sleep(RETRY_SECONDS)
