"""Samples to conditions, with hysteresis: the only way from telemetry into decisions.

A device becomes `hot` after its card has been above a limit for a while and cools down below a
lower one; it is `occupied` while processes that are not this agent's hold its memory. Only the
changes are logged, so a decision can be replayed without keeping samples. Used by `core.node`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from llmgw.core.events import Condition
from llmgw.hardware.types import (
    MIG_CARD_STRIDE,
    MIG_DEVICE_BASE,
    CardReading,
    DeviceReading,
    Readings,
)

MIB = 1 << 20


class Limits(msgspec.Struct, frozen=True):
    """When a condition begins and ends. The margin is the distance to the card's own slowdown."""

    hot_celsius: float = 88.0
    cool_celsius: float = 80.0
    hot_margin_celsius: float = 2.0
    cool_margin_celsius: float = 8.0
    hot_seconds: float = 30.0
    occupied_bytes: int = 512 * MIB


class ConditionTracker:
    """Remembers what holds, and since when a card has been too warm.

    The first sample always gives an answer: an earlier agent may have said something else.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._warm_since: dict[str, float] = {}
        self._hot: dict[str, CardReading] = {}
        self._last: tuple[Condition, ...] | None = None

    def forget_what_was_said(self) -> None:
        """Return all conditions from the next sample, changed or not."""
        self._last = None

    def update(
        self, readings: Readings, own_pids: frozenset[int], now: float
    ) -> tuple[Condition, ...] | None:
        """Take a sample; return all conditions if they changed, else `None`."""
        for card in readings.cards:
            self._judge_heat(card, now)
        heat = {card.index: card for card in self._hot.values()}
        conditions = [
            Condition(device=d.id, name="hot", detail=_heat(heat[_card_of(d)]))
            for d in readings.devices
            if _card_of(d) in heat
        ]
        for device in readings.devices:
            foreign = _foreign_bytes(device, own_pids)
            if foreign > self._limits.occupied_bytes:
                detail = f"processes that are not llmgw's hold {foreign // MIB} MiB"
                conditions.append(Condition(device=device.id, name="occupied", detail=detail))
        if self._last is not None and _names(conditions) == _names(self._last):
            return None
        self._last = tuple(conditions)
        return self._last

    def _judge_heat(self, card: CardReading, now: float) -> None:
        limits = self._limits
        celsius, margin = card.temperature_celsius, card.temperature_margin_celsius
        warm = (celsius is not None and celsius >= limits.hot_celsius) or (
            margin is not None and margin <= limits.hot_margin_celsius
        )
        cool = (celsius is None or celsius <= limits.cool_celsius) and (
            margin is None or margin >= limits.cool_margin_celsius
        )
        if celsius is None and margin is None:
            return  # nothing was measured: what held still holds
        if not warm:
            self._warm_since.pop(card.uuid, None)
        elif now - self._warm_since.setdefault(card.uuid, now) >= limits.hot_seconds:
            self._hot[card.uuid] = card
        if cool:
            self._hot.pop(card.uuid, None)


def _card_of(device: DeviceReading) -> int:
    mig = device.id - MIG_DEVICE_BASE
    return device.id if mig < 0 else mig // MIG_CARD_STRIDE


def _heat(card: CardReading) -> str:
    if card.temperature_celsius is not None:
        return f"{card.temperature_celsius:g} °C"
    return f"{card.temperature_margin_celsius:g} °C below its slowdown"


def _names(conditions: Iterable[Condition]) -> list[tuple[int, str]]:
    return [(c.device, c.name) for c in conditions]


def _foreign_bytes(device: DeviceReading, own_pids: frozenset[int]) -> int:
    return sum(p.memory_bytes or 0 for p in device.processes or () if p.pid not in own_pids)
