"""What one record of the log led to, and came from: event, decision, command, outcome.

Pure. `Chain` takes a log from its first record on. Before the record that is asked about it keeps,
for each replica that is there, who decided and who told it; after that it waits for what follows:
decisions that name the record as their ground, the commands that carry them, what came of those.
"""

from __future__ import annotations

from typing import NamedTuple

from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.records import Record
from llmgw.views.explain import ENDS, Explanation, Grounds, fold_telling, step_of
from llmgw.views.summaries import summary

_LASTING = e.ReplicaBecameReady | e.ReplicaFailed | e.ReplicaStopped
_FORGET_EVERY = 4_096


class _Told(NamedTuple):
    """A command, and the replicas that it began or ceased to list."""

    record: Record
    changed: frozenset[str]


class _Past:
    """Who decided on and who commanded what is there now."""

    def __init__(self) -> None:
        self._decided: dict[str, list[Record]] = {}
        self._told: dict[tuple[str, str], _Told] = {}
        self._newest: dict[str, _Told] = {}
        self._listed: dict[str, frozenset[str]] = {}

    def take(self, record: Record, state: Cluster) -> None:
        body = record.body
        if isinstance(body, e.ReplicaAssigned):
            self._decided[body.replica] = [record]
        elif isinstance(body, e.ReplicaRetired):
            self._decided.setdefault(body.replica, []).append(record)
        elif isinstance(body, SetAssignments):
            listed = frozenset(a.replica for a in body.assignments)
            told = _Told(record, listed ^ self._listed.get(body.node, frozenset()))
            self._listed[body.node] = listed
            self._newest[body.node] = told
            self._told |= {(body.node, replica): told for replica in told.changed}
        if record.sequence % _FORGET_EVERY == 0:
            self._decided = {n: r for n, r in self._decided.items() if n in state.replicas}
            self._told = {key: t for key, t in self._told.items() if key[1] in state.replicas}

    def causes(self, record: Record) -> list[Record]:
        """Return the decisions and the command that a command or an outcome goes back to."""
        body = record.body
        if isinstance(body, SetAssignments | ENDS):
            told = self._newest.get(record.node)
            if told is None or not _answers(body, told.record.body):
                return []
            return [*self._decisions(told.changed), told.record]
        if isinstance(body, e.PartEvent):
            told = self._told.get((record.node, body.replica))
            return [*self._decisions([body.replica]), *([told.record] if told else [])]
        return []

    def _decisions(self, replicas: frozenset[str] | list[str]) -> list[Record]:
        return [record for name in sorted(replicas) for record in self._decided.get(name, ())]


def _answers(body: object, command: object) -> bool:
    if isinstance(body, SetAssignments) or not isinstance(command, SetAssignments):
        return body is command
    wanted = (command.term, command.revision)
    return isinstance(body, ENDS) and (body.term, body.revision) == wanted


