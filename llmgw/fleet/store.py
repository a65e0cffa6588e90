"""What the nodes of a fleet must not forget, in one file: an outbox that many brains share.

Brains that have something to store at the same moment are stored in one transaction, so that a
thousand of them cost few flushes of the disk. What a single agent is promised holds for each:
memory and events are one, and neither is lost once `commit` has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llmgw.errors import DataFolderError
from llmgw.outbox import Outbox
from llmgw.wire import Outgoing


class Store:
    """Collects commits of many nodes for one outbox. `write` must run for any to return."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._keep: dict[str, bytes] = {}
        self._messages: list[Outgoing] = []
        self._written: asyncio.Future[None] | None = None
        self._asked = asyncio.Event()
        self.queued = asyncio.Event()
        """Set by the next commit that queues a message, which also puts another in its place."""

    async def commit(self, keep: dict[str, bytes], messages: Sequence[Outgoing]) -> None:
        """Store values and queue messages, together with what others store just now.

        Raises `DataFolderError` when nothing of it was stored.
        """
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        self._keep |= keep
        self._messages += messages
        self._asked.set()
        await asyncio.shield(self._written)

    async def write(self) -> None:
        """Store what is asked for, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            keep, messages, written = self._keep, self._messages, self._written
            self._keep, self._messages, self._written = {}, [], None
            assert written is not None
            try:
                await self._outbox.commit(keep, messages)
            except DataFolderError as error:
                written.set_exception(error)
            else:
                written.set_result(None)
                if messages:
                    self.queued.set()
                    self.queued = asyncio.Event()
