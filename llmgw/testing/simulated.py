"""The parts of a simulated cluster: a log, controllers that fold and decide, agents with engines.

Synchronous and driven from outside one small step at a time by `llmgw.testing.simulator`, which
also decides what breaks. The brain of an agent, the fold, the decisions and the wire format are the
real ones; what is pretended is only what a shell does: storing, sending, spawning, waiting.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from llmgw import wire
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.memory import Memory, Policy, digest
from llmgw.core.node import NodeMachine
from llmgw.core.records import Record
from llmgw.errors import AppendRefused
from llmgw.hardware.types import CardReading, Device, DeviceReading, Inventory, Readings
from llmgw.testing.builders import CLUSTER, TIME
from llmgw.testing.invariants import check, restored, snapshot

POLICY = Policy(
    first_port=18100,
    last_port=18107,
    backoff_cap_seconds=8.0,
    backoff_reset_seconds=60.0,
    liveness_seconds=1.0,
    liveness_failures=3,
    port_quarantine_seconds=5.0,
)

DEDUPLICATED_MESSAGES = 30
"""How far back the log recognises a message id, as JetStream's duplicate window does."""


class Violation(AssertionError):
    """A promise was broken; the message says which, and where."""


class Crash(Exception):
    """The process under the simulation ends here."""


class Dice:
    """The only source of chance. `calm` ends all faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.calm = False
        self.injected: Counter[str] = Counter()
        kinds = ("crash", "engine", "message", "machine")
        self.rates = {kind: self.random.choice((0.0, 0.02, 0.06)) for kind in kinds}

    def fault(self, kind: str, name: str, weight: float = 1.0) -> bool:
        """Return whether the fault happens here and now, and count it if so."""
        if self.calm or self.random.random() >= self.rates[kind] * weight:
            return False
        self.injected[name] += 1
        return True


class Stored(NamedTuple):
    """One message of the log."""

    sequence: int
    time_ns: int
    subject: str
    payload: bytes


class Log:
    """A stream with message ids, a fence over the controller's subjects, and a jumping clock."""

    def __init__(self, dice: Dice) -> None:
        self.messages: list[Stored] = []
        self._ids: dict[str, int] = {}
        self._fenced = 0
        self._dice = dice
        self._time_ns = 1_800_000_000_000_000_000

    def append(self, message: wire.Outgoing, expected: int | None = None) -> int:
        """Store a message. Raises `AppendRefused` when `expected` is not the last fenced one."""
        known = self._ids.get(message.message_id, -DEDUPLICATED_MESSAGES)
        if len(self.messages) - known < DEDUPLICATED_MESSAGES:
            return known
        if expected is not None and expected != self._fenced:
            raise AppendRefused(f"the last is {self._fenced}, not {expected}")
        sequence = len(self.messages) + 1
        self._time_ns += self._step_ns()
        self.messages.append(Stored(sequence, self._time_ns, message.subject, message.payload))
        self._ids[message.message_id] = sequence
        if message.subject.startswith(wire.controller_fence(CLUSTER)[:-1]):
            self._fenced = sequence
        return sequence

    def _step_ns(self) -> int:
        if self._dice.fault("machine", "clock jumped"):
            return self._dice.random.choice((-3600, 3600)) * 1_000_000_000
        return 1_000_000

    def record(self, index: int) -> Record:
        """Return the message at `index`, decoded."""
        return wire.decode(*self.messages[index])

    def commands(self, node: str, after: int) -> Iterator[tuple[int, SetAssignments]]:
        """Yield the commands for a node that come after a sequence."""
        subject = wire.command_subject(CLUSTER, node)
        for stored in self.messages[after:]:
            if stored.subject == subject:
                body = wire.decode(*stored).body
                if not isinstance(body, SetAssignments):
                    raise Violation(f"a command is not readable: {body}")
                yield stored.sequence, body


