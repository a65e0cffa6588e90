"""`llmgw ctl`: the log's views, now and as they were. Each command folds the log and prints.

What a person asks for is in `ctl_apply`; reading the stream of events in `ctl_events`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli import ctl_apply, ctl_events
from llmgw.cli.context import note, open_log, resolved
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output, group

if TYPE_CHECKING:
    from datetime import datetime

    from llmgw.core.cluster import Cluster
    from llmgw.core.telemetry import NodeSample
    from llmgw.log.base import Log
    from llmgw.settings import Settings

    Point = int | datetime | None

LIVE_SAMPLES = 3
"""A sample counts as live for so many intervals of sampling, and no less than a minute."""

app = group("Ask the log, and ask for things through it.")
app.command("apply")(ctl_apply.apply)
app.command("events")(ctl_events.events)


@app.command()
def status(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the cluster at a glance: models, devices by class, nodes."""
    _show("status", output, resolved(nats_url=nats_url, cluster=cluster, data=data).settings)


@app.command()
def nodes(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the nodes: whether they are there, and what they have."""
    _show("nodes", output, resolved(nats_url=nats_url, cluster=cluster, data=data).settings)


@app.command()
def devices(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the devices: what holds them, and why nothing may be placed on them."""
    _show("devices", output, resolved(nats_url=nats_url, cluster=cluster, data=data).settings)


@app.command()
def replicas(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the replicas: where they are, how they fare, where they answer."""
    _show("replicas", output, resolved(nats_url=nats_url, cluster=cluster, data=data).settings)


@app.command()
def replay(
    to: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|TIME",
            help="Up to where: a sequence, 2026-03-01T14:05:00Z, 14:05 (UTC), '10 minutes ago'.",
            show_default=False,
        ),
    ] = None,
    view: Annotated[str, typer.Option(help="status, nodes, devices or replicas.")] = "status",
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Fold the log up to a point and show a view as it was then."""
    from datetime import UTC, datetime

    from llmgw.cli.moments import parse_point
    from llmgw.errors import UsageError
    from llmgw.views import VIEWS

    if view not in VIEWS:
        raise UsageError(f"there is no view {view!r:.60}; there are {', '.join(VIEWS)}")
    point = None if to is None else parse_point(to, datetime.now(UTC))
    settings = resolved(nats_url=nats_url, cluster=cluster, data=data).settings
    _show(view, output, settings, point, then=True)


def _show(
    view: str, output: Format, settings: Settings, point: Point = None, *, then: bool = False
) -> None:
    """Print a view of the log as of `point`; `then`: without what is only measured now."""
    import asyncio

    from llmgw.cli.output import emit
    from llmgw.cli.tables import view_lines

    state, shown = asyncio.run(_read(view, settings, point, then))
    if then:
        _say_when(state)
    if state.sequence == 0:
        where = "before that point" if point is not None else "yet"
        note(
            f"the log of cluster {settings.cluster} holds nothing {where}: "
            "start `llmgw up` or an agent, or name another cluster"
        )
    elif not shown:
        note(f"no {view} {'then' if then else 'yet'}")
    emit(shown, output, view_lines)


async def _read(view: str, settings: Settings, point: Point, then: bool) -> tuple[Cluster, Any]:
    from datetime import datetime

    from llmgw import views
    from llmgw.replay import fold_log

    async with open_log(settings) as log:
        if isinstance(point, datetime):
            state = await fold_log(log, until_ns=int(point.timestamp() * 1_000_000) * 1000)
        else:
            state = await fold_log(log, point)
        if view == "status":
            return state, views.status(state, settings.cluster)
        if view == "devices" and not then:
            return state, views.devices(state, await _live_samples(log, state, settings))
        return state, views.VIEWS[view](state)


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
