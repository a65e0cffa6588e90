"""A real agent while its machine misbehaves: clocks jump, samples flood, a process cannot die."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from llmgw import wire
from llmgw.core import events as e
from llmgw.core.telemetry import NodeSample
from tests.support.cluster import NAME, Cluster, pretended
from tests.support.wait import until, until_sync

CLOCK = Path(__file__).parents[1] / "support" / "clock.c"
SETTABLE_CLOCK = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
HOUR_SECONDS = 3600
FREEZE, THAW = 0xC0045877, 0xC0045878
"""What the kernel is asked (FIFREEZE, FITHAW), so that who writes to a file system waits."""


@SETTABLE_CLOCK
async def test_a_clock_that_jumps_an_hour_either_way_changes_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor how long anything is waited for: the engine that fails is back after its pause."""
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(CLOCK)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CLOCK_OFFSET", str(offset))
    cluster.controller()
    agent = cluster.agent()
    steady = pretended(cluster, "steady")
    await cluster.apply(steady)
    before = await cluster.event(e.ReplicaBecameReady, replica="r1")
    for number, seconds in enumerate((HOUR_SECONDS, -HOUR_SECONDS, 0), start=2):
        await asyncio.to_thread(offset.write_text, str(seconds))
        name = f"r{number}"
        await cluster.apply(steady, pretended(cluster, f"m{number}"))
        pid = (await cluster.event(e.ReplicaBecameReady, replica=name)).pid
        os.kill(pid, signal.SIGKILL)
        await cluster.event(e.ReplicaBecameReady, replica=name, attempt=2)
        await cluster.apply(steady)
        await cluster.until_state(lambda state: list(state.replicas) == ["r1"], "it is gone again")
    told = re.findall(r'"timestamp": "([^"]+)"', agent.output)
    times = [datetime.fromisoformat(time).timestamp() for time in told]
    assert max(times) - min(times) > 1.9 * HOUR_SECONDS, "its clock did jump"
    assert [ready.pid for ready in cluster.events(e.ReplicaBecameReady, replica="r1")] == [
        before.pid
    ]
    assert cluster.events(e.NodeLost) == []
    assert len(cluster.events(e.ControllerElected)) == 1
    numbers = [r.number for r in await cluster.all_records() if r.origin == "node"]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_flood_of_samples_delays_neither_commands_nor_signs_of_life(
    cluster: Cluster,
) -> None:
    cluster.controller(node_lost_seconds=5)
    cluster.agent()
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for number in range(1, 1 << 30):
            sample = NodeSample(node="n1", session="flood", number=number, error="x" * 1000)
            message = wire.encode_sample(NAME, sample, time="2026-01-01T00:00:00Z")
            sent += await cluster.log.publish_sample(message.subject, message.payload)
            if number % 200 == 0:
                await asyncio.sleep(0)

    flooding = asyncio.create_task(flood())
    try:
        for number in (1, 2, 3):
            await cluster.apply(pretended(cluster, f"m{number}"))
            await cluster.event(e.ReplicaBecameReady, replica=f"r{number}")
        await until(lambda: sent > 20_000, 30, "enough was sent")
    finally:
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
    assert cluster.events(e.NodeLost) == []
    assert len(cluster.events(e.CommandCompleted)) >= 3


@contextlib.contextmanager
def freezable(folder: Path) -> Iterator[Path]:
    """Mount a file system of its own, which may be frozen in the block, and thaw it after it."""
    image, mount = folder / "image", folder / "frozen"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], check=False).returncode == 0
    command = ["mount", "-o", "loop", str(image), str(mount)]
    if not made or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may mount no file system of its own")
    try:
        yield mount
    finally:
        with contextlib.suppress(OSError):
            asked(mount, THAW)
        until_sync(
            lambda: subprocess.run(["umount", str(mount)], check=False).returncode == 0,
            20,
            "nobody uses it any more",
        )


def asked(mount: Path, what: int) -> None:
    descriptor = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, what, 0)
    finally:
        os.close(descriptor)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


WRITES = """
import http.server, os, sys, threading
def write():
    while True:
        with open(sys.argv[2], "w") as file:
            file.write("x")
threading.Thread(target=write, daemon=True).start()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to freeze a file system")
async def test_an_engine_that_even_sigkill_does_not_end_is_told_of_until_it_is_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It hangs in the kernel, as on a disk that went away or a driver that does not answer."""
    with freezable(tmp_path) as mount:
        cluster.controller()
        cluster.agent()
        words = (sys.executable, "-IS", "-c", WRITES, "{port}", str(mount / "file"))
        stuck = pretended(cluster, "stuck", command=words, stop_seconds=1.0)
        await cluster.apply(stuck)
        pid = (await cluster.event(e.ReplicaBecameReady, replica="r1")).pid
        await asyncio.to_thread(asked, mount, FREEZE)
        threads = Path(f"/proc/{pid}/task")
        await until(
            lambda: "D" in [state_of(int(thread.name)) for thread in threads.iterdir()],
            20,
            "it hangs in the kernel",
        )
        await cluster.apply()

        def told() -> list[str]:
            changes = cluster.events(e.NodeConditionsChanged)
            return [c.detail for change in changes for c in change.conditions]

        await cluster.until_state(lambda _: told(), "it is told of", 90)
        assert told() == [f"r1/0 does not end: its process {pid} cannot be killed"]
        assert cluster.events(e.ReplicaStopped) == []
        await asyncio.to_thread(asked, mount, THAW)
        await cluster.event(e.ReplicaStopped, replica="r1")
        assert cluster.engines() == []
