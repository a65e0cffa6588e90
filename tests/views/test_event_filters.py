"""Which records speak of a type, a node, a replica or a model."""

from __future__ import annotations

import pytest

from llmgw import views
from llmgw.core import events as e
from llmgw.core.commands import Assignment, SetAssignments
from tests.views.history import History, entry, failed, led, served, serving, started


@pytest.mark.parametrize(
    ("chosen", "sequences"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ({"wire": "replica.ready"}, [8]),
        ({"wire": "replica.*"}, [6, 7, 8, 9]),
        ({"wire": "replica"}, []),
        ({"wire": "unreadable"}, [10]),
        ({"node": "n1"}, [1, 2, 6, 7, 8, 9, 10]),
        ({"replica": "r1"}, [6, 7, 8, 9]),
        ({"replica": "r1", "wire": "replica.f*"}, [9]),
    ],
)
def test_records_are_chosen_by_type_node_and_replica(
    chosen: dict[str, str], sequences: list[int]
) -> None:
    records = failed(serving()).garbage().records
    assert [r.sequence for r in records if views.concerns(r, **chosen)] == sequences


def placed(history: History, replica: str, model: str) -> History:
    return history.write(
        e.ReplicaAssigned(
            term=1,
            at=1,
            replica=replica,
            model=model,
            generation=1,
            catalog=4,
            parts=(e.PartPlacement(node="n1", devices=(0,), memory_bytes=1),),
            reasons=("because",),
        )
    )


def test_a_model_is_spoken_of_by_its_name_and_by_its_replicas() -> None:
    a, b = entry("a"), entry("b")
    history = placed(placed(served(led(started(History())), a, b), "r1", "a"), "r2", "b")
    for replica in ("r1", "r2"):
        event = e.ReplicaStarting(replica=replica, generation=1, port=18100, devices=(0,))
        history.write(event, "n1")
    run = Assignment(replica="r2", generation=1, entry=b, devices=(0,), grants=())
    history.command(SetAssignments(node="n1", revision=1, term=1, at=1, assignments=(run,)))
    history.write(e.ModelLeftUnplaced(term=1, at=1, model="b", missing=1, refusals={}))
    history.write(e.ReplicaRetired(term=1, at=1, replica="r2", reason="not wanted"))
    models = views.ModelsOfReplicas()
    found = []
    for record in history.garbage().records:
        models.learn(record)
        if "b" in models.of(record):
            found.append(record.body.wire)  # type: ignore[union-attr]
    assert found == [
        "catalog.applied",
        "replica.assigned",
        "replica.starting",
        "assignments.set",
        "model.unplaced",
        "replica.retired",
    ]
