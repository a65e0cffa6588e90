"""When an embedded server that runs must be started again: what its folder tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.log.storefolder import RESERVE_BYTES, StoreFolder

REFUSED = (
    "[7] 2026/01/01 00:00:00 [ERR] JetStream failed to store a msg on stream '$G > X':"
    " write /data/1.blk: no space left on device\n"
)


class Disk:
    """How much room a folder's disk is said to have."""

    free_bytes = 100 * RESERVE_BYTES

    def room(self, _: Path) -> int:
        return self.free_bytes


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def folder(tmp_path: Path, disk: Disk) -> StoreFolder:
    made = StoreFolder(tmp_path, disk.room)
    made.clear()
    made.most_store_bytes()
    return made


def say(folder: StoreFolder, text: str) -> None:
    with folder.log_file.open("a") as file:
        file.write(text)


def test_a_server_that_refused_for_want_of_space_ails_once_there_is_room(
    folder: StoreFolder, disk: Disk
) -> None:
    say(folder, "[7] [INF] Server is ready\n")
    assert folder.ailment() is None
    say(folder, REFUSED)
    disk.free_bytes = RESERVE_BYTES // 2
    assert folder.ailment() is None, "a start would only fail"
    disk.free_bytes = 2 * RESERVE_BYTES
    assert folder.ailment() == "it ran out of space, and there is room again"
    folder.clear()
    assert folder.ailment() is None, "what was said before a start counts no more"


def test_a_log_that_was_rotated_is_read_from_its_beginning(folder: StoreFolder) -> None:
    say(folder, "[7] [INF] many lines\n" * 100)
    assert folder.ailment() is None
    folder.log_file.write_text(REFUSED)
    assert folder.ailment()


@pytest.mark.parametrize(
    "line",
    [
        "[7] [ERR] JetStream failed to store a msg on stream: write: input/output error\n",
        "[7] [INF] nobody has no space left on device\n",
    ],
)
def test_other_troubles_are_not_mended_by_a_start(folder: StoreFolder, line: str) -> None:
    say(folder, line)
    assert folder.ailment() is None


def test_a_limit_that_was_drawn_on_a_fuller_disk_is_drawn_again(tmp_path: Path, disk: Disk) -> None:
    disk.free_bytes = 3 * RESERVE_BYTES // 2
    folder = StoreFolder(tmp_path, disk.room)
    folder.clear()
    assert folder.most_store_bytes() == RESERVE_BYTES // 2
    with (tmp_path / "1.blk").open("wb") as stored:
        stored.truncate(RESERVE_BYTES // 4)
    disk.free_bytes = 5 * RESERVE_BYTES // 4
    assert folder.ailment() is None, "there is no more room than there was"
    disk.free_bytes = 50 * RESERVE_BYTES
    assert folder.ailment() == "its log has come near the limit that it was started with"
    folder.most_store_bytes()
    assert folder.ailment() is None
