"""What is pretended of a simulated machine's devices: engines on them, and what their driver tells.

Of the simulated agents (`simulated`), which decide what breaks; nothing here knows chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.hardware.types import Device, DeviceReading, Process

EMPTY_BYTES = 1 << 30
"""What the driver keeps for itself of each card or instance."""

Telling = Literal["memory", "processes", "nothing"]
TELLINGS: tuple[Telling, ...] = ("memory", "processes", "nothing")
"""What a driver tells of the processes on a device: what each holds, which they are, or nothing."""


class Engine(msgspec.Struct):
    """One engine process. It outlives the agent, and not the machine."""

    start: s.Start
    assignment: Assignment
    pid: int
    port: int
    loading: int
    dying: int | None = None
    deaf: bool = False
    hung: bool = False
    astray: bool = False
    requests: int = 0

    def is_failing(self, first: Device, tells: Telling) -> bool:
        """Whether somebody will notice that something is wrong, and has not yet.

        Only part 0 is asked for its health. Who is astray is on the machine's first device, and is
        seen there by the driver's word, unless it was to have the processor alone.
        """
        accelerated = any(grant.device_class != "cpu" for grant in self.assignment.grants)
        hung = self.hung and self.start.key.part == 0
        elsewhere = self.astray and not self.is_on(first) and first.device_class != "cpu"
        seen = elsewhere and accelerated and tells != "nothing"
        return hung or self.dying is not None or seen

    def is_on(self, device: Device) -> bool:
        """Whether it was given the device."""
        return device.uuid in {grant.uuid for grant in self.assignment.grants}

    @property
    def taken_bytes(self) -> int:
        """What it takes of each of its devices."""
        return self.assignment.entry.memory_bytes // 10 * 9


class Remains(msgspec.Struct):
    """What an engine that ended has not given back yet: memory, and a process that cannot end."""

    uuids: tuple[str, ...]
    taken_bytes: int
    pid: int | None
    samples: int

    def is_given_back(self) -> bool:
        """Count one more look at it, and return whether it was the last."""
        self.samples -= 1
        return self.samples <= 0


def reading(
    device: Device, engines: Iterable[Engine], remains: Iterable[Remains], tells: Telling
) -> DeviceReading:
    """Return what the driver tells of a device with these engines on it."""
    if device.device_class == "cpu":
        return DeviceReading(id=device.id, uuid=device.uuid)
    left = [x for x in remains if device.uuid in x.uuids]
    here = [(x.pid, x.taken_bytes) for x in engines]
    listed = here + [(x.pid, x.taken_bytes) for x in left if x.pid is not None]
    processes = tuple(
        Process(pid=pid, memory_bytes=taken if tells == "memory" else None) for pid, taken in listed
    )
    return DeviceReading(
        id=device.id,
        uuid=device.uuid,
        memory_used_bytes=EMPTY_BYTES + sum(x for _, x in here) + sum(x.taken_bytes for x in left),
        processes=None if tells == "nothing" else processes,
    )
