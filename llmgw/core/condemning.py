"""What the driver's critical errors mean for engines: which end, and where nothing starts any more.

Kept in the brain's memory, so that an agent that comes up does not take a card for sound that was
not. It holds until the machine restarts, or a person has had NVML released, without which no card
can be reset: the driver does not say when an error is over. A driver that cannot be read at all is
kept the same way, until it can. Pure; `core.node` calls it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from llmgw.core import stimuli as s
from llmgw.core.commands import Assignment
from llmgw.core.meanings import EVACUATED, PAIRED, UNLISTED, XIDS
from llmgw.core.memory import EnginePart, Memory
from llmgw.core.weighing import Seen
from llmgw.hardware.types import MISMATCH, Card, CardError, Inventory, Readings

MOST_ERRORS = 64
"""So many numbers are kept of a card; there are not twice as many that mean anything."""
_LOST = "the driver had lost it"


def begin(memory: Memory, fact: s.AgentStarted) -> None:
    """Take what an agent finds as it comes up."""
    if fact.rebooted:
        forget(memory)
    if fact.inventory is not None:
        memory.unreadable = None


def note_unreadable(memory: Memory, fact: s.HardwareUnreadable) -> None:
    """Remember why nothing can be read, and what the driver told of all the same."""
    memory.unreadable = fact.reason
    note_errors(memory, fact.errors, {}, ())


def note_errors(
    memory: Memory, errors: Iterable[CardError], seen: Seen, own_pids: Collection[int]
) -> None:
    """Remember what the driver told of, and doom the engines that must end for it.

    `seen` are the newest readings of devices, and `own_pids` the agent's own processes there.
    """
    for error in errors:
        xid = XIDS.get(error.number, UNLISTED)
        known = memory.errors.get(error.card, ())
        counts = xid.condition is not None or error.number in PAIRED
        if counts and error.number not in known and len(known) < MOST_ERRORS:
            memory.errors[error.card] = (*known, error.number)
        if xid.ends == "all":
            for part in _parts_on(memory, error.card):
                _doom(part, f"Xid {error.number} of its card: {xid.meaning}")
        elif xid.ends == "one":
            hit = _alone(memory, error, seen, own_pids)
            if hit is not None and hit.phase == "ready":  # else its own end says more
                _doom(hit, f"Xid {error.number} of its card, where nothing else is: {xid.meaning}")


def note_inventory(memory: Memory, inventory: Inventory) -> None:
    """Remember the cards that the driver has lost, by a new inventory, and doom what is on them."""
    memory.unreadable = None
    before = memory.inventory.cards if memory.inventory is not None else ()
    uuids = {card.index: card.uuid for card in (*before, *inventory.cards)}
    lost = (x.card for x in inventory.excluded if x.reason == "lost" and x.device is None)
    for card in {uuids[index] for index in lost if index in uuids} - {*memory.lost}:
        memory.lost = (*memory.lost, card)
        for part in _parts_on(memory, card):
            _doom(part, "its card is lost: the driver does not reach it any more")


def forget(memory: Memory) -> None:
    """Hold nothing against any card: the machine has restarted, or cards may have been reset."""
    memory.errors, memory.lost = {}, ()


def with_errors(memory: Memory, readings: Readings | None) -> Readings | None:
    """Return readings with the errors that an earlier agent was told of."""
    if readings is None or not memory.errors:
        return readings
    known = memory.errors
    cards = (
        replace(card, xids=tuple(dict.fromkeys((*known[card.uuid], *card.xids))))
        if card.uuid in known
        else card
        for card in readings.cards
    )
    return replace(readings, cards=tuple(cards))


def why_not(memory: Memory, assignment: Assignment | None) -> str | None:
    """Return why nothing starts on the devices of an assignment for now, or `None`.

    Who needs none but the processor is not concerned.
    """
    grants = assignment.grants if assignment is not None else ()
    uuids = {grant.uuid for grant in grants if grant.device_class != "cpu"}
    if uuids and memory.unreadable is not None:
        return f"nothing starts while the hardware cannot be read: {memory.unreadable}"
    if uuids and (memory.errors or memory.lost):
        for card in _cards_of(memory.inventory, uuids):
            said = _said_of(memory, card)
            if said is not None:
                return f"nothing starts on card {card.index}: {said}"
    return None


def notes(memory: Memory) -> Iterator[tuple[str, str, str]]:
    """Yield what holds for devices because of it, as UUID, name and detail."""
    inventory = memory.inventory
    if inventory is None:
        return
    cards = {card.index: card.uuid for card in inventory.cards}
    for device in inventory.devices:
        if device.card is None:
            continue
        if memory.unreadable is not None:
            name = "driver-mismatch" if MISMATCH in memory.unreadable else "unreadable"
            yield device.uuid, name, memory.unreadable
        if cards.get(device.card) in memory.lost:
            yield device.uuid, "lost", _LOST


def _said_of(memory: Memory, card: Card) -> str | None:
    for number in memory.errors.get(card.uuid, ()):
        xid = XIDS.get(number, UNLISTED)
        if xid.condition in EVACUATED:
            return f"Xid {number}: {xid.meaning}"
    return _LOST if card.uuid in memory.lost else None


def _cards_of(inventory: Inventory | None, uuids: Collection[str]) -> Iterator[Card]:
    if inventory is not None:
        indexes = {device.card for device in inventory.devices if device.uuid in uuids}
        yield from (card for card in inventory.cards if card.index in indexes)


def _parts_on(memory: Memory, card: str, instance: int | None = None) -> list[EnginePart]:
    """Return the parts that have devices of a card, or of one GPU instance of it."""
    uuids = {card}
    if memory.inventory is not None:
        indexes = {one.index for one in memory.inventory.cards if one.uuid == card}
        uuids |= {
            device.uuid
            for device in memory.inventory.devices
            if device.card in indexes and (instance is None or device.gpu_instance == instance)
        }
    return [
        part
        for part in memory.parts.values()
        if part.assignment is not None
        and any(grant.uuid in uuids for grant in part.assignment.grants)
    ]


def _alone(
    memory: Memory, error: CardError, seen: Seen, own_pids: Collection[int]
) -> EnginePart | None:
    """Return the part that an error hit, where it cannot have hit anybody else."""
    parts = _parts_on(memory, error.card, error.gpu_instance)
    if len(parts) != 1 or parts[0].assignment is None:
        return None
    for grant in parts[0].assignment.grants:
        reading = seen.get(grant.uuid)
        if reading is None or reading.processes is None:
            return None
        if any(process.pid not in own_pids for process in reading.processes):
            return None
    return parts[0]


def _doom(part: EnginePart, reason: str) -> None:
    if part.phase in ("starting", "ready") and not part.doomed:
        part.doomed = reason
