"""A record at which the fold itself fails: a mistake of ours, told and not hidden."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from llmgw import folding, views
from llmgw.core import events as e
from llmgw.core import fold as folder
from llmgw.core.cluster import KEPT_INCIDENTS, Cluster
from llmgw.core.decide import decide
from llmgw.core.mistakes import set_apart
from llmgw.core.wishes import WISHES
from llmgw.log.base import Message
from llmgw.testing.builders import Story, applied, card, elected, entry, joined

WRONG = "n-wrong"


def messages() -> list[Message]:
    """Three nodes join, a controller leads, and a catalog waits for its answer."""
    facts = [fact for name in ("n1", WRONG, "n3") for fact in joined(name, card(0))]
    story = Story().given(*facts, elected(), applied(entry("m")))
    return [Message(n, n, m.subject, m.payload) for n, m in enumerate(story.log, start=1)]


LOG = messages()


class Mistake(NamedTuple):
    """The fold fails at records of a kind, of which the first has this sequence."""

    table: dict[type[Any], Any]
    kind: type[Any]
    sequence: int


MISTAKES = {
    "a fact": Mistake(folder.NODE_HANDLERS, e.NodeInventoryTaken, 4),
    "a decision": Mistake(folder.CONTROLLER_HANDLERS, e.ControllerElected, 7),
    "a wish": Mistake(WISHES, e.CatalogApplied, 8),
}


@pytest.fixture(params=MISTAKES)
def mistake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mistake:
    made = MISTAKES[request.param]
    sound = made.table[made.kind]

    def fails(state: Cluster, *about: object) -> object:
        if state.sequence >= made.sequence:
            raise KeyError("what nobody thought of")
        return sound(state, *about)

    monkeypatch.setitem(made.table, made.kind, fails)
    monkeypatch.setattr(folding, "_PLANS", folding._Plans())
    return made


def folded(log: list[Message]) -> Cluster:
    state = Cluster()
    folding.fold(state, log)
    return state


def test_the_record_is_named_and_deciding_stops(mistake: Mistake) -> None:
    assert decide(folded(LOG[:3])) == []
    state = folded(LOG[: mistake.sequence])
    assert state.needs_upgrade is not None
    assert state.needs_upgrade.startswith(f"the record {mistake.sequence}, at which this version")
    assert "KeyError in fails, line" in state.needs_upgrade
    assert (state.incidents[-1].sequence, state.incidents[-1].kind) == (mistake.sequence, "failed")
    state.term = 1  # as if it had not failed at the election
    assert decide(state) == []


def test_what_follows_is_folded_and_can_be_looked_at(mistake: Mistake) -> None:
    state = folded(LOG)
    assert state.sequence == len(LOG)
    assert views.status(state).needs_upgrade == state.needs_upgrade
    assert {row.name for row in views.nodes(state)} == {"n1", WRONG, "n3"}


def test_of_many_the_first_is_told_and_the_last_are_kept() -> None:
    state = Cluster()
    for state.sequence in range(1, 300):
        set_apart(state, KeyError("what nobody thought of"))
    assert state.needs_upgrade is not None
    assert state.needs_upgrade.startswith("the record 1, ")
    assert [i.sequence for i in state.incidents] == [*range(300 - KEPT_INCIDENTS, 300)]
