"""What a whole agent costs that samples eight cards through NVML each second, idle otherwise.

Counted are its own process and that of its session, over a while in which heat, power and load of
every card move each second; the start of a session is spread over the time until the next one. The
peers are nvitop and gpustat on the same pretended library, where they are installed (the group
`bench`): what one of their snapshots costs in a process that does nothing else.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from llmgw.log.embedded import embedded_server
from llmgw.log.jetstream import connect
from llmgw.replay import newest_samples
from llmgw.settings import Settings
from llmgw.testing.fake_nvml import can_compile, write_fake_nvml
from llmgw.testing.machines import FakeMachine
from tests.benchmarks.history import CLUSTER
from tests.benchmarks.measure import Result, at_most
from tests.support.wait import until

NODE = "gpu-0001"
SECONDS = 20
PERCENT_GOAL = 0.5
MEMORY_GOAL_MB = 60.0
TURNS = 50

_PEERS = {
    "nvitop": (
        "import nvitop; cards = nvitop.Device.all()\n"
        "def snapshot(): return [card.as_snapshot() for card in cards]"
    ),
    "gpustat": "import gpustat\ndef snapshot(): return list(gpustat.new_query())",
}
_MEASURED = f"""
import time
assert len(snapshot()) == 8
began = time.process_time()
for _ in range({TURNS}): snapshot()
print((time.process_time() - began) / {TURNS})
"""
_BINDING_ALONE = """
import pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
for handle in handles: pynvml.nvmlDeviceGetUtilizationRates(handle)
print(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
"""


class Cost(NamedTuple):
    """Shares of a core in percent, and memory in MB, of the agent and of its session."""

    agent_percent: float
    session_percent: float
    agent_mb: float
    session_mb: float
    shared_fairly_mb: float


def benchmark(machine: FakeMachine) -> Iterator[Result]:
    """Measure an agent on this machine of eight cards."""
    if importlib.util.find_spec("pynvml") is None or not can_compile():
        print("not measured: an agent with NVML, which needs the nvml extra and gcc")
        return
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        write_fake_nvml(Path(folder), machine)
        peers = ", ".join(_peer(name, Path(folder)) for name in _PEERS)
        alone_mb = float(_printed(_BINDING_ALONE, Path(folder))) / 1024
        cost = asyncio.run(_cost(Path(folder), machine))
    percent = cost.agent_percent + cost.session_percent
    parts = f"% of a core ({cost.session_percent:.2f} its session)"
    yield at_most(PERCENT_GOAL, "agent, 8 cards, NVML each second", percent, parts, peers)
    memory = cost.agent_mb + cost.session_mb
    parts = f"MB ({cost.session_mb:.0f} its session; PSS {cost.shared_fairly_mb:.0f})"
    peer = f"Python with pynvml alone, {alone_mb:.0f} MB"
    yield at_most(MEMORY_GOAL_MB, "agent's memory, 8 cards, NVML", memory, parts, peer)


def _peer(name: str, folder: Path) -> str:
    if importlib.util.find_spec(name) is None:
        return f"{name}, which is not installed"
    seconds = float(_printed(_PEERS[name] + _MEASURED, folder))
    return f"{name}'s snapshot, {seconds * 100:.2f} %"


def _printed(program: str, folder: Path) -> str:
    """What a program prints that finds the pretended library as the system's."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return run.stdout.strip()


async def _cost(folder: Path, machine: FakeMachine) -> Cost:
    async with _running_agent(folder) as agent:
        (session,) = await until(lambda: _children(agent), 30, "its session is open")
        started = _processor_seconds(session)
        await _move(folder, machine, 3)
        began = time.monotonic()
        before = [_processor_seconds(pid) for pid in (agent, session)]
        await _move(folder, machine, SECONDS)
        took = time.monotonic() - began
        own, its = (
            _processor_seconds(pid) - spent
            for pid, spent in zip((agent, session), before, strict=True)
        )
        starts = started / Settings(node=NODE, data=folder).rediscover_seconds
        return Cost(
            agent_percent=100 * own / took,
            session_percent=100 * (its / took + starts),
            agent_mb=_memory_mb(agent, "Rss:"),
            session_mb=_memory_mb(session, "Rss:"),
            shared_fairly_mb=_memory_mb(agent, "Pss:") + _memory_mb(session, "Pss:"),
        )


@asynccontextmanager
async def _running_agent(folder: Path) -> AsyncIterator[int]:
    """Run an agent as a user does, on a log of its own, until it has sent samples."""
    async with embedded_server(folder) as server:
        log = await connect(server.url, CLUSTER, name="bench")
        settings = {
            "nats_url": server.url,
            "cluster": CLUSTER,
            "node": NODE,
            "data": folder / "data",
            "backend": "nvml",
            "nvml_library": folder,
        }
        own = {f"LLMGW_{name.upper()}": str(value) for name, value in settings.items()}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LLMGW_")}
        with (folder / "agent.log").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "llmgw", "agent", "run"),
                env=inherited | own,
                stdin=subprocess.DEVNULL,
                stderr=output,
            )
        try:

            async def measured() -> bool:
                found = await newest_samples(log, CLUSTER, [NODE])
                return NODE in found and found[NODE].readings is not None

            has_sent: bool = await until(measured, 60, "the agent has sent a sample")
            assert has_sent
            yield process.pid
        finally:
            process.terminate()
            await process.wait()
            await log.close()


async def _move(folder: Path, machine: FakeMachine, seconds: int) -> None:
    """Let heat, power and load of every card be another each second."""
    began = time.monotonic()
    for second in range(seconds):
        cards = tuple(
            replace(
                card,
                temperature_celsius=50 + (second + place) % 20,
                power_watts=300.5 + second * 3 + place,
                utilization_percent=(second * 7 + place) % 101,
            )
            for place, card in enumerate(machine.cards)
        )
        await asyncio.to_thread(write_fake_nvml, folder, replace(machine, cards=cards))
        over = began + second + 1
        is_over: bool = await until(lambda: time.monotonic() >= over, 5, "a second")  # noqa: B023
        assert is_over


def _processor_seconds(pid: int) -> float:
    """The processor time of a process, of all its threads, the ended ones included."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _memory_mb(pid: int, what: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split(what)[1].split()[0]) / 1024
