"""What `llmgw up` tells on the terminal: the log as it grows, and engines as they load.

A reader of the log like any other; besides, it has the operator's catalog applied where it is not
the one in force.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path

import anyio

from llmgw import wire
from llmgw.catalog.entries import Catalog
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Part
from llmgw.core.fold import apply
from llmgw.core.stimuli import Key, Start
from llmgw.log.jetstream import JetStreamLog
from llmgw.replay import fold_log, records
from llmgw.sample import now
from llmgw.settings import Settings
from llmgw.supervise import last_output, log_name
from llmgw.views.summaries import summary

PROGRESS_SECONDS = 2.0


async def tell(
    settings: Settings, log: JetStreamLog, catalog: Catalog | None, file: Path | None
) -> None:
    """Have `catalog` applied if it is new, then say what happens, for ever."""
    state = await fold_log(log)
    if catalog is not None and catalog != state.catalog:
        await _apply_catalog(settings, log, catalog, file)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_show_progress, settings, state)
        async for record in records(log, start=state.sequence + 1):
            apply(state, record)
            say(f"{record.sequence:>6}  {summary(record.body)}")


async def _apply_catalog(
    settings: Settings, log: JetStreamLog, catalog: Catalog, file: Path | None
) -> None:
    event = e.CatalogApplied(catalog=catalog, file=str(file) if file is not None else None)
    message = wire.encode_event(
        settings.cluster, event, session=secrets.token_hex(8), number=1, time=now()
    )
    await log.append(message.subject, message.payload, message_id=message.message_id)


async def _show_progress(settings: Settings, state: Cluster) -> None:
    """While an engine loads, say for how long and what it last wrote."""
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
        for (name, number), (generation, part) in starting.items():
            seconds = time.monotonic() - began[name, number]
            line = await anyio.to_thread.run_sync(
                _last_line, settings.data, name, number, generation, part
            )
            say(f"        {name} is loading, {seconds:.0f} s so far: {line}")


def _last_line(data: Path, name: str, number: int, generation: int, part: Part) -> str:
    start = Start(Key(name, number), generation, part.attempt)
    lines = last_output(data / "agent" / "engines" / log_name(start)).splitlines()
    return lines[-1][:120] if lines else "no output yet"


def say(text: str) -> None:
    """Print a line for the person at the terminal: on stderr, because it is no data."""
    print(text, file=sys.stderr, flush=True)
