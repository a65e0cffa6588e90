"""`llmgw ctl events`: what was written to the log, and what of it was not taken."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from llmgw.cli.context import note
from llmgw.cli.ctl_source import (
    NAME_AN_ARCHIVE,
    ArchiveFile,
    Live,
    Source,
    Span,
    Where,
    opened,
    parse_span,
    where,
)
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from llmgw.core.records import Record
    from llmgw.views import EventRow, ModelsOfReplicas, RejectedRow

    Filter = Callable[[Record], bool]


Rejected = Annotated[
    bool,
    typer.Option("--rejected", help="Only what changed nothing (unreadable, void, …), and gaps."),
]


class _Asked(NamedTuple):
    """Which records of which log, how many, and how they are printed."""

    where: Where
    span: Span
    wanted: Filter
    type: str | None
    model: str | None
    limit: int | None
    output: Format


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come.")] = False,
    rejected: Rejected = False,
    type: Annotated[  # noqa: A002 -- the option is named so
        str | None,
        typer.Option(help="Only this type: replica.ready, or replica.*", show_default=False),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Only what concerns this node.", show_default=False)
    ] = None,
    replica: Annotated[
        str | None, typer.Option(help="Only what concerns this replica.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Only what concerns this model or its replicas.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|TIME",
            help="From where on: a sequence, 2026-03-01T14:05:00Z, 14:05 (UTC), '1 hour ago'.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="SEQ|TIME", help="Up to where.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the newest so many.", show_default=False)
    ] = None,
    archive: ArchiveFile = None,
    live: Live = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show what was written to the log: events and commands, oldest first.

    With --follow it goes on with what comes, also over a restart of the server: each record is
    printed once, in order.
    """
    import asyncio
    from functools import partial

    from llmgw.views import concerns

    for given, option in ((rejected, "--rejected"), (until is not None, "--until")):
        if follow and given:
            raise UsageError(f"--follow and {option} do not go together")
    if follow and archive is not None:
        raise UsageError("--follow and --archive do not go together: nothing comes to an archive")
    span = parse_span(since, until, ("--since", "--until"))
    wanted = partial(concerns, wire=type, node=node, replica=replica)
    source = where(archive, nats_url, cluster, data, live=live)
    asked = _Asked(source, span, wanted, type, model, limit, output)
    if follow:
        asyncio.run(_follow(asked))
    else:
        asyncio.run(_list(asked, rejected))


async def _list(asked: _Asked, rejected: bool) -> None:
    from llmgw.cli.output import emit
    from llmgw.cli.tables import view_lines

    rows: list[EventRow] | list[RejectedRow]
    async with opened(asked.where, whole=rejected) as source:
        await _check_type(asked.type, source)
        models = await _models(asked, source)
        found = _present(asked, source, models)
        rows = await (_rejected(asked, source, found) if rejected else _newest(asked, found))
    if not rows:
        note("no rejected records" if rejected else "no such events in the log")
    emit(rows, asked.output, view_lines)


async def _check_type(wanted: str | None, source: Source) -> None:
    """Raise `UsageError` for a type that there is neither here nor in the log.

    A newer version may have written types that this one does not know: those are found.
    """
    from llmgw.cli.asked import unknown
    from llmgw.replay import present_records
    from llmgw.views import concerns
    from llmgw.views.events import TYPES, is_of

    if wanted is None or any(is_of(wanted, known) for known in TYPES):
        return
    async for record in present_records(source.log):
        if concerns(record, wire=wanted):
            note(f"{wanted} is not known to this version of llmgw")
            return
    raise UsageError(f"--type: {unknown('type of event', wanted, TYPES)}")


async def _newest(asked: _Asked, found: AsyncIterator[Record]) -> list[EventRow]:
    from llmgw import views

    newest = deque[views.EventRow](maxlen=asked.limit)
    async for record in found:
        newest.extend(views.events([record]))
    return list(newest)


async def _rejected(
    asked: _Asked, source: Source, found: AsyncIterator[Record]
) -> list[RejectedRow]:
    """Return what of the records changed nothing: that depends on all that was before them."""
    from llmgw import views
    from llmgw.replay import foundation, records

    bounds = await source.log.bounds()
    base = await foundation(source.log, bounds)
    kept = {record.sequence async for record in found}
    if base.sequence >= bounds.first:
        note(
            f"what changed nothing up to {base.sequence} is not told: it follows from records that "
            f"are not here. {NAME_AN_ARCHIVE}"
        )
    since, until = base.sequence + 1, bounds.last
    later = records(source.log, start=since, until=until) if since <= until else None
    everything = [record async for record in later] if later is not None else []
    rows = [row for row in views.rejected(everything, base) if row.sequence in kept]
    return rows[-asked.limit :] if asked.limit else rows


async def _models(asked: _Asked, source: Source) -> ModelsOfReplicas:
    """Learn of which model each replica is, if that matters: it is said once, and maybe before."""
    from llmgw import wire
    from llmgw.core.events import ReplicaAssigned
    from llmgw.replay import foundation, records
    from llmgw.views import ModelsOfReplicas

    models = ModelsOfReplicas()
    bounds = await source.log.bounds()
    last = bounds.last
    if asked.model is not None and bounds.first > 1 and source.live is not None:
        with suppress(UsageError):  # events are shown whether a snapshot stands for what is gone
            models.know(await foundation(source.log, bounds))
    if asked.model is not None and last:
        subject = wire.event_subject(source.cluster, ReplicaAssigned)
        async for record in records(source.log, start=bounds.first, until=last, subjects=[subject]):
            models.learn(record)
    return models


async def _present(
    asked: _Asked, source: Source, models: ModelsOfReplicas
) -> AsyncIterator[Record]:
    from llmgw.replay import records_between

    async for record in records_between(source.log, **asked.span._asdict()):
        if _is_wanted(asked, record, models):
            yield record


def _is_wanted(asked: _Asked, record: Record, models: ModelsOfReplicas) -> bool:
    models.learn(record)
    return asked.wanted(record) and (asked.model is None or asked.model in models.of(record))


async def _follow(asked: _Asked) -> None:
    """Print what is there, then each record as it comes, until Ctrl-C."""
    from llmgw import views
    from llmgw.cli.output import emit_more, table_lines
    from llmgw.cli.tables import EVENTS
    from llmgw.replay import records

    widths: list[int] = []

    def show(found: list[Record]) -> None:
        emit_more(
            views.events(found),
            asked.output,
            lambda rows, wide: table_lines(rows, EVENTS, wide, widths),
        )

    async with opened(asked.where) as source:
        await _check_type(asked.type, source)
        last = (await source.log.bounds()).last
        models = await _models(asked, source)
        upto = asked._replace(span=asked.span._replace(until=last))
        newest: deque[Record] = deque(maxlen=asked.limit)
        async for record in _present(upto, source, models):
            newest.append(record)
        show([*newest])
        async for record in records(source.log, start=last + 1):
            if _is_wanted(asked, record, models):
                show([record])
