"""`llmgw ctl`: the log's views, now and as they were. Each command folds the log and prints.

What a person asks for is in `ctl_apply` and `ctl_ask`; reading the stream of events in
`ctl_events`; the past in `ctl_replay` and `ctl_explain`; the log as a file in `ctl_archive`.
"""

from __future__ import annotations

import typer

from llmgw.cli import (
    ctl_apply,
    ctl_archive,
    ctl_ask,
    ctl_bisect,
    ctl_events,
    ctl_explain,
    ctl_plan,
    ctl_replay,
    ctl_retain,
)
from llmgw.cli.ctl_show import show
from llmgw.cli.ctl_source import where
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output, group

app: typer.Typer = group("Ask the log, and ask for things through it.")
app.command("apply")(ctl_apply.apply)
app.command("scale")(ctl_ask.scale)
app.command("delete")(ctl_ask.delete)
app.command("drain")(ctl_ask.drain)
app.command("cordon")(ctl_ask.cordon)
app.command("uncordon")(ctl_ask.uncordon)
app.command("restart")(ctl_ask.restart)
app.command("events")(ctl_events.events)
app.command("plan")(ctl_plan.plan)
app.command("explain")(ctl_explain.explain)
app.command("replay")(ctl_replay.replay)
app.command("archive")(ctl_retain.archive)
app.command("snapshot")(ctl_retain.snapshot)
app.command("bisect")(ctl_bisect.bisect)
app.command("export")(ctl_archive.export)
app.command("import")(ctl_archive.import_)


@app.command()
def status(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the cluster at a glance: models, devices by class, nodes."""
    show("status", output, where(None, nats_url, cluster, data))


@app.command()
def nodes(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the nodes: whether they are there, and what they have."""
    show("nodes", output, where(None, nats_url, cluster, data))


@app.command()
def devices(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the devices: what holds them, and why nothing may be placed on them."""
    show("devices", output, where(None, nats_url, cluster, data))


@app.command()
def replicas(
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Show the replicas: where they are, how they fare, where they answer."""
    show("replicas", output, where(None, nats_url, cluster, data))
