"""Signs of life of nodes that do not exist, for as long as they should be there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from llmgw import wire
from llmgw.core.telemetry import NodeHeartbeat, NodeSample
from tests.support.cluster import NAME, OnLog
from tests.support.wait import until

TIME = "2026-01-01T00:00:00Z"


class Pulse:
    """Heartbeats of those in `nodes`; samples, as agents of before send, of those in `old`."""

    def __init__(self, on: OnLog, *nodes: str) -> None:
        self.nodes = {*nodes}
        self.old: set[str] = set()
        self._log = on.log
        self._number = 0

    async def _beat(self) -> object:
        """Send a sign of life of each node; never true, so that `until` goes on beating."""
        self._number += 1
        for node in self.nodes:
            beat = NodeHeartbeat(node=node, session="s", number=self._number)
            message = wire.encode_heartbeat(NAME, beat, time=TIME)
            await self._log.say(message.subject, message.payload)
        for node in self.old:
            sample = NodeSample(node=node, session="s", number=self._number)
            message = wire.encode_sample(NAME, sample, time=TIME)
            await self._log.publish_sample(message.subject, message.payload)
        return None

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Let them live for the length of the block."""
        heart: asyncio.Task[object] = asyncio.create_task(until(self._beat, 600))
        try:
            yield
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
