"""`llmgw doctor`: what is wrong with this machine, and what to do about each thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.context import note, resolved
from llmgw.cli.options import ClusterName, Config, Data, Format, NatsUrl, NodeName, Output

if TYPE_CHECKING:
    from llmgw.views.findings import Finding

ANSWER_IS_NO = 4


def doctor(
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Examine a captured machine instead of this one.", show_default=False
        ),
    ] = None,
    output: Output = Format.TABLE,
    node: NodeName = None,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Check driver, cards, MIG, NVLink, engines, NATS, clock and disk, each with what to do.

    Ends with 4 when something cannot run. It changes nothing, and works without a GPU.
    """
    import asyncio

    from llmgw import logs
    from llmgw.cli.output import emit
    from llmgw.doctor.checks import examine

    found = resolved(config, node=node, nats_url=nats_url, cluster=cluster, data=data)
    logs.configure("critical", as_json=False)
    findings = asyncio.run(examine(found.settings, source))
    emit(findings, output, lambda rows, _: _lines(rows))
    faults = sum(finding.state == "fault" for finding in findings)
    if faults:
        note(f"{faults} {'fault' if faults == 1 else 'faults'}: something cannot run")
        raise typer.Exit(ANSWER_IS_NO)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the table: below each finding what to do, whole, so that it can be copied."""
    from llmgw.cli.output import Column, table_lines

    columns = (
        Column("STATE", lambda row: row[0]),
        Column("CHECK", lambda row: row[1]),
        Column("DETAIL", lambda row: row[2]),
    )
    rows: list[tuple[str, str, str]] = []
    for finding in findings:
        rows.append((finding.state, finding.check, finding.detail))
        if finding.do is not None:
            rows.append((" ", " ", f"do: {finding.do}"))
    return table_lines(rows, columns, wide=True)
