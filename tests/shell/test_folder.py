"""The data folder: one holder at a time, however the last one ended, and a clear word otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.errors import DataFolderError
from llmgw.folder import held

HOLDER = """
import sys
from pathlib import Path
from llmgw.folder import held

with held(Path(sys.argv[1]), "llmgw up"):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold_in_vain(folder: Path, message: str) -> None:
    with pytest.raises(DataFolderError, match=message), held(folder, "agent"):
        pass


def test_a_folder_is_made_and_held_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with held(folder, "agent"):
        hold_in_vain(folder, r"in use by another agent \(pid \d+\)")
    with held(folder, "agent"):
        pass


def test_the_hold_ends_with_a_holder_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        hold_in_vain(tmp_path, rf"another agent \(pid {holder.pid}\)")
        holder.kill()
        holder.wait()
        with held(tmp_path, "llmgw up"):
            pass


@pytest.mark.parametrize("below", ["", "below"])
def test_a_file_in_its_place_is_named(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    hold_in_vain(file / below, "a file is in its place or above it")
    assert file.read_text() == "mine"
