"""What sampling costs an agent: a whole one over NVML, and single samples without it.

Without NVML one sample is what the agent does at each interval: look, shape, readings, and the
telemetry message. On eight cards it runs a pretended nvidia-smi; its own processor time is told,
and the peer is running the same command lines and throwing away what they print, the tool's own
time included.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from llmgw import wire
from llmgw.core.telemetry import NodeSample
from llmgw.hardware.discover import HardwareSettings
from llmgw.hardware.shapes import readings, shape
from llmgw.hardware.types import Inventory
from llmgw.hardware.watch import Watch
from llmgw.settings import Settings
from llmgw.testing.fake_smi import FakeCard, FakeMachine, write_fake_smi
from tests.benchmarks import monitoring
from tests.benchmarks.history import CLUSTER, TIME
from tests.benchmarks.measure import Result, at_most

SAMPLES = 40
SAMPLED = ("-q -x", "-L")
"""What a sample asks the tool. How cards are linked it is asked only when it is looked afresh."""
GOAL_PERCENT = 1.0
MACHINE = FakeMachine(
    tuple(
        FakeCard(
            name="NVIDIA H100 80GB HBM3",
            memory_total_mib=81_559,
            memory_used_mib=70_000 + card,
            architecture="Hopper",
            utilization_percent=90 + card,
            margin_celsius=25,
        )
        for card in range(8)
    ),
    links=tuple((a, b) for a in range(8) for b in range(a)),
)


def benchmark() -> Iterator[Result]:
    """Measure an agent with NVML, and the other backends in a process that does nothing else."""
    yield from monitoring.benchmark(MACHINE)
    interval_seconds = Settings(node="n1", data=Path()).sample_seconds
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        program = write_fake_smi(Path(folder, "nvidia-smi"), MACHINE)
        cards = HardwareSettings(node="gpu-0001", nvidia_smi=str(program))
        own_ms, tool_ms = asyncio.run(cost_ms(cards, devices=8)), tool_cost_ms(program)
    yield from _told("8 cards", own_ms, interval_seconds, f"the tool alone, {tool_ms:.0f} ms")
    processor = HardwareSettings(node="cpu-0001", backend="cpu")
    own_ms = asyncio.run(cost_ms(processor, devices=1))
    yield from _told("processor", own_ms, interval_seconds, "no tool is run")


def _told(what: str, own_ms: float, interval_seconds: float, peer: str) -> Iterator[Result]:
    name = f"agent's cost of a sample, {what}"
    percent = own_ms / 1000 / interval_seconds * 100
    core = f"% of a core, every {interval_seconds:g} s"
    yield at_most(GOAL_PERCENT, name, percent, core, peer)
    yield Result(name, own_ms, "ms of processor time", peer)


async def cost_ms(settings: HardwareSettings, devices: int) -> float:
    """Return the processor time of one sample in this process, in milliseconds."""
    costs = []
    last: Inventory | None = None
    watch = Watch(settings)
    for number in range(SAMPLES + 1):
        began = time.process_time()
        seen = await watch.sample()
        same = shape(seen) == last
        wire.encode_sample(
            CLUSTER,
            NodeSample(
                node=settings.node, session="0000000a", number=number, readings=readings(seen)
            ),
            time=TIME,
        )
        costs.append(time.process_time() - began)
        assert len(seen.devices) == devices
        assert same or last is None
        last = shape(seen)
    return median(costs[1:]) * 1000  # the first one imports


def tool_cost_ms(program: Path) -> float:
    """Return the processor time of running the tool as often as a sample does, in milliseconds."""
    costs = []
    for _ in range(SAMPLES):
        began = _with_children()
        for arguments in SAMPLED:
            command = [str(program), *arguments.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        costs.append(_with_children() - began)
    return median(costs) * 1000


def _with_children() -> float:
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system
