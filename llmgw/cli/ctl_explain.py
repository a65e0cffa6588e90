"""`llmgw ctl explain`: why a replica, a model or a node is where it is, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.ctl_source import ArchiveFile, Where, opened, where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.views.explain import Explanation, Step


def explain(
    name: Annotated[str, typer.Argument(metavar="REPLICA|MODEL|NODE", help="Whose story.")],
    archive: ArchiveFile = None,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show what led to how a replica, a model or a node stands.

    The chain of facts, decisions with the reasons and refusals that they recorded, commands, and
    what came of them. FROM are the sequences that a decision was made on.
    """
    import asyncio

    from llmgw.cli.output import emit

    found = asyncio.run(_explain(where(archive, nats_url, cluster, data), name))
    emit(found, output, _lines)


async def _explain(asked: Where, name: str) -> Explanation:
    from llmgw.errors import UsageError
    from llmgw.replay import present_records
    from llmgw.views.explain import Explanations

    explanations = Explanations(name)
    async with opened(asked) as source:
        async for record in present_records(source.log):
            explanations.take(record)
    found = explanations.found()
    if found is None:
        raise UsageError(
            f"the log of cluster {source.cluster} knows no replica, model or node {name!r:.80}"
            f"{_known(explanations.state)}"
        )
    return found


def _known(state: Cluster) -> str:
    names = [*state.replicas, *state.models, *state.nodes]
    more = ", …" if len(names) > 12 else ""
    return f"; there are {', '.join(names[:12])}{more}" if names else ""


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
        Column("WHY", _why),
    )
    yield from table_lines(found.steps, columns, wide)
    yield ""
    yield f"Now {found.now}."


def _why(step: Step) -> str:
    from llmgw.views.summaries import counted

    refused = f"refused elsewhere: {counted(step.refusals)}" if step.refusals else ""
    void = f"void: {step.void}" if step.void else ""
    return "; ".join(part for part in (*step.reasons, refused, void) if part)
