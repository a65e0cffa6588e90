"""How long the core takes to decide for a thousand nodes with two thousand replicas.

Once when all is as wanted, and once when a model asks for a hundred more. There is no goal yet:
these are the numbers that placement will be held against. The floors are what any answer must do
without an index: look at each replica and node once; look at each device once for each placement.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from tests.benchmarks.history import CLUSTER, TERM, TIME, Fleet
from tests.benchmarks.measure import Result, Turns

NODES = 1_000
MODELS = 40
REPLICAS = 2_000
MORE = 100
IDLE_TURNS = 15
PLACING_TURNS = 3


def benchmark() -> Iterator[Result]:
    """Measure, and make sure that nothing and everything was decided."""
    fleet = Fleet(nodes=NODES, models=MODELS, replicas=REPLICAS)
    state = Cluster()
    for subject, payload, _ in fleet.founding():
        apply(state, wire.decode(state.sequence + 1, 1, subject, payload))
    assert len(state.replicas) == REPLICAS
    turns = Turns()
    for _ in range(IDLE_TURNS):
        with turns.ours():
            assert decide(state) == []
        with turns.peer():
            look_at_replicas(state)
    peer = f"a look at each replica and node, {turns.peer_seconds * 1000:.2f} ms"
    yield Result("decide, 2,000 replicas, idle", turns.ours_seconds * 1000, "ms", peer)

    want_more(state, fleet)
    turns = Turns()
    for _ in range(PLACING_TURNS):
        with turns.ours():
            decided = decide(state)
        with turns.peer():
            for _ in range(MORE):
                look_at_devices(state)
        assert len(decided) == MORE
        assert all(isinstance(decision, e.ReplicaAssigned) for decision in decided)
    peer = f"a look at each of 8,000 devices for each, {turns.peer_seconds * 1000:.0f} ms"
    yield Result("decide, 100 new replicas", turns.ours_seconds * 1000, "ms", peer)


def want_more(state: Cluster, fleet: Fleet) -> None:
    """Have the operator raise one model's replicas, and the controller accept it."""
    number = 1
    model = fleet.catalog.models[number]
    raised = replace(model, replicas=model.replicas + MORE)
    models = tuple(raised if m is model else m for m in fleet.catalog.models)
    request = state.sequence + 1
    for event in (
        e.CatalogApplied(catalog=replace(fleet.catalog, models=models)),
        e.CatalogAccepted(term=TERM, at=request, request=request),
    ):
        subject, payload, _ = wire.encode_event(
            CLUSTER, event, session="more", number=number, time=TIME
        )
        apply(state, wire.decode(state.sequence + 1, 1, subject, payload))
    assert state.void == 0


def look_at_replicas(state: Cluster) -> int:
    """Look at every replica and node once."""
    wanted = sum(1 for replica in state.replicas.values() if replica.retired is None)
    told = sum(1 for node in state.nodes.values() if node.revision > node.commanded)
    return wanted + told


def look_at_devices(state: Cluster) -> int:
    """Look at every device once."""
    return sum(
        1
        for node in state.nodes.values()
        for device in node.devices.values()
        if device.id not in node.excluded and device.uuid not in node.held
    )
