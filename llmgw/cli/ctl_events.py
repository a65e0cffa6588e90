"""`llmgw ctl events`: what was written to the log, and what of it was not taken."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.context import note
from llmgw.cli.ctl_source import ArchiveFile, Where, opened, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmgw.core.records import Record

    Filter = Callable[[Record], bool]


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Only what changed nothing: unreadable, void, …")
    ] = False,
    type: Annotated[  # noqa: A002 -- the option is named so
        str | None, typer.Option(help="Only this type, such as replica.ready.", show_default=False)
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Only what concerns this node.", show_default=False)
    ] = None,
    replica: Annotated[
        str | None, typer.Option(help="Only what concerns this replica.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the newest so many.", show_default=False)
    ] = None,
    archive: ArchiveFile = None,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show what was written to the log: events and commands, oldest first."""
    import asyncio
    from functools import partial

    from llmgw.views import concerns

    if follow and rejected:
        raise UsageError("--follow and --rejected do not go together")
    if follow and archive is not None:
        raise UsageError("--follow and --archive do not go together: nothing comes to an archive")
    asked = where(archive, nats_url, cluster, data)
    wanted = partial(concerns, wire=type, node=node, replica=replica)
    if follow:
        asyncio.run(_follow(asked, wanted, limit, output))
    else:
        asyncio.run(_list(asked, wanted, limit, output, rejected))


async def _list(
    asked: Where, wanted: Filter, limit: int | None, output: Format, rejected: bool
) -> None:
    from llmgw import views
    from llmgw.cli.output import emit
    from llmgw.cli.tables import view_lines
    from llmgw.replay import present_records

    rows: list[views.EventRow] | list[views.RejectedRow]
    async with opened(asked, whole=rejected) as source:
        if rejected:
            found = [record async for record in present_records(source.log)]
            kept = {record.sequence for record in found if wanted(record)}
            rows = [row for row in views.rejected(found) if row.sequence in kept]
            rows = rows[-limit:] if limit else rows
        else:
            newest = deque[views.EventRow](maxlen=limit)
            async for record in present_records(source.log):
                if wanted(record):
                    newest.extend(views.events([record]))
            rows = list(newest)
    if not rows:
        note("no rejected records" if rejected else "no such events in the log")
    emit(rows, output, view_lines)


async def _follow(asked: Where, wanted: Filter, limit: int | None, output: Format) -> None:
    """Print what is there, then each record as it comes, until Ctrl-C."""
    from llmgw import views
    from llmgw.cli.output import emit_more, table_lines
    from llmgw.cli.tables import EVENTS
    from llmgw.replay import present_records, records

    widths: list[int] = []

    def show(found: list[Record]) -> None:
        emit_more(
            views.events(found),
            output,
            lambda rows, wide: table_lines(rows, EVENTS, wide, widths),
        )

    async with opened(asked) as source:
        newest: deque[Record] = deque(maxlen=limit)
        last = 0
        async for record in present_records(source.log):
            last = record.sequence
            if wanted(record):
                newest.append(record)
        show([*newest])
        async for record in records(source.log, start=last + 1):
            if wanted(record):
                show([record])
