"""Why a replica, a model or a node is as it is: the records that led there, with their reasons.

Pure. `Explanations` takes a log from its first record on and picks what concerns one name, as a
chain: the facts that a decision was made on, the decision with the reasons and refusals that it
recorded, the command that told a node, and what came of it. What was written in vain is shown
with the reason why it is void. The chain of one record is made by `chain`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from llmgw.core import events as e
from llmgw.core.cluster import Cluster, Part, Replica
from llmgw.core.commands import SetAssignments
from llmgw.core.fold import apply
from llmgw.core.records import Record
from llmgw.core.rollout import paused
from llmgw.views import paths
from llmgw.views.shared import Row, as_time, labels, node_state, part_phase
from llmgw.views.summaries import counted, summary

Kind = Literal["event", "decision", "command", "outcome"]
Thing = Literal["replica", "model", "node", "record"]

KEPT_RECORDS = 4_096
"""How far back the fact is looked for that a decision names as the last before it."""

ENDS = e.CommandCompleted | e.CommandRefused | e.CommandSuperseded
_MOMENTS = {"heard", "since", "output", "placed_because"}
_NOTHING: tuple[object, ...] = (None, "", [], (), {})
_COMINGS = e.NodeStarted | e.NodeStopped


class Step(Row, frozen=True, kw_only=True):
    """One record of the chain.

    `because` are the sequences that it names as its ground. `reasons`, `score` and `refusals` are
    those that it recorded (see `ReplicaAssigned`). `void` is why it changed nothing. `changed` is
    what it changed of what is told about, as `field: before → after`, where that was asked for.
    """

    sequence: int
    time: str | None = None
    kind: Kind
    node: str | None = None
    type: str
    summary: str
    because: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    score: dict[str, int] = {}
    refusals: dict[str, int] = {}
    void: str | None = None
    changed: tuple[str, ...] = ()
    data: Any


class Explanation(Row, frozen=True, kw_only=True):
    """How something stands, in a sentence, and the steps that led there, oldest first.

    `outputs` are the last lines of engines that failed, by replica (and part).
    """

    name: str
    kind: Thing
    now: str
    steps: tuple[Step, ...]
    outputs: dict[str, str] = {}


class _Replica:
    """Picks what concerns one replica, from a state on."""

    def __init__(self, name: str, state: Cluster) -> None:
        self._name = name
        there = state.replicas.get(name)
        parts = there.parts if there is not None else []
        self._nodes = {part.node for part in parts}
        self._listed = {part.node: _is_listed(state, there, part) for part in parts}
        self._asked: dict[str, tuple[int, int]] = {}

    def wants(self, record: Record) -> bool:
        """Return whether the record is part of the chain."""
        body = record.body
        if isinstance(body, e.ReplicaAssigned):
            if body.replica != self._name:
                return False
            self._nodes |= {part.node for part in body.parts}
            return True
        if isinstance(body, SetAssignments):
            return self._is_told(body)
        if isinstance(body, ENDS):
            return self._asked.get(record.node) == (body.term, body.revision)
        if isinstance(body, e.NodeLost | e.NodeReturned):
            return body.node in self._nodes
        if isinstance(body, _COMINGS):
            return record.node in self._nodes
        return getattr(body, "replica", None) == self._name

    def _is_told(self, command: SetAssignments) -> bool:
        """Return whether a command begins or ceases to list the replica: the others repeat it."""
        listed = any(assignment.replica == self._name for assignment in command.assignments)
        if command.node not in self._nodes or listed == self._listed.get(command.node, False):
            return False
        self._listed[command.node] = listed
        self._asked[command.node] = (command.term, command.revision)
        return True


def _is_listed(state: Cluster, replica: Replica | None, part: Part) -> bool:
    """Return whether the last command to the part's node lists it."""
    node = state.nodes[part.node]
    if replica is None or node.commanded == node.revision:
        return replica is not None and replica.retired is None
    return part.phase != "assigned"


class _Model:
    """Picks what concerns one model, and its replicas, from a state on."""

    def __init__(self, name: str, state: Cluster) -> None:
        self._name = name
        model = state.models.get(name)
        waiting = state.pending.models if state.pending is not None else ()
        asked = next((entry for entry in waiting if entry.name == name), None)
        self._entry = asked or (model.entry if model is not None else None)
        self._requests = {state.pending_sequence} if asked is not None else set()
        self._replicas = {
            replica.name: _Replica(replica.name, state)
            for replica in state.replicas.values()
            if replica.model == name
        }

    def wants(self, record: Record) -> bool:
        """Return whether the record is part of the chain."""
        body = record.body
        if isinstance(body, e.CatalogApplied):
            found = next((x for x in body.catalog.models if x.name == self._name), None)
            changed, self._entry = found != self._entry, found
            if changed:
                self._requests = {record.sequence}
            return changed
        if isinstance(body, e.CatalogAccepted | e.CatalogRejected):
            return body.request in self._requests
        if isinstance(body, e.ReplicaAssigned) and body.model == self._name:
            self._replicas.setdefault(body.replica, _Replica(body.replica, Cluster()))
        told = [replica.wants(record) for replica in self._replicas.values()]
        of_models = e.ModelLeftUnplaced | e.ModelScaled | e.ModelDeleted
        return any(told) or (isinstance(body, of_models) and body.model == self._name)


