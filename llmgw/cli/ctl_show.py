"""What the commands of `ctl` that print a view share: fold, look, say what is odd, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmgw.cli.context import note
from llmgw.cli.ctl_source import Source, Span, Where, opened
from llmgw.cli.options import Format

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.settings import Settings


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
    if span not in (None, Span()):
        note(f"the log of cluster {cluster} holds nothing before that point")
        return
    hint = "" if asked.archive else ": start `llmgw up` or an agent, or name another cluster"
    note(f"the log of cluster {cluster} holds nothing yet{hint}")


async def _read(view: str, asked: Where, span: Span, then: bool) -> tuple[str, Cluster, Any]:
    from llmgw.replay import fold_log

    async with opened(asked) as source:
        state = await fold_log(source.log, span.until, until_ns=span.until_ns)
        return source.cluster, state, await _look(view, state, source, asked.settings, then)


async def _look(
    view: str, state: Cluster, source: Source, settings: Settings | None, then: bool
) -> Any:  # noqa: ANN401 -- whatever the view returns; it is only printed
    from llmgw import views
    from llmgw.replay import live_samples

    samples = None
    measured = view in ("devices", "replicas") and not then
    if measured and source.live is not None and settings is not None:
        cluster, seconds = settings.cluster, settings.sample_seconds
        samples = await live_samples(source.live, cluster, state, seconds)
    return views.shown(view, state, source.cluster, samples)


def _say_when(state: Cluster) -> None:
    from llmgw.views.shared import as_time

    if state.sequence:
        note(f"as of sequence {state.sequence}, {as_time(state.time_ns)}")
