"""What a benchmark says, and how it measures on a machine that does other things too.

Nothing here passes or fails by its timing. What is compared is measured in turns, so that a busy
moment falls on both sides, and the median of many turns is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import msgspec


class Result(msgspec.Struct, frozen=True):
    """One line of the table and of build/bench.json. Without a goal nothing is met or missed."""

    name: str
    value: float
    unit: str
    peer: str
    goal: float | None = None
    met: bool | None = None


def at_least(goal: float, name: str, value: float, unit: str, peer: str) -> Result:
    """Return a result that is met by reaching the goal."""
    return Result(name, value, unit, peer, goal, value >= goal)


def at_most(goal: float, name: str, value: float, unit: str, peer: str) -> Result:
    """Return a result that is met by not exceeding the goal."""
    return Result(name, value, unit, peer, goal, value <= goal)


class Turns:
    """Two sides measured in turns: `ours` and the `peer` that they are held against."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._ours: list[float] = []
        self._peer: list[float] = []

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Measure one turn of ours."""
        with self._turn(self._ours):
            yield

    @contextmanager
    def peer(self) -> Iterator[None]:
        """Measure one turn of the peer."""
        with self._turn(self._peer):
            yield

    @contextmanager
    def _turn(self, turns: list[float]) -> Iterator[None]:
        began = self._clock()
        yield
        turns.append(self._clock() - began)

    @property
    def ours_seconds(self) -> float:
        """The median turn of ours."""
        return median(self._ours)

    @property
    def peer_seconds(self) -> float:
        """The median turn of the peer."""
        return median(self._peer)

    @property
    def slowdown(self) -> float:
        """How many times the peer's time ours took: the median over pairs of turns."""
        return median(a / b for a, b in zip(self._ours, self._peer, strict=True))
