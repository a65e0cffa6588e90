"""A seeded simulation of a whole cluster under faults: the same seed gives the same history.

Two controllers, three machines and a log run the real core while processes die between any two
steps, machines restart, folders are lost, devices vanish, messages come late, twice or not at all,
and engines crash, hang and ignore signals. After every step the invariants are checked. How a
history ends depends on its mode:

- `safety`: the faults stop, and within a bound everything that is wanted must run, nothing else.
- `liveness`: a core is healed (one controller, the log, two machines) and the rest stays broken.
  The core must come to serve all that fits on it, whatever the rest does.

`llmgw.testing.simulating` runs many of them from the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Literal

import msgspec

from llmgw import wire
from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster, Replica
from llmgw.core.commands import SetAssignments
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.placement import Held, Placed, place
from llmgw.testing.builders import CLUSTER, TIME, applied, card, entry, instance, processor, whole
from llmgw.testing.chance import Crash, Dice, Violation
from llmgw.testing.invariants import restored, snapshot
from llmgw.testing.simulated import Agent, Controller, Log

STEPS_WITH_FAULTS = 400
STEPS_TO_CALM_DOWN = 6000

CORE_FELL = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a core raises that meets what it did not expect. It is total, so that is a violation too."""

Mode = Literal["safety", "liveness"]
MODES: tuple[Mode, ...] = ("safety", "liveness")


class Outcome(msgspec.Struct):
    """What one history came to. `violation` is `None` when every promise held."""

    seed: int
    mode: Mode
    steps: int
    injected: Counter[str]
    violation: str | None
    messages: int


