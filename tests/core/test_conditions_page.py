"""docs/conditions.md says what the tables say: every name, limit and error, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmgw.core.judging import THROTTLES
from llmgw.core.limits import Limits
from llmgw.core.meanings import AVOIDED, EVACUATED, MEANINGS, UNLISTED, XIDS, Xid

PAGE = Path(__file__).parents[2] / "docs" / "conditions.md"
OF_NODES = {"tool-hung", "unwritable", "mended", "untold"}


def table(first_header: str) -> list[tuple[str, ...]]:
    """The rows of the one table whose first column has this header."""
    rows = [_cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|")]
    starts = [place for place, row in enumerate(rows) if rows[place - 1][0] == first_header]
    (start,) = starts
    assert set(rows[start]) == {"---"}
    width = len(rows[start])
    return list(_until_next_header(rows[start + 1 :], width))


def _until_next_header(rows: list[tuple[str, ...]], width: int) -> Iterator[tuple[str, ...]]:
    for row, below in zip(rows, [*rows[1:], ()], strict=True):
        if set(below) == {"---"}:
            return
        assert len(row) == width
        yield row


def _cells(line: str) -> tuple[str, ...]:
    cells = line.strip().strip("|").replace("\\|", "\0").split("|")
    return tuple(cell.strip().replace("\0", "|") for cell in cells)


def test_every_name_is_there_with_what_it_means_and_what_to_do() -> None:
    expected = [
        (f"`{name}`", _placement(name), meaning, advice)
        for name, (meaning, advice) in MEANINGS.items()
    ]
    assert table("name") == expected


def _placement(name: str) -> str:
    if name in OF_NODES:
        return "not affected"
    if name in EVACUATED:
        return "moved off"
    return "last choice" if name in AVOIDED else "kept out"


def test_every_limit_is_there_with_its_default() -> None:
    limits = Limits()
    expected = {f"`{name}`": getattr(limits, name) for name in Limits.__struct_fields__}
    found = {name: (float(default), what) for name, default, what in table("setting")}
    assert {name: default for name, (default, _) in found.items()} == expected
    assert all(what for _, what in found.values())


def test_every_error_is_there_with_the_condition_that_it_raises() -> None:
    known: list[tuple[str, Xid]] = [(str(number), error) for number, error in XIDS.items()]
    expected = [
        (
            number,
            f"`{error.condition}`" if error.condition else "none",
            _engines(error),
            error.meaning,
        )
        for number, error in (*known, ("any other", UNLISTED))
    ]
    assert table("Xid") == expected


def _engines(error: Xid) -> str:
    """What becomes of engines on the card."""
    if error.ends != "none":
        return {"all": "end", "one": "the one that it hit starts again"}[error.ends]
    return "move off" if error.condition in EVACUATED else "stay"


def test_every_reason_that_counts_as_throttling_is_named() -> None:
    text = PAGE.read_text()
    assert all(f"`{reason}`" in text for reason in THROTTLES)
