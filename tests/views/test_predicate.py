"""Questions about a state: what they find, and what is not understood."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.core.values import NEXT_PHASES
from llmgw.errors import UsageError
from llmgw.testing.simulator import Simulation
from llmgw.views import VIEWS, kinds, paths
from llmgw.views.difference import difference
from llmgw.views.paths import plain
from llmgw.views.predicate import MOST_CHARACTERS, parse
from tests.views import history

STATE = history.serving().state


@pytest.mark.parametrize(
    "text",
    [
        "status.models.tiny.ready == 1",
        "status.models.tiny.ready >= 1 and status.models.tiny.missing == 0",
        "status.models.other.ready == null",
        'status.models."tiny".ready != 0',
        "not status.models.tiny.ready == 0",
        "replicas.r1.phase == 'ready' or replicas.r2.phase == 'ready'",
        "replicas.*.phase == 'ready'",
        "not (nodes.*.state == 'lost')",
        "not nodes.*.state == 'lost'",
        "count(nodes.*) == 1",
        "count(nodes.n2) == 0",
        "devices.n1/0.class == 'a100-80g'",
        "devices.*.memory_held_bytes > 1000000",
        "'r1' in nodes.n1.replicas",
        "'a100' in devices.n1/1.class",
        "status.leader",
        "status.needs_upgrade == null",
        "status.devices.a100-80g.free < status.devices.a100-80g.total",
        "true or false and false",
        "nodes.n1.simulated == false",
        "1.5 < 2",
        "1 == 2 or (1 == 1 and not 2 == 1)",
    ],
)
def test_what_is_so_holds(text: str) -> None:
    assert parse(text).holds(STATE)
    assert not parse(f"not ({text})").holds(STATE)


@pytest.mark.parametrize(
    "text",
    [
        "status.models.other.ready == 0",
        "status.models.other.ready != 0",
        "status.models.other.ready < 1",
        "nodes.n9.state",
        "replicas.r1.reason != null",
    ],
)
def test_what_is_not_there_or_of_another_kind_compares_with_nothing(text: str) -> None:
    assert not parse(text).holds(STATE)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", 1, "a value is expected, and the predicate ends here"),
        ("status.modls.x", 8, "status has no 'modls'; it has "),
        ("pods.x == 1", 1, "there is no view 'pods'; there are status"),
        ("status.models.tiny.redy == 0", 20, "status.models.tiny has no 'redy'"),
        ("status.term ==", 15, "a value is expected, and the predicate ends"),
        ("(status.term == 1", 18, "')' is expected here, and the predicate ends"),
        ("status.term == 1 2", 18, "'2' is not expected here"),
        ("status.term = 1", 13, "'=' is not understood"),
        ("status.leader == 'x", 18, "a quote that never ends"),
        ("nodes.n1.state.x == 1", 16, "nodes.n1.state is a value and holds nothing more"),
        ("status.term == 1 and", 21, "a value is expected"),
        ("and == 1", 1, "'and' is not one"),
        ("count(1) == 1", 7, "there is no view '1'"),
        ("__import__('os')", 1, "there is no view '__import__'"),
        ("(" * 60 + "1" + ")" * 60, 52, "nested more than 50 deep"),
        ("not " * 60 + "1", 205, "nested more than 50 deep"),
    ],
)
def test_what_is_not_understood_is_pointed_at(text: str, place: int, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    message, shown, arrow = str(caught.value).split("\n")
    assert message.startswith(f"the predicate is not understood at character {place}: ")
    assert said in message
    assert (shown, arrow) == (f"  {text}", f"  {' ' * (place - 1)}^")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes.*.state == 'gone'", "nodes.*.state is one of up, lost, stopped, and never 'gone'"),
        ("'faild' != replicas.r1.phase", "replicas.r1.phase is one of assigned, starting, ready"),
        ("'x' in nodes.n1.state", "nodes.n1.state is one of up, lost, stopped, and never 'x'"),
        ("status.models.tiny.ready == true", "ready is a number, and never true"),
        ("status.models.tiny.ready == '1'", "ready is a number, and never '1'"),
        ("status.leader < 3", "status.leader is a text, and never 3"),
        ("nodes.n1.simulated == 'yes'", "nodes.n1.simulated is true or false, and never 'yes'"),
        ("'x' in status.term", "status.term is a number, and never 'x'"),
        ("nodes.n1.replicas == 'r1'", "nodes.n1.replicas is several values, and never 'r1'"),
        ("5 in nodes.n1.replicas", "nodes.n1.replicas is several values, and never 5"),
        ("nodes.n1 == 'up'", "nodes.n1 is a row with fields of its own, and never 'up'"),
        ("count(nodes.*) == 'many'", "count(…) is a number, never 'many'"),
    ],
)
def test_what_can_be_so_in_no_state_is_no_question(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="the predicate can be so in no state") as caught:
        parse(text)
    assert said in str(caught.value)


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="at most 2000 characters"):
        parse("1 == 1 or " * (MOST_CHARACTERS // 9) + "1")


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text).holds(STATE)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1_000_000))
def test_looking_at_less_of_the_state_shows_the_same(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    state = Cluster()
    for place in range(len(simulation.log.messages)):
        apply(state, simulation.log.record(place))
        if place % 40 == 0:
            assert_seen_alike(state)
    assert_seen_alike(state)


def assert_seen_alike(state: Cluster) -> None:
    """Compare what each path gives with what the whole view holds there."""
    for view in VIEWS:
        whole = plain(VIEWS[view](state))
        for path, value in leaves((view,), whole):
            assert [*map(plain, paths.values(state, path))] == ([] if value is None else [value])


def leaves(path: tuple[str, ...], tree: object) -> list[tuple[tuple[str, ...], object]]:
    if isinstance(tree, dict) and tree:
        return [leaf for name, inner in tree.items() for leaf in leaves((*path, name), inner)]
    return [] if tree in ({}, []) else [(path, tree)]


def test_every_name_that_a_view_can_show_can_be_asked_about() -> None:
    for view in VIEWS:
        for path, _ in leaves((view,), plain(VIEWS[view](STATE))):
            kinds.check(path)
            parse(f"{paths.joined(path)} == null")


class TestDifference:
    def test_a_state_does_not_differ_from_itself_and_time_makes_no_difference(self) -> None:
        later = history.serving().state
        later.time_ns += 10**9
        assert difference(STATE, later) == []

    def test_rows_come_and_go_and_fields_change(self) -> None:
        before = history.starting(
            history.assigned(
                history.served(history.led(history.started(history.History())), history.entry())
            )
        ).state
        found = {c.path: (c.kind, c.before, c.after) for c in difference(before, STATE)}
        assert found["replicas.r1.phase"] == ("changed", "starting", "ready")
        assert found["status.models.tiny.ready"] == ("changed", 0, 1)
        empty = {c.path: c.kind for c in difference(Cluster(), STATE, ["replicas", "nodes"])}
        assert empty == {"replicas.r1": "came", "nodes.n1": "came"}
        gone = {c.path: c.kind for c in difference(STATE, Cluster(), ["replicas"])}
        assert gone == {"replicas.r1": "went"}


def test_phases_are_what_people_compare_with() -> None:
    for phase in NEXT_PHASES:
        assert parse(f"replicas.*.phase == '{phase}'").holds(STATE) == (phase == "ready")
