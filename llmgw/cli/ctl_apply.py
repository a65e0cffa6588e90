"""`llmgw ctl apply`: a catalog into the log, and the controller's answer out of it.

The catalog is recorded whether or not a controller runs: what a person wants survives until one
does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.asked import SAID_NO, DryRun, Wait, diff_lines, foresee, heard, show_forecast
from llmgw.cli.context import note, open_log, resolved
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output

if TYPE_CHECKING:
    from llmgw.catalog.diff import CatalogDiff
    from llmgw.catalog.entries import Catalog
    from llmgw.core.cluster import Cluster
    from llmgw.core.events import CatalogAccepted, CatalogRejected
    from llmgw.core.records import Record
    from llmgw.log.base import Log
    from llmgw.settings import Settings

    Answer = CatalogAccepted | CatalogRejected


def apply(
    file: Annotated[Path, typer.Argument(help="A catalog in YAML.")],
    dry_run: DryRun = False,
    wait: Wait = 10,
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
    from llmgw.catalog.diff import diff
    from llmgw.cli.output import emit
    from llmgw.core.events import CatalogRejected
    from llmgw.replay import fold_log

    async with open_log(settings) as log:
        state = await fold_log(log)
        changes = diff(state.catalog, catalog)
        sequence = await apply_catalog(log, settings.cluster, catalog, file)
        answer = await _answer(log, state, sequence, wait)
    reasons = answer.reasons if isinstance(answer, CatalogRejected) else ()
    result: dict[str, Any] = {"sequence": sequence, "answer": _word(answer), "changes": changes}
    if reasons:
        result["reasons"] = list(reasons)
    emit(result, output, lambda _, __: _lines(file, sequence, answer, changes))
    for reason in reasons:
        note(reason)
    if reasons:
        raise typer.Exit(SAID_NO)


async def _answer(log: Log, state: Cluster, request: int, wait_seconds: float) -> Answer | None:
    """Return what a controller answers to the catalog of sequence `request`, if it does so in time.

    `state` is the log folded before the request. An answer that the fold voids is none: the log
    is folded, not only read.
    """
    from llmgw.core.events import CatalogAccepted, CatalogRejected

    def answer_in(record: Record, voided: bool) -> Answer | None:
        body = record.body
        if isinstance(body, CatalogAccepted | CatalogRejected) and body.request == request:
            return None if voided else body
        return None

    return await heard(log, state, wait_seconds, answer_in)


def _lines(file: str, sequence: int, answer: Answer | None, changes: CatalogDiff) -> list[str]:
    said = "nothing changes against the catalog in force" if changes.empty else None
    return [_sentence(file, sequence, answer), *([said] if said else diff_lines(changes))]


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
    from llmgw.catalog.diff import diff
    from llmgw.core.events import CatalogApplied
    from llmgw.replay import fold_log

    async with open_log(settings) as log:
        state = await fold_log(log)
    found = foresee(state, CatalogApplied(catalog=catalog))
    show_forecast(found, output, whole=True, changes=diff(state.catalog, catalog))
