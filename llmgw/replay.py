"""Reading the log back: records from messages, the state from records, the newest samples.

The thin shell under `llmgw ctl`, the console and tests: what is read is decoded by `llmgw.wire`,
folded by `llmgw.core.fold` and decided again by `llmgw.core.verify`. A log may be live or an
archive, or begin in the one and go on in the other. It writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.records import Record
from llmgw.core.telemetry import NodeSample
from llmgw.core.verify import Round, Rounds, Verdict, Verifier
from llmgw.errors import MalformedRecord, UsageError
from llmgw.folding import fold
from llmgw.log.base import Bounds, Log, Message

if TYPE_CHECKING:
    from llmgw.log.snapshots import Stored

LIVE_SAMPLES = 3
"""A sample counts as live for so many intervals of sampling, and no less than a minute."""
LEAST_LIVE_SECONDS = 60.0

LONG_LOG = 20_000
"""Of a log with more records than this, a state is folded from a snapshot where there is one."""


class Readable(Protocol):
    """What is read of a log, live or archived; see `Log`."""

    def follow(
        self, start: int = 1, *, subjects: Sequence[str] = (), until: int | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages from sequence `start` on, in order."""
        ...

    async def bounds(self) -> Bounds:
        """Return the first and last sequence stored now."""
        ...


async def records(
    log: Readable, *, start: int = 1, until: int | None = None, subjects: Sequence[str] = ()
) -> AsyncIterator[Record]:
    """Yield every record from sequence `start` on, up to `until` or for ever."""
    async for record in _decoded(log.follow(start, subjects=subjects, until=until)):
        yield record


async def records_between(
    log: Readable,
    *,
    start: int | None = None,
    start_ns: int | None = None,
    until: int | None = None,
    until_ns: int | None = None,
) -> AsyncIterator[Record]:
    """Yield every record that the log holds now between two points; see `span`."""
    batches = span(log, start=start, start_ns=start_ns, until=until, until_ns=until_ns)
    async for record in _decoded(batches):
        yield record


async def present_records(log: Readable) -> AsyncIterator[Record]:
    """Yield every record that the log holds now, from its first to its last."""
    bounds = await log.bounds()
    if bounds.last:
        async for record in records(log, start=bounds.first, until=bounds.last):
            yield record


async def fold_log(
    log: Readable, until: int | None = None, *, until_ns: int | None = None
) -> Cluster:
    """Return the state as of sequence `until`, as of the time `until_ns`, or as of now.

    A record stored at exactly `until_ns` (nanoseconds since 1970) counts. A time beyond either
    end of the log is taken as that end. Raises `UsageError` for a sequence beyond its end, and
    where the log begins later than the point that is asked for can be folded from.
    """
    bounds = await log.bounds()
    _check_written(until, bounds)
    if until is None and until_ns is not None and _is_worth_a_look(log, bounds):
        until, until_ns = await first_stored(log, until_ns + 1) - 1, None
    most = None if until_ns is not None else bounds.last if until is None else until
    state = await foundation(log, bounds, most)
    start = state.sequence + 1
    async for batch in span(log, start=start, until=until, until_ns=until_ns, beyond=True):
        fold(state, batch)
    return state


def _is_worth_a_look(log: Readable, bounds: Bounds) -> bool:
    """Return whether a snapshot may spare so much that a time is first looked up."""
    lost = max(bounds.first - 1, 0)
    return hasattr(log, "snapshots") and (lost > 0 or bounds.last - lost > LONG_LOG)


async def first_stored(log: Readable, since_ns: int, start: int = 1) -> int:
    """Return the first sequence from `start` on that was stored at a time or later.

    The one after the last if none was. An archive knows where to look; a live log is read.
    """
    dated: Callable[[int, int], Awaitable[int]] | None = getattr(log, "first_stored", None)
    if dated is not None:
        return await dated(since_ns, start)
    async with aclosing(span(log, start=start, start_ns=since_ns, beyond=True)) as batches:
        async for batch in batches:
            return batch[0].sequence
    return (await log.bounds()).last + 1


