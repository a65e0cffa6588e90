"""`llmgw ctl plan --defrag` on an archive: moves as words and as JSON, and honest exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgw.testing.builders import applied, entry
from tests.cli.conftest import Program
from tests.cli.test_ctl_archive import write
from tests.core.test_defrag import scattered


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Three nodes with two, one and two replicas on four cards each, and a group without place."""
    wanted = [
        entry(f"m{n}", replicas=count, policy="pack") for n, count in ((1, 2), (2, 1), (3, 2))
    ]
    story = scattered(2, 1, 2).given(applied(*wanted, entry("big", gpus=4, nvlink="require")))
    path = tmp_path / "log.llmgw"
    write(path, story.decided().log)
    return path


def test_the_moves_that_make_room_for_the_group_without_a_place_are_proposed(
    llmgw: Program, archive: Path
) -> None:
    done = llmgw("ctl", "plan", "--defrag", "--archive", str(archive))
    first, second, *_ = done.out.splitlines()
    assert first.startswith("1. n2: a (l40s-48g), 3 of 4 free now; 1 replica would load 10.0 GiB")
    assert second == "   r3 of m2: 0 to n1 2"
    said = json.loads(llmgw("ctl", "plan", "--defrag", "--archive", str(archive), "-o", "json").out)
    assert (said["cards"], said["free_already"]) == (4, False)
    assert said["proposals"][0]["moves"][0]["to_node"] == "n1"
    assert done.code == 0


def test_what_is_free_needs_no_move_and_what_cannot_be_freed_is_a_no(
    llmgw: Program, archive: Path
) -> None:
    plan = ("ctl", "plan", "--defrag", "--archive", str(archive), "--cards")
    assert llmgw(*plan, "2").out.startswith("2 cards of one NVLink domain are free already")
    done = llmgw(*plan, "8")
    assert done.out.startswith("no moves would free 8 cards")
    assert done.code == 4


def test_without_a_question_the_way_to_ask_is_said(llmgw: Program, archive: Path) -> None:
    done = llmgw("ctl", "plan", "--archive", str(archive))
    assert "--defrag" in done.err
    assert done.code == 2
