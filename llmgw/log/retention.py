"""Old records out of the log and into an archive: `ctl archive`.

First the records are in an archive that was read back and checked, and a snapshot on the server
stands for them. Then the log lets go of just these (`llmgw.log.cutting`). Where it does not, the
archive goes again, unless it may be the only copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from llmgw.core.cluster import Cluster
from llmgw.errors import LlmgwError, UsageError
from llmgw.log.archive import Archive, Contents, write_archive
from llmgw.log.base import Bounds, Message
from llmgw.log.cutting import NotCut
from llmgw.log.joined import join
from llmgw.log.keeper import newest_for
from llmgw.log.snapshots import Snapshot, Snapshots, encode
from llmgw.replay import fold_log, span

LEAST_AGE_SECONDS = 300.0
"""Younger records stay: who follows the log may not have read them yet."""

_SECOND_NS = 1_000_000_000


class Retained(Protocol):
    """What is asked of a log on a server: see `JetStreamLog`."""

    def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from `start` on."""
        ...

    async def bounds(self) -> Bounds:
        """Return the first and last sequence stored now."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots beside the log."""
        ...

    async def let_go(self, last: int) -> None:
        """Let all records go up to a sequence; see `llmgw.log.cutting.cut`."""
        ...


class Moved(NamedTuple):
    """What is in the archive, which snapshot stands for it, and where the log begins now."""

    contents: Contents
    snapshot: int
    log_first: int


async def move(
    log: Retained,
    path: Path,
    *,
    cluster: str,
    before_ns: int,
    now_ns: int,
    older: Archive | None = None,
    force: bool = False,
    least_age_seconds: float = LEAST_AGE_SECONDS,
) -> Moved:
    """Write what was stored before a time into an archive, and let it go from the log.

    `older` is the archive that an earlier move made; the new one holds that, too, so that one
    file and the live log are always the whole. Raises `UsageError` where nothing is that old or
    all is, and `LlmgwError` where no snapshot stands for what would go: nothing is gone then.
    """
    bounds = await log.bounds()
    if bounds.first > 1 and older is None:
        raise UsageError(
            f"the log begins at sequence {bounds.first}: name the archive that holds what was "
            "before with --archive, so that the new one holds all"
        )
    if older is not None and older.contents.first > 1:
        raise UsageError(
            f"{older.path} begins at sequence {older.contents.first}: name the archive that holds "
            "the log from its first record on, so that the new one holds all"
        )
    last = await _last_before(log, bounds, before_ns)
    if now_ns - before_ns < least_age_seconds * _SECOND_NS:
        raise UsageError(
            f"only what is older than {least_age_seconds:g} s can be moved: name an earlier time"
        )
    snapshot = await _covering(log, bounds, last)
    whole = await join(older, log) if older is not None else log  # type: ignore[arg-type]
    was_there = await asyncio.to_thread(path.exists)
    contents = await write_archive(
        path,
        span(whole, until=last),
        cluster=cluster,
        log=Bounds(1, bounds.last, bounds.created_ns),
        now_ns=now_ns,
        force=force,
        state=Cluster(),
    )
    try:
        await log.let_go(last)
    except NotCut as error:
        if was_there:
            raise LlmgwError(f"{error}. {path} is written; the log holds all of it, too") from error
        await asyncio.to_thread(path.unlink)
        raise
    except LlmgwError as error:
        raise LlmgwError(
            f"whether the log let go of what is in {path} is not known ({error}). Keep that file; "
            "`llmgw ctl replay --to 1` says where the log begins"
        ) from error
    return Moved(contents, snapshot.sequence, (await log.bounds()).first)


async def _last_before(log: Retained, bounds: Bounds, before_ns: int) -> int:
    last = 0
    async for batch in span(log, start=bounds.first, until_ns=before_ns - 1, beyond=True):
        last = batch[-1].sequence
    if not last:
        raise UsageError("nothing in the log is older than that")
    if last >= bounds.last:
        raise UsageError(
            "everything in the log is older than that, and a log without any record looks like "
            "one that was wiped: name an earlier time"
        )
    return last


async def _covering(log: Retained, bounds: Bounds, last: int) -> Snapshot:
    """Return a snapshot on the server that stands for the records up to `last`, or make one."""
    found = await newest_for(log, bounds, log.snapshots, least=last)
    if found is None:
        state = await fold_log(log, bounds.last)
        if state.needs_upgrade is not None:
            raise LlmgwError(
                f"the log holds {state.needs_upgrade}: a snapshot of this version would lack it. "
                "Upgrade llmgw first"
            )
        await log.snapshots.save(state.sequence, encode(state, bounds.created_ns))
        found = await newest_for(log, bounds, log.snapshots, least=last)
    if found is None:
        raise LlmgwError(
            "the server did not keep a snapshot that stands for these records: nothing was moved"
        )
    return found
