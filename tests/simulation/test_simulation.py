"""The whole cluster under faults, a few seeds of it; `make simulate` runs thousands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count

import msgspec
import pytest

from llmgw.catalog.entries import Entry
from llmgw.core import decide, fold, starting
from llmgw.core import events as e
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster, Part
from llmgw.core.fold import apply
from llmgw.core.memory import Memory, Policy
from llmgw.core.node import NodeMachine
from llmgw.core.placement import Placed
from llmgw.core.records import Record
from llmgw.core.watch import Watch
from llmgw.testing import simulated_log, simulating
from llmgw.testing.chance import FAULTS
from llmgw.testing.simulating import Plan, main, plan_of, run, shortest, simulate
from llmgw.testing.simulator import MODES, Mode, Outcome, Simulation

SEEDS = 16


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(simulate(1, SEEDS))


def test_every_promise_holds_under_every_fault(outcomes: list[Outcome]) -> None:
    broken = {
        Plan(outcome.seed, outcome.mode).arguments(): outcome.violation
        for outcome in outcomes
        if outcome.violation
    }
    assert broken == {}, "run again: python -m llmgw.testing.simulator and these arguments"


def test_both_ways_to_end_were_tried(outcomes: list[Outcome]) -> None:
    assert Counter(outcome.mode for outcome in outcomes) == dict.fromkeys(MODES, SEEDS // 2)


def test_faults_of_every_kind_did_happen(outcomes: list[Outcome]) -> None:
    injected = sum((outcome.injected for outcome in outcomes), Counter[str]())
    assert injected.keys() <= FAULTS.keys()
    assert {FAULTS[name][0] for name in injected} == {kind for kind, _ in FAULTS.values()}


def test_many_seeds_that_never_met_a_fault_are_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulating, "SEEDS_FOR_ALL", 1)
    assert main(["--seeds", "1", "--seed", "1"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" 0 violations")
    assert err.startswith("never injected: ")


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_history(mode: Mode) -> None:
    def history(seed: int) -> list[simulated_log.Stored]:
        simulation = Simulation(seed, mode)
        simulation.run()
        return simulation.log.messages

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_the_fold_of_a_simulated_log_is_the_state_of_the_leader() -> None:
    simulation = Simulation(3)
    assert simulation.run().violation is None
    state = Cluster()
    for index in range(len(simulation.log.messages)):
        apply(state, simulation.log.record(index))
    assert state in [controller.state for controller in simulation.controllers]


# --- records that have nothing to do with each other ---------------------------------------------


def records_of(simulation: Simulation) -> list[Record]:
    return [simulation.log.record(index) for index in range(len(simulation.log.messages))]


def exchanged(records: list[Record]) -> Iterator[Record]:
    """Yield a log with neighbours exchanged wherever they are of different nodes.

    Not where either speaks of a group: its parts are on several nodes.
    """
    assigned = [x.body for x in records if isinstance(x.body, e.ReplicaAssigned)]
    groups = {body.replica for body in assigned if len(body.parts) > 1}
    waiting = records[::-1]
    while waiting:
        one = waiting.pop()
        other = waiting[-1] if waiting else one
        independent = one.origin == other.origin == "node" and one.node != other.node
        if independent and not {getattr(x.body, "replica", "") for x in (one, other)} & groups:
            waiting.pop()
            yield msgspec.structs.replace(other, sequence=one.sequence, time_ns=one.time_ns)
            one = msgspec.structs.replace(one, sequence=other.sequence, time_ns=other.time_ns)
        yield one


def told_without_times(state: Cluster) -> object:
    """Return what a state says, but for when what was said."""
    incidents = sorted((x.kind, x.detail) for x in state.incidents)
    return [_without_times(msgspec.to_builtins(state)), incidents]


def _without_times(told: object) -> object:
    if isinstance(told, list):
        return [_without_times(one) for one in told]
    if not isinstance(told, dict):
        return told
    times = ("since_ns", "heard_ns", "losses", "incidents")
    return {key: _without_times(value) for key, value in told.items() if key not in times}


@pytest.mark.parametrize("seed", range(1, 5))
def test_in_which_order_nodes_speak_makes_no_difference(seed: int) -> None:
    simulation = Simulation(seed)
    assert simulation.run().violation is None
    records = records_of(simulation)
    others = list(exchanged(records))
    assert sum(a != b for a, b in zip(records, others, strict=True)) > 10
    states = Cluster(), Cluster()
    for state, log in zip(states, (records, others), strict=True):
        for record in log:
            apply(state, record)
    assert told_without_times(states[1]) == told_without_times(states[0])


# --- what it is worth: bugs that are planted are found --------------------------------------------


Taken = Callable[[NodeMachine, s.Input], s.Input]
Given = Callable[[s.Effect], list[s.Effect]]


def misled(
    monkeypatch: pytest.MonkeyPatch,
    taken: Taken = lambda machine, fact: fact,
    given: Given = lambda effect: [effect],
) -> None:
    """Change what the brain of every agent takes in, or what comes of it."""
    handle = NodeMachine.handle

    def handles(self: NodeMachine, fact: s.Input, now: float) -> list[s.Effect]:
        effects = handle(self, taken(self, fact), now)
        return [other for effect in effects for other in given(effect)]

    monkeypatch.setattr(NodeMachine, "handle", handles)


def is_told(effect: s.Effect, kind: type[e.Event]) -> bool:
    return isinstance(effect, s.Publish) and isinstance(effect.event, kind)


def forget_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that comes back does not look for what runs."""

    def blind(machine: NodeMachine, fact: s.Input) -> s.Input:
        if isinstance(fact, s.AgentStarted):
            return msgspec.structs.replace(fact, found=())
        return fact

    misled(monkeypatch, blind)


