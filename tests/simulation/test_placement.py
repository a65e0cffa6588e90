"""A controller that is killed at any point of one placement: one engine comes of it, and no second.

One machine, one wish, no chance but the seed. Two controllers are there; the one that leads is
killed once, at a named point or after any number of steps, and comes up again with what it kept or
with nothing, or the other takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from llmgw import wire
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import SetAssignments
from llmgw.testing.builders import CLUSTER, TIME, applied, entry, processor
from llmgw.testing.chance import Dice
from llmgw.testing.promises import Witness
from llmgw.testing.simulated import Agent
from llmgw.testing.simulated_controller import Controller
from llmgw.testing.simulated_log import Log

STEP_SECONDS = 0.25
STEPS = 2_000
QUICK = {"start_seconds": 20.0, "stop_seconds": 2.0}


class Scripted(Dice):
    """No fault happens but one: the `nth` time that it could. With it go those that follow."""

    def __init__(self, seed: int, name: str = "", nth: int = 0, then: str = "") -> None:
        super().__init__(seed)
        self._name, self._left, self._then = name, nth, then
        self._happened = False

    def share(self) -> Dice:
        return self

    def fault(self, name: str) -> bool:
        if name == self._name and not self._happened:
            self._left -= 1
            self._happened = self._left == 0
            return self._happened
        return self._happened and name == self._then and self._once()

    def _once(self) -> bool:
        self._then = ""
        return True


class Placement:
    """The cluster, from the moment that its machine and its wish are in the log."""

    def __init__(self, dice: Dice, restart: str) -> None:
        self.log = Log(dice, Witness())
        self.agent = Agent("n1", [processor(8)], self.log, dice)
        self.a, self.b = (Controller(n, self.log, dice, self.log.witness) for n in ("a", "b"))
        self._restart = restart
        self._dice = dice
        self._steps = count(1)
        self.agent.start()
        wish = applied(entry("one", "cpu", gib=1, **QUICK))
        message = wire.encode_event(CLUSTER, wish, session="operator", number=1, time=TIME)
        self.log.append(message, "operator")

    @property
    def bodies(self) -> list[object]:
        """What the log holds."""
        return [self.log.record(n).body for n in range(len(self.log.messages))]

    def step(self) -> None:
        """Everybody does one small thing; the second controller only when it is let."""
        now = next(self._steps) * STEP_SECONDS
        self.log.step(STEP_SECONDS)
        lives = self.a.lives
        self.a.renew(now)
        self.a.step(now)
        if self.a.lives != lives:
            self.after_a_kill()
        if self.a.asleep:
            self.b.renew(now)
            self.b.step(now)
        self.agent.step()

    def kill(self) -> None:
        """Kill the leader."""
        self.a.restart()
        self.after_a_kill()

    def after_a_kill(self) -> None:
        """Have it begin with nothing, with what it kept, or not come back."""
        if self._restart == "with nothing":
            self.a.forget_snapshots()
            self.a.restart()
        self.a.asleep = self._restart == "elsewhere"

    def until(self, what: Callable[[Placement], object]) -> None:
        for _ in range(STEPS):
            if what(self):
                return
            self.step()
        raise AssertionError("it never came to that")

    def check(self) -> None:
        """One engine, one generation, one decision that counts, and nothing said twice."""
        self.until(lambda one: one.serves and one.agent.quiet)
        for _ in range(100):
            self.step()
        bodies = self.bodies
        first = s.Start(s.Key("r1", 0), 1, 1)
        assert self.agent.spawned == self.agent.running == {first}
        assert [b.replica for b in bodies if isinstance(b, e.ReplicaAssigned)] == ["r1"]
        assert sum(isinstance(b, e.ReplicaBecameReady) for b in bodies) == 1
        commands = [b for b in bodies if isinstance(b, SetAssignments) and b.assignments]
        assert all(b.assignments == commands[0].assignments for b in commands)
        written = [message.payload for message in self.log.messages]
        assert len({*written}) == len(written), "a message is in the log twice"

    @property
    def serves(self) -> bool:
        leader = self.b if self.a.asleep else self.a
        replicas = leader.state.replicas.values()
        ready = [p.phase == "ready" for replica in replicas for p in replica.parts]
        return bool(ready) and all(ready) and leader.settled


RESTARTS = ("with what it kept", "with nothing", "elsewhere")
POINTS = {
    "before it decides": ("controller died before an append", 1, ""),
    "it accepts and has not written so": ("controller died before an append", 2, ""),
    "decided and not written": ("controller died before an append", 3, ""),
    "written and not there yet": (
        "append under way",
        3,
        "controller died with an append under way",
    ),
    "written and not acknowledged": ("append of an unknown outcome", 3, ""),
    "acknowledged and not folded": ("controller died after an append", 3, ""),
    "commanded and not written": ("controller died before an append", 4, ""),
    "the command is not there yet": (
        "append under way",
        4,
        "controller died with an append under way",
    ),
    "the command is not acknowledged": ("append of an unknown outcome", 4, ""),
    "the command is acknowledged": ("controller died after an append", 4, ""),
}


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("point", POINTS)
def test_a_controller_that_dies_between_two_steps_of_a_placement_doubles_nothing(
    point: str, restart: str
) -> None:
    name, nth, then = POINTS[point]
    for seed in range(5):
        dice = Scripted(seed, name, nth, then)
        placement = Placement(dice, restart)
        placement.check()
        assert dice._happened, "the fault was not met"


def is_told(kind: type[e.Event]) -> Callable[[Placement], bool]:
    return lambda one: any(isinstance(body, kind) for body in one.bodies)


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("told", [e.ReplicaStarting, e.ReplicaBecameReady])
def test_a_controller_that_dies_before_it_sees_what_the_agent_said_doubles_nothing(
    told: type[e.Event], restart: str
) -> None:
    for seed in range(5):
        placement = Placement(Scripted(seed), restart)
        placement.until(is_told(told))
        assert placement.a.behind
        placement.kill()
        placement.check()


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_controller_that_dies_after_any_step_of_a_placement_doubles_nothing(restart: str) -> None:
    whole = Placement(Scripted(1), restart)
    whole.until(lambda one: one.serves)
    steps = next(whole._steps) - 1
    for after in range(steps):
        placement = Placement(Scripted(1), restart)
        for _ in range(after):
            placement.step()
        placement.kill()
        placement.check()
