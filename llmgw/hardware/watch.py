"""One machine looked at again and again, over an NVML session where NVML is in force.

The agent's sampler holds one. It judges nothing: what a look finds, or why it fails, is the
caller's to compare and to tell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from anyio import to_thread

from llmgw.hardware import running
from llmgw.hardware.discover import Earlier, HardwareSettings, discover, library_of
from llmgw.hardware.nvml_session import NvmlSession
from llmgw.hardware.types import Inventory


class Watch:
    """Looks at one machine; one look at a time. `release` may be called meanwhile."""

    def __init__(self, settings: HardwareSettings) -> None:
        self._settings = settings
        self._session = NvmlSession(settings.node, library_of(settings))
        self._earlier = Earlier(self._session)

    @property
    def xids(self) -> Mapping[str, tuple[int, ...]]:
        """The critical errors of each card, by its UUID, since NVML was released last."""
        return self._session.xids

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
