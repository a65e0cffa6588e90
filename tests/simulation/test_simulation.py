"""The whole cluster under faults, a few dozen seeds of it; `make simulate` runs thousands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from llmgw.core import fold
from llmgw.core import stimuli as s
from llmgw.core.cluster import Cluster, Part
from llmgw.core.fold import apply
from llmgw.core.node import NodeMachine
from llmgw.testing import simulated
from llmgw.testing.simulating import Plan, main, plan_of, run, shortest, simulate
from llmgw.testing.simulator import MODES, Mode, Outcome, Simulation

SEEDS = 60


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(simulate(1, SEEDS, jobs=2))


def test_every_promise_holds_under_every_fault(outcomes: list[Outcome]) -> None:
    broken = {
        Plan(outcome.seed, outcome.mode).arguments(): outcome.violation
        for outcome in outcomes
        if outcome.violation
    }
    assert broken == {}, "run again: python -m llmgw.testing.simulator and these arguments"


def test_both_ways_to_end_were_tried(outcomes: list[Outcome]) -> None:
    assert Counter(outcome.mode for outcome in outcomes) == dict.fromkeys(MODES, SEEDS // 2)


def test_the_faults_that_are_promised_did_happen(outcomes: list[Outcome]) -> None:
    injected = sum((outcome.injected for outcome in outcomes), Counter[str]())
    assert set(injected) >= {
        "acknowledgement lost",
        "agent cut off",
        "agent died before an effect",
        "agent died before it stored",
        "agent killed",
        "agent shut down",
        "agent's folder lost",
        "card got hot",
        "clock jumped",
        "command doubled",
        "command late",
        "controller died after an append",
        "controller died before an append",
        "controller killed",
        "device not seen",
        "engine crashed",
        "engine hangs",
        "engine ignores TERM",
        "instances carved anew",
        "lease lost",
        "machine rebooted",
        "operator's event doubled",
        "port taken",
        "spawn failed",
    }


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_history(mode: Mode) -> None:
    def history(seed: int) -> list[simulated.Stored]:
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


# --- what it is worth: bugs that are planted are found ------------------------------------------


def forget_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that comes back does not know what it finds running."""
    recover = NodeMachine._recover

    def forgetful(self: NodeMachine, name: str, part: object, found: object, now: float) -> object:
        return recover(self, name, part, None, now)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeMachine, "_recover", forgetful)


def obey_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent follows a command of a controller that does not lead any more."""
    receive = NodeMachine._command_received

    def obedient(self: NodeMachine, fact: s.CommandReceived) -> object:
        self.memory.term = 0
        return receive(self, fact)

    monkeypatch.setattr(NodeMachine, "_command_received", obedient)


def believe_every_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold follows decisions that became impossible before they were in the log."""
    monkeypatch.setattr(fold, "refuses", lambda state, body: None)


def never_miss_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody notices that a replica's device was carved away."""

    def blind(state: Cluster, part: Part, numbers: dict[str, int]) -> None:
        was = zip(part.grants, part.devices, strict=True)
        part.devices = tuple(numbers.get(grant.uuid, number) for grant, number in was)

    monkeypatch.setattr(fold, "_find_devices", blind)


BUGS = [forget_engines, obey_everybody, believe_every_decision, never_miss_a_device]


def first_broken(seeds: int = 200) -> Plan:
    broken = (outcome for outcome in simulate(1, seeds) if outcome.violation is not None)
    outcome = next(broken, None)
    assert outcome is not None, f"{seeds} seeds found nothing"
    return plan_of(outcome.seed)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_bug_that_is_planted_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    first_broken()


def test_of_a_failing_history_the_shortest_is_shown_and_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obey_everybody(monkeypatch)
    plan = first_broken()
    before = run(plan)
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
