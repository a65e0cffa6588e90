"""Runs many simulated histories, and shows of one that fails the shortest that still does.

    python -m llmgw.testing.simulator --seeds 1000
    python -m llmgw.testing.simulator --seeds 1 --seed 17 --mode safety

`make simulate` is its command line. The same seed, mode, steps and omissions give the same history.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from llmgw.core import events as e
from llmgw.core.commands import SetAssignments
from llmgw.testing.builders import tell
from llmgw.testing.chance import FAULTS
from llmgw.testing.simulator import MODES, STEPS_WITH_FAULTS, Mode, Outcome, Simulation

MOST_LINES = 80
SEEDS_FOR_ALL = 500
"""So many histories must have met every fault there is, or there is none of that name any more."""
_CHUNK = 20


class Plan(msgspec.Struct, frozen=True):
    """What makes a history: all that must be given to see it again."""

    seed: int
    mode: Mode
    steps: int = STEPS_WITH_FAULTS
    without: tuple[str, ...] = ()

    def simulation(self) -> Simulation:
        """Return the history before its first step."""
        return Simulation(self.seed, self.mode, steps=self.steps, without=self.without)

    def arguments(self) -> str:
        """Return what to give on the command line to see it again."""
        words = f"--seeds 1 --seed {self.seed} --mode {self.mode}"
        if self.steps != STEPS_WITH_FAULTS:
            words += f" --steps {self.steps}"
        return words + (f' --without "{",".join(self.without)}"' if self.without else "")


def plan_of(seed: int, mode: Mode | None = None) -> Plan:
    """Return the history of a seed: every second one ends with only a core healed."""
    return Plan(seed, mode or MODES[seed % len(MODES)])


def run(plan: Plan) -> Outcome:
    """Run one history to its end."""
    return plan.simulation().run()


def simulate(
    first_seed: int, seeds: int, mode: Mode | None = None, jobs: int = 1
) -> Iterator[Outcome]:
    """Run one history for each of `seeds` seeds from `first_seed` up, in order."""
    plans = [plan_of(seed, mode) for seed in range(first_seed, first_seed + seeds)]
    if jobs == 1 or seeds <= _CHUNK:
        yield from map(run, plans)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, plans, chunksize=_CHUNK)


# --- the shortest history -------------------------------------------------------------------------


def shortest(plan: Plan) -> tuple[Plan, Outcome]:
    """Return the shortest history found that still breaks a promise, and what it came to.

    Kinds of faults are left out one after the other, then steps at the end, as long as a promise
    is still broken and the log gets no longer.
    """
    best, outcome = plan, run(plan)
    if outcome.steps < best.steps:
        best = msgspec.structs.replace(best, steps=outcome.steps)

    def shorter(candidate: Plan) -> bool:
        nonlocal best, outcome
        found = run(candidate)
        if found.violation is None or found.messages > outcome.messages:
            return False
        best, outcome = candidate, found
        return True

    for name in sorted(outcome.injected):
        shorter(msgspec.structs.replace(best, without=(*best.without, name)))
    step = best.steps // 2
    while step > 0:
        if not shorter(msgspec.structs.replace(best, steps=best.steps - step)):
            step //= 2
        step = min(step, best.steps)
    return best, outcome


def told(plan: Plan) -> list[str]:
    """Return the log of a history, one line for each record."""
    simulation = plan.simulation()
    simulation.run()
    log, lines = simulation.log, []
    for index in range(len(log.messages)):
        record = log.record(index)
        body = record.body
        said = tell(body) if isinstance(body, e.Event | SetAssignments) else str(body)
        lines.append(f"{record.sequence:6} {record.node or record.origin}: {said}")
    return lines


def _report(outcome: Outcome) -> Iterator[str]:
    plan = Plan(outcome.seed, outcome.mode)
    yield f"seed {outcome.seed} ({outcome.mode}): {outcome.violation}"
    yield f"  again: {plan.arguments()}"
    best, found = shortest(plan)
    yield f"  shortest history found: {found.messages} records after these faults:"
    yield from (f"    {count:3} {name}" for name, count in sorted(found.injected.items()))
    yield f"  it breaks: {found.violation}"
    yield f"  again: {best.arguments()}"
    lines = told(best)
    if len(lines) > MOST_LINES:
        yield f"  its last {MOST_LINES} records:"
    yield from lines[-MOST_LINES:]


# --- the command line -----------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run seeds and print what happened; the exit status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m llmgw.testing.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories to run")
    parser.add_argument("--seed", type=int, help="the first seed (default: the time)")
    parser.add_argument("--mode", choices=MODES, help="how they end (default: both in turn)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--steps", type=int, help="of one history: how many steps with faults")
    parser.add_argument("--without", help="of one history: faults that never happen, with commas")
    given = parser.parse_args(arguments)
    first = given.seed if given.seed is not None else int(time.time()) % 1_000_000
    if given.steps is not None or given.without:
        plan = plan_of(first, given.mode)
        without = tuple(given.without.split(",")) if given.without else ()
        steps = plan.steps if given.steps is None else given.steps
        return _show(msgspec.structs.replace(plan, steps=steps, without=without))
    steps, broken = 0, []
    injected: Counter[str] = Counter()
    for outcome in simulate(first, given.seeds, given.mode, given.jobs):
        steps += outcome.steps
        injected += outcome.injected
        if outcome.violation is not None:
            broken.append(outcome)
            _say(f"seed {outcome.seed} ({outcome.mode}): {outcome.violation}")
            _say(f"  again: {Plan(outcome.seed, outcome.mode).arguments()}")
    if broken:
        _say("", *_report(broken[0]))
    for name, count in sorted(injected.items()):
        print(f"  {count:7} {name}")  # noqa: T201
    never = sorted(FAULTS.keys() - injected.keys()) if given.seeds >= SEEDS_FOR_ALL else []
    if never:
        _say(f"never injected: {', '.join(never)}")
    print(  # noqa: T201
        f"{given.seeds} seeds from {first}, {steps} steps, {injected.total()} faults of "
        f"{len(injected)} kinds injected, {len(broken)} violations"
    )
    return 1 if broken or never else 0


def _show(plan: Plan) -> int:
    """Run one history that was made shorter, and tell all of it."""
    outcome = run(plan)
    print("\n".join(told(plan)))  # noqa: T201
    print(outcome.violation or "every promise held")  # noqa: T201
    return 1 if outcome.violation else 0


def _say(*lines: str) -> None:
    print("\n".join(lines), file=sys.stderr)  # noqa: T201