class Simulation:
    """One seeded history. Faults stop after `steps`; those named in `without` never happen."""

    def __init__(
        self,
        seed: int,
        mode: Mode = "safety",
        *,
        steps: int = STEPS_WITH_FAULTS,
        without: Collection[str] = (),
    ) -> None:
        self.seed, self.mode = seed, mode
        self.steps = 0
        self.dice = Dice(seed, without)
        self.log = Log(self.dice)
        self.controllers = [Controller(name, self.log, self.dice) for name in ("a", "b")]
        self.agents = list(self._machines())
        self.core = self.agents
        self._leading = self.controllers
        self._steps_with_faults = steps
        self._asked = 0

    def _machines(self) -> Iterator[Agent]:
        cards = [card(0, domain="nvlink-0"), card(1, domain="nvlink-0"), card(2)]
        split = card(0, of_class="a100-80g", mig=True, uuid="GPU-split")
        yield Agent("n1", [whole(c) for c in cards], self.log, self.dice.share())
        instances = [instance(split, 0), instance(split, 1)]
        yield Agent("n2", [processor(8), *instances], self.log, self.dice.share())
        n3 = [whole(card(0, uuid="GPU-n3")), processor(16)]
        yield Agent("n3", n3, self.log, self.dice.share())

    # --- the history ------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run to the end, or to the first violation."""
        violation = None
        try:
            self._misbehave()
            if self.mode == "liveness":
                self._choose_a_core()
            self._calm_down()
            self._check_the_end()
        except AssertionError as error:
            violation = str(error)
        except CORE_FELL as error:
            violation = f"{type(error).__name__}: {error}"
        return Outcome(
            self.seed,
            self.mode,
            self.steps,
            self.dice.injected,
            violation,
            len(self.log.messages),
        )

    def _misbehave(self) -> None:
        for agent in self.agents:
            agent.start()
        self._ask()
        for _ in range(self._steps_with_faults):
            self._break_something()
            self._step()

    def _step(self) -> None:
        self.steps += 1
        roll = self.dice.random.random()
        if roll < 0.35:
            self._step_controller(self.dice.random.choice(self._leading))
        elif roll < 0.99 or self.dice.calm:
            self.dice.random.choice(self.agents).step()
        else:
            self._ask()

    def _step_controller(self, controller: Controller) -> None:
        try:
            controller.fold(self.dice.random.choice((1, 3, 100)))
            if controller.leads:
                self._watch(controller)
                controller.lead()
            elif not self._has_leader() or self.dice.fault("message", "lease lost", 4):
                controller.stand()
        except Crash:
            controller.restart()

    def _has_leader(self) -> bool:
        return any(controller.leads for controller in self._leading)

    def _watch(self, controller: Controller) -> None:
        """Note who is silent and who is heard again, as the shell does from telemetry."""
        for agent in self.agents:
            node = controller.state.nodes.get(agent.name)
            if node is None or controller.planned or self.dice.random.random() > 0.05:
                continue
            heard = agent.machine is not None and agent.connected
            if node.lost and heard:
                controller.note(e.NodeReturned(term=controller.state.term, node=agent.name))
            elif node.started and not node.lost and not heard:
                lost = e.NodeLost(term=controller.state.term, node=agent.name, silent_seconds=15)
                controller.note(lost)

    # --- what is wanted, and what breaks ----------------------------------------------------------

    def _ask(self) -> None:
        """The operator applies another catalog, or asks for something else."""
        self._asked += 1
        if self._asked == 1 or self.dice.random.random() < 0.6:
            wanted = [x for x in self._some_entries() if self.dice.random.random() < 0.8]
            wish: e.Event = applied(*wanted)
        else:
            wish = self.dice.random.choice([*self._some_wishes()])
        message = wire.encode_event(
            CLUSTER, wish, session="operator", number=self._asked, time=TIME
        )
        self.log.append(message)
        if self.dice.fault("message", "operator's event doubled", 10):
            self.log.append(message._replace(message_id=f"{message.message_id}-again"))

    def _some_wishes(self) -> Iterator[e.Event]:
        choose = self.dice.random.choice
        node = choose(self.agents).name
        yield e.ModelScaled(model=choose(("one", "small", "shared")), replicas=choose((0, 1, 3)))
        yield e.ModelDeleted(model=choose(("slice", "small")))
        yield e.NodeCordoned(node=node)
        yield e.NodeDrained(node=node)
        yield e.NodeUncordoned(node=node)
        yield e.NodeUncordoned(node=choose(self.agents).name)
        yield e.ReplicaRestartAsked(replica=f"r{self.dice.random.randrange(1, 30)}")

    def _some_entries(self) -> Iterator[Entry]:
        choose = self.dice.random.choice
        quick: dict[str, Any] = {"start_seconds": 20.0, "stop_seconds": 2.0}
        variant = {"context": choose((None, 4096)), **quick}
        yield entry("pair", gib=40, gpus=2, **quick)
        yield entry("one", gib=choose((20, 30)), replicas=choose((0, 1, 2)), **variant)
        yield entry("shared", gib=choose((10, 20)), replicas=2, share=True, policy="pack", **quick)
        yield entry("vip", "l40s-*", gib=10, priority=choose((0, 3)), **quick)
        two = {"engine": "vllm", "nodes": 2, "gpus": 2, "pp": 2, "priority": choose((0, 4))}
        yield entry("gang", gib=30, **two, **quick)
        yield entry("slice", "a100-*-mig-*", "l40s-*", replicas=choose((1, 3)), **variant)
        yield entry("small", "cpu", gib=choose((3, 5)), replicas=choose((1, 2, 6)), **variant)
        yield entry("huge", "l40s-48g", "cpu", gib=100, **quick)

    def _break_something(self) -> None:
        self._break(self.dice.random.choice(self.agents))
        if self.dice.fault("crash", "controller killed", 0.5):
            self.dice.random.choice(self.controllers).restart()

    def _break(self, agent: Agent) -> None:
        """Perhaps break something about one machine, or mend what was broken."""
        dice = agent.dice
        if agent.machine is None:
            if dice.random.random() < 0.1:
                agent.start()
        elif dice.fault("crash", "agent killed"):
            agent.die()
        elif dice.fault("machine", "machine rebooted", 0.5):
            agent.reboot()
        elif dice.fault("machine", "agent's folder lost", 0.3):
            agent.wipe()
        elif dice.fault("crash", "agent shut down", 0.5):
            agent.inbox.append(s.ShutdownRequested(dice.random.random() < 0.5))
        if dice.fault("machine", "instances carved anew", 0.5):
            agent.carve()
        if dice.fault("machine", "device not seen", 0.5):
            agent.hide_device()
        elif dice.random.random() < 0.02:
            agent.show_devices()
        if not agent.connected:
            agent.connected = dice.random.random() < 0.05
        elif dice.fault("message", "agent cut off"):
            agent.connected = False

    # --- the end ----------------------------------------------------------------------------------

    def _choose_a_core(self) -> None:
        """Leave one machine broken for good, and one controller stopped where it is."""
        choose = self.dice.random.choice
        broken = choose(self.agents)
        self.core = [agent for agent in self.agents if agent is not broken]
        self._leading = [choose(self.controllers)]
        broken.dice.rates = dict.fromkeys(broken.dice.rates, 0.06)
        if choose((True, False)):
            broken.connected = False

    def _calm_down(self) -> None:
        self.dice.calm = True
        for agent in self.core:
            agent.dice.calm = True
            agent.connected = True
            agent.show_devices()
        rest = [agent for agent in self.agents if agent not in self.core]
        flapping = [agent for agent in rest if agent.connected]
        for step in range(STEPS_TO_CALM_DOWN):
            self._step()
            for agent in self.core:
                if agent.machine is None:
                    agent.start()
            for agent in flapping:
                self._break(agent)
            if step % 50 == 49 and self._unsettled() == "":
                return
        raise Violation(f"not quiet after {STEPS_TO_CALM_DOWN} steps: {self._unsettled()}")

    def _unsettled(self) -> str:
        """Return why this is not the end yet."""
        busy = [a.name for a in self.core if not a.quiet]
        if busy:
            return f"{', '.join(busy)} busy"
        leaders = [c for c in self._leading if c.leads and c.behind == 0 and not c.planned]
        if not leaders:
            return "no leader that has folded all"
        state = leaders[0].state
        decisions = decide(state)
        if decisions:
            return f"still deciding: {decisions[0]}"
        lost = [name for name in self._core_names if not _is_there(state, name)]
        if lost:
            return f"{', '.join(lost)} not there"
        return next(self._wrong(state), "")

    @property
    def _core_names(self) -> list[str]:
        return [agent.name for agent in self.core]

    def _wrong(self, state: Cluster) -> Iterator[str]:
        """Yield where what runs in the core is not what is wanted."""
        core = {*self._core_names}
        here = [r for r in state.replicas.values() if all(p.node in core for p in r.parts)]
        away = [r for r in state.replicas.values() if r not in here and not _is_lost(state, r)]
        for model in state.models.values():
            there = [r for r in here if r.model == model.entry.name]
            current = sum(1 for r in there if r.entry == model.one and not _is_leaving(state, r))
            elsewhere = sum(1 for r in away if r.model == model.entry.name)
            if not 0 <= model.entry.replicas - current - model.missing <= elsewhere:
                yield f"{current} of {model.entry.replicas} {model.entry.name}"
            if len(there) - current > model.missing + elsewhere:
                yield f"{len(there) - current} outdated {model.entry.name}, {model.missing} missing"
            under_way = any(r.retired is not None for r in state.replicas.values())
            fits = isinstance(place(state, model.entry, Held()), Placed)
            if model.missing and fits and not under_way:  # that room may be kept for another
                yield f"{model.entry.name} fits and is not placed"
        for replica in here:
            if not _serves(replica):
                yield f"{replica.name} is not serving: {replica.parts} retired: {replica.retired}"
        for agent in self.core:
            yield from _wrong_engines(state, agent, {replica.name for replica in here})

    def _check_the_end(self) -> None:
        state = self._replayed()
        for controller in self.controllers:
            controller.fold(controller.behind)
            if snapshot(controller.state) != snapshot(state):
                raise Violation(f"controller {controller.name} does not hold what replay gives")
        if self.mode == "safety":
            self._check_outcomes()
            for agent in self.agents:
                if not agent.wiped:
                    self._check_told(agent)
            self._check_stays_quiet()

    def _replayed(self) -> Cluster:
        """Fold the log again, through a snapshot in its middle."""
        state = Cluster()
        middle = len(self.log.messages) // 2
        for index in range(len(self.log.messages)):
            apply(state, self.log.record(index))
            if index == middle:
                state = restored(snapshot(state))
        return state

    def _check_outcomes(self) -> None:
        """Every command that an agent took came to one outcome (I5)."""
        agents = {agent.name: agent for agent in self.agents}
        sent: Counter[tuple[str, int, int]] = Counter()
        ended: Counter[tuple[str, int, int]] = Counter()
        counted: set[tuple[str, int]] = set()
        for index in range(len(self.log.messages)):
            record = self.log.record(index)
            body = record.body
            if isinstance(body, SetAssignments):
                taken = record.sequence >= agents[body.node].first_command
                sent[body.node, body.term, body.revision] += taken
            elif isinstance(body, e.CommandCompleted | e.CommandRefused | e.CommandSuperseded):
                event = (record.session, record.number)  # sent again after a lost answer
                ended[record.node, body.term, body.revision] += event not in counted
                counted.add(event)
        for key in sent.keys() | ended.keys():
            if ended[key] != sent[key] and not agents[key[0]].wiped:
                raise Violation(f"command {key} was sent {sent[key]} and ended {ended[key]} times")

    def _check_told(self, agent: Agent) -> None:
        """No event is missing (I1), and no process came or went without a word (I6)."""
        records = [self.log.record(index) for index in range(len(self.log.messages))]
        told = [r for r in records if r.origin == "node" and r.node == agent.name]
        numbers: dict[str, set[int]] = {}
        started, ended = set(), set()
        for record in told:
            numbers.setdefault(record.session, set()).add(record.number)
            body = record.body
            if isinstance(body, e.PartEvent):
                key = s.Key(body.replica, body.part)
                start = s.Start(key, body.generation, body.attempt)
                if isinstance(body, e.ReplicaStarting):
                    started.add(start)
                elif isinstance(body, e.ReplicaFailed | e.ReplicaStopped):
                    ended.add(start)
        for session, found in numbers.items():
            if found != set(range(1, len(found) + 1)):
                raise Violation(f"{session} has gaps: {sorted(found)}")
        untold = (agent.spawned - started) | (agent.spawned - ended - agent.running)
        if untold:
            raise Violation(f"{agent.name} says nothing of {sorted(untold, key=str)}")

    def _check_stays_quiet(self) -> None:
        """Without faults and wishes nothing more is written (I9)."""
        before = len(self.log.messages)
        for _ in range(300):
            self._step()
        if len(self.log.messages) > before:
            news = self.log.record(before).body
            raise Violation(f"not quiet: {news}")


