"""A machine of a simulated cluster: its devices, its engines, and the agent that may run there.

Synchronous and driven from outside one small step at a time by `llmgw.testing.simulator`, which
also decides what breaks. The brain of an agent and the wire format are the real ones; what is
pretended is only what a shell does: storing, sending, spawning, waiting. Each machine has a clock
of its own, which nothing compares with another's.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from llmgw import wire
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.memory import Memory, Policy, digest
from llmgw.core.node import NodeMachine
from llmgw.errors import LogUnreachable
from llmgw.hardware.types import (
    CardReading,
    Device,
    DeviceReading,
    Inventory,
    Readings,
)
from llmgw.testing.builders import CLUSTER, TIME
from llmgw.testing.chance import Dice, Violation
from llmgw.testing.simulated_devices import TELLINGS, Engine, Remains, Telling, reading
from llmgw.testing.simulated_log import Log

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

_KNOWN_TO_BE_USED = 3


class Agent:
    """One machine: hardware, engines, what is on its disk, and the agent that may run there."""

    def __init__(self, name: str, devices: list[Device], log: Log, dice: Dice) -> None:
        self.name = name
        self.devices = devices
        self.dice = dice
        self.machine: NodeMachine | None = None
        self.sends = self.receives = True
        self.in_the_dark = False
        self.engines: list[Engine] = []
        self.remains: list[Remains] = []
        self.fleet: Sequence[Agent] = (self,)
        self.spawned: set[s.Start] = set()
        self.wiped = False
        self.disk_is_full = False
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
        self._unstored: tuple[s.Input, list[s.Effect]] | None = None
        self._is_late = False
        self._told: set[s.Start] = set()
        self._ended: dict[s.Start, int] = {}
        self._released: dict[int, float] = {}
        self._hot = False
        self._is_named = True
        self._measured = False
        self._carvings = 0
        self._hidden: list[Device] = []
        self._tells: Telling = dice.random.choice(TELLINGS)

    @property
    def connected(self) -> bool:
        """Whether it can be heard and can hear."""
        return self.sends and self.receives and not self.in_the_dark

    @property
    def gives_signs_of_life(self) -> bool:
        """Whether its agent runs and can be heard."""
        return self.machine is not None and self.sends and not self.in_the_dark

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
        self._released.clear()
        found = [s.EngineFound(x.start, x.pid, x.port, digest(x.assignment)) for x in self.engines]
        self._dice.random.shuffle(found)
        self._take(s.AgentStarted(tuple(found), rebooted, self._inventory()))

    def die(self) -> None:
        """The agent is gone; its engines go on."""
        self.machine = None
        self.inbox.clear()
        self._unstored, self.disk_is_full = None, False

    def reboot(self) -> None:
        """The machine starts again: engines are gone, cards may have other numbers."""
        self.die()
        self.engines.clear()
        self.remains.clear()
        self._boots += 1
        self._now = float(self._dice.random.randrange(100))
        self._renumber()

    def wipe(self) -> None:
        """The agent's folder is gone, and what it had not sent with it."""
        self.die()
        self.wiped = True
        self._memory = msgspec.json.encode(Memory())
        self._outbox.clear()
        self._log.forget(self.name)
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
        if self._unstored is not None:
            choices += [self._find_room]
        elif self.machine is not None:
            choices += [self._next_input, self._next_input, self._tick]
        if self._log.is_up and self.machine is not None and not self.in_the_dark:
            choices += [self._send] * self.sends + [self._receive] * self.receives
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
        if self._dice.fault("event under way"):
            self._log.send(self._outbox[0], self.name)
            return
        try:
            self._log.append(self._outbox[0], self.name)
        except LogUnreachable:
            return
        if not self.disk_is_full and not self._dice.fault("acknowledgement lost"):
            self._outbox.popleft()

    def _receive(self) -> None:
        """Take the next command. Of those that waited the newest of the highest term counts."""
        if self.machine is None or self._unstored is not None or self._dice.fault("command late"):
            return
        unread = list(self._unread())
        if not unread:
            return
        counts, newest = max(unread, key=lambda one: (one[1].term, one[0]))
        if self.machine.memory.command_sequence == 0:  # an earlier life may have answered the rest
            unread = [one for one in unread if one[0] >= counts]
        sequence, command = unread[0]
        fact = s.CommandReceived(sequence, command, newest.revision if sequence < counts else None)
        self._take(fact)
        if self.machine is not None and self._dice.fault("command doubled"):
            self._take(fact)

    def _next_input(self) -> None:
        if self.inbox:
            if self._dice.random.random() < 0.1:
                self.inbox.rotate(-1 if isinstance(self.inbox[0], s.EngineAnswered) else 0)
            self._take(self.inbox.popleft())

    def _tick(self) -> None:
        self._now += 60.0 if self._dice.fault("agent slept") else 0.5
        if self._is_named and self._dice.fault("another agent has the name"):
            self._is_named = False
            self._take(s.NameTaken("another"))
        elif not self._is_named and (self._dice.calm or self._dice.random.random() < 0.1):
            self._is_named = True
            self._take(s.NameTaken(None))
        if self._dice.random.random() < (0.3 if self._dice.calm else 0.1):
            self._measured = True
            self.remains = [x for x in self.remains if not x.is_given_back()]
            self._take(self._sample())
        else:
            self._take(s.ClockTicked())

    def _sample(self) -> s.SampleTaken:
        if self._dice.fault("card got hot"):
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
        if self._unstored is not None:  # it waits for room on its disk, and looks again then
            if not isinstance(fact, s.InventoryTaken):
                self.inbox.append(fact)
            return
        if isinstance(fact, s.EngineExited):
            self._released[self._ended.pop(fact.start)] = self._now
        term = machine.memory.term
        effects = machine.handle(fact, self._now)
        if machine.memory.term < term:
            raise Violation(f"{self.name} went back from term {term} to {machine.memory.term}")
        if self._dice.fault("agent died before it stored"):
            self.die()
            return
        if self._dice.fault("agent's disk full"):
            self.disk_is_full = True
            self._unstored = fact, effects
            return
        self._carry_on(fact, effects, machine)

    def _find_room(self) -> None:
        """Wait for room on the disk: until then nothing is done."""
        if self._unstored is None or self.machine is None:
            return
        if self._dice.calm or self._dice.random.random() < 0.2:
            (fact, effects), self._unstored, self.disk_is_full = self._unstored, None, False
            self._is_late = True  # what was to be started on may be gone by now
            self._carry_on(fact, effects, self.machine)
            self._is_late = False
            self._take(s.InventoryTaken(self._inventory()))

    def _carry_on(self, fact: s.Input, effects: list[s.Effect], machine: NodeMachine) -> None:
        self._memory = msgspec.json.encode(machine.memory)
        if isinstance(fact, s.CommandReceived):
            self.first_command = min(self.first_command, fact.sequence)
        for effect in effects:
            if isinstance(effect, s.Publish):
                self._publish(effect.event)
        for effect in effects:
            if self._dice.fault("agent died before an effect"):
                self.die()
                return
            self._carry_out(effect)

    def _publish(self, event: e.Event) -> None:
        self._outbox.append(self._encoded(event))
        if isinstance(event, e.ReplicaBecameReady):
            self._check_weight(event)
        elif isinstance(event, e.ReplicaStarting):
            key = s.Key(event.replica, event.part)
            self._told.add(s.Start(key, event.generation, event.attempt))

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
        if self._dice.fault("spawn failed"):
            self.inbox.append(s.SpawnFailed(start, "no such program"))
            return
        if self._dice.fault("port taken"):
            self.inbox.append(s.SpawnFailed(start, "in use", port_taken=True))
            return
        if self._is_late and not self._is_there(effect.assignment):
            self.inbox.append(s.SpawnFailed(start, "no such device"))
            return
        if not self._is_named:
            raise Violation(f"{self.name} starts {start} under a name that another agent has")
        self._check_spawn(effect)
        self._pids += 1
        self.spawned.add(start)
        loading = self._dice.random.randrange(6)
        if self._dice.fault("engine loads for ever"):
            loading = sys.maxsize
        engine = Engine(start, effect.assignment, self._pids, effect.port, loading)
        engine.astray = self._dice.fault("engine is on another device")
        engine.requests = self._dice.random.randrange(4)
        self.engines.append(engine)
        self.inbox.append(s.EngineSpawned(start, self._pids))

    def _is_there(self, assignment: Assignment) -> bool:
        return {g.uuid for g in assignment.grants} <= {d.uuid for d in self.devices}

    def _check_spawn(self, effect: s.SpawnEngine) -> None:
        """At most one engine for a part, a port and a card or instance; memory that is there.

        That is I2, I3 and I8 as the machine itself sees them, and of I6 that a start is written
        down before there is a process.
        """
        if effect.start not in self._told:
            raise Violation(f"{self.name} starts {effect.start} without a word")
        self._check_port(effect.port)
        for agent in self.fleet:
            if agent is not self and any(x.start.key == effect.start.key for x in agent.engines):
                raise Violation(f"{effect.start} runs on {agent.name} and on {self.name}")
        uuids = {g.uuid for g in effect.assignment.grants}
        if not self._is_there(effect.assignment):
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

    def _check_port(self, port: int) -> None:
        """A port rests after its engine, as long as others are free and rested (I8).

        Of a few the brain may know that they are in use by others, or a group met there.
        """
        resting_since = self._now - POLICY.port_quarantine_seconds
        resting = {p for p, since in self._released.items() if since > resting_since}
        if port in resting and self.machine is not None:
            parts = self.machine.memory.parts.values()
            taken = {p.port for p in parts} | {p.meeting_port for p in parts}
            ports = set(range(POLICY.first_port, POLICY.last_port + 1))
            if len(ports - resting - taken) > _KNOWN_TO_BE_USED:
                raise Violation(f"{self.name} gives port {port} away again at once")

    def _engine(self, start: s.Start) -> Engine | None:
        return next((x for x in self.engines if x.start == start), None)

    def _probe(self, effect: s.ProbeEngine) -> None:
        """Ask once: what is being asked already is not asked again."""
        asked = (x.start for x in self.inbox if isinstance(x, s.EngineAnswered))
        if effect.start not in asked:
            stranger = None
            if self._dice.fault("a stranger answers"):
                stranger = "pid 1 (stranger)"
            self.inbox.append(s.EngineAnswered(effect.start, self._health(effect), stranger))

    def _health(self, effect: s.ProbeEngine) -> int | None:
        engine = self._engine(effect.start)
        if engine is None or engine.hung or engine.port != effect.port:
            return None
        if engine.loading:  # vLLM opens its port only once it has loaded
            return 503 if engine.assignment.entry.engine == "llama.cpp" else None
        return 200

    def _count(self, effect: s.CountRequests) -> None:
        """Tell how many requests there are; they end one after the other, or never."""
        engine = self._engine(effect.start)
        if engine is None or engine.hung:
            self.inbox.append(s.EngineCounted(effect.start, None))
            return
        if not self._dice.fault("a request does not end"):
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
            engine.hung |= self._dice.fault("engine hangs")
            engine.deaf |= self._dice.fault("engine ignores TERM")
            if self._dice.fault("engine crashed"):
                engine.dying = 0
            if engine.dying == 0:
                self._end(engine)
            elif engine.dying is not None:
                engine.dying -= 1

    def _end(self, engine: Engine) -> None:
        """The engine is gone; what it had on its devices may stay there for a while."""
        self.engines.remove(engine)
        self._ended[engine.start] = engine.port
        pid = engine.pid if self._dice.fault("process cannot be killed") else None
        if pid is not None or self._dice.fault("memory given back late"):
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
