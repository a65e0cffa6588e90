"""What `--to` and `--for` understand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from llmgw.cli.moments import parse_length, parse_point
from llmgw.errors import UsageError

NOW = datetime(2026, 3, 1, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("0", 0),
        ("1234", 1234),
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00.5+02:00", datetime(2026, 3, 1, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-03-01 12:00", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("14:05", datetime(2026, 3, 1, 14, 5, tzinfo=UTC)),
        ("9:05:30", datetime(2026, 3, 1, 9, 5, 30, tzinfo=UTC)),
        ("10 minutes ago", NOW - timedelta(minutes=10)),
        ("1 hour ago", NOW - timedelta(hours=1)),
        ("90s ago", NOW - timedelta(seconds=90)),
        ("2 DAYS ago", NOW - timedelta(days=2)),
    ],
)
def test_sequences_times_and_so_long_ago_are_understood(text: str, point: int | datetime) -> None:
    assert parse_point(text, NOW) == point


@pytest.mark.parametrize(
    "text",
    ["", "-1", "soon", "25:00", "10 parsecs ago", "999999999 days ago", "2026-13-01", "1" * 40],
)
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(UsageError, match="neither a sequence nor a time: write 1234"):
        parse_point(text, NOW)


def test_the_day_of_a_time_is_the_day_in_utc() -> None:
    east = datetime.fromisoformat("2026-03-02T01:00:00+09:00")
    assert parse_point("12:00", east) == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_length_of_time_has_a_unit() -> None:
    lengths = [parse_length(text, "--for") for text in ("30s", "10m", " 2H ", "1.5 h", "7d")]
    assert lengths == [30, 600, 7200, 5400, 604_800]


@pytest.mark.parametrize(
    "text",
    ["", "10", "m", "0m", "0.0s", "-1m", "8d", "9999999s", "1e3s", "10 weeks", "forever", "٣m"],
)
def test_what_is_no_length_of_time_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(UsageError, match=r"--for .*write 30s, 10m or 2h"):
        parse_length(text, "--for")
