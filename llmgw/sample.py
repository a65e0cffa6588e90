"""Looks at the hardware again and again: changes for the brain, samples for telemetry.

Measuring and the sign of life are two loops on purpose. A driver that hangs delays the first, and
the second goes on, saying that nothing was measured. What was measured once is never sent twice:
a frozen value must not look alive.

Most looks are samples: over an open NVML session they cost a few calls. From time to time, when it
is asked for and when a sample contradicts what is known, the machine is discovered afresh. A person
who needs the cards for themselves has NVML released meanwhile, and then nothing is looked at.

A simulated node is measured as any other, with a captured folder in place of the hardware.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from msgspec.structs import replace

from llmgw.clock import Alarm, until_beat
from llmgw.core import stimuli as s
from llmgw.core.telemetry import NodeSample
from llmgw.errors import LlmgwError
from llmgw.hardware.discover import HardwareSettings
from llmgw.hardware.shapes import shape
from llmgw.hardware.types import DeviceReading, Inventory, Readings
from llmgw.hardware.watch import Watch, troubles
from llmgw.processes import has_machines_ids, names_of
from llmgw.settings import Settings

FIRST_RETRY_SECONDS = 1.0
CLOCK_SECONDS = 30.0
"""A release ends by the clock of the machine, which may be set meanwhile: looked at so often."""

log = structlog.get_logger()


def hardware_settings(settings: Settings) -> HardwareSettings:
    """Return the part of the settings that discovery needs."""
    return HardwareSettings(
        node=settings.node,
        backend=settings.backend,
        nvidia_smi=settings.nvidia_smi,
        nvml_library=settings.nvml_library,
        cpu_device=settings.cpu_device,
        worn_errors=settings.worn_errors,
    )


def simulated_hardware(node: str, capture: Path) -> HardwareSettings:
    """Return how a node that is simulated from a captured folder is discovered.

    This machine's own settings say nothing about it, and its processor is none of that node's.
    """
    return HardwareSettings(node=node, capture_from=capture)


class Sampler:
    """Measures one node. `report` takes inputs for the brain, `send` takes samples.

    `own_pids` tells which of some processes belong to engines of this agent, and to which starts.
    """

    def __init__(
        self,
        settings: Settings,
        hardware: HardwareSettings,
        session: str,
        report: Callable[[s.Input], None],
        send: Callable[[NodeSample], Awaitable[None]],
        own_pids: Callable[[frozenset[int]], Awaitable[Mapping[int, s.Start]]],
    ) -> None:
        self._settings = settings
        self._watch = Watch(hardware)
        self._is_simulated = hardware.capture_from is not None
        self._session = session
        self._report = report
        self._send = send
        self._own_pids = own_pids
        self.error: str | None = None
        self._fresh: Readings | None = None
        self._own: Mapping[int, s.Start] = {}
        self._same_ids: bool | None = None
        self._shape: Inventory | None = None
        self._fallback: str | None = None
        self._seen = False
        self._failures = 0
        self._released_until = 0.0
        self._given_up = False
        self._afresh = True
        self._due = Alarm()
        self._measured = Alarm()
        self._turn = anyio.Lock(fast_acquire=True)
        self._looking: anyio.CancelScope | None = None
        self._looked_afresh = self._looked = -float("inf")

    # --- looking -----------------------------------------------------------------------------

    def look_again(self) -> None:
        """Have the hardware discovered at once rather than at its time."""
        self._afresh = True
        self._due.ring()

    def measure_soon(self) -> None:
        """Have the next sample taken at once rather than at its time."""
        self._due.ring()

    async def look(self) -> Inventory | None:
        """Return the node's shape, or `None` when no backend could tell it: never an empty one.

        Nor is there one while NVML is released.
        """
        async with self._turn:
            return None if self.released else await self._look()

    def first(self) -> s.SampleTaken | None:
        """Return what the first look measured, for the brain to know before anybody else."""
        return None if self._fresh is None else s.SampleTaken(self._fresh, self._own)

    async def measure(self) -> None:
        """Measure for ever, and report changes of the shape and every sample."""
        try:
            while True:
                await self._until_due()
                async with self._turn:
                    if not self.released:
                        with anyio.CancelScope() as self._looking:
                            await self._measure()
        finally:
            with anyio.CancelScope(shield=True):
                await self._watch.release()

    async def _measure(self) -> None:
        if self._given_up:
            self._given_up = False
            self._report(s.NvmlReleased())
        known = self._shape
        seen = await self._look()
        ailing = await troubles()
        if seen is None:
            reason = self.error or "no reason was given"
            self._report(s.HardwareUnreadable(reason, ailing, self._watch.take_errors()))
        elif self._fresh is not None:
            if seen != known:
                self._report(s.InventoryTaken(seen))
            age_seconds = anyio.current_time() - self._looked
            same_ids = self._same_ids is not False
            errors = self._watch.take_errors()
            taken = s.SampleTaken(self._fresh, self._own, ailing, age_seconds, same_ids, errors)
            self._report(taken)
        self._measured.ring()

    async def _look(self) -> Inventory | None:
        """One look, afresh if it is time for that."""
        self._looked = anyio.current_time()
        overdue = self._looked - self._looked_afresh >= self._settings.rediscover_seconds
        afresh = self._afresh or overdue
        try:
            found = await (self._watch.look() if afresh else self._watch.sample())
        except LlmgwError as error:
            self._fail(error)
            return None
        if afresh:
            self._afresh, self._looked_afresh = False, self._looked
        self._fresh = await self._read(found)
        self.error, self._shape, self._seen, self._failures = None, shape(found), True, 0
        self._say_fallback(found)
        return self._shape

    async def _read(self, found: Inventory) -> Readings:
        """What was measured, with what the driver told by itself and what the kernel knows."""
        told = self._watch.readings(found)
        pids = frozenset(p.pid for device in told.devices for p in device.processes or ())
        self._own = await self._own_pids(pids) if pids else {}
        if pids and self._same_ids is None:
            self._same_ids = await to_thread.run_sync(has_machines_ids)
        if not pids or not self._settings.process_names:
            return told
        names = await to_thread.run_sync(names_of, pids)
        return replace(told, devices=tuple(_named(device, names) for device in told.devices))

    # --- time --------------------------------------------------------------------------------

    async def _until_due(self) -> None:
        """Wait for the time of the next look, or until one is asked for."""
        while True:
            await self._due.wait(self._pause_seconds())
            if not self.released:
                return

    def _pause_seconds(self) -> float:
        if self._released_until:
            return min(max(self._released_until - time.time(), 0.0), CLOCK_SECONDS)
        pause = self._settings.sample_seconds
        if not self._seen:  # until it was seen for the first time it is looked for again soon
            # Bounded before it grows beyond what a float holds.
            soon = FIRST_RETRY_SECONDS * 2.0 ** min(max(self._failures - 1, 0), 12)
            return min(pause, soon)
        if self._shape is None:
            return pause
        if self._shape.backend == "nvml" and not self._is_simulated:
            pause = min(pause, self._settings.nvml_sample_seconds)
        return until_beat(pause)

    # --- giving up for a while -----------------------------------------------------------------

    async def release(self, until: float) -> str | None:
        """Hold no NVML session until a time (seconds since 1970), and look at nothing meanwhile.

        Returns when the session is gone, or else what keeps it. A time that is over ends a
        release: the hardware is discovered afresh.
        """
        if self._released_until and until <= time.time():
            log.info("nvml_taken_up_again")
        self._released_until = until
        self._afresh = True
        if not self.released:
            self._due.ring()
            return None
        if self._looking is not None:
            self._looking.cancel()
        async with self._turn:
            await self._watch.release()
            self._fresh, self._given_up = None, True
            end = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            self.error = f"nothing is measured: a person had NVML released until {end}"
            log.warning("nvml_released", until=end)
        self._due.ring()
        self._measured.ring()
        return "; ".join(detail for _, detail in await troubles()) or None

    @property
    def released(self) -> bool:
        """Whether nothing is looked at, since a person asked for that."""
        if self._released_until and time.time() >= self._released_until:
            self._released_until = 0.0
        return self._released_until > 0

    # --- telling -------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Send each measurement once, for ever, and without one a sign of life all the same."""
        number = 0
        while True:
            fresh, self._fresh = self._fresh, None
            number += 1
            sample = NodeSample(
                node=self._settings.node,
                session=self._session,
                number=number,
                readings=fresh,
                error=self.error if fresh is None else None,
            )
            await self._send(sample)
            # Longer than the pause between two measurements, which each come with one.
            await self._measured.wait(1.5 * self._settings.sample_seconds)

    def _say_fallback(self, inventory: Inventory) -> None:
        if inventory.fallback_from != self._fallback:
            self._fallback = inventory.fallback_from
            log.warning("hardware_fallback", backend=inventory.backend, reason=self._fallback)

    def _fail(self, error: LlmgwError) -> None:
        self._failures += 1
        self._shape = None
        text = str(error)
        if text != self.error:
            log.error("hardware_unreadable", reason=text)
        self.error = text


def _named(device: DeviceReading, names: dict[int, str]) -> DeviceReading:
    found = device.processes
    named = found and tuple(replace(one, name=names.get(one.pid)) for one in found)
    return replace(device, processes=named)
