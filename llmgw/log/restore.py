"""An archive back into a log: `ctl import`.

Only into a log that holds nothing, or exactly the beginning of the archive from an import that
was interrupted. Sequences, order and payloads stay; the log gives its own times. Every append is
fenced against everything else that could be written there, so that nothing gets in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

from llmgw import wire
from llmgw.errors import AppendRefused, LlmgwError, UsageError
from llmgw.log.archive import Archive
from llmgw.log.base import Log, Message

BATCH_RECORDS = 500
BATCH_BYTES = 2 * 1024 * 1024


class Imported(NamedTuple):
    """How many records the log holds now, and how many of them it had before."""

    records: int
    already: int


async def import_archive(archive: Archive, log: Log, cluster: str) -> Imported:
    """Append every record of the archive to the log of a cluster, and return how many.

    Repeating it is harmless: what is there already is compared, and the rest follows. Raises
    `UsageError` before anything is written when the archive or the log does not allow it.
    """
    held = archive.contents
    if held.cluster != cluster:
        raise UsageError(
            f"the archive is of cluster {held.cluster}, which every record in it names: "
            f"import it with --cluster {held.cluster}"
        )
    if held.first != 1:
        raise UsageError(
            f"the archive begins at sequence {held.first}: its records refer to others by their "
            "sequences, which only an archive from the first record on can keep"
        )
    await archive.check()
    already = await _already(archive, log, cluster)
    fence = f"{wire.prefix(cluster)}.>"
    async for batch in _batches(archive, already + 1):
        await _append(log, held.created_ns, batch, fence)
    return Imported(held.records, already)


async def _already(archive: Archive, log: Log, cluster: str) -> int:
    """Return how many records of the archive the log holds already. Anything else is refused."""
    there = await log.bounds()
    if there.last == 0:
        return 0
    fits = there.first == 1 and there.last <= archive.contents.last
    if fits and await _begins_so(log, archive, there.last):
        return there.last
    raise UsageError(
        f"the log of cluster {cluster} holds records {there.first} to {there.last} of its own: an "
        "archive can be imported into an empty log only. Name another server, or an empty data "
        "folder on which nothing runs: --data DIR"
    )


async def _begins_so(log: Log, archive: Archive, last: int) -> bool:
    """Return whether the log and the archive are the same up to a sequence."""
    written = _messages(archive.follow(until=last))
    async for message in _messages(log.follow(until=last)):
        if _said(message) != _said(await anext(written)):
            return False
    return True


async def _messages(batches: AsyncIterator[Sequence[Message]]) -> AsyncIterator[Message]:
    async for batch in batches:
        for message in batch:
            yield message


def _said(message: Message) -> tuple[int, str, bytes]:
    return message.sequence, message.subject, message.payload


async def _batches(archive: Archive, start: int) -> AsyncIterator[list[Message]]:
    async for batch in archive.follow(start):
        for part in _cut(batch):
            yield part


def _cut(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Cut messages into lists that fit into one fenced append."""
    part: list[Message] = []
    size_bytes = 0
    for message in messages:
        size_bytes += len(message.payload)
        if part and (len(part) == BATCH_RECORDS or size_bytes > BATCH_BYTES):
            yield part
            part, size_bytes = [], len(message.payload)
        part.append(message)
    if part:
        yield part


async def _append(log: Log, created_ns: int, batch: list[Message], fence: str) -> None:
    """Append messages so that each gets the sequence that it had.

    The ids say which record of which log each is: unlike the ids of events, no two are the same.
    """
    first = batch[0].sequence
    entries = [
        wire.Outgoing(m.subject, m.payload, f"archive/{created_ns}/{m.sequence}") for m in batch
    ]
    try:
        sequences = await log.append_many(entries, expected_last=first - 1, fence=fence)
    except AppendRefused as error:
        raise LlmgwError(
            f"something else writes to this log: the import ended before sequence {first}. Stop "
            "controllers and agents, and begin with an empty log"
        ) from error
    if sequences[0] != first:
        raise LlmgwError(
            f"the log gave sequence {sequences[0]} to record {first}: it held records before, "
            "which were deleted. Begin with an empty log"
        )