class _Node:
    """Picks what concerns one node, from a state on."""

    def __init__(self, name: str, state: Cluster) -> None:
        self._name = name
        self._placed = {
            replica.name
            for replica in state.replicas.values()
            if any(part.node == name for part in replica.parts)
        }

    def wants(self, record: Record) -> bool:
        """Return whether the record is part of the chain."""
        body = record.body
        if isinstance(body, e.ReplicaAssigned):
            here = any(part.node == self._name for part in body.parts)
            self._placed |= {body.replica} if here else set()
            return here
        if isinstance(body, e.ReplicaRetired):
            return body.replica in self._placed
        return self._name in (record.node, getattr(body, "node", None))


class Grounds:
    """The records that a decision may name as its ground: the last ones, and catalogs that count.

    Memory is bounded however long the log is.
    """

    def __init__(self) -> None:
        self._recent: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self._catalogs: dict[int, Record] = {}

    def take(self, record: Record, state: Cluster) -> None:
        """Take the next record, and the state that it led to."""
        self._recent.append(record)
        if isinstance(record.body, e.CatalogApplied):
            kept = (state.catalog_sequence, record.sequence)
            self._catalogs = {n: r for n, r in self._catalogs.items() if n in kept}
            self._catalogs[record.sequence] = record

    def of(self, record: Record) -> Iterator[Record]:
        """Yield the records that a decision names as its ground."""
        if not isinstance(record.body, e.Decision):
            return
        first = self._recent[0].sequence
        for sequence in _because(record):
            if sequence in self._catalogs:
                yield self._catalogs[sequence]
            elif first <= sequence < record.sequence:
                yield self._recent[sequence - first]


class Explanations:
    """Takes records from the first of a log on, or those after `state`, which it folds on.

    `found` tells what is known of the name.

    With `closely`, the steps are all that touched the thing and no grounds of decisions besides,
    and each says what it changed.
    """

    def __init__(self, name: str, *, closely: bool = False, state: Cluster | None = None) -> None:
        self.state = state if state is not None else Cluster()
        self._name = name
        self._closely = closely
        self._pickers: dict[Thing, _Replica | _Model | _Node] = {
            "replica": _Replica(name, self.state),
            "model": _Model(name, self.state),
            "node": _Node(name, self.state),
        }
        self._steps: dict[Thing, dict[int, Step]] = {thing: {} for thing in self._pickers}
        self._grounds = Grounds()

    def take(self, record: Record) -> None:
        """Take the next record."""
        touched = [thing for thing, picker in self._pickers.items() if picker.wants(record)]
        before = [self._seen(thing) for thing in touched]
        void = fold_telling(self.state, record)
        self._grounds.take(record, self.state)
        for thing, was in zip(touched, before, strict=True):
            steps = self._steps[thing]
            if not self._closely:
                for ground in self._grounds.of(record):
                    steps.setdefault(ground.sequence, step_of(ground, None))
            steps[record.sequence] = step_of(record, void, tuple(_told(was, self._seen(thing))))

    def _seen(self, thing: Thing) -> dict[str, Any]:
        """Return how the thing is shown, where that is asked for."""
        if not self._closely:
            return {}
        view = {"replica": "replicas", "model": "status", "node": "nodes"}[thing]
        models = ["models"] if thing == "model" else []
        return paths.seen(self.state, [view, *models, self._name])

    def found(self) -> Explanation | None:
        """Return the explanation, or `None` if the log knows nothing of that name.

        A name that is several things is the replica rather than the model, and that rather than
        the node. What was there when the records began, and that none speaks of, has no steps.
        """
        there: dict[Thing, Mapping[str, object]] = {
            "replica": self.state.replicas,
            "model": self.state.models,
            "node": self.state.nodes,
        }
        now = {"replica": self._replica_now, "model": self._model_now, "node": self._node_now}
        for thing, steps in self._steps.items():
            if steps or (self._name in there[thing] and not any(self._steps.values())):
                ordered = tuple(steps[sequence] for sequence in sorted(steps))
                return Explanation(
                    name=self._name,
                    kind=thing,
                    now=now[thing](),
                    steps=ordered,
                    outputs=self._outputs(thing),
                )
        return None

    def _outputs(self, thing: Thing) -> dict[str, str]:
        """Return the last output of engines of the thing that failed."""
        return {
            f"{replica.name}/{number}" if number else replica.name: part.output
            for replica in self.state.replicas.values()
            for number, part in enumerate(replica.parts)
            if part.output
            and self._name
            == {"replica": replica.name, "model": replica.model, "node": part.node}[thing]
        }

    def _replica_now(self) -> str:
        replica = self.state.replicas.get(self._name)
        if replica is None:
            return f"replica {self._name} is not there any more"
        parts = [
            f"{part_phase(self.state, part)} on {part.node}, {'+'.join(labels(part.devices))}"
            for part in replica.parts
        ]
        gone = [f"; {part.gone}" for part in replica.parts if part.gone and not replica.retired]
        retired = "".join(gone) + (f"; it is to stop: {replica.retired}" if replica.retired else "")
        return f"replica {self._name} of {replica.model} is {'; '.join(parts)}{retired}"

    def _model_now(self) -> str:
        model = self.state.models.get(self._name)
        if model is None:
            return f"model {self._name} is not in the catalog in force"
        there = [r for r in self.state.replicas.values() if r.model == self._name]
        ready = sum(all(part_phase(self.state, p) == "ready" for p in r.parts) for r in there)
        why = f" ({counted(model.refusals)})" if model.refusals else ""
        missing = f"; {model.missing} without a place{why}" if model.missing else ""
        held_up = paused(self.state, model, there)
        rollout = f"; {held_up}" if held_up else ""
        return f"model {self._name}: {ready} of {model.entry.replicas} ready{missing}{rollout}"

    def _node_now(self) -> str:
        node = self.state.nodes.get(self._name)
        if node is None:
            return f"node {self._name} never reported"
        held = dict.fromkeys(name for holders in node.held.values() for name in holders)
        return f"node {self._name} is {node_state(node)} and holds {', '.join(held) or 'nothing'}"