async def foundation(log: Readable, bounds: Bounds, most: int | None = None) -> Cluster:
    """Return a state to fold on from: an empty one, or that of the log's newest good snapshot.

    With `most` it is of no later sequence, and of a long log it is a snapshot's even where all of
    the log is there; without, it is as early as can be. Raises `UsageError` saying what is missing
    where the log lost its beginning and no snapshot stands for that.
    """
    lost = max(bounds.first - 1, 0)
    stored: Stored | None = getattr(log, "snapshots", None)
    most = None if most is None else min(most, bounds.last)
    is_long = most is not None and most - lost > LONG_LOG
    if stored is not None and (lost or is_long):
        from llmgw.log.keeper import newest_for  # SQLite, which most who read a log never need

        found = await newest_for(log, bounds, stored, most=lost if most is None else most)
        older = await newest_for(log, bounds, stored) if found is None and most is None else None
        while older is not None:
            found = older
            older = await newest_for(log, bounds, stored, most=older.sequence - 1)
        if found is not None:
            return found.state
    if lost and (most is None or most > 0):
        raise _unfounded(log, bounds, lost, most)
    return Cluster()


def _unfounded(log: Readable, bounds: Bounds, lost: int, most: int | None) -> UsageError:
    """Return the error for a log that lost its beginning and has no state for it."""
    upto = "its beginning" if most is None else most
    path = getattr(log, "path", None)
    if path is not None:
        return UsageError(
            f"{path} begins at sequence {bounds.first}, and holds no state of up to {upto} that "
            "this version can use: name a later point, or export from an earlier one"
        )
    return UsageError(
        f"the log begins at sequence {bounds.first}: the records 1 to {lost} were moved into "
        "an archive or lost, and no snapshot of this version stands for them up to "
        f"{upto}. Name the archive that holds them with --archive, beside the live log with --live"
    )


async def span(
    log: Readable,
    *,
    start: int | None = None,
    start_ns: int | None = None,
    until: int | None = None,
    until_ns: int | None = None,
    beyond: bool = False,
) -> AsyncGenerator[Sequence[Message], None]:
    """Yield batches of what the log holds now between two points, each a sequence or a time.

    Both ends belong to it. With times it begins at the first record that was stored at `start_ns`
    or later, and ends before the first that was stored after `until_ns`: it has no gaps, though
    the clock of a log may jump. Raises `UsageError` for a sequence beyond the log's end, except for
    a `start` with `beyond`: there is nothing then.
    """
    bounds = await log.bounds()
    _check_written(None if beyond else start, bounds)
    _check_written(until, bounds)
    first = max(bounds.first, 1, start or 1)
    last = bounds.last if until is None else until
    if hasattr(log, "first_stored"):
        if start_ns is not None:
            first, start_ns = await first_stored(log, start_ns, first), None
        if until_ns is not None:
            last, until_ns = min(last, await first_stored(log, until_ns + 1, first) - 1), None
    if last < first:
        return
    async for batch in log.follow(first, until=last):
        if start_ns is not None:
            batch = _from(batch, start_ns)
            start_ns = None if batch else start_ns
        if until_ns is None or all(message.time_ns <= until_ns for message in batch):
            if batch:
                yield batch
        else:
            early = _up_to(batch, until_ns)
            if early:
                yield early
            return


def _check_written(sequence: int | None, bounds: Bounds) -> None:
    if sequence is not None and sequence > bounds.last:
        raise UsageError(f"the log ends at sequence {bounds.last}; {sequence} has not been written")


def _from(batch: Sequence[Message], start_ns: int) -> Sequence[Message]:
    for place, message in enumerate(batch):
        if message.time_ns >= start_ns:
            return batch[place:]
    return ()


def _up_to(batch: Sequence[Message], until_ns: int) -> Sequence[Message]:
    for place, message in enumerate(batch):
        if message.time_ns > until_ns:
            return batch[:place]
    return batch


