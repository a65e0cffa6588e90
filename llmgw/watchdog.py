"""Telling systemd that a service is up, and that it gets on: `sd_notify`, over its socket.

systemd kills and starts again a service that has not told it for `WatchdogSec` that all is well.
A loop of its own would tell so for ever, however dead the rest is. So each essential part of the
service shows a `Pulse`, and only while none of them is overdue is anything told; an event loop that
is blocked tells nothing anyway. Without systemd nothing is told to anybody. The agent uses it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

import anyio
import structlog

OVERDUE_SECONDS = 60.0
"""How long a part may show nothing. Disks and servers that are slow are no reason to be killed."""

_TELLS_PER_TIME = 3
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

log = structlog.get_logger()


class Pulse:
    """The sign of life of one part of a service. It is overdue once nothing was shown for long."""

    def __init__(self, name: str, overdue_seconds: float = OVERDUE_SECONDS) -> None:
        self.name = name
        self._overdue_seconds = overdue_seconds
        self._due: float | None = None

    def show(self) -> None:
        """Show that the part gets on, and will show so again in time."""
        self._due = anyio.current_time() + self._overdue_seconds

    def expect(self) -> None:
        """Expect the part to show itself in time, from the first such call on."""
        if self._due is None:
            self.show()

    def rest(self) -> None:
        """Show that the part gets on, and expect nothing of it: what it waits for need not come."""
        self._due = None

    @property
    def is_overdue(self) -> bool:
        """Whether the part has not shown itself for too long."""
        return self._due is not None and anyio.current_time() > self._due


class Supervision(NamedTuple):
    """What systemd said to this process: where to tell it, and within how long, if it watches."""

    address: str | None = None
    watchdog_seconds: float | None = None

    def tell(self, words: str) -> None:
        """Tell it something, if it wants to hear. One that does not listen is no trouble."""
        if self.address is None:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.setblocking(False)
                to.sendto(words.encode(), address)
        except OSError as error:
            log.warning("systemd_not_told", reason=str(error))

    async def keep_told(self, pulses: Sequence[Pulse]) -> None:
        """Tell it again and again, while no pulse is overdue, that all is well."""
        if self.watchdog_seconds is None:
            return
        said: list[str] = []
        while True:
            overdue = [pulse.name for pulse in pulses if pulse.is_overdue]
            if not overdue:
                self.tell("WATCHDOG=1")
            elif overdue != said:
                log.error("watchdog_not_fed", stuck=overdue, seconds=self.watchdog_seconds)
            said = overdue
            await anyio.sleep(self.watchdog_seconds / _TELLS_PER_TIME)


def supervision(
    environment: MutableMapping[str, str] = os.environ, pid: int | None = None
) -> Supervision:
    """Return what systemd said, and take it out of the environment: no child is meant by it."""
    said = {name: environment.pop(name, "") for name in _VARIABLES}
    return Supervision(said["NOTIFY_SOCKET"] or None, _seconds(said, pid or os.getpid()))


def _seconds(said: Mapping[str, str], pid: int) -> float | None:
    """Return within how long it wants to hear: nothing where it watches another process."""
    microseconds, watched = said["WATCHDOG_USEC"], said["WATCHDOG_PID"]
    if not microseconds.isdecimal() or not int(microseconds) or watched not in ("", str(pid)):
        return None
    return int(microseconds) / 1e6
