"""What samples say of one engine and its devices: what it takes, where else it is, if it is gone.

Pure questions to the newest readings; `core.node` asks them and decides what follows. Nothing is
guessed: where the driver tells of no processes, or of none of the engine's, the answer is that
nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from llmgw.core.events import Condition
from llmgw.core.memory import EnginePart, Leak
from llmgw.hardware.types import DeviceReading, Inventory, device_label

MIB = 1 << 20
_LITTLE_BYTES = 64 * MIB
"""Less than any context of CUDA takes: a program may look at a device without using it."""

Seen = Mapping[str, DeviceReading]
"""The newest reading of each device, by its UUID."""


def accelerators(part: EnginePart) -> tuple[str, ...]:
    """Return the UUIDs of the part's devices, the processor left out."""
    grants = part.assignment.grants if part.assignment is not None else ()
    return tuple(grant.uuid for grant in grants if grant.device_class != "cpu")


def empty_bytes(seen: Seen, uuids: Iterable[str], inventory: Inventory | None) -> dict[str, int]:
    """Return what is in use of those devices on which, as the driver tells, no process is.

    Devices that share their memory with another one are left out: who uses it is not known.
    """
    found = {}
    for uuid in uuids:
        reading = seen.get(uuid)
        if reading is None or reading.processes != () or reading.memory_used_bytes is None:
            continue
        if not _sharing(uuid, inventory):
            found[uuid] = reading.memory_used_bytes
    return found


def taken_bytes(seen: Seen, part: EnginePart, pids: Collection[int]) -> tuple[int, ...]:
    """Return what the engine with these processes takes of each of its devices; empty: not known.

    By what the driver tells of the processes' memory; else by how much more of the device is in
    use than before the start, if nobody else was there then and is now.
    """
    uuids = accelerators(part)
    found = [_taken(seen.get(uuid), pids, part.empty_bytes.get(uuid)) for uuid in uuids]
    told = tuple(taken for taken in found if taken is not None)
    whole = part.assignment is not None and len(told) == len(part.assignment.grants)
    return told if whole else ()


def _taken(reading: DeviceReading | None, pids: Collection[int], empty: int | None) -> int | None:
    if reading is None or not reading.processes:
        return None
    own = [process for process in reading.processes if process.pid in pids]
    if not own:
        return None
    told = [process.memory_bytes for process in own if process.memory_bytes is not None]
    if len(told) == len(own):
        return sum(told)
    used, alone = reading.memory_used_bytes, len(own) == len(reading.processes)
    if not alone or empty is None or used is None or used < empty:
        return None
    return used - empty


def astray(
    seen: Seen, part: EnginePart, pids: Collection[int], inventory: Inventory | None
) -> str | None:
    """Return which process of the engine is on a device that the part was not given, in words."""
    if part.assignment is None:
        return None
    given = {grant.uuid for grant in part.assignment.grants}
    given |= {mate for uuid in given for mate in _sharing(uuid, inventory)}
    for uuid, reading in seen.items():
        if uuid in given:
            continue
        for process in reading.processes or ():
            held = process.memory_bytes
            if process.pid in pids and (held is None or held >= _LITTLE_BYTES):
                where = device_label(reading.id)
                return f"its process {process.pid} is on device {where}, which it was not given"
    return None


def is_unused(seen: Seen, part: EnginePart, slack_bytes: int) -> bool:
    """Return whether nobody is on the engine's devices, and no more is in use than before it."""
    uuids = accelerators(part)
    return bool(uuids) and all(_is_as_before(seen.get(u), part, slack_bytes) for u in uuids)


def _is_as_before(reading: DeviceReading | None, part: EnginePart, slack_bytes: int) -> bool:
    if reading is None or reading.processes != () or reading.memory_used_bytes is None:
        return False
    before = part.empty_bytes.get(reading.uuid)
    return before is not None and reading.memory_used_bytes <= before + slack_bytes


def leaks(seen: Seen, name: str, part: EnginePart, slack_bytes: int) -> Iterator[tuple[str, Leak]]:
    """Yield the devices that still hold something of an engine that has ended, and what."""
    for uuid in accelerators(part):
        leak = Leak(name, part.empty_bytes.get(uuid), part.pids)
        if still_held(seen.get(uuid), leak, slack_bytes) is not None:
            yield uuid, leak


def still_held(reading: DeviceReading | None, leak: Leak, slack_bytes: int) -> str | None:
    """Return in words what a device still holds of an engine that ended; `None`: nothing known."""
    if reading is None:
        return None
    listed = [str(p.pid) for p in reading.processes or () if p.pid in leak.pids]
    if listed:
        return f"{leak.part} has ended, but its processes {', '.join(listed)} are still there"
    used, empty = reading.memory_used_bytes, leak.empty_bytes
    if reading.processes == () and used is not None and empty is not None:
        more = used - empty
        if more > slack_bytes:
            return f"{leak.part} has ended, but {more // MIB} MiB were not given back"
    return None


def occupied(held: Iterable[Condition], inventory: Inventory | None) -> frozenset[str]:
    """Return the UUIDs of the devices that are `occupied`, of all conditions that hold."""
    numbers = {condition.device for condition in held if condition.name == "occupied"}
    devices = inventory.devices if inventory is not None else ()
    return frozenset(device.uuid for device in devices if device.id in numbers)


def _sharing(uuid: str, inventory: Inventory | None) -> set[str]:
    """Return the other devices that draw on the same memory."""
    if inventory is None:
        return set()
    pools = {d.uuid: d.memory_pool for d in inventory.devices if d.memory_pool is not None}
    pool = pools.get(uuid)
    return {other for other, of in pools.items() if of == pool and other != uuid} if pool else set()
