"""The brain of an agent: inputs in, effects out, no clock and no processes of its own.

`handle(input, now)` takes one fact that the shell observed and returns what the shell should do.
All that must survive the agent is in `Memory`, which the shell stores together with the published
events before it carries out the other effects: a start is therefore written down before the
process exists, and a crash anywhere leaves something that can be found again.

`now` is seconds on a clock that never jumps; only differences matter. After a restart of the
agent all remembered times are counted from the new start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import msgspec

from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.conditions import ConditionTracker
from llmgw.core.endings import backoff_seconds, explain, how_it_ended
from llmgw.core.memory import EnginePart, Memory, Policy, digest, is_same, key_of, name_of
from llmgw.core.stimuli import Effect, Key, Publish, Start
from llmgw.core.values import Phase
from llmgw.engines.base import ProbeAnswer
from llmgw.engines.registry import ENGINES, engine
from llmgw.hardware.types import Inventory, Readings


class _PartId(TypedDict):
    replica: str
    part: int
    generation: int
    attempt: int


_AT_REST: tuple[Phase, ...] = ("failed", "stopped")
"""Phases of a part that has no process."""
_ALIVE: tuple[Phase, ...] = ("starting", "ready")
"""Phases in which an engine is asked for its health."""


class NodeMachine:
    """The state machine of one agent. Not thread-safe, and needs not be."""

    def __init__(self, memory: Memory, policy: Policy, started: e.NodeStarted) -> None:
        self.memory = memory
        self.policy = policy
        self._started = started
        self._leaving = False
        self._stop_on_leave = False
        self._left = False
        self._announced = False
        self._unreadable: str | None = None
        self._quarantine: dict[int, float] = {}
        self._conditions = ConditionTracker(policy.limits)

    def handle(self, fact: s.Input, now: float) -> list[Effect]:
        """Take one input and return the effects, in the order to carry them out."""
        effects = list(self._take(fact, now))
        effects += self._reconcile(now)
        return effects

    def _take(self, fact: s.Input, now: float) -> Iterator[Effect]:
        match fact:
            case s.AgentStarted():
                yield from self._agent_started(fact, now)
            case s.CommandReceived():
                yield from self._command_received(fact)
            case s.InventoryTaken():
                yield from self._inventory_taken(fact.inventory)
            case s.HardwareUnreadable():
                if fact.reason != self._unreadable:
                    self._unreadable, self._announced = fact.reason, False
                    yield Publish(e.NodeHardwareUnreadable(reason=fact.reason))
                yield from self._measured(None, frozenset(), fact.troubles, now)
            case s.LogReplaced():
                yield from self._log_replaced()
            case s.SampleTaken():
                yield from self._measured(fact.readings, fact.own_pids, fact.troubles, now)
            case s.ShutdownRequested():
                self._leaving = True
                self._stop_on_leave = fact.stop_engines
            case s.ClockTicked():
                yield from self._clock_ticked(now)
            case _:
                part = self._part(fact.start)
                if part is not None:
                    yield from self._engine_fact(fact, fact.start.key, part, now)

    def _part(self, start: Start) -> EnginePart | None:
        """Return the part if `start` is its latest start: older processes say nothing of it."""
        part = self.memory.parts.get(name_of(start.key))
        if part is None or (part.generation, part.attempt) != (start.generation, start.attempt):
            return None
        return part

    # --- coming up -------------------------------------------------------------------------

    def _agent_started(self, fact: s.AgentStarted, now: float) -> Iterator[Effect]:
        yield Publish(self._started)
        memory = self.memory
        if fact.inventory is not None:
            yield from self._inventory_taken(fact.inventory)
        if fact.rebooted:  # nothing of before runs on until the controller says so again
            memory.wanted = None
        found = {name_of(f.start.key): f for f in fact.found}
        for name, part in list(memory.parts.items()):
            yield from self._recover(name, part, found.pop(name, None), now)
        for name, engine_found in found.items():
            yield from self._adopt_unknown(name, engine_found, now)

    def _inventory_taken(self, inventory: Inventory) -> Iterator[Effect]:
        if inventory != self.memory.inventory or not self._announced:
            self._announced, self._unreadable = True, None
            self.memory.inventory = inventory
            yield Publish(e.NodeInventoryTaken(inventory=inventory))

    def _measured(
        self, readings: Readings | None, own_pids: frozenset[int], troubles: s.Troubles, now: float
    ) -> Iterator[Effect]:
        """Tell the conditions if others hold than before."""
        memory = self.memory
        held = self._conditions.update(readings, own_pids, now, memory.inventory, troubles)
        if held or (held is not None and memory.conditioned):
            memory.conditioned = bool(held)
            yield Publish(e.NodeConditionsChanged(conditions=held))

    def _log_replaced(self) -> Iterator[Effect]:
        """The log is not the one that this agent knew: tell the new one what is here."""
        memory = self.memory
        memory.term = memory.revision = memory.command_sequence = 0
        memory.open_term = None
        memory.untold = memory.conditioned = True
        self._conditions.forget_what_was_said()
        yield Publish(self._started)
        if memory.inventory is not None:
            yield Publish(e.NodeInventoryTaken(inventory=memory.inventory))
        for name, part in memory.parts.items():
            if part.pid is not None:
                yield self._adopted(key_of(name), part)

    def _recover(
        self, name: str, part: EnginePart, found: s.EngineFound | None, now: float
    ) -> Iterator[Effect]:
        """Go on with a remembered part: its engine still runs, or it ended meanwhile."""
        key = key_of(name)
        part.started_at = part.next_probe_at = part.retry_at = now
        part.kill_at = now if part.kill_at is not None else None
        part.ready_at = now if part.ready_at is not None else None
        if found is not None and (found.start.generation, found.start.attempt) >= (
            part.generation,
            part.attempt,
        ):
            part.generation, part.attempt = found.start.generation, found.start.attempt
            part.pid, part.port = found.pid, found.port
            if part.phase == "failed":
                part.phase = "starting"
            yield self._adopted(key, part)
        elif part.phase == "stopping":
            yield from self._stopped(key, part)
        elif part.phase in _ALIVE:
            reason = "the engine was not running when the agent came up"
            yield from self._failed(key, part, now, reason)

    def _adopt_unknown(self, name: str, found: s.EngineFound, now: float) -> Iterator[Effect]:
        """Take over an engine that runs under this agent's marker but is not remembered."""
        start = found.start
        part = EnginePart(None, start.generation, found.digest, start.attempt, started_at=now)
        part.pid, part.port = found.pid, found.port
        self.memory.parts[name] = part
        yield self._adopted(start.key, part)

    def _adopted(self, key: Key, part: EnginePart) -> Publish:
        return Publish(e.ReplicaAdopted(**self._id(key, part), pid=part.pid or 0, port=part.port))

    # --- commands --------------------------------------------------------------------------

    def _command_received(self, fact: s.CommandReceived) -> Iterator[Effect]:
        memory, command = self.memory, fact.command
        if fact.sequence <= memory.command_sequence:
            return  # delivered before
        memory.command_sequence = fact.sequence
        numbers = {"revision": command.revision, "term": command.term}
        if command.term < memory.term:
            reason = f"term {command.term} is over; this agent has seen {memory.term}"
            yield Publish(e.CommandRefused(**numbers, reason=reason))
            return
        newer = fact.superseded_by
        if newer is not None or command.revision < memory.revision:
            yield Publish(e.CommandSuperseded(**numbers, by=newer or memory.revision))
            return
        yield from self._supersede(command)
        memory.term, memory.revision = command.term, command.revision
        memory.open_term = command.term
        memory.wanted = list(command.assignments)
        if memory.untold:
            memory.untold = False
            yield from self._tell_again(command)

    def _tell_again(self, command: SetAssignments) -> Iterator[Effect]:
        """Tell a log that was replaced what of the command runs already."""
        for assignment in command.assignments:
            key = Key(assignment.replica, assignment.part)
            part = self.memory.parts.get(name_of(key))
            if part is not None and part.pid is not None and is_same(part, assignment):
                yield self._adopted(key, part)
                if part.phase == "ready" and part.ready_at is not None:
                    yield self._ready(key, part, part.ready_at - part.started_at)

    def _supersede(self, command: SetAssignments) -> Iterator[Effect]:
        memory = self.memory
        if memory.open_term is not None:
            yield Publish(
                e.CommandSuperseded(
                    revision=memory.revision, term=memory.open_term, by=command.revision
                )
            )

    # --- what engines do -------------------------------------------------------------------

    def _engine_fact(
        self, fact: s.Input, key: Key, part: EnginePart, now: float
    ) -> Iterator[Effect]:
        match fact:
            case s.EngineSpawned():
                part.pid = fact.pid
                if part.phase == "stopping":
                    yield s.StopEngine(self._start(key, part), fact.pid, "TERM")
            case s.SpawnFailed():
                yield from self._spawn_failed(fact, key, part, now)
            case s.EngineAnswered():
                yield from self._answered(fact, key, part, now)
            case s.EngineExited():
                yield from self._exited(fact, key, part, now)
            case _:
                raise AssertionError(f"an input without a handler: {type(fact).__name__}")

    def _spawn_failed(
        self, fact: s.SpawnFailed, key: Key, part: EnginePart, now: float
    ) -> Iterator[Effect]:
        if part.phase == "stopping":
            yield from self._stopped(key, part)
            return
        if fact.port_taken:
            self._quarantine[part.port] = now + self.policy.port_quarantine_seconds
            part.port_failures += 1
        at_once = fact.port_taken and part.port_failures < self.policy.port_tries
        yield from self._failed(key, part, now, fact.reason, at_once=at_once)

    def _answered(
        self, fact: s.EngineAnswered, key: Key, part: EnginePart, now: float
    ) -> Iterator[Effect]:
        if part.assignment is None or part.phase not in _ALIVE or part.fail_reason is not None:
            return
        chosen = engine(part.assignment.entry.engine)
        was_ready = part.phase == "ready"
        verdict = chosen.judge(ProbeAnswer(fact.status), was_ready)
        if verdict == "ready":
            part.misses = 0
            if not was_ready:
                yield from self._became_ready(key, part, now)
        elif was_ready:
            part.misses += 1
            if part.misses >= self.policy.liveness_failures:
                reason = f"its health endpoint failed {part.misses} times in a row"
                yield from self._kill(key, part, now, reason)
        elif verdict == "broken":
            yield from self._kill(key, part, now, f"its health endpoint answered {fact.status}")

    def _became_ready(self, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
        part.phase = "ready"
        part.ready_at = now
        part.port_failures = 0
        yield self._ready(key, part, now - part.started_at)

    def _ready(self, key: Key, part: EnginePart, seconds: float) -> Publish:
        return Publish(
            e.ReplicaBecameReady(
                **self._id(key, part),
                address=self.policy.address,
                port=part.port,
                pid=part.pid or 0,
                seconds=round(seconds, 3),
            )
        )

    def _exited(
        self, fact: s.EngineExited, key: Key, part: EnginePart, now: float
    ) -> Iterator[Effect]:
        self._quarantine[part.port] = now + self.policy.port_quarantine_seconds
        if part.phase == "stopping":
            yield from self._stopped(key, part)
            return
        reason = part.fail_reason or how_it_ended(fact)
        yield from self._failed(key, part, now, reason, fact)

    # --- time ------------------------------------------------------------------------------

    def _clock_ticked(self, now: float) -> Iterator[Effect]:
        self._quarantine = {p: t for p, t in self._quarantine.items() if t > now}
        for name, part in self.memory.parts.items():
            key = key_of(name)
            if part.kill_at is not None and now >= part.kill_at and part.pid is not None:
                part.kill_at = now + 1.0
                yield s.StopEngine(self._start(key, part), part.pid, "KILL")
            if part.assignment is None or part.pid is None or part.phase not in _ALIVE:
                continue
            entry = part.assignment.entry
            late = part.phase == "starting" and now - part.started_at > entry.start_seconds
            if late and part.fail_reason is None:
                yield from self._kill(key, part, now, f"not ready after {entry.start_seconds:g} s")
            elif now >= part.next_probe_at:
                ready = part.phase == "ready"
                pause = self.policy.liveness_seconds if ready else self.policy.probe_seconds
                part.next_probe_at = now + pause
                yield s.ProbeEngine(self._start(key, part), part.assignment, part.port)

    # --- from what is to what should be -----------------------------------------------------

    def _reconcile(self, now: float) -> Iterator[Effect]:
        if self._leaving:
            yield from self._leave(now)
            return
        memory = self.memory
        if memory.wanted is None:
            return
        wanted = {name_of(Key(a.replica, a.part)): a for a in memory.wanted}
        for name, part in list(memory.parts.items()):
            assignment = wanted.get(name)
            if assignment is None or not is_same(part, assignment):
                yield from self._end(key_of(name), part, "not wanted any more", now)
            elif part.assignment is None:
                part.assignment = assignment
                part.started_at = part.next_probe_at = now
            elif self._may_retry(name, part, now):
                part.attempt += 1
                yield from self._begin(key_of(name), part, now)
        for name, assignment in wanted.items():
            if name not in memory.parts:
                part = EnginePart(assignment, assignment.generation, digest(assignment))
                if self._is_free(name, part):
                    memory.parts[name] = part
                    yield from self._begin(key_of(name), part, now)
        yield from self._complete(wanted)

    def _may_retry(self, name: str, part: EnginePart, now: float) -> bool:
        waiting = part.phase == "stopped" or (part.phase == "failed" and now >= part.retry_at)
        return waiting and self._is_free(name, part)

    def _complete(self, wanted: dict[str, Assignment]) -> Iterator[Effect]:
        """Answer the open command once all it lists is started and all else is gone."""
        memory = self.memory
        if memory.open_term is None or wanted.keys() != memory.parts.keys():
            return
        if all(is_same(memory.parts[n], a) for n, a in wanted.items()):
            term, memory.open_term = memory.open_term, None
            yield Publish(e.CommandCompleted(revision=memory.revision, term=term))

    def _is_free(self, name: str, part: EnginePart) -> bool:
        """Return whether no other part still runs on a device of this one, or all may share it."""
        if part.assignment is None:
            return False
        shares = part.assignment.entry.share
        if any(
            p.assignment is None and p.phase not in _AT_REST for p in self.memory.parts.values()
        ):
            return False  # nobody knows what that engine holds; it is wanted or stopped soon
        uuids = {g.uuid for g in part.assignment.grants if g.device_class != "cpu"}
        return not any(
            uuids & {g.uuid for g in other.assignment.grants}
            for key, other in self.memory.parts.items()
            if key != name
            and other.assignment is not None
            and other.phase not in _AT_REST
            and not (shares and other.assignment.entry.share)
        )

    def _begin(self, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
        assignment = part.assignment
        if assignment is None:
            return
        part.phase, part.pid, part.fail_reason, part.kill_at = "starting", None, None, None
        part.port = 0
        part.started_at, part.ready_at, part.misses = now, None, 0
        part.next_probe_at = now
        cannot = self._cannot_start(assignment)
        if cannot is not None:
            yield from self._failed(key, part, now, cannot)
            return
        assignment = part.assignment = self._as_numbered_here(assignment)
        port = self._free_port(now)
        if port is None:
            policy = self.policy
            reason = (
                f"every port from {policy.first_port} to {policy.last_port} is held by an engine "
                "of this node: widen LLMGW_PORT_RANGE"
            )
            yield from self._failed(key, part, now, reason)
            return
        part.port = port
        yield Publish(
            e.ReplicaStarting(**self._id(key, part), port=part.port, devices=assignment.devices)
        )
        yield s.SpawnEngine(self._start(key, part), assignment, part.port)

    def _cannot_start(self, assignment: Assignment) -> str | None:
        name = assignment.entry.engine
        if name not in ENGINES:
            return f"this agent does not know the engine {name}: upgrade llmgw on this node"
        inventory = self.memory.inventory
        there = {d.uuid for d in inventory.devices} if inventory is not None else set()
        gone = [g.uuid for g in assignment.grants if g.uuid not in there]
        if gone or not assignment.grants:
            return f"this machine has no device {', '.join(gone) or 'for it'} any more"
        return None

    def _as_numbered_here(self, assignment: Assignment) -> Assignment:
        """Number the devices as this machine does now: a reboot may have changed that."""
        inventory = self.memory.inventory
        here = {d.uuid: d for d in inventory.devices} if inventory is not None else {}
        return msgspec.structs.replace(
            assignment,
            devices=tuple(here[g.uuid].id for g in assignment.grants),
            grants=tuple(
                msgspec.structs.replace(g, card_index=here[g.uuid].card) for g in assignment.grants
            ),
        )

    def _free_port(self, now: float) -> int | None:
        taken = {p.port for p in self.memory.parts.values() if p.phase not in _AT_REST}
        ports = range(self.policy.first_port, self.policy.last_port + 1)
        free = [port for port in ports if port not in taken]
        if not free:
            return None
        rested = (port for port in free if self._quarantine.get(port, now) <= now)
        return next(rested, free[0])  # all in quarantine: the bind probe has the last word

    # --- ends ------------------------------------------------------------------------------

    def _end(self, key: Key, part: EnginePart, reason: str, now: float) -> Iterator[Effect]:
        """Stop a part: at once when it has no process, else by TERM now and KILL later."""
        if part.phase == "stopping":
            return
        if part.phase in _AT_REST:
            part.stop_reason = reason
            yield from self._stopped(key, part)
            return
        part.phase, part.stop_reason = "stopping", reason
        seconds = part.assignment.entry.stop_seconds if part.assignment else 15.0
        part.kill_at = now + seconds
        if part.pid is not None:  # else it is just being spawned, and is stopped when it is there
            yield s.StopEngine(self._start(key, part), part.pid, "TERM")

    def _kill(self, key: Key, part: EnginePart, now: float, reason: str) -> Iterator[Effect]:
        """End a broken engine; its exit will be reported as a failure with this reason."""
        if part.pid is not None and part.fail_reason is None:
            part.fail_reason = reason
            part.kill_at = now + 1.0
            yield s.StopEngine(self._start(key, part), part.pid, "KILL")

    def _stopped(self, key: Key, part: EnginePart) -> Iterator[Effect]:
        if self._leaving:  # it is still wanted: the next agent starts the next attempt
            part.phase, part.pid, part.kill_at = "stopped", None, None
        else:
            del self.memory.parts[name_of(key)]
        yield Publish(
            e.ReplicaStopped(
                **self._id(key, part), reason=part.stop_reason, revision=self.memory.revision
            )
        )

    def _failed(
        self,
        key: Key,
        part: EnginePart,
        now: float,
        reason: str,
        ended: s.EngineExited | None = None,
        at_once: bool = False,
    ) -> Iterator[Effect]:
        served = now - part.ready_at if part.ready_at is not None else 0.0
        part.failures = 1 if served >= self.policy.backoff_reset_seconds else part.failures + 1
        pause = 0.0 if at_once else backoff_seconds(self.policy, key, part)
        part.phase, part.pid, part.ready_at = "failed", None, None
        part.kill_at, part.retry_at = None, now + pause
        known = explain(part, ended)
        yield Publish(
            e.ReplicaFailed(
                **self._id(key, part),
                reason=reason,
                exit_code=ended.exit_code if ended else None,
                signal=ended.signal if ended else None,
                meaning=known.meaning if known else None,
                advice=known.advice if known else None,
                output=ended.output if ended else "",
                retry_seconds=round(pause, 3),
            )
        )

    def _leave(self, now: float) -> Iterator[Effect]:
        if self._left:
            return
        if self._stop_on_leave:
            for name, part in self.memory.parts.items():
                if part.phase != "stopped":
                    yield from self._end(key_of(name), part, "the agent is shutting down", now)
            if any(part.phase != "stopped" for part in self.memory.parts.values()):
                return
        self._left = True
        yield Publish(e.NodeStopped(engines="stopped" if self._stop_on_leave else "left running"))
        yield s.Leave()

    @staticmethod
    def _start(key: Key, part: EnginePart) -> Start:
        return Start(key, part.generation, part.attempt)

    @staticmethod
    def _id(key: Key, part: EnginePart) -> _PartId:
        return _PartId(
            replica=key.replica, part=key.part, generation=part.generation, attempt=part.attempt
        )
