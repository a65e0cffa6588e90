"""Runs every benchmark, prints a table and writes build/bench.json: `make bench`.

Never fails because of a number: `met` tells. It fails when a benchmark itself breaks. Names of
benchmarks as arguments run only those, and write nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog

from tests.benchmarks import (
    deciding,
    folding,
    following,
    judging,
    leading,
    placing,
    replaying,
    sampling,
    starting,
)
from tests.benchmarks.measure import Result

BENCHMARKS: dict[str, Callable[[], Iterator[Result]]] = {
    "following": following.benchmark,
    "folding": folding.benchmark,
    "replaying": replaying.benchmark,
    "starting": starting.benchmark,
    "sampling": sampling.benchmark,
    "judging": judging.benchmark,
    "placing": placing.benchmark,
    "deciding": deciding.benchmark,
    "leading": leading.benchmark,
}
OUTPUT = Path(__file__).parents[2] / "build" / "bench.json"


def main(names: list[str]) -> None:
    """Run the benchmarks with these names, or all."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    results: list[Result] = []
    for name in names or BENCHMARKS:
        for result in BENCHMARKS[name]():
            print(line(result), flush=True)
            results.append(result)
    if not names:
        OUTPUT.parent.mkdir(exist_ok=True)
        encoded = msgspec.json.encode(results)
        OUTPUT.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
        print(f"written to {OUTPUT}")


def line(result: Result) -> str:
    """Return one line of the table."""
    verdict = {True: "met", False: "NOT met", None: "no goal"}[result.met]
    goal = "" if result.goal is None else f"{result.goal:g}"
    value = f"{result.value:,.0f}" if result.value >= 1_000 else f"{result.value:.3g}"
    return (
        f"{result.name:38} {value:>9} {result.unit:36} {goal:>4} {verdict:8} against {result.peer}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
