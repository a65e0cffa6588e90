"""The log of a simulated cluster: one order of messages, and what is still on its way to it.

It is what JetStream is to the real parts: it recognises a message id for a while, keeps controllers
from writing over each other, has a clock that may jump, and is away now and then. What a writer
sent and got no answer for may arrive later, in any order, also after the writer's death.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from llmgw import wire
from llmgw.core.commands import SetAssignments
from llmgw.core.records import Record
from llmgw.errors import AppendRefused, LogUnreachable
from llmgw.testing.builders import CLUSTER
from llmgw.testing.chance import Dice, Violation
from llmgw.testing.promises import Witness

DEDUPLICATED_MESSAGES = 30
"""How far back the log recognises a message id, as JetStream's duplicate window does."""
CREATED_NS = 1_800_000_000_000_000_000
_LANDS = 0.1
"""How likely something that is on its way arrives in a step."""


class Stored(NamedTuple):
    """One message of the log."""

    sequence: int
    time_ns: int
    subject: str
    payload: bytes


class Lease(NamedTuple):
    """Who may lead, and until when nobody else may."""

    holder: str = ""
    until: float = 0.0


class Flight:
    """A message on its way. `sequence` is there once it arrived, and is 0 if it was refused."""

    def __init__(self, message: wire.Outgoing, writer: str, expected: int | None) -> None:
        self.message, self.writer, self.expected = message, writer, expected
        self.sequence: int | None = None


class Log:
    """A stream with message ids, a fence over the controller's subjects, and a jumping clock.

    `is_up` and `has_room` are for the simulator to set.
    """

    def __init__(self, dice: Dice, witness: Witness) -> None:
        self.messages: list[Stored] = []
        self.is_up = True
        self.has_room = True
        self.checked = 0
        self.lease = Lease()
        self.witness = witness
        self._dice = dice
        self._records: list[Record] = []
        self._writers: list[str] = []
        self._commands: dict[str, list[tuple[int, SetAssignments]]] = {}
        self._ids: dict[str, int] = {}
        self._fenced = 0
        self._time_ns = CREATED_NS
        self._flights: list[Flight] = []

    def append(self, message: wire.Outgoing, writer: str, expected: int | None = None) -> int:
        """Store a message and return its sequence.

        Raises `AppendRefused` when `expected` is not the last fenced one, and `LogUnreachable`
        when the log is away or has no room.
        """
        if not self.is_up:
            raise LogUnreachable("the log is away")
        known = self._ids.get(message.message_id, -DEDUPLICATED_MESSAGES)
        if len(self.messages) - known < DEDUPLICATED_MESSAGES:
            return known
        if not self.has_room:
            raise LogUnreachable("the log has no room")
        if expected is not None and expected != self._fenced:
            raise AppendRefused(f"the last is {self._fenced}, not {expected}")
        return self._store(message, writer)

    def _store(self, message: wire.Outgoing, writer: str) -> int:
        sequence = len(self.messages) + 1
        self._time_ns += 1_000_000
        if self._dice.fault("log's clock jumped"):
            self._time_ns += self._dice.random.choice((-3600, 3600)) * 1_000_000_000
        stored = Stored(sequence, self._time_ns, message.subject, message.payload)
        record = wire.decode(*stored)
        self.messages.append(stored)
        self._records.append(record)
        self._writers.append(writer)
        self._ids[message.message_id] = sequence
        if message.subject.startswith(wire.controller_fence(CLUSTER)[:-1]):
            self._fenced = sequence
        if record.origin == "command":
            if not isinstance(record.body, SetAssignments):
                raise Violation(f"a command is not readable: {record.body}")
            self._commands.setdefault(record.node, []).append((sequence, record.body))
        self.witness.stored(record)
        return sequence

    def record(self, index: int) -> Record:
        """Return the message at `index`, decoded."""
        return self._records[index]

    def writer(self, index: int) -> str:
        """Return who wrote the message at `index`."""
        return self._writers[index]

    def commands(self, node: str, after: int) -> Iterator[tuple[int, SetAssignments]]:
        """Yield the commands for a node that come after a sequence."""
        found = self._commands.get(node, ())
        if found and found[-1][0] > after:
            yield from ((sequence, command) for sequence, command in found if sequence > after)

    # --- on its way -------------------------------------------------------------------------------

    def send(self, message: wire.Outgoing, writer: str, expected: int | None = None) -> Flight:
        """Put a message on its way: it arrives some time, or never where the log is away."""
        flight = Flight(message, writer, expected)
        self._flights.append(flight)
        return flight

    def forget(self, writer: str) -> None:
        """Lose what a writer has on its way."""
        self._flights = [flight for flight in self._flights if flight.writer != writer]

    def step(self, seconds: float) -> None:
        """Let time go on, and perhaps something arrive: anything that is on its way."""
        self._time_ns += int(seconds * 1_000_000_000)
        if not self._flights or not self.is_up or self._dice.random.random() >= _LANDS:
            return
        flight = self._flights.pop(self._dice.random.randrange(len(self._flights)))
        try:
            flight.sequence = self.append(flight.message, flight.writer, flight.expected)
        except AppendRefused:
            flight.sequence = 0
        except LogUnreachable:
            self._flights.append(flight)
