"""The snapshots in an archive: what spares a reader of a long one most of the folding.

They are made as the records are written, and each stands for what comes before it in the file, and
for what the log had before the file begins. Nothing depends on them: the records are there, unless
they are of before its beginning. A version of llmgw uses those alone that it made itself; checks
of what was decided (`ctl replay --verify`) use none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from llmgw.core.cluster import Cluster
from llmgw.core.freezing import freeze
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.log.snapshots import Snapshot, Wanted, compressed, first_usable

EVERY_RECORDS = 50_000
"""Folding so many takes a fifth of a second. One snapshot takes some hundred kilobytes."""

LEAST_RECORDS = 10_000
"""There is one at the end of the file, too, unless the last one is so near."""

MOST_STATE_BYTES = 1 << 28
"""A state of ten thousand nodes takes less. Anybody may make a file that unpacks to more."""

TABLE = """
CREATE TABLE snapshots (sequence INTEGER PRIMARY KEY, snapshot BLOB NOT NULL);
"""

Fetch = Callable[[int], Awaitable[bytes]]


class Carrier:
    """Folds what is written to an archive, and says which snapshots belong into it.

    `state` is of before the first record that is written, or of a later one.
    """

    def __init__(self, state: Cluster, log_created_ns: int) -> None:
        self._state = state
        self._log_created_ns = log_created_ns
        self._kept = 0
        self._begun = state.sequence == 0

    def leads_to(self, first: int) -> bool:
        """Return whether no record is missing between the state and the first one written."""
        return first <= self._state.sequence + 1

    async def follow(self, messages: Sequence[Message]) -> tuple[int, bytes] | None:
        """Fold what was written, and return a snapshot if one is due.

        The first one stands for what is not in the file, if there was anything. A state that is
        of later than the file's end stands for none of it.
        """
        state = self._state
        if messages[-1].sequence < state.sequence:
            return None
        found = None if self._begun else await self._snapshot()
        self._begun = True
        fold(state, [m for m in messages if m.sequence > state.sequence])
        is_due = state.sequence - self._kept >= EVERY_RECORDS
        return await self._snapshot() if found is None and is_due else found

    async def end(self) -> tuple[int, bytes] | None:
        """Return the snapshot of the end, if one is due."""
        is_due = self._begun and self._state.sequence - self._kept >= LEAST_RECORDS
        return await self._snapshot() if is_due else None

    async def _snapshot(self) -> tuple[int, bytes] | None:
        state = self._state
        if state.needs_upgrade is not None:
            return None  # a version that knows more must fold what this one passed over
        sequence = self._kept = state.sequence
        frozen = freeze(state)
        return sequence, await asyncio.to_thread(compressed, frozen, sequence, self._log_created_ns)


class Carried:
    """The snapshots of an archive, one looked at after the other."""

    def __init__(self, fetch: Fetch, sequences: Sequence[int], where: str) -> None:
        self._fetch = fetch
        self._where = where
        self.sequences = sorted(sequences, reverse=True)
        """Where they are, the newest first."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.sequences)

    async def newest(self, wanted: Wanted) -> Snapshot | None:
        """Return the newest that can be used; see `Snapshots.newest`."""
        for sequence in self.sequences:
            if wanted.least_sequence <= sequence <= wanted.most_sequence:
                found = [(sequence, await self._fetch(sequence))]
                usable = await asyncio.to_thread(
                    first_usable, found, wanted, self._where, MOST_STATE_BYTES
                )
                if usable is not None:
                    return usable
        return None
