"""How much of a device a replica needs and takes, by the best that is known.

Pure; asked by placement, and again when a decision is folded.
"""

from __future__ import annotations

from llmgw.catalog.entries import Entry
from llmgw.core.cluster import Model

GIB = 1 << 30
HEADROOM = 1.05
"""What a replica was seen to take varies a little from start to start."""


def demand_bytes(entry: Entry, model: Model | None) -> int:
    """Return what a replica needs on each device, by the best that is known.

    A measured size beats an estimate, with some room above it; it beats what a person gave only
    where that was too little.
    """
    measured = model.measured_bytes if model is not None else None
    if measured is None:
        return entry.memory_bytes
    measured = int(measured * HEADROOM)
    return measured if entry.memory_estimated else max(entry.memory_bytes, measured)


def usable_bytes(entry: Entry, total_bytes: int) -> int:
    """Return how much of a device the entry's engine may use."""
    fraction = entry.gpu_memory_fraction
    return total_bytes if fraction is None else int(total_bytes * fraction)


def taken_bytes(entry: Entry, demand: int, total_bytes: int) -> int:
    """Return what the replica takes of a device: some engines take a fraction of it at once."""
    return demand if entry.gpu_memory_fraction is None else usable_bytes(entry, total_bytes)


def too_small(short_bytes: int) -> str:
    """Return the words for a device that lacks so much."""
    return f"too small by {max(short_bytes / GIB, 0.1):.1f} GiB"
