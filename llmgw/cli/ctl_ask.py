"""`llmgw ctl scale`, `drain`, `cordon`, `uncordon`, `restart` and `delete`: what a person asks for.

Each is checked against the log as it is, appended as one event, and then waited for a moment: a
controller that runs decides at once. Without one the request is recorded all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmgw.cli.asked import SAID_NO, DryRun, Wait, foresee, heard, show_forecast, unknown
from llmgw.cli.context import open_log, resolved
from llmgw.cli.options import ClusterName, Data, Format, NatsUrl, Output
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.core.cluster import Cluster
    from llmgw.core.events import Event
    from llmgw.core.records import Record
    from llmgw.log.base import Log
    from llmgw.settings import Settings

NameOfModel = Annotated[str, typer.Argument(metavar="MODEL", help="A model of the catalog.")]
NameOfNode = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.")]


def scale(
    model: NameOfModel,
    replicas: Annotated[int, typer.Argument(metavar="N", min=0, help="How many replicas.")],
    dry_run: DryRun = False,
    wait: Wait = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Have N replicas of a model, until the next catalog is applied."""
    from llmgw.core.events import ModelScaled

    _ask(
        ModelScaled(model=model, replicas=replicas), dry_run, wait, output, nats_url, cluster, data
    )


def delete(
    model: NameOfModel,
    dry_run: DryRun = False,
    wait: Wait = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Serve a model no more, until the next catalog is applied."""
    from llmgw.core.events import ModelDeleted

    _ask(ModelDeleted(model=model), dry_run, wait, output, nats_url, cluster, data)


def cordon(
    node: NameOfNode,
    dry_run: DryRun = False,
    wait: Wait = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Place nothing more on a node; what runs there goes on."""
    from llmgw.core.events import NodeCordoned

    _ask(NodeCordoned(node=node), dry_run, wait, output, nats_url, cluster, data)


def uncordon(
    node: NameOfNode,
    dry_run: DryRun = False,
    wait: Wait = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Use a node again that was cordoned or drained."""
    from llmgw.core.events import NodeUncordoned

    _ask(NodeUncordoned(node=node), dry_run, wait, output, nats_url, cluster, data)


def drain(
    node: NameOfNode,
    dry_run: DryRun = False,
    wait: Wait = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Move everything off a node, and place nothing more there."""
    from llmgw.core.events import NodeDrained

    _ask(NodeDrained(node=node), dry_run, wait, output, nats_url, cluster, data)


def restart(
    replica: Annotated[str, typer.Argument(metavar="REPLICA", help="A replica, such as r7.")],
    dry_run: DryRun = False,
    wait: Wait = 10,
    output: Output = Format.TABLE,
    nats_url: NatsUrl = None,
    cluster: ClusterName = None,
    data: Data = None,
) -> None:
    """Start the engines of a replica afresh, where they are."""
    from llmgw.core.events import ReplicaRestartAsked

    _ask(ReplicaRestartAsked(replica=replica), dry_run, wait, output, nats_url, cluster, data)


# --- what they share ---------------------------------------------------------------------------


def _ask(
    request: Event,
    dry_run: bool,
    wait: float,
    output: Format,
    nats_url: str | None,
    cluster: str | None,
    data: Path | None,
) -> None:
    import asyncio

    settings = resolved(nats_url=nats_url, cluster=cluster, data=data).settings
    if dry_run:
        asyncio.run(_foresee(settings, request, output))
    else:
        asyncio.run(_carry_on(settings, request, wait, output))


async def _foresee(settings: Settings, request: Event, output: Format) -> None:
    from llmgw.replay import fold_log

    async with open_log(settings) as log:
        state = await fold_log(log)
    check(state, request)
    show_forecast(foresee(state, request), output, whole=False)


async def _carry_on(settings: Settings, request: Event, wait: float, output: Format) -> None:
    from llmgw.asking import ask
    from llmgw.cli.output import emit
    from llmgw.replay import fold_log

    async with open_log(settings) as log:
        state = await fold_log(log)
        check(state, request)
        result = already(state, request)
        if result is None:
            sequence = await ask(log, settings.cluster, request)
            result = {"sequence": sequence, **await _effect(log, state, sequence, wait)}
    emit(result, output, lambda _, __: _lines(request, result))
    if result["answer"] == "refused":
        raise typer.Exit(SAID_NO)


def check(state: Cluster, request: Event) -> None:
    """Raise `UsageError` where the request speaks of what is not there, with the near names."""
    from llmgw.catalog.rules import MOST_REPLICAS
    from llmgw.core import events as e

    match request:
        case e.ModelScaled() | e.ModelDeleted() if request.model not in state.models:
            waits = "" if state.pending is None else ". A catalog still waits for a controller"
            raise UsageError(unknown("model", request.model, state.models) + waits)
        case e.ModelScaled() if request.replicas > MOST_REPLICAS:
            raise UsageError(f"{request.replicas} replicas are too many; at most {MOST_REPLICAS}")
        case e.NodeCordoned() | e.NodeUncordoned() | e.NodeDrained() if (
            request.node not in state.nodes
        ):
            raise UsageError(unknown("node", request.node, state.nodes))
        case e.ReplicaRestartAsked():
            _check_replica(state, request.replica)


def _check_replica(state: Cluster, name: str) -> None:
    replica = state.replicas.get(name)
    if replica is None:
        running = [r.name for r in state.replicas.values() if r.retired is None]
        raise UsageError(unknown("replica", name, running))
    if replica.retired is not None:
        raise UsageError(f"{name} is to stop ({replica.retired}): it will not start again")


def already(state: Cluster, request: Event) -> dict[str, Any] | None:
    """Return the answer to a request for what is so already, or `None`."""
    said = _so_already(state, request)
    return None if said is None else {"answer": "already so", "reasons": [said]}


def _so_already(state: Cluster, request: Event) -> str | None:
    from llmgw.core import events as e

    match request:
        case e.ModelScaled() if state.models[request.model].entry.replicas == request.replicas:
            return f"{request.replicas} of {request.model} are wanted already"
        case e.NodeCordoned() if _use(state, request.node) == "cordoned":
            return f"{request.node} is cordoned already"
        case e.NodeDrained() if _use(state, request.node) == "drained":
            return f"{request.node} is drained already"
        case e.NodeUncordoned() if _use(state, request.node) == "used":
            return f"{request.node} is neither cordoned nor drained"
    return None


def _use(state: Cluster, name: str) -> str:
    node = state.nodes[name]
    if node.draining:
        return "drained"
    return "cordoned" if node.cordoned else "used"


async def _effect(log: Log, state: Cluster, request: int, wait_seconds: float) -> dict[str, Any]:
    """Return what became of the request of that sequence, as far as a controller said in time.

    It is over when nothing more is to be decided: engines that load are not waited for.
    """
    from llmgw.core.decide import decide
    from llmgw.views.summaries import summary

    decided: list[str] = []

    def answer_in(record: Record, voided: bool) -> dict[str, Any] | None:
        if record.sequence == request and voided:
            return {"answer": "refused", "reasons": [state.incidents[-1].detail]}
        if getattr(record.body, "at", 0) >= request:
            decided.append(summary(record.body))
        if record.sequence >= request and state.term and not decide(state):
            return {"answer": "taken", "decisions": decided}
        return None

    found = await heard(log, state, wait_seconds, answer_in)
    return found or {"answer": "taken" if decided else "none yet", "decisions": decided}


def _lines(request: Event, result: dict[str, Any]) -> list[str]:
    from llmgw.views.summaries import summary

    if result["answer"] == "already so":
        return [*result["reasons"]]
    said = f"{summary(request)} (sequence {result['sequence']})"
    if result["answer"] == "refused":
        return [f"refused: {said}", *result["reasons"]]
    if result["answer"] == "none yet":
        return [f"{said}. No controller has answered yet: it will be done when one runs"]
    return [said, *result["decisions"]]
