"""One value against one pair of limits, with time: the hysteresis that all conditions share.

`Gate` is the mechanism, `card_rules` the table of what a card's reading is held against. Nothing
here knows of devices or of the log; `core.conditions` is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from llmgw.core.limits import Limits
from llmgw.core.meanings import PAIRED, UNLISTED, XIDS
from llmgw.hardware.types import Card, CardReading

THROTTLES = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)
"""Reasons for low clocks that mean heat or a bad supply. Idling, caps and boosts in step do not."""
POWER_CAP = "sw_power_cap"


class Band(NamedTuple):
    """A condition begins at `enter` and above, and ends at `leave` and below, after a time each."""

    enter: float
    leave: float
    enter_seconds: float = 0.0
    leave_seconds: float = 0.0


FLAG = Band(1, 0)
"""For what is so or is not so, as the hardware itself says."""


class Gate(msgspec.Struct):
    """Whether one condition holds for one card or device, and what speaks against that.

    `contrary_seconds` is how long values have spoken against it without a break. Time without a
    value does not count for either side. `says` puts the newest value that was taken while it held
    into words, which is done only when they are wanted.
    """

    holds: bool = False
    measured_at: float = 0.0
    contrary_seconds: float = 0.0
    contrary_at: float | None = None
    says: Callable[[], str] = str

    def take(self, value: float, band: Band, now: float) -> None:
        """Take a measured value."""
        self.measured_at = now
        if not (value <= band.leave if self.holds else value >= band.enter):
            self._rest()
            return
        if self.contrary_at is not None:
            self.contrary_seconds += now - self.contrary_at
        self.contrary_at = now
        if self.contrary_seconds >= (band.leave_seconds if self.holds else band.enter_seconds):
            self.holds = not self.holds
            self._rest()

    def miss(self) -> None:
        """Take note that nothing was measured."""
        self.contrary_at = None

    def _rest(self) -> None:
        self.contrary_at, self.contrary_seconds = None, 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing and counts nothing, so that a new one would say the same."""
        return not self.holds and self.contrary_at is None and self.contrary_seconds == 0.0


Measure = Callable[[CardReading, Card | None], float | None]
"""What of a reading (and of the card as the inventory has it) is held against a band."""


class Rule(NamedTuple):
    """What of a card's reading raises a condition: one of several reasons for the same name.

    `measure` returns the value that is held against the band, `None` where it is absent. A rule
    that does not lapse speaks of what does not pass by itself: it holds until measured otherwise.
    """

    name: str
    measure: Measure
    band: Band
    says: Callable[[CardReading, Card | None], str]
    lapses: bool = True


def card_rules(limits: Limits) -> tuple[Rule, ...]:
    """Return the rules for cards under these limits."""
    errors = map(_xid, ("lost", "xid", "suspect"))
    return (*_heat(limits), *_power(limits), *_wear(limits), *errors, _staleness(limits))


def _heat(limits: Limits) -> tuple[Rule, ...]:
    times = limits.hot_seconds, limits.cool_seconds
    margin = Band(-limits.hot_margin_celsius, -limits.cool_margin_celsius, *times)
    return (
        Rule(
            "hot",
            lambda reading, _: reading.temperature_celsius,
            Band(limits.hot_celsius, limits.cool_celsius, *times),
            lambda reading, _: (
                f"{reading.temperature_celsius:g} °C, limit {limits.hot_celsius:g} °C"
            ),
        ),
        Rule(
            "hot",
            _nearness,
            margin,
            lambda reading, card: (
                f"{_distance(reading, card)}, limit {limits.hot_margin_celsius:g} °C"
            ),
        ),
        Rule(
            "throttled",
            _throttling,
            Band(1, 0, limits.throttled_seconds, limits.unthrottled_seconds),
            _throttle,
        ),
    )


def _power(limits: Limits) -> tuple[Rule, ...]:
    times = limits.capped_seconds, limits.uncapped_seconds
    percent = Band(limits.capped_percent, limits.uncapped_percent, *times)
    return (
        Rule("power-capped", _capping, Band(1, 0, *times), _draw),
        Rule("power-capped", _power_percent, percent, _draw),
    )


