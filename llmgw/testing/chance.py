"""Chance in the simulator: one seeded source, from which all faults come.

`FAULTS` lists every fault there is. `Dice` belongs to a whole history, or to one part of it that
may be calm while others are not. Here stand also the two ways in which a simulated step ends early.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal

Kind = Literal["crash", "engine", "message", "machine"]
KINDS: tuple[Kind, ...] = ("crash", "engine", "message", "machine")
RATES = (0.0, 0.005, 0.015)
"""How likely a fault of weight 1 is each time that it could happen. A history has a rate for each
kind, so that some have few faults of one kind amid many of another."""

FAULTS: Mapping[str, tuple[Kind, float]] = {
    # Any part may end between any two steps, and come up again.
    "agent killed": ("crash", 3.2),
    "agent died before it stored": ("crash", 1),
    "agent died before an effect": ("crash", 1),
    "agent shut down": ("crash", 1.6),
    "controller killed": ("crash", 1.6),
    "controller died before an append": ("crash", 3),
    "controller died after an append": ("crash", 3),
    "controller died with an append under way": ("crash", 3),
    "log away": ("crash", 0.6),
    # Messages are late, lost, doubled and out of order; whoever sends them is cut off.
    "acknowledgement lost": ("message", 6),
    "event under way": ("message", 3),
    "append under way": ("message", 6),
    "append of an unknown outcome": ("message", 2),
    "command late": ("message", 10),
    "command doubled": ("message", 6),
    "operator's event doubled": ("message", 12),
    "sign of life lost": ("message", 3),
    "sign of life late": ("message", 3),
    "agent cut off": ("message", 2),
    "agent not heard": ("message", 1),
    "agent hears nothing": ("message", 1),
    "many agents cut off": ("message", 0.32),
    "all agents cut off": ("message", 0.32),
    "controller cut off": ("message", 1),
    "lease lost": ("message", 2),
    "another agent has the name": ("message", 2),
    # What machines, disks and clocks do.
    "machine rebooted": ("machine", 1),
    "agent's folder lost": ("machine", 0.6),
    "agent's disk full": ("machine", 0.4),
    "agent slept": ("machine", 3),
    "controller slept": ("machine", 1),
    "snapshot damaged": ("machine", 25),
    "log's disk full": ("machine", 0.48),
    "log's clock jumped": ("machine", 1.5),
    "instances carved anew": ("machine", 1.2),
    "device not seen": ("machine", 1.2),
    "card got hot": ("machine", 4),
    # What engines do.
    "spawn failed": ("engine", 8),
    "port taken": ("engine", 8),
    "engine is on another device": ("engine", 4),
    "engine loads for ever": ("engine", 6),
    "engine crashed": ("engine", 1.5),
    "engine hangs": ("engine", 1),
    "engine ignores TERM": ("engine", 1),
    "a stranger answers": ("engine", 2),
    "a request does not end": ("engine", 20),
    "process cannot be killed": ("engine", 8),
    "memory given back late": ("engine", 8),
}
"""Every fault by its name: of which kind it is, and how likely beside the others of its kind."""


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
        self._without = frozenset(without)
        self._chances: dict[str, float] = {}
        self.set_rates({kind: self.random.choice(RATES) for kind in KINDS})

    def set_rates(self, rates: Mapping[Kind, float]) -> None:
        """Say how likely the faults of each kind are from now on."""
        self._chances = {name: rates[kind] * weight for name, (kind, weight) in FAULTS.items()}

    def share(self) -> Dice:
        """Return dice for one part: the same chance and the same count, but calm by themselves."""
        return copy.copy(self)

    def fault(self, name: str) -> bool:
        """Return whether a fault of `FAULTS` happens here and now, and count it if so."""
        if self.calm or self.random.random() >= self._chances[name] or name in self._without:
            return False
        self.injected[name] += 1
        return True
