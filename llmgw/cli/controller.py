"""`llmgw controller`: the controller as a service of its own."""

from __future__ import annotations

from llmgw.cli.context import service_settings
from llmgw.cli.options import ClusterName, Config, Data, NatsUrl, RunsByDefault, group

app = group("Decide what runs where. Without a command: run.", RunsByDefault)


@app.command()
def run(
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Follow the log and decide, while this controller leads."""
    import asyncio

    from llmgw.controller import run_controller

    settings = service_settings(config, nats_url=nats_url, cluster=cluster, data=data)
    asyncio.run(run_controller(settings))