def _is_there(state: Cluster, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.started and not node.lost


def _is_lost(state: Cluster, replica: Replica) -> bool:
    return any(state.nodes[part.node].lost for part in replica.parts)


def _serves(replica: Replica) -> bool:
    return replica.retired is None and all(part.phase == "ready" for part in replica.parts)


def _is_leaving(state: Cluster, replica: Replica) -> bool:
    return any(state.nodes[part.node].draining for part in replica.parts)


def _wrong_engines(state: Cluster, agent: Agent, whole: set[str]) -> Iterator[str]:
    """Yield what is wrong on a node of the core; of `whole` replicas all parts are there."""
    node = state.nodes[agent.name]
    wanted = {
        (replica.name, number)
        for replica in state.replicas.values()
        for number, part in enumerate(replica.parts)
        if part.node == agent.name and replica.name in whole
    }
    torn = state.replicas.keys() - whole  # what becomes of these parts is open
    keys = [tuple(engine.start.key) for engine in agent.engines]
    running = {key for key in keys if key[0] not in torn}
    if wanted != running:
        yield f"{agent.name} runs {sorted(running)}, wanted are {sorted(wanted)}"
    if node.strays or node.retiring.keys() - torn or node.conditions:
        yield f"{agent.name} has {node.strays} {node.retiring} {node.conditions}"
    if not node.revision == node.commanded == node.ended:
        yield f"{agent.name} has ended {node.ended}, was told {node.commanded} of {node.revision}"


if __name__ == "__main__":
    from llmgw.testing.simulating import main

    raise SystemExit(main())