def explain(records: Iterable[Record], name: str) -> Explanation | None:
    """Return the chain that led to how `name` stands; `records` begin where the log does."""
    explanations = Explanations(name)
    for record in records:
        explanations.take(record)
    return explanations.found()


def fold_telling(state: Cluster, record: Record) -> str | None:
    """Fold a record, and return why it was void if it was."""
    voided = state.void
    apply(state, record)
    return state.incidents[-1].detail if state.void > voided else None


def _told(before: dict[str, Any], after: dict[str, Any], within: str = "") -> Iterator[str]:
    """Yield what differs between two views of one thing, in words."""
    if not before or not after:
        yield from [f"{within}{'new' if after else 'gone'}"] if before or after else []
        return
    for name in {**before, **after}:
        was, now = before.get(name), after.get(name)
        if isinstance(was, dict) or isinstance(now, dict):
            one = len(before) <= 1 and len(after) <= 1 and not within
            inner = within if one else f"{within}{name}."
            yield from _told(was or {}, now or {}, inner)
        elif was != now and name not in _MOMENTS and not (was in _NOTHING and now in _NOTHING):
            yield f"{within}{name}: {_shown(was)} → {_shown(now)}"


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        value = "+".join(map(str, value))
    return "-" if value in _NOTHING else str(value)


def _because(record: Record) -> tuple[int, ...]:
    """Return the sequences that a decision or command names as its ground, the oldest first."""
    body = record.body
    named = (getattr(body, "catalog", 0), getattr(body, "request", 0), getattr(body, "at", 0))
    is_decided = isinstance(body, e.Decision | SetAssignments)
    return tuple(sorted({n for n in named if n})) if is_decided else ()


def step_of(record: Record, void: str | None, changed: tuple[str, ...] = ()) -> Step:
    """Return a record as a step of a chain."""
    body: Any = record.body
    decided = isinstance(body, e.Decision)
    return Step(
        sequence=record.sequence,
        time=as_time(record.time_ns),
        kind=_kind(record),
        node=record.node or None,
        type=getattr(body, "wire", "unreadable"),
        summary=summary(body),
        because=_because(record),
        reasons=_reasons(body) if decided else (),
        score=getattr(body, "score", {}) if decided else {},
        refusals=getattr(body, "refusals", {}) if decided else {},
        void=void,
        changed=changed,
        data=body,
    )


def _reasons(decision: e.Decision) -> tuple[str, ...]:
    if isinstance(decision, e.ReplicaRetired):
        return (decision.reason,)
    return tuple(getattr(decision, "reasons", ()))


def _kind(record: Record) -> Kind:
    body = record.body
    if isinstance(body, e.Decision):
        return "decision"
    if isinstance(body, SetAssignments):
        return "command"
    return "outcome" if isinstance(body, ENDS | e.PartEvent) else "event"
