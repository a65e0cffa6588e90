"""What would have to move to make a domain whole: the fewest, and only where they fit."""

from __future__ import annotations

from typing import Any

from llmgw.core import events as e
from llmgw.core.defrag import proposals
from llmgw.core.placement import Held, Placed, place
from llmgw.testing.builders import Story, applied, card, entry, joined, serving
from llmgw.testing.invariants import snapshot


def domain(size: int) -> list[Any]:
    return [card(index, domain="a") for index in range(size)]


def scattered(*counts: int, size: int = 4) -> Story:
    """Return nodes of one domain each, with so many single replicas of a model of their own."""
    names = [f"n{number}" for number in range(1, len(counts) + 1)]
    story = serving(nodes=[joined(name, *domain(size)) for name in names])
    entries = []
    for at, count in enumerate(counts):
        story.given(*(e.NodeCordoned(node=name) for name in names if name != names[at]))
        entries.append(entry(f"m{at + 1}", replicas=count, policy="pack"))
        story.given(applied(*entries)).decided()
        story.given(*(e.NodeUncordoned(node=name) for name in names))
    return story


def test_the_domain_with_the_fewest_replicas_is_emptied() -> None:
    story = scattered(2, 1, 2)
    before = snapshot(story.state)
    best, *_ = proposals(story.state, 4)
    assert (best.node, best.free_now) == ("n2", 3)
    assert [(m.model, m.to_node) for m in best.moves] == [("m2", "n1")]
    assert best.memory_bytes == 10 << 30
    assert snapshot(story.state) == before


def test_nothing_is_proposed_where_a_domain_is_free_or_nothing_fits_elsewhere() -> None:
    assert proposals(scattered(2, 0).state, 4) == []
    assert proposals(scattered(3, 3).state, 4) == []
    assert proposals(scattered(1, 1).state, 8) == []


def test_after_the_moves_the_group_fits() -> None:
    story = scattered(2, 1, 2)
    state, held = story.state, Held()
    wanted = entry("big", gpus=4, nvlink="require")
    assert not isinstance(place(state, wanted, held), Placed)
    best, *_ = proposals(state, 4)
    for move in best.moves:
        held.release(state, move.replica)
    answer = place(state, wanted, held)
    assert isinstance(answer, Placed)
    assert answer.parts[0].node == best.node
