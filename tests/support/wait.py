"""Waiting in tests: for a condition with a deadline, never for a span of time.

The only place in the tests that may sleep (test_tidy.py sees to it). A test that waits says what
for, so that a failure reads "still not true after 10 s: replica r1 is ready".
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


@overload
async def until(
    condition: Callable[[], Awaitable[T]], deadline_seconds: float = ..., what: str = ...
) -> T: ...


@overload
async def until(
    condition: Callable[[], T], deadline_seconds: float = ..., what: str = ...
) -> T: ...


async def until(
    condition: Callable[[], T | Awaitable[T]],
    deadline_seconds: float = 10,
    what: str = "the condition",
) -> T:
    """Return the first true value that `condition` gives; it may be async.

    Raises `AssertionError` naming `what` and the last value when none came in time. An exception
    of `condition` is not caught: a condition that can fail for a while says so by being false.
    """
    end = time.monotonic() + deadline_seconds
    while True:
        answer = condition()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_late(what, deadline_seconds, value))
        await asyncio.sleep(_PAUSE_SECONDS)


def until_sync(
    condition: Callable[[], T], deadline_seconds: float = 10, what: str = "the condition"
) -> T:
    """Return the first true value that `condition` gives, as `until` does, without a loop."""
    end = time.monotonic() + deadline_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_late(what, deadline_seconds, value))
        time.sleep(_PAUSE_SECONDS)


def _late(what: str, deadline_seconds: float, value: object) -> str:
    return f"still not true after {deadline_seconds:g} s: {what} (last value: {value!r})"
