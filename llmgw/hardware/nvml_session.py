"""NVML kept open, so that a sample costs a few calls and not a new program.

The session is a program of its own, as every look is: a driver that hangs or crashes takes nothing
with it, and a person who wants to carve or reset a card is let in by `release`, which ends it. What
it samples is read by the same code as a look, so a sample is an inventory like any other.

Between two samples the session hears what the driver tells by itself: critical errors (Xid), which
it keeps by card, and changes of MIG. Either has the machine looked at afresh, the former once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware import nvml_failures
from llmgw.hardware.answering import Answering
from llmgw.hardware.assemble import HostMemory
from llmgw.hardware.host import boot_id, host_memory
from llmgw.hardware.nvml import Nvml, R, parse, probe_command, read_record
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_links import topology_of
from llmgw.hardware.nvml_moving import CardReader
from llmgw.hardware.nvml_record import CardRecord, Record, Refusal
from llmgw.hardware.shapes import shape
from llmgw.hardware.topology import Topology
from llmgw.hardware.types import CardError, Inventory

XID, MIG_CONFIG_CHANGE = 0x8, 0x100
_NO_INSTANCE = 2**32 - 1
_MOST_ERRORS = 100
FROZEN_SECONDS = 5.0
"""So long a card's values may be of one moment, by the driver's own clock, before they are old."""


class Told(msgspec.Struct, frozen=True):
    """One event: its kind, the card's index, and of an Xid its number and where on the card."""

    kind: int
    card: int | None = None
    data: int = 0
    gpu_instance: int | None = None


class Moved(Record, frozen=True):
    """What a session prints for a sample: the calls that it asked again, and what it was told.

    `stamps` are the moments, by the driver's clock, of which the values of each card are; zero
    where it does not tell.
    """

    events: tuple[Told, ...] = ()
    stamps: dict[int, int] = {}


class Ages:
    """How old what the driver tells of its cards is, where its own clock says so.

    A driver that hangs may go on answering with what it knew. A time that never moved proves
    nothing: some drivers may tell one that means something else.
    """

    def __init__(self, frozen_seconds: float = FROZEN_SECONDS) -> None:
        self._frozen_seconds = frozen_seconds
        self._known: dict[str, tuple[int, float, bool]] = {}

    def note(self, uuid: str, stamp: int, now: float) -> None:
        """Take the driver's time of a card's values, at a moment by a clock that never jumps."""
        last, _, moved = self._known.get(uuid, (stamp, now, False))
        if stamp != last or uuid not in self._known:
            self._known[uuid] = (stamp, now, stamp != 0 and (moved or stamp != last))

    def old(self, now: float) -> dict[str, float]:
        """Return for how many seconds the values of cards have stood still, of those that do."""
        return {
            uuid: now - since
            for uuid, (_, since, moved) in self._known.items()
            if moved and now - since >= self._frozen_seconds
        }


