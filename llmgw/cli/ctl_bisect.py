"""`llmgw ctl bisect`: the first event after which something holds, such as "no replica is ready".

Every event from the starting point on is folded and the question asked again after it, so that what
held for a moment is found too; a log is never folded twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.context import note
from llmgw.cli.ctl_source import ArchiveFile, Live, Span, Where, opened, parse_span, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output

if TYPE_CHECKING:
    from llmgw.log.timeline import Found
    from llmgw.views.predicate import Predicate
    from llmgw.views.watching import Watching

SAID_NO = 4


def bisect(
    predicate: Annotated[
        str,
        typer.Argument(
            help="What to look for, about what a view shows: 'status.models.llama.ready == 0', "
            "'replicas.*.phase == \"failed\"', 'count(nodes.*) > 3 and not status.leader'."
        ),
    ],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SEQ|TIME",
            help="Where to begin: what comes up to here is folded and not asked about.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="SEQ|TIME", help="Where to end.", show_default=False),
    ] = None,
    archive: ArchiveFile = None,
    live: Live = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Find the first event after which a predicate holds. Exits with 4 if it never does.

    Names are those of `-o json`: a view, then the name of a row (a node, a replica, a device as
    n1/0), then a field; `*` is every name. See docs/replay.md for all of the language.
    """
    import asyncio

    from llmgw.cli.output import emit
    from llmgw.views.predicate import parse
    from llmgw.views.watching import Watching

    question = parse(predicate)
    span = parse_span(from_, to)
    asked = where(archive, nats_url, cluster, data, live=live)
    watched = Watching(question)
    found = asyncio.run(_find(asked, watched, span))
    emit(_report(question, found), output, lambda _, __: _lines(question, found))
    if not found.holds:
        for path in watched.never_there:
            note(f"there never was anything under {path}")
        raise typer.Exit(SAID_NO)


async def _find(asked: Where, watched: Watching, span: Span) -> Found:
    from llmgw.log.timeline import first_after

    async with opened(asked) as source:
        return await first_after(source.log, watched, **span._asdict())


def _report(question: Predicate, found: Found) -> dict[str, Any]:
    from llmgw.views import events

    return {
        "predicate": question.text,
        "holds": found.holds,
        "from": found.begin,
        "to": found.sequence,
        **({"already": True} if found.already else {}),
        **({"event": events([found.record])[0]} if found.holds and found.record else {}),
    }


def _lines(question: Predicate, found: Found) -> Iterator[str]:
    from llmgw.cli.output import table_lines
    from llmgw.cli.tables import EVENTS
    from llmgw.views import events

    if not found.holds:
        yield f"{question.text}: never so after {found.begin}, up to sequence {found.sequence}"
    elif found.already:
        yield f"{question.text}: so already at sequence {found.sequence}, where the search begins"
    else:
        yield f"{question.text}: first so after sequence {found.sequence}"
        if found.record is not None:
            yield from table_lines(events([found.record]), EVENTS, True)
        yield f"Why: llmgw ctl explain {found.sequence}"
