"""NVML and nvidia-smi tell the same about the same machine, field for field.

The exceptions stand here by name; each is something that one of the two truly cannot know.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware.discover import BackendName, HardwareSettings, discover
from llmgw.hardware.types import Card, Device, Inventory
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.fake_smi import write_fake_smi
from llmgw.testing.machines import FakeMachine

from .described import MACHINES, STATES
from .support import DRIVERS, L40S, needs_nvml
from .test_drivers import CARD

pytestmark = needs_nvml

T = TypeVar("T", Card, Device)


async def both(folder: Path, machine: FakeMachine) -> tuple[Inventory, Inventory]:
    """What NVML and what nvidia-smi tell about a machine, made comparable."""
    library = await to_thread.run_sync(write_fake_nvml, folder, machine)
    program = await to_thread.run_sync(write_fake_smi, folder / "nvidia-smi", machine)

    async def told(backend: BackendName) -> Inventory:
        settings = HardwareSettings(
            node="n1", backend=backend, nvidia_smi=str(program), nvml_library=str(library)
        )
        return await discover(settings)

    return await told("nvml"), await told("nvidia-smi")


def comparable(inventory: Inventory) -> Inventory:
    """An inventory without the name of its backend, and without what two looks never share.

    Memory that is the system's moves between them. A card that cannot be opened is named by its
    index through NVML, which does not know its address, and by its address through the tool.
    """
    assert inventory.fallback_from is None
    return replace(
        inventory,
        backend="",
        cards=tuple(_told_by_both(_settled(card)) for card in inventory.cards),
        devices=tuple(_settled(device) for device in inventory.devices),
        excluded=tuple(
            replace(out, detail=out.detail.rpartition(": ")[2])
            if out.detail.startswith("the driver cannot open")
            else out
            for out in inventory.excluded
        ),
    )


def _told_by_both(card: Card) -> Card:
    """A card without what the tool tells in no output that is read: its links one by one."""
    return replace(card, nvlink_links_down=None, nvlink_errors=None)


def _settled(entry: T) -> T:
    if entry.unified:
        return replace(entry, memory_used_bytes=None, memory_free_bytes=None)
    return entry


@pytest.mark.parametrize("name", [*MACHINES, *STATES])
async def test_both_backends_tell_the_same(tmp_path: Path, name: str) -> None:
    by_nvml, by_tool = await both(tmp_path, (MACHINES | STATES)[name])
    if name == "h100-fabric-525":
        # Before 570 the tool prints no cluster and no clique.
        (card,) = by_nvml.cards
        assert card.fabric is not None
        assert card.fabric.cluster_uuid is not None
        card = replace(card, fabric=replace(card.fabric, cluster_uuid=None, clique=None))
        by_nvml = replace(by_nvml, cards=(card,))
    assert comparable(by_nvml) == comparable(by_tool)
    assert by_nvml.cards
    assert {card.nvlink_links_down for card in by_tool.cards} == {None}
    assert {card.nvlink_errors for card in by_tool.cards} == {None}


@pytest.mark.parametrize("driver", DRIVERS)
async def test_both_backends_tell_the_same_under_every_driver(tmp_path: Path, driver: str) -> None:
    by_nvml, by_tool = await both(tmp_path, FakeMachine((CARD, CARD), driver=driver))
    if driver.startswith("418"):
        # The binding knows no list of processes that is older than driver 450, and before 450 the
        # driver does not say which memory node a card is near.
        assert {device.processes for device in by_nvml.devices} == {None}
        by_nvml = replace(
            by_nvml,
            devices=tuple(
                replace(mine, processes=other.processes)
                for mine, other in zip(by_nvml.devices, by_tool.devices, strict=True)
            ),
            cards=tuple(replace(card, numa_node=0) for card in by_nvml.cards),
        )
    assert comparable(by_nvml) == comparable(by_tool)


async def test_a_margin_before_driver_555_is_told_by_the_tool_alone(tmp_path: Path) -> None:
    machine = FakeMachine((replace(L40S, margin_celsius=40),), driver="535.54.03")
    by_nvml, by_tool = await both(tmp_path, machine)
    assert by_nvml.cards[0].temperature_margin_celsius is None
    assert by_tool.cards[0].temperature_margin_celsius == 40


@pytest.mark.parametrize("driver", ["470.82.01", "535.54.03", "570.124.06"])
@pytest.mark.parametrize("excess_kib", [511, 512, 1023])
async def test_memory_is_rounded_as_the_tool_of_the_driver_rounds_it(
    tmp_path: Path, driver: str, excess_kib: int
) -> None:
    card = replace(CARD, memory_excess_kib=excess_kib)
    by_nvml, by_tool = await both(tmp_path, FakeMachine((card,), driver=driver))
    assert comparable(by_nvml) == comparable(by_tool)
