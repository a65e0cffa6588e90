"""What holds for every history: folding is a function of the log, deciding one of the state."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.core.refusals import refuses
from llmgw.core.values import NEXT_PHASES
from llmgw.testing.builders import SECOND_NS
from llmgw.testing.invariants import restored, snapshot
from tests.core.histories import PHASES, UNKNOWN, Step, histories, told


def folded(records: list[Record], state: Cluster | None = None) -> Cluster:
    state = state if state is not None else Cluster()
    for record in records:
        apply(state, record)
    return state


@given(histories)
def test_the_same_log_gives_the_same_state(steps: list[Step]) -> None:
    story = told(steps)
    assert snapshot(folded(story.records)) == snapshot(story.state)


@given(histories, st.data())
def test_a_snapshot_and_the_rest_of_the_log_give_the_same_state(
    steps: list[Step], data: st.DataObject
) -> None:
    story = told(steps)
    cut = data.draw(st.integers(0, len(story.records)))
    middle = restored(snapshot(folded(story.records[:cut])))
    assert snapshot(folded(story.records[cut:], middle)) == snapshot(story.state)


@given(histories, st.data())
def test_a_node_record_that_comes_twice_changes_only_the_count_of_duplicates(
    steps: list[Step], data: st.DataObject
) -> None:
    story = told(steps)
    again = data.draw(st.sampled_from([r for r in story.records if r.origin == "node"]))
    before = msgspec.to_builtins(story.state)
    sequence = len(story.records) + 1
    apply(story.state, msgspec.structs.replace(again, sequence=sequence))
    after = msgspec.to_builtins(story.state)
    assert after["duplicates"] == before["duplicates"] + 1
    moved = {key for key in after if after[key] != before[key]}
    assert moved <= {"duplicates", "sequence", "time_ns"}


@given(histories, st.data())
def test_an_unknown_type_anywhere_in_the_log_changes_nothing_else(
    steps: list[Step], data: st.DataObject
) -> None:
    story = told(steps)
    place = data.draw(st.integers(0, len(story.records)))
    unknown = wire.decode(place, place * SECOND_NS, UNKNOWN.subject, UNKNOWN.payload)
    records = [*story.records[:place], unknown, *story.records[place:]]
    state = folded(records)
    assert state.unknown == 1
    state.unknown, state.incidents = 0, story.state.incidents
    state.sequence, state.time_ns = story.state.sequence, story.state.time_ns
    assert snapshot(state) == snapshot(story.state)


@given(histories)
def test_deciding_reads_the_state_and_gives_one_answer(steps: list[Step]) -> None:
    state = told(steps).state
    before = snapshot(state)
    answer = decide(state)
    assert snapshot(state) == before
    assert decide(restored(before)) == answer


@given(histories)
def test_nothing_is_decided_that_would_be_void(steps: list[Step]) -> None:
    story = told(steps)
    for intention in story.decisions():
        if isinstance(intention, e.Decision):
            assert refuses(story.state, intention) is None
        story.given(intention)
    assert [i for i in story.state.incidents if i.sequence > len(story.records)] == []


@given(histories)
def test_deciding_comes_to_rest_when_nothing_else_happens(steps: list[Step]) -> None:
    story = told([*steps, "elect"])
    void = story.state.void
    story.decided(rounds=12)
    assert story.state.void == void
    assert story.decisions() == []


@given(histories)
def test_after_a_decision_every_node_that_is_there_has_its_list(steps: list[Step]) -> None:
    story = told([*steps, "elect"]).decided()
    for node in story.state.nodes.values():
        told_nothing = not node.started or not story.state.catalog_sequence
        assert node.commanded == node.revision or told_nothing


def test_every_phase_says_what_may_follow() -> None:
    assert NEXT_PHASES.keys() == set(PHASES)
    assert all(following <= set(PHASES) for following in NEXT_PHASES.values())
