"""A session on NVML: samples that move, nothing stale, and gone when it is asked to go."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware.nvml import Nvml
from llmgw.hardware.nvml_failures import Failure
from llmgw.hardware.nvml_session import Ages, NvmlSession
from llmgw.hardware.types import DeviceReading, Inventory, Process
from llmgw.hardware.watch import readings_of
from llmgw.testing.fake_nvml import SONAME, write_fake_nvml
from llmgw.testing.machines import FakeMachine, FakeProcess
from llmgw.testing.nvml_events import MIG_CONFIG_CHANGE, XID, supports_events, tell_event

from ..support.wait import until
from .described import carved, part
from .support import A100, L40S, MIB, needs_nvml
from .test_smi_program import running

pytestmark = needs_nvml

BUSY = replace(
    L40S,
    utilization_percent=97,
    temperature_celsius=81,
    memory_used_mib=4000,
    processes=(FakeProcess(pid=41, memory_mib=3900),),
)
CARVED = carved(A100, part("1g.10gb", 9728, 7), part("1g.10gb", 9728, 9))


async def write(folder: Path, machine: FakeMachine, **more: Any) -> Path:  # noqa: ANN401
    return await to_thread.run_sync(lambda: write_fake_nvml(folder, machine, **more))


def session(folder: Path, timeout_seconds: float = 20) -> NvmlSession:
    return NvmlSession("n1", Nvml(str(folder), timeout_seconds))


async def sampled(of: NvmlSession) -> Inventory:
    found = await of.sample()
    assert isinstance(found, Inventory), found
    return found


async def test_samples_move_with_the_machine_over_one_program(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((L40S, L40S)))
    async with session(tmp_path) as held:
        assert (await sampled(held)).cards[0].temperature_celsius == 30
        (program,) = running(tmp_path)
        await write(tmp_path, FakeMachine((BUSY, L40S)))
        found = await sampled(held)
        assert (found.cards[0].temperature_celsius, found.cards[1].temperature_celsius) == (81, 30)
        assert found.devices[0].utilization_percent == 97
        assert found.devices[0].memory_used_bytes == 4000 * MIB
        assert found.devices[0].processes == (Process(pid=41, memory_bytes=3900 * MIB),)
        assert running(tmp_path) == [program]


async def test_a_value_that_stops_coming_disappears(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((BUSY,)))
    async with session(tmp_path) as held:
        await sampled(held)
        await write(
            tmp_path, FakeMachine((BUSY,)), changed={"0 nvmlDeviceGetTemperature(0)": "!999"}
        )
        assert (await sampled(held)).cards[0].temperature_celsius is None


async def test_instances_are_sampled_each_for_itself(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((CARVED,)))
    async with session(tmp_path) as held:
        await sampled(held)
        used = replace(CARVED.instances[1], memory_used_mib=512)
        await write(
            tmp_path, FakeMachine((replace(CARVED, instances=(CARVED.instances[0], used)),))
        )
        devices = (await sampled(held)).devices
        assert [device.memory_used_bytes for device in devices] == [0, 512 * MIB]


async def test_a_release_leaves_no_program_that_holds_nvml(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((L40S,)))
    async with session(tmp_path) as held:
        await sampled(held)
        assert len(running(tmp_path)) == 1
        await held.release()
        assert running(tmp_path) == []
        assert len((await sampled(held)).devices) == 1


async def test_a_sample_that_contradicts_the_session_is_looked_at_afresh(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((CARVED, L40S)))
    async with session(tmp_path) as held:
        assert len((await sampled(held)).devices) == 3
        gone = replace(CARVED, instances=CARVED.instances[:1])
        await write(tmp_path, FakeMachine((gone, L40S)))
        assert [device.label for device in (await sampled(held)).devices] == ["1", "0/mig0"]
        await write(tmp_path, FakeMachine((gone, replace(L40S, lost=True))))
        found = await sampled(held)
        assert [out.reason for out in found.excluded] == ["lost"]


async def test_a_session_that_is_killed_or_hangs_is_opened_again(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((L40S,)))
    async with session(tmp_path, timeout_seconds=2) as held:
        await sampled(held)
        (program,) = running(tmp_path)
        os.kill(program, signal.SIGKILL)
        assert len((await sampled(held)).devices) == 1
        await write(tmp_path, FakeMachine((L40S,)), changed={"0 nvmlDeviceGetPowerUsage": "*"})
        failure = await held.sample()
        assert isinstance(failure, Failure)
        assert "did not answer" in failure.reason
        await until(lambda: running(tmp_path) == [], what="the hanging program has ended")
        await write(tmp_path, FakeMachine((L40S,)))
        assert len((await sampled(held)).devices) == 1


async def test_a_library_that_crashes_in_a_session_takes_nobody_with_it(tmp_path: Path) -> None:
    """As it did to those that had it in their own process, when a card fell off the bus."""
    await write(tmp_path, FakeMachine((L40S, L40S)))
    async with session(tmp_path) as held:
        await sampled(held)
        await write(tmp_path, FakeMachine((L40S, L40S)), changed={"1 nvmlDeviceGetPowerUsage": "^"})
        failure = await held.sample()
        assert isinstance(failure, Failure)
        assert "the session has ended" in failure.reason
        lost = FakeMachine((L40S, replace(L40S, lost=True)))
        await write(tmp_path, lost)
        found = await sampled(held)
        assert [device.id for device in found.devices] == [0]
        assert [(out.card, out.reason) for out in found.excluded] == [(1, "lost")]


def who_shut_it_down(folder: Path) -> list[int]:
    """The programs that had NVML shut down before they ended."""
    noted = folder / f"{SONAME}.ended"
    return [int(line) for line in noted.read_text().split()] if noted.exists() else []


async def test_a_program_is_never_killed_in_a_call_that_ends_soon(tmp_path: Path) -> None:
    slow = {"0 nvmlDeviceGetPowerUsage": "~800 =70000"}
    await write(tmp_path, FakeMachine((L40S,)))
    async with session(tmp_path) as held:
        await sampled(held)
        (first,) = running(tmp_path)
        await held.release()
        assert who_shut_it_down(tmp_path) == [first], "it was asked, and let go by itself"
        await sampled(held)
        (second,) = running(tmp_path)
        await write(tmp_path, FakeMachine((L40S,)), changed=slow)
        with anyio.move_on_after(0.2):
            await held.sample()
        assert who_shut_it_down(tmp_path) == [first, second]
    assert running(tmp_path) == []


async def test_a_look_that_takes_too_long_is_told_to_end_between_two_calls(tmp_path: Path) -> None:
    slow = {"0 nvmlDeviceGetName": "~2000 =NVIDIA L40S"}
    await write(tmp_path, FakeMachine((L40S,)), changed=slow)
    failure = await Nvml(str(tmp_path), 1).record()
    assert isinstance(failure, Failure)
    assert len(who_shut_it_down(tmp_path)) == 1
    assert running(tmp_path) == []


TIME = "0 time of values"


async def test_values_that_stand_still_are_old_by_the_drivers_own_clock(tmp_path: Path) -> None:
    """They look alive: the calls go on answering, with what was known."""
    await write(tmp_path, FakeMachine((BUSY, L40S)))
    async with NvmlSession("n1", Nvml(str(tmp_path), 20), frozen_seconds=0.2) as held:

        async def ages() -> Mapping[str, float]:
            uuids.extend(card.uuid for card in (await sampled(held)).cards)
            return held.ages()

        uuids: list[str] = []
        for _ in range(3):
            assert await ages() == {}
        await write(tmp_path, FakeMachine((BUSY, L40S)), changed={TIME: "=77"})
        old: Mapping[str, float] = await until(ages, what="the first card's values are old")
        assert old.keys() == {uuids[0]}
        told = readings_of(await sampled(held), {}, old)
        assert (told.cards[0].utilization_percent, told.cards[1].utilization_percent) == (None, 0)
        assert told.cards[0].age_seconds is not None
        assert told.cards[1].age_seconds is None
        assert told.devices[0] == DeviceReading(id=0, uuid=uuids[0]), "not known, and not zero"
        assert told.devices[1].memory_used_bytes is not None

        await held.release()  # also over another session
        await sampled(held)
        await sampled(held)
        assert held.ages().keys() == {uuids[0]}
        await write(tmp_path, FakeMachine((BUSY, L40S)))
        await sampled(held)
        assert held.ages() == {}


def test_a_time_that_never_moved_proves_nothing() -> None:
    ages = Ages()
    for now in (0.0, 100.0):
        ages.note("GPU-constant", 7, now)
        ages.note("GPU-untold", 0, now)
    assert ages.old(200.0) == {}
    ages.note("GPU-constant", 8, 200.0)
    ages.note("GPU-constant", 8, 204.0)
    assert ages.old(204.0) == {}
    assert ages.old(206.0) == {"GPU-constant": 6.0}
    ages.note("GPU-constant", 0, 207.0)
    assert ages.old(999.0) == {}


async def test_every_error_is_told_once_also_one_that_was_told_before(tmp_path: Path) -> None:
    library = await write(tmp_path, FakeMachine((L40S,)), changed=supports_events(0))
    async with session(tmp_path) as held:
        (card,) = (await sampled(held)).cards
        await sampled(held)  # from now on it is told
        for number in (94, 94, 31):
            await to_thread.run_sync(tell_event, library, 0, XID, number)
        await sampled(held)
        assert [(x.card, x.number, x.gpu_instance) for x in held.take_errors()] == [
            (card.uuid, number, None) for number in (94, 94, 31)
        ]
        assert held.take_errors() == ()
        await sampled(held)  # afresh, for the news
        await sampled(held)
        await to_thread.run_sync(tell_event, library, 0, XID, 94)
        await sampled(held)
        assert [error.number for error in held.take_errors()] == [94]


async def test_a_sample_that_is_cancelled_gives_its_answer_to_nobody(tmp_path: Path) -> None:
    await write(tmp_path, FakeMachine((L40S,)))
    async with session(tmp_path) as held:
        await sampled(held)
        await write(tmp_path, FakeMachine((L40S,)), changed={"0 nvmlDeviceGetPowerUsage": "*"})
        with anyio.move_on_after(0.2):
            await held.sample()
        assert running(tmp_path) == []
        await write(tmp_path, FakeMachine((BUSY,)))
        assert (await sampled(held)).cards[0].temperature_celsius == 81


async def test_a_session_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    failure = await session(tmp_path).sample()
    assert isinstance(failure, Failure)
    assert failure.absent
    await write(tmp_path, FakeMachine((L40S,)), changed={"- nvmlInit": "!18"})
    failure = await session(tmp_path).sample()
    assert isinstance(failure, Failure)
    assert "mismatch" in failure.reason


@pytest.mark.parametrize("value", ["nan", "inf", "1e300"])
async def test_a_measurement_that_is_no_number_costs_itself_alone(
    tmp_path: Path, value: str
) -> None:
    absent = {"0 nvmlDeviceGetFieldValues(186,0)": f"=0 {value}", "0 nvmlDeviceGetPowerUsage": "!3"}
    await write(tmp_path, FakeMachine((L40S,)), changed=absent)
    async with session(tmp_path) as held:
        found = await sampled(held)
        assert found.cards[0].power_watts is None
        assert found.cards[0].recovery_action == "none"


async def test_what_the_driver_tells_by_itself_has_the_machine_looked_at_afresh(
    tmp_path: Path,
) -> None:
    able = supports_events(0, 1)
    library = await write(tmp_path, FakeMachine((L40S, CARVED)), changed=able)

    async def tell(card: int, kind: int, data: int = 0) -> None:
        await to_thread.run_sync(tell_event, library, card, kind, data)

    await tell(0, XID, 43)  # before anybody asked: nobody is told
    async with session(tmp_path) as held:
        uuids = [card.uuid for card in (await sampled(held)).cards]
        (program,) = running(tmp_path)
        await sampled(held)
        assert (held.xids, running(tmp_path)) == ({}, [program])

        await tell(0, XID, 31)
        await tell(0, XID, 79)
        await sampled(held)
        assert held.xids == {uuids[0]: (31, 79)}
        (second,) = running(tmp_path)
        assert second != program
        await tell(0, XID, 31)
        await sampled(held)
        assert running(tmp_path) == [second], "an error that repeats is no news"

        await tell(1, MIG_CONFIG_CHANGE)
        await sampled(held)
        assert running(tmp_path) != [second]
        held.forget_xids()
        assert held.xids == {}


@pytest.mark.parametrize(
    ("hidden", "changed"),
    [
        (frozenset({"nvmlEventSetWait_v2"}), {}),
        (frozenset(), {"- nvmlEventSetCreate": "!999"}),
        (frozenset(), {"0 nvmlDeviceGetSupportedEventTypes": "=0"}),
    ],
)
async def test_cards_that_cannot_tell_events_are_sampled_all_the_same(
    tmp_path: Path, hidden: frozenset[str], changed: dict[str, str]
) -> None:
    able = supports_events(0) | changed
    library = await write(tmp_path, FakeMachine((L40S,)), hidden=hidden, changed=able)
    async with session(tmp_path) as held:
        await sampled(held)
        await to_thread.run_sync(tell_event, library, 0, XID, 79)
        assert len((await sampled(held)).devices) == 1
        assert held.xids == {}
