"""`llmgw ctl apply`: a catalog into the log, and the controller's answer out of it.

The catalog is recorded whether or not a controller runs: what a person wants survives until one
does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.context import note, open_log, resolved
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output

if TYPE_CHECKING:
    from llmgw.catalog.entries import Catalog
    from llmgw.core.events import CatalogAccepted, CatalogRejected
    from llmgw.log.base import Log
    from llmgw.settings import Settings

    Answer = CatalogAccepted | CatalogRejected

SAID_NO = 4


def apply(
    file: Annotated[Path, typer.Argument(help="A catalog in YAML.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be decided, and write nothing.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for the answer.")
    ] = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Have exactly this catalog served. Exits with 4 if the controller rejects it."""
    import asyncio

    from llmgw.catalog.load import load

    checked = load(file)
    for warning in checked.warnings:
        note(f"warning: {warning}")
    settings = resolved(nats_url=nats_url, cluster=cluster, data=data).settings
    if dry_run:
        asyncio.run(_forecast(settings, checked.catalog, output))
    else:
        asyncio.run(_apply(settings, checked.catalog, str(file), wait, output))


async def _apply(
    settings: Settings, catalog: Catalog, file: str, wait: float, output: Format
) -> None:
    from llmgw.asking import apply_catalog
    from llmgw.cli.output import emit
    from llmgw.core.events import CatalogRejected

    async with open_log(settings) as log:
        sequence = await apply_catalog(log, settings.cluster, catalog, file)
        answer = await _answer(log, sequence, wait)
    reasons = answer.reasons if isinstance(answer, CatalogRejected) else ()
    result: dict[str, Any] = {"sequence": sequence, "answer": _word(answer)}
    if reasons:
        result["reasons"] = list(reasons)
    emit(result, output, lambda _, __: [_sentence(file, sequence, answer)])
    for reason in reasons:
        note(reason)
    if reasons:
        raise typer.Exit(SAID_NO)


async def _answer(log: Log, request: int, wait_seconds: float) -> Answer | None:
    """Return what a controller answers to the catalog of sequence `request`, if it does so in time.

    An answer that the fold voids is none: the log is folded, not only read.
    """
    import asyncio

    from llmgw.core.events import CatalogAccepted, CatalogRejected
    from llmgw.core.fold import apply as fold
    from llmgw.replay import fold_log, records

    state = await fold_log(log, request)
    try:
        async with asyncio.timeout(wait_seconds):
            async for record in records(log, start=request + 1):
                voided = state.void
                fold(state, record)
                body = record.body
                if (
                    isinstance(body, CatalogAccepted | CatalogRejected)
                    and body.request == request
                    and state.void == voided
                ):
                    return body
    except TimeoutError:
        pass
    return None


def _word(answer: Answer | None) -> str:
    if answer is None:
        return "none yet"
    return answer.wire.removeprefix("catalog.")


def _sentence(file: str, sequence: int, answer: Answer | None) -> str:
    if answer is None:
        return (
            f"{file} is recorded at sequence {sequence}. No controller has answered yet: "
            "it will be taken when one runs"
        )
    return f"{file} was {_word(answer)} (sequence {sequence})"


async def _forecast(settings: Settings, catalog: Catalog, output: Format) -> None:
    from llmgw.cli.output import emit
    from llmgw.cli.tables import view_lines
    from llmgw.errors import LlmgwError
    from llmgw.replay import fold_log
    from llmgw.views import consequences

    async with open_log(settings) as log:
        state = await fold_log(log)
    if state.needs_upgrade is not None:
        raise LlmgwError(f"the log holds {state.needs_upgrade}: upgrade llmgw to decide on it")
    found = consequences(state, catalog)
    if not found:
        note("nothing would change")
    emit(found, output, view_lines)
    if not all(one.good for one in found):
        raise typer.Exit(SAID_NO)
