"""Looks at the hardware again and again: changes for the brain, samples for telemetry.

Measuring and the sign of life are two loops on purpose. A driver that hangs delays the first, and
the second goes on, saying that nothing was measured. What was measured once is never sent twice:
a frozen value must not look alive.

A simulated node is measured as any other, with a captured folder in place of the hardware.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import structlog

from llmgw.core import stimuli as s
from llmgw.core.telemetry import NodeSample
from llmgw.errors import LlmgwError
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.types import Inventory, Readings
from llmgw.settings import Settings

FIRST_RETRY_SECONDS = 1.0

log = structlog.get_logger()


def hardware_settings(settings: Settings) -> HardwareSettings:
    """Return the part of the settings that discovery needs."""
    return HardwareSettings(
        node=settings.node,
        backend=settings.backend,
        nvidia_smi=settings.nvidia_smi,
        nvml_library=settings.nvml_library,
        cpu_device=settings.cpu_device,
    )


def simulated_hardware(node: str, capture: Path) -> HardwareSettings:
    """Return how a node that is simulated from a captured folder is discovered.

    This machine's own settings say nothing about it, and its processor is none of that node's.
    """
    return HardwareSettings(node=node, capture_from=capture)


class Sampler:
    """Measures one node. `report` takes inputs for the brain, `send` takes samples."""

    def __init__(
        self,
        settings: Settings,
        hardware: HardwareSettings,
        session: str,
        report: Callable[[s.Input], None],
        send: Callable[[NodeSample], Awaitable[None]],
        own_pids: Callable[[], Awaitable[frozenset[int]]],
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._session = session
        self._report = report
        self._send = send
        self._own_pids = own_pids
        self._fresh: Readings | None = None
        self.error: str | None = None
        self._fallback: str | None = None
        self._asked = anyio.Event()
        self._seen = False
        self._failures = 0

    def look_again(self) -> None:
        """Have the hardware discovered at once rather than at its time."""
        self._asked.set()

    async def look(self) -> Inventory | None:
        """Return the node's shape, or `None` when no backend could tell it: never an empty one."""
        try:
            inventory = await discover(self._hardware)
        except LlmgwError as error:
            self._fail(error)
            return None
        self._fresh, self.error, self._seen = readings(inventory), None, True
        self._say_fallback(inventory)
        return shape(inventory)

    async def measure(self) -> None:
        """Measure for ever, and report changes of the shape and every sample."""
        while True:
            with anyio.move_on_after(self._pause_seconds()):
                await self._asked.wait()
            self._asked = anyio.Event()
            seen = await self.look()
            if seen is None:
                self._report(s.HardwareUnreadable(self.error or "no reason was given"))
            elif self._fresh is not None:
                self._report(s.InventoryTaken(seen))
                self._report(s.SampleTaken(self._fresh, await self._own_pids()))

    def _pause_seconds(self) -> float:
        """Until hardware was seen for the first time it is looked for again soon."""
        regular = self._settings.sample_seconds
        if self._seen:
            return regular
        # Bounded before it grows beyond what a float holds.
        soon = FIRST_RETRY_SECONDS * 2.0 ** min(self._failures - 1, 12)
        return min(regular, soon)

    async def beat(self) -> None:
        """Send a sign of life for ever, with what was measured since the last one."""
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
            await anyio.sleep(self._settings.sample_seconds)

    def _say_fallback(self, inventory: Inventory) -> None:
        if inventory.fallback_from != self._fallback:
            self._fallback = inventory.fallback_from
            log.warning("hardware_fallback", backend=inventory.backend, reason=self._fallback)

    def _fail(self, error: LlmgwError) -> None:
        self._failures += 1
        text = str(error)
        if text != self.error:
            log.error("hardware_unreadable", reason=text)
        self.error = text
