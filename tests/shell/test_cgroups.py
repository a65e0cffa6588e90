"""Groups for engines: which tree is an agent's own, and what the kernel ends with a group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw import cgroups
from llmgw.cgroups import Groups, given
from tests.support.nats import is_running
from tests.support.wait import until_sync

PAUSE = "import signal; signal.pause()"
LOST_CHILD = f"""
import os, subprocess, sys
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-IS", "-c", {PAUSE!r}], start_new_session=True, env={{}})
    os._exit(0)
import signal; signal.pause()
"""


def place(tmp_path: Path, cgroup: str, root: str = "/", kind: str = "cgroup2") -> Path:
    """Write what the kernel tells a process of its group and of what is mounted."""
    proc = tmp_path / "self"
    proc.mkdir()
    (proc / "cgroup").write_text(f"12:cpu:/x\n0::{cgroup}\n")
    (proc / "mountinfo").write_text(
        f"25 1 0:3 / /proc rw - proc proc rw\n30 23 0:26 {root} {tmp_path}/fs rw - {kind} none rw\n"
    )
    return proc


def tree(tmp_path: Path, path: str, *, delegated: bool = True) -> Path:
    folder = tmp_path / "fs" / path
    folder.mkdir(parents=True)
    (folder / "cgroup.kill").touch()
    if delegated:
        try:
            os.setxattr(folder, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"this file system keeps no attributes: {error}")
    return folder


def test_a_tree_that_systemd_gave_away_is_used(tmp_path: Path) -> None:
    own = tree(tmp_path, "system.slice/llmgw-agent.service")
    assert given(place(tmp_path, "/system.slice/llmgw-agent.service")) == own


def test_the_path_is_counted_from_what_is_mounted(tmp_path: Path) -> None:
    own = tree(tmp_path, "llmgw")
    assert given(place(tmp_path, "/docker/abc/llmgw", root="/docker/abc")) == own


def test_a_tree_that_nobody_gave_is_left_alone(tmp_path: Path) -> None:
    tree(tmp_path, "user.slice", delegated=False)
    assert given(place(tmp_path, "/user.slice")) is None


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [("/", "cgroup2"), ("/a", "tmpfs"), ("/elsewhere", "cgroup2")],
    ids=["the root is everybody's", "no second version", "not under what is mounted"],
)
def test_without_a_tree_of_its_own_there_is_none(tmp_path: Path, cgroup: str, kind: str) -> None:
    tree(tmp_path, "a")
    root = "/a" if cgroup == "/elsewhere" else "/"
    assert given(place(tmp_path, cgroup, root, kind)) is None


def test_without_a_tree_every_question_has_an_answer() -> None:
    groups = Groups("cafe", lambda: None)
    assert not groups.put("r1-0-g1-a1", os.getpid())
    assert groups.names() == []
    assert groups.pids("r1-0-g1-a1") == groups.end("r1-0-g1-a1", 1) == frozenset()


@pytest.fixture
def real_tree() -> Iterator[Path]:
    """A group of this test's own below the kernel's, where this user may make one."""
    mounts = dict(cgroups._mounted(Path("/proc/self/mountinfo").read_text()))
    if not mounts:
        pytest.skip("no cgroup v2 is mounted here")
    folder = Path(next(iter(mounts.values())), f"llmgw-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"this user may make no group here: {error}")
    if not (folder / "cgroup.kill").exists():
        folder.rmdir()
        pytest.skip("this kernel cannot kill a group")
    yield folder
    for group in [*folder.iterdir(), folder]:
        if group.is_dir():
            with suppress(OSError):
                group.rmdir()
    assert not folder.exists()


def test_a_group_ends_with_all_that_is_in_it_and_no_other_does(real_tree: Path) -> None:
    groups, others = Groups("cafe", lambda: real_tree), Groups("beef", lambda: real_tree)
    with (
        subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE) as other,
        subprocess.Popen([sys.executable, "-IS", "-c", PAUSE]) as engine,
    ):
        assert groups.put("r1-0-g1-a1", engine.pid)
        assert others.put("r1-0-g1-a1", other.pid)
        assert groups.names() == ["r1-0-g1-a1"]
        assert groups.end("r1-0-g1-a1", 10) == frozenset()
        assert groups.names() == []
        assert engine.wait() == -9
        assert others.pids("r1-0-g1-a1") == {other.pid}
        other.communicate(b"\n")
        assert other.returncode == 0
        others.end("r1-0-g1-a1", 10)


def test_a_child_that_left_everything_behind_is_still_in_its_group(real_tree: Path) -> None:
    groups = Groups("cafe", lambda: real_tree)
    start = f"input(); exec({LOST_CHILD!r})"
    with subprocess.Popen([sys.executable, "-IS", "-c", start], stdin=subprocess.PIPE) as engine:
        assert groups.put("r1-0-g1-a1", engine.pid)
        assert engine.stdin is not None
        engine.stdin.write(b"\n")
        engine.stdin.close()
        (child,) = until_sync(lambda: without_environment(groups), what="the child is there")
        engine.kill()
        engine.wait()
        assert groups.end("r1-0-g1-a1", 10) == frozenset()
        assert not is_running(child)


def without_environment(groups: Groups) -> list[int]:
    pids = groups.pids("r1-0-g1-a1")
    return [pid for pid in pids if Path(f"/proc/{pid}/environ").read_bytes() == b""]
