"""The whole cluster under faults, a few dozen seeds of it; `make simulate` runs thousands."""

from __future__ import annotations

from collections import Counter

import pytest

from llmgw.core.cluster import Cluster
from llmgw.core.fold import apply
from llmgw.core.node import NodeMachine
from llmgw.testing import simulated
from llmgw.testing.simulator import Outcome, Simulation, main, simulate

SEEDS = 50


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(simulate(1, SEEDS))


def test_every_promise_holds_under_every_fault(outcomes: list[Outcome]) -> None:
    broken = {outcome.seed: outcome.violation for outcome in outcomes if outcome.violation}
    assert broken == {}, "run again: python -m llmgw.testing.simulator --seeds 1 --seed SEED"


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
        "engine crashed",
        "engine hangs",
        "engine ignores TERM",
        "lease lost",
        "machine rebooted",
        "operator's event doubled",
        "port taken",
        "spawn failed",
    }


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> list[simulated.Stored]:
        simulation = Simulation(seed)
        simulation.run()
        return simulation.log.messages

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_a_broken_promise_is_found_and_its_seed_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a core that forgets which engines it found, the simulation must not be content."""
    take_over = NodeMachine._recover

    def forget(self: NodeMachine, name: str, part: object, found: object, now: float) -> object:
        return take_over(self, name, part, None, now)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeMachine, "_recover", forget)
    assert main(["--seeds", "20", "--seed", "1"]) == 1
    out, err = capsys.readouterr()
    assert "again: --seed" in err
    assert not out.splitlines()[-1].endswith(" 0 violations")


def test_the_last_line_counts_seeds_steps_faults_and_violations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "2", "--seed", "1"]) == 0
    words = capsys.readouterr().out.splitlines()[-1].split()
    assert words[:4] == ["2", "seeds", "from", "1,"]
    assert words[-2:] == ["0", "violations"]


def test_the_fold_of_a_simulated_log_is_the_state_of_the_leader() -> None:
    simulation = Simulation(3)
    assert simulation.run().violation is None
    state = Cluster()
    for index in range(len(simulation.log.messages)):
        apply(state, simulation.log.record(index))
    assert state in [controller.state for controller in simulation.controllers]
