"""Entering and leaving what must not be left half open, for whoever is cancelled meanwhile.

A database that is opened or closed in a thread is such a thing: given up in the middle, the thread
answers a loop that is gone. It knows nothing of databases; outbox and snapshots use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

import anyio

T = TypeVar("T")


@asynccontextmanager
async def shielded(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave `context` to the end, also where that is cancelled; not what lies between.

    The context must not care with what exception it is left.
    """
    async with AsyncExitStack() as stack:
        with anyio.CancelScope(shield=True):
            entered = await stack.enter_async_context(context)
        try:
            yield entered
        finally:
            with anyio.CancelScope(shield=True):
                await stack.aclose()
