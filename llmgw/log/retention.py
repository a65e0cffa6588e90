"""Old records out of the log and into an archive: `ctl archive`.

A log denies deleting and purging, and a server does not take that back. What it still does is to
let records go that are older than a stream's age limit; so that limit is set for a moment, and
taken away again. Before that the records are in an archive that was read back and checked, and a
snapshot stands for them. The archive holds a little more than what goes, never less.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from llmgw.errors import LlmgwError, UsageError
from llmgw.log import setup
from llmgw.log.archive import Archive, Contents, write_archive
from llmgw.log.base import Bounds, Message
from llmgw.log.connection import Connection
from llmgw.log.joined import join
from llmgw.log.keeper import newest_for
from llmgw.log.session import Session
from llmgw.log.snapshots import Snapshot, Snapshots, encode
from llmgw.replay import fold_log, span

_SECOND_NS = 1_000_000_000
_RESTORE_SECONDS = 60.0
_EXPIRY_SECONDS = 10.0
_LOOK_SECONDS = 0.1


class Margins(NamedTuple):
    """How far from now, and from the end of the archive, the log is cut."""

    least_age_seconds: float = 300.0
    kept_seconds: float = 30.0
    """Records so little older than the limit stay: asking takes time, and clocks differ."""


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

    async def let_go(self, before_ns: int, margins: Margins) -> None:
        """Let records go that were stored before a time."""
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
    margins: Margins = Margins(),  # noqa: B008 -- immutable
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
    last = await _last_before(log, bounds, before_ns)
    if now_ns - before_ns < margins.least_age_seconds * _SECOND_NS:
        raise _too_new(margins)  # before anything is written; the server's clock is asked later
    snapshot = await _covering(log, bounds, last)
    whole = await join(older, log) if older is not None else log  # type: ignore[arg-type]
    contents = await write_archive(
        path,
        span(whole, until=last),
        cluster=cluster,
        log=Bounds(1, bounds.last, bounds.created_ns),
        now_ns=now_ns,
        force=force,
    )
    await log.let_go(before_ns, margins)
    first = (await log.bounds()).first
    if first > last + 1:
        raise LlmgwError(
            f"the log now begins at sequence {first}, and {path} ends at {last}: the records in "
            "between are gone. The server's clock was set forward meanwhile; restore the store "
            "from a copy if they are needed"
        )
    return Moved(contents, snapshot.sequence, first)


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


# --- on the server -------------------------------------------------------------------------------


class _Found(msgspec.Struct):
    config: dict[str, Any]
    ts: str = ""


async def let_go(
    connection: Connection, stream: str, before_ns: int, margins: Margins, deadline_seconds: float
) -> None:
    """Have a stream let records go that were stored before a time, by its server's clock."""

    async def look(session: Session) -> _Found:
        return await setup.api(session, f"STREAM.INFO.{stream}", None, _Found)

    found = await connection.until_answered(look, deadline_seconds)
    limited = _limited(found, stream, before_ns, margins)

    async def limit(session: Session) -> None:
        await setup.api(session, f"STREAM.UPDATE.{stream}", limited, _Found)

    async def unlimit(session: Session) -> None:
        await setup.api(session, f"STREAM.UPDATE.{stream}", found.config, _Found)

    async def first(session: Session) -> int:
        return (await setup.stream_info(session, stream)).state.first_seq

    began = before = await connection.until_answered(first, deadline_seconds)
    try:
        await connection.until_answered(limit, deadline_seconds)
        # The server looks for what is too old beside its work, and then goes on until all is gone.
        for _ in range(round(_EXPIRY_SECONDS / _LOOK_SECONDS)):
            await asyncio.sleep(_LOOK_SECONDS)
            now = await connection.until_answered(first, deadline_seconds)
            if now == before and now != began:
                break
            before = now
    finally:
        restoring = asyncio.ensure_future(connection.until_answered(unlimit, _RESTORE_SECONDS))
        try:
            await asyncio.shield(restoring)
        except asyncio.CancelledError:
            await restoring
            raise
        except LlmgwError as error:
            raise LlmgwError(
                f"the age limit of {limited['max_age'] // _SECOND_NS} s that was set on the stream "
                f"{stream} could not be taken away again ({error}). Take it away at once, or it "
                f"goes on dropping records: nats stream edit {stream} --max-age=-1"
            ) from error


def _too_new(margins: Margins) -> UsageError:
    return UsageError(
        f"only what is older than {margins.least_age_seconds:g} s by the clock of the server "
        "can be moved: name an earlier time"
    )


def _limited(found: _Found, stream: str, before_ns: int, margins: Margins) -> dict[str, Any]:
    """Return the stream's settings with the age limit. Raises `UsageError` for a time too new."""
    if not found.ts:
        raise LlmgwError("the server does not tell its time: nats-server 2.10 or later is needed")
    age_ns = setup.nanoseconds(found.ts) - before_ns
    if age_ns < margins.least_age_seconds * _SECOND_NS:
        raise _too_new(margins)
    if found.config.get("max_age"):
        raise LlmgwError(f"the stream {stream} has an age limit already: take it away first")
    age_ns += int(margins.kept_seconds * _SECOND_NS)
    window = min(found.config.get("duplicate_window", 0), age_ns)
    return {**found.config, "max_age": age_ns, "duplicate_window": window}
