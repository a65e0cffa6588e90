"""Two agents on one machine: one falls silent, its replica is replaced, and the surplus goes."""

from __future__ import annotations

from llmgw.core import events as e
from tests.support.cluster import Cluster, pretended
from tests.support.wait import until


async def test_a_silent_node_is_replaced_and_its_engine_ends_when_it_returns(
    cluster: Cluster,
) -> None:
    ports = {"n1": cluster.half_of_ports(1), "n2": cluster.half_of_ports(2)}
    agents = {node: cluster.agent(node, port_range=ports[node]) for node in ports}
    cluster.controller(node_lost_seconds=3)
    await cluster.until_state(
        lambda state: all(n in state.nodes and state.nodes[n].inventory for n in ("n1", "n2")),
        "both nodes are there",
    )
    await cluster.apply(pretended(cluster, "m"))
    await cluster.until_ready("r1")
    first = cluster.state.replicas["r1"].parts[0].node
    other = {"n1": "n2", "n2": "n1"}[first]
    agents[first].kill()

    # The engine itself serves on; only what is said of it is unknown.
    assert (await cluster.event(e.NodeLost)).node == first
    await cluster.until_ready("r2")
    assert cluster.state.replicas["r2"].parts[0].node == other
    assert len(cluster.engines("r1")) == len(cluster.engines("r2")) == 1

    cluster.agent(first, port_range=ports[first])
    assert (await cluster.event(e.NodeReturned)).node == first
    await cluster.event(e.ReplicaRetired)
    await cluster.until_state(lambda state: len(state.replicas) == 1, "one replica is left")
    await until(lambda: len(cluster.engines()) == 1, what="one engine is left")
    [left] = cluster.engines()
    assert left.marker.start.key.replica in cluster.state.replicas
    await cluster.until_ready(left.marker.start.key.replica)
