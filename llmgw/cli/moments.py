"""Time as people name it: points in a log (a sequence, a time, so long ago), and lengths."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from llmgw.errors import UsageError

_LONGEST_SEQUENCE = 18
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?Z?")
_AGO = re.compile(r"(\d{1,9})\s*([a-z]+)\s+ago")
_LENGTH = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smhd])", re.ASCII)
_LONGEST_SECONDS = 7 * 24 * 3600
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_UNITS |= {"sec": "seconds", "min": "minutes"}


def parse_point(text: str, now: datetime, option: str = "--to") -> int | datetime:
    """Return the sequence or the time (with its zone) that `text` names.

    `now` gives the day for `14:05` and the start for `10 minutes ago`. A time without a zone is
    UTC. Raises `UsageError` with the forms that are understood; `option` is who asks.
    """
    text = text.strip()
    try:
        if text.isdecimal():
            return _sequence(text)
        return _clock(text, now) or _ago(text, now) or _stamp(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text!r:.60} is neither a sequence nor a time: write 1234, "
            "2026-03-01T14:05:00Z, 14:05 (today, UTC) or '10 minutes ago'"
        ) from None


def parse_length(text: str, option: str) -> float:
    """Return the seconds that `30s`, `10m`, `2h` or `1d` name.

    Raises `UsageError` for anything else, for nothing and for more than a week.
    """
    match = _LENGTH.fullmatch(text.strip().lower())
    seconds = timedelta(**{_UNITS[match[2]]: float(match[1])}).total_seconds() if match else 0.0
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(
            f"{option} {text!r:.60} is not a length of time up to a week: write 30s, 10m or 2h"
        )
    return seconds


def _sequence(text: str) -> int:
    if not text.isascii() or len(text) > _LONGEST_SEQUENCE:
        raise ValueError
    return int(text)


def _clock(text: str, now: datetime) -> datetime | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(digits or 0) for digits in match.groups())
    return datetime.combine(now.astimezone(UTC).date(), time(hour, minute, second), UTC)


def _ago(text: str, now: datetime) -> datetime | None:
    match = _AGO.fullmatch(text.lower())
    if match is None:
        return None
    word = match[2]
    unit = _UNITS.get(word) or (word if word.endswith("s") else f"{word}s")
    if unit not in _UNITS.values():
        raise ValueError
    return now - timedelta(**{unit: int(match[1])})


def _stamp(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
