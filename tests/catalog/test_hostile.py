"""Eight catalogs made to do harm: each is refused with words, at once and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.catalog.load import check_file
from llmgw.catalog.report import MOST_PROBLEMS
from llmgw.catalog.tree import MAX_CHARACTERS
from llmgw.catalog.validate import check_text

ENTRY = "models:\n  - {name: m, engine: vllm, class: cpu, memory: 1GiB, source: org/m"
NAMES = ("../../etc/passwd", '"$(reboot)"', "'a;rm -rf /'", "'a.>'", "'*'", '"a\\0"')
LAUGHS = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))

HOSTILE = {
    "aliases that expand to 9^30 words": ("l0: &l0 ha\n" + LAUGHS, "an anchor"),
    "a list that holds itself": ("models: &m [*m]\n", "an alias"),
    "an object that runs a program": (
        "models: !!python/object/apply:subprocess.run [[touch, harmed]]\n",
        "a tag",
    ),
    "a hundred thousand levels": ("models: " + "[" * 100_000, "nested deeper"),
    "ten thousand misspelt fields": (
        ENTRY + "".join(f", nme{n}: x" for n in range(10_000)) + "}\n",
        f"more than {MOST_PROBLEMS} mistakes",
    ),
    "one key given ten thousand times": (
        "models:\n  - name: m\n" + "    a: b\n" * 10_000,
        f"more than {MOST_PROBLEMS} mistakes",
    ),
    "numbers of a hundred thousand digits": (
        ENTRY.replace("1GiB", "9" * 100_000) + f", tp: {'9' * 100_000}}}\n",
        "whole number",
    ),
    "names that are paths, commands and subjects": (
        "models:\n"
        + "".join(
            f"  - {{name: {name}, engine: vllm, class: cpu, memory: 1GiB, source: org/m}}\n"
            for name in NAMES
        ),
        "must be 1 to 63 of a-z",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_catalog_is_refused_with_words(name: str) -> None:
    text, said = HOSTILE[name]
    assert len(text) <= MAX_CHARACTERS
    found = check_text(text, "c.yaml", "/catalogs")
    assert any(said in problem for problem in found.problems), found.problems[:5]
    assert found.catalog.models == ()
    assert len(found.problems) <= MOST_PROBLEMS + 1
    assert max(map(len, found.problems)) < 1_000


def test_all_six_bad_names_are_named() -> None:
    text, _ = HOSTILE["names that are paths, commands and subjects"]
    lines = {problem.split(":")[1] for problem in check_text(text, "c.yaml", "/").problems}
    assert lines == {"2", "3", "4", "5", "6", "7"}


def test_a_pipe_is_no_catalog_and_nobody_waits_for_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "catalog", "check", str(pipe)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == f"{pipe}:1: file: is no regular file; write the catalog into one\n"


def test_a_device_without_end_and_a_file_of_any_size_are_refused(tmp_path: Path) -> None:
    assert "no regular file" in check_file(Path("/dev/zero")).problems[0]
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    (problem,) = check_file(large).problems
    assert "longer than 512 KiB" in problem
