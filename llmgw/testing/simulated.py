"""The parts of a simulated cluster: a log, controllers that fold and decide, agents with engines.

Synchronous and driven from outside one small step at a time by `llmgw.testing.simulator`, which
also decides what breaks. The brain of an agent, the fold, the decisions and the wire format are the
real ones; what is pretended is only what a shell does: storing, sending, spawning, waiting.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from llmgw import wire
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.memory import Memory, Policy, digest
from llmgw.core.node import NodeMachine
from llmgw.core.records import Record
from llmgw.errors import AppendRefused
from llmgw.hardware.types import (
    CardReading,
    Device,
    DeviceReading,
    Inventory,
    Readings,
)
from llmgw.testing.builders import CLUSTER, TIME
from llmgw.testing.chance import Crash, Dice, Violation
from llmgw.testing.invariants import check, restored, snapshot
from llmgw.testing.simulated_devices import TELLINGS, Engine, Remains, Telling, reading

POLICY = Policy(
    first_port=18100,
    last_port=18107,
    backoff_cap_seconds=8.0,
    backoff_reset_seconds=60.0,
    liveness_seconds=1.0,
    liveness_failures=3,
    port_quarantine_seconds=5.0,
    weigh_seconds=3.0,
    freed_seconds=6.0,
    failing_after=3,
    failing_seconds=10.0,
)

DEDUPLICATED_MESSAGES = 30
"""How far back the log recognises a message id, as JetStream's duplicate window does."""


