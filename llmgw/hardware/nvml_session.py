"""NVML kept open, so that a sample costs a few calls and not a new program.

The session is a program of its own, as every look is: a driver that hangs or crashes takes nothing
with it, and a person who wants to carve or reset a card is let in by `release`, which ends it. What
it samples is read by the same code as a look, so a sample is an inventory like any other.
"""

from __future__ import annotations

from subprocess import DEVNULL, PIPE
from typing import Self

import anyio
import anyio.abc
from anyio import to_thread
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec.structs import replace

from llmgw.hardware import nvml_failures, running
from llmgw.hardware.assemble import HostMemory
from llmgw.hardware.host import boot_id, host_memory
from llmgw.hardware.nvml import Nvml, parse_record, probe_command, read_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_links import topology_of
from llmgw.hardware.nvml_record import CardRecord, Record, Refusal
from llmgw.hardware.shapes import shape
from llmgw.hardware.topology import Topology
from llmgw.hardware.types import Inventory


class NvmlSession:
    """Samples one node through NVML; opened by the first sample, and again after a release.

    An asynchronous context manager that releases at its end.
    """

    def __init__(self, node: str, nvml: Nvml) -> None:
        self._node = node
        self._nvml = nvml
        self._lock = anyio.Lock()
        self._process: anyio.abc.Process | None = None
        self._lines: BufferedByteReceiveStream | None = None
        self._record = Record()
        self._shape: Inventory | None = None
        self._topology: Topology | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.release()

    async def sample(self) -> Inventory | Failure:
        """What the node has and measures now.

        A sample that contradicts what the session began with is not believed: NVML's own list of
        instances may be stale, so the session is opened again and the machine looked at afresh.
        """
        async with self._lock:
            answered = False
            try:
                found = await self._sample()
                answered = True
                return found
            finally:
                if not answered:  # cancelled between question and answer
                    with anyio.CancelScope(shield=True):
                        await self._close()

    async def _sample(self) -> Inventory | Failure:
        if self._process is not None:
            found = await self._ask()
            if isinstance(found, Inventory) and shape(found) == self._shape:
                return found
            await self._close()
        return await self._open()

    async def release(self) -> None:
        """End the session, so that nothing of llmgw holds NVML when this returns."""
        async with self._lock:
            await self._close()

    async def _open(self) -> Inventory | Failure:
        record = await self._start()
        found = await self._read(record)
        if isinstance(found, Failure) or isinstance(record, Failure):
            await self._close()
            return found
        found = replace(found, boot_id=await to_thread.run_sync(boot_id))
        self._record, self._shape, self._topology = record, shape(found), topology_of(record)
        return found

    async def _start(self) -> Record | Failure:
        command = await to_thread.run_sync(probe_command, self._nvml.library, "--session")
        if command is None:
            return Record(failure=Refusal("binding-missing"))
        try:
            self._process = await running.start(command, stdin=PIPE, stderr=DEVNULL)
        except OSError as error:
            return nvml_failures.crashed(error.errno or 1, str(error))
        if self._process is None or self._process.stdout is None:
            return nvml_failures.in_flight()
        self._lines = BufferedByteReceiveStream(self._process.stdout)
        return await self._line()

    async def _ask(self) -> Inventory | Failure:
        """One more sample of the open session."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return nvml_failures.crashed(1, "the session has ended")
        moved = await self._line()
        if isinstance(moved, Failure):
            return moved
        found = await self._read(_merged(self._record, moved), self._topology)
        if isinstance(found, Failure) or self._shape is None:
            return found
        return replace(found, boot_id=self._shape.boot_id)

    async def _line(self) -> Record | Failure:
        assert self._lines is not None
        try:
            with anyio.fail_after(self._nvml.timeout_seconds):
                line = await self._lines.receive_until(b"\n", running.MOST_BYTES)
        except TimeoutError:
            return nvml_failures.hung(self._nvml.timeout_seconds)
        except (anyio.IncompleteRead, anyio.DelimiterNotFound):
            return nvml_failures.crashed(1, "the session has ended")
        return parse_record(line.decode("utf-8", "replace"))

    async def _read(
        self, record: Record | Failure, topology: Topology | None = None
    ) -> Inventory | Failure:
        def read(host: HostMemory | None) -> Inventory | Failure:
            library = self._nvml.library
            return read_record(self._node, record, library=library, host=host, topology=topology)

        found = read(None)
        if isinstance(found, Inventory) and any(
            out.reason == "unreadable" for out in found.excluded
        ):
            # Cards that draw on the system's memory are readable only with it.
            found = read(await to_thread.run_sync(host_memory))
        return found

    async def _close(self) -> None:
        process, self._process, self._lines = self._process, None, None
        if process is not None:
            command = await to_thread.run_sync(probe_command, self._nvml.library)
            await running.end(process, command[0] if command else "")


def _merged(record: Record, moved: Record) -> Record:
    """The record with the calls that were asked again in place of those before."""
    fresh = {card.index: card for card in moved.cards}
    return replace(record, cards=tuple(_card(card, fresh.get(card.index)) for card in record.cards))


def _card(card: CardRecord, fresh: CardRecord | None) -> CardRecord:
    if fresh is None:
        return card
    own = {one.index: one.calls for one in fresh.instances}
    instances = tuple(
        replace(one, calls=one.calls | own.get(one.index, {})) for one in card.instances
    )
    return replace(card, calls=card.calls | fresh.calls, instances=instances)
