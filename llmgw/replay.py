"""Reading the log back: records from messages, the state from records, the newest samples.

The thin shell under `llmgw ctl`, the console and tests: what is read is decoded by `llmgw.wire`
and folded by `llmgw.core.fold`. It writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from llmgw import wire
from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.core.telemetry import NodeSample
from llmgw.errors import MalformedRecord, UsageError
from llmgw.log.base import Log, Message


async def records(
    log: Log, *, start: int = 1, until: int | None = None, subjects: Sequence[str] = ()
) -> AsyncIterator[Record]:
    """Yield every record from sequence `start` on, up to `until` or for ever."""
    async for batch in log.follow(start, subjects=subjects, until=until):
        for message in batch:
            yield wire.decode(message.sequence, message.time_ns, message.subject, message.payload)


async def present_records(log: Log) -> AsyncIterator[Record]:
    """Yield every record that the log holds now, from its first to its last."""
    bounds = await log.bounds()
    if bounds.last:
        async for record in records(log, start=bounds.first, until=bounds.last):
            yield record


async def fold_log(log: Log, until: int | None = None, *, until_ns: int | None = None) -> Cluster:
    """Return the state as of sequence `until`, as of the time `until_ns`, or as of now.

    A record stored at exactly `until_ns` (nanoseconds since 1970) counts. A time beyond either
    end of the log is taken as that end. Raises `UsageError` for a sequence beyond its end.
    """
    state = Cluster()
    bounds = await log.bounds()
    if until is not None and until > bounds.last:
        raise UsageError(f"the log ends at sequence {bounds.last}; {until} has not been written")
    last = bounds.last if until is None else until
    if last < max(bounds.first, 1):
        return state
    async for record in records(log, start=bounds.first, until=last):
        if until_ns is not None and record.time_ns > until_ns:
            break
        apply(state, record)
    return state


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
        return wire.decode_sample(message.subject, message.payload).data
    except MalformedRecord:
        return None  # a view without a reading: samples decide nothing
