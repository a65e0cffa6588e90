"""Chance in the simulator: one seeded source, from which all faults come.

`Dice` belongs to a whole history, or to one part of it that may be calm while others are not. Here
stand also the two ways in which a simulated step ends early.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Collection

KINDS = ("crash", "engine", "message", "machine")
RATES = (0.0, 0.02, 0.06)


class Violation(AssertionError):
    """A promise was broken; the message says which, and where."""


class Crash(Exception):
    """The process under the simulation ends here."""


class Dice:
    """The only source of chance. `calm` ends all faults; those named in `without` never happen."""

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.calm = False
        self.injected: Counter[str] = Counter()
        self.rates = {kind: self.random.choice(RATES) for kind in KINDS}
        self._without = frozenset(without)

    def share(self) -> Dice:
        """Return dice for one part: the same chance and the same count, but calm by themselves."""
        return copy.copy(self)

    def fault(self, kind: str, name: str, weight: float = 1.0) -> bool:
        """Return whether the fault happens here and now, and count it if so."""
        if self.calm or self.random.random() >= self.rates[kind] * weight:
            return False
        if name in self._without:
            return False
        self.injected[name] += 1
        return True
