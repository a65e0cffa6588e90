"""Machines that the hardware tests describe, and discovery through a real (pretended) program."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from anyio import to_thread

from llmgw.hardware.assemble import HostMemory, assemble
from llmgw.hardware.discover import HardwareSettings, discover
from llmgw.hardware.smi_list import parse_listing
from llmgw.hardware.smi_xml import parse_report
from llmgw.hardware.topology import parse_topology
from llmgw.hardware.types import Card, Device, Inventory
from llmgw.testing.fake_nvml import can_compile
from llmgw.testing.fake_smi import (
    FakeAnswer,
    FakeCard,
    FakeInstance,
    FakeMachine,
    render_listing,
    render_report,
    render_topology,
    write_fake_smi,
)

MIB = 2**20

needs_nvml = pytest.mark.skipif(
    importlib.util.find_spec("pynvml") is None or not can_compile(),
    reason="the pretended NVML needs the nvml extra and gcc",
)

DRIVERS = ("418.43", "470.82.01", "535.54.03", "570.124.06", "580.65.06", "595.58.03")

L40S = FakeCard(
    name="NVIDIA L40S", architecture="Ada Lovelace", memory_total_mib=46068, memory_reserved_mib=600
)
A100 = FakeCard(
    name="NVIDIA A100-SXM4-80GB", memory_total_mib=81920, memory_reserved_mib=869, mig="Disabled"
)
SLICE = FakeInstance(profile="1g.10gb", memory_total_mib=9728, gpu_instance=7)


def read(
    machine: FakeMachine,
    *,
    listing: str | None = None,
    report: str | None = None,
    topology: bool = False,
    host: HostMemory | None = None,
) -> Inventory:
    """What the parsers make of a machine, without running anything."""
    return assemble(
        "n1",
        parse_report(render_report(machine) if report is None else report),
        parse_listing(render_listing(machine) if listing is None else listing),
        topology=parse_topology(render_topology(machine)) if topology else None,
        host=host,
    )


def only(inventory: Inventory) -> tuple[Card, Device]:
    """The one card and the one device of an inventory."""
    (card,) = inventory.cards
    (device,) = inventory.devices
    return card, device


def edited(report: str, tag: str, text: str) -> str:
    """A report in which every element of a name holds another text."""
    return re.sub(rf"<{tag}>.*?</{tag}>", f"<{tag}>{text}</{tag}>", report, flags=re.DOTALL)


async def written(folder: Path, answers: FakeMachine | dict[str, FakeAnswer]) -> Path:
    """The pretended program, written in a folder."""
    return await to_thread.run_sync(write_fake_smi, folder / "nvidia-smi", answers)


async def discover_from(
    folder: Path, answers: FakeMachine | dict[str, FakeAnswer], *, timeout_seconds: float = 20
) -> Inventory:
    """What discovery finds by running a pretended program."""
    program = await written(folder, answers)
    return await discover(
        HardwareSettings(
            node="n1",
            backend="nvidia-smi",
            nvidia_smi=str(program),
            timeout_seconds=timeout_seconds,
        )
    )
