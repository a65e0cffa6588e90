"""What only an open session measures: how busy instances are, and wear as it grows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware.nvml import Nvml
from llmgw.hardware.nvml_session import NvmlSession
from llmgw.hardware.types import Inventory
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.machines import FakeCard, FakeMachine

from ..support.wait import until
from .described import BRIDGED, H100, H200, SHARED_H200, carved, part
from .support import A100, needs_nvml

pytestmark = needs_nvml


def busy(card: FakeCard, *percents: float) -> FakeCard:
    """The card with instances that are so busy."""
    parts = [
        replace(part("1g.10gb", 9984, 7 + n, multiprocessors=16), busy_percent=percent)
        for n, percent in enumerate(percents)
    ]
    return carved(card, *parts)


async def write(folder: Path, *cards: FakeCard, driver: str = "580.65.06") -> None:
    machine = FakeMachine(cards, driver=driver, links=((0, 1),))
    await to_thread.run_sync(write_fake_nvml, folder, machine)


def session(folder: Path) -> NvmlSession:
    return NvmlSession("n1", Nvml(str(folder), 20))


async def sampled(held: NvmlSession) -> Inventory:
    found = await held.sample()
    assert isinstance(found, Inventory), found
    return found


async def measured(held: NvmlSession) -> list[float | None]:
    return [device.utilization_percent for device in (await sampled(held)).devices]


async def reached(held: NvmlSession, expected: list[float | None]) -> None:
    async def as_expected() -> bool:
        return await measured(held) == expected

    await awaited(as_expected, f"the devices are measured as {expected}")


async def awaited(asked: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    await until(asked, what=what)


async def test_instances_are_measured_from_hopper_on_and_those_of_older_cards_are_not(
    tmp_path: Path,
) -> None:
    shared = replace(
        SHARED_H200,
        instances=tuple(replace(one, busy_percent=50.0) for one in SHARED_H200.instances),
    )
    await write(tmp_path, busy(H100, 37.5, 0.0), busy(A100, 37.5), shared, H200)
    async with session(tmp_path) as held:
        assert await measured(held) == [0.0, *[None] * 6]  # a metric takes two samples
        # Of two compute instances on one GPU instance it is not told which is busy.
        await reached(held, [0.0, 37.5, 0.0, None, None, None, 50.0])
        assert {card.utilization_percent for card in (await sampled(held)).cards} == {None, 0.0}


async def test_what_is_no_longer_measured_disappears_and_comes_back(tmp_path: Path) -> None:
    card = busy(H100, 12.5)
    await write(tmp_path, card, BRIDGED)
    async with session(tmp_path) as held:
        await reached(held, [0.0, 12.5])
        silent = replace(card, instances=(replace(card.instances[0], busy_percent=None),))
        await write(tmp_path, silent, BRIDGED)
        await reached(held, [0.0, None])
        await write(tmp_path, busy(H100, 90.25), BRIDGED)
        await reached(held, [0.0, 90.25])


async def test_a_driver_without_the_measure_costs_nothing_else(tmp_path: Path) -> None:
    await write(tmp_path, busy(H100, 12.5), BRIDGED, driver="510.47.03")
    async with session(tmp_path) as held:
        for _ in range(3):
            assert await measured(held) == [0.0, None]


async def test_wear_and_errors_of_links_are_seen_to_grow_in_one_session(tmp_path: Path) -> None:
    card = replace(BRIDGED, ecc_corrected=1, link_errors=1)
    await write(tmp_path, card, BRIDGED)
    async with session(tmp_path) as held:
        assert (await sampled(held)).cards[0].wear.ecc_corrected == 1
        worse = replace(
            card,
            ecc_corrected=2,
            ecc_volatile_uncorrected=3,
            remapped_rows=1,
            pcie_replays=151,
            link_errors=4,
            clock_graphics_mhz=210,
        )
        await write(tmp_path, worse, BRIDGED)
        assert (await sampled(held)).cards[0].clock_graphics_mhz == 210

        async def grown() -> bool:
            card = (await sampled(held)).cards[0]
            wear = card.wear
            told = (wear.ecc_corrected, wear.ecc_volatile_uncorrected, wear.remapped_rows)
            return (*told, card.pcie_replays, card.nvlink_errors) == (2, 3, 1, 151, 4)

        await awaited(grown, "what the card has suffered is told anew")
