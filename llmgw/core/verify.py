"""`Verifier`: whether every recorded decision and command is what `decide` says again.

Pure. A decision names `at`, the sequence of the state it was made on, and stands later in the log.
So the log is read twice, side by side: `rounds` looks ahead at what controllers wrote and gathers
what was decided together; the verifier folds the log up to each round's `at`, decides and compares.
Neither keeps more than one round and the state.

What is not the work of `decide` is left out: elections, and nodes noted as lost or returned. What
a controller wrote whose term was over is void and was not acted on: it is counted, not decided
again. Decisions that the fold refuses because something came in between are decided again like
any other. A controller may die between two appends, so the last round of a term may lack its end.

A term says which version of llmgw decided in it (the earliest did not). What this version decided
must be the same again, word for word: its first difference ends the verification. Another version
may have worded its reasons otherwise, and chosen otherwise by intention: the words are left out
there, a difference is counted, and the verification goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from llmgw import __version__
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import Intention, decide
from llmgw.core.events import ControllerElected, Decision, ModelLeftUnplaced
from llmgw.core.fold import apply
from llmgw.core.records import Record

LATER_FIELDS: Mapping[str, Any] = {"score": {}}
"""Fields that came to a decision after its type was released, and what older records have there."""

WORDS: Mapping[str, Any] = {"reason": "", "reasons": (), "refusals": {}, "score": {}}
"""Fields of decisions that say why, and nothing of what was decided."""


class Round(msgspec.Struct):
    """What a controller wrote after asking `decide` once, in stream order.

    `told` are the commands that the log held before, by node: the log takes none of them again.
    `last` is set when nothing of the same term was decided later. `version` is the llmgw that
    decided, empty where its term does not say.
    """

    term: int
    version: str
    at: int
    records: list[Record]
    told: dict[str, SetAssignments]
    last: bool = True


class Difference(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the log and `decide` part ways.

    `sequence` is the recorded side's place in the log; of a decision that is not in the log, that
    of the last of its round. `event` is the record that the state ended with. `fields` name what
    differs when both sides are there and of one kind. `version` is the llmgw that recorded it.
    """

    sequence: int
    at: int
    what: str
    recorded: Intention | None = None
    decided: Intention | None = None
    event: Record | None = None
    fields: tuple[str, ...] = ()
    version: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """What came of it so far. `sequence` is how far the log was folded.

    `rounds` counts times that `decide` was asked; `cut_off` those whose end a crash took;
    `outdated` what came after its term was over; `noted` elections and nodes lost or returned;
    `unread` what a controller wrote and this version cannot read. `needs_upgrade` names the type
    whose newer version ended the verification early. `difference` is the first in what this
    version decided, or in what no version decides. `changed` counts the times that another version
    decided otherwise, and `first_change` is the first of them.
    """

    sequence: int = 0
    terms: int = 0
    rounds: int = 0
    decisions: int = 0
    commands: int = 0
    cut_off: int = 0
    outdated: int = 0
    noted: int = 0
    unread: int = 0
    void: int = 0
    needs_upgrade: str | None = None
    difference: Difference | None = None
    changed: int = 0
    first_change: Difference | None = None


