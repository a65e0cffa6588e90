"""A controller of a simulated cluster: the real fold, decisions, watch and snapshots, step by step.

It may be behind, cut off, asleep past its lease, replaced without knowing it, or dead between two
appends, and it never waits before it acts: the log's fence and the fold have to hold it back.
Driven by `llmgw.testing.simulator`.
"""

from __future__ import annotations

from collections import deque

from llmgw import __version__, wire
from llmgw.core import events as e
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.freezing import freeze, thaw
from llmgw.core.watch import Watch
from llmgw.errors import AppendRefused, LogUnreachable
from llmgw.log.snapshots import KEPT, BadSnapshot, Wanted, decode, encode
from llmgw.testing.builders import CLUSTER, TIME
from llmgw.testing.chance import Crash, Dice, Violation
from llmgw.testing.invariants import check
from llmgw.testing.promises import Witness
from llmgw.testing.simulated_log import CREATED_NS, Flight, Lease, Log
from llmgw.testing.watching import Hearing

LEASE_SECONDS = 5.0
LOOK_SECONDS = 1.0
ASKED_TWICE = 5
"""Of so many answers of `decide` one is asked for again, of a state that was frozen."""
_KEEP_RECORDS = 40


class Controller:
    """One controller and what is in its data folder. `connected` and `asleep` are to be set."""

    def __init__(self, name: str, log: Log, dice: Dice, witness: Witness) -> None:
        self.name = name
        self.state = Cluster()
        self.planned: deque[e.ControllerEvent | SetAssignments] = deque()
        self.connected = True
        self.asleep = False
        self.lives = 0
        self.hearing = Hearing(name)
        self._log, self._dice, self._witness = log, dice, witness
        self._kept: list[bytes] = []
        self._term = 0
        self._numbers = 0
        self._fence = 0
        self._decided = -1
        self._answers = 0
        self._sent: Flight | None = None
        self._watch: Watch | None = None
        self._beats: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._looked = 0.0
        self._noted = 0

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads: it may be wrong."""
        return self._term > 0 and self.state.term == self._term

    @property
    def settled(self) -> bool:
        """Whether it leads, has folded all and has nothing more to write."""
        waiting = self.planned or self._sent is not None
        return self.leads and self.behind == 0 and not waiting

    @property
    def behind(self) -> int:
        """How many messages it has not folded."""
        return len(self._log.messages) - self.state.sequence

    @property
    def _reaches(self) -> bool:
        return self.connected and self._log.is_up

    # --- a step -----------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Do one small thing: fold, look who is silent, append, decide, or take the lead."""
        if self.asleep:
            return
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for node in sorted(waiting):
                self.hear(node, now)
        try:
            if self._reaches:
                self.fold(self._dice.random.choice((1, 3, 100)))
            self._lead(now) if self.leads else self._follow(now)
        except Crash:
            self.restart()

    def _follow(self, now: float) -> None:
        if not self._reaches:
            return
        if now > self._log.lease.until or self._dice.fault("lease lost"):
            self.stand(now)

    def _lead(self, now: float) -> None:
        self._look(now)
        if self._waits() or not self.leads or not self._reaches:
            return
        if self.planned:
            self._append(self.planned.popleft())
        elif self._dice.random.random() < (0.1 if self.behind else 0.4):
            self._decide()

    def renew(self, now: float) -> None:
        """Keep the lease. Who has lost it may not notice for a while, and goes on."""
        lease = self._log.lease
        if not self.leads or self.asleep or not self._reaches:
            return
        if lease.holder == self.name or now > lease.until:
            self._log.lease = Lease(self.name, now + LEASE_SECONDS)
        elif self._dice.random.random() < 0.03:
            self._step_back()

    def _waits(self) -> bool:
        """Return whether an append is under way; of one that arrived, take the answer."""
        sent = self._sent
        if sent is None:
            return False
        if sent.sequence is None:
            return True
        self._sent = None
        if sent.sequence == 0:
            self._step_back()
        elif sent.expected is not None:
            self._fence = self._noted = sent.sequence
        return False

    def stand(self, now: float) -> None:
        """Try to take the lead."""
        self._log.lease = Lease(self.name, now + LEASE_SECONDS)
        self.fold(self.behind)
        self._term = self.state.term + 1
        self._numbers = 0
        self._append(
            e.ControllerElected(term=self._term, holder=self.name, llmgw_version=__version__)
        )

    def _step_back(self) -> None:
        self._term = 0
        self.planned.clear()
        self._sent = self._watch = None

    def restart(self) -> None:
        """Come up again, with a state from its data folder or with nothing."""
        self._step_back()
        self.asleep = False
        self.state, self.lives = self._loaded(), self.lives + 1
        self._fence = self.state.last_controller_sequence
        self._decided, self._noted = -1, 0
        self._beats.clear()
        self._waiting.clear()

    # --- folding ----------------------------------------------------------------------------------

    def fold(self, most: int) -> None:
        """Fold up to `most` messages, checking every invariant after each that nobody has checked.

        What others fold from the same messages is the same state: the end compares them.
        """
        log = self._log
        for _ in range(min(most, self.behind)):
            state = self.state
            index, before, void = state.sequence, state.term, state.void
            record = log.record(index)
            apply(state, record)
            if state.sequence > log.checked:
                log.checked = state.sequence
                check(state)
                is_void = state.void > void
                writer = log.writer(index)
                self._witness.folded(state, record, writer, before=before, void=is_void)
            if state.sequence % _KEEP_RECORDS == 0:
                self._keep()
        self._fence = max(self._fence, self.state.last_controller_sequence)

    def _keep(self) -> None:
        self._kept = [*self._kept[1 - KEPT :], encode(self.state, CREATED_NS)]

    def forget_snapshots(self) -> None:
        """Have the next life come up on another machine."""
        self._kept.clear()

    def _loaded(self) -> Cluster:
        """Return the newest snapshot that is whole, or begin with nothing."""
        chance = self._dice.random
        if chance.random() < 0.2:
            self.forget_snapshots()
        for kept in reversed(self._kept):
            stored = kept
            if self._dice.fault("snapshot damaged"):
                place = chance.randrange(len(kept))
                broken = bytes([kept[place] ^ 1 << chance.randrange(8)])
                stored = kept[:place] + chance.choice((broken + kept[place + 1 :], b""))
            try:
                return decode(stored, Wanted(CREATED_NS, 0, len(self._log.messages))).state
            except BadSnapshot:
                if stored is kept:
                    raise Violation(f"a snapshot of {self.name} is not taken") from None
        return Cluster()

    # --- who is silent ----------------------------------------------------------------------------

    def hear(self, node: str, now: float) -> None:
        """Take a sign of life, if it comes through."""
        if not self._log.is_up:
            return
        self.hearing.hear(node, now)
        if self.asleep:
            self._waiting.add(node)  # the kernel keeps it
        elif self.connected:
            self._beats[node] = now
            if self._watch is not None:
                self._watch.hear(node, now)

    def _look(self, now: float) -> None:
        """Once a second, unless what was noted before is not folded yet."""
        self.hearing.hear_facts(self.state, now)
        if self._watch is None:
            self._watch = Watch(self.hearing.limit_seconds, self.state, now, self._beats)
            self._looked = now
            self.hearing.begin()
        if now - self._looked < LOOK_SECONDS or self.state.sequence < self._noted:
            return
        if any(isinstance(x, e.NodeLost | e.NodeReturned) for x in self.planned) or self._sent:
            return
        self._looked = now
        connected = self._reaches and self._log.lease.holder == self.name
        noted = self._watch.look(self.state, now, connected=connected)
        self.hearing.check(self.state, noted, now)
        self.planned.extendleft(reversed(noted))

    # --- deciding and writing ---------------------------------------------------------------------

    def _decide(self) -> None:
        """Ask again only after a change, as the shell does; now and then ask twice."""
        if self.state.sequence == self._decided:
            return
        self._decided = self.state.sequence
        intentions = decide(self.state)
        self._answers += bool(intentions)
        if intentions and self._answers % ASKED_TWICE == 0:
            again = decide(thaw(freeze(self.state)))
            if [*map(str, intentions)] != [*map(str, again)]:
                raise Violation("the same state gave two answers")
        self.planned.extend(intentions)

    def _append(self, intention: e.ControllerEvent | SetAssignments) -> None:
        dice = self._dice
        if dice.fault("controller died before an append"):
            raise Crash
        message, expected = self._encoded(intention)
        writer = self._session
        if dice.fault("append under way"):
            self._sent = self._log.send(message, writer, expected)
            if dice.fault("controller died with an append under way"):
                raise Crash
            return
        try:
            sequence = self._log.append(message, writer, expected)
            if dice.fault("append of an unknown outcome"):
                self._log.append(message, writer, expected)  # the same again
                if dice.random.random() < 0.5:
                    self._step_back()
        except (AppendRefused, LogUnreachable):
            self._step_back()
        else:
            if expected is not None:
                self._fence = self._noted = sequence
        if dice.fault("controller died after an append"):
            raise Crash

    @property
    def _session(self) -> str:
        return f"{self.name}-{self.lives}-{self._term}"

    def _encoded(
        self, intention: e.ControllerEvent | SetAssignments
    ) -> tuple[wire.Outgoing, int | None]:
        """Return the message, and which fenced one it must follow: a command has no fence."""
        if isinstance(intention, SetAssignments):
            return wire.encode_command(CLUSTER, intention, time=TIME), None
        self._numbers += 1
        message = wire.encode_event(
            CLUSTER, intention, session=self._session, number=self._numbers, time=TIME
        )
        return message, self._fence
