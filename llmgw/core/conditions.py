"""Samples to conditions, with hysteresis: the only way from telemetry into decisions.

A device becomes `hot` after its card has been above a limit for a while and cools down below a
lower one; it is `occupied` while processes that are not this agent's hold its memory. Only the
changes are logged, so a decision can be replayed without keeping samples. Used by `core.node`.

The rules, which docs/conditions.md tells an operator:

- At the first look at a card or device what is beyond a limit counts at once: nobody knows for how
  long it has been so, and an agent that comes up must not call a hot card cool.
- A value that is absent counts for nothing: it begins no condition and ends none, and the time in
  which it is absent is not counted. A condition whose value has not come for a while becomes
  `unmeasured`, unless it is of a kind that does not pass by itself (`worn`, `xid`).
- A card that has answered before and answers nothing any more, though the sample came, is `lost`;
  nothing else is said of it then.
- What ails the node as a whole is told with the sample and ends a while after the last word of it.
- Conditions are about devices that the inventory offers. What an inventory says of a card itself
  (`mig-empty`, `mig-pending`, …) is logged with it and not said again here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from llmgw.core.events import Condition
from llmgw.core.judging import Band, Gate, card_rules
from llmgw.core.limits import MIB, Limits
from llmgw.core.meanings import AVOIDED, MEANINGS
from llmgw.hardware.types import (
    MIG_CARD_STRIDE,
    MIG_DEVICE_BASE,
    Card,
    CardReading,
    DeviceReading,
    Inventory,
    Process,
    Readings,
    Wear,
)

__all__ = ["AVOIDED", "MEANINGS", "MIB", "ConditionTracker", "Limits", "at_a_glance"]

NAMED_PROCESSES = 3
_UNTOLD_WEAR = Wear()

_Holding = tuple[int | None, str, Callable[[], str]]
"""What holds: for which device, under which name, and in what words."""


class _Layout(NamedTuple):
    """Which devices the node offers, and on which card: an inventory as the tracker needs it."""

    cards: dict[str, Card]
    devices_on: dict[int, list[int]]
    number_of: dict[str, int]


class _Known(msgspec.Struct):
    """A card that has answered: its index, and the gates of its rules by their place."""

    index: int
    gates: dict[int, Gate] = {}
    lost: Gate | None = None


class ConditionTracker:
    """Remembers what holds, and for how long values have spoken against that.

    The first sample always gives an answer: an earlier agent may have said something else.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._limits = limits
        self._rules = card_rules(limits)
        self._loss = Band(1, 0, limits.lost_seconds, limits.found_seconds)
        self._occupation = Band(
            limits.occupied_bytes,
            limits.vacant_bytes,
            limits.occupied_seconds,
            limits.vacant_seconds,
        )
        self._inventory: Inventory | None = None
        self._layout = _Layout({}, {}, {})
        self._cards: dict[str, _Known] = {}
        self._devices: dict[str, Gate | None] = {}
        self._troubles: dict[str, tuple[str, float]] = {}
        self._notes: tuple[tuple[str, str, str], ...] = ()
        self._said: set[tuple[int | None, str]] | None = None

    def forget_what_was_said(self) -> None:
        """Return all conditions from the next sample, changed or not."""
        self._said = None

    def note(self, notes: Iterable[tuple[str, str, str]]) -> None:
        """Hear what the brain itself knows of devices, as UUID, name and detail.

        That holds, from the next sample on, until something else is noted: it needs no hysteresis.
        """
        self._notes = tuple(notes)

    def update(
        self,
        readings: Readings | None,
        own_pids: frozenset[int],
        now: float,
        inventory: Inventory | None = None,
        troubles: Iterable[tuple[str, str]] = (),
    ) -> tuple[Condition, ...] | None:
        """Take a sample; return all conditions if there are others than before, else `None`.

        Without `readings` nothing could be measured. `inventory` says which devices there are, and
        `troubles`, as name and detail, what ails the node. The conditions are ordered by device,
        those of the node first.
        """
        self._look(inventory, readings)
        if readings is not None:
            self._judge_cards(readings.cards, now)
            self._judge_devices(readings.devices, own_pids, now)
        self._hear(troubles, now)
        held = list(self._holding(now))
        if self._said is None and readings is None and not held:
            return None  # nothing is known yet
        names = {(device, name) for device, name, _ in held}
        if self._said == names:
            return None
        self._said = names
        words: dict[tuple[int | None, str], list[str]] = {}
        for device, name, says in held:
            words.setdefault((device, name), []).append(says())
        return tuple(
            Condition(device=key[0], name=key[1], detail="; ".join(dict.fromkeys(words[key])))
            for key in sorted(words, key=_order)
        )

    # --- which devices there are ------------------------------------------------------------------

    def _look(self, inventory: Inventory | None, readings: Readings | None) -> None:
        if inventory is None:
            if readings is not None:
                self._layout = _layout_of_readings(readings)
        elif inventory is not self._inventory:
            self._layout = layout = _layout_of(inventory)
            self._cards = {u: card for u, card in self._cards.items() if u in layout.cards}
            self._devices = {u: gate for u, gate in self._devices.items() if u in layout.number_of}
        self._inventory = inventory

    # --- judging ----------------------------------------------------------------------------------

    def _judge_cards(self, readings: tuple[CardReading, ...], now: float) -> None:
        cards = self._layout.cards
        silent = set(self._cards)
        for reading in readings:
            card = cards.get(reading.uuid)
            if (card is None and cards) or not _answers(reading):
                continue  # not, or not yet, in the inventory; or nothing was measured of it
            silent.discard(reading.uuid)
            self._judge_card(reading, card, now)
        if readings:  # else the sample says nothing about cards
            for uuid in silent:
                self._miss_card(self._cards[uuid], now)

    def _judge_card(self, reading: CardReading, card: Card | None, now: float) -> None:
        known = self._cards.get(reading.uuid)
        is_first = known is None
        if known is None:
            known = self._cards[reading.uuid] = _Known(reading.index)
        known.index = card.index if card is not None else reading.index
        if known.lost is not None:
            known.lost.take(0, self._loss, now)
            if known.lost.is_idle:
                known.lost = None
        gates = known.gates
        for place, rule in enumerate(self._rules):
            value = rule.measure(reading, card)
            gate = gates.get(place)
            if gate is None:
                if value is None or value < rule.band.enter:
                    continue
                gate = gates[place] = Gate(holds=is_first)
            if value is None:
                gate.miss()
                continue
            gate.take(value, rule.band, now)
            if gate.holds:
                gate.says = partial(rule.says, reading, card)
            elif gate.is_idle:
                del gates[place]

    def _miss_card(self, known: _Known, now: float) -> None:
        if known.lost is None:
            known.lost = Gate()
        known.lost.take(1, self._loss, now)
        if known.lost.holds:
            known.gates.clear()
        for gate in known.gates.values():
            gate.miss()

    def _judge_devices(
        self, readings: tuple[DeviceReading, ...], own_pids: frozenset[int], now: float
    ) -> None:
        gates = self._devices
        for reading in readings:
            uuid, foreign = reading.uuid, _foreign(reading.processes, own_pids)
            if foreign or gates.get(uuid) is not None:
                self._judge_device(uuid, foreign, now)
            else:
                gates[uuid] = None

    def _judge_device(self, uuid: str, foreign: Sequence[Process] | None, now: float) -> None:
        is_first = uuid not in self._devices
        gate = self._devices.get(uuid) or Gate()
        self._devices[uuid] = gate
        value = _bytes_of(foreign, self._limits.occupied_bytes)
        if value is None:
            gate.miss()
        else:
            gate.holds |= is_first and value >= self._limits.occupied_bytes
            gate.take(value, self._occupation, now)
            if gate.holds:
                gate.says = partial(_occupation, foreign or (), value)
        if gate.is_idle:
            self._devices[uuid] = None

    def _hear(self, troubles: Iterable[tuple[str, str]], now: float) -> None:
        for name, detail in troubles:
            self._troubles[name] = (detail, now)
        if self._troubles:
            lasting = self._limits.trouble_seconds
            told = self._troubles.items()
            self._troubles = {n: t for n, t in told if t[1] == now or now - t[1] < lasting}

    # --- what holds -------------------------------------------------------------------------------

    def _holding(self, now: float) -> Iterator[_Holding]:
        """Yield what holds, and how to put it into words; a name can come for several reasons."""
        for name, (detail, _) in self._troubles.items():
            yield None, name, partial(str, detail)
        for card in self._cards.values():
            if card.gates or card.lost is not None:
                devices = self._layout.devices_on.get(card.index, ())
                for name, says in self._of_card(card, now):
                    for device in devices:
                        yield device, name, says
        for uuid, gate in self._devices.items():
            if gate is not None and gate.holds and uuid in self._layout.number_of:
                yield self._layout.number_of[uuid], *self._told("occupied", gate, now)
        for uuid, name, detail in self._notes:
            if uuid in self._layout.number_of:
                yield self._layout.number_of[uuid], name, partial(str, detail)

    def _of_card(self, card: _Known, now: float) -> Iterator[tuple[str, Callable[[], str]]]:
        if card.lost is not None and card.lost.holds:
            seconds = self._limits.lost_seconds
            yield "lost", lambda: f"it has not answered for {seconds:g} s or longer"
            return
        for place, gate in card.gates.items():
            if gate.holds:
                rule = self._rules[place]
                yield self._told(rule.name, gate, now) if rule.lapses else (rule.name, gate.says)

    def _told(self, name: str, gate: Gate, now: float) -> tuple[str, Callable[[], str]]:
        """Return the condition as it can be told: what nobody measures is not believed for ever."""
        unmeasured = now - gate.measured_at
        if unmeasured < self._limits.unmeasured_seconds:
            return name, gate.says
        return (
            "unmeasured",
            lambda: f"{name} when last measured, {unmeasured:.0f} s ago: {gate.says()}",
        )