async def verify_log(
    log: Readable, cluster: str, until: int | None = None, *, until_ns: int | None = None
) -> Verdict:
    """Decide again everything that the log's controllers decided, and return what came of it.

    No snapshot is used. Those of an archive are compared with what its records make: raises
    `UsageError` where one is not that. The log is followed twice at once, everything and what
    controllers wrote; memory does not grow with its length. The points are those of `fold_log`.
    """
    bounds = await log.bounds()
    if bounds.first > 1:
        raise UsageError(
            f"the log begins at sequence {bounds.first}: what was decided can be decided again "
            "only from the first record on"
        )
    last = bounds.last if until is None else until
    if until_ns is not None:
        last = 0
        async for batch in span(log, until_ns=until_ns):
            last = batch[-1].sequence
    verifier = Verifier()
    kept = frozenset[int](getattr(getattr(log, "snapshots", None), "sequences", ()))
    following = _decoded(span(log, until=last))
    async for found in _rounds(verifier.rounds, log, cluster, last):
        while verifier.state.sequence < found.at and not verifier.done:
            record = await anext(following, None)
            if record is None:
                break
            verifier.fold(record)
            if record.sequence in kept:
                await _compare(log, bounds, verifier.state)
        if verifier.done:
            break
        verifier.check(found)
    while not verifier.done and (record := await anext(following, None)) is not None:
        verifier.fold(record)
        if record.sequence in kept:
            await _compare(log, bounds, verifier.state)
    return verifier.verdict


async def _compare(log: Readable, bounds: Bounds, state: Cluster) -> None:
    """Raise `UsageError` where a snapshot of an archive would be used and is of another state."""
    from llmgw.core.freezing import freeze
    from llmgw.log.keeper import newest_for

    at = state.sequence
    stored: Stored = log.snapshots  # type: ignore[attr-defined]
    found = await newest_for(log, bounds, stored, least=at, most=at)
    if found is not None and freeze(found.state) != freeze(state):
        raise UsageError(
            f"the snapshot of sequence {at} is another state than the records up to there make: "
            "what is shown of later sequences is not to be trusted. Write the archive anew: "
            "`llmgw ctl export NEW --archive FILE` folds all records"
        )


async def _rounds(rounds: Rounds, log: Readable, cluster: str, last: int) -> AsyncIterator[Round]:
    """Yield what was decided together, looking only at what controllers wrote."""
    subjects = [wire.controller_fence(cluster), wire.command_subject(cluster, "*")]
    if last:
        async for record in records(log, until=last, subjects=subjects):
            ended = rounds.take(record)
            if ended is not None:
                yield ended
    rest = rounds.rest()
    if rest is not None:
        yield rest


async def _decoded(batches: AsyncIterator[Sequence[Message]]) -> AsyncIterator[Record]:
    async for batch in batches:
        for message in batch:
            yield wire.decode(message.sequence, message.time_ns, message.subject, message.payload)


async def live_samples(
    log: Log, cluster: str, state: Cluster, sample_seconds: float
) -> dict[str, NodeSample]:
    """Return the newest sample of each node that is up and still measures."""
    up = [node.name for node in state.nodes.values() if node.started and not node.lost]
    live_seconds = max(LIVE_SAMPLES * sample_seconds, LEAST_LIVE_SECONDS)
    since_ns = time.time_ns() - int(live_seconds * 1e9)
    return await newest_samples(log, cluster, up, since_ns=since_ns)


async def newest_samples(
    log: Log, cluster: str, nodes: Iterable[str], *, since_ns: int = 0
) -> dict[str, NodeSample]:
    """Return the newest sample of each node that has one stored at or after `since_ns`."""
    subjects = [wire.telemetry_subject(cluster, node) for node in nodes]
    found = await asyncio.gather(*(log.last(subject) for subject in subjects))
    read = [_sample(message) for message in found if message and message.time_ns >= since_ns]
    return {sample.node: sample for sample in read if sample is not None}


def _sample(message: Message) -> NodeSample | None:
    try:
        return wire.decode_sample(message.subject, message.payload)
    except MalformedRecord:
        return None  # a view without a reading: samples decide nothing
