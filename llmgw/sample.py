"""Looks at the hardware again and again: changes for the brain, samples for telemetry.

Measuring and the sign of life are two loops on purpose. A driver that hangs delays the first, and
the second goes on, saying that nothing was measured. What was measured once is never sent twice:
a frozen value must not look alive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import anyio
import structlog

from llmgw.core import stimuli as s
from llmgw.core.telemetry import NodeSample
from llmgw.errors import BackendUnavailable
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.types import Inventory, Readings
from llmgw.settings import Settings

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


class Sampler:
    """Measures one node. `report` takes inputs for the brain, `send` takes samples."""

    def __init__(
        self,
        settings: Settings,
        session: str,
        report: Callable[[s.Input], None],
        send: Callable[[NodeSample], Awaitable[None]],
        own_pids: Callable[[], Awaitable[frozenset[int]]],
    ) -> None:
        self._settings = settings
        self._hardware = hardware_settings(settings)
        self._session = session
        self._report = report
        self._send = send
        self._own_pids = own_pids
        self._fresh: Readings | None = None
        self._error: str | None = None
        self._fallback: str | None = None

    async def first_look(self) -> Inventory | None:
        """Return the node's shape, or `None` when no backend could tell it: never an empty one."""
        try:
            inventory = await discover(self._hardware)
        except BackendUnavailable as error:
            self._fail(error)
            return None
        self._fresh, self._error = readings(inventory), None
        self._say_fallback(inventory)
        return shape(inventory)

    async def measure(self) -> None:
        """Measure for ever, and report changes of the shape and every sample."""
        while True:
            await anyio.sleep(self._settings.sample_seconds)
            seen = await self.first_look()
            if seen is not None and self._fresh is not None:
                self._report(s.InventoryTaken(seen))
                self._report(s.SampleTaken(self._fresh, await self._own_pids()))

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
                error=self._error if fresh is None else None,
            )
            await self._send(sample)
            await anyio.sleep(self._settings.sample_seconds)

    def _say_fallback(self, inventory: Inventory) -> None:
        if inventory.fallback_from != self._fallback:
            self._fallback = inventory.fallback_from
            log.warning("hardware_fallback", backend=inventory.backend, reason=self._fallback)

    def _fail(self, error: BackendUnavailable) -> None:
        text = str(error)
        if text != self._error:
            log.error("hardware_unreadable", reason=text)
        self._error = text


def now() -> str:
    """Return the present time as the wire shows it (RFC 3339, UTC); nothing is decided on it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
