"""`llmgw ctl explain`: why a replica, a model or a node is as it is, and what a record led to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.context import note
from llmgw.cli.ctl_source import NAME_AN_ARCHIVE, ArchiveFile, Live, Where, opened, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.replay import Readable
    from llmgw.views.explain import Explanation, Step


def explain(
    name: Annotated[
        str, typer.Argument(metavar="REPLICA|MODEL|NODE|SEQ", help="Whose story, or what record's.")
    ],
    archive: ArchiveFile = None,
    live: Live = False,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show what led to how a replica, a model or a node stands, or what a record led to.

    The chain of facts, decisions with the reasons, scores and refusals that they recorded,
    commands, and what came of them. FROM are the sequences that a decision was made on. With
    `-o wide` the last output of engines that failed follows.
    """
    import asyncio

    from llmgw.cli.output import emit

    asked = where(archive, nats_url, cluster, data, live=live)
    found = asyncio.run(_explain(asked, name))
    emit(found, output, _lines)


async def _explain(asked: Where, name: str) -> Explanation:
    from llmgw.replay import foundation, records
    from llmgw.views.explain import Explanations

    async with opened(asked) as source:
        bounds = await source.log.bounds()
        base = await foundation(source.log, bounds)
        say_what_is_gone(base.sequence)
        explanations = Explanations(name, state=base)
        if base.sequence < bounds.last:
            async for record in records(source.log, start=base.sequence + 1, until=bounds.last):
                explanations.take(record)
        found = explanations.found()
        if found is None and name.isascii() and name.isdecimal():
            found = await _chain(source.log, int(name))
    if found is None:
        raise unknown(name, source.cluster, explanations.state)
    return found


async def _chain(log: Readable, sequence: int) -> Explanation | None:
    """Return the chain of one record; the log is read as far as it goes on."""
    from llmgw.replay import foundation, records
    from llmgw.views.chain import Chain

    bounds = await log.bounds()
    if not bounds.first <= sequence <= bounds.last:
        raise UsageError(
            f"the log holds the records {bounds.first} to {bounds.last}, and no {sequence}"
        )
    base = await foundation(log, bounds)
    if sequence <= base.sequence:
        raise UsageError(
            f"of record {sequence} nothing is known but itself: the oldest state here is of "
            f"{base.sequence}. {NAME_AN_ARCHIVE}"
        )
    chain = Chain(sequence, base)
    async for record in records(log, start=base.sequence + 1, until=bounds.last):
        chain.take(record)
        if chain.complete:
            break
    return chain.found()


def say_what_is_gone(sequence: int) -> None:
    """Say up to where nothing is told, if the log lost its beginning."""
    if sequence:
        note(
            f"what was up to sequence {sequence} is not told: what is read here begins after it. "
            f"{NAME_AN_ARCHIVE}"
        )


def unknown(name: str, cluster: str, state: Cluster) -> UsageError:
    """Return the error for a name that a log does not know."""
    names = [*state.replicas, *state.models, *state.nodes]
    more = ", …" if len(names) > 12 else ""
    known = f"; there are {', '.join(names[:12])}{more}" if names else ""
    return UsageError(
        f"the log of cluster {cluster} knows no replica, model or node {name!r:.80}{known}"
    )


def _lines(found: Explanation, wide: bool) -> Iterator[str]:
    from llmgw.cli.output import Column, table_lines

    columns = (
        Column("SEQUENCE", lambda s: s.sequence, right=True),
        Column("TIME", lambda s: s.time),
        Column("STEP", lambda s: s.kind),
        Column("FROM", lambda s: s.because),
        Column("TYPE", lambda s: s.type, wide=True),
        Column("NODE", lambda s: s.node),
        Column("WHAT", lambda s: s.summary),
        Column("WHY", why, whole=True),
    )
    yield from table_lines(found.steps, columns, wide)
    yield ""
    yield f"{'' if found.kind == 'record' else 'Now '}{found.now}."
    for engine, output in found.outputs.items() if wide else ():
        yield from _output_lines(engine, output)
    if found.outputs and not wide:
        yield f"The last output of {', '.join(found.outputs)} is shown with -o wide."


def _output_lines(engine: str, output: str) -> Iterator[str]:
    from llmgw.masking import visible

    yield ""
    yield f"The last output of {engine}:"
    yield from (f"  {visible(line)}" for line in output.splitlines())


def why(step: Step) -> str:
    """Return the reasons, the score and the refusals of a step on one line."""
    from llmgw.views.summaries import chosen, counted

    scored = chosen(step.score)
    by = f"chosen by: {scored}" if scored else ""
    where = "refused elsewhere" if step.score or step.reasons else "refused"
    refused = f"{where}: {counted(step.refusals)}" if step.refusals else ""
    void = f"void: {step.void}" if step.void else ""
    return "; ".join(part for part in (*step.reasons, by, refused, void) if part)
