"""A predicate asked after every record answers as it would if all of the state were looked at."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.testing.simulator import Simulation
from llmgw.views import paths
from llmgw.views.predicate import parse
from llmgw.views.watching import Watching
from tests.histories import release

PATHS = (
    *("nodes.*.state", "nodes.*.replicas", "nodes.*", "nodes.n2.command", "count(nodes)"),
    *("devices.*.state", "devices.*.replicas.*", "devices.n1/0.memory_held_bytes", "devices.*.*"),
    *("replicas.*.phase", "replicas.*.node", "replicas.r2.failures", "replicas.r1", "replicas.*.*"),
    *("status.models.*.ready", "status.models.*.*", "status.models.m.missing", "status.models.*"),
    *("status.devices.*.free", "status.devices.cpu.held", "status.devices.*.class"),
    *("status.nodes.up", "status.nodes.*", "status.conditions.*", "status.conditions.hot"),
    *("status.term", "status.records.void", "status.pending_catalog", "status.*"),
)
PREDICATES = (
    "replicas.*.phase == 'ready' and not nodes.*.state == 'lost'",
    "'r2' in nodes.*.replicas or 3 < count(replicas.*)",
    "status.devices.*.free < status.devices.*.total",
    "status.models.m.ready == null or status.models.m.ready >= 1",
    "replicas.r1.reason != null",
    "null == nodes.n1.refused",
    "nodes.*.draining",
    "1 == 1",
)


def assert_watched_alike(records: list[Record]) -> None:
    """Ask all of it after every record, by all of the state and by what was touched."""
    state = Cluster()
    asked = [parse(text) for text in PREDICATES]
    asked += [parse(f"{path} == null") for path in PATHS if "count" not in path]
    watched = [Watching(one) for one in asked]
    for one in watched:
        one.begin(state)
    for record in records:
        apply(state, record)
        for question, one in zip(asked, watched, strict=True):
            answer = one.after(state, record)
            assert answer == question.holds(state), (question.text, record)
            for segments, kept in one._kept.items():
                shown = sorted(map(repr, paths.values(state, segments)))
                ours = sorted(repr(value) for found in kept.values.values() for value in found)
                assert ours == shown, (segments, record)


def test_a_history_with_every_decision_is_watched_as_it_is_viewed() -> None:
    assert_watched_alike(release.history().records)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1_000_000))
def test_any_history_is_watched_as_it_is_viewed(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    count = min(len(simulation.log.messages), 150)
    assert_watched_alike([simulation.log.record(place) for place in range(count)])


def test_it_can_begin_in_the_middle() -> None:
    records = release.history().records
    state = Cluster()
    for record in records[:60]:
        apply(state, record)
    watched = Watching(parse("count(replicas.*) == 0"))
    assert not watched.begin(state)
    found = []
    for record in records[60:]:
        apply(state, record)
        if watched.after(state, record):
            found.append(record.sequence)
    assert found == [*range(found[0], len(records) + 1)]


def test_what_is_never_there_is_told() -> None:
    watched = Watching(parse("replicas.*.phase == 'lost' or status.models.nobody.ready == 0"))
    state = Cluster()
    watched.begin(state)
    for record in release.history().records:
        apply(state, record)
        watched.after(state, record)
    assert watched.never_there == ["status.models.nobody.ready"]