ASKED_TWICE = 5
"""Of so many answers of `decide` one is asked for again, of a state from a snapshot."""


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
        self.checked = 0
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
        self._decided = -1
        self._answers = 0

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads: it may be wrong."""
        return self._term > 0 and self.state.term == self._term

    @property
    def behind(self) -> int:
        """How many messages it has not folded."""
        return len(self._log.messages) - self.state.sequence

    def fold(self, most: int) -> None:
        """Fold up to `most` messages, checking every invariant after each that nobody has checked.

        What others fold from the same messages is the same state: the end compares them.
        """
        state, log = self.state, self._log
        for _ in range(min(most, self.behind)):
            apply(state, log.record(state.sequence))
            if state.sequence > log.checked:
                log.checked = state.sequence
                check(state)
        self._fence = max(self._fence, self.state.last_controller_sequence)

    def restart(self) -> None:
        """Come up again with nothing, or with a snapshot."""
        kept = restored(snapshot(self.state)) if self._dice.random.random() < 0.5 else Cluster()
        self.state, self._term, self._lives = kept, 0, self._lives + 1
        self._fence = self.state.last_controller_sequence
        self._decided = -1
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
            self._decide()

    def _decide(self) -> None:
        """Ask again only after a change, as the shell does; now and then ask twice."""
        if self.state.sequence == self._decided:
            return
        self._decided = self.state.sequence
        intentions = decide(self.state)
        self._answers += bool(intentions)
        if intentions and self._answers % ASKED_TWICE == 0:
            again = decide(restored(snapshot(self.state)))
            if [*map(str, intentions)] != [*map(str, again)]:
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


class Agent:
    """One machine: hardware, engines, what is on its disk, and the agent that may run there."""

    def __init__(self, name: str, devices: list[Device], log: Log, dice: Dice) -> None:
        self.name = name
        self.devices = devices
        self.dice = dice
        self.machine: NodeMachine | None = None
        self.connected = True
        self.engines: list[Engine] = []
        self.remains: list[Remains] = []
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
        self._is_named = True
        self._measured = False
        self._carvings = 0
        self._hidden: list[Device] = []
        self._tells: Telling = dice.random.choice(TELLINGS)

    # --- the life of the agent and its machine ----------------------------------------------------

    def start(self) -> None:
        """The agent comes up and looks around."""
        memory = msgspec.json.decode(self._memory, type=Memory)
        started = e.NodeStarted(boot_id=f"boot-{self._boots}", agent_version="1")
        self.machine = NodeMachine(memory, POLICY, started)
        self._lives, self._numbers = self._lives + 1, 0
        rebooted = self._agent_boot not in (0, self._boots)
        self._agent_boot = self._boots
        self._measured, self._is_named = False, True
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
        self.remains.clear()
        self._boots += 1
        self._renumber()

    def wipe(self) -> None:
        """The agent's folder is gone, and what it had not sent with it."""
        self.die()
        self.wiped = True
        self._memory = msgspec.json.encode(Memory())
        self._outbox.clear()
        self._agent_boot = 0

    def carve(self) -> None:
        """MIG instances on which nothing runs are made anew, as the driver allows it."""
        self._carvings += 1
        taken = {grant.uuid for engine in self.engines for grant in engine.assignment.grants}
        anew = [d for d in self.devices if d.profile is not None and d.uuid not in taken]
        kept = [d for d in self.devices if d not in anew]
        uuids = (f"{device.uuid.partition('/')[0]}/{self._carvings}" for device in anew)
        carved = (
            msgspec.structs.replace(device, uuid=uuid)
            for device, uuid in zip(anew, uuids, strict=True)
        )
        self._have([*kept, *carved])

    def hide_device(self) -> None:
        """A card or instance is not seen any more, whatever runs on it."""
        cards = [device for device in self.devices if device.device_class != "cpu"]
        if cards and len(self.devices) > 1:
            gone = self._dice.random.choice(cards)
            self._hidden.append(gone)
            self._have(device for device in self.devices if device is not gone)

    def show_devices(self) -> None:
        """What was hidden is seen again."""
        if self._hidden:
            hidden, self._hidden = self._hidden, []
            self._have([*self.devices, *hidden])

    def _have(self, devices: Iterable[Device]) -> None:
        """Have other devices than before, and tell the agent."""
        self.devices = sorted(devices, key=lambda device: device.id)
        self._take(s.InventoryTaken(self._inventory()))

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
        failing = any(x.is_failing(self.devices[0], self._tells) for x in self.engines)
        parts = self.machine.memory.parts.values() if self.machine is not None else ()
        failing = failing or bool(self.remains) or any(part.gone_at is not None for part in parts)
        under_way = waiting or failing or self._outbox or any(self._unread())
        return self._measured and self._is_named and not under_way

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
        if self._is_named and self._dice.fault("message", "another agent has the name"):
            self._is_named = False
            self._take(s.NameTaken("another"))
        elif not self._is_named and (self._dice.calm or self._dice.random.random() < 0.1):
            self._is_named = True
            self._take(s.NameTaken(None))
        if self._dice.random.random() < 0.1:
            self._measured = True
            self.remains = [x for x in self.remains if not x.is_given_back()]
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
                devices=tuple(self._reading(device) for device in self.devices),
            ),
            {engine.pid: engine.start for engine in self.engines},
        )

    def _reading(self, device: Device) -> DeviceReading:
        number = self.devices[0].id
        engines = [x for x in self.engines if x.is_on(device) or (x.astray and device.id == number)]
        return reading(device, engines, self.remains, self._tells)

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
            if isinstance(effect, s.Publish) and isinstance(effect.event, e.ReplicaBecameReady):
                self._check_weight(effect.event)
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
            case s.CountRequests():
                self._count(effect)
            case s.MeasureDevices():
                self.inbox.append(self._sample())
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
        if not self._is_named:
            raise Violation(f"{self.name} starts {start} under a name that another agent has")
        self._check_spawn(effect)
        self._pids += 1
        self.spawned.add(start)
        loading = self._dice.random.randrange(6)
        engine = Engine(start, effect.assignment, self._pids, effect.port, loading)
        engine.astray = self._dice.fault("engine", "engine is on another device", 3)
        engine.requests = self._dice.random.randrange(4)
        self.engines.append(engine)
        self.inbox.append(s.EngineSpawned(start, self._pids))

    def _check_spawn(self, effect: s.SpawnEngine) -> None:
        """At most one engine for a part, a port and a card or instance; memory that is there."""
        uuids = {g.uuid for g in effect.assignment.grants}
        if not uuids <= {d.uuid for d in self.devices}:
            raise Violation(f"{self.name} starts {effect.start} on a device that is not there")
        entry = effect.assignment.entry
        if len(uuids) * entry.nodes != entry.gpus:
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
            stranger = None
            if self._dice.fault("engine", "a stranger answers", 1.5):
                stranger = "pid 1 (stranger)"
            self.inbox.append(s.EngineAnswered(effect.start, self._health(effect), stranger))

    def _health(self, effect: s.ProbeEngine) -> int | None:
        engine = self._engine(effect.start)
        if engine is None or engine.hung or engine.port != effect.port:
            return None
        return 503 if engine.loading else 200

    def _count(self, effect: s.CountRequests) -> None:
        """Tell how many requests there are; they end one after the other, or never."""
        engine = self._engine(effect.start)
        if engine is None or engine.hung:
            self.inbox.append(s.EngineCounted(effect.start, None))
            return
        if not self._dice.fault("engine", "a request does not end", 10):
            engine.requests = max(0, engine.requests - 1)
        self.inbox.append(s.EngineCounted(effect.start, engine.requests))

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
                self._end(engine)
            elif engine.dying is not None:
                engine.dying -= 1

    def _end(self, engine: Engine) -> None:
        """The engine is gone; what it had on its devices may stay there for a while."""
        self.engines.remove(engine)
        pid = engine.pid if self._dice.fault("engine", "process cannot be killed", 4) else None
        if pid is not None or self._dice.fault("engine", "memory given back late", 4):
            uuids = tuple(g.uuid for g in engine.assignment.grants if g.device_class != "cpu")
            samples = self._dice.random.randrange(1, 8)
            self.remains.append(Remains(uuids, engine.taken_bytes, pid, samples))
        if self.machine is not None:
            left = () if pid is None else (pid,)
            self.inbox.append(s.EngineExited(engine.start, None, 9, "", left))

    def _check_weight(self, said: e.ReplicaBecameReady) -> None:
        """What a ready engine is said to take is what it takes, or nothing is said."""
        start = s.Start(s.Key(said.replica, said.part), said.generation, said.attempt)
        engine = self._engine(start)
        if engine is None or not said.memory_bytes:
            return
        true_bytes = (engine.taken_bytes,) * len(engine.assignment.grants)
        if self._tells == "nothing" or max(said.memory_bytes) > max(true_bytes):
            raise Violation(f"{self.name} says that {start} takes {said.memory_bytes} bytes")
        if self._tells == "memory" and said.memory_bytes != true_bytes:
            raise Violation(f"{self.name} says {said.memory_bytes} of {true_bytes} of {start}")
