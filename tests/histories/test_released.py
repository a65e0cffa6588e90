"""What released versions decided, decided again by this one: see docs/replay.md, "Across versions".

Each `released/VERSION.llmgw` was written by `release.py` when that version was released. A change
that decides otherwise is noted here, and in CHANGELOG.md for whoever verifies an older log.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from llmgw import __version__
from llmgw.cli.ctl_replay import _lines, _report
from llmgw.core import events as e
from llmgw.core.records import Record
from llmgw.core.verify import Verdict, verify
from llmgw.log.archive import open_archive
from llmgw.replay import present_records
from tests.histories import release

NEXT = "the next version"


class Changed(NamedTuple):
    """What is decided otherwise since then: how many times, first where, and why."""

    times: int = 0
    first: int = 0
    why: str = ""


CHANGED: dict[str, Changed] = {
    "format_1": Changed(2, 11, "replicas of a model go to different nodes"),
    "format_2": Changed(2, 11, "replicas of a model go to different nodes"),
}
RELEASED = {path.stem: path for path in sorted(release.FOLDER.glob("*.llmgw"))}
ARCHIVES = RELEASED | {path.stem: path for path in release.FOLDER.parent.glob("format_*.llmgw")}


async def _records(path: Path) -> list[Record]:
    async with open_archive(path) as archive:
        return [record async for record in present_records(archive)]


def records(name: str) -> list[Record]:
    return asyncio.run(_records(ARCHIVES[name]))


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_an_earlier_version_decided_is_decided_again_but_for_what_is_noted(name: str) -> None:
    verdict = verify(records(name), NEXT)
    assert verdict.difference is None, verdict.difference
    noted = CHANGED.get(name, Changed())
    first = verdict.first_change
    assert (verdict.changed, first.sequence if first else 0) == noted[:2], [*_lines(verdict)]
    assert verdict.decisions >= 9


def test_a_release_holds_every_kind_of_decision() -> None:
    kinds = {type(record.body) for record in records(max(RELEASED))}
    assert {*e.Decision.__subclasses__()} <= kinds


def test_every_version_whose_schemas_are_kept_has_its_archive() -> None:
    schemas = release.FOLDER.parents[2] / "schemas/released"
    assert [path.name for path in sorted(schemas.iterdir())] == [*RELEASED]


@pytest.mark.parametrize("name", RELEASED)
def test_a_release_is_never_written_again(name: str) -> None:
    with pytest.raises(Exception, match="is there already"):
        release.write(name)


def other(found: list[Record], version: str, change: dict[str, object]) -> Verdict:
    """Verify a log of another version in which the second assignment has other values."""
    elected = [
        replace(r, body=replace(r.body, llmgw_version=version))
        if isinstance(r.body, e.ControllerElected)
        else r
        for r in found
    ]
    place = [n for n, r in enumerate(elected) if isinstance(r.body, e.ReplicaAssigned)][1]
    elected[place] = replace(elected[place], body=replace(elected[place].body, **change))
    return verify(elected)


def test_other_words_of_another_version_are_no_difference_and_of_this_one_they_are() -> None:
    found = release.history().records
    words: dict[str, object] = {"reasons": ("because",), "refusals": {}, "score": {"luck": 1}}
    whole = verify(found)
    for version in ("", "0.0.9"):
        assert other(found, version, words) == whole
    difference = other(found, __version__, words).difference
    assert difference is not None
    assert difference.fields == ("reasons", "refusals", "score")


def test_another_choice_of_another_version_is_told_as_such_and_the_rest_is_verified() -> None:
    found = release.history().records
    part = e.PartPlacement(node="n1", devices=(3,), memory_bytes=20 << 30)
    verdict = other(found, "0.0.9", {"parts": (part,)})
    assert (verdict.difference, verdict.sequence) == (None, len(found))
    assert verdict.changed >= 1
    assert verdict.first_change is not None
    lines = [*_lines(verdict)]
    assert lines[0].startswith("llmgw 0.0.9 decided otherwise than this one (")
    assert "  decided again: r2 of chat goes to n1, device 0" in lines
    report = _report(verdict)
    assert (report["agreed"], report["difference"]["llmgw_version"]) == (False, "0.0.9")


def test_a_decision_that_names_no_state_before_it_is_one_of_no_version() -> None:
    verdict = other(release.history().records, "0.0.9", {"at": 999})
    assert verdict.difference is not None
    assert "comes after it" in verdict.difference.what
