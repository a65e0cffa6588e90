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

from llmgw.core import (
    blaming,
    condemning,
    grouping,
    liveness,
    reporting,
    starting,
    stopping,
    weighing,
)
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.blaming import Note
from llmgw.core.commands import Assignment, SetAssignments
from llmgw.core.conditions import ConditionTracker
from llmgw.core.endings import backoff_seconds, explain, how_it_ended
from llmgw.core.memory import (
    EnginePart,
    Memory,
    Policy,
    digest,
    is_same,
    key_of,
    name_of,
)
from llmgw.core.starting import AT_REST
from llmgw.core.stimuli import Effect, Key, Publish, Start
from llmgw.core.values import Phase
from llmgw.engines.base import ProbeAnswer
from llmgw.engines.registry import engine
from llmgw.hardware.types import DeviceReading, Inventory, Readings

_ALIVE: tuple[Phase, ...] = ("starting", "ready")
"""Phases in which an engine is asked for its health."""
_SIGHTINGS = 2
"""So often in a row an engine must be seen where it should not be: one look may be mistaken."""
_STALE_SECONDS = 60.0
"""How old a sample may be for the next to be waited for."""


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
        self._name_holder: str | None = None
        self._seen: dict[str, DeviceReading] = {}
        self._seen_at = -_STALE_SECONDS
        self._unused: dict[str, str] = {}
        self._occupied: frozenset[str] = frozenset()
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
            case s.CommandUnreadable():
                yield from self._command_unreadable(fact)
            case s.InventoryTaken():
                yield from self._inventory_taken(fact.inventory)
            case s.HardwareUnreadable():
                if fact.reason != self._unreadable:
                    self._unreadable, self._announced = fact.reason, False
                    yield Publish(e.NodeHardwareUnreadable(reason=fact.reason))
                self._seen.clear()
                condemning.note_unreadable(self.memory, fact)
                yield from self._measured(None, frozenset(), fact.troubles, now)
            case s.NvmlReleased():
                condemning.forget(self.memory)
            case s.LogReplaced():
                yield from self._log_replaced()
            case s.SampleTaken():
                yield from self._sampled(fact, now)
            case s.NameTaken():
                self._name_holder = fact.holder
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
        condemning.begin(memory, fact)
        if fact.sample is not None:  # first, or what is occupied would be placed on meanwhile
            taken = fact.sample
            own = frozenset(taken.own_pids)
            self._see(taken, now)
            yield from self._measured(taken.readings, own, taken.troubles, now)
        if fact.inventory is not None:
            yield from self._inventory_taken(fact.inventory)
        for failing in memory.failing.values():
            failing.since = now
        if fact.rebooted:  # nothing of before runs on until the controller says so again
            memory.wanted = None
            memory.failing.clear()
            memory.leaks.clear()
        found = {name_of(f.start.key): f for f in fact.found}
        ended = {f.start: f for f in fact.ended}
        for name, part in list(memory.parts.items()):
            if not self._goes_on(part, found.get(name), now):
                start = reporting.start_of(key_of(name), part)
                why = reporting.why_gone(part, fact.rebooted)
                yield from self._gone(start.key, part, ended.get(start), why, now)
                continue
            del found[name]
            yield reporting.adopted(key_of(name), part)
        for name, engine_found in found.items():
            yield from self._adopt_unknown(name, engine_found, now)

    def _inventory_taken(self, inventory: Inventory) -> Iterator[Effect]:
        if inventory != self.memory.inventory or not self._announced:
            self._announced, self._unreadable = True, None
            condemning.note_inventory(self.memory, inventory)
            self.memory.inventory = inventory
            yield Publish(e.NodeInventoryTaken(inventory=inventory))

    def _measured(
        self, readings: Readings | None, own_pids: frozenset[int], troubles: s.Troubles, now: float
    ) -> Iterator[Effect]:
        """Tell the conditions if others hold than before."""
        memory = self.memory
        readings = condemning.with_errors(memory, readings)
        unused = (Note(uuid, "unused", said) for uuid, said in self._unused.items())
        self._conditions.note([*blaming.notes(memory, self.policy, self._seen), *unused])
        held = self._conditions.update(readings, own_pids, now, memory.inventory, troubles)
        if held is not None:
            self._occupied = weighing.occupied(held, memory.inventory)
        if held or (held is not None and memory.conditioned):
            memory.conditioned = bool(held)
            yield Publish(e.NodeConditionsChanged(conditions=held))

    def _log_replaced(self) -> Iterator[Effect]:
        """The log is not the one that this agent knew: tell the new one what is here."""
        memory = self.memory
        memory.term = memory.revision = 0
        memory.command_sequence = memory.unread_sequence = 0
        memory.open_term = None
        memory.untold = memory.conditioned = True
        self._conditions.forget_what_was_said()
        yield Publish(self._started)
        if memory.inventory is not None:
            yield Publish(e.NodeInventoryTaken(inventory=memory.inventory))
        for name, part in memory.parts.items():
            if part.pid is not None:
                yield reporting.adopted(key_of(name), part)

    def _goes_on(self, part: EnginePart, found: s.EngineFound | None, now: float) -> bool:
        """Go on with a remembered part, and return whether its engine, or a later one, runs."""
        starting.count_from(part, now)
        if found is None:
            return False
        start = found.start
        if (start.generation, start.attempt) < (part.generation, part.attempt):
            return False
        part.generation, part.attempt = start.generation, start.attempt
        part.pid, part.port, part.gone_at = found.pid, found.port, None
        if part.phase == "failed" and not part.stuck:
            part.phase = "starting"
        return True

    def _gone(
        self, key: Key, part: EnginePart, ended: s.EngineExited | None, reason: str, now: float
    ) -> Iterator[Effect]:
        """Say of a remembered part that its engine, if it had one, ended before this agent came."""
        part.pid, part.stuck = None, False
        if part.gone_at is None and part.phase not in AT_REST:
            yield from self._wait_for_devices(part, ended.left if ended else (), now)
        if part.phase == "stopping":
            if part.gone_at is None:
                yield from self._stopped(key, part)
        elif part.phase in _ALIVE:
            yield from self._failed(key, part, now, reason, ended)

    def _adopt_unknown(self, name: str, found: s.EngineFound, now: float) -> Iterator[Effect]:
        """Take over an engine that runs under this agent's marker but is not remembered."""
        start = found.start
        part = EnginePart(None, start.generation, found.digest, start.attempt, started_at=now)
        part.pid, part.port = found.pid, found.port
        self.memory.parts[name] = part
        yield reporting.adopted(start.key, part)

    # --- commands --------------------------------------------------------------------------

    def _command_unreadable(self, fact: s.CommandUnreadable) -> Iterator[Effect]:
        """Refuse it, once; what was told before it goes on holding."""
        if fact.sequence > max(self.memory.command_sequence, self.memory.unread_sequence):
            self.memory.unread_sequence = fact.sequence
            numbers = {"revision": fact.revision, "term": fact.term}
            yield Publish(e.CommandRefused(**numbers, reason=fact.reason))

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
            yield from reporting.told_again(memory, command, self.policy.address)

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
                    yield s.StopEngine(reporting.start_of(key, part), fact.pid, "TERM")
            case s.SpawnFailed():
                yield from self._spawn_failed(fact, key, part, now)
            case s.EngineAnswered():
                yield from self._answered(fact, key, part, now)
            case s.TokenAnswered():
                liveness.token_answered(part, fact.status)
            case s.EngineCounted():
                yield from stopping.counted(self.policy, key, part, fact.requests)
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
        if verdict == "ready" and fact.stranger is not None:
            reason = f"{fact.stranger} listens on port {part.port}, and not the engine"
            yield from stopping.kill(key, part, now, reason)
        elif verdict == "ready":
            part.misses, part.missing_since = 0, None
            if not was_ready:
                yield from self._is_well(key, part, now)
            else:
                yield from liveness.looked(self.policy, key, part, fact.hangs, now)
        elif was_ready:
            yield from liveness.missed(self.policy, key, part, now)
        else:
            part.answered_at = None
            if verdict == "broken":
                reason = f"its health endpoint answered {fact.status}"
                yield from stopping.kill(key, part, now, reason)

    def _is_well(self, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
        """Its health is good: it is ready once a sample shows what it takes, or soon without."""
        if not self._measures(part, now):
            yield from self._became_ready(key, part, now, ())
        elif part.answered_at is None:
            part.answered_at = now
            yield s.MeasureDevices()

    def _measures(self, part: EnginePart, now: float) -> bool:
        """Return whether samples say anything of the engine: not of a machine that is pretended."""
        seen = any(uuid in self._seen for uuid in weighing.accelerators(part))
        return seen and now - self._seen_at < _STALE_SECONDS and not self._started.simulated

    def _became_ready(
        self, key: Key, part: EnginePart, now: float, taken_bytes: tuple[int, ...]
    ) -> Iterator[Effect]:
        answered_at = now if part.answered_at is None else part.answered_at
        part.phase, part.ready_at, part.answered_at = "ready", now, None
        part.port_failures = 0
        seconds = answered_at - part.started_at
        yield reporting.ready(key, part, self.policy.address, seconds, taken_bytes)

    def _exited(
        self, fact: s.EngineExited, key: Key, part: EnginePart, now: float
    ) -> Iterator[Effect]:
        self._quarantine[part.port] = now + self.policy.port_quarantine_seconds
        part.kill_at = part.killed_at = part.drain_until = part.pid = None
        part.stuck = False
        yield from self._wait_for_devices(part, fact.left, now)
        if part.phase in _ALIVE:
            reason = part.fail_reason or how_it_ended(fact)
            yield from self._failed(key, part, now, reason, fact)
        elif part.phase == "stopping" and part.gone_at is None:
            yield from self._stopped(key, part)

    def _wait_for_devices(
        self, part: EnginePart, left: tuple[int, ...], now: float
    ) -> Iterator[Effect]:
        """Hold the devices of an engine that ended until they are seen to be free of it."""
        part.pids = tuple(sorted({*part.pids, *left}))
        if left or self._measures(part, now):
            part.gone_at = now
            yield s.MeasureDevices()

    def _get_stuck(self, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
        """Say that SIGKILL does not end a process; it has its devices until it is gone."""
        part.stuck = True
        if part.phase in _ALIVE:
            pid = part.pid
            reason = f"{part.fail_reason}; its process {pid} cannot be killed"
            yield from self._failed(key, part, now, reason)
            part.pid, part.kill_at = pid, now

    # --- time ------------------------------------------------------------------------------

    def _clock_ticked(self, now: float) -> Iterator[Effect]:
        self._quarantine = {p: t for p, t in self._quarantine.items() if t > now}
        blaming.forget(self.memory, self.policy, now)
        for name, part in list(self.memory.parts.items()):
            key = key_of(name)
            if part.gone_at is not None and now - part.gone_at >= self.policy.freed_seconds:
                if self._seen_at >= part.gone_at:
                    blaming.note_leaks(self.memory, self.policy, self._seen, name, part)
                yield from self._given_back(key, part)
            elif part.pid is not None:
                yield from self._attend(key, part, now)

    def _attend(self, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
        """Do what is due for a process: go on with its end, or ask for its health."""
        if not part.stuck and stopping.is_stuck(self.policy, part, now):
            yield from self._get_stuck(key, part, now)
        yield from stopping.go_on(self.policy, key, part, now)
        if part.assignment is None or part.phase not in _ALIVE:
            return
        if grouping.follows(key):
            if part.phase == "starting" and part.fail_reason is None:
                yield from self._became_ready(key, part, now, ())
            return
        if part.phase == "starting" and part.fail_reason is None:
            entry = part.assignment.entry
            if part.answered_at is not None:
                if now - part.answered_at >= self.policy.weigh_seconds:
                    yield from self._became_ready(key, part, now, ())
            elif now - part.started_at > entry.start_seconds:
                reason = f"not ready after {entry.start_seconds:g} s"
                yield from stopping.kill(key, part, now, reason)
                return
        if now >= part.next_probe_at:
            part.next_probe_at = now + liveness.pause_seconds(self.policy, part)
            look = liveness.is_look_due(self.policy, part, now)
            yield s.ProbeEngine(reporting.start_of(key, part), part.assignment, part.port, look)

    # --- what samples say ------------------------------------------------------------------

    def _sampled(self, fact: s.SampleTaken, now: float) -> Iterator[Effect]:
        self._see(fact, now)
        condemning.note_errors(self.memory, fact.errors, self._seen, fact.own_pids)
        self._unused.clear()
        for name, part in list(self.memory.parts.items()):
            if self._measures(part, now):
                yield from self._look(key_of(name), part, fact, now)
        blaming.look_at_leaks(self.memory, self.policy, self._seen)
        yield from self._measured(fact.readings, frozenset(fact.own_pids), fact.troubles, now)

    def _see(self, fact: s.SampleTaken, now: float) -> None:
        self._seen = {reading.uuid: reading for reading in fact.readings.devices}
        self._seen_at = now - fact.age_seconds

    def _look(
        self, key: Key, part: EnginePart, fact: s.SampleTaken, now: float
    ) -> Iterator[Effect]:
        """Look at one part's devices: is it where it belongs, what does it take, is it gone?"""
        taken_at, slack_bytes = self._seen_at, self.policy.limits.vacant_bytes
        if part.gone_at is not None:
            held = [*weighing.leaks(self._seen, name_of(key), part, slack_bytes)]
            if taken_at >= part.gone_at and not held:
                yield from self._given_back(key, part)
            return
        if part.pid is None or part.phase not in _ALIVE:
            return
        start = reporting.start_of(key, part)
        own = fact.own_pids.items() if fact.same_ids else ()
        part.pids = tuple(sorted(pid for pid, of in own if of == start))
        elsewhere = weighing.astray(self._seen, part, part.pids, self.memory.inventory)
        part.sightings = part.sightings + 1 if elsewhere else 0
        if elsewhere and part.sightings >= _SIGHTINGS:
            yield from stopping.kill(key, part, now, elsewhere)
        elif part.answered_at is not None and taken_at >= part.answered_at:
            taken = weighing.taken_bytes(self._seen, part, part.pids)
            yield from self._became_ready(key, part, now, taken)
        if fact.same_ids:
            self._unused |= blaming.unused(self.policy, self._seen, key, part, now)

    def _given_back(self, key: Key, part: EnginePart) -> Iterator[Effect]:
        """The devices are free of an engine that ended, or it was waited for long enough."""
        part.gone_at = None
        if part.phase == "stopping":
            yield from self._stopped(key, part)

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
                reason = stopping.reason_to_end(part, assignment)
                yield from self._end(key_of(name), part, reason, now)
            elif part.assignment is None:
                part.assignment = assignment
                part.started_at = part.next_probe_at = now
            elif self._name_holder is None and self._may_retry(name, part, now):
                part.attempt += 1
                yield from self._begin(key_of(name), part, now)
        for name, assignment in wanted.items():
            if name not in memory.parts and self._name_holder is None:
                part = EnginePart(assignment, assignment.generation, digest(assignment))
                if assignment.failures:  # its group ended before: not at once again
                    memory.parts[name] = grouping.waiting(self.policy, key_of(name), part, now)
                elif starting.is_free(memory, name, part):
                    memory.parts[name] = part
                    yield from self._begin(key_of(name), part, now)
        yield from self._complete(wanted)

    def _may_retry(self, name: str, part: EnginePart, now: float) -> bool:
        if part.gone_at is not None or part.pid is not None or grouping.is_spent(part):
            return False
        waiting = part.phase == "stopped" or (part.phase == "failed" and now >= part.retry_at)
        if not waiting or starting.is_blind(self.memory, self._occupied, part):
            return False
        return starting.is_free(self.memory, name, part)

    def _complete(self, wanted: dict[str, Assignment]) -> Iterator[Effect]:
        """Answer the open command once all it lists is started and all else is gone."""
        memory = self.memory
        if memory.open_term is None or wanted.keys() != memory.parts.keys():
            return
        parts = memory.parts
        if all(is_same(parts[n], a) and parts[n].phase != "stopping" for n, a in wanted.items()):
            term, memory.open_term = memory.open_term, None
            yield Publish(e.CommandCompleted(revision=memory.revision, term=term))

    def _begin(self, key: Key, part: EnginePart, now: float) -> Iterator[Effect]:
        assignment = part.assignment
        if assignment is None:
            return
        uuids = set(weighing.accelerators(part)) - self.memory.leaks.keys()
        empty_bytes = weighing.empty_bytes(self._seen, uuids, self.memory.inventory)
        starting.begin_anew(part, empty_bytes, now)
        cannot = part.fail_reason = starting.cannot_start(self.memory, assignment)
        if cannot is not None:
            yield from self._failed(key, part, now, cannot)
            return
        assignment = part.assignment = starting.as_numbered_here(self.memory, assignment)
        port = starting.free_port(self.memory, self.policy, self._quarantine, now)
        if port is None:
            yield from self._failed(key, part, now, starting.no_port(self.policy))
            return
        part.port = port
        if assignment.parts > 1 and key.part == 0:
            meeting = starting.free_port(self.memory, self.policy, self._quarantine, now)
            assignment = part.assignment = grouping.led(part, assignment, self.policy, meeting)
        yield reporting.starting(key, part, assignment.devices)
        yield s.SpawnEngine(reporting.start_of(key, part), assignment, part.port)

    # --- ends ------------------------------------------------------------------------------

    def _end(self, key: Key, part: EnginePart, reason: str, now: float) -> Iterator[Effect]:
        """Stop a part: at once when it has no process, else by TERM now and KILL later."""
        if part.phase == "stopping":
            return
        part.stop_reason = reason
        if part.phase not in AT_REST:
            yield from stopping.stop(self.policy, key, part, now)
        elif part.gone_at is None and part.pid is None:
            yield from self._stopped(key, part)
        else:  # once it is gone, and its devices are free of it
            part.phase = "stopping"

    def _stopped(self, key: Key, part: EnginePart) -> Iterator[Effect]:
        wanted = starting.wanted_instead(self.memory, key, part)
        if self._leaving or wanted is not None:  # its next start is not to be taken for this one
            part.phase, part.pid, part.kill_at = "stopped", None, None
        else:
            del self.memory.parts[name_of(key)]
        if wanted is not None and not is_same(part, wanted):
            part.assignment, part.digest, part.failures = wanted, digest(wanted), 0
        yield reporting.stopped(key, part, self.memory.revision)

    def _failed(
        self,
        key: Key,
        part: EnginePart,
        now: float,
        reason: str,
        ended: s.EngineExited | None = None,
        at_once: bool = False,
    ) -> Iterator[Effect]:
        if part.meeting_port:  # whoever has it may have been the reason
            self._quarantine[part.meeting_port] = now + self.policy.port_quarantine_seconds
        served = now - part.ready_at if part.ready_at is not None else 0.0
        part.failures = 1 if served >= self.policy.backoff_reset_seconds else part.failures + 1
        known = explain(part, ended)
        part.starved = known is not None and known.starved and self._measures(part, now)
        pause = 0.0 if at_once else backoff_seconds(self.policy, key, part)
        if part.starved:
            pause = max(pause, self.policy.freed_seconds)
        part.phase, part.pid, part.ready_at = "failed", None, None
        part.kill_at = part.killed_at = None
        part.retry_at = now + pause
        if served >= self.policy.backoff_reset_seconds:
            blaming.forgive(self.memory, part)
        blaming.blame(self.memory, self.policy, key, part, reason, known, now)
        yield reporting.failed(key, part, reason, pause, ended, known)

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
