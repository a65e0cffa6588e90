"""What people and programs are shown: pure projections of the folded state, as plain rows.

A view reads a `Cluster` (or records) and returns frozen rows; it formats no table and knows no
terminal. The command line prints them, tests compare them. Sizes are bytes, times RFC 3339 in
UTC, and what is not known is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmgw.core.cluster import Cluster
from llmgw.core.telemetry import NodeSample
from llmgw.views.devices import DeviceRow, devices
from llmgw.views.events import (
    EventRow,
    ModelsOfReplicas,
    RejectedRow,
    concerns,
    events,
    rejected,
)
from llmgw.views.forecast import Forecast, Place, Step, forecast
from llmgw.views.nodes import NodeRow, nodes
from llmgw.views.replicas import ReplicaRow, replicas
from llmgw.views.status import Status, status

View = Callable[[Cluster], Any]

VIEWS: Mapping[str, View] = {
    "status": status,
    "nodes": nodes,
    "devices": devices,
    "replicas": replicas,
}
"""The views of a state by name, as `ctl NAME` and `ctl replay --view NAME` know them."""


def shown(
    view: str, state: Cluster, cluster: str, samples: Mapping[str, NodeSample] | None = None
) -> Any:  # noqa: ANN401 -- whatever the view returns; it is printed or sent
    """Return a view by its name, with what is known beside the state: name and measurements."""
    if view == "status":
        return status(state, cluster)
    if view == "devices":
        return devices(state, samples)
    if view == "replicas":
        return replicas(state, samples)
    return VIEWS[view](state)


__all__ = [
    "VIEWS",
    "DeviceRow",
    "EventRow",
    "Forecast",
    "ModelsOfReplicas",
    "NodeRow",
    "Place",
    "RejectedRow",
    "ReplicaRow",
    "Status",
    "Step",
    "View",
    "concerns",
    "devices",
    "events",
    "forecast",
    "nodes",
    "rejected",
    "replicas",
    "shown",
    "status",
]