class Chain:
    """Takes records; `found` tells the chain of the one with the given sequence."""

    def __init__(self, sequence: int, state: Cluster | None = None) -> None:
        self.state = state if state is not None else Cluster()
        self._sequence = sequence
        self._grounds = Grounds()
        self._past = _Past()
        self._steps: dict[int, Record] = {}
        self._voids: dict[int, str] = {}
        self._bases = {sequence}
        self._later: int | None = None
        self._to_tell: dict[tuple[str, str], bool] = {}
        self._to_end: set[tuple[str, int, int]] = set()
        self._to_last: set[tuple[str, str]] = set()

    @property
    def complete(self) -> bool:
        """Whether what came of the record is known, so that nothing more needs to be read."""
        waited_for = (self._to_tell, self._to_end, self._to_last)
        ended = any(isinstance(r.body, ENDS | _LASTING) for r in self._steps.values())
        return ended and not any(waited_for)

    def take(self, record: Record) -> None:
        """Take the next record."""
        if record.sequence > self._sequence and self._follows(record):
            self._link(record)
        void = fold_telling(self.state, record)
        self._grounds.take(record, self.state)
        self._past.take(record, self.state)
        if record.sequence == self._sequence:
            for cause in self._past.causes(record):
                self._link(cause)
            self._link(record)
            self._expect(record)
        if record.sequence in self._steps and void is not None:
            self._voids[record.sequence] = void

    def found(self) -> Explanation | None:
        """Return the chain, or `None` if the log has no such record."""
        if self._sequence not in self._steps:
            return None
        ordered = [self._steps[sequence] for sequence in sorted(self._steps)]
        return Explanation(
            name=str(self._sequence),
            kind="record",
            now=self._now(ordered),
            steps=tuple(step_of(r, self._voids.get(r.sequence)) for r in ordered),
            outputs={
                r.body.replica: r.body.output
                for r in ordered
                if isinstance(r.body, e.ReplicaFailed) and r.body.output
            },
        )

    def _now(self, ordered: list[Record]) -> str:
        after = [r for r in ordered if r.sequence > self._sequence]
        anchor = self._steps[self._sequence].body
        if not after and isinstance(anchor, ENDS | _LASTING):
            return f"Record {self._sequence} is where its chain ends"
        if not after:
            return f"Record {self._sequence} has led to nothing yet"
        later = (
            f"; no decision names it as its ground: the next was made on {self._later}"
            if self._later is not None
            else ""
        )
        last = after[-1]
        return f"Record {self._sequence} led up to {last.sequence}: {summary(last.body)}{later}"

    def _link(self, record: Record) -> None:
        for ground in self._grounds.of(record):
            self._steps.setdefault(ground.sequence, ground)
        self._steps[record.sequence] = record

    # --- what follows ------------------------------------------------------------------------

    def _follows(self, record: Record) -> bool:
        """Return whether a later record is part of the chain, and wait for what it leads to."""
        body = record.body
        if isinstance(body, SetAssignments):
            return self._is_told(body)
        if isinstance(body, ENDS):
            key = (record.node, body.term, body.revision)
            known = key in self._to_end
            self._to_end.discard(key)
            return known
        if isinstance(body, e.PartEvent):
            return self._is_awaited(record.node, body)
        if isinstance(body, e.Decision) and self._is_grounded(body):
            self._expect(record)
            return True
        return False

    def _is_grounded(self, decision: e.Decision) -> bool:
        named = {decision.at, getattr(decision, "request", 0), getattr(decision, "catalog", 0)}
        if named & self._bases or decision.at == self._later:
            return True
        alone = len(self._bases) == 1 and not self._waits_for_decisions_no_more()
        if alone and decision.at > self._sequence and self._later is None:
            self._later = decision.at
            return True
        return False

    def _waits_for_decisions_no_more(self) -> bool:
        """Return whether the chain goes on without decisions: it began at one, or after one."""
        body = self._steps[self._sequence].body
        decided = isinstance(body, e.Decision | SetAssignments | ENDS | e.PartEvent)
        after = any(sequence > self._sequence for sequence in self._steps)
        return decided or after

    def _expect(self, record: Record) -> None:
        """Wait for what a decision or a command leads to."""
        body = record.body
        if isinstance(body, e.CatalogAccepted):
            self._bases |= {record.sequence, body.request}
        elif isinstance(body, e.ReplicaAssigned):
            self._to_tell |= {(part.node, body.replica): True for part in body.parts}
        elif isinstance(body, e.ReplicaRetired):
            replica = self.state.replicas.get(body.replica)
            parts = replica.parts if replica is not None else []
            self._to_tell |= {(part.node, body.replica): False for part in parts}
        elif isinstance(body, SetAssignments):
            self._to_end.add((body.node, body.term, body.revision))

    def _is_told(self, command: SetAssignments) -> bool:
        listed = {assignment.replica for assignment in command.assignments}
        told = [
            (node, replica)
            for (node, replica), wanted in self._to_tell.items()
            if node == command.node and (replica in listed) is wanted
        ]
        for key in told:
            del self._to_tell[key]
            self._to_last.add(key)
        if told or command.at in self._bases:
            self._to_end.add((command.node, command.term, command.revision))
            return True
        return False

    def _is_awaited(self, node: str, body: e.PartEvent) -> bool:
        key = (node, body.replica)
        if key not in self._to_last:
            return False
        if isinstance(body, _LASTING):
            self._to_last.discard(key)
        return True