class NvmlSession:
    """Samples one node through NVML; opened by the first sample, and again after a release.

    An asynchronous context manager that releases at its end.
    """

    def __init__(self, node: str, nvml: Nvml, frozen_seconds: float = FROZEN_SECONDS) -> None:
        self._node = node
        self._nvml = nvml
        self._lock = anyio.Lock(fast_acquire=True)
        self._program: Answering | None = None
        self._record = Record()
        self._shape: Inventory | None = None
        self._topology: Topology | None = None
        self._reader = CardReader()
        self._xids: dict[str, tuple[int, ...]] = {}
        self._errors: list[CardError] = []
        self._ages = Ages(frozen_seconds)

    def take_errors(self) -> tuple[CardError, ...]:
        """Return the critical errors told since this was asked last, those that repeat as well."""
        errors, self._errors = self._errors, []
        return tuple(errors[-_MOST_ERRORS:])

    def ages(self) -> Mapping[str, float]:
        """Return how many seconds old the values of cards are that do not move any more."""
        return self._ages.old(anyio.current_time())

    @property
    def xids(self) -> Mapping[str, tuple[int, ...]]:
        """The critical errors that each card had, by its UUID, until they are forgotten."""
        return self._xids

    def forget_xids(self) -> None:
        """Begin anew with the critical errors, as after a reset of the cards."""
        self._xids = {}

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
        if self._program is not None:
            moved = await self._line(self._program.ask, Moved)
            if isinstance(moved, Moved):
                self._note_ages(moved)
            if isinstance(moved, Moved) and not self._notices(moved.events):
                self._record = _merged(self._record, moved)
                found = await self._read(self._record, self._topology)
                if isinstance(found, Inventory) and self._shape is not None:
                    found = replace(found, boot_id=self._shape.boot_id)
                    if shape(found) == self._shape:
                        return found
            await self._close()
            if moved == nvml_failures.hung(self._nvml.timeout_seconds):
                return moved  # another would hang as well: this is to be told first
        return await self._open()

    def _note_ages(self, moved: Moved) -> None:
        now, uuids = anyio.current_time(), self._uuids()
        for index, stamp in moved.stamps.items():
            if index in uuids:
                self._ages.note(uuids[index], stamp, now)

    def _uuids(self) -> dict[int, str]:
        return {card.index: card.uuid for card in self._shape.cards} if self._shape else {}

    def _notices(self, events: tuple[Told, ...]) -> bool:
        """Keep the critical errors, and tell whether something is not as it was."""
        uuids = self._uuids()
        news = False
        for event in events:
            uuid = uuids.get(-1 if event.card is None else event.card)
            if event.kind == XID and uuid is not None:
                where = None if event.gpu_instance == _NO_INSTANCE else event.gpu_instance
                error = CardError(card=uuid, number=event.data, gpu_instance=where)
                self._errors.append(error)
                known = self._xids.get(uuid, ())
                if event.data not in known:
                    self._xids[uuid] = (*known, event.data)
                    news = True
            elif event.kind == MIG_CONFIG_CHANGE:
                news = True
        return news

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
        command = await to_thread.run_sync(lambda: probe_command(self._nvml.library, stays=True))
        if command is None:
            return Record(failure=Refusal("binding-missing"))
        try:
            self._program = await Answering.start(command)
        except OSError as error:
            return nvml_failures.crashed(error.errno or 1, str(error))
        if self._program is None:
            return nvml_failures.in_flight()
        return await self._line(self._program.line, Record)

    async def _line(self, line: Callable[[float], Awaitable[bytes]], kind: type[R]) -> R | Failure:
        """The next line that the program prints, or prints when it is asked."""
        try:
            return parse(await line(self._nvml.timeout_seconds), kind)
        except TimeoutError:
            return nvml_failures.hung(self._nvml.timeout_seconds)
        except EOFError:
            return nvml_failures.crashed(1, "the session has ended")

    async def _read(
        self, record: Record | Failure, topology: Topology | None = None
    ) -> Inventory | Failure:
        def read(host: HostMemory | None) -> Inventory | Failure:
            library = self._nvml.library
            return read_record(
                self._node,
                record,
                library=library,
                host=host,
                topology=topology,
                reads=self._reader,
                worn_errors=self._nvml.worn_errors,
            )

        found = read(None)
        if isinstance(found, Inventory) and any(
            out.reason == "unreadable" for out in found.excluded
        ):
            # Cards that draw on the system's memory are readable only with it.
            found = read(await to_thread.run_sync(host_memory))
        return found

    async def _close(self) -> None:
        program, self._program = self._program, None
        if program is not None:
            await program.end()


def _merged(record: Record, moved: Record) -> Record:
    """The record with what has moved in place of what was before; the rest of it is the same."""
    fresh = {card.index: card for card in moved.cards}
    return replace(record, cards=tuple(_card(card, fresh.get(card.index)) for card in record.cards))


def _card(card: CardRecord, fresh: CardRecord | None) -> CardRecord:
    if fresh is None:
        return card
    own = {one.index: one.calls for one in fresh.instances}
    instances = card.instances
    if own:
        instances = tuple(
            replace(one, calls=one.calls | own[one.index]) if one.index in own else one
            for one in instances
        )
    return replace(card, calls=card.calls | fresh.calls, instances=instances)
