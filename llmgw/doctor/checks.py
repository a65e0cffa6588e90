"""Which checks there are, each with its own time limit and none in the way of another.

A shell: the modules beside it ask the hardware, the engines, the log server and the kernel, and
change none of them; what their answers mean is said by `views.findings` and `views.surroundings`.
`llmgw doctor` calls `examine`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import anyio
import structlog

from llmgw.doctor import engines, hardware, host, server
from llmgw.errors import UsageError
from llmgw.hardware.types import Inventory
from llmgw.settings import Settings
from llmgw.views.findings import Finding

HARDWARE_SECONDS = 120.0
ENGINES_SECONDS = 120.0
SHORT_SECONDS = 15.0

log = structlog.get_logger()


class Check(NamedTuple):
    """One thing to look at: its name, how long it may take, and how it is done."""

    name: str
    seconds: float
    look: Callable[[], Awaitable[list[Finding]]]


async def examine(settings: Settings, capture: Path | None = None) -> list[Finding]:
    """Return what there is to say about this machine, or about one that was captured.

    Of a captured machine only the hardware is known. Raises `UsageError` when the folder holds
    no capture, and nothing else.
    """
    if capture is not None:
        folder = capture
        return await _done(
            Check("hardware", HARDWARE_SECONDS, lambda: hardware.captured(settings.node, folder))
        )
    seen: list[Inventory] = []
    found = await _done(
        Check("hardware", HARDWARE_SECONDS, lambda: hardware.look(settings, seen.append))
    )
    inventory = seen[0] if seen else None
    checks = (
        Check("engines", ENGINES_SECONDS, lambda: engines.look(settings, inventory)),
        Check("log", SHORT_SECONDS, lambda: server.look(settings)),
        Check("data folder", SHORT_SECONDS, lambda: host.data_folder(settings.data)),
        Check("open files", SHORT_SECONDS, host.open_files),
        Check("locked memory", SHORT_SECONDS, host.locked_memory),
        Check("shared memory", SHORT_SECONDS, host.shared_memory),
        Check("ports", SHORT_SECONDS, lambda: host.engine_ports(settings.host, settings.ports)),
    )
    rows: list[list[Finding]] = [[] for _ in checks]

    async def do(place: int, check: Check) -> None:
        rows[place] = await _done(check)

    async with anyio.create_task_group() as tasks:
        for place, check in enumerate(checks):
            tasks.start_soon(do, place, check)
    return [*found, *(finding for row in rows for finding in row)]


async def _done(check: Check) -> list[Finding]:
    """Do one check. Whatever goes wrong in it is told, and keeps no other from being done."""
    try:
        with anyio.fail_after(check.seconds):
            return await check.look()
    except UsageError:
        raise
    except TimeoutError:
        detail = f"the check did not end within {check.seconds:g} s"
    except Exception as error:
        log.exception("check_failed", check=check.name)
        detail = f"the check itself failed: {type(error).__name__}: {error}"
    return [Finding(check.name, "unknown", detail)]