class Controller:
    """One controller, which may be behind, be replaced, or die between two appends."""

    def __init__(self, name: str, log: Log, dice: Dice) -> None:
        self.name = name
        self.state = Cluster()
        self.planned: deque[e.ControllerEvent | SetAssignments] = deque()
        self._log, self._dice = log, dice
        self._term = 0
        self._numbers = 0
        self._lives = 0
        self._fence = 0

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads: it may be wrong."""
        return self._term > 0 and self.state.term == self._term

    @property
    def behind(self) -> int:
        """How many messages it has not folded."""
        return len(self._log.messages) - self.state.sequence

    def fold(self, most: int) -> None:
        """Fold up to `most` messages, checking every invariant after each."""
        for _ in range(min(most, self.behind)):
            apply(self.state, self._log.record(self.state.sequence))
            check(self.state)
        self._fence = max(self._fence, self.state.last_controller_sequence)

    def restart(self) -> None:
        """Come up again with nothing, or with a snapshot."""
        kept = restored(snapshot(self.state)) if self._dice.random.random() < 0.5 else Cluster()
        self.state, self._term, self._lives = kept, 0, self._lives + 1
        self._fence = self.state.last_controller_sequence
        self.planned.clear()

    def stand(self) -> None:
        """Try to take the lead."""
        self.fold(self.behind)
        self._term = self.state.term + 1
        self._numbers = 0
        self._append(e.ControllerElected(term=self._term, holder=self.name))

    def note(self, event: e.ControllerEvent) -> None:
        """Plan to append a fact that this controller noticed."""
        self.planned.append(event)

    def lead(self) -> None:
        """Append one planned intention, or decide when there is none."""
        if self.planned:
            self._append(self.planned.popleft())
        elif self.behind == 0 or self._dice.random.random() < 0.2:
            intentions = decide(self.state)
            if [*map(str, intentions)] != [*map(str, decide(restored(snapshot(self.state))))]:
                raise Violation("the same state gave two answers")
            self.planned.extend(intentions)

    def _append(self, intention: e.ControllerEvent | SetAssignments) -> None:
        if self._dice.fault("crash", "controller died before an append"):
            raise Crash
        if isinstance(intention, SetAssignments):
            self._log.append(wire.encode_command(CLUSTER, intention, time=TIME))
            return
        self._numbers += 1
        session = f"{self.name}-{self._lives}-{self._term}"
        message = wire.encode_event(
            CLUSTER, intention, session=session, number=self._numbers, time=TIME
        )
        try:
            self._fence = self._log.append(message, self._fence)
        except AppendRefused:
            self._term = 0
            self.planned.clear()
        if self._dice.fault("crash", "controller died after an append"):
            raise Crash


class Engine(msgspec.Struct):
    """One engine process. It outlives the agent, and not the machine."""

    start: s.Start
    assignment: Assignment
    pid: int
    port: int
    loading: int
    dying: int | None = None
    deaf: bool = False
    hung: bool = False


class Agent:
    """One machine: hardware, engines, what is on its disk, and the agent that may run there."""

    def __init__(self, name: str, devices: list[Device], log: Log, dice: Dice) -> None:
        self.name = name
        self.devices = devices
        self.machine: NodeMachine | None = None
        self.connected = True
        self.engines: list[Engine] = []
        self.spawned: set[s.Start] = set()
        self.wiped = False
        self.first_command = sys.maxsize
        self.inbox: deque[s.Input] = deque()
        self._log, self._dice = log, dice
        self._boots = 1
        self._agent_boot = 0
        self._lives = 0
        self._numbers = 0
        self._pids = 1000
        self._now = 0.0
        self._memory = msgspec.json.encode(Memory())
        self._outbox: deque[wire.Outgoing] = deque()
        self._hot = False
        self._measured = False

    # --- the life of the agent and its machine ----------------------------------------------------

    def start(self) -> None:
        """The agent comes up and looks around."""
        memory = msgspec.json.decode(self._memory, type=Memory)
        started = e.NodeStarted(boot_id=f"boot-{self._boots}", agent_version="1")
        self.machine = NodeMachine(memory, POLICY, started)
        self._lives, self._numbers = self._lives + 1, 0
        rebooted = self._agent_boot not in (0, self._boots)
        self._agent_boot = self._boots
        self._measured = False
        found = [s.EngineFound(x.start, x.pid, x.port, digest(x.assignment)) for x in self.engines]
        self._dice.random.shuffle(found)
        self._take(s.AgentStarted(tuple(found), rebooted, self._inventory()))

    def die(self) -> None:
        """The agent is gone; its engines go on."""
        self.machine = None
        self.inbox.clear()

    def reboot(self) -> None:
        """The machine starts again: engines are gone, cards may have other numbers."""
        self.die()
        self.engines.clear()
        self._boots += 1
        self._renumber()

    def wipe(self) -> None:
        """The agent's folder is gone, and what it had not sent with it."""
        self.die()
        self.wiped = True
        self._memory = msgspec.json.encode(Memory())
        self._outbox.clear()
        self._agent_boot = 0

    def _inventory(self) -> Inventory:
        return Inventory(node=self.name, backend="nvml", devices=tuple(self.devices))

    def _renumber(self) -> None:
        """Cards swap their numbers, as they may after a reboot."""
        cards = [d for d in self.devices if d.id < 900]
        numbers = [(d.id, d.label, d.card) for d in cards]
        self._dice.random.shuffle(numbers)
        moved = [
            msgspec.structs.replace(device, id=number, label=label, card=card)
            for device, (number, label, card) in zip(cards, numbers, strict=True)
        ]
        self.devices = sorted(
            [*moved, *(d for d in self.devices if d.id >= 900)], key=lambda d: d.id
        )

    # --- one step ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one small thing: send, receive, take an input, or let time go on."""
        choices: list[Callable[[], None]] = [self._live, self._live]
        if self.connected:
            choices += [self._send, self._receive]
        if self.machine is not None:
            choices += [self._next_input, self._next_input, self._tick]
        self._dice.random.choice(choices)()

    @property
    def running(self) -> set[s.Start]:
        """The starts of all engines that run."""
        return {engine.start for engine in self.engines}

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way but asking engines for their health."""
        waiting = any(not isinstance(fact, s.EngineAnswered) for fact in self.inbox)
        failing = any(engine.hung or engine.dying is not None for engine in self.engines)
        under_way = waiting or failing or self._outbox or any(self._unread())
        return self._measured and not under_way

    def _unread(self) -> Iterator[tuple[int, SetAssignments]]:
        after = self.machine.memory.command_sequence if self.machine is not None else 0
        return self._log.commands(self.name, after)

    def _send(self) -> None:
        """Send the oldest event; an answer that is lost makes it go out again."""
        if not self._outbox:
            return
        self._log.append(self._outbox[0])
        if not self._dice.fault("message", "acknowledgement lost", 5):
            self._outbox.popleft()

    def _receive(self) -> None:
        if self.machine is None or self._dice.fault("message", "command late", 10):
            return
        unread = list(self._unread())
        if self.machine.memory.command_sequence == 0:
            unread = unread[-1:]  # nothing is known here: only the newest command says something
        if unread:
            newest = unread[-1][1].revision if len(unread) > 1 else None
            fact = s.CommandReceived(*unread[0], newest)
            self._take(fact)
            if self.machine is not None and self._dice.fault("message", "command doubled", 5):
                self._take(fact)

    def _next_input(self) -> None:
        if self.inbox:
            if self._dice.random.random() < 0.1:
                self.inbox.rotate(-1 if isinstance(self.inbox[0], s.EngineAnswered) else 0)
            self._take(self.inbox.popleft())

    def _tick(self) -> None:
        self._now += 0.5
        if self._dice.random.random() < 0.1:
            self._measured = True
            self._take(self._sample())
        else:
            self._take(s.ClockTicked())

    def _sample(self) -> s.SampleTaken:
        if self._dice.fault("machine", "card got hot", 5):
            self._hot = True
        elif self._dice.calm or self._dice.random.random() < 0.2:
            self._hot = False
        celsius = 95.0 if self._hot else 50.0
        cards = [d for d in self.devices if d.profile is None and d.card is not None]
        return s.SampleTaken(
            Readings(
                cards=tuple(
                    CardReading(index=d.card or 0, uuid=d.uuid, temperature_celsius=celsius)
                    for d in cards
                ),
                devices=tuple(DeviceReading(id=d.id, uuid=d.uuid) for d in self.devices),
            ),
            frozenset(engine.pid for engine in self.engines),
        )

    # --- what a shell does ------------------------------------------------------------------------

    def _take(self, fact: s.Input) -> None:
        """Hand an input to the brain, store what must survive, then carry out the effects."""
        machine = self.machine
        if machine is None:
            return
        term = machine.memory.term
        effects = machine.handle(fact, self._now)
        if machine.memory.term < term:
            raise Violation(f"{self.name} went back from term {term} to {machine.memory.term}")
        if self._dice.fault("crash", "agent died before it stored"):
            self.die()
            return
        self._memory = msgspec.json.encode(machine.memory)
        if isinstance(fact, s.CommandReceived):
            self.first_command = min(self.first_command, fact.sequence)
        self._outbox.extend(self._encoded(x.event) for x in effects if isinstance(x, s.Publish))
        for effect in effects:
            if self._dice.fault("crash", "agent died before an effect"):
                self.die()
                return
            self._carry_out(effect)

    def _encoded(self, event: e.Event) -> wire.Outgoing:
        self._numbers += 1
        session = f"{self.name}-{self._lives}"
        return wire.encode_event(
            CLUSTER, event, node=self.name, session=session, number=self._numbers, time=TIME
        )

    def _carry_out(self, effect: s.Effect) -> None:
        match effect:
            case s.SpawnEngine():
                self._spawn(effect)
            case s.ProbeEngine():
                self._probe(effect)
            case s.StopEngine():
                self._signal(effect)
            case s.Leave():
                self.die()

    def _spawn(self, effect: s.SpawnEngine) -> None:
        start = effect.start
        if self._dice.fault("engine", "spawn failed"):
            self.inbox.append(s.SpawnFailed(start, "no such program"))
            return
        if self._dice.fault("engine", "port taken"):
            self.inbox.append(s.SpawnFailed(start, "in use", port_taken=True))
            return
        self._check_spawn(effect)
        self._pids += 1
        self.spawned.add(start)
        loading = self._dice.random.randrange(6)
        self.engines.append(Engine(start, effect.assignment, self._pids, effect.port, loading))
        self.inbox.append(s.EngineSpawned(start, self._pids))

    def _check_spawn(self, effect: s.SpawnEngine) -> None:
        """At most one engine for a part, a port and a card or instance; memory that is there."""
        uuids = {g.uuid for g in effect.assignment.grants}
        if not uuids <= {d.uuid for d in self.devices}:
            raise Violation(f"{self.name} starts {effect.start} on a device that is not there")
        if len(uuids) != effect.assignment.entry.gpus:
            raise Violation(f"{self.name} starts {effect.start} on {len(uuids)} devices")
        shared = {d.uuid for d in self.devices if d.device_class == "cpu"}
        total = {d.uuid: d.memory_total_bytes or 0 for d in self.devices}
        used = Counter(dict.fromkeys(uuids, effect.assignment.entry.memory_bytes))
        for other in self.engines:
            if other.start.key == effect.start.key:
                raise Violation(f"{self.name} starts {effect.start} beside {other.start}")
            if other.port == effect.port:
                raise Violation(f"{self.name} gives port {effect.port} away twice")
            theirs = {g.uuid for g in other.assignment.grants}
            both_share = effect.assignment.entry.share and other.assignment.entry.share
            if uuids & theirs - shared and not both_share:
                raise Violation(f"{self.name}: {effect.start} and {other.start} share a device")
            used.update(dict.fromkeys(theirs, other.assignment.entry.memory_bytes))
        over = [uuid for uuid in uuids if used[uuid] > total[uuid]]
        if over:
            raise Violation(f"{self.name} starts {effect.start} on {over} without room for it")

    def _engine(self, start: s.Start) -> Engine | None:
        return next((x for x in self.engines if x.start == start), None)

    def _probe(self, effect: s.ProbeEngine) -> None:
        """Ask once: what is being asked already is not asked again."""
        asked = (x.start for x in self.inbox if isinstance(x, s.EngineAnswered))
        if effect.start not in asked:
            self.inbox.append(s.EngineAnswered(effect.start, self._health(effect)))

    def _health(self, effect: s.ProbeEngine) -> int | None:
        engine = self._engine(effect.start)
        if engine is None or engine.hung or engine.port != effect.port:
            return None
        return 503 if engine.loading else 200

    def _signal(self, effect: s.StopEngine) -> None:
        engine = self._engine(effect.start)
        if engine is None:
            return
        if engine.pid != effect.pid:
            raise Violation(f"{self.name} signals pid {effect.pid}, which is not {effect.start}")
        if effect.signal == "KILL":
            engine.dying = 0
        elif not engine.deaf and engine.dying is None:
            engine.dying = self._dice.random.randrange(4)

    def _live(self) -> None:
        """Let the engines live for a moment: load, hang, die."""
        for engine in list(self.engines):
            engine.loading = max(0, engine.loading - 1)
            engine.hung |= self._dice.fault("engine", "engine hangs", 0.5)
            engine.deaf |= self._dice.fault("engine", "engine ignores TERM", 0.5)
            if self._dice.fault("engine", "engine crashed"):
                engine.dying = 0
            if engine.dying == 0:
                self.engines.remove(engine)
                if self.machine is not None:
                    self.inbox.append(s.EngineExited(engine.start, None, 9, ""))
            elif engine.dying is not None:
                engine.dying -= 1
