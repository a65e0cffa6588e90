"""What the commands of `ctl` that print a view share: fold, look, say what is odd, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmgw.cli.context import note
from llmgw.cli.ctl_source import Source, Span, Where, opened
from llmgw.cli.options import Format

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.core.telemetry import NodeSample
    from llmgw.log.base import Log
    from llmgw.settings import Settings

LIVE_SAMPLES = 3
"""A sample counts as live for so many intervals of sampling, and no less than a minute."""


def show(
    view: str, output: Format, asked: Where, span: Span | None = None, *, then: bool = False
) -> None:
    """Print a view of the log as of the end of `span`; `then`: without what is measured now."""
    import asyncio

    from llmgw.cli.output import emit
    from llmgw.cli.tables import view_lines

    cluster, state, shown = asyncio.run(_read(view, asked, span or Span(), then))
    if then:
        _say_when(state)
    if state.sequence == 0:
        _say_nothing(asked, cluster, span)
    elif not shown:
        note(f"no {view} {'then' if then else 'yet'}")
    emit(shown, output, view_lines)


def _say_nothing(asked: Where, cluster: str, span: Span | None) -> None:
    when = "yet" if span in (None, Span()) else "before that point"
    hint = "" if asked.archive else ": start `llmgw up` or an agent, or name another cluster"
    note(f"the log of cluster {cluster} holds nothing {when}{hint}")


async def _read(view: str, asked: Where, span: Span, then: bool) -> tuple[str, Cluster, Any]:
    from llmgw.replay import fold_log

    async with opened(asked) as source:
        state = await fold_log(source.log, span.until, until_ns=span.until_ns)
        return source.cluster, state, await _look(view, state, source, asked.settings, then)


async def _look(
    view: str, state: Cluster, source: Source, settings: Settings | None, then: bool
) -> Any:  # noqa: ANN401 -- whatever the view returns; it is only printed
    from llmgw import views

    if view == "status":
        return views.status(state, source.cluster)
    if view == "devices" and not then and source.live is not None and settings is not None:
        return views.devices(state, await _live_samples(source.live, state, settings))
    return views.VIEWS[view](state)


async def _live_samples(log: Log, state: Cluster, settings: Settings) -> dict[str, NodeSample]:
    import time

    from llmgw.replay import newest_samples

    up = [node.name for node in state.nodes.values() if node.started and not node.lost]
    live_seconds = max(LIVE_SAMPLES * settings.sample_seconds, 60)
    since_ns = time.time_ns() - int(live_seconds * 1e9)
    return await newest_samples(log, settings.cluster, up, since_ns=since_ns)


def _say_when(state: Cluster) -> None:
    from llmgw.views.shared import as_time

    if state.sequence:
        note(f"as of sequence {state.sequence}, {as_time(state.time_ns)}")
