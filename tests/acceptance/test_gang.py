"""A replica over two nodes: two real agents, two engines that talk to each other over loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from llmgw.core import events as e
from llmgw.core.cluster import Cluster as State
from tests.support.cluster import Cluster, pretended
from tests.support.wait import until


async def test_the_parts_meet_serve_and_start_again_together(cluster: Cluster) -> None:
    cluster.agent("n1", port_range=cluster.half_of_ports(1))
    cluster.agent("n2", port_range=cluster.half_of_ports(2))
    cluster.controller()
    await cluster.until_state(
        lambda state: all(n in state.nodes and state.nodes[n].inventory for n in ("n1", "n2")),
        "both nodes are there",
    )
    wanted = pretended(cluster, "m", "gang={leader}", nodes=2, gpus=2, pp=2)
    await cluster.apply(wanted)
    await cluster.until_state(all_ready(1), "both parts are ready")
    first, second = sorted(cluster.engines("r1"), key=lambda one: one.marker.start.key.part)
    assert {part.node for part in cluster.state.replicas["r1"].parts} == {"n1", "n2"}

    # The second part dies: the first notices, both end, and both start again as generation 2.
    os.kill(second.pid, signal.SIGKILL)
    await cluster.until_state(all_ready(2), "both parts are ready again")
    again = cluster.engines("r1")
    assert len(again) == 2
    assert {one.marker.start.generation for one in again} == {2}
    assert not {first.pid, second.pid} & {one.pid for one in again}

    await cluster.apply()
    await cluster.event(e.ReplicaRetired)
    await until(lambda: cluster.engines() == [], what="no part is left")


def all_ready(generation: int) -> Callable[[State], bool]:
    """Return whether every part of r1 serves, of this generation or a later one."""

    def holds(state: State) -> bool:
        replica = state.replicas.get("r1")
        return (
            replica is not None
            and replica.generation >= generation
            and all(part.phase == "ready" for part in replica.parts)
        )

    return holds
