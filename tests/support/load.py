"""Writers that append to a log without a pause, whatever befalls its server."""

from __future__ import annotations

import asyncio
import itertools
import time

from llmgw.log.jetstream import JetStreamLog
from tests.support.nats import Subjects
from tests.support.wait import until


class Load:
    """Writers that append until told to stop, and remember what was acknowledged."""

    def __init__(self, log: JetStreamLog, at: Subjects) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.longest_seconds = 0.0
        self._log = log
        self._at = at
        self._done = asyncio.Event()
        self._writers = [asyncio.ensure_future(self._write(f"w{n}")) for n in range(4)]
        self._writers.append(asyncio.ensure_future(self._decide()))

    async def goes_on(self, more: int = 200) -> None:
        enough = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= enough, 60, "appends go on")

    async def stop(self) -> None:
        self._done.set()
        await asyncio.gather(*self._writers)

    async def _write(self, writer: str) -> None:
        for number in itertools.takewhile(self._goes_on, itertools.count()):
            payload = f"{writer}-{number}".encode()
            began = time.monotonic()
            self._note(
                await self._log.append(
                    self._at.event(writer), payload, message_id=payload.decode()
                ),
                payload,
            )
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    async def _decide(self) -> None:
        """Append behind a fence: nobody else does, so none may be refused."""
        last = 0
        for number in itertools.takewhile(self._goes_on, itertools.count()):
            payload = f"decision-{number}".encode()
            last = await self._log.append(
                self._at.decision,
                payload,
                message_id=payload.decode(),
                expected_last=last,
                fence=self._at.fence,
            )
            self._note(last, payload)

    def _goes_on(self, _: int) -> bool:
        return not self._done.is_set()

    def _note(self, sequence: int, payload: bytes) -> None:
        assert sequence not in self.acknowledged
        self.acknowledged[sequence] = payload