class Rounds:
    """Gathers rounds from the records of controllers: their events and commands, in order."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._term = 0
        self._version = ""
        self._open: Round | None = None
        self._told: dict[str, SetAssignments] = {}

    def take(self, record: Record) -> Round | None:
        """Take the next record, and return the round that ended before it, if one did."""
        body = record.body
        if record.origin not in ("controller", "command") or self._is_repeated(record):
            return None
        if isinstance(body, ControllerElected) and body.term > self._term:
            self._term = body.term
            self._version = body.llmgw_version
            self._verdict.terms += 1
        if not isinstance(body, Decision | SetAssignments):
            unread = not hasattr(body, "term")
            self._verdict.unread += unread
            self._verdict.noted += not unread
            return None
        if body.term < self._term:
            self._verdict.outdated += 1
            return None
        ended = self._add(record, body)
        if isinstance(body, SetAssignments):
            self._told[body.node] = body
        return ended

    def rest(self) -> Round | None:
        """Return the round that was under way when the log ended."""
        return self._open

    def _add(self, record: Record, body: Intention) -> Round | None:
        found = self._open
        if found is not None and (found.term, found.at) == (body.term, body.at):
            found.records.append(record)
            return None
        self._open = Round(body.term, self._version, body.at, [record], dict(self._told))
        if found is not None:
            found.last = found.term != body.term
        return found

    def _is_repeated(self, record: Record) -> bool:
        """Return whether the log holds the same already: a message may be stored twice."""
        body = record.body
        if isinstance(body, SetAssignments):
            return self._told.get(body.node) == body
        if self._open is None or record.number > self._open.records[-1].number:
            return False
        this = (record.session, record.number, body)
        return any((r.session, r.number, r.body) == this for r in self._open.records)


class Verifier:
    """Folds a log and compares rounds with what `decide` says. `verdict` tells the outcome.

    `version` is that of the code that decides again.
    """

    def __init__(self, version: str = __version__) -> None:
        self._version = version
        self.state = Cluster()
        self.verdict = Verdict()
        self.rounds = Rounds(self.verdict)
        self._newest: Record | None = None

    def fold(self, record: Record) -> None:
        """Fold the next record. All up to a round's `at` come before the round is checked."""
        apply(self.state, record)
        self._newest = record
        self.verdict.sequence = record.sequence
        self.verdict.void = self.state.void
        self.verdict.needs_upgrade = self.state.needs_upgrade

    @property
    def done(self) -> bool:
        """Whether going on is of no use: a difference is found, or deciding has stopped."""
        return self.verdict.difference is not None or self.verdict.needs_upgrade is not None

    def check(self, found: Round) -> None:
        """Decide again what the round recorded. The state must be that of its `at`."""
        first = found.records[0]
        later = found.at >= first.sequence
        if later or found.at != self.state.sequence:
            self.verdict.difference = self._difference(
                found,
                f"it names {found.at} as the sequence that it was decided on, which comes "
                f"{'after it' if later else 'before that of an earlier decision'}",
            )
            return
        again = self._expected(found)
        for recorded, now in zip(found.records, again, strict=False):
            decided = _as_of_then(recorded.body, now)
            if not self._same(found, recorded.body, decided):
                self._differ(found, "decided again it is another", recorded, decided)
                return
        self._compare_lengths(found, again)

    def _is_ours(self, found: Round) -> bool:
        return found.version == self._version

    def _same(self, found: Round, recorded: object, decided: object) -> bool:
        if self._is_ours(found):
            return recorded == decided
        return _without_words(recorded) == _without_words(decided)

    def _expected(self, found: Round) -> list[Intention]:
        """Return what `decide` says, without commands that the log would not have taken again.

        Nor, if another version decided, with what only says in other words what was said before.
        """
        written = [record.body for record in found.records]
        again = [i for i in decide(self.state) if not _was_told(found, i) or i in written]
        if self._is_ours(found):
            return again
        left_out = {body.model for body in written if isinstance(body, ModelLeftUnplaced)}
        return [i for i in again if not self._says_nothing_new(i) or i.model in left_out]  # type: ignore[union-attr]

    def _says_nothing_new(self, intention: Intention) -> bool:
        """Return whether the state holds already how many replicas of a model fit nowhere."""
        if not isinstance(intention, ModelLeftUnplaced):
            return False
        model = self.state.models.get(intention.model)
        return model is not None and bool(model.refusals) and model.missing == intention.missing

    def _compare_lengths(self, found: Round, again: Sequence[Intention]) -> None:
        count = len(found.records)
        if count > len(again):
            self._differ(found, "decided again it is not there", found.records[len(again)])
        elif count < len(again) and not found.last:
            self._differ(found, "it was decided, and is not in the log", None, again[count])
        else:
            commands = sum(isinstance(i, SetAssignments) for i in again[:count])
            self.verdict.rounds += 1
            self.verdict.commands += commands
            self.verdict.decisions += count - commands
            self.verdict.cut_off += count < len(again)

    def _differ(
        self,
        found: Round,
        what: str,
        recorded: Record | None = None,
        decided: Intention | None = None,
    ) -> None:
        difference = self._difference(found, what, recorded, decided)
        if self._is_ours(found):
            self.verdict.difference = difference
        else:
            self.verdict.changed += 1
            self.verdict.first_change = self.verdict.first_change or difference

    def _difference(
        self,
        found: Round,
        what: str,
        recorded: Record | None = None,
        decided: Intention | None = None,
    ) -> Difference:
        place = recorded or found.records[-1 if decided is not None else 0]
        body: Any = place.body if decided is None or recorded is not None else None
        return Difference(
            sequence=place.sequence,
            at=found.at,
            what=what,
            recorded=body,
            decided=decided,
            event=self._newest if self.state.sequence == found.at else None,
            fields=_fields(body, decided),
            version=found.version,
        )


def verify(records: Sequence[Record], version: str = __version__) -> Verdict:
    """Verify a log that is in memory, from its first record on; see `Verifier`."""
    verifier = Verifier(version)
    following = iter(records)
    for found in _rounds(verifier.rounds, records):
        while verifier.state.sequence < found.at and not verifier.done:
            record = next(following, None)
            if record is None:
                break
            verifier.fold(record)
        if verifier.done:
            break
        verifier.check(found)
    while not verifier.done and (record := next(following, None)) is not None:
        verifier.fold(record)
    return verifier.verdict


def _rounds(rounds: Rounds, records: Iterable[Record]) -> Iterator[Round]:
    for record in records:
        ended = rounds.take(record)
        if ended is not None:
            yield ended
    last = rounds.rest()
    if last is not None:
        yield last


def _was_told(found: Round, intention: Intention) -> bool:
    """Return whether the log held the same command before: it has the same message id."""
    if not isinstance(intention, SetAssignments):
        return False
    told = found.told.get(intention.node)
    return told is not None and (told.term, told.revision) == (intention.term, intention.revision)


def _as_of_then(recorded: object, decided: Intention) -> Intention:
    """Return a decision without what the version that recorded it could not say yet."""
    if type(recorded) is not type(decided):
        return decided
    later = LATER_FIELDS.items()
    unsaid = {name: empty for name, empty in later if getattr(recorded, name, None) == empty}
    return msgspec.structs.replace(decided, **unsaid) if unsaid else decided


def _without_words(said: object) -> object:
    """Return a decision without its reasons, and anything else as it is."""
    if not isinstance(said, Decision):
        return said
    words = {name: none for name, none in WORDS.items() if hasattr(said, name)}
    return msgspec.structs.replace(said, **words) if words else said


def _fields(recorded: object, decided: object) -> tuple[str, ...]:
    if recorded is None or type(recorded) is not type(decided):
        return ()
    names = msgspec.structs.fields(type(recorded))  # type: ignore[arg-type]
    return tuple(f.name for f in names if getattr(recorded, f.name) != getattr(decided, f.name))
