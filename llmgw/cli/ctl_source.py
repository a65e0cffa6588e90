"""Where `ctl` reads from: the live log, or an archive of one, without any server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from llmgw.cli.context import open_log, resolved
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from llmgw.log.archive import Archive, Contents
    from llmgw.log.jetstream import JetStreamLog
    from llmgw.replay import Readable
    from llmgw.settings import Settings

ArchiveFile = Annotated[
    Path | None,
    typer.Option(
        "--archive",
        metavar="FILE",
        help="Read this archive; no server is asked.",
        show_default=False,
    ),
]

Live = Annotated[
    bool,
    typer.Option("--live", help="With --archive: go on in the live log where the archive ends."),
]


NAME_AN_ARCHIVE = (
    "Name an archive that holds what was before with --archive, and the live log beside it with "
    "--live"
)
"""What to do where what is read begins too late."""


class Where(NamedTuple):
    """What was asked for: an archive, the log that the settings name, or both."""

    archive: Path | None
    settings: Settings | None


class Source(NamedTuple):
    """A log that can be read. `live` is the one on a server, where that is read too.

    `held` is what the archive holds, where one is read.
    """

    log: Readable
    cluster: str
    live: JetStreamLog | None
    held: Contents | None = None


class Span(NamedTuple):
    """Two points as `llmgw.replay.span` takes them: each a sequence, a time, or open."""

    start: int | None = None
    start_ns: int | None = None
    until: int | None = None
    until_ns: int | None = None


def where(
    archive: Path | None,
    nats_url: str | None,
    cluster: str | None,
    data: Path | None,
    *,
    live: bool = False,
) -> Where:
    """Return where to read from. Raises `UsageError` when an archive and a server are named.

    With `live` both are read.
    """
    if archive is None and live:
        raise UsageError("--live goes with --archive: without one the live log is read anyway")
    if archive is None or live:
        return Where(archive, resolved(nats_url=nats_url, cluster=cluster, data=data).settings)
    if (nats_url, cluster, data) != (None, None, None):
        raise UsageError(
            "--archive does not go with --nats-url, --cluster and --data, except with --live"
        )
    return Where(archive, None)


@asynccontextmanager
async def opened(asked: Where, *, whole: bool = True) -> AsyncIterator[Source]:
    """Open what was asked for. With `whole`, an archive must begin where its log began."""
    if asked.archive is None and asked.settings is not None:
        async with open_log(asked.settings) as log:
            yield Source(log, asked.settings.cluster, log)
    elif asked.archive is not None:
        async with _archive(asked.archive, whole) as archive:
            held = archive.contents
            if asked.settings is None:
                yield Source(archive, held.cluster, None, held)
            else:
                async with open_log(asked.settings) as log:
                    joined = await _joined(archive, log, asked.settings)
                    yield Source(joined, held.cluster, log, held)


@asynccontextmanager
async def _archive(path: Path, whole: bool) -> AsyncIterator[Archive]:
    from llmgw import logs
    from llmgw.log.archive import open_archive

    logs.configure("warning", as_json=False)  # of snapshots that are passed over
    async with open_archive(path) as archive:
        held = archive.contents
        if whole and held.first > max(held.log_first, 1) and not archive.snapshots:
            raise UsageError(
                f"{path} begins at sequence {held.first}, and no state of before is in it that "
                "this version can use: a state follows from all that was written before it. "
                "Export without --from to replay"
            )
        yield archive


async def _joined(archive: Archive, log: JetStreamLog, settings: Settings) -> Readable:
    from llmgw.log.joined import join

    if archive.contents.cluster != settings.cluster:
        raise UsageError(
            f"the archive is of cluster {archive.contents.cluster}, and the live log of "
            f"{settings.cluster}: name the same one with --cluster"
        )
    return await join(archive, log)


def parse_span(
    start: str | None, until: str | None, options: tuple[str, str] = ("--from", "--to")
) -> Span:
    """Return the span between two points as people name them; `None` is open.

    `options` are what they were given with.
    """
    from datetime import UTC, datetime

    from llmgw.cli.moments import parse_point

    now = datetime.now(UTC)
    first = None if start is None else parse_point(start, now, options[0])
    last = None if until is None else parse_point(until, now, options[1])
    return Span(*_point(first), *_point(last))


def parse_sequence_or_time(text: str, option: str) -> Span:
    """Return the span that ends at a point as people name it."""
    from datetime import UTC, datetime

    from llmgw.cli.moments import parse_point

    sequence, time_ns = _point(parse_point(text, datetime.now(UTC), option))
    return Span(None, None, sequence, time_ns)


def _point(point: int | datetime | None) -> tuple[int | None, int | None]:
    """Return a point as a sequence or as nanoseconds since 1970."""
    if point is None or isinstance(point, int):
        return point, None
    return None, int(point.timestamp() * 1_000_000) * 1000
