"""Files that a person, a setting or a folder names: what is no regular file is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgw.files import NoRegularFile, read_regular
from tests.cli.conftest import Program

WHERE = {
    "pipe": ("catalog check pipe", "ctl apply pipe", "ctl apply pipe --dry-run", "plan pipe"),
    "llmgw.toml": ("config show --config llmgw.toml",),
    "data/endpoint.json": ("ctl status", "ctl export log.llmgw"),
    "log.llmgw": (
        "ctl replay --archive log.llmgw",
        "ctl import log.llmgw",
        "ctl archive new.llmgw --before 14:00 --archive log.llmgw",
    ),
    "captured/nvidia-smi-q-x.xml": (
        "agent inventory --backend nvidia-smi --from captured",
        "doctor --from captured",
        "up --simulate captured",
    ),
    "captured/nvml.json": ("agent inventory --from captured", "doctor --from captured"),
    "schemas/node.lost.schema.json": ("schemas check schemas", "schemas compare schemas"),
}


@pytest.mark.parametrize(("file", "words"), [(f, w) for f, words in WHERE.items() for w in words])
def test_no_pipe_is_waited_for(llmgw: Program, tmp_path: Path, file: str, words: str) -> None:
    pipe = tmp_path / file
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    done = llmgw(*words.split())
    assert done.code in (2, 3), done.err
    assert "no regular file" in done.err + done.out


def test_what_is_no_regular_file_is_not_opened_for_good(tmp_path: Path) -> None:
    folder, long = tmp_path / "folder", tmp_path / "long"
    folder.mkdir()
    long.write_bytes(b"x" * 100)
    before = len([*Path("/proc/self/fd").iterdir()])
    for path, error in ((Path("/dev/zero"), NoRegularFile), (folder, IsADirectoryError)):
        with pytest.raises(error):
            read_regular(path)
    assert read_regular(long, 7) == b"x" * 7
    assert len([*Path("/proc/self/fd").iterdir()]) == before
