"""Reading what moved on a card comes to the same as reading all of it again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from msgspec.structs import replace

from llmgw.hardware.nvml import Nvml
from llmgw.hardware.nvml_moving import CardReader
from llmgw.hardware.nvml_record import Answer, CardRecord, Record
from llmgw.hardware.nvml_report import card_report
from llmgw.testing.fake_nvml import write_fake_nvml
from llmgw.testing.machines import FakeMachine, FakeProcess

from .described import carved, part
from .support import A100, L40S, needs_nvml

pytestmark = needs_nvml

BUSY = replace(L40S, utilization_percent=97, processes=(FakeProcess(pid=41, memory_mib=3900),))
CARVED = carved(A100, part("1g.10gb", 9728, 7), part("1g.10gb", 9728, 9))
STEPS = 2_000
DRIVERS = (450, 535, 580)


def otherwise(value: Any, chance: random.Random) -> Any:  # noqa: ANN401 - whatever was answered
    """A value of the same kind that is another one."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return chance.choice((0, 1, value + chance.randrange(1, 2_000_000), 2**32 - 1))
    if isinstance(value, float):
        return value + chance.random()
    if isinstance(value, dict):
        return {name: otherwise(one, chance) for name, one in value.items()}
    return [otherwise(one, chance) for one in value]


def step(card: CardRecord, chance: random.Random) -> CardRecord:
    """The card with a few other answers: other values, errors, values again, one call more."""
    calls = dict(card.calls)
    for name in chance.sample(sorted(calls), chance.choice((0, 1, 1, 2, 5))):
        was = calls[name]
        if chance.random() < 0.15:
            calls[name] = Answer(error=chance.choice((3, 4, 15, 16, 999)))
        elif was.error is not None:
            calls[name] = Answer(value=chance.choice((1, [1, 1], {"total": 5 << 30, "free": 1})))
        else:
            calls[name] = Answer(value=otherwise(was.value, chance))
    if chance.random() < 0.02:
        calls["nvmlDeviceGetTemperature(0)"] = Answer(value=50)
    instances = card.instances
    if instances and chance.random() < 0.2:
        one = step(CardRecord(index=0, calls=instances[-1].calls), chance)
        instances = (*instances[:-1], replace(instances[-1], calls=one.calls))
    return replace(card, calls=calls, instances=instances)


@pytest.mark.parametrize("seed", range(3))
async def test_what_moved_read_alone_comes_to_the_same_as_all_read_again(
    tmp_path: Path, seed: int
) -> None:
    machine = FakeMachine((BUSY, CARVED, replace(A100, fan_percent=40)))
    await to_thread.run_sync(write_fake_nvml, tmp_path, machine)
    record = await Nvml(str(tmp_path)).record()
    assert isinstance(record, Record)
    chance, driver = random.Random(seed), DRIVERS[seed]
    reader = CardReader()
    for first in record.cards:
        card = first
        for number in range(STEPS // 3):
            assert reader(card, driver) == card_report(card, driver), (seed, number)
            card = step(card if chance.random() < 0.9 else first, chance)
