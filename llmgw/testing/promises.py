"""What is promised of a whole simulated history, held against every record as it is written.

`invariants` looks at one state; this looks at what comes after what, which no state shows. Fed by
the simulated log and controllers; raises `Violation`. I1 to I9 are the invariants of docs/faults.
"""

from __future__ import annotations

from collections import Counter

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.records import Record
from llmgw.testing.chance import Violation

Command = tuple[str, int, int]
"""A command by its node, term and revision."""
_OUTCOMES = (e.CommandCompleted, e.CommandRefused, e.CommandSuperseded)


class Witness:
    """Sees every record once as it is stored, and once as it is folded for the first time.

    `forgetful` are nodes whose agent lost its folder: what its earlier life answered, a later one
    may answer again.
    """

    def __init__(self) -> None:
        self.forgetful: set[str] = set()
        self.started: set[tuple[str, s.Start]] = set()
        self.ended: set[tuple[str, s.Start]] = set()
        self._numbers: dict[tuple[str, str], int] = {}
        self._sent: list[tuple[int, Command]] = []
        self._sendings: Counter[Command] = Counter()
        self._outcomes: Counter[Command] = Counter()
        self._leaders: dict[int, str] = {}

    # --- as it is written -------------------------------------------------------------------------

    def stored(self, record: Record) -> None:
        """Take a record that the log just took."""
        body = record.body
        if isinstance(body, SetAssignments):
            command = (record.node, body.term, body.revision)
            self._sent.append((record.sequence, command))
            self._sendings[command] += 1
        elif record.origin == "node" and self._is_new(record):
            self._told(record)

    def _is_new(self, record: Record) -> bool:
        """Return whether a node's event is no repetition. No number may be left out (I1)."""
        writer = (record.node, record.session)
        last = self._numbers.get(writer, 0)
        if record.number > last + 1:
            raise Violation(f"{record.session} has a gap: {record.number} after {last}")
        self._numbers[writer] = max(last, record.number)
        return record.number > last

    def _told(self, record: Record) -> None:
        body = record.body
        if isinstance(body, _OUTCOMES):
            command = (record.node, body.term, body.revision)
            self._outcomes[command] += 1
            if self._outcomes[command] > self._sendings[command] and not self._forgets(command):
                sent, ended = self._sendings[command], self._outcomes[command]
                raise Violation(f"command {command} was sent {sent} and ended {ended} times")
        elif isinstance(body, e.PartEvent):
            key = s.Key(body.replica, body.part)
            start = s.Start(key, body.generation, body.attempt)
            if isinstance(body, e.ReplicaStarting):
                self.started.add((record.node, start))
            elif isinstance(body, e.ReplicaFailed | e.ReplicaStopped):
                self.ended.add((record.node, start))

    def _forgets(self, command: Command) -> bool:
        return command[0] in self.forgetful

    # --- as it is folded --------------------------------------------------------------------------

    def folded(
        self, state: Cluster, record: Record, writer: str, *, before: int, void: bool
    ) -> None:
        """Take a record that was just folded into `state` for the first time.

        `before` is the term that led before it. Only the leader of a term is followed (I4): what
        anybody else writes under it, or under an older one, must have been found void.
        """
        if state.term < before:
            raise Violation(f"the term went back from {before} to {state.term}")
        body = record.body
        if void or not isinstance(body, e.ControllerEvent | SetAssignments):
            return
        if isinstance(body, e.ControllerElected):
            if body.term in self._leaders:
                raise Violation(f"term {body.term} was given twice, the last time to {writer}")
            self._leaders[body.term] = writer
        elif body.term != state.term or self._leaders.get(body.term) != writer:
            leader = self._leaders.get(body.term, "nobody")
            raise Violation(f"{writer} decided in term {body.term} of {leader}: {body}")

    # --- at the end -------------------------------------------------------------------------------

    def check_outcomes(self, first_taken: dict[str, int]) -> None:
        """Every command from the first that each agent took came to exactly one outcome (I5)."""
        sent = Counter(key for sequence, key in self._sent if sequence >= first_taken[key[0]])
        for command in sent.keys() | self._outcomes.keys():
            ended = self._outcomes[command]
            if ended != sent[command] and not self._forgets(command):
                raise Violation(
                    f"command {command} was sent {sent[command]} and ended {ended} times"
                )

    def check_told(self, node: str, spawned: set[s.Start], running: set[s.Start]) -> None:
        """No process of a node came or went without a word (I6)."""
        started = {start for name, start in self.started if name == node}
        ended = {start for name, start in self.ended if name == node}
        untold = (spawned - started) | (spawned - ended - running)
        if untold:
            raise Violation(f"{node} says nothing of {sorted(untold, key=str)}")