def at_a_glance(inventory: Inventory, limits: Limits | None = None) -> tuple[Condition, ...]:
    """Return the conditions that one look at a machine shows, those of processes left out."""
    fields = [f for f in CardReading.__struct_fields__ if f in Card.__struct_fields__]
    cards = (CardReading(**{f: getattr(card, f) for f in fields}) for card in inventory.cards)
    readings = Readings(cards=tuple(cards))
    return ConditionTracker(limits).update(readings, frozenset(), 0.0, inventory) or ()


def _layout_of(inventory: Inventory) -> _Layout:
    devices_on: dict[int, list[int]] = {}
    for device in inventory.devices:
        if device.card is not None:
            devices_on.setdefault(device.card, []).append(device.id)
    cards = {card.uuid: card for card in inventory.cards}
    return _Layout(cards, devices_on, {device.uuid: device.id for device in inventory.devices})


def _layout_of_readings(readings: Readings) -> _Layout:
    """Return what the numbers of devices say by themselves, where no inventory is known."""
    devices_on: dict[int, list[int]] = {}
    for device in readings.devices:
        mig = device.id - MIG_DEVICE_BASE
        card = device.id if mig < 0 else mig // MIG_CARD_STRIDE
        devices_on.setdefault(card, []).append(device.id)
    return _Layout({}, devices_on, {device.uuid: device.id for device in readings.devices})


