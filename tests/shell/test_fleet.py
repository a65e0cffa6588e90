"""What the nodes of a fleet share: one file, and a range of ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.core.stimuli import Key, Start
from llmgw.errors import DataFolderError
from llmgw.fleet.node import Ports
from llmgw.fleet.run import port_ranges
from llmgw.fleet.store import Store
from llmgw.outbox import Outbox, open_outbox
from llmgw.wire import Outgoing

START = Start(Key("r1", 0), 1, 1)
AGAIN = Start(Key("r1", 0), 1, 2)


class CountedOutbox(Outbox):
    """An outbox that knows how often it was written, and refuses when told to."""

    writes = 0
    full = False

    async def commit(self, keep: dict[str, bytes], messages: object = ()) -> None:
        if self.full:
            raise DataFolderError("no room")
        self.writes += 1
        await super().commit(keep, messages)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Store, CountedOutbox]]:
    async with open_outbox(folder) as outbox:
        outbox.__class__ = CountedOutbox
        assert isinstance(outbox, CountedOutbox)
        store = Store(outbox)
        writing = asyncio.create_task(store.write())
        try:
            yield store, outbox
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def message(number: int) -> Outgoing:
    return Outgoing("subject", f"{number}".encode(), f"id-{number}")


async def test_what_many_nodes_store_at_once_is_one_write_and_all_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, outbox):
        queued = store.queued
        commits = (store.commit({f"n{n}": b"memory"}, [message(n)]) for n in range(200))
        await asyncio.gather(*commits)
        assert outbox.writes == 1
        assert queued.is_set()
        assert not store.queued.is_set()
        assert [w.message for w in await outbox.waiting()] == [message(n) for n in range(200)]
        assert await outbox.kept("n199") == b"memory"


async def test_a_write_that_fails_is_told_to_each_that_asked_and_stores_nothing(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (store, outbox):
        outbox.full = True
        commits = (store.commit({"a": b"1"}, [message(n)]) for n in range(3))
        answers = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(answer) for answer in answers] == [DataFolderError] * 3
        outbox.full = False
        await store.commit({"b": b"2"}, [message(9)])
        assert [w.message for w in await outbox.waiting()] == [message(9)]
        assert await outbox.kept("a") is None


def test_a_port_belongs_to_one_start_until_that_has_ended() -> None:
    ports = Ports()
    assert ports.take(18100, "sim-1", START)
    assert ports.take(18100, "sim-1", START)
    assert not ports.take(18100, "sim-2", START)
    assert not ports.take(18100, "sim-1", AGAIN)
    ports.give_back("sim-2", START)
    assert not ports.take(18100, "sim-2", START)
    ports.give_back("sim-1", START)
    assert ports.take(18100, "sim-2", START)


@pytest.mark.parametrize(
    ("ports", "nodes", "ranges"),
    [
        (range(100, 200), 4, ["100-124", "125-149", "150-174", "175-199"]),
        (range(100, 110), 3, ["100-107", "102-109", "101-108"]),
        (range(100, 103), 3, ["100-102"] * 3),
    ],
)
def test_each_node_tries_ports_of_its_own_as_far_as_there_are_any(
    ports: range, nodes: int, ranges: list[str]
) -> None:
    assert port_ranges(ports, nodes) == ranges


def test_a_thousand_nodes_get_ranges_within_the_ports() -> None:
    ports = range(18100, 19000)
    for text in port_ranges(ports, 1000):
        first, last = map(int, text.split("-"))
        assert first in ports
        assert last in ports
        assert last - first == 7
