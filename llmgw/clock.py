"""The present time, as whoever writes to the log puts it beside what it says."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the present time as the wire shows it (RFC 3339, UTC); nothing is decided on it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
