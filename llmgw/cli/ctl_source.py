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


class Where(NamedTuple):
    """What was asked for: an archive, or the log that the settings name."""

    archive: Path | None
    settings: Settings | None


class Source(NamedTuple):
    """A log that can be read. `live` is the same log where it is no archive."""

    log: Readable
    cluster: str
    live: JetStreamLog | None


class Span(NamedTuple):
    """Two points as `llmgw.replay.span` takes them: each a sequence, a time, or open."""

    start: int | None = None
    start_ns: int | None = None
    until: int | None = None
    until_ns: int | None = None


def where(
    archive: Path | None, nats_url: str | None, cluster: str | None, data: Path | None
) -> Where:
    """Return where to read from. Raises `UsageError` when an archive and a server are named."""
    if archive is None:
        return Where(None, resolved(nats_url=nats_url, cluster=cluster, data=data).settings)
    if (nats_url, cluster, data) != (None, None, None):
        raise UsageError("--archive does not go with --nats-url, --cluster and --data")
    return Where(archive, None)


@asynccontextmanager
async def opened(asked: Where, *, whole: bool = True) -> AsyncIterator[Source]:
    """Open what was asked for. With `whole`, an archive must begin where its log began."""
    if asked.settings is not None:
        async with open_log(asked.settings) as log:
            yield Source(log, asked.settings.cluster, log)
    elif asked.archive is not None:
        from llmgw.log.archive import open_archive

        async with open_archive(asked.archive) as archive:
            held = archive.contents
            if whole and held.first > held.log_first:
                raise UsageError(
                    f"{asked.archive} begins at sequence {held.first}: a state follows from all "
                    "that was written before it. Export without --from to replay"
                )
            yield Source(archive, held.cluster, None)


def parse_span(start: str | None, until: str | None) -> Span:
    """Return the span between two points as people name them; `None` is open."""
    from datetime import UTC, datetime

    from llmgw.cli.moments import parse_point

    now = datetime.now(UTC)
    first = None if start is None else parse_point(start, now, "--from")
    last = None if until is None else parse_point(until, now)
    return Span(*_point(first), *_point(last))


def _point(point: int | datetime | None) -> tuple[int | None, int | None]:
    """Return a point as a sequence or as nanoseconds since 1970."""
    if point is None or isinstance(point, int):
        return point, None
    return None, int(point.timestamp() * 1_000_000) * 1000