def _wear(limits: Limits) -> tuple[Rule, ...]:
    def flagged(name: str, measure: Measure, what: str) -> Rule:
        return Rule(name, measure, FLAG, lambda *_: what, lapses=False)

    def counted(measure: Measure, limit: int, what: str) -> Rule:
        def says(reading: CardReading, card: Card | None) -> str:
            return f"{measure(reading, card)} {what}, limit {limit}"

        return Rule("worn", measure, Band(limit + 1, limit), says, lapses=False)

    return (
        flagged(
            "worn",
            lambda reading, _: reading.wear.remap_failed,
            "a row of its memory could not be remapped",
        ),
        flagged(
            "remap-pending",
            lambda reading, _: reading.wear.remap_pending,
            "a row of its memory waits for a reset to be remapped",
        ),
        flagged(
            "remap-pending",
            lambda reading, _: reading.wear.retired_pending,
            "a page of its memory waits for a reset to be retired",
        ),
        counted(  # since the last reset: over its life would include all that was mended
            lambda reading, _: reading.wear.ecc_volatile_uncorrected,
            limits.worn_errors,
            "errors that ECC could not correct",
        ),
        counted(lambda reading, _: reading.wear.remapped_rows, limits.worn_rows, "remapped rows"),
        counted(lambda reading, _: reading.wear.retired_pages, limits.worn_pages, "retired pages"),
    )


def _xid(condition: str) -> Rule:
    """Return the rule for the driver's critical errors of one kind; it lists each until reset."""

    def numbers(reading: CardReading) -> list[int]:
        return [x for x in reading.xids if XIDS.get(x, UNLISTED).condition == condition]

    def says(reading: CardReading, _: Card | None) -> str:
        told = numbers(reading)
        told += [x for x in reading.xids if x in PAIRED and 48 in told]
        return ", ".join(f"Xid {x}: {XIDS.get(x, UNLISTED).meaning}" for x in told)

    def measure(reading: CardReading, _: Card | None) -> float:
        return len(numbers(reading)) if reading.xids else 0

    return Rule(condition, measure, FLAG, says, lapses=False)


def _staleness(limits: Limits) -> Rule:
    """Return the rule for a card of which the driver tells the same again and again."""
    return Rule(
        "stale",
        lambda reading, _: reading.age_seconds or 0,
        Band(limits.stale_seconds, 0),
        lambda reading, _: f"the same for {reading.age_seconds or 0:.0f} s",
        lapses=False,
    )


def _nearness(reading: CardReading, card: Card | None) -> float | None:
    """How near to its slowdown a card is: its margin below zero, so that more is hotter."""
    margin = reading.temperature_margin_celsius
    if margin is not None:
        return -margin
    slowdown = card.temperature_slowdown_celsius if card is not None else None
    celsius = reading.temperature_celsius
    return None if slowdown is None or celsius is None else celsius - slowdown


def _distance(reading: CardReading, card: Card | None) -> str:
    above = _nearness(reading, card) or 0
    return f"{abs(above):g} °C {'above' if above > 0 else 'below'} its slowdown"


def _throttling(reading: CardReading, _: Card | None) -> float | None:
    reasons = reading.throttled_by
    return len(THROTTLES.intersection(reasons)) if reasons else (0 if reasons == () else None)


def _throttle(reading: CardReading, _: Card | None) -> str:
    reasons = ", ".join(r for r in reading.throttled_by or () if r in THROTTLES)
    clock = reading.clock_graphics_mhz
    return reasons if clock is None else f"{reasons}, {clock:g} MHz"


def _capping(reading: CardReading, _: Card | None) -> float | None:
    reasons = reading.throttled_by
    return None if reasons is None else POWER_CAP in reasons


def _power_percent(reading: CardReading, _: Card | None) -> float | None:
    watts, limit = reading.power_watts, reading.power_limit_watts
    return None if watts is None or not limit else 100 * watts / limit


def _draw(reading: CardReading, _: Card | None) -> str:
    watts, limit = reading.power_watts, reading.power_limit_watts
    if watts is None:
        return POWER_CAP
    return f"{watts:g} W" if limit is None else f"{watts:g} W of {limit:g} W"
