"""An archive and the live log that goes on where it ends, read as one log.

What retention moved out of a log (`ctl archive`) so stays part of what replay sees. They may
overlap; where they do, the archive is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import structlog

from llmgw.errors import LlmgwError, UsageError
from llmgw.log.archive import Archive
from llmgw.log.base import Bounds, Log, Message
from llmgw.log.snapshots import Snapshot, Stored, Wanted
from llmgw.replay import first_stored

_log = structlog.get_logger(__name__)


class _Either:
    """The snapshots of both. Those on a server are the newest of its log, so they are first."""

    def __init__(self, archive: Archive, log: Log) -> None:
        stored: Stored | None = getattr(log, "snapshots", None)
        self._places = (archive.snapshots,) if stored is None else (stored, archive.snapshots)
        self.sequences = archive.snapshots.sequences

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        """Return the newest that can be used; see `Stored`."""
        for place in self._places:
            try:
                found = await place.newest(wanted)
            except LlmgwError as error:  # who may read a log may not be allowed to read those
                _log.warning("snapshots_unreadable", where="the log's server", reason=str(error))
                continue
            if found is not None:
                return found
        return None


class Joined:
    """A log that begins in an archive. Made by `join`."""

    def __init__(self, archive: Archive, log: Log) -> None:
        self._archive = archive
        self._log = log
        self.snapshots = _Either(archive, log)

    async def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from `start` on; see `Log.follow`."""
        last = self._archive.contents.last
        if start <= last:
            end = last if until is None else min(until, last)
            async for batch in self._archive.follow(start, subjects=subjects, until=end):
                yield batch
        if until is None or until > last:
            begin = max(start, last + 1)
            async for batch in self._log.follow(begin, subjects=subjects, until=until):
                yield batch

    async def first_stored(self, since_ns: int, start: int = 1) -> int:
        """Return the first sequence that was stored at a time or later; see `Archive`."""
        last = self._archive.contents.last
        found = await self._archive.first_stored(since_ns, start)
        if found <= last:
            return found
        return await first_stored(self._log, since_ns, max(start, last + 1))

    async def bounds(self) -> Bounds:
        """Return the archive's first and the log's last sequence."""
        now = await self._log.bounds()
        held = self._archive.contents
        return Bounds(held.first, max(now.last, held.last), now.created_ns)


async def join(archive: Archive, log: Log) -> Joined:
    """Return an archive and a log as one, or raise `UsageError` if neither continues the other."""
    held, now = archive.contents, await log.bounds()
    if now.created_ns != held.created_ns:
        raise UsageError(
            "the archive is of another log than the live one, which was wiped, replaced or "
            "imported since: they cannot be read as one"
        )
    if held.scrubbed:
        raise UsageError(
            "the archive is scrubbed: its names are not those of the live log, so they cannot be "
            "read as one"
        )
    if now.first > held.last + 1:
        raise UsageError(
            f"the archive ends at sequence {held.last} and the live log begins at {now.first}: "
            f"the records {held.last + 1} to {now.first - 1} are in neither"
        )
    return Joined(archive, log)
