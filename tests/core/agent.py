"""An agent's brain in a test: `given`, `when` and `then`, with the effects told in a few words."""

from __future__ import annotations

import msgspec

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.memory import Memory, Policy, digest
from llmgw.core.node import NodeMachine
from llmgw.engines.base import Grant
from llmgw.hardware.types import Device, Inventory
from llmgw.testing.builders import card, entry, inventory, processor, started, tell

HERE = inventory("n1", card(0), card(1), processor())


class Agent:
    """The brain, and a clock that only the test moves."""

    def __init__(self, memory: Memory | None = None, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.machine = NodeMachine(memory or Memory(), self.policy, started())
        self.now = 100.0
        self.effects: list[s.Effect] = []
        self._commands = 0

    @property
    def memory(self) -> Memory:
        return self.machine.memory

    def up(self, *found: s.EngineFound, rebooted: bool = False, has: Inventory = HERE) -> Agent:
        """The agent has come up and looked around."""
        return self.given(s.AgentStarted(found, rebooted, has))

    def given(self, *facts: s.Input) -> Agent:
        """Take facts whose effects do not matter here."""
        for fact in facts:
            self.effects = self.machine.handle(fact, self.now)
        return self

    def when(self, *facts: s.Input, after: float = 0.0) -> Agent:
        """Take facts and keep the effects of all of them."""
        self.now += after
        self.effects = [x for fact in facts for x in self.machine.handle(fact, self.now)]
        return self

    def then(self, *expected: str) -> Agent:
        """Assert the effects of what came last, in the words of `tell`."""
        assert [tell(effect) for effect in self.effects] == list(expected)
        return self

    def told(self, *assignments: Assignment, revision: int = 0, term: int = 1) -> Agent:
        """Take a command; without a revision it is the next one."""
        return self.given(self.command(*assignments, revision=revision, term=term))

    def command(
        self, *assignments: Assignment, revision: int = 0, term: int = 1, sequence: int = 0
    ) -> s.CommandReceived:
        self._commands += 1
        revision = revision or self._commands
        wanted = SetAssignments(
            node="n1", revision=revision, term=term, at=1, assignments=assignments
        )
        return s.CommandReceived(sequence or 10 * self._commands, wanted)

    def restarted(self, *found: s.EngineFound, rebooted: bool = False, **fields: object) -> Agent:
        """Return the next agent of this machine, which has come up; its effects are kept."""
        stored = msgspec.json.encode(self.memory)
        agent = Agent(msgspec.json.decode(stored, type=Memory), self.policy)
        agent._commands = self._commands
        has = fields.pop("has", HERE)
        fact = s.AgentStarted(found, rebooted, has, **fields)  # type: ignore[arg-type]
        return agent.given(fact)

    def serving(self, *replicas: str) -> Agent:
        """Return the agent with these replicas ready, each on a card of its own."""
        agent = self.up().told(*(assignment(r, device=i) for i, r in enumerate(replicas)))
        for number, replica in enumerate(replicas):
            agent.given(s.EngineSpawned(start(replica), 70 + number), answered(200, replica))
        return agent


def grant(device: Device) -> Grant:
    return Grant(device.uuid, device.device_class, device.card, device.memory_total_bytes)


def assignment(
    replica: str = "r1", device: int = 0, generation: int = 1, **fields: object
) -> Assignment:
    """One part of a replica on a device of `HERE`."""
    found = next(d for d in HERE.devices if d.id == device)
    return Assignment(
        replica=replica,
        generation=generation,
        entry=entry(replica, **fields),  # type: ignore[arg-type]
        devices=(device,),
        grants=(grant(found),),
    )


def start(replica: str = "r1", attempt: int = 1, generation: int = 1) -> s.Start:
    return s.Start(s.Key(replica, 0), generation, attempt)


def answered(status: int | None, replica: str = "r1", attempt: int = 1) -> s.EngineAnswered:
    return s.EngineAnswered(start(replica, attempt), status)


def uncounted(replica: str = "r1") -> s.EngineCounted:
    """The engine does not tell how many requests it has."""
    return s.EngineCounted(start(replica), None)


def exited(replica: str = "r1", attempt: int = 1, output: str = "") -> s.EngineExited:
    return s.EngineExited(start(replica, attempt), 1, None, output)


def found(
    what: Assignment | None = None, attempt: int = 1, pid: int = 70, port: int = 18100
) -> s.EngineFound:
    what = what or assignment()
    return s.EngineFound(start(what.replica, attempt, what.generation), pid, port, digest(what))


TICK = s.ClockTicked()


def published(agent: Agent) -> list[e.Event]:
    return [effect.event for effect in agent.effects if isinstance(effect, s.Publish)]
