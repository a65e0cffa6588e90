"""A seeded simulation of a whole cluster under faults: the same seed gives the same history.

Two controllers, three machines or six, and a log run the real core while processes die between any
two steps, machines restart, folders are lost, disks fill up, devices vanish, everybody may be cut
off, messages come late, twice, out of order or not at all, and engines crash, hang and ignore
signals (`chance.FAULTS` lists it all). After every step the promises are checked. How a history
ends depends on its mode:

- `safety`: the faults stop, and within a bound everything that is wanted must run, nothing else.
- `liveness`: a core is healed (one controller, the log, two machines) and the rest stays broken.
  The core must come to serve all that fits on it, whatever the rest does.

`llmgw.testing.simulating` runs many of them from the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec

from llmgw import wire
from llmgw.catalog.entries import Entry
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster, Replica
from llmgw.core.decide import decide
from llmgw.core.fold import apply
from llmgw.core.freezing import freeze, thaw
from llmgw.core.placement import Held, Placed, place
from llmgw.core.verify import verify
from llmgw.errors import LogUnreachable
from llmgw.folding import fold
from llmgw.hardware.types import Device
from llmgw.testing.builders import CLUSTER, TIME, applied, card, entry, instance, processor, whole
from llmgw.testing.chance import KINDS, RATES, Dice, Violation
from llmgw.testing.invariants import snapshot
from llmgw.testing.promises import Witness
from llmgw.testing.simulated import Agent
from llmgw.testing.simulated_controller import Controller
from llmgw.testing.simulated_log import Log

STEPS_WITH_FAULTS = 1000
STEPS_TO_CALM_DOWN = 6000
"""The bound: so many steps after the last fault everything that is wanted must run."""
STEPS_TO_STAY_QUIET = 300
STEP_SECONDS = 0.25
"""By the clock of log and controllers. A machine's own clock goes as its agent comes to look."""
BEAT_STEPS = 12
_RENEWAL_STEPS = 4
_BREAKS = 0.25
"""How likely it is before a step that anything may break, or be mended, from outside."""
VERIFIED = 3
"""Of so many histories one is decided again from its log, from the first decision to the last."""

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
        self.witness = Witness()
        self.log = Log(self.dice, self.witness)
        self.controllers = [
            Controller(name, self.log, self.dice, self.witness) for name in ("a", "b")
        ]
        self.agents = list(self._machines())
        for agent in self.agents:
            agent.fleet = self.agents
        self.core = self.agents
        self._leading = self.controllers
        self._steps_with_faults = steps
        self._asked = 0
        self._beats: dict[int, list[Agent]] = {}
        for number, agent in enumerate(self.agents):
            self._beats.setdefault(5 * number % BEAT_STEPS, []).append(agent)
        self._late: list[tuple[int, Controller, str]] = []

    def _machines(self) -> Iterator[Agent]:
        cards = [card(0, domain="nvlink-0"), card(1, domain="nvlink-0"), card(2)]
        split = card(0, of_class="a100-80g", mig=True, uuid="GPU-split")
        yield self._machine("n1", *map(whole, cards))
        yield self._machine("n2", processor(8), instance(split, 0), instance(split, 1))
        yield self._machine("n3", whole(card(0, uuid="GPU-n3")), processor(16))
        if self.dice.random.random() < 0.25:
            for name in ("n4", "n5", "n6"):
                yield self._machine(name, processor(4))

    def _machine(self, name: str, *devices: Device) -> Agent:
        return Agent(name, [*devices], self.log, self.dice.share())

    @property
    def now(self) -> float:
        """Seconds by the clock of log and controllers."""
        return self.steps * STEP_SECONDS

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
            if self.dice.random.random() < _BREAKS:
                self._break_something()
            self._step()

    def _step(self) -> None:
        self.steps += 1
        self.log.step(STEP_SECONDS)
        self._beat()
        if not self.steps % _RENEWAL_STEPS:
            for controller in self._leading:
                controller.renew(self.now)
        roll = self.dice.random.random()
        if roll < 0.35:
            self.dice.random.choice(self._leading).step(self.now)
        elif roll < 0.995 or self.dice.calm:
            self.dice.random.choice(self.agents).step()
        else:
            self._ask()

    def _beat(self) -> None:
        """Every agent that runs gives a sign of life now and then; it may be late, or get lost."""
        for agent in self._beats.get(self.steps % BEAT_STEPS, ()):
            if not agent.gives_signs_of_life:
                continue
            for controller in self._leading:
                if self.dice.fault("sign of life late"):
                    later = self.steps + self.dice.random.randrange(1, 4 * BEAT_STEPS)
                    self._late.append((later, controller, agent.name))
                elif not self.dice.fault("sign of life lost"):
                    controller.hear(agent.name, self.now)
        if self._late:
            for late in [x for x in self._late if x[0] <= self.steps]:
                self._late.remove(late)
                late[1].hear(late[2], self.now)

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
        with suppress(LogUnreachable):  # who asks is told, and may ask again
            self.log.append(message, "operator")
            if self.dice.fault("operator's event doubled"):
                again = message._replace(message_id=f"{message.message_id}-again")
                self.log.append(again, "operator")

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
        self._break_controller(self.dice.random.choice(self.controllers))
        self._break_log()
        self._break_network()

    def _break_log(self) -> None:
        """Perhaps take the log away, or let it come back."""
        log, dice = self.log, self.dice
        if log.is_up:
            log.is_up = not dice.fault("log away")
        else:
            log.is_up = dice.random.random() < 0.08
        if log.has_room:
            log.has_room = not dice.fault("log's disk full")
        else:
            log.has_room = dice.random.random() < 0.08

    def _break_network(self) -> None:
        """Perhaps cut many machines off at once, or all, until they are back together."""
        dark = [agent for agent in self.agents if agent.in_the_dark]
        if dark:
            if self.dice.random.random() < 0.03:
                self._end_the_dark()
            return
        if self.dice.fault("all agents cut off"):
            dark = self.agents
            for controller in self.controllers:
                controller.hearing.spare(controller.state, self.now)
        elif self.dice.fault("many agents cut off"):
            dark = self.dice.random.sample(self.agents, len(self.agents) - 1)
        for agent in dark:
            agent.in_the_dark = True

    def _end_the_dark(self) -> None:
        for agent in self.agents:
            agent.in_the_dark = False
        for controller in self.controllers:
            controller.hearing.spared = ()

    def _break_controller(self, controller: Controller) -> None:
        """Perhaps end a controller, have it sleep or cut it off; or mend that."""
        dice = self.dice
        if dice.fault("controller killed"):
            controller.restart()
        if controller.asleep:
            controller.asleep = dice.random.random() > 0.05
        else:
            controller.asleep = dice.fault("controller slept")
        if not controller.connected:
            controller.connected = dice.random.random() < 0.05
        else:
            controller.connected = not dice.fault("controller cut off")

    def _break(self, agent: Agent) -> None:
        """Perhaps break something about one machine, or mend what was broken."""
        self._break_agent(agent)
        self._break_devices(agent)
        self._cut_off(agent)

    def _break_agent(self, agent: Agent) -> None:
        dice = agent.dice
        if agent.machine is None:
            if dice.random.random() < 0.2:
                agent.start()
        elif dice.fault("agent killed"):
            agent.die()
        elif dice.fault("machine rebooted"):
            agent.reboot()
        elif dice.fault("agent's folder lost"):
            agent.wipe()
            self.witness.forgetful.add(agent.name)
        elif dice.fault("agent shut down"):
            agent.inbox.append(s.ShutdownRequested(dice.random.random() < 0.5))

    def _break_devices(self, agent: Agent) -> None:
        dice = agent.dice
        if dice.fault("instances carved anew"):
            agent.carve()
        if dice.fault("device not seen"):
            agent.hide_device()
        elif dice.random.random() < 0.08:
            agent.show_devices()

    def _cut_off(self, agent: Agent) -> None:
        """Perhaps cut a machine off, in one direction or both, or let it be back."""
        dice = agent.dice
        if not (agent.sends and agent.receives):
            if dice.random.random() < 0.1:
                agent.sends = agent.receives = True
        elif dice.fault("agent cut off"):
            agent.sends = agent.receives = False
        elif dice.fault("agent hears nothing"):
            agent.receives = False
        elif dice.fault("agent not heard"):
            agent.sends = False

    # --- the end ----------------------------------------------------------------------------------

    def _choose_a_core(self) -> None:
        """Leave one machine broken for good, and one controller stopped where it is."""
        choose = self.dice.random.choice
        broken = choose(self.agents)
        self.core = [agent for agent in self.agents if agent is not broken]
        self._leading = [choose(self.controllers)]
        broken.dice.set_rates(dict.fromkeys(KINDS, max(RATES)))
        if choose((True, False)):
            broken.sends = broken.receives = False

    def _calm_down(self) -> None:
        self.dice.calm = True
        self.log.is_up = self.log.has_room = True
        self._end_the_dark()
        for controller in self._leading:
            controller.asleep, controller.connected = False, True
        for agent in self.core:
            agent.dice.calm = True
            agent.sends = agent.receives = True
            agent.show_devices()
        rest = [agent for agent in self.agents if agent not in self.core]
        flapping = [agent for agent in rest if agent.connected]
        for step in range(STEPS_TO_CALM_DOWN):
            self._step()
            for agent in self.core:
                if agent.machine is None:
                    agent.start()
            for agent in flapping if self.dice.random.random() < _BREAKS else ():
                self._break(agent)
            if step % 50 == 49 and self._unsettled() == "":
                return
        raise Violation(f"not quiet after {STEPS_TO_CALM_DOWN} steps: {self._unsettled()}")

    def _unsettled(self) -> str:
        """Return why this is not the end yet."""
        busy = [a.name for a in self.core if not a.quiet]
        if busy:
            return f"{', '.join(busy)} busy"
        leaders = [controller for controller in self._leading if controller.settled]
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
        at_once = Cluster()
        fold(at_once, self.log.messages)
        if snapshot(at_once) != snapshot(state):
            raise Violation("messages folded many at once give another state than one by one")
        if self.mode == "safety":
            self.witness.check_outcomes({agent.name: agent.first_command for agent in self.agents})
            for agent in self.agents:
                if not agent.wiped:
                    self.witness.check_told(agent.name, agent.spawned, agent.running)
            self._check_stays_quiet()
        if self.seed % VERIFIED == 0:
            self._check_decided_again()

    def _replayed(self) -> Cluster:
        """Fold the log again, through a snapshot in its middle (I7)."""
        state = Cluster()
        middle = len(self.log.messages) // 2
        for index in range(len(self.log.messages)):
            apply(state, self.log.record(index))
            if index == middle:
                state = thaw(freeze(state))
        return state

    def _check_decided_again(self) -> None:
        """Every decision follows from the log alone."""
        verdict = verify([self.log.record(index) for index in range(len(self.log.messages))])
        difference = verdict.difference or verdict.first_change
        if difference is not None:
            raise Violation(f"decided again it is another: {difference}")

    def _check_stays_quiet(self) -> None:
        """Without faults and wishes nothing more is written (I9)."""
        before = len(self.log.messages)
        for _ in range(STEPS_TO_STAY_QUIET):
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
