"""Archives that were written once: every format that was ever released is read for ever.

Each `format_N.llmgw` was written by the llmgw that had that format, from one of the histories
beside it. They are never written anew.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmgw.errors import UsageError
from llmgw.log.archive import FORMAT, open_archive
from llmgw.log.base import Bounds, Message

FOLDER = Path(__file__).parent
HISTORY = FOLDER / "catalog_changes_and_a_lost_node.jsonl"
FORMATS = range(1, FORMAT + 1)


def recorded() -> list[Message]:
    return [
        Message(m["sequence"], m["time_ns"], m["subject"], m["payload"].encode())
        for m in map(json.loads, HISTORY.read_text(encoding="utf-8").splitlines())
    ]


async def read(path: Path) -> tuple[Bounds, list[Message]]:
    async with open_archive(path) as archive:
        return await archive.bounds(), [m async for batch in archive.follow() for m in batch]


@pytest.mark.parametrize("number", FORMATS)
def test_an_archive_of_every_format_gives_what_was_written(number: int) -> None:
    bounds, found = asyncio.run(read(FOLDER / f"format_{number}.llmgw"))
    written = recorded()
    assert found == written
    assert bounds == Bounds(1, len(written), written[0].time_ns)


@pytest.mark.parametrize("number", FORMATS)
def test_damage_is_noticed_in_every_format(number: int, tmp_path: Path) -> None:
    path = tmp_path / "damaged.llmgw"
    path.write_bytes((FOLDER / f"format_{number}.llmgw").read_bytes())
    table, column = ("records", "payload") if number == 1 else ("chunks", "body")
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE {table} SET {column} = zeroblob(9)")
        database.commit()
    with pytest.raises(UsageError, match="the records 1 to 53 do not match their checksum"):
        asyncio.run(read(path))
