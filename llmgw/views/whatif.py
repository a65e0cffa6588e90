"""What would be decided if something were otherwise: the controller's own decisions on a copy.

Pure. From one state two copies go on until nothing more is decided: as it is, and with some facts
added. Nodes that are there are taken to do what they are told, and engines that have not failed to
start. What differs between the two is the answer. Nothing is written anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from llmgw.catalog.entries import Catalog, Policy
from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Node
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import Intention, decide
from llmgw.core.fold import apply
from llmgw.core.freezing import freeze, thaw
from llmgw.core.records import Record
from llmgw.core.values import Origin
from llmgw.hardware.types import Inventory
from llmgw.views.difference import Change, difference
from llmgw.views.shared import Row, as_time
from llmgw.views.summaries import counted, summary

MOST_ROUNDS = 1_000
"""So often decisions are asked for before it is said that they do not come to rest."""

_SESSION = "what-if"
_PORT = 1
_UNTRIED = ("assigned", "starting", "lost")


class Fact(NamedTuple):
    """Something that is supposed to have happened: an event, and the node that would say it."""

    event: e.Event
    node: str = ""


class Decided(Row, frozen=True, kw_only=True):
    """A decision that would be made on one side and not on the other."""

    type: str
    summary: str
    reasons: tuple[str, ...] = ()
    refusals: dict[str, int] = {}
    data: e.Decision


class WhatIf(Row, frozen=True, kw_only=True):
    """What would differ, asked at `sequence`.

    `decisions` would be made only if it were so, `instead_of` only as it is. `differences` are
    those of the status once all is decided: capacity by class, replicas by model, refusals.
    `settled` is false where decisions did not come to rest.
    """

    sequence: int
    time: str | None = None
    supposed: tuple[str, ...]
    decisions: tuple[Decided, ...]
    instead_of: tuple[Decided, ...]
    differences: tuple[Change, ...]
    settled: bool


class _Outcome(NamedTuple):
    state: Cluster
    decisions: list[e.Decision]
    settled: bool


def what_if(state: Cluster, facts: Sequence[Fact], words: Sequence[str]) -> WhatIf:
    """Return what would differ if `facts` came next; `words` say what is supposed."""
    as_it_is, supposed = (_settled(state, added) for added in ((), facts))
    return WhatIf(
        sequence=state.sequence,
        time=as_time(state.time_ns),
        supposed=tuple(words),
        decisions=tuple(_only_in(supposed, as_it_is)),
        instead_of=tuple(_only_in(as_it_is, supposed)),
        differences=tuple(
            change
            for change in difference(as_it_is.state, supposed.state, ["status"])
            if not change.path.startswith(("status.catalog", "status.pending_catalog"))
        ),
        settled=as_it_is.settled and supposed.settled,
    )


# --- what can be supposed ------------------------------------------------------------------------


def with_catalog(catalog: Catalog) -> list[Fact]:
    """Another catalog is applied."""
    return [Fact(e.CatalogApplied(catalog=catalog))]


def with_policy(state: Cluster, policy: Policy, model: str | None = None) -> list[Fact]:
    """One model, or all, are placed by another policy. Raises `KeyError` for an unknown model."""
    catalog = state.pending if state.pending is not None else state.catalog
    if model is not None and model not in {entry.name for entry in catalog.models}:
        raise KeyError(model)
    changed = tuple(
        replace(entry, policy=policy) if model in (None, entry.name) else entry
        for entry in catalog.models
    )
    return with_catalog(Catalog(models=changed))


def with_node(inventory: Inventory) -> list[Fact]:
    """Another node comes up, with this hardware."""
    name = inventory.node
    boot_id = inventory.boot_id or _SESSION
    return [
        Fact(e.NodeStarted(boot_id=boot_id, agent_version=_SESSION, simulated=True), name),
        Fact(e.NodeInventoryTaken(inventory=inventory), name),
    ]


def without_node(state: Cluster, name: str) -> list[Fact]:
    """A node is gone. Raises `KeyError` for an unknown one."""
    node = state.nodes[name]
    return [Fact(e.NodeLost(term=state.term + 1, node=node.name, silent_seconds=0.0))]


# --- going on ------------------------------------------------------------------------------------


class _Copy:
    """A state of its own, and what is written to it."""

    def __init__(self, state: Cluster) -> None:
        self.state = thaw(freeze(state))
        self._number = 0

    def take(self, body: Any, node: str = "") -> None:  # noqa: ANN401 -- any body of a record
        """Fold one more record."""
        state = self.state
        self._number += 1
        origin: Origin = "command" if isinstance(body, SetAssignments) else body.origin
        name = body.node if isinstance(body, SetAssignments) else node
        record = Record(
            state.sequence + 1, state.time_ns, origin, name, _SESSION, self._number, body
        )
        apply(state, record)

    def obey(self, node: Node) -> None:
        """Have a node do what it was last told, if it is there."""
        if node.lost or not node.started:
            return
        for event in [*_starts(self.state, node)]:
            self.take(event, node.name)
        done = e.CommandCompleted(revision=node.commanded, term=node.commanded_term)
        self.take(done, node.name)


def _settled(state: Cluster, facts: Sequence[Fact]) -> _Outcome:
    """Return what a copy comes to when all that is decided is done."""
    copy = _Copy(state)
    copy.take(e.ControllerElected(term=state.term + 1, holder=_SESSION))
    for fact in facts:
        copy.take(fact.event, fact.node)
    for node in copy.state.nodes.values():
        if node.commanded > node.ended:
            copy.obey(node)
    decisions: list[e.Decision] = []
    for _ in range(MOST_ROUNDS):
        found: list[Intention] = decide(copy.state)
        if not found:
            return _Outcome(copy.state, decisions, True)
        for intention in found:
            copy.take(intention)
            if isinstance(intention, SetAssignments):
                copy.obey(copy.state.nodes[intention.node])
            else:
                decisions.append(intention)
    return _Outcome(copy.state, decisions, False)


def _starts(state: Cluster, node: Node) -> Iterator[e.Event]:
    """Yield the starts of what shall run on a node and was not tried yet."""
    for replica in state.replicas.values():
        for number, part in enumerate(replica.parts):
            if part.node != node.name or replica.retired or part.phase not in _UNTRIED:
                continue
            about: dict[str, Any] = {
                "replica": replica.name,
                "part": number,
                "generation": replica.generation,
                "attempt": part.attempt + 1,
            }
            address = node.address or "127.0.0.1"
            yield e.ReplicaStarting(**about, port=_PORT, devices=part.devices)
            yield e.ReplicaBecameReady(**about, address=address, port=_PORT, pid=1, seconds=0.0)


def _only_in(one: _Outcome, other: _Outcome) -> Iterator[Decided]:
    """Yield the decisions of one side that the other lacks, in their order."""
    spare = Counter(_sense(decision) for decision in other.decisions)
    for decision in one.decisions:
        if isinstance(decision, e.CatalogAccepted):
            continue
        if spare[_sense(decision)] > 0:
            spare[_sense(decision)] -= 1
        else:
            yield Decided(
                type=decision.wire,
                summary=summary(decision),
                reasons=tuple(getattr(decision, "reasons", ())),
                refusals=getattr(decision, "refusals", {}),
                data=decision,
            )


def _sense(decision: e.Decision) -> tuple[str, ...]:
    """Return what a decision comes to, whatever its place and the number that it gives."""
    if isinstance(decision, e.ReplicaAssigned):
        places = [f"{part.node} {part.devices}" for part in decision.parts]
        return (decision.wire, decision.model, *places)
    if isinstance(decision, e.ModelLeftUnplaced):
        missing = f"{decision.missing}: {counted(decision.refusals)}"
        return (decision.wire, decision.model, missing)
    return (decision.wire, summary(decision))
