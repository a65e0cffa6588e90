"""What `llmgw up` tells on the terminal: the log as it grows, and engines as they load.

A reader of the log like any other; besides, it has the operator's catalog applied where it is not
the one in force, once there is a node that it could be placed on.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import anyio

from llmgw.asking import apply_catalog
from llmgw.catalog.entries import Catalog
from llmgw.core.cluster import Cluster, Part
from llmgw.core.fold import apply
from llmgw.core.stimuli import Key, Start
from llmgw.core.telemetry import NodeSample
from llmgw.errors import LlmgwError
from llmgw.log.base import LogRewound
from llmgw.log.jetstream import JetStreamLog
from llmgw.masking import visible
from llmgw.replay import fold_log, live_samples, records
from llmgw.settings import Settings
from llmgw.supervise import PROGRESS_BYTES, last_output, log_name
from llmgw.views.replicas import how_far
from llmgw.views.summaries import summary

PROGRESS_SECONDS = 2.0
RETRY_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
"""How long nodes that come up are waited for before the catalog is asked for all the same."""


async def tell(
    settings: Settings,
    log: JetStreamLog,
    catalog: Catalog | None,
    file: Path | None,
    nodes: frozenset[str] = frozenset(),
) -> None:
    """Say what happens, for ever, and have `catalog` applied if it is new.

    It is applied once `nodes` have told what they have, or have been waited for long enough: the
    first answer would else be that no node has anything. Nothing that befalls the log ends this:
    who only tells must not end what it tells of.
    """
    teller = _Teller(settings, log)
    asking = _Asking(settings, log, catalog, file, nodes)
    said: tuple[str, int] | None = None
    while True:
        try:
            if not teller.began:
                await teller.begin()
            await teller.go_on(asking)
        except* LogRewound:
            teller.start_over()
            said = None
            say("the log was wiped or replaced: nothing was stopped, engines serve on.")
            say("The new log is told from its beginning; have the catalog applied again if it")
            say("is empty: llmgw ctl apply FILE")
        except* LlmgwError as group:
            reason = _reason(group)
            if said != (reason, teller.sequence):  # Once, unless something was told in between.
                said = reason, teller.sequence
                say(f"the log cannot be followed, trying again: {reason}")
        await anyio.sleep(RETRY_SECONDS)


class _Asking:
    """The catalog that is to be applied, at the moment when it can be answered."""

    def __init__(
        self,
        settings: Settings,
        log: JetStreamLog,
        catalog: Catalog | None,
        file: Path | None,
        nodes: frozenset[str],
    ) -> None:
        self._settings = settings
        self._log = log
        self._catalog = catalog
        self._file = file
        self._missing = set(nodes)
        self._complete = anyio.Event()
        self._done = catalog is None

    def look(self, state: Cluster, node: str) -> None:
        """Note whether a node that was heard of has told what it has, or that it cannot."""
        known = state.nodes.get(node)
        if known is not None and known.started and (known.inventory or known.unreadable):
            self._missing.discard(node)
            if not self._missing:
                self._complete.set()

    async def ask(self, state: Cluster) -> None:
        """Have the catalog applied, once, if another is in force then."""
        if self._done:
            return
        for node in [*self._missing]:
            self.look(state, node)
        if self._missing:
            with anyio.move_on_after(PATIENCE_SECONDS):
                await self._complete.wait()
        assert self._catalog is not None
        if self._catalog != state.catalog:
            name = None if self._file is None else str(self._file)
            await apply_catalog(self._log, self._settings.cluster, self._catalog, name)
        self._done = True


class _Teller:
    """How far the log has been told, and which log that was."""

    def __init__(self, settings: Settings, log: JetStreamLog) -> None:
        self.began = False
        self._settings = settings
        self._log = log
        self._state = Cluster()
        self._created_ns: int | None = None

    @property
    def sequence(self) -> int:
        """The last record that was told or folded, 0 before the first."""
        return self._state.sequence

    async def begin(self) -> None:
        """Fold what the log holds, untold."""
        self._created_ns = (await self._log.bounds()).created_ns
        self._state = await fold_log(self._log)
        self.began = True

    async def go_on(self, asking: _Asking) -> None:
        """Say what happens from the first record on that was not told."""
        bounds = await self._log.bounds()
        if self._created_ns not in (None, bounds.created_ns):
            raise LogRewound("it was created at another time")
        self._created_ns = bounds.created_ns
        start = self._state.sequence + 1 if self._state.sequence else max(bounds.first, 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_show_progress, self._settings, self._log, self._state)
            tasks.start_soon(asking.ask, self._state)
            async for record in records(self._log, start=start):
                apply(self._state, record)
                asking.look(self._state, record.node)
                say(f"{record.sequence:>6}  {summary(record.body)}")

    def start_over(self) -> None:
        """Forget what was told: it was another log."""
        self._state = Cluster()
        self._created_ns = None


def _reason(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def _show_progress(settings: Settings, log: JetStreamLog, state: Cluster) -> None:
    """While an engine loads, say for how long, what it has read and what it last wrote."""
    began: dict[tuple[str, int], float] = {}
    while True:
        await anyio.sleep(PROGRESS_SECONDS)
        starting = {
            (replica.name, number): (replica.generation, part)
            for replica in state.replicas.values()
            for number, part in enumerate(replica.parts)
            if part.phase == "starting"
        }
        began = {key: began.get(key, time.monotonic()) for key in starting}
        samples = await _samples(settings, log, state) if starting else {}
        for (name, number), (generation, part) in starting.items():
            seconds = time.monotonic() - began[name, number]
            line = await anyio.to_thread.run_sync(
                _last_line, settings.data, name, number, generation, part
            )
            far = _how_far(samples.get(part.node), f"{name}/{number}", line)
            say(f"        {name} is loading, {seconds:.0f} s so far: {far}")


async def _samples(settings: Settings, log: JetStreamLog, state: Cluster) -> dict[str, NodeSample]:
    """Return the newest sample of each node; none where the log cannot tell them now."""
    try:
        return await live_samples(log, settings.cluster, state, settings.sample_seconds)
    except LlmgwError:
        return {}


def _how_far(sample: NodeSample | None, name: str, line: str | None) -> str:
    if sample is None:
        return line or "no output yet"
    line = line or sample.progress.get(name, "no output yet")
    loaded, weights = sample.loaded_bytes.get(name), sample.weights_bytes.get(name)
    return how_far(line, loaded, weights) or line


def _last_line(data: Path, name: str, number: int, generation: int, part: Part) -> str | None:
    """Return what an engine of this machine's own node printed last."""
    start = Start(Key(name, number), generation, part.attempt)
    path = data / "agent" / "engines" / log_name(start)
    lines = last_output(path, PROGRESS_BYTES).splitlines()
    return lines[-1][:120] if lines else None


def say(text: str) -> None:
    """Print a line for the person at the terminal: on stderr, because it is no data.

    What came from outside cannot move the cursor, and a terminal that went away ends nothing.
    """
    with contextlib.suppress(OSError):
        print(visible(text), file=sys.stderr, flush=True)