def obey_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent follows a command of a controller that does not lead any more."""

    def obedient(machine: NodeMachine, fact: s.Input) -> s.Input:
        if isinstance(fact, s.CommandReceived):
            machine.memory.term = 0
        return fact

    misled(monkeypatch, obedient)


def end_commands_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent says twice that a command is done."""
    misled(monkeypatch, given=lambda x: [x] * (1 + is_told(x, e.CommandCompleted)))


def start_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent does not write down what it is about to start."""
    misled(monkeypatch, given=lambda x: [] if is_told(x, e.ReplicaStarting) else [x])


def end_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent does not say that an engine that it stopped is gone."""
    misled(monkeypatch, given=lambda x: [] if is_told(x, e.ReplicaStopped) else [x])


def let_no_port_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is given to the next engine as soon as the last one is gone."""
    free = starting.free_port

    def at_once(memory: Memory, policy: Policy, _: object, now: float) -> int | None:
        return free(memory, policy, {}, now)

    monkeypatch.setattr(starting, "free_port", at_once)


def decide_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a controller decides does not follow from the log alone."""
    numbers = count()
    assign = decide._assign

    def restless(state: Cluster, entry: Entry, name: str, placed: Placed) -> e.ReplicaAssigned:
        decided = assign(state, entry, name, placed)
        return msgspec.structs.replace(decided, reasons=(f"{next(numbers)}",))

    monkeypatch.setattr(decide, "_assign", restless)


def believe_every_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold follows decisions that became impossible before they were in the log."""
    monkeypatch.setattr(fold, "refuses", lambda state, body: None)


def never_miss_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody notices that a replica's device was carved away."""

    def blind(state: Cluster, part: Part, numbers: dict[str, int]) -> None:
        was = zip(part.grants, part.devices, strict=True)
        part.devices = tuple(numbers.get(grant.uuid, number) for grant, number in was)

    monkeypatch.setattr(fold, "_find_devices", blind)


def never_doubt_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that was cut off blames the nodes that it did not hear."""
    monkeypatch.setattr(Watch, "_believe_nothing", lambda self, why, now: [])


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    forget_engines: " beside | runs ",
    obey_everybody: "went back from term",
    end_commands_twice: "was sent 1 and ended 2 times",
    start_without_a_word: "without a word",
    end_without_a_word: "says nothing of",
    let_no_port_rest: "away again at once",
    decide_by_chance: "gave two answers|decided again it is another",
    believe_every_decision: "decided in term|holds|overcommitted|held",
    never_miss_a_device: "not serving|is not there",
    never_doubt_oneself: "gives n. up",
}
"""Bugs, and what the simulation says of each."""


def first_broken(seeds: int = 200) -> Outcome:
    broken = (outcome for outcome in simulate(1, seeds) if outcome.violation is not None)
    outcome = next(broken, None)
    assert outcome is not None, f"{seeds} seeds found nothing"
    return outcome


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_bug_that_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    violation = first_broken().violation
    assert violation is not None
    assert re.search(BUGS[plant], violation)


def test_of_a_failing_history_the_shortest_is_shown_and_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obey_everybody(monkeypatch)
    before = first_broken()
    plan = plan_of(before.seed)
    assert run(plan) == before
    best, found = shortest(plan)
    assert found.violation is not None
    assert found.messages < before.messages
    assert found.injected.total() < before.injected.total()
    assert run(best) == found


def test_a_broken_promise_is_printed_with_what_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    obey_everybody(monkeypatch)
    seed = first_broken().seed
    assert main(["--seeds", "1", "--seed", str(seed)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].endswith(" 1 violations")
    [again, shorter] = re.findall(r"^  again: (.*)$", err, re.MULTILINE)[1:]
    assert f"--seed {seed}" in again
    assert main(shorter.replace('"', "").split(" --without ")[0].split() + _omissions(shorter)) == 1
    assert "went back from term" in capsys.readouterr().out


def _omissions(arguments: str) -> list[str]:
    found = re.search(r'--without "(.*)"', arguments)
    return ["--without", found[1]] if found else []


def test_the_last_line_counts_seeds_steps_faults_and_violations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "2", "--seed", "1"]) == 0
    words = capsys.readouterr().out.splitlines()[-1].split()
    assert words[:4] == ["2", "seeds", "from", "1,"]
    assert words[-2:] == ["0", "violations"]
