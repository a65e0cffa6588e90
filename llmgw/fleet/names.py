"""Which simulated nodes there are: their names, and the captured folder of each.

Called before anything is started, by `llmgw up` and by the fleet itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from llmgw.errors import BackendUnavailable, UsageError
from llmgw.hardware.discover import discover
from llmgw.sample import simulated_hardware

MOST_SIMULATED = 2_000
PREFIX = "sim"


async def simulated_nodes(
    captures: Sequence[Path], copies: int, prefix: str = PREFIX
) -> dict[str, Path]:
    """Return the captured folder of each node, by its name: `sim-1` and so on.

    The names go through the folders once for each copy, so a copy more renames none of before.
    Raises `UsageError` when they are too many, or when a folder holds no capture.
    """
    number = len(captures) * copies
    if number > MOST_SIMULATED:
        raise UsageError(
            f"{len(captures)} captured folders with --copies {copies} are {number} simulated nodes,"
            f" and one process runs at most {MOST_SIMULATED}: ask for fewer copies"
        )
    folders = [folder.absolute() for folder in captures]
    for folder in folders:
        with contextlib.suppress(BackendUnavailable):  # a machine that failed is simulated too
            await discover(simulated_hardware(prefix, folder))
    return {f"{prefix}-{place}": folder for place, folder in enumerate(folders * copies, 1)}
