"""The present time, as whoever writes to the log puts it beside what it says; and an alarm."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime


def now() -> str:
    """Return the present time as the wire shows it (RFC 3339, UTC); nothing is decided on it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def until_beat(seconds: float) -> float:
    """Return how long it is until the loop's clock shows a multiple of so many seconds.

    The next that is not nearer than half of them. What a process does each second falls so on the
    same moment, and it wakes once for all of it.
    """
    left = seconds - asyncio.get_running_loop().time() % seconds
    return left if left >= seconds / 2 else left + seconds


class Alarm:
    """Wakes one task that waits for a time, when that has come or somebody rings before.

    An alarm that rings while nobody waits wakes the next that does. It costs one timer: what goes
    off every second for months should not raise and catch an exception each time.
    """

    def __init__(self) -> None:
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Wake who waits, or whoever waits next."""
        self._bell.set()

    async def wait(self, seconds: float) -> None:
        """Wait so long, or until it rings."""
        timer = asyncio.get_running_loop().call_later(seconds, self._bell.set)
        try:
            await self._bell.wait()
        finally:
            timer.cancel()
            self._bell.clear()
