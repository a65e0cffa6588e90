"""A forecast is what the controller itself would decide, until nothing more is to be decided."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.catalog.entries import Catalog, Entry
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.views import Forecast, Step, forecast
from tests.views.history import (
    GIB,
    History,
    assigned,
    entry,
    failed,
    led,
    ready,
    served,
    serving,
    started,
    starting,
)


def applied(*entries: Entry) -> e.CatalogApplied:
    return e.CatalogApplied(catalog=Catalog(models=entries))


def told(found: Forecast) -> list[tuple[str, str | None, str]]:
    """Return action, replica and where it ends up (or was), in the order of the steps."""
    return [(step.action, step.replica, where(step)) for step in found.steps]


def where(step: Step) -> str:
    places = step.after or step.before
    return " ".join(f"{place.node}/{'+'.join(place.devices)}" for place in places)


def empty(nodes: int = 1) -> Cluster:
    history = History()
    for number in range(1, nodes + 1):
        started(history, f"n{number}")
    return led(history).state


def test_it_says_where_replicas_would_go_and_changes_nothing() -> None:
    state = empty()
    before = msgspec.json.encode(state)
    found = forecast(state, applied(entry(replicas=3)))
    assert told(found) == [("start", "r1", "n1/0"), ("start", "r2", "n1/1"), ("cannot", None, "")]
    assert found.steps[0].reasons[0].startswith("n1: 0 of class a100-80g")
    assert (found.steps[2].count, found.steps[2].good) == (1, False)
    assert found.steps[2].reasons == ("2 in use",)
    assert msgspec.json.encode(state) == before


def test_without_any_controller_it_says_the_same() -> None:
    state = started(History()).state
    assert told(forecast(state, applied(entry()))) == [("start", "r1", "n1/0")]


def test_a_catalog_that_would_be_rejected_says_why_and_nothing_else() -> None:
    found = forecast(empty(), applied(entry(), entry()))
    assert found.steps == ()
    assert found.rejected[0].startswith("tiny: name: is taken")


def test_the_same_catalog_again_keeps_all() -> None:
    state = serving().state
    found = forecast(state, e.CatalogApplied(catalog=state.catalog))
    assert told(found) == [("keep", "r1", "n1/0")]
    assert found.changes == ()


def test_a_changed_entry_is_followed_to_its_end_though_its_successor_must_be_ready_first() -> None:
    found = forecast(serving().state, applied(entry(context=4096)))
    (step,) = found.steps
    assert (step.action, step.replica, step.instead_of) == ("move", "r2", "r1")
    assert step.reasons[0] == "r1: its entry changed"


def test_a_changed_entry_on_a_full_node_restarts_where_it_is() -> None:
    history = led(started(History(), cards=1))
    state = ready(starting(assigned(served(history, entry())))).state
    (step,) = forecast(state, applied(entry(context=4096))).steps
    assert (step.action, step.replica, step.instead_of) == ("restart", "r2", "r1")


def test_hundreds_of_replicas_are_decided_in_as_many_rounds_as_it_takes() -> None:
    history = History()
    for number in range(1, 11):
        started(history, f"n{number}", cards=60)
    found = forecast(led(history).state, applied(entry(replicas=500)))
    assert len(found.steps) == 500
    assert {step.action for step in found.steps} == {"start"}
    assert found.settled


def test_what_leaves_the_catalog_stops() -> None:
    found = forecast(serving().state, applied(entry("other", memory_bytes=GIB)))
    assert told(found) == [("start", "r2", "n1/1"), ("stop", "r1", "n1/0")]
    assert found.steps[1].reasons == ("its model left the catalog",)


def test_what_was_missing_before_is_not_held_against_the_request() -> None:
    history = served(led(started(History())), entry(replicas=3))
    assigned(assigned(history, "r1"), "r2", device=1)
    history.write(
        e.ModelLeftUnplaced(term=1, at=6, model="tiny", missing=1, refusals={"in use": 2})
    )
    state = history.state
    same = forecast(state, e.NodeUncordoned(node="n1")).steps[-1]
    worse = forecast(state, e.NodeDrained(node="n1")).steps[-1]
    assert (same.action, same.count, same.good) == ("cannot", 1, True)
    assert (worse.action, worse.count, worse.good) == ("cannot", 3, False)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            e.ModelScaled(model="tiny", replicas=2),
            [("keep", "r1", "n1/0"), ("start", "r2", "n2/0")],
        ),
        (e.ModelScaled(model="tiny", replicas=0), [("stop", "r1", "n1/0")]),
        (e.ModelDeleted(model="tiny"), [("stop", "r1", "n1/0")]),
        (e.NodeCordoned(node="n1"), [("keep", "r1", "n1/0")]),
        (e.NodeDrained(node="n1"), [("move", "r2", "n2/0")]),
        (e.NodeDrained(node="n2"), [("keep", "r1", "n1/0")]),
        (e.ReplicaRestartAsked(replica="r1"), [("restart", "r1", "n1/0")]),
    ],
)
def test_each_request_of_an_operator_is_followed_to_its_end(
    request_: e.Event, expected: list[tuple[str, str | None, str]]
) -> None:
    history = led(started(started(History()), "n2"))
    state = ready(starting(assigned(served(history, entry())))).state
    found = forecast(state, request_)
    assert told(found) == expected
    assert found.settled


def test_several_requests_come_one_after_another() -> None:
    requests = (e.NodeCordoned(node="n2"), e.ModelScaled(model="tiny", replicas=3))
    state = ready(starting(assigned(served(led(started(started(History()), "n2")), entry())))).state
    found = forecast(state, *requests)
    assert told(found)[-1] == ("cannot", None, "")
    assert {where(step) for step in found.steps[:-1]} == {"n1/0", "n1/1"}


def test_an_engine_that_keeps_failing_stays_as_it_is() -> None:
    state = failed(serving()).state
    assert told(forecast(state, e.NodeCordoned(node="n1"))) == [("keep", "r1", "n1/0")]
