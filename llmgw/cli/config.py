"""`llmgw config`: which settings are in force, and why."""

from __future__ import annotations

from llmgw.cli.context import resolved
from llmgw.cli.options import Config, Format, Output, group

app = group("Look at the settings.")


@app.command()
def show(output: Output = Format.TABLE, config: Config = None) -> None:
    """Show every setting and where its value came from. Secrets are masked."""
    from llmgw.cli.output import emit
    from llmgw.cli.tables import view_lines

    rows = resolved(config).shown()
    plain = [{k: v for k, v in row._asdict().items() if v is not None} for row in rows]
    emit(plain, output, lambda _, wide: view_lines(rows, wide))
