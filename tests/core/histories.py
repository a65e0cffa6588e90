"""Random histories for properties: what nodes, operators and controllers write, in any order."""

from __future__ import annotations

from hypothesis import strategies as st

from llmgw import wire
from llmgw.catalog.entries import Labels
from llmgw.core import events as e
from llmgw.core.values import Phase
from llmgw.hardware.types import Card, Device
from llmgw.testing.builders import (
    GIB,
    Fact,
    From,
    Story,
    applied,
    card,
    entry,
    instance,
    inventory,
    processor,
)

NODES = ("n1", "n2")
REPLICAS = ("r1", "r2", "r3", "r9")
Step = Fact | str
"""A fact, or `decide` (append what is decided), `elect` (a new leader) or `again` (a duplicate)."""

_split = card(4, of_class="a100-80g", mig=True)
_hardware: list[list[Card | Device]] = [
    [card(0), card(1)],
    [card(0, uuid="GPU-1"), card(1, uuid="GPU-0"), processor(12)],
    [processor(16)],
    [*(card(i, domain="a" if i < 2 else "b" if i < 4 else None) for i in range(6))],
    [_split, instance(_split, 0, pool="4/gi0"), instance(_split, 1, pool="4/gi0")],
    [],
]

_entries = st.builds(
    entry,
    st.sampled_from(("a", "b")),
    st.sampled_from(("l40s-48g", "cpu", "a100-*", "*")),
    gib=st.sampled_from((2, 5, 30, 100)),
    replicas=st.integers(0, 3),
    gpus=st.sampled_from((1, 1, 2)),
    share=st.booleans(),
    priority=st.integers(0, 2),
    policy=st.sampled_from(("spread", "pack")),
    nvlink=st.sampled_from(("prefer", "require", "ignore")),
    labels=st.sampled_from(
        (
            Labels(),
            Labels(require={"rack": "a"}),
            Labels(prefer={"rack": "b"}, avoid={"disk": "s*"}),
            Labels(require={"rack": "*"}, prefer={"disk": "slow"}),
        )
    ),
)
_catalogs = st.lists(_entries, max_size=2, unique_by=lambda x: x.name).map(lambda x: applied(*x))
_part = {
    "replica": st.sampled_from(REPLICAS),
    "generation": st.sampled_from((1, 1, 2)),
    "attempt": st.integers(1, 3),
}
_port = st.sampled_from((18100, 18101))
_devices = st.sampled_from(((0,), (900,), (0, 1), ()))
_revision = st.integers(0, 6)
_of_a_node: st.SearchStrategy[e.Event] = st.one_of(
    st.builds(
        e.NodeStarted,
        boot_id=st.sampled_from(("b1", "b2")),
        agent_version=st.just("1"),
        labels=st.sampled_from(({}, {"rack": "a"}, {"rack": "b", "disk": "slow"})),
    ),
    st.sampled_from(_hardware).map(lambda x: e.NodeInventoryTaken(inventory=inventory("n", *x))),
    st.sampled_from(_hardware).map(lambda x: e.NodeInventoryTaken(inventory=inventory("n", *x))),
    st.builds(e.NodeStopped, engines=st.just("stopped")),
    st.lists(
        st.builds(
            e.Condition,
            device=st.sampled_from((None, 0, 1)),
            name=st.sampled_from(("hot", "throttled")),
            detail=st.just(""),
        ),
        max_size=2,
    ).map(lambda x: e.NodeConditionsChanged(conditions=tuple(x))),
    st.builds(e.ReplicaStarting, **_part, port=_port, devices=_devices),
    st.builds(
        e.ReplicaBecameReady,
        **_part,
        address=st.just("127.0.0.1"),
        port=_port,
        pid=st.just(7),
        seconds=st.just(1.0),
        memory_bytes=st.sampled_from(((), (3 * GIB,), (40 * GIB, 40 * GIB))),
    ),
    st.builds(e.ReplicaAdopted, **_part, pid=st.just(7), port=_port),
    st.builds(e.ReplicaFailed, **_part, reason=st.just("it fell"), retry_seconds=st.just(1.0)),
    st.builds(e.ReplicaStopped, **_part, reason=st.just("enough"), revision=_revision),
    st.builds(e.CommandCompleted, revision=_revision, term=st.integers(0, 3)),
    st.builds(e.CommandRefused, revision=_revision, term=st.integers(0, 3), reason=st.just("no")),
)
_placement = st.builds(
    e.PartPlacement,
    node=st.sampled_from((*NODES, "n7")),
    devices=_devices,
    memory_bytes=st.sampled_from((2 * GIB, 5 * GIB, 0)),
)
_term, _at = st.integers(0, 3), st.just(1)
_of_a_controller: st.SearchStrategy[e.Event] = st.one_of(
    st.builds(e.NodeLost, term=_term, node=st.sampled_from(NODES), silent_seconds=st.just(20.0)),
    st.builds(e.NodeReturned, term=_term, node=st.sampled_from(NODES)),
    st.builds(e.CatalogAccepted, term=_term, at=_at, request=st.integers(1, 9)),
    st.builds(
        e.ReplicaAssigned,
        term=_term,
        at=_at,
        replica=st.sampled_from(REPLICAS),
        model=st.sampled_from(("a", "b")),
        generation=st.just(1),
        catalog=st.integers(1, 9),
        parts=st.lists(_placement, max_size=2).map(tuple),
        reasons=st.just(()),
    ),
    st.builds(e.ReplicaRetired, term=_term, at=_at, replica=st.sampled_from(REPLICAS),
              reason=st.just("enough")),
)  # fmt: skip

_wish_nodes = st.sampled_from((*NODES, "n7"))
_of_an_operator: st.SearchStrategy[e.Event] = st.one_of(
    st.builds(e.ModelScaled, model=st.sampled_from(("a", "b", "c")), replicas=st.integers(0, 3)),
    st.builds(e.ModelDeleted, model=st.sampled_from(("a", "c"))),
    st.builds(e.NodeCordoned, node=_wish_nodes),
    st.builds(e.NodeUncordoned, node=_wish_nodes),
    st.builds(e.NodeDrained, node=_wish_nodes),
    st.builds(e.ReplicaRestartAsked, replica=st.sampled_from(REPLICAS)),
)

_steps: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from(("decide", "decide", "decide", "elect", "again")),
    st.builds(From, st.sampled_from(NODES), _of_a_node),
    st.builds(From, st.sampled_from(NODES), _of_a_node),
    _catalogs,
    _of_a_controller,
    _of_an_operator,
)

_beginning = [
    From("n1", e.NodeStarted(boot_id="b1", agent_version="1")),
    From("n1", e.NodeInventoryTaken(inventory=inventory("n1", *_hardware[0], processor()))),
    "elect",
]

histories = st.lists(_steps, max_size=30).map(lambda steps: [*_beginning, *steps])


def told(steps: list[Step]) -> Story:
    """Return the story of these steps, checked after each record."""
    story = Story()
    for step in steps:
        match step:
            case "elect":
                story.given(e.ControllerElected(term=story.state.term + 1, holder="a"))
            case "again":
                story.append(story.log[len(story.log) // 2])
            case "decide":
                story.given(*story.decisions())
            case _:
                assert not isinstance(step, str)
                story.given(step)
    return story


PHASES: tuple[Phase, ...] = Phase.__args__  # type: ignore[attr-defined]

UNKNOWN = wire.Outgoing("llmgw.v1.c.event.node.n1.node.sang", b"{}", "")
