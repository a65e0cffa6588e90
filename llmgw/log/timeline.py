"""A log as a line in time on which one can step: the state at any sequence, forth and back.

Stepping back folds again from the nearest checkpoint, a frozen state in memory, and where all are
far away from the nearest snapshot of the log. Checkpoints are
spaced evenly over what was seen of the log, and closely before the point that was asked for
last; there are never more than a fixed number of them, so a long log takes no more memory than a
short one. Used by `ctl replay --watch`, `--diff` and `--what-if`. `first_after` goes along a log
once, asking a question after every record: `ctl bisect`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.core.freezing import freeze, thaw
from llmgw.core.mistakes import FELL, set_apart
from llmgw.core.records import Record
from llmgw.errors import UsageError
from llmgw.folding import fold
from llmgw.log.base import Message
from llmgw.replay import LONG_LOG, Readable, fold_log, foundation, span

MOST_CHECKPOINTS = 24
FIRST_SPACING = 256
CLOSE_SPACING = 64
CLOSE_CHECKPOINTS = 6
PAGE_MESSAGES = 1_024


class Timeline:
    """The states of one log. Made by `open_timeline`."""

    def __init__(self, log: Readable, first: int, last: int, base: Cluster) -> None:
        self._log = log
        self.first = first
        """The earliest sequence whose state can be shown: 0 is before the log's first record."""
        self.last = last
        """The last sequence that is known to be there; `refresh` looks again."""
        self._spacing = FIRST_SPACING
        self._spread: dict[int, bytes] = {first: freeze(base)}
        self._close: dict[int, bytes] = {}
        self._state = base
        self._page: Sequence[Message] = ()

    async def refresh(self) -> None:
        """Look how far the log goes by now."""
        self.last = max(self.last, (await self._log.bounds()).last)

    async def at(self, sequence: int) -> Cluster:
        """Return the state after a record; it is to be read, and until the next call only.

        Raises `UsageError` for a sequence that is not on the line.
        """
        self._check(sequence)
        if sequence != self._state.sequence:
            await self._start_before(sequence)
            async for batch in self._following(self._state.sequence + 1, sequence):
                fold(self._state, batch)
                self._keep(sequence)
        return self._state

    async def record(self, sequence: int) -> Record | None:
        """Return a record; `None` before the first one."""
        self._check(sequence)
        if sequence == self.first:
            return None
        page = self._page
        if not page or not page[0].sequence <= sequence <= page[-1].sequence:
            start = max(self.first + 1, sequence - PAGE_MESSAGES // 2)
            end = min(self.last, start + PAGE_MESSAGES)
            page = [m async for batch in self._log.follow(start, until=end) for m in batch]
            self._page = page
        found = page[sequence - page[0].sequence]
        return wire.decode(found.sequence, found.time_ns, found.subject, found.payload)

    def _check(self, sequence: int) -> None:
        if sequence > self.last:
            raise UsageError(
                f"the log ends at sequence {self.last}; {sequence} has not been written"
            )
        if sequence < self.first:
            raise UsageError(f"the log can be folded from sequence {self.first} on")

    async def _start_before(self, sequence: int) -> None:
        """Take up the nearest state at or before a sequence; far from all, one of the log's."""
        places = sorted({**self._spread, **self._close})
        nearest = places[bisect_right(places, sequence) - 1]
        if not nearest <= self._state.sequence <= sequence:
            frozen = self._close.get(nearest) or self._spread[nearest]
            self._state = thaw(frozen)
        if sequence - self._state.sequence > LONG_LOG:
            found = await foundation(self._log, await self._log.bounds(), sequence)
            if found.sequence > self._state.sequence:
                self._state = found

    async def _following(self, start: int, end: int) -> AsyncIterator[Sequence[Message]]:
        """Yield the records between two points, cut where a checkpoint is due."""
        cuts = self._cuts(start, end)
        if self._page and self._page[0].sequence <= start and end <= self._page[-1].sequence:
            begin = self._page[0].sequence
            for part in _cut(self._page[start - begin : end - begin + 1], cuts):
                yield part
            return
        async for batch in self._log.follow(start, until=end):
            for part in _cut(batch, cuts):
                yield part

    def _cuts(self, start: int, end: int) -> set[int]:
        close = range(end - CLOSE_SPACING * CLOSE_CHECKPOINTS, end, CLOSE_SPACING)
        spacing = self._spacing
        first = start + (-start) % spacing
        return {place for place in close if place >= start} | {*range(first, end + 1, spacing)}

    def _keep(self, target: int) -> None:
        """Keep the state as a checkpoint if it is at a place for one."""
        place = self._state.sequence
        if place % self._spacing == 0:
            self._spread[place] = freeze(self._state)
            self._thin_out()
        elif place < target and target - place <= CLOSE_SPACING * CLOSE_CHECKPOINTS:
            self._close[place] = freeze(self._state)
            while len(self._close) > 2 * CLOSE_CHECKPOINTS:
                del self._close[next(iter(self._close))]

    def _thin_out(self) -> None:
        while len(self._spread) > MOST_CHECKPOINTS:
            self._spacing *= 2
            self._spread = {
                place: frozen
                for place, frozen in self._spread.items()
                if place % self._spacing == 0 or place == self.first
            }


def _cut(batch: Sequence[Message], cuts: set[int]) -> list[Sequence[Message]]:
    """Cut a batch after the messages with these sequences."""
    begin = batch[0].sequence if batch else 0
    ends = sorted(c - begin + 1 for c in cuts if begin <= c < begin + len(batch) - 1)
    parts = [batch[a:b] for a, b in zip([0, *ends], [*ends, len(batch)], strict=True)]
    return [part for part in parts if part]


async def open_timeline(log: Readable) -> Timeline:
    """Return the line of what the log holds now."""
    bounds = await log.bounds()
    base = await foundation(log, bounds)
    return Timeline(log, base.sequence, bounds.last, base)


class Found(msgspec.Struct, frozen=True):
    """Where a question was answered: after the record of `sequence`, or never up to there.

    `begin` is where the search began; `already`: it was so there.
    """

    holds: bool
    begin: int
    sequence: int
    record: Record | None = None
    already: bool = False


class Question(Protocol):
    """What is asked along a log; see `llmgw.views.watching.Watching`."""

    def begin(self, state: Cluster) -> bool:
        """Return the answer for the state at the beginning."""
        ...

    def after(self, state: Cluster, record: Record) -> bool:
        """Return the answer for the state after the record that was folded into it last."""
        ...


async def first_after(
    log: Readable,
    question: Question,
    *,
    start: int | None = None,
    start_ns: int | None = None,
    until: int | None = None,
    until_ns: int | None = None,
) -> Found:
    """Return the first record after which the answer is yes.

    The points are those of `span`; what is up to the first is folded, and asked about once.
    """
    state = await _beginning(log, start, start_ns)
    begin = state.sequence
    holds = question.begin(state)
    if holds and (start is not None or start_ns is not None):
        return Found(True, begin, begin, None, True)
    async for batch in span(log, start=begin + 1, until=until, until_ns=until_ns, beyond=True):
        for m in batch:
            record = wire.decode(m.sequence, m.time_ns, m.subject, m.payload)
            try:
                apply(state, record)
            except FELL as error:
                set_apart(state, error)
            if question.after(state, record):
                return Found(True, begin, m.sequence, record)
    return Found(False, begin, state.sequence)


async def _beginning(log: Readable, start: int | None, start_ns: int | None) -> Cluster:
    if start is None and start_ns is None:
        return await foundation(log, await log.bounds())
    return await fold_log(log, start, until_ns=start_ns)
