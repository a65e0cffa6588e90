"""When a controller takes its state up from a snapshot, and when it keeps one.

A snapshot stands for a log only if the log still has, at the snapshot's sequence, the record that
was folded last: a store that was restored from a copy has another one there. Used by the
controller and, to look at a log that lost its beginning, by replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import structlog

from llmgw.core.cluster import Cluster
from llmgw.core.freezing import freeze
from llmgw.errors import LlmgwError
from llmgw.log.base import Bounds, Message
from llmgw.log.snapshots import Snapshot, Snapshots, Stored, Wanted, compressed

EVERY_RECORDS = 5_000
AT_LEAVING_RECORDS = 200
LOOK_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class Followed(Protocol):
    """What is read of a log to see whether a snapshot stands for it."""

    def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from `start` on; see `Log.follow`."""
        ...


async def newest_for(
    log: Followed, bounds: Bounds, stored: Stored, *, least: int = 0, most: int | None = None
) -> Snapshot | None:
    """Return the newest snapshot that stands for a log with these bounds, or `None`.

    It is of no sequence before `least` or after `most`, and the log goes on from it.
    """
    lost = max(bounds.first - 1, 0)
    limit = bounds.last if most is None else most
    while limit >= max(least, lost, 1):
        found = await stored.newest(Wanted(bounds.created_ns, max(least, lost), limit))
        if found is None or await _stands_for(log, bounds, found.state):
            return found
        why = "the log holds another record there: it was restored from a copy"
        _log.warning("snapshot_discarded", sequence=found.sequence, reason=why)
        limit = found.sequence - 1
    return None


async def _stands_for(log: Followed, bounds: Bounds, state: Cluster) -> bool:
    place = state.sequence
    if place < bounds.first:
        return True  # its record is not there any more, only what follows
    times = [m.time_ns async for batch in log.follow(place, until=place) for m in batch]
    return times == [state.time_ns]


class Keeper:
    """Keeps snapshots of one controller's state, in its data folder and on the log's server.

    Nothing depends on them: what fails is told and tried again later. `local` is absent where the
    data folder cannot be written.
    """

    def __init__(self, local: Snapshots | None, remote: Snapshots) -> None:
        self._local = local
        self._remote = remote
        self._created_ns = 0
        self._kept = 0

    async def load(self, log: Followed, bounds: Bounds) -> Cluster:
        """Return the newest state that stands for the log, or an empty one."""
        self._created_ns = bounds.created_ns
        found = None
        if self._local is not None:
            found = await newest_for(log, bounds, self._local)
        begin = found.sequence if found is not None else 0
        if bounds.last - begin >= EVERY_RECORDS or begin < bounds.first - 1:
            found = await self._newer(log, bounds, begin + 1) or found
        self._kept = found.sequence if found is not None else 0
        return found.state if found is not None else Cluster()

    async def _newer(self, log: Followed, bounds: Bounds, least: int) -> Snapshot | None:
        try:
            return await newest_for(log, bounds, self._remote, least=least)
        except LlmgwError as error:
            _log.warning("snapshots_unreadable", where="the log's server", reason=str(error))
            return None

    async def keep(self, state: Cluster, leads: Callable[[], bool]) -> None:
        """Keep a snapshot now and then, until cancelled; the leader's on the server too."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if state.sequence - self._kept >= EVERY_RECORDS:
                await self._save(state, leads())

    async def leave(self, state: Cluster) -> None:
        """Keep what the next start in this data folder need not fold again."""
        if state.sequence - self._kept >= AT_LEAVING_RECORDS:
            await self._save(state, False)

    async def _save(self, state: Cluster, shared: bool) -> None:
        if state.needs_upgrade is not None:
            return  # a version that knows more must fold what this one passed over
        sequence = self._kept = state.sequence
        frozen = freeze(state)
        encoded = await asyncio.to_thread(compressed, frozen, sequence, self._created_ns)
        places = [self._local, self._remote if shared else None]
        for place in places:
            try:
                if place is not None:
                    await place.save(sequence, encoded)
            except LlmgwError as error:
                _log.warning("snapshot_not_kept", sequence=sequence, reason=str(error))
        _log.info("snapshot_kept", sequence=sequence, size_bytes=len(encoded), shared=shared)
