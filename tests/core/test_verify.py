"""Deciding again: what agrees with its record, what need not, and that a difference is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.core.records import Body, Record
from llmgw.core.verify import Verdict, verify
from llmgw.testing.builders import (
    CLUSTER,
    TIME,
    From,
    Story,
    applied,
    card,
    elected,
    entry,
    joined,
    processor,
    serving,
)
from llmgw.testing.simulator import Simulation

M = entry("m", "cpu", gib=5)
TWO = entry("m", "cpu", gib=5, replicas=2)


def outcome(verdict: Verdict) -> tuple[int, int, int]:
    """Return how many decisions and commands agree, and where they do not (0: nowhere)."""
    sequence = verdict.difference.sequence if verdict.difference else 0
    return verdict.decisions, verdict.commands, sequence


def changed(records: list[Record], kind: type[Body], change: Callable[[Any], Body]) -> list[Record]:
    """Return the log with the first record of a kind that was acted on tampered with."""
    term = 0
    for place, record in enumerate(records):
        body = record.body
        if isinstance(body, e.ControllerElected):
            term = max(term, body.term)
        if type(body) is kind and getattr(body, "term", term) == term:
            tampered = replace(record, body=change(body))
            return [*records[:place], tampered, *records[place + 1 :]]
    raise AssertionError(f"there is no {kind}")


def story() -> Story:
    """Two nodes, two catalogs, and everything decided."""
    made = serving(M, nodes=[joined("n1", processor()), joined("n2", processor(), card(0))])
    return made.given(applied(TWO, entry("big", "l40s-*", gib=100))).decided()


def accepted() -> Story:
    """A catalog is in force, and its model has no place yet."""
    made = Story().given(*joined("n1", processor()), elected(), applied(M))
    return made.given(*made.decisions())


def test_what_was_decided_agrees_and_is_counted() -> None:
    verdict = verify(story().records)
    assert outcome(verdict) == (5, 2, 0)
    assert (verdict.terms, verdict.noted, verdict.cut_off, verdict.outdated) == (1, 1, 0, 0)
    assert verdict.sequence == len(story().records)


def test_an_empty_log_and_one_without_a_controller_agree() -> None:
    assert outcome(verify([])) == (0, 0, 0)
    assert outcome(verify(Story().given(*joined("n1", processor()), applied(M)).records)) == (
        0,
        0,
        0,
    )


def rejected(body: e.CatalogAccepted) -> e.CatalogRejected:
    return e.CatalogRejected(term=1, at=body.at, request=body.request, reasons=())


def moved(body: e.ReplicaAssigned) -> e.ReplicaAssigned:
    return replace(body, parts=(replace(body.parts[0], node="n2"),))


@pytest.mark.parametrize(
    ("kind", "change", "fields"),
    [
        (e.CatalogAccepted, rejected, ()),
        (e.ReplicaAssigned, lambda b: replace(b, reasons=("because",)), ("reasons",)),
        (e.ReplicaAssigned, moved, ("parts",)),
        (e.ReplicaAssigned, lambda b: replace(b, replica="r9"), ("replica",)),
        (e.ModelLeftUnplaced, lambda b: replace(b, refusals={"in use": 1}), ("refusals",)),
        (SetAssignments, lambda b: replace(b, assignments=()), ("assignments",)),
        (SetAssignments, lambda b: replace(b, revision=7), ("revision",)),
    ],
)
def test_a_tampered_record_is_found_with_both_sides_and_the_event(
    kind: type[Body], change: Callable[[Any], Body], fields: tuple[str, ...]
) -> None:
    records = story().records
    original = next(record for record in records if type(record.body) is kind)
    found = verify(changed(records, kind, change)).difference
    assert found is not None
    assert found.sequence == original.sequence
    assert found.decided == original.body
    assert found.recorded == change(original.body)
    assert found.fields == fields
    assert found.event is not None
    assert found.event.sequence == found.at == original.body.at


@pytest.mark.parametrize("at", [0, 2, 90])
def test_a_decision_that_names_another_ground_is_found(at: int) -> None:
    records = changed(story().records, e.ReplicaAssigned, lambda b: replace(b, at=at))
    found = verify(records).difference
    assert found is not None
    assert isinstance(found.recorded, e.ReplicaAssigned)


def test_a_decision_that_nobody_made_is_found() -> None:
    made = story()
    forged = e.ReplicaRetired(term=1, at=len(made.records), replica="r1", reason="spite")
    verdict = verify(made.given(forged).records)
    assert verdict.difference is not None
    assert (verdict.difference.recorded, verdict.difference.decided) == (forged, None)
    assert "is not there" in verdict.difference.what


def test_a_decision_of_a_term_that_never_began_is_found() -> None:
    made = story()
    forged = e.ReplicaRetired(term=5, at=len(made.records), replica="r1", reason="spite")
    assert verify(made.given(forged).records).difference is not None


def cut_off() -> Story:
    """One replica is placed; that another has no place was decided with it and never written."""
    made = Story().given(*joined("n1", card(0), card(1)), elected())
    made.given(applied(entry("a"), entry("b", "l40s-*", gib=100)))
    made.given(*made.decisions())
    placed, left = made.decisions()
    assert isinstance(left, e.ModelLeftUnplaced)
    return made.given(placed)


def test_a_round_that_a_crash_cut_off_agrees() -> None:
    made = cut_off()
    verdict = verify(made.records)
    assert (*outcome(verdict), verdict.cut_off) == (2, 0, 0, 1)
    after = verify(made.given(elected(2, "b")).decided().records)
    assert (*outcome(after), after.cut_off, after.terms) == (3, 1, 0, 1, 2)


def test_a_decision_that_was_left_out_while_its_controller_went_on_is_found() -> None:
    found = verify(cut_off().decided().records).difference
    assert found is not None
    assert isinstance(found.decided, e.ModelLeftUnplaced)
    assert (found.recorded, found.what) == (None, "it was decided, and is not in the log")


def test_what_comes_after_its_term_was_over_is_counted_and_not_decided_again() -> None:
    made = accepted()
    late = made.decisions()
    made.given(elected(2, "b"), *late).decided()
    verdict = verify(made.records)
    assert verdict.difference is None
    assert (verdict.outdated, verdict.void, verdict.terms) == (len(late), len(late), 2)


def test_a_decision_that_the_fold_refused_is_decided_again_like_any_other() -> None:
    made = accepted()
    (assigned,) = made.decisions()
    made.given(e.NodeLost(term=1, node="n1", silent_seconds=20), assigned).decided()
    verdict = verify(made.records)
    assert (verdict.difference, verdict.void, verdict.outdated) == (None, 1, 0)
    tampered = changed(made.records, e.ReplicaAssigned, lambda b: replace(b, reasons=()))
    assert verify(tampered).difference is not None


def test_a_message_that_was_stored_twice_is_no_decision_of_its_own() -> None:
    made = accepted()
    made.append(made.log[-1])
    made.decided()
    made.append(made.log[-1])
    assert isinstance(made.records[-1].body, SetAssignments)
    verdict = verify(made.given(applied(TWO)).decided().records)
    assert (*outcome(verdict), verdict.void) == (4, 2, 0, 1)


def test_another_decision_under_the_number_of_one_before_it_is_found() -> None:
    made = accepted()
    body = made.records[-1].body
    assert isinstance(body, e.CatalogAccepted)
    again = wire.encode_event(CLUSTER, rejected(body), session="controller-1", number=2, time=TIME)
    made.append(again)
    found = verify(made.records).difference
    assert found is not None
    assert found.sequence == len(made.records)


def test_a_command_that_the_log_would_not_take_again_need_not_be_there_twice() -> None:
    made = accepted().given(*joined("n2", processor()))
    made.given(*made.decisions())
    (first,) = made.decisions()
    stray = e.ReplicaStarting(replica="r9", generation=1, port=1, devices=())
    again, other = made.given(From("n2", stray)).decisions()
    assert (first.node, again.node, again.at) == ("n1", "n1", first.at + 1)  # type: ignore[union-attr]
    verdict = verify(made.given(first, other).records)
    assert (verdict.difference, verdict.commands, verdict.cut_off) == (None, 2, 0)


def test_facts_between_a_decision_and_its_ground_change_nothing() -> None:
    made = accepted()
    (assigned,) = made.decisions()
    made.given(*joined("n2", processor(64)), assigned).decided()
    assert verify(made.records).difference is None


def test_a_type_that_is_newer_than_this_code_ends_the_verification() -> None:
    made = story()
    sequence = len(made.records)
    message = wire.encode_event(CLUSTER, elected(), session="x", number=99, time=TIME)
    newer = message.payload.replace(b'"dataversion":1', b'"dataversion":7')
    made.append(message._replace(payload=newer))
    verdict = verify(made.given(elected(2, "b")).records)
    assert verdict.needs_upgrade == "controller.elected version 7"
    assert (verdict.sequence, verdict.difference) == (sequence + 1, None)


def test_what_nobody_can_read_is_counted_and_stops_nothing() -> None:
    made = story()
    subject = f"{wire.prefix(CLUSTER)}.event.controller.catalog.accepted"
    made.append(wire.Outgoing(subject, b"{", "garbage"))
    made.given(applied(M)).decided()
    verdict = verify(made.records)
    assert (verdict.difference, verdict.unread) == (None, 1)


@settings(max_examples=15)
@given(st.integers(0, 1_000_000))
def test_every_history_under_faults_agrees_and_a_change_in_it_is_found(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    records = [simulation.log.record(n) for n in range(len(simulation.log.messages))]
    verdict = verify(records)
    assert verdict.difference is None
    assert verdict.decisions > 0
    assert verdict.sequence == len(records)
    found = verify(changed(records, e.ReplicaAssigned, _another_reason)).difference
    assert found is not None
    assert found.fields == ("reasons",)


def _another_reason(body: Body) -> Body:
    assert isinstance(body, e.ReplicaAssigned)
    return replace(body, reasons=("because",))


def test_what_an_older_version_could_not_say_is_no_difference() -> None:
    older = changed(story().records, e.ReplicaAssigned, lambda b: replace(b, score={}))
    assert verify(older).difference is None
    tampered = changed(story().records, e.ReplicaAssigned, lambda b: replace(b, score={"x": 1}))
    found = verify(tampered).difference
    assert found is not None
    assert found.fields == ("score",)
