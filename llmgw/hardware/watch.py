"""One machine looked at again and again, over an NVML session where NVML is in force.

The agent's sampler holds one. It judges nothing: what a look finds, or why it fails, is the
caller's to compare and to tell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware import running
from llmgw.hardware.discover import Earlier, HardwareSettings, discover, library_of
from llmgw.hardware.nvml_session import NvmlSession
from llmgw.hardware.shapes import readings
from llmgw.hardware.types import CardError, CardReading, DeviceReading, Inventory, Readings


class Watch:
    """Looks at one machine; one look at a time. `release` may be called meanwhile."""

    def __init__(self, settings: HardwareSettings) -> None:
        self._settings = settings
        self._session = NvmlSession(settings.node, library_of(settings))
        self._earlier = Earlier(self._session)

    def take_errors(self) -> tuple[CardError, ...]:
        """The critical errors that the driver has told of since this was asked last."""
        return self._session.take_errors()

    def readings(self, found: Inventory) -> Readings:
        """What a look has measured, with what the driver told by itself and without what is old."""
        return readings_of(found, self._session.xids, self._session.ages())

    async def look(self) -> Inventory:
        """Discover the machine afresh; raises as `discover` does."""
        await self._session.release()
        self._earlier.afresh = True
        return await self.sample()

    async def sample(self) -> Inventory:
        """What the machine has and measures now, as cheap as the backend allows."""
        return await discover(self._settings, self._earlier)

    async def release(self) -> None:
        """Let go of NVML, so that instances can be carved and cards be reset."""
        await self._session.release()
        self._session.forget_xids()


def readings_of(
    found: Inventory, xids: Mapping[str, tuple[int, ...]], ages: Mapping[str, float]
) -> Readings:
    """What an inventory measured, by the critical errors and the ages in seconds of its cards."""
    told = readings(found)
    if not xids and not ages:
        return told
    old = {card.index: ages[card.uuid] for card in found.cards if card.uuid in ages}
    aged = {device.uuid for device in found.devices if device.card in old}
    return replace(
        told,
        cards=tuple(_told(card, xids, old.get(card.index)) for card in told.cards),
        devices=tuple(
            DeviceReading(id=device.id, uuid=device.uuid) if device.uuid in aged else device
            for device in told.devices
        ),
    )


def _told(
    card: CardReading, xids: Mapping[str, tuple[int, ...]], age_seconds: float | None
) -> CardReading:
    known = xids.get(card.uuid, ())
    if age_seconds is None:
        return replace(card, xids=known) if known else card
    return CardReading(
        index=card.index, uuid=card.uuid, age_seconds=round(age_seconds, 1), xids=known
    )


async def troubles() -> tuple[tuple[str, str], ...]:
    """What ails the tools themselves: the name and detail of a condition of the node."""
    if not running.may_have_left_behind():
        return ()
    left = await to_thread.run_sync(running.left_behind)
    return tuple(("tool-hung", _hangs(name, pid)) for name, pid in left.items())


def _hangs(name: str, pid: int) -> str:
    what = "the program that asks NVML" if name == sys.executable else name
    return (
        f"{what} (pid {pid}) hangs in the driver and cannot be ended; it is not started again"
        " before it is gone: see dmesg for NVRM and Xid lines"
    )