def _answers(reading: CardReading) -> bool:
    """Return whether anything was measured of the card. Its errors (Xid) the driver remembers."""
    return (
        reading.temperature_celsius is not None
        or reading.temperature_margin_celsius is not None
        or reading.power_watts is not None
        or reading.throttled_by is not None
        or reading.utilization_percent is not None
        or reading.fan_percent is not None
        or reading.clock_graphics_mhz is not None
        or reading.clock_memory_mhz is not None
        or reading.pcie_replays is not None
        or reading.nvlink_errors is not None
        or reading.age_seconds is not None
        or reading.wear != _UNTOLD_WEAR
    )


def _foreign(
    processes: tuple[Process, ...] | None, own_pids: frozenset[int]
) -> Sequence[Process] | None:
    """Return the processes that are not the agent's, or `None` where the driver tells of none."""
    if not processes:
        return processes
    return [p for p in processes if p.pid not in own_pids]


def _bytes_of(processes: Sequence[Process] | None, enough: int) -> int | None:
    """Return what the processes hold: absent where one does not tell, unless others do suffice."""
    if processes is None:
        return None
    told = [p.memory_bytes for p in processes if p.memory_bytes is not None]
    total = sum(told)
    return total if len(told) == len(processes) or total >= enough else None


def _occupation(foreign: Iterable[Process], total_bytes: int) -> str:
    biggest = sorted(foreign, key=lambda p: (-(p.memory_bytes or 0), p.pid))
    named = [f"{p.pid} ({p.name})" if p.name else str(p.pid) for p in biggest[:NAMED_PROCESSES]]
    more = f" and {len(biggest) - NAMED_PROCESSES} more" if biggest[NAMED_PROCESSES:] else ""
    return (
        f"processes that are not llmgw's hold {total_bytes // MIB} MiB:"
        f" pid {', '.join(named)}{more}"
    )


def _order(key: tuple[int | None, str]) -> tuple[bool, int, str]:
    device, name = key
    return device is not None, device or 0, name
